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

static int sync_buffer(int fd)
{
	struct dma_buf_sync sync = { DMA_BUF_SYNC_START | DMA_BUF_SYNC_RW };

	if (ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync))
		return -errno;
	sync.flags = DMA_BUF_SYNC_END | DMA_BUF_SYNC_RW;
	return ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync) ? -errno : 0;
}

static int is_idle(uint8_t op)
{
	return op == GS_OP_DELAY || op == GS_OP_BARRIER;
}

/* False when an earlier operation of this slot failed to make what this one
 * works on (or to end what this one makes anew).
 */
static int can_run(const struct gs_thread *t, const struct gs_slot *s,
		   uint8_t op)
{
	switch (op) {
	case GS_OP_ALLOC:
		return !(s->has & GS_HAS_MEMORY);
	case GS_OP_EXPORT:
		return (s->has & (GS_HAS_MEMORY | GS_HAS_BUFFER)) ==
		       GS_HAS_MEMORY;
	case GS_OP_REG:
		return !(s->has & GS_HAS_REG) &&
		       (s->has & GS_HAS_BUFFER ||
			t->storm->importer->ignores_fd);
	case GS_OP_REREG:
	case GS_OP_DEREG:
		return s->has & GS_HAS_REG;
	case GS_OP_CLOSE:
	case GS_OP_SYNC:
		return s->has & GS_HAS_BUFFER;
	case GS_OP_FREE:
		return s->has & GS_HAS_MEMORY;
	default:
		return 1;
	}
}

static int do_reg(struct gs_thread *t, struct gs_slot *s, uint8_t op)
{
	const struct gs_importer *importer = t->storm->importer;
	const struct gs_range range = {
		.offset = s->offset,
		.length = s->length,
		.iova = s->offset,
		.place = s->place,
		.fd = s->has & GS_HAS_BUFFER ? s->fd : -1,
		.access = s->access,
	};

	if (op == GS_OP_REG)
		return importer->reg(t->importer_ctx, &range, &s->registration);
	return importer->rereg(t->importer_ctx, &range, &s->registration);
}

static int do_export(struct gs_thread *t, struct gs_slot *s)
{
	return t->storm->exporter->export(t->exporter_ctx, &s->memory, 0,
					  s->size, &s->fd);
}

static int do_close(struct gs_thread *t, struct gs_slot *s)
{
	if (t->storm->exporter->close_fd)
		return t->storm->exporter->close_fd(t->exporter_ctx, s->fd);
	return close(s->fd) ? -errno : 0;
}

static int do_control(struct gs_thread *t)
{
	const struct gs_storm *storm = t->storm;

	if (storm->exporter->control)
		return storm->exporter->control(t->exporter_ctx);
	return storm->importer->control(t->importer_ctx);
}

static int do_sync(struct gs_thread *t, struct gs_slot *s)
{
	if (t->storm->exporter->sync)
		return t->storm->exporter->sync(t->exporter_ctx, s->fd);
	return sync_buffer(s->fd);
}

static int do_delay(struct gs_thread *t, uint64_t start)
{
	uint64_t until = start + t->storm->program->delay_ns;

	gs_sleep_until(t->storm->area,
		       until < t->deadline_ns ? until : t->deadline_ns);
	return 0;
}

/* The call itself, and nothing else, between two clock reads. */
static int call(struct gs_thread *t, struct gs_slot *s, uint8_t op,
		uint64_t start)
{
	struct gs_storm *storm = t->storm;

	switch (op) {
	case GS_OP_ALLOC:
		return storm->exporter->alloc(t->exporter_ctx, s->size,
					      &s->memory);
	case GS_OP_EXPORT:
		return do_export(t, s);
	case GS_OP_REG:
	case GS_OP_REREG:
		return do_reg(t, s, op);
	case GS_OP_DEREG:
		return storm->importer->dereg(t->importer_ctx, s->place,
					      &s->registration);
	case GS_OP_CLOSE:
		return do_close(t, s);
	case GS_OP_FREE:
		return storm->exporter->free(t->exporter_ctx, &s->memory);
	case GS_OP_SYNC:
		return do_sync(t, s);
	case GS_OP_DELAY:
		return do_delay(t, start);
	case GS_OP_BARRIER:
		/* Stopped while waiting is the end of the storm, no error. */
		gs_barrier_wait(&storm->barrier, storm->area);
		return 0;
	default:
		return do_control(t);
	}
}

