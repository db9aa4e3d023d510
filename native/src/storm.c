/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker's storm: opens the back ends, gives every slot what the cycle does
 * not make, lines the threads up, and takes everything down again.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "storm.h"
#include "wait.h"

#define WORKER_THREADS_MAX 4096
#define START_RECHECK_NS 100000000u

static void set_state(struct gs_block *block, enum gs_state state)
{
	atomic_store_explicit(&block->state, (uint32_t)state,
			      memory_order_release);
}

static void set_tid(struct gs_block *block)
{
	atomic_store_explicit(&block->tid, (int32_t)syscall(SYS_gettid),
			      memory_order_relaxed);
}

/* The first failure is kept; nobody passes the start line after it. */
static int fail_setup(struct gs_storm *storm, int op, int error,
		      const char *what)
{
	pthread_mutex_lock(&storm->failure_lock);
	if (!storm->error) {
		storm->error = error;
		storm->failure->op = op;
		storm->failure->error = -error;
		snprintf(storm->failure->text, GS_TEXT, "%s", what);
	}
	pthread_mutex_unlock(&storm->failure_lock);
	atomic_store(&storm->abort, 1);
	gs_futex_wake(&storm->area->header->go);
	return error;
}

/* Memory and descriptor that the cycle does not make, at the largest size. */
static int fill_slot(struct gs_thread *t, struct gs_slot *s, int memory,
		     int buffer)
{
	int error;

	s->size = t->storm->program->size_max;
	if (memory) {
		error = gs_untimed(t, s, GS_OP_ALLOC);
		if (error)
			return fail_setup(t->storm, GS_OP_ALLOC, error,
					  "allocate before the start");
		s->has |= GS_KEEP_MEMORY;
	}
	if (buffer) {
		error = gs_untimed(t, s, GS_OP_EXPORT);
		if (error)
			return fail_setup(t->storm, GS_OP_EXPORT, error,
					  "export before the start");
		s->has |= GS_KEEP_BUFFER;
	}
	return 0;
}

static int open_place(struct gs_storm *storm, struct gs_slot *s)
{
	int error;

	if (!storm->importer->place_open)
		return 0;
	error = storm->importer->place_open(storm->importer_self,
					    storm->program->size_max,
					    &s->place);
	if (error)
		return fail_setup(storm, GS_OP_NONE, error,
				  "open the importer's place for a slot");
	s->has |= GS_HAS_PLACE;
	return 0;
}

/* What the set-up gave; the cycle's own things are gone by now. */
static void empty_slot(struct gs_thread *t, struct gs_slot *s, int memory,
		       int buffer, int place)
{
	if (buffer && s->has & GS_HAS_BUFFER)
		gs_untimed(t, s, GS_OP_CLOSE);
	if (memory && s->has & GS_HAS_MEMORY && gs_untimed(t, s, GS_OP_FREE))
		gs_bump(&t->block->leaked, 1);
	if (place && s->has & GS_HAS_PLACE)
		t->storm->importer->place_close(t->storm->importer_self,
						s->place,
						t->storm->program->size_max);
}

static int shares(const struct gs_storm *storm)
{
	return storm->program->share != GS_SHARE_NOTHING;
}

/* Whether each slot opens a place, not the set-up one for all. */
static int place_per_slot(const struct gs_storm *storm)
{
	return !shares(storm) || storm->importer->place_per_slot;
}

static int open_contexts(struct gs_thread *t)
{
	struct gs_storm *storm = t->storm;
	int error = 0;

	t->exporter = storm->exporter;
	t->importer = storm->importer;
	t->exporter_ctx = storm->exporter_self;
	t->importer_ctx = storm->importer_self;
	if (storm->exporter->thread_open)
		error = storm->exporter->thread_open(
			storm->exporter_self, t->number, &t->exporter_ctx);
	if (error)
		return fail_setup(storm, GS_OP_NONE, error,
				  "open the exporter in a thread");
	t->exporter_open = 1;
	if (storm->importer->thread_open)
		error = storm->importer->thread_open(
			storm->importer_self, t->number, &t->importer_ctx);
	if (error)
		return fail_setup(storm, GS_OP_NONE, error,
				  "open the importer in a thread");
	t->importer_open = 1;
	return 0;
}

static int pin(const struct gs_thread *t)
{
	const struct gs_storm *storm = t->storm;
	cpu_set_t set;

	if (!storm->cpu_count)
		return 0;
	CPU_ZERO(&set);
	CPU_SET((size_t)storm->cpus[t->index % storm->cpu_count], &set);
	return sched_setaffinity(0, sizeof(set), &set) ? -errno : 0;
}

