/* SPDX-License-Identifier: Apache-2.0
 *
 * The timed loop of one thread. Nothing here allocates, logs or locks; the only
 * shared writes are to the thread's own block.
 */
#include <errno.h>
#include <linux/dma-buf.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "storm.h"
#include "wait.h"

#define NO_VICTIM UINT32_MAX

/* How each operation is done. What is done between the two clock reads is the
 * call itself and nothing else.
 */
static int do_alloc(struct gs_thread *t, struct gs_slot *s)
{
	return t->exporter->alloc(t->exporter_ctx, s->size, &s->memory);
}

static int do_export(struct gs_thread *t, struct gs_slot *s)
{
	return t->exporter->export(t->exporter_ctx, &s->memory, 0, s->size,
				   &s->fd);
}

static struct gs_range range_of(const struct gs_slot *s)
{
	return (struct gs_range){
		.offset = s->offset,
		.length = s->length,
		.iova = s->offset,
		.place = s->place,
		.fd = s->has & GS_HAS_BUFFER ? s->fd : -1,
		.access = s->access,
	};
}

static int do_reg(struct gs_thread *t, struct gs_slot *s)
{
	const struct gs_range range = range_of(s);

	return t->importer->reg(t->importer_ctx, &range, &s->registration);
}

/* Changes the access between the program's two. */
static int do_rereg(struct gs_thread *t, struct gs_slot *s)
{
	const struct gs_program *p = t->storm->program;
	struct gs_range range;

	s->access = s->access == p->rereg_access ? p->access : p->rereg_access;
	range = range_of(s);
	return t->importer->rereg(t->importer_ctx, &range, &s->registration);
}

static int do_dereg(struct gs_thread *t, struct gs_slot *s)
{
	return t->importer->dereg(t->importer_ctx, s->place, &s->registration);
}

static int do_close(struct gs_thread *t, struct gs_slot *s)
{
	if (t->exporter->close_fd)
		return t->exporter->close_fd(t->exporter_ctx, s->fd);
	return close(s->fd) ? -errno : 0;
}

static int do_free(struct gs_thread *t, struct gs_slot *s)
{
	return t->exporter->free(t->exporter_ctx, &s->memory);
}

static int do_sync(struct gs_thread *t, struct gs_slot *s)
{
	struct dma_buf_sync sync = { DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW };

	if (t->exporter->sync)
		return t->exporter->sync(t->exporter_ctx, s->fd);
	if (ioctl(s->fd, DMA_BUF_IOCTL_SYNC, &sync))
		return -errno;
	sync.flags = DMA_BUF_SYNC_END | DMA_BUF_SYNC_RW;
	return ioctl(s->fd, DMA_BUF_IOCTL_SYNC, &sync) ? -errno : 0;
}

static int do_delay(struct gs_thread *t, struct gs_slot *s)
{
	uint64_t until = gs_clock_now(&t->clock) +
			 t->storm->program->delay_ns;

	(void)s;
	gs_sleep_until(t->storm->area,
		       until < t->deadline_ns ? until : t->deadline_ns);
	return 0;
}

/* Stopped while waiting is the end of the storm, no error. */
static int do_barrier(struct gs_thread *t, struct gs_slot *s)
{
	(void)s;
	gs_barrier_wait(&t->storm->barrier, t->storm->area);
	return 0;
}

static int do_control(struct gs_thread *t, struct gs_slot *s)
{
	(void)s;
	if (t->exporter->control)
		return t->exporter->control(t->exporter_ctx);
	return t->importer->control(t->importer_ctx);
}

/* Runs only in a slot where (has & looks) == wants, that is, where no earlier
 * operation failed to make what this one works on or to end what it makes anew.
 * close(2) ends the descriptor whatever it returns.
 */
static const struct gs_act acts[GS_OP_COUNT] = {
	[GS_OP_ALLOC] = { do_alloc, .looks = GS_HAS_MEMORY,
			  .makes = GS_HAS_MEMORY },
	[GS_OP_EXPORT] = { do_export, .looks = GS_HAS_MEMORY | GS_HAS_BUFFER,
			   .wants = GS_HAS_MEMORY, .makes = GS_HAS_BUFFER },
	[GS_OP_REG] = { do_reg, .looks = GS_HAS_REG | GS_HAS_BUFFER,
			.wants = GS_HAS_BUFFER, .makes = GS_HAS_REG },
	[GS_OP_REREG] = { do_rereg, .looks = GS_HAS_REG, .wants = GS_HAS_REG },
	[GS_OP_DEREG] = { do_dereg, .looks = GS_HAS_REG, .wants = GS_HAS_REG,
			  .ends = GS_HAS_REG },
	[GS_OP_CLOSE] = { do_close, .looks = GS_HAS_BUFFER,
			  .wants = GS_HAS_BUFFER, .loses = GS_HAS_BUFFER },
	[GS_OP_FREE] = { do_free, .looks = GS_HAS_MEMORY,
			 .wants = GS_HAS_MEMORY, .ends = GS_HAS_MEMORY },
	[GS_OP_SYNC] = { do_sync, .looks = GS_HAS_BUFFER,
			 .wants = GS_HAS_BUFFER },
	[GS_OP_DELAY] = { do_delay, .idle = 1 },
	[GS_OP_BARRIER] = { do_barrier, .idle = 1 },
	[GS_OP_CONTROL] = { do_control },
};

