/* SPDX-License-Identifier: Apache-2.0
 *
 * The shared area: made once by the supervisor, written by storm threads, read
 * at any time by the supervisor, also after the writer died.
 */
#define _GNU_SOURCE
#include "area.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "wait.h"

/* Between start() and the first call: time to wake every thread. */
#define START_DELAY_NS 1000000u
#define READY_POLL_NS 500000

static uint64_t area_bytes(uint32_t threads)
{
	return sizeof(struct gs_block) + threads * sizeof(struct gs_block);
}

static struct gs_area *map_area(int fd, uint64_t bytes)
{
	struct gs_area *area = calloc(1, sizeof(*area));
	void *map;

	if (!area)
		return NULL;
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) {
		free(area);
		return NULL;
	}
	area->fd = fd;
	area->header = map;
	/* The header has a block to itself, which keeps blocks aligned. */
	area->blocks = (struct gs_block *)map + 1;
	return area;
}

static struct gs_area *fail(int *error, int fd, int value)
{
	*error = value;
	if (fd >= 0)
		close(fd);
	return NULL;
}

struct gs_area *gs_area_create(uint32_t threads, int *error)
{
	uint64_t bytes = area_bytes(threads);
	struct gs_area *area;
	int fd;

	if (!threads || threads > GS_THREADS_MAX)
		return fail(error, -1, EINVAL);
	fd = memfd_create("gdrstorm-area", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	/* Sealed, so that no worker can make the supervisor's reads fault. */
	if (fd < 0 || ftruncate(fd, (off_t)bytes) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return fail(error, fd, errno);
	area = map_area(fd, bytes);
	if (!area)
		return fail(error, fd, errno);
	area->thread_count = threads;
	area->header->version = GS_LAYOUT_VERSION;
	area->header->thread_count = threads;
	area->header->total_bytes = bytes;
	area->header->magic = GS_AREA_MAGIC;
	*error = 0;
	return area;
}

static int header_is_good(const struct gs_area_header *h, uint64_t bytes)
{
	return h->magic == GS_AREA_MAGIC && h->version == GS_LAYOUT_VERSION &&
	       h->total_bytes == bytes && h->thread_count &&
	       h->thread_count <= GS_THREADS_MAX &&
	       area_bytes(h->thread_count) == bytes;
}

struct gs_area *gs_area_attach(int fd, int *error)
{
	struct gs_area *area;
	struct stat st;

	fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0 || fstat(fd, &st))
		return fail(error, fd, errno);
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size < area_bytes(1))
		return fail(error, fd, EPROTO);
	area = map_area(fd, (uint64_t)st.st_size);
	if (!area)
		return fail(error, fd, errno);
	if (!header_is_good(area->header, (uint64_t)st.st_size)) {
		munmap(area->header, (size_t)st.st_size);
		free(area);
		return fail(error, fd, EPROTO);
	}
	area->thread_count = area->header->thread_count;
	*error = 0;
	return area;
}

void gs_area_close(struct gs_area *area)
{
	if (!area)
		return;
	munmap(area->header, area_bytes(area->thread_count));
	close(area->fd);
	free(area);
}

int gs_area_fd(const struct gs_area *area)
{
	return area->fd;
}

uint32_t gs_area_threads(const struct gs_area *area)
{
	return area->thread_count;
}

void gs_area_start(struct gs_area *area)
{
	gs_store(&area->header->start_ns, gs_now_ns() + START_DELAY_NS);
	atomic_store_explicit(&area->header->go, 1, memory_order_release);
	gs_futex_wake(&area->header->go);
}

void gs_area_stop(struct gs_area *area)
{
	atomic_store_explicit(&area->header->stop, 1, memory_order_release);
	gs_futex_wake(&area->header->stop);
	gs_futex_wake(&area->header->go);
}

static uint32_t state_of(const struct gs_area *area, uint32_t thread)
{
	return atomic_load_explicit(&area->blocks[thread].state,
				    memory_order_acquire);
}