static void settle(struct gs_slot *s, uint8_t op, int error)
{
	/* close(2) ends the descriptor whatever it returns. */
	if (op == GS_OP_CLOSE)
		s->has &= ~(uint32_t)GS_HAS_BUFFER;
	if (error)
		return;
	if (op == GS_OP_ALLOC)
		s->has |= GS_HAS_MEMORY;
	else if (op == GS_OP_EXPORT)
		s->has |= GS_HAS_BUFFER;
	else if (op == GS_OP_REG)
		s->has |= GS_HAS_REG;
	else if (op == GS_OP_DEREG)
		s->has &= ~(uint32_t)GS_HAS_REG;
	else if (op == GS_OP_FREE)
		s->has &= ~(uint32_t)GS_HAS_MEMORY;
}

static void count_error(struct gs_thread *t, const struct gs_slot *s,
			uint8_t op, uint32_t error, uint64_t start)
{
	struct gs_op_block *block = &t->block->op[op];

	for (uint32_t i = 0; i < GS_ERRNOS; i++) {
		struct gs_errno_entry *e = &block->errnos[i];
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
	gs_bump(&block->errno_other, 1);
}

static void count_time(struct gs_block *block, uint8_t op, int failed,
		       uint64_t ns)
{
	struct gs_side *side = failed ? &block->op[op].error
				      : &block->op[op].ok;

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

static void run_op(struct gs_thread *t, struct gs_slot *s, uint8_t op)
{
	const struct gs_program *p = t->storm->program;
	int idle = is_idle(op);
	uint64_t start, end;
	int error;

	if (!can_run(t, s, op)) {
		gs_bump(&t->block->skipped, 1);
		return;
	}
	t->seq++;
	if (op == GS_OP_REREG)
		s->access = s->access == p->rereg_access ? p->access
							 : p->rereg_access;
	start = gs_clock_now(&t->clock);
	if (!idle)
		publish(t, s, op, start);
	error = call(t, s, op, start);
	end = gs_clock_now(&t->clock);
	gs_store(&t->block->call, 0);
	t->last_ns = end;
	settle(s, op, error);
	/* Only a TSC that was reset by a suspend can make it negative. */
	count_time(t->block, op, error != 0, end > start ? end - start : 0);
	if (!idle)
		gs_bump(&t->block->done, 1);
	if (__builtin_expect(error != 0, 0)) {
		count_error(t, s, op, (uint32_t)-error, start);
		if (p->stop_on_error)
			gs_area_stop(t->storm->area);
	}
}

int gs_untimed(struct gs_thread *t, struct gs_slot *s, enum gs_op op)
{
	uint64_t start = gs_now_ns();
	int error;

	t->seq++;
	publish(t, s, (uint8_t)op, start);
	error = call(t, s, (uint8_t)op, start);
	gs_store(&t->block->call, 0);
	settle(s, (uint8_t)op, error);
	return error;
}

void gs_slot_clean(struct gs_thread *t, struct gs_slot *s)
{
	const uint32_t buffer = GS_HAS_BUFFER | GS_KEEP_BUFFER;
	const uint32_t memory = GS_HAS_MEMORY | GS_KEEP_MEMORY;

	if (s->has & GS_HAS_REG && gs_untimed(t, s, GS_OP_DEREG))
		gs_bump(&t->block->leaked, 1);
	if ((s->has & buffer) == GS_HAS_BUFFER)
		gs_untimed(t, s, GS_OP_CLOSE);
	if ((s->has & memory) == GS_HAS_MEMORY &&
	    gs_untimed(t, s, GS_OP_FREE)) {
		gs_bump(&t->block->leaked, 1);
		s->has &= ~(uint32_t)GS_HAS_MEMORY;
	}
	s->has &= ~(uint32_t)(GS_HAS_REG | GS_IN_WINDOW);
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
		run_op(t, s, plan->acquire[i]);
}

static void release(struct gs_thread *t, struct gs_slot *s, int draining)
{
	const struct gs_plan *plan = &t->storm->plan;

	for (uint32_t i = 0; i < plan->release_count; i++)
		if (!draining || !is_idle(plan->release[i]))
			run_op(t, s, plan->release[i]);
	gs_slot_clean(t, s);
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