struct gs_act gs_act_of(const struct gs_importer *importer, uint8_t op)
{
	struct gs_act act = acts[op];

	act.op = op;
	if (op == GS_OP_REG && importer->ignores_fd)
		act.looks = GS_HAS_REG, act.wants = 0;
	return act;
}

static void settle(struct gs_slot *s, const struct gs_act *act, int error)
{
	uint32_t has = s->has & ~(uint32_t)act->loses;

	if (!error)
		has = (has | act->makes) & ~(uint32_t)act->ends;
	s->has = has;
}

__attribute__((cold, noinline)) static void
count_error(struct gs_thread *t, const struct gs_slot *s, uint8_t op,
	    uint32_t error, uint64_t start)
{
	struct gs_errnos *block = &t->block->errnos[op];

	for (uint32_t i = 0; i < GS_ERRNOS; i++) {
		struct gs_errno_entry *e = &block->first[i];
		uint32_t known = atomic_load_explicit(&e->error,
						      memory_order_relaxed);

		if (known && known != error)
			continue;
		gs_bump(&e->count, 1);
		if (known)
			return;
		e->slot = (uint32_t)(s - t->slots);
		e->access = s->access;
		e->time_ns = start;
		e->seq = t->seq;
		e->offset = s->offset;
		e->length = op == GS_OP_ALLOC || op == GS_OP_EXPORT ? s->size
								    : s->length;
		atomic_store_explicit(&e->error, error, memory_order_release);
		return;
	}
	gs_bump(&block->other, 1);
}

static void count_time(struct gs_block *block, uint8_t op, int failed,
		       uint64_t ns)
{
	struct gs_side *side = &block->side[op][failed];

	if (~ns > gs_load(&side->inverse_min_ns))
		gs_store(&side->inverse_min_ns, ~ns);
	if (ns > gs_load(&side->max_ns))
		gs_store(&side->max_ns, ns);
	gs_bump(&side->sum_ns, ns);
	gs_bump(&block->bucket[op][failed][gs_bucket_of(ns)], 1);
}

/* The call word is unique (seq), set last and cleared first: see read_call. */
static void publish(struct gs_thread *t, const struct gs_slot *s, uint8_t op,
		    uint64_t start)
{
	gs_store_after(&t->block->since_ns, start);
	gs_store_after(&t->block->slot, (uint64_t)(s - t->slots));
	gs_store_after(&t->block->call, t->seq << 16 | op);
}

static void run_act(struct gs_thread *t, struct gs_slot *s,
		    const struct gs_act *act)
{
	struct gs_block *block = t->block;
	uint64_t start, end;
	int error;

	if (__builtin_expect((s->has & act->looks) != act->wants, 0)) {
		gs_bump(&block->skipped, 1);
		return;
	}
	t->seq++;
	start = gs_clock_now(&t->clock);
	if (!act->idle)
		publish(t, s, act->op, start);
	error = act->call(t, s);
	end = gs_clock_now(&t->clock);
	gs_store(&block->call, 0);
	t->last_ns = end;
	settle(s, act, error);
	/* Only a TSC that was reset by a suspend can make it negative. */
	count_time(block, act->op, error != 0, end > start ? end - start : 0);
	if (!act->idle)
		gs_bump(&block->done, 1);
	if (__builtin_expect(error != 0, 0)) {
		count_error(t, s, act->op, (uint32_t)-error, start);
		if (t->storm->program->stop_on_error)
			gs_area_stop(t->storm->area);
	}
}

int gs_untimed(struct gs_thread *t, struct gs_slot *s, enum gs_op op)
{
	const struct gs_act act = gs_act_of(t->importer, (uint8_t)op);
	uint64_t start = gs_now_ns();
	int error;

	t->seq++;
	publish(t, s, act.op, start);
	error = act.call(t, s);
	gs_store(&t->block->call, 0);
	settle(s, &act, error);
	return error;
}

