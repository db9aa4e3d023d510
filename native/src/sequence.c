/* SPDX-License-Identifier: Apache-2.0
 *
 * xoshiro256** seeded by splitmix64 (Blackman and Vigna, "Scrambled linear
 * pseudorandom number generators", 2018), and what is drawn from it.
 */
#include "sequence.h"

static uint64_t rotate(uint64_t x, unsigned int k)
{
	return (x << k) | (x >> (64 - k));
}

static uint64_t splitmix(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static uint64_t draw(struct gs_sequence_state *s)
{
	uint64_t *w = s->word;
	uint64_t result = rotate(w[1] * 5, 7) * 9;
	uint64_t t = w[1] << 17;

	w[2] ^= w[0];
	w[3] ^= w[1];
	w[1] ^= w[2];
	w[0] ^= w[3];
	w[2] ^= t;
	w[3] = rotate(w[3], 45);
	return result;
}

/* Uniform in [0, bound); nothing is drawn where there is no choice. */
uint64_t gs_sequence_below(struct gs_sequence_state *s, uint64_t bound)
{
	if (bound <= 1)
		return 0;
	return (uint64_t)(((unsigned __int128)draw(s) * bound) >> 64);
}

void gs_sequence_init(struct gs_sequence_state *s,
		      const struct gs_program *program, uint32_t thread)
{
	uint64_t seed = program->seed;

	seed = splitmix(&seed) ^ thread;
	for (int i = 0; i < 4; i++)
		s->word[i] = splitmix(&seed);
	s->program = program;
	s->size_choices = (program->size_max - program->size_min) /
			  program->size_step + 1;
	s->filled = 0;
	s->next = 0;
	s->is_steady = 0;
	if (program->depth == 1 && s->size_choices == 1 && !program->offset_max) {
		gs_sequence_next(s, &s->steady);
		s->is_steady = 1;
	}
}

/* A multiple of the step, up to offset_max or to the last offset that leaves
 * room for the length (for one step, where the length is "the rest").
 */
static uint64_t draw_offset(struct gs_sequence_state *s, uint64_t size)
{
	const struct gs_program *p = s->program;
	uint64_t room = p->length ? p->length : p->size_step;
	uint64_t limit = p->offset_max;

	if (!limit || size <= room)
		return 0;
	if (limit > size - room)
		limit = size - room;
	return gs_sequence_below(s, limit / p->size_step + 1) * p->size_step;
}

/* While the window fills, slot n is iteration n. Once full, every iteration
 * takes the slot that the last victim left.
 */
static void place(struct gs_sequence_state *s, struct gs_step *step)
{
	const struct gs_program *p = s->program;
	uint64_t random = gs_sequence_below(s, p->depth);

	step->slot = s->next;
	if (s->filled < p->depth)
		s->filled++;
	if (s->filled < p->depth) {
		step->victim = UINT32_MAX;
		s->next++;
		return;
	}
	if (p->order == GS_ORDER_LIFO)
		step->victim = step->slot;
	else if (p->order == GS_ORDER_RANDOM)
		step->victim = (uint32_t)random;
	else
		step->victim = (step->slot + 1) % p->depth;
	s->next = step->victim;
}

void gs_sequence_next(struct gs_sequence_state *s, struct gs_step *step)
{
	const struct gs_program *p = s->program;

	if (s->is_steady) {
		*step = s->steady;
		return;
	}
	step->size = p->size_min +
		     gs_sequence_below(s, s->size_choices) * p->size_step;
	step->offset = draw_offset(s, step->size);
	step->length = p->length ? p->length : step->size - step->offset;
	place(s, step);
}

void gs_sequence(const struct gs_program *program, uint32_t thread,
		 uint32_t count, struct gs_step *out)
{
	struct gs_sequence_state state;

	gs_sequence_init(&state, program, thread);
	for (uint32_t i = 0; i < count; i++)
		gs_sequence_next(&state, &out[i]);
}
