/* SPDX-License-Identifier: Apache-2.0
 *
 * Clock and futex. Waits are never unbounded: callers look at the stop word.
 */
#ifndef GS_WAIT_H
#define GS_WAIT_H

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define GS_SECOND_NS 1000000000u

static inline uint64_t gs_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * GS_SECOND_NS + (uint64_t)t.tv_nsec;
}

/* Sleep while *word == value, at most until the absolute time. The area is
 * shared between processes, so these are not FUTEX_PRIVATE.
 */
static inline void gs_futex_wait(_Atomic uint32_t *word, uint32_t value,
				 uint64_t until_ns)
{
	struct timespec t = { .tv_sec = (time_t)(until_ns / GS_SECOND_NS),
			      .tv_nsec = (long)(until_ns % GS_SECOND_NS) };

	syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, &t, NULL,
		FUTEX_BITSET_MATCH_ANY);
}

static inline void gs_futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

#endif