static int fill_slots(struct gs_thread *t)
{
	struct gs_storm *storm = t->storm;
	const struct gs_plan *plan = &storm->plan;
	uint32_t depth = storm->program->depth;
	int error = 0;

	t->slots = calloc(depth, sizeof(*t->slots));
	t->order = calloc(depth, sizeof(*t->order));
	if (!t->slots || !t->order)
		return fail_setup(storm, GS_OP_NONE, -ENOMEM,
				  "allocate the table of slots");
	for (uint32_t i = 0; i < depth && !error; i++) {
		struct gs_slot *s = &t->slots[i];

		*s = storm->shared;
		if (place_per_slot(storm))
			error = open_place(storm, s);
		if (!error)
			error = fill_slot(t, s, plan->slot_memory,
					  plan->slot_buffer);
	}
	return error;
}

static int setup_thread(struct gs_thread *t)
{
	int error = pin(t);

	if (error)
		return fail_setup(t->storm, GS_OP_NONE, error,
				  "pin a thread to its CPU");
	error = open_contexts(t);
	if (!error)
		error = fill_slots(t);
	gs_clock_init(&t->clock);
	gs_sequence_init(&t->sequence, t->storm->program, t->number);
	return error;
}

static void teardown_thread(struct gs_thread *t)
{
	struct gs_storm *storm = t->storm;
	const struct gs_plan *plan = &storm->plan;

	for (uint32_t i = 0; t->slots && i < storm->program->depth; i++)
		empty_slot(t, &t->slots[i], plan->slot_memory,
			   plan->slot_buffer, place_per_slot(storm));
	if (t->importer_open && storm->importer->thread_close)
		storm->importer->thread_close(storm->importer_self,
					      t->importer_ctx);
	if (t->exporter_open && storm->exporter->thread_close)
		storm->exporter->thread_close(storm->exporter_self,
					      t->exporter_ctx);
	free(t->slots);
	free(t->order);
}

/* 1 when the storm begins, 0 when it was called off. */
static int wait_start(struct gs_storm *storm)
{
	struct gs_area_header *h = storm->area->header;

	while (!atomic_load_explicit(&h->go, memory_order_acquire)) {
		if (atomic_load(&storm->abort) || gs_stopped(storm->area))
			return 0;
		gs_futex_wait(&h->go, 0, gs_now_ns() + START_RECHECK_NS);
	}
	gs_sleep_until(storm->area, gs_load(&h->start_ns));
	return !atomic_load(&storm->abort);
}

static void *thread_main(void *argument)
{
	struct gs_thread *t = argument;
	struct gs_storm *storm = t->storm;
	const struct gs_program *p = storm->program;
	int error;

	set_tid(t->block);
	error = setup_thread(t);
	if (!error) {
		set_state(t->block, GS_STATE_READY);
		if (wait_start(storm)) {
			set_state(t->block, GS_STATE_RUNNING);
			t->seq = 0;
			t->last_ns = gs_load(&storm->area->header->start_ns);
			t->deadline_ns = p->duration_ns
						 ? t->last_ns + p->duration_ns
						 : UINT64_MAX;
			gs_loop(t);
		}
	}
	teardown_thread(t);
	set_state(t->block, error ? GS_STATE_FAILED : GS_STATE_DONE);
	return NULL;
}

static int check_call(struct gs_storm *storm, uint32_t first, uint32_t threads)
{
	uint32_t limit = storm->area->thread_count;

	if (!threads || threads > WORKER_THREADS_MAX || first >= limit ||
	    threads > limit - first) {
		gs_refuse(storm, "threads %u to %u are not in an area of %u",
			  first, first + threads, limit);
		return -EINVAL;
	}
	for (uint32_t i = first; i < first + threads; i++) {
		if (!atomic_load(&storm->area->blocks[i].state))
			continue;
		gs_refuse(storm, "thread %u of the area was used already", i);
		return -EINVAL;
	}
	for (uint32_t i = 0; i < storm->cpu_count; i++) {
		if (storm->cpus[i] >= 0 && storm->cpus[i] < CPU_SETSIZE)
			continue;
		gs_refuse(storm, "no such CPU: %d", storm->cpus[i]);
		return -EINVAL;
	}
	return 0;
}

static int find_backends(struct gs_storm *storm,
			 const struct gs_binding *exporter,
			 const struct gs_binding *importer)
{
	storm->exporter = gs_find_exporter(exporter->backend);
	storm->importer = gs_find_importer(importer->backend);
	if (!storm->exporter)
		gs_refuse(storm, "no exporter named %s", exporter->backend);
	else if (!storm->importer)
		gs_refuse(storm, "no importer named %s", importer->backend);
	return storm->exporter && storm->importer ? 0 : -EINVAL;
}