/* 1 all ready, 0 not yet, -1 one failed. */
static int readiness(const struct gs_area *area, uint32_t first, uint32_t count)
{
	int ready = 1;

	for (uint32_t i = first; i < first + count; i++) {
		uint32_t state = state_of(area, i);

		if (state == GS_STATE_FAILED)
			return -1;
		if (state < GS_STATE_READY)
			ready = 0;
	}
	return ready;
}

int gs_area_wait_ready(struct gs_area *area, uint32_t first, uint32_t count,
		       uint64_t timeout_ns)
{
	const struct timespec pause = { .tv_nsec = READY_POLL_NS };
	uint64_t until = gs_now_ns() + timeout_ns;
	int ready;

	for (;;) {
		ready = readiness(area, first, count);
		if (ready || gs_now_ns() >= until)
			return ready;
		nanosleep(&pause, NULL);
	}
}

void gs_area_states(struct gs_area *area, uint32_t first, uint32_t count,
		    uint8_t *states)
{
	for (uint32_t i = 0; i < count; i++)
		states[i] = (uint8_t)state_of(area, first + i);
}

/* Add one side; untouched sides are not read, which keeps their pages holes. */
static void add_side(const struct gs_side *side, const gs_word *from,
		     uint64_t *count, uint64_t *sum, uint64_t *min,
		     uint64_t *max, uint64_t *buckets)
{
	uint64_t inverse = gs_load(&side->inverse_min_ns);
	uint64_t longest = gs_load(&side->max_ns);

	if (!inverse)
		return;
	if (!*count || ~inverse < *min)
		*min = ~inverse;
	*max = longest > *max ? longest : *max;
	*sum += gs_load(&side->sum_ns);
	for (uint32_t i = 0; i < GS_BUCKETS; i++) {
		uint64_t n = gs_load(&from[i]);

		buckets[i] += n;
		*count += n;
	}
}

static void add_errno(struct gs_op_totals *out, uint32_t error, uint64_t count)
{
	for (uint32_t i = 0; i < GS_ERRNOS; i++) {
		if (out->errno_value[i] && out->errno_value[i] != error)
			continue;
		out->errno_value[i] = error;
		out->errno_count[i] += count;
		return;
	}
	out->errno_other += count;
}

static void add_op(struct gs_op_totals *out, const struct gs_block *block,
		   uint32_t op)
{
	const struct gs_side *side = block->side[op];
	const struct gs_errnos *errnos = &block->errnos[op];

	add_side(&side[0], block->bucket[op][0], &out->ok_count,
		 &out->ok_sum_ns, &out->ok_min_ns, &out->ok_max_ns, out->ok);
	add_side(&side[1], block->bucket[op][1], &out->error_count,
		 &out->error_sum_ns, &out->error_min_ns, &out->error_max_ns,
		 out->error);
	for (uint32_t i = 0; i < GS_ERRNOS; i++) {
		const struct gs_errno_entry *e = &errnos->first[i];
		uint32_t error = atomic_load_explicit(&e->error,
						      memory_order_acquire);

		if (!error)
			break;
		add_errno(out, error, gs_load(&e->count));
	}
	out->errno_other += gs_load(&errnos->other);
}

void gs_area_totals(struct gs_area *area, uint32_t first, uint32_t count,
		    struct gs_totals *out)
{
	memset(out, 0, sizeof(*out));
	out->time_ns = gs_now_ns();
	for (uint32_t i = first; i < first + count; i++) {
		const struct gs_block *block = &area->blocks[i];

		if (state_of(area, i) == GS_STATE_UNUSED)
			continue;
		out->outstanding += gs_load(&block->outstanding);
		out->skipped += gs_load(&block->skipped);
		out->leaked += gs_load(&block->leaked);
		for (uint32_t op = 0; op < GS_OP_COUNT; op++)
			add_op(&out->op[op], block, op);
	}
}

