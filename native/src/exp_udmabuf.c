/* SPDX-License-Identifier: Apache-2.0
 *
 * Exporter `udmabuf`: pages of a sealed memfd as a dma-buf (linux/udmabuf.h).
 * fds[0]: /dev/udmabuf. ALLOC makes the memfd, EXPORT is UDMABUF_CREATE, which
 * pins the pages, FREE closes the memfd.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend.h"

struct udmabuf_exporter {
	int fd;
};

static int udmabuf_open(const struct gs_binding *binding, void **self)
{
	struct udmabuf_exporter *u = calloc(1, sizeof(*u));

	if (!u)
		return -ENOMEM;
	u->fd = gs_binding_fd(binding, 0);
	*self = u;
	return 0;
}

static void udmabuf_close(void *self)
{
	free(self);
}

static int udmabuf_alloc(void *ctx, uint64_t size, struct gs_memory *memory)
{
	int fd = memfd_create("gdrstorm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int error;

	(void)ctx;
	if (fd < 0)
		return -errno;
	/* The kernel takes only memfds that cannot shrink under it. */
	if (ftruncate(fd, (off_t)size) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)) {
		error = -errno;
		close(fd);
		return error;
	}
	memory->fd = fd;
	memory->size = size;
	return 0;
}

static int udmabuf_export(void *ctx, const struct gs_memory *memory,
			  uint64_t offset, uint64_t size, int *fd)
{
	const struct udmabuf_exporter *u = ctx;
	struct udmabuf_create create = {
		.memfd = (uint32_t)memory->fd,
		.flags = UDMABUF_FLAGS_CLOEXEC,
		.offset = offset,
		.size = size,
	};
	int made = ioctl(u->fd, UDMABUF_CREATE, &create);

	if (made < 0)
		return -errno;
	*fd = made;
	return 0;
}

static int udmabuf_free(void *ctx, struct gs_memory *memory)
{
	(void)ctx;
	return close(memory->fd) ? -errno : 0;
}

static struct gs_exporter exporter_udmabuf = {
	.name = "udmabuf",
	.open = udmabuf_open,
	.close = udmabuf_close,
	.alloc = udmabuf_alloc,
	.export = udmabuf_export,
	.free = udmabuf_free,
};
GS_EXPORTER(exporter_udmabuf);
