/* SPDX-License-Identifier: Apache-2.0
 *
 * Exporter `fake`: no kernel, no memory. It checks that the engine keeps the
 * protocol (nothing ended twice or used after its end) and can be told to fail,
 * to be slow and to hang; numbers: fake.h.
 */
#include <errno.h>

#include "fake.h"

#define MEMORY_ALIVE 0x616c697665u
/* No real descriptor is that high (RLIMIT_NOFILE), so a mix-up shows as EBADF. */
#define FAKE_FD 0x40000000

static int misuse(struct gs_fake_context *fake)
{
	fake->live[GS_FAKE_MISUSE]++;
	return -EINVAL;
}

static int fake_alloc(void *ctx, uint64_t size, struct gs_memory *memory)
{
	struct gs_fake_context *fake = ctx;
	int error = gs_fake_call(fake, GS_OP_ALLOC);

	if (error)
		return error;
	memory->size = size;
	memory->handle = MEMORY_ALIVE;
	fake->live[GS_FAKE_MEMORY]++;
	return 0;
}

static int fake_export(void *ctx, const struct gs_memory *memory,
		       uint64_t offset, uint64_t size, int *fd)
{
	struct gs_fake_context *fake = ctx;
	int error = gs_fake_call(fake, GS_OP_EXPORT);

	if (memory->handle != MEMORY_ALIVE || offset + size > memory->size)
		return misuse(fake);
	if (error)
		return error;
	*fd = FAKE_FD;
	fake->live[GS_FAKE_BUFFER]++;
	return 0;
}

static int fake_free(void *ctx, struct gs_memory *memory)
{
	struct gs_fake_context *fake = ctx;
	int error = gs_fake_call(fake, GS_OP_FREE);

	if (memory->handle != MEMORY_ALIVE)
		return misuse(fake);
	if (error)
		return error;
	memory->handle = 0;
	fake->live[GS_FAKE_MEMORY]--;
	return 0;
}

static int fake_sync(void *ctx, int fd)
{
	if (fd != FAKE_FD)
		return misuse(ctx);
	return gs_fake_call(ctx, GS_OP_SYNC);
}

/* As close(2): the descriptor is gone, whatever is returned. */
static int fake_close_fd(void *ctx, int fd)
{
	struct gs_fake_context *fake = ctx;

	if (fd != FAKE_FD)
		return misuse(fake);
	fake->live[GS_FAKE_BUFFER]--;
	return gs_fake_call(fake, GS_OP_CLOSE);
}

static int fake_control(void *ctx)
{
	return gs_fake_call(ctx, GS_OP_CONTROL);
}

static struct gs_exporter exporter_fake = {
	.name = "fake",
	.open = gs_fake_open,
	.close = gs_fake_close,
	.thread_open = gs_fake_thread_open,
	.thread_close = gs_fake_thread_close,
	.alloc = fake_alloc,
	.export = fake_export,
	.free = fake_free,
	.sync = fake_sync,
	.close_fd = fake_close_fd,
	.control = fake_control,
};
GS_EXPORTER(exporter_fake);
