/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine under ASan, UBSan and TSan: storms on the fake back ends and on
 * real memfds while another thread reads the area all the time. `make check`
 * builds and runs it three times; it prints what failed and exits with 1.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../src/storm.h"

static int failures;

#define CHECK(condition, ...)                                                  \
	do {                                                                   \
		if (!(condition)) {                                            \
			failures++;                                            \
			printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
			printf(__VA_ARGS__);                                   \
			printf("\n");                                          \
		}                                                              \
	} while (0)

static const uint8_t full[] = { GS_OP_ALLOC, GS_OP_EXPORT, GS_OP_REG,
				GS_OP_REREG, GS_OP_SYNC,   GS_OP_DEREG,
				GS_OP_CLOSE, GS_OP_FREE };
static const uint8_t reversed[] = { GS_OP_ALLOC, GS_OP_EXPORT, GS_OP_REG,
				    GS_OP_FREE,	 GS_OP_CLOSE,  GS_OP_DEREG };
static const uint8_t registering[] = { GS_OP_REG, GS_OP_DEREG };
static const uint8_t memfds[] = { GS_OP_ALLOC, GS_OP_FREE };
static const uint8_t meeting[] = { GS_OP_BARRIER, GS_OP_CONTROL };
static const uint8_t waiting[] = { GS_OP_DELAY };

#define PROGRAM(ops, ...)                                                      \
	(struct gs_program)                                                    \
	{                                                                      \
		.cycle = ops, .cycle_length = sizeof(ops),                     \
		.size_min = 4096, .size_max = 65536, .size_step = 4096,        \
		.offset_max = 8192, .access = 7, .rereg_access = 1, .seed = 7, \
		__VA_ARGS__                                                    \
	}

static const struct gs_binding fake = { .backend = "fake" };

struct reader {
	struct gs_area *area;
	_Atomic int stop;
	uint32_t threads;
};

/* What a supervisor does, without a pause. */
static void *read_area(void *argument)
{
	struct reader *r = argument;
	struct gs_totals *totals = malloc(sizeof(*totals));
	struct gs_call *calls = calloc(r->threads, sizeof(*calls));
	struct gs_rate *rates = calloc(r->threads, sizeof(*rates));
	struct gs_first_error *errors = calloc(64, sizeof(*errors));
	uint64_t done = 0;

	while (!atomic_load(&r->stop)) {
		uint64_t now = 0;

		gs_area_totals(r->area, 0, r->threads, totals);
		for (int op = 0; op < GS_OP_COUNT; op++)
			now += totals->op[op].ok_count +
			       totals->op[op].error_count;
		CHECK(now >= done, "counts went back");
		done = now;
		uint32_t n = gs_area_calls(r->area, 0, r->threads, 0, calls);

		for (uint32_t i = 0; i < n; i++)
			CHECK(calls[i].op && calls[i].op < GS_OP_COUNT,
			      "torn call %u", calls[i].op);
		gs_area_errors(r->area, 0, r->threads, errors, 64);
		gs_area_rates(r->area, 0, r->threads, rates);
	}
	free(totals);
	free(calls);
	free(rates);
	free(errors);
	return NULL;
}

static int run(struct gs_program program, uint32_t threads,
	       const struct gs_binding *exporter,
	       const struct gs_binding *importer, struct gs_totals *totals,
	       struct gs_failure *failure)
{
	int error;
	struct gs_area *area = gs_area_create(threads, &error);
	struct reader reader = { .area = area, .threads = threads };
	pthread_t thread;
	int result;

	gs_fake_reset();
	gs_area_start(area);
	pthread_create(&thread, NULL, read_area, &reader);
	result = gs_run_storm(area, 0, 0, threads, &program, exporter, importer,
			      NULL, 0, failure);
	atomic_store(&reader.stop, 1);
	pthread_join(thread, NULL);
	gs_area_totals(area, 0, threads, totals);
	gs_area_close(area);
	return result;
}

