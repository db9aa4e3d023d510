/* SPDX-License-Identifier: Apache-2.0
 *
 * The barrier of a worker's threads, and sleeping. Both end when the area is
 * stopped; a thread that is done leaves, so that the others never wait for it.
 */
#include <sched.h>

#include "storm.h"
#include "wait.h"

/* Threads that run at once meet within this; then they sleep instead. */
#define SPIN_NS 20000u
#define RECHECK_NS 5000000u

#define PARTIES(state) ((uint32_t)((state) & 0xffffu))
#define ARRIVED(state) ((uint32_t)((state) >> 16 & 0xffffu))

static uint64_t pack(uint32_t generation, uint32_t arrived, uint32_t parties)
{
	return (uint64_t)generation << 32 | (uint64_t)arrived << 16 | parties;
}

void gs_barrier_init(struct gs_barrier *barrier, uint32_t parties)
{
	gs_store(&barrier->state, pack(0, 0, parties));
	atomic_store(&barrier->generation, 0);
}

static void open_barrier(struct gs_barrier *barrier, uint32_t generation)
{
	atomic_store_explicit(&barrier->generation, generation,
			      memory_order_release);
	gs_futex_wake(&barrier->generation);
}

static int passed(struct gs_barrier *barrier, uint32_t generation)
{
	return atomic_load_explicit(&barrier->generation,
				    memory_order_acquire) != generation;
}

/* Returns 0 when all met, -EINTR when the storm was stopped. */
int gs_barrier_wait(struct gs_barrier *barrier, const struct gs_area *area)
{
	uint64_t state = atomic_load(&barrier->state), next, spin_until;
	uint32_t generation;

	do {
		generation = (uint32_t)(state >> 32);
		next = pack(generation, ARRIVED(state) + 1, PARTIES(state));
		if (ARRIVED(next) == PARTIES(next))
			next = pack(generation + 1, 0, PARTIES(next));
	} while (!atomic_compare_exchange_weak(&barrier->state, &state, next));
	if ((uint32_t)(next >> 32) != generation) {
		open_barrier(barrier, generation + 1);
		return 0;
	}
	spin_until = gs_now_ns() + SPIN_NS;
	while (!passed(barrier, generation) && gs_now_ns() < spin_until)
		sched_yield();
	/* The stop word is another process's to set: look at it now and then. */
	while (!passed(barrier, generation) && !gs_stopped(area))
		gs_futex_wait(&barrier->generation, generation,
			      gs_now_ns() + RECHECK_NS);
	return passed(barrier, generation) ? 0 : -EINTR;
}

void gs_barrier_leave(struct gs_barrier *barrier)
{
	uint64_t state = atomic_load(&barrier->state), next;
	uint32_t generation;

	do {
		generation = (uint32_t)(state >> 32);
		next = pack(generation, ARRIVED(state), PARTIES(state) - 1);
		if (ARRIVED(next) && ARRIVED(next) == PARTIES(next))
			next = pack(generation + 1, 0, PARTIES(next));
	} while (!atomic_compare_exchange_weak(&barrier->state, &state, next));
	if ((uint32_t)(next >> 32) != generation)
		open_barrier(barrier, generation + 1);
}

void gs_sleep_until(const struct gs_area *area, uint64_t until_ns)
{
	while (!gs_stopped(area) && gs_now_ns() < until_ns)
		gs_futex_wait(&area->header->stop, 0, until_ns);
}
