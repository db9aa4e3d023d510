/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of a storm share: the compiled program, the worker's state,
 * the thread's state. plan.c fills the first, storm.c owns set-up and threads,
 * loop.c is the timed loop.
 */
#ifndef GS_STORM_H
#define GS_STORM_H

#include <pthread.h>

#include "area.h"
#include "backend.h"
#include "clock.h"
#include "sequence.h"

struct gs_thread;
struct gs_slot;

/* An operation as the loop runs it; the masks are of GS_HAS_*. */
struct gs_act {
	int (*call)(struct gs_thread *t, struct gs_slot *s);
	uint8_t op;
	uint8_t idle;  /* waits, calls nothing */
	uint8_t looks; /* runs where (has & looks) == wants */
	uint8_t wants;
	uint8_t makes; /* when it succeeds */
	uint8_t ends;  /* when it succeeds */
	uint8_t loses; /* however it ends */
};

/* A cycle, split before its first release, and what the set-up must give. */
struct gs_plan {
	struct gs_act acts[GS_CYCLE_MAX];
	uint32_t acquire_count; /* acts before the first release */
	uint32_t count;
	int slot_memory; /* set-up gives each slot memory */
	int slot_buffer; /* set-up gives each slot a descriptor */
	int shared_memory;
	int shared_buffer;
};

enum {
	GS_HAS_MEMORY = 1,
	GS_HAS_BUFFER = 2,
	GS_HAS_REG = 4,
	GS_KEEP_MEMORY = 8, /* from the set-up: not the cycle's to end */
	GS_KEEP_BUFFER = 16,
	GS_HAS_PLACE = 32,
	GS_IN_WINDOW = 64, /* acquired, not yet released */
};

struct gs_slot {
	uint32_t has;
	int fd;
	uint32_t access;
	uint64_t size;
	uint64_t offset;
	uint64_t length;
	struct gs_memory memory;
	struct gs_registration registration;
	void *place;
};

/* generation << 32 | arrived << 16 | parties */
struct gs_barrier {
	gs_word state;
	_Atomic uint32_t generation;
};

struct gs_storm;

/* Aligned: no thread writes to a cache line of another. */
struct gs_thread {
	_Alignas(64) struct gs_storm *storm;
	struct gs_block *block;
	struct gs_slot *slots;
	uint32_t *order; /* room for the drain */
	const struct gs_exporter *exporter;
	const struct gs_importer *importer;
	void *exporter_ctx;
	void *importer_ctx;
	struct gs_clock clock;
	uint64_t seq;
	uint64_t last_ns; /* end of the latest operation */
	uint64_t deadline_ns;
	uint32_t number; /* in the area */
	uint32_t index;  /* in the worker */
	int exporter_open;
	int importer_open;
	struct gs_sequence_state sequence;
	pthread_t handle;
};

struct gs_storm {
	struct gs_area *area;
	const struct gs_program *program;
	struct gs_plan plan;
	const struct gs_exporter *exporter;
	const struct gs_importer *importer;
	void *exporter_self;
	void *importer_self;
	/* What makes and ends shared things: no thread, but it has a context of
	 * the exporter, one slot, and the first thread's block to show its calls.
	 */
	struct gs_thread setup;
	struct gs_slot shared;
	const int *cpus;
	uint32_t cpu_count;
	uint32_t worker;
	_Atomic uint32_t abort; /* one thread's set-up failed: nobody starts */
	struct gs_barrier barrier;
	pthread_mutex_t failure_lock; /* set-up only */
	int error;
	struct gs_failure *failure;
};

int gs_plan_compile(struct gs_storm *storm);
void gs_refuse(struct gs_storm *storm, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

void gs_barrier_init(struct gs_barrier *barrier, uint32_t parties);
int gs_barrier_wait(struct gs_barrier *barrier, const struct gs_area *area);
void gs_barrier_leave(struct gs_barrier *barrier);

/* Sleep until then or until the area is stopped. */
void gs_sleep_until(const struct gs_area *area, uint64_t until_ns);

struct gs_act gs_act_of(const struct gs_importer *importer, uint8_t op);
void gs_loop(struct gs_thread *thread);
/* A call that is shown as in flight but not counted: set-up and clean-up. */
int gs_untimed(struct gs_thread *thread, struct gs_slot *slot, enum gs_op op);

#endif