static void check_nothing_left(const struct gs_totals *totals, const char *what)
{
	static const char *const kinds[] = { "memory", "descriptors",
					     "registrations", "misuses" };

	for (int kind = 0; kind < 4; kind++)
		CHECK(gs_fake_live(kind) == 0, "%s: %lld %s left", what,
		      (long long)gs_fake_live(kind), kinds[kind]);
	CHECK(totals->outstanding == 0, "%s", what);
}

static uint64_t calls_of(const struct gs_totals *totals, enum gs_op op)
{
	return totals->op[op].ok_count + totals->op[op].error_count;
}

static void test_orders(struct gs_totals *totals)
{
	struct gs_failure failure;

	for (uint32_t order = 0; order < 3; order++) {
		int error = run(PROGRAM(full, .depth = 7, .order = order,
					.count = 500),
				4, &fake, &fake, totals, &failure);

		CHECK(!error, "%s", failure.text);
		for (int op = GS_OP_ALLOC; op <= GS_OP_SYNC; op++)
			CHECK(calls_of(totals, op) == 2000, "operation %d", op);
		check_nothing_left(totals, "orders");
	}
}

static void test_errors(struct gs_totals *totals)
{
	const struct gs_binding failing = {
		.backend = "fake",
		.numbers = (int64_t[]){ 0, 0, 13, ENOMEM },
		.number_count = 4,
	};
	struct gs_failure failure;

	CHECK(!run(PROGRAM(reversed, .depth = 5, .order = GS_ORDER_RANDOM,
			   .count = 500),
		   3, &failing, &failing, totals, &failure),
	      "%s", failure.text);
	CHECK(totals->op[GS_OP_REG].errno_value[0] == ENOMEM, "errno");
	CHECK(totals->skipped > 0, "skipped");
	check_nothing_left(totals, "errors");
}

static void test_shares(struct gs_totals *totals)
{
	struct gs_failure failure;

	for (uint32_t share = 0; share < 3; share++) {
		CHECK(!run(PROGRAM(registering, .depth = 3, .share = share,
				   .count = 500),
			   3, &fake, &fake, totals, &failure),
		      "%s", failure.text);
		CHECK(calls_of(totals, GS_OP_DEREG) == 1500, "share %u", share);
		check_nothing_left(totals, "shares");
	}
}

static void test_failing_setup(struct gs_totals *totals)
{
	const struct gs_binding failing = {
		.backend = "fake",
		.numbers = (int64_t[]){ 0, GS_OP_EXPORT, 0, EMFILE, 5 },
		.number_count = 5,
	};
	struct gs_failure failure;

	CHECK(run(PROGRAM(registering, .depth = 8, .count = 10), 3, &failing,
		  &fake, totals, &failure) == -EMFILE,
	      "%s", failure.text);
	CHECK(failure.op == GS_OP_EXPORT && failure.error == EMFILE, "failure");
	check_nothing_left(totals, "set-up");
}

static int open_descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int count = 0;

	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

static void test_memfd(struct gs_totals *totals)
{
	const struct gs_binding memory = { .backend = "udmabuf" };
	struct gs_failure failure;
	int before = open_descriptors();

	CHECK(!run(PROGRAM(memfds, .depth = 16, .order = GS_ORDER_RANDOM,
			   .count = 500),
		   4, &memory, &fake, totals, &failure),
	      "%s", failure.text);
	CHECK(totals->op[GS_OP_ALLOC].ok_count == 2000, "memfds made");
	CHECK(open_descriptors() == before, "descriptors leaked");
}

static void test_barrier(struct gs_totals *totals)
{
	struct gs_failure failure;

	CHECK(!run(PROGRAM(meeting, .depth = 1, .count = 300), 4, &fake, &fake, totals,
		   &failure),
	      "%s", failure.text);
	CHECK(calls_of(totals, GS_OP_BARRIER) == 1200, "barriers");
}

static void *stop_soon(void *area)
{
	usleep(20000);
	gs_area_stop(area);
	return NULL;
}

