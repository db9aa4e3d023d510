/* SPDX-License-Identifier: Apache-2.0
 *
 * The plain loop that the engine is compared with: threads that do nothing but
 * the calls, a counter each, and a main thread that reads the counters twice,
 * after a warm-up and at the end. No clock, no histogram, no error table.
 */
#ifndef GS_BENCH_LOOP_H
#define GS_BENCH_LOOP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LOOP_THREADS_MAX 256
#define LOOP_WARM_UP_NS 100000000

struct loop_thread {
	_Alignas(128) _Atomic uint64_t cycles;
	uint64_t errors;
	void *context;
	pthread_t handle;
};

static struct loop_thread loop_threads[LOOP_THREADS_MAX];
static _Atomic int loop_stop;

/* The calls; returns 0 or an errno. */
static int loop_body(void *context);

static void *loop_main(void *argument)
{
	struct loop_thread *t = argument;
	uint64_t cycles = 0;

	while (!atomic_load_explicit(&loop_stop, memory_order_relaxed)) {
		if (loop_body(t->context))
			t->errors++;
		cycles++;
		atomic_store_explicit(&t->cycles, cycles, memory_order_relaxed);
	}
	return NULL;
}

static uint64_t loop_read_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void loop_sleep(uint64_t ns)
{
	struct timespec t = { .tv_sec = (time_t)(ns / 1000000000u),
			      .tv_nsec = (long)(ns % 1000000000u) };

	nanosleep(&t, NULL);
}

static uint64_t loop_cycles(uint32_t threads)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < threads; i++)
		sum += atomic_load_explicit(&loop_threads[i].cycles,
					    memory_order_relaxed);
	return sum;
}

/* Prints "cycles elapsed_ns cpu_ns errors". */
static int loop_run(uint32_t threads, double seconds, void *context)
{
	uint64_t cycles, start, elapsed, cpu, errors = 0;

	if (!threads || threads > LOOP_THREADS_MAX)
		return 2;
	for (uint32_t i = 0; i < threads; i++) {
		loop_threads[i].context = context;
		if (pthread_create(&loop_threads[i].handle, NULL, loop_main,
				   &loop_threads[i]))
			return 3;
	}
	loop_sleep(LOOP_WARM_UP_NS);
	cycles = loop_cycles(threads);
	start = loop_read_ns(CLOCK_MONOTONIC);
	cpu = loop_read_ns(CLOCK_PROCESS_CPUTIME_ID);
	loop_sleep((uint64_t)(seconds * 1e9));
	cycles = loop_cycles(threads) - cycles;
	elapsed = loop_read_ns(CLOCK_MONOTONIC) - start;
	cpu = loop_read_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	atomic_store(&loop_stop, 1);
	for (uint32_t i = 0; i < threads; i++) {
		pthread_join(loop_threads[i].handle, NULL);
		errors += loop_threads[i].errors;
	}
	printf("%llu %llu %llu %llu\n", (unsigned long long)cycles,
	       (unsigned long long)elapsed, (unsigned long long)cpu,
	       (unsigned long long)errors);
	return 0;
}

#endif
