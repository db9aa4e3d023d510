/* SPDX-License-Identifier: Apache-2.0
 *
 * Exporter `dmaheap`: a dma-heap (linux/dma-heap.h). fds[0]: the heap's device.
 *
 * A heap allocates and exports in one call, so ALLOC here only remembers the
 * size and EXPORT does the work; the offset has no meaning and is refused by
 * us (EINVAL) rather than ignored. FREE does nothing: the memory goes with the
 * descriptor.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/dma-heap.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "backend.h"

struct heap_exporter {
	int fd;
};

static int heap_open(const struct gs_binding *binding, void **self)
{
	struct heap_exporter *h = calloc(1, sizeof(*h));

	if (!h)
		return -ENOMEM;
	h->fd = gs_binding_fd(binding, 0);
	*self = h;
	return 0;
}

static void heap_close(void *self)
{
	free(self);
}

static int heap_alloc(void *ctx, uint64_t size, struct gs_memory *memory)
{
	(void)ctx;
	memory->size = size;
	return 0;
}

static int heap_export(void *ctx, const struct gs_memory *memory,
		       uint64_t offset, uint64_t size, int *fd)
{
	const struct heap_exporter *h = ctx;
	struct dma_heap_allocation_data data = {
		.len = size,
		.fd_flags = O_RDWR | O_CLOEXEC,
	};

	(void)memory;
	if (offset)
		return -EINVAL;
	if (ioctl(h->fd, DMA_HEAP_IOCTL_ALLOC, &data))
		return -errno;
	*fd = (int)data.fd;
	return 0;
}

static int heap_free(void *ctx, struct gs_memory *memory)
{
	(void)ctx;
	(void)memory;
	return 0;
}

static struct gs_exporter exporter_dmaheap = {
	.name = "dmaheap",
	.open = heap_open,
	.close = heap_close,
	.alloc = heap_alloc,
	.export = heap_export,
	.free = heap_free,
};
GS_EXPORTER(exporter_dmaheap);