static void test_stop(void)
{
	int error;
	struct gs_area *area = gs_area_create(2, &error);
	struct gs_program program = PROGRAM(waiting, .depth = 1, .count = 1,
					    .delay_ns = 3600000000000u);
	struct gs_failure failure;
	pthread_t thread;
	uint8_t states[2];

	gs_area_start(area);
	pthread_create(&thread, NULL, stop_soon, area);
	CHECK(!gs_run_storm(area, 0, 0, 2, &program, &fake, &fake, NULL, 0,
			    &failure),
	      "%s", failure.text);
	pthread_join(thread, NULL);
	gs_area_states(area, 0, 2, states);
	CHECK(states[0] == GS_STATE_DONE && states[1] == GS_STATE_DONE, "state");
	gs_area_close(area);
}

struct lonely {
	struct gs_area *area;
	struct gs_barrier barrier;
	int result;
};

static void *wait_alone(void *argument)
{
	struct lonely *l = argument;

	l->result = gs_barrier_wait(&l->barrier, l->area);
	return NULL;
}

/* One of two arrives; the other never does: it stops the storm, or it leaves. */
static void test_lonely_barrier(int leave)
{
	int error;
	struct lonely l = { .area = gs_area_create(1, &error), .result = 1 };
	pthread_t thread;

	gs_barrier_init(&l.barrier, 2);
	pthread_create(&thread, NULL, wait_alone, &l);
	usleep(30000);
	if (leave)
		gs_barrier_leave(&l.barrier);
	else
		gs_area_stop(l.area);
	pthread_join(thread, NULL);
	CHECK(l.result == (leave ? 0 : -EINTR), "result %d", l.result);
	gs_area_close(l.area);
}

struct worker {
	int fd;
	uint32_t first;
	uint32_t number;
};

static void *run_worker(void *argument)
{
	struct worker *w = argument;
	int error;
	struct gs_area *area = gs_area_attach(w->fd, &error);
	struct gs_program program = PROGRAM(full, .depth = 3, .count = 200);
	struct gs_failure failure;

	CHECK(!gs_run_storm(area, w->number, w->first, 2, &program, &fake,
			    &fake, NULL, 0, &failure),
	      "%s", failure.text);
	gs_area_close(area);
	return NULL;
}

static void test_two_workers(struct gs_totals *totals)
{
	int error;
	struct gs_area *area = gs_area_create(4, &error);
	struct worker workers[2] = { { gs_area_fd(area), 0, 0 },
				     { gs_area_fd(area), 2, 1 } };
	struct gs_rate rates[4];
	pthread_t threads[2];

	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, run_worker, &workers[i]);
	CHECK(gs_area_wait_ready(area, 0, 4, 60000000000u) == 1, "ready");
	gs_area_start(area);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	gs_area_totals(area, 0, 4, totals);
	gs_area_rates(area, 0, 4, rates);
	CHECK(calls_of(totals, GS_OP_REG) == 800, "registrations");
	CHECK(rates[3].worker == 1 && rates[3].count == 1600, "rates");
	gs_area_close(area);
}

/* An importer with memory of its own registers in a slot without a descriptor. */
static void test_registration_without_a_buffer(void)
{
	const struct gs_importer own = { .ignores_fd = 1 }, other = { 0 };
	const struct gs_act free_of_it = gs_act_of(&own, GS_OP_REG);
	const struct gs_act needs_it = gs_act_of(&other, GS_OP_REG);

	CHECK((0 & free_of_it.looks) == free_of_it.wants, "not run");
	CHECK((GS_HAS_REG & free_of_it.looks) != free_of_it.wants, "run twice");
	CHECK((0 & needs_it.looks) != needs_it.wants, "run without a buffer");
}

int main(void)
{
	struct gs_totals *totals = malloc(sizeof(*totals));

	test_orders(totals);
	test_errors(totals);
	test_shares(totals);
	test_failing_setup(totals);
	test_memfd(totals);
	test_barrier(totals);
	test_lonely_barrier(0);
	test_lonely_barrier(1);
	test_stop();
	test_two_workers(totals);
	test_registration_without_a_buffer();
	free(totals);
	printf("%s: %d failures\n", failures ? "FAIL" : "PASS", failures);
	return failures ? 1 : 0;
}
