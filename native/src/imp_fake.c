/* SPDX-License-Identifier: Apache-2.0
 *
 * Importer `fake`: takes any descriptor, maps nothing; the counterpart of
 * exp_fake.c. numbers: fake.h.
 */
#include <errno.h>

#include "fake.h"

#define REG_ALIVE 0x726567u

static int fake_reg(void *ctx, const struct gs_range *range,
		    struct gs_registration *registration)
{
	struct gs_fake_context *fake = ctx;
	int error = gs_fake_call(fake, GS_OP_REG);

	if (range->fd < 0) {
		fake->live[GS_FAKE_MISUSE]++;
		return -EBADF;
	}
	if (error)
		return error;
	registration->handle = REG_ALIVE;
	fake->live[GS_FAKE_REG]++;
	return 0;
}

static int fake_rereg(void *ctx, const struct gs_range *range,
		      struct gs_registration *registration)
{
	struct gs_fake_context *fake = ctx;

	(void)range;
	if (registration->handle != REG_ALIVE) {
		fake->live[GS_FAKE_MISUSE]++;
		return -EINVAL;
	}
	return gs_fake_call(fake, GS_OP_REREG);
}

static int fake_dereg(void *ctx, void *place,
		      struct gs_registration *registration)
{
	struct gs_fake_context *fake = ctx;
	int error = gs_fake_call(fake, GS_OP_DEREG);

	(void)place;
	if (registration->handle != REG_ALIVE) {
		fake->live[GS_FAKE_MISUSE]++;
		return -EINVAL;
	}
	if (error)
		return error;
	registration->handle = 0;
	fake->live[GS_FAKE_REG]--;
	return 0;
}

static int fake_control(void *ctx)
{
	return gs_fake_call(ctx, GS_OP_CONTROL);
}

static struct gs_importer importer_fake = {
	.name = "fake",
	.open = gs_fake_open,
	.close = gs_fake_close,
	.thread_open = gs_fake_thread_open,
	.thread_close = gs_fake_thread_close,
	.reg = fake_reg,
	.rereg = fake_rereg,
	.dereg = fake_dereg,
	.control = fake_control,
};
GS_IMPORTER(importer_fake);