/* What the cycle made, unlike what the set-up gave, is the cycle's to end. */
static int owns_buffer(const struct gs_slot *s)
{
	return (s->has & (GS_HAS_BUFFER | GS_KEEP_BUFFER)) == GS_HAS_BUFFER;
}

static int owns_memory(const struct gs_slot *s)
{
	return (s->has & (GS_HAS_MEMORY | GS_KEEP_MEMORY)) == GS_HAS_MEMORY;
}

static int is_left(const struct gs_slot *s)
{
	return s->has & GS_HAS_REG || owns_buffer(s) || owns_memory(s);
}

/* End what failed calls left in the slot; not timed, nothing may stay. */
static void clean(struct gs_thread *t, struct gs_slot *s)
{
	if (s->has & GS_HAS_REG && gs_untimed(t, s, GS_OP_DEREG))
		gs_bump(&t->block->leaked, 1);
	if (owns_buffer(s))
		gs_untimed(t, s, GS_OP_CLOSE);
	if (owns_memory(s) && gs_untimed(t, s, GS_OP_FREE)) {
		gs_bump(&t->block->leaked, 1);
		s->has &= ~(uint32_t)GS_HAS_MEMORY;
	}
	s->has &= ~(uint32_t)GS_HAS_REG;
}

static void acquire(struct gs_thread *t, const struct gs_step *step)
{
	const struct gs_plan *plan = &t->storm->plan;
	struct gs_slot *s = &t->slots[step->slot];

	s->size = step->size;
	s->offset = step->offset;
	s->length = step->length;
	s->access = t->storm->program->access;
	s->has |= GS_IN_WINDOW;
	gs_bump(&t->block->outstanding, 1);
	for (uint32_t i = 0; i < plan->acquire_count; i++)
		run_act(t, s, &plan->acts[i]);
}

static void release(struct gs_thread *t, struct gs_slot *s, int draining)
{
	const struct gs_plan *plan = &t->storm->plan;

	for (uint32_t i = plan->acquire_count; i < plan->count; i++)
		if (!draining || !plan->acts[i].idle)
			run_act(t, s, &plan->acts[i]);
	if (is_left(s))
		clean(t, s);
	s->has &= ~(uint32_t)GS_IN_WINDOW;
	gs_bump(&t->block->outstanding, (uint64_t)-1);
}

/* Slots still in the window, oldest first, then in the program's order. */
static uint32_t drain_order(struct gs_thread *t)
{
	const struct gs_program *p = t->storm->program;
	uint32_t *order = t->order, count = 0, other, swap;
	uint32_t from = t->sequence.filled < p->depth ? 0 : t->sequence.next;

	for (uint32_t i = 0; i < p->depth; i++) {
		uint32_t slot = (from + i) % p->depth;

		if (t->slots[slot].has & GS_IN_WINDOW)
			order[count++] = slot;
	}
	for (uint32_t i = count; i > 1 && p->order != GS_ORDER_FIFO; i--) {
		if (p->order == GS_ORDER_LIFO && i <= count - count / 2)
			break;
		other = p->order == GS_ORDER_LIFO
				? count - i
				: (uint32_t)gs_sequence_below(&t->sequence, i);
		swap = order[i - 1];
		order[i - 1] = order[other];
		order[other] = swap;
	}
	return count;
}

static void drain(struct gs_thread *t)
{
	uint32_t count = drain_order(t);

	for (uint32_t i = 0; i < count; i++)
		release(t, &t->slots[t->order[i]], 1);
}

static void pace(struct gs_thread *t, uint64_t *next_ns)
{
	uint64_t pacing = t->storm->program->pacing_ns;

	if (!pacing)
		return;
	/* A late thread does not catch up: pacing is a ceiling of the rate. */
	*next_ns += pacing;
	if (*next_ns < t->last_ns)
		*next_ns = t->last_ns;
	gs_sleep_until(t->storm->area, *next_ns < t->deadline_ns
					       ? *next_ns
					       : t->deadline_ns);
}

void gs_loop(struct gs_thread *t)
{
	const struct gs_program *p = t->storm->program;
	uint64_t limit = p->count ? p->count : UINT64_MAX;
	uint64_t next_ns = t->last_ns;
	struct gs_step step;

	for (uint64_t i = 0; i < limit; i++) {
		if (gs_stopped(t->storm->area) || t->last_ns >= t->deadline_ns)
			break;
		gs_clock_check(&t->clock, t->last_ns);
		gs_sequence_next(&t->sequence, &step);
		acquire(t, &step);
		if (step.victim != NO_VICTIM)
			release(t, &t->slots[step.victim], 0);
		pace(t, &next_ns);
	}
	gs_barrier_leave(&t->storm->barrier);
	drain(t);
}
