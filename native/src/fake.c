/* SPDX-License-Identifier: Apache-2.0
 *
 * Planted failures and live counts of the fake back ends; see fake.h.
 */
#include "fake.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "wait.h"

static _Atomic int64_t live[GS_FAKE_KINDS];

int64_t gs_fake_live(int kind)
{
	return kind >= 0 && kind < GS_FAKE_KINDS ? atomic_load(&live[kind]) : -1;
}

void gs_fake_reset(void)
{
	for (int i = 0; i < GS_FAKE_KINDS; i++)
		atomic_store(&live[i], 0);
}

int gs_fake_open(const struct gs_binding *b, void **self)
{
	struct gs_fake *fake = calloc(1, sizeof(*fake));

	if (!fake)
		return -ENOMEM;
	fake->delay_ns = (uint64_t)gs_binding_number(b, 0, 0);
	fake->fail_op = (uint32_t)gs_binding_number(b, 1, 0);
	fake->fail_every = (uint64_t)gs_binding_number(b, 2, 0);
	fake->error = -(int)gs_binding_number(b, 3, 0);
	fake->fail_at = (uint64_t)gs_binding_number(b, 4, 0);
	fake->hang_op = (uint32_t)gs_binding_number(b, 5, 0);
	fake->hang_at = (uint64_t)gs_binding_number(b, 6, 0);
	fake->hang_ns = (uint64_t)gs_binding_number(b, 7, 0);
	if (!fake->error)
		fake->error = -EIO;
	*self = fake;
	return 0;
}

void gs_fake_close(void *self)
{
	free(self);
}

int gs_fake_thread_open(void *self, uint32_t thread, void **ctx)
{
	struct gs_fake_context *fake = calloc(1, sizeof(*fake));

	if (!fake)
		return -ENOMEM;
	fake->plan = *(struct gs_fake *)self;
	fake->thread = thread;
	*ctx = fake;
	return 0;
}

void gs_fake_thread_close(void *self, void *ctx)
{
	struct gs_fake_context *fake = ctx;

	(void)self;
	for (int i = 0; i < GS_FAKE_KINDS; i++)
		atomic_fetch_add(&live[i], fake->live[i]);
	free(fake);
}

static void busy(uint64_t ns)
{
	uint64_t until = gs_now_ns() + ns;

	while (gs_now_ns() < until)
		;
}

static void hang(uint64_t ns)
{
	struct timespec t = { .tv_sec = (time_t)(ns / GS_SECOND_NS),
			      .tv_nsec = (long)(ns % GS_SECOND_NS) };

	while (!ns)
		pause();
	nanosleep(&t, NULL);
}

static int planned(const struct gs_fake *plan, struct gs_fake_context *fake)
{
	fake->failing++;
	if (plan->fail_at && fake->failing == plan->fail_at)
		return 1;
	return plan->fail_every && fake->failing % plan->fail_every == 0;
}

int gs_fake_call(struct gs_fake_context *fake, enum gs_op op)
{
	const struct gs_fake *plan = &fake->plan;

	if (plan->delay_ns)
		busy(plan->delay_ns);
	if (plan->hang_at && (!plan->hang_op || plan->hang_op == op) &&
	    ++fake->hanging == plan->hang_at)
		hang(plan->hang_ns);
	if ((plan->fail_at || plan->fail_every) &&
	    (!plan->fail_op || plan->fail_op == op) && planned(plan, fake))
		return plan->error;
	return 0;
}
