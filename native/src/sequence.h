/* SPDX-License-Identifier: Apache-2.0
 *
 * The deterministic sequence of a thread: for each iteration the slot, size,
 * offset, length and victim, from seed and thread number only. Errors, time and
 * other threads have no influence.
 */
#ifndef GS_SEQUENCE_H
#define GS_SEQUENCE_H

#include "gs.h"

struct gs_sequence_state {
	uint64_t word[4];
	const struct gs_program *program;
	uint64_t size_choices;
	uint32_t filled;
	uint32_t next;
	int is_steady; /* one slot, one size, one offset: always this step */
	struct gs_step steady;
};

void gs_sequence_init(struct gs_sequence_state *s,
		      const struct gs_program *program, uint32_t thread);
void gs_sequence_next(struct gs_sequence_state *s, struct gs_step *step);
uint64_t gs_sequence_below(struct gs_sequence_state *s, uint64_t bound);

#endif
