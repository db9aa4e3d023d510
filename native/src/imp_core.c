/* SPDX-License-Identifier: Apache-2.0
 *
 * Importer "core": no driver attaches. REG takes a reference of its own (a
 * duplicate of the descriptor), asks for the size and starts a CPU access;
 * DEREG ends the access and drops the reference. So the buffer outlives CLOSE
 * as it does with a real importer (include/uapi/linux/dma-buf.h).
 */
#include "backend.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define DMA_BUF_SYNC_RW 3
#define DMA_BUF_SYNC_END 4

struct core_sync {
	uint64_t flags;
};
#define DMA_BUF_SYNC _IOW('b', 0, struct core_sync)

static int core_open(const struct gs_binding *binding, void **self)
{
	(void)binding;
	*self = NULL;
	return 0;
}

static void core_close(void *self)
{
	(void)self;
}

static int core_sync(int fd, uint64_t flags)
{
	struct core_sync arg = { flags };

	return ioctl(fd, DMA_BUF_SYNC, &arg) < 0 ? -errno : 0;
}

static int core_reg(void *ctx, const struct gs_range *range,
		    struct gs_registration *registration)
{
	int fd = fcntl(range->fd, F_DUPFD_CLOEXEC, 0);
	off_t size;
	int rc;

	(void)ctx;
	if (fd < 0)
		return -errno;
	size = lseek(fd, 0, SEEK_END);
	if (size < 0)
		rc = -errno;
	else if ((uint64_t)size < range->offset + range->length)
		rc = -ERANGE;
	else
		rc = core_sync(fd, DMA_BUF_SYNC_RW);
	if (rc)
		close(fd);
	registration->handle = (uint64_t)fd;
	return rc;
}

static int core_dereg(void *ctx, void *place,
		      struct gs_registration *registration)
{
	int fd = (int)registration->handle;
	int rc;

	(void)ctx;
	(void)place;
	if (fd < 0)
		return 0; /* called again after a failure: the reference is gone */
	rc = core_sync(fd, DMA_BUF_SYNC_RW | DMA_BUF_SYNC_END);
	if (close(fd) && !rc)
		rc = -errno;
	registration->handle = (uint64_t)-1;
	return rc;
}

static struct gs_importer core = {
	.name = "core",
	.open = core_open,
	.close = core_close,
	.reg = core_reg,
	.dereg = core_dereg,
};
GS_IMPORTER(core);