static int open_backends(struct gs_storm *storm,
			 const struct gs_binding *exporter,
			 const struct gs_binding *importer)
{
	int error = storm->exporter->open(exporter, &storm->exporter_self);

	if (error)
		return fail_setup(storm, GS_OP_NONE, error,
				  "open the exporter");
	error = storm->importer->open(importer, &storm->importer_self);
	if (!error)
		return 0;
	storm->exporter->close(storm->exporter_self);
	return fail_setup(storm, GS_OP_NONE, error, "open the importer");
}

static int open_shared(struct gs_storm *storm, uint32_t first)
{
	const struct gs_plan *plan = &storm->plan;
	struct gs_thread *setup = &storm->setup;
	int error = 0;

	if (!shares(storm))
		return 0;
	setup->storm = storm;
	setup->block = &storm->area->blocks[first];
	setup->slots = &storm->shared;
	setup->exporter = storm->exporter;
	setup->importer = storm->importer;
	setup->exporter_ctx = storm->exporter_self;
	set_tid(setup->block);
	if (storm->exporter->thread_open)
		error = storm->exporter->thread_open(storm->exporter_self,
						     GS_THREAD_SETUP,
						     &setup->exporter_ctx);
	if (error)
		return fail_setup(storm, GS_OP_NONE, error,
				  "open the exporter for the set-up");
	setup->exporter_open = 1;
	if (!place_per_slot(storm))
		error = open_place(storm, &storm->shared);
	if (error)
		return error;
	return fill_slot(setup, &storm->shared, plan->shared_memory,
			 plan->shared_buffer);
}

static void close_shared(struct gs_storm *storm)
{
	struct gs_thread *setup = &storm->setup;

	if (!setup->exporter_open)
		return;
	set_tid(setup->block);
	empty_slot(setup, &storm->shared, 1, 1, !place_per_slot(storm));
	if (storm->exporter->thread_close)
		storm->exporter->thread_close(storm->exporter_self,
					      setup->exporter_ctx);
}

/* Threads take no signals: the process's own thread handles them. */
static uint32_t start_threads(struct gs_storm *storm, struct gs_thread *threads,
			      uint32_t first, uint32_t count)
{
	sigset_t all, old;
	uint32_t i;
	int error = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	for (i = 0; i < count && !error; i++) {
		struct gs_thread *t = &threads[i];

		t->storm = storm;
		t->number = first + i;
		t->index = i;
		t->block = &storm->area->blocks[first + i];
		error = -pthread_create(&t->handle, NULL, thread_main, t);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (error) {
		fail_setup(storm, GS_OP_NONE, error, "start a thread");
		i--;
	}
	return i;
}

static void mark(struct gs_storm *storm, uint32_t first, uint32_t count,
		 enum gs_state state)
{
	for (uint32_t i = first; i < first + count; i++) {
		struct gs_block *block = &storm->area->blocks[i];

		atomic_store_explicit(&block->worker, storm->worker,
				      memory_order_relaxed);
		set_state(block, state);
	}
}

static void run_threads(struct gs_storm *storm, uint32_t first, uint32_t count)
{
	struct gs_thread *threads = aligned_alloc(_Alignof(struct gs_thread),
						  count * sizeof(*threads));
	uint32_t started;

	if (!threads) {
		fail_setup(storm, GS_OP_NONE, -ENOMEM, "allocate the threads");
		mark(storm, first, count, GS_STATE_FAILED);
		return;
	}
	memset(threads, 0, count * sizeof(*threads));
	gs_barrier_init(&storm->barrier, count);
	started = start_threads(storm, threads, first, count);
	mark(storm, first + started, count - started, GS_STATE_FAILED);
	for (uint32_t i = 0; i < started; i++)
		pthread_join(threads[i].handle, NULL);
	free(threads);
}

int gs_run_storm(struct gs_area *area, uint32_t worker, uint32_t first,
		 uint32_t threads, const struct gs_program *program,
		 const struct gs_binding *exporter,
		 const struct gs_binding *importer, const int *cpus,
		 uint32_t cpu_count, struct gs_failure *failure)
{
	struct gs_storm storm = {
		.area = area,
		.program = program,
		.worker = worker,
		.cpus = cpus,
		.cpu_count = cpu_count,
		.failure_lock = PTHREAD_MUTEX_INITIALIZER,
		.failure = failure,
	};

	memset(failure, 0, sizeof(*failure));
	if (check_call(&storm, first, threads) ||
	    find_backends(&storm, exporter, importer) ||
	    gs_plan_compile(&storm))
		return -EINVAL;
	mark(&storm, first, threads, GS_STATE_STARTING);
	if (open_backends(&storm, exporter, importer)) {
		mark(&storm, first, threads, GS_STATE_FAILED);
		return storm.error;
	}
	if (open_shared(&storm, first))
		mark(&storm, first, threads, GS_STATE_FAILED);
	else
		run_threads(&storm, first, threads);
	close_shared(&storm);
	storm.importer->close(storm.importer_self);
	storm.exporter->close(storm.exporter_self);
	return storm.error;
}
