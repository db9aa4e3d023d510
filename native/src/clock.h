/* SPDX-License-Identifier: Apache-2.0
 *
 * The clock of the timed loop. Where the kernel itself trusts the TSC (it is
 * the current clocksource) operations are timed by the TSC, scaled to
 * CLOCK_MONOTONIC and anchored to it again every few milliseconds; elsewhere by
 * clock_gettime. A vDSO clock read costs more than the engine's whole budget
 * leaves for two of them.
 */
#ifndef GS_CLOCK_H
#define GS_CLOCK_H

#include "wait.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#define GS_CLOCK_TSC 1
#else
#define GS_CLOCK_TSC 0
#endif

struct gs_clock {
	uint64_t base_ticks;
	uint64_t base_ns;
	uint64_t ns_per_tick; /* 32.32 fixed point; 0: use clock_gettime */
	uint64_t renew_ns; /* anchor again when it is later than this */
};

/* Not in the timed loop: the first one of a process takes 10 ms. */
void gs_clock_init(struct gs_clock *clock);
void gs_clock_renew(struct gs_clock *clock);

#if GS_CLOCK_TSC
static inline uint64_t gs_clock_scale(const struct gs_clock *clock,
				      uint64_t ticks)
{
	/* Signed: the TSC may start again after a suspend. */
	int64_t delta = (int64_t)(ticks - clock->base_ticks);

	return clock->base_ns +
	       (uint64_t)(((__int128)delta * (int64_t)clock->ns_per_tick) >>
			  32);
}
#endif

/* Not ordered against other instructions (rdtscp, lfence): what is timed are
 * system calls, which the CPU does not run ahead of or behind; the wait would
 * cost 11 ns each.
 */
static inline uint64_t gs_clock_now(const struct gs_clock *clock)
{
#if GS_CLOCK_TSC
	if (clock->ns_per_tick)
		return gs_clock_scale(clock, __rdtsc());
#endif
	return gs_now_ns();
}

/* Between operations, with the latest time known. */
static inline void gs_clock_check(struct gs_clock *clock, uint64_t now_ns)
{
	if (now_ns > clock->renew_ns)
		gs_clock_renew(clock);
}

#endif
