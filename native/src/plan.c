/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiles a program's cycle: splits it, walks it once as if every call
 * succeeded, refuses what could not work, and finds what the set-up must give.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "storm.h"

static const char *const op_names[GS_OP_COUNT] = {
	"NONE", "ALLOC", "EXPORT", "REG", "REREG", "DEREG",
	"CLOSE", "FREE", "SYNC", "DELAY", "BARRIER", "CONTROL",
};

void gs_refuse(struct gs_storm *storm, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(storm->failure->text, GS_TEXT, format, args);
	va_end(args);
	storm->failure->op = -1;
	storm->failure->error = EINVAL;
}

static int contains(const struct gs_program *p, enum gs_op op)
{
	return memchr(p->cycle, op, p->cycle_length) != NULL;
}

static int is_release(uint8_t op)
{
	return op == GS_OP_DEREG || op == GS_OP_CLOSE || op == GS_OP_FREE;
}

static const char *bad_numbers(const struct gs_program *p)
{
	if (!p->cycle_length || p->cycle_length > GS_CYCLE_MAX)
		return "cycle must have 1 to 64 operations";
	if (!p->depth || p->depth > GS_DEPTH_MAX)
		return "depth must be 1 to 1048576";
	if (!p->size_min || p->size_max < p->size_min || !p->size_step)
		return "sizes must be 0 < min <= max with a step above 0";
	if (!p->duration_ns == !p->count)
		return "exactly one of duration and count must be above 0";
	if (p->order > GS_ORDER_RANDOM || p->share > GS_SHARE_BUFFER)
		return "unknown order or share";
	return NULL;
}

static const char *bad_share(const struct gs_program *p)
{
	int memory = contains(p, GS_OP_ALLOC) || contains(p, GS_OP_FREE);
	int buffer = contains(p, GS_OP_EXPORT) || contains(p, GS_OP_CLOSE);

	if (p->share == GS_SHARE_ALLOCATION && memory)
		return "share allocation: the cycle cannot ALLOC or FREE";
	if (p->share == GS_SHARE_BUFFER && (memory || buffer))
		return "share buffer: the cycle cannot ALLOC, EXPORT, CLOSE or FREE";
	return NULL;
}

static int wants_buffer(const struct gs_storm *storm)
{
	const struct gs_program *p = storm->program;

	return contains(p, GS_OP_SYNC) ||
	       (contains(p, GS_OP_REG) && !storm->importer->ignores_fd);
}

static const char *find_implicit(struct gs_storm *storm)
{
	const struct gs_program *p = storm->program;
	struct gs_plan *plan = &storm->plan;
	int buffer = wants_buffer(storm) && !contains(p, GS_OP_EXPORT);
	int memory = contains(p, GS_OP_EXPORT) || buffer;

	if (contains(p, GS_OP_ALLOC)) {
		if (buffer)
			return "the cycle allocates but does not EXPORT what it registers";
		memory = 0;
	}
	plan->shared_memory = memory && p->share != GS_SHARE_NOTHING;
	plan->shared_buffer = buffer && p->share == GS_SHARE_BUFFER;
	plan->slot_memory = memory && !plan->shared_memory;
	plan->slot_buffer = buffer && !plan->shared_buffer;
	return NULL;
}

static const char *walk_make(struct gs_storm *storm, uint8_t op, uint32_t *has)
{
	uint32_t need = op == GS_OP_EXPORT ? GS_HAS_MEMORY : 0;
	uint32_t make = GS_HAS_MEMORY;

	if (op == GS_OP_EXPORT)
		make = GS_HAS_BUFFER;
	if (op == GS_OP_REG)
		make = GS_HAS_REG;
	if (op == GS_OP_REG && !storm->importer->ignores_fd)
		need = GS_HAS_BUFFER;
	if ((*has & need) != need)
		return "what it works on is not there yet";
	if (*has & make)
		return "the slot has one already";
	*has |= make;
	return NULL;
}

static const char *walk_end(uint8_t op, uint32_t *has)
{
	uint32_t what = GS_HAS_REG, keep = 0;

	if (op == GS_OP_CLOSE)
		what = GS_HAS_BUFFER, keep = GS_KEEP_BUFFER;
	if (op == GS_OP_FREE)
		what = GS_HAS_MEMORY, keep = GS_KEEP_MEMORY;
	if (*has & keep || !(*has & what))
		return "the cycle has not made what it ends";
	*has &= ~what;
	return NULL;
}

static const char *walk(struct gs_storm *storm, uint8_t op, uint32_t *has)
{
	switch (op) {
	case GS_OP_ALLOC:
	case GS_OP_EXPORT:
	case GS_OP_REG:
		return walk_make(storm, op, has);
	case GS_OP_DEREG:
	case GS_OP_CLOSE:
	case GS_OP_FREE:
		return walk_end(op, has);
	case GS_OP_REREG:
		if (!storm->importer->rereg)
			return "this importer cannot";
		return *has & GS_HAS_REG ? NULL : "nothing is registered here";
	case GS_OP_SYNC:
		return *has & GS_HAS_BUFFER ? NULL : "there is no descriptor here";
	case GS_OP_CONTROL:
		return storm->exporter->control || storm->importer->control
			       ? NULL
			       : "neither back end has a control call";
	case GS_OP_DELAY:
	case GS_OP_BARRIER:
		return NULL;
	default:
		return "no such operation";
	}
}

static void split(struct gs_storm *storm)
{
	const struct gs_program *p = storm->program;
	struct gs_plan *plan = &storm->plan;

	for (uint32_t i = 0; i < p->cycle_length; i++)
		plan->acts[i] = gs_act_of(storm->importer, p->cycle[i]);
	plan->count = p->cycle_length;
	while (plan->acquire_count < plan->count &&
	       !is_release(p->cycle[plan->acquire_count]))
		plan->acquire_count++;
}

int gs_plan_compile(struct gs_storm *storm)
{
	const struct gs_program *p = storm->program;
	const char *bad = bad_numbers(p);
	uint32_t has = 0;

	bad = bad ? bad : bad_share(p);
	bad = bad ? bad : find_implicit(storm);
	if (bad) {
		gs_refuse(storm, "%s", bad);
		return -EINVAL;
	}
	if (storm->plan.slot_memory || storm->plan.shared_memory)
		has |= GS_HAS_MEMORY | GS_KEEP_MEMORY;
	if (storm->plan.slot_buffer || storm->plan.shared_buffer)
		has |= GS_HAS_BUFFER | GS_KEEP_BUFFER;
	for (uint32_t i = 0; i < p->cycle_length; i++) {
		uint8_t op = p->cycle[i];

		bad = walk(storm, op, &has);
		if (bad) {
			gs_refuse(storm, "operation %u of the cycle (%s): %s",
				  i + 1, op < GS_OP_COUNT ? op_names[op] : "?",
				  bad);
			return -EINVAL;
		}
	}
	split(storm);
	return 0;
}
