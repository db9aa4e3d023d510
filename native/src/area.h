/* SPDX-License-Identifier: Apache-2.0
 *
 * Layout of the shared area. Every block has one writer, its thread; readers
 * are other processes at any time, so each word is atomic and written once.
 */
#ifndef GS_AREA_H
#define GS_AREA_H

#include <stdatomic.h>

#include "gs.h"
#include "histogram.h"

typedef _Atomic uint64_t gs_word;

#define GS_AREA_MAGIC 0x6d726f7473726467u /* "gdrstorm" */
#define GS_THREADS_MAX 65536

struct gs_area_header {
	uint64_t magic;
	uint32_t version;
	uint32_t thread_count;
	uint64_t total_bytes;
	_Alignas(64) _Atomic uint32_t go;
	_Atomic uint32_t stop;
	gs_word start_ns;
};

/* First occurrence of an errno and how often it came. `error` is stored last. */
struct gs_errno_entry {
	_Atomic uint32_t error;
	uint32_t slot;
	uint32_t access;
	gs_word count;
	uint64_t time_ns;
	uint64_t seq;
	uint64_t offset;
	uint64_t length;
};

/* Minima are stored inverted: zeroed memory then means "none yet". */
struct gs_side {
	gs_word inverse_min_ns;
	gs_word max_ns;
	gs_word sum_ns;
};

struct gs_errnos {
	gs_word other;
	struct gs_errno_entry first[GS_ERRNOS];
};

/* `call` is seq << 16 | op while the thread is inside a call, else 0. */
struct gs_block {
	_Alignas(4096) gs_word call;
	gs_word since_ns;
	gs_word slot;
	gs_word done;
	gs_word outstanding;
	gs_word skipped;
	gs_word leaked;
	_Alignas(64) _Atomic uint32_t state;
	_Atomic uint32_t worker;
	_Atomic int32_t tid;
	/* By operation; [0] of the calls that succeeded, [1] of those that failed.
	 * On one page with the words above: few pages to find again after a call
	 * into the kernel.
	 */
	_Alignas(64) struct gs_side side[GS_OP_COUNT][2];
	struct gs_errnos errnos[GS_OP_COUNT];
	/* Apart from the rest, so that unused histograms stay holes. */
	_Alignas(64) gs_word bucket[GS_OP_COUNT][2][GS_BUCKETS];
};

struct gs_area {
	int fd;
	uint32_t thread_count; /* own copy: workers can write the header */
	struct gs_area_header *header;
	struct gs_block *blocks;
};

static inline uint64_t gs_load(const gs_word *word)
{
	return atomic_load_explicit(word, memory_order_relaxed);
}

static inline void gs_store(gs_word *word, uint64_t value)
{
	atomic_store_explicit(word, value, memory_order_relaxed);
}

/* Not before what was stored earlier; free on x86. Fences would do the same but
 * TSan cannot see them.
 */
static inline void gs_store_after(gs_word *word, uint64_t value)
{
	atomic_store_explicit(word, value, memory_order_release);
}

static inline uint64_t gs_load_before(const gs_word *word)
{
	return atomic_load_explicit(word, memory_order_acquire);
}

/* Not a read-modify-write: the block has one writer. */
static inline void gs_bump(gs_word *word, uint64_t by)
{
	gs_store(word, gs_load(word) + by);
}

static inline int gs_stopped(const struct gs_area *area)
{
	return atomic_load_explicit(&area->header->stop,
				    memory_order_relaxed) != 0;
}

#endif