/* `call` is unique and written after since and slot, cleared before they
 * change: read it twice and what lies between belongs together.
 */
static int read_call(const struct gs_block *block, struct gs_call *out)
{
	uint64_t call = gs_load_before(&block->call);
	uint64_t again;

	if (!call)
		return 0;
	out->since_ns = gs_load_before(&block->since_ns);
	out->slot = (uint32_t)gs_load_before(&block->slot);
	again = gs_load(&block->call);
	out->op = (uint32_t)(call & 0xffff);
	out->seq = call >> 16;
	return call == again;
}

uint32_t gs_area_calls(struct gs_area *area, uint32_t first, uint32_t count,
		       uint64_t min_age_ns, struct gs_call *out)
{
	uint32_t found = 0;

	for (uint32_t i = first; i < first + count; i++) {
		const struct gs_block *block = &area->blocks[i];
		struct gs_call call = { .thread = i };
		uint64_t now;

		if (!read_call(block, &call))
			continue;
		now = gs_now_ns();
		call.elapsed_ns = now > call.since_ns ? now - call.since_ns : 0;
		if (call.elapsed_ns < min_age_ns)
			continue;
		call.worker = atomic_load_explicit(&block->worker,
						   memory_order_relaxed);
		call.tid = atomic_load_explicit(&block->tid,
						memory_order_relaxed);
		out[found++] = call;
	}
	return found;
}

static uint32_t op_errors(const struct gs_block *block, uint32_t op,
			  struct gs_first_error *out, uint32_t max)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < GS_ERRNOS && found < max; i++) {
		const struct gs_errno_entry *e = &block->errnos[op].first[i];
		uint32_t error = atomic_load_explicit(&e->error,
						      memory_order_acquire);

		if (!error)
			break;
		out[found++] = (struct gs_first_error){
			.op = op,
			.error = error,
			.slot = e->slot,
			.access = e->access,
			.time_ns = e->time_ns,
			.seq = e->seq,
			.offset = e->offset,
			.length = e->length,
		};
	}
	return found;
}

uint32_t gs_area_errors(struct gs_area *area, uint32_t first, uint32_t count,
			struct gs_first_error *out, uint32_t max)
{
	uint32_t found = 0;

	for (uint32_t i = first; i < first + count; i++) {
		const struct gs_block *block = &area->blocks[i];
		uint32_t start = found;

		if (state_of(area, i) == GS_STATE_UNUSED)
			continue;
		for (uint32_t op = 0; op < GS_OP_COUNT; op++)
			found += op_errors(block, op, out + found, max - found);
		for (uint32_t e = start; e < found; e++) {
			out[e].thread = i;
			out[e].worker = atomic_load_explicit(
				&block->worker, memory_order_relaxed);
		}
	}
	return found;
}

static uint64_t longest_call(const struct gs_block *block)
{
	uint64_t longest = 0;

	for (uint32_t op = 1; op < GS_OP_COUNT; op++) {
		uint64_t ok = gs_load(&block->side[op][0].max_ns);
		uint64_t error = gs_load(&block->side[op][1].max_ns);

		if (op == GS_OP_DELAY || op == GS_OP_BARRIER)
			continue;
		longest = ok > longest ? ok : longest;
		longest = error > longest ? error : longest;
	}
	return longest;
}

void gs_area_rates(struct gs_area *area, uint32_t first, uint32_t count,
		   struct gs_rate *out)
{
	for (uint32_t i = 0; i < count; i++) {
		const struct gs_block *block = &area->blocks[first + i];

		out[i] = (struct gs_rate){
			.worker = atomic_load_explicit(&block->worker,
						       memory_order_relaxed),
			.thread = first + i,
			.tid = atomic_load_explicit(&block->tid,
						    memory_order_relaxed),
			.count = gs_load(&block->done),
			.max_ns = longest_call(block),
		};
	}
}
