/* SPDX-License-Identifier: Apache-2.0
 *
 * Calibrates the TSC against CLOCK_MONOTONIC.
 */
#include "clock.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>

#include "gs.h"

#define CALIBRATE_NS 10000000u
#define RENEW_NS 20000000u
#define SOURCE "/sys/devices/system/clocksource/clocksource0/current_clocksource"

static uint64_t first_scale;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#if GS_CLOCK_TSC
/* The kernel has checked that it is stable and the same on all CPUs. */
static int kernel_trusts_tsc(void)
{
	char name[8] = "";
	int fd = open(SOURCE, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, name, sizeof(name));

	if (fd >= 0)
		close(fd);
	return n >= 4 && !memcmp(name, "tsc\n", 4);
}

/* Both clocks at one moment: of a few tries, the one least disturbed. */
static void read_both(uint64_t *ticks, uint64_t *ns)
{
	uint64_t best = UINT64_MAX;

	for (int i = 0; i < 4; i++) {
		uint64_t before = __rdtsc();
		uint64_t now = gs_now_ns();
		uint64_t span = __rdtsc() - before;

		if (span >= best)
			continue;
		best = span;
		*ticks = before + span / 2;
		*ns = now;
	}
}

static uint64_t scale_of(uint64_t ns, uint64_t ticks)
{
	return (uint64_t)(((unsigned __int128)ns << 32) / ticks);
}

static void calibrate(void)
{
	const struct timespec pause = { .tv_nsec = CALIBRATE_NS };
	uint64_t ticks, ns, later_ticks, later_ns;

	if (!kernel_trusts_tsc())
		return;
	read_both(&ticks, &ns);
	nanosleep(&pause, NULL);
	read_both(&later_ticks, &later_ns);
	if (later_ticks > ticks)
		first_scale = scale_of(later_ns - ns, later_ticks - ticks);
}

void gs_clock_renew(struct gs_clock *clock)
{
	read_both(&clock->base_ticks, &clock->base_ns);
	clock->renew_ns = clock->base_ns + RENEW_NS;
}
#else
static void calibrate(void)
{
}

void gs_clock_renew(struct gs_clock *clock)
{
	(void)clock;
}
#endif

void gs_clock_init(struct gs_clock *clock)
{
	pthread_once(&once, calibrate);
	memset(clock, 0, sizeof(*clock));
	clock->ns_per_tick = first_scale;
	clock->renew_ns = UINT64_MAX;
	if (first_scale)
		gs_clock_renew(clock);
}

const char *gs_clock_name(void)
{
	pthread_once(&once, calibrate);
	return first_scale ? "tsc" : "clock_gettime";
}
