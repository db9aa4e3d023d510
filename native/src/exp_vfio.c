/* SPDX-License-Identifier: Apache-2.0
 *
 * Exporter `vfio`: a range of a PCI BAR as a dma-buf, the stand-in for GPU BAR1.
 * fds[0]: the vfio device; numbers: region index, region size in bytes (0: not
 * known). A BAR needs no allocation: ALLOC remembers the size and refuses one
 * that is larger than the region, FREE does nothing; all slots export the same
 * range from the region's start.
 *
 * Layouts: include/uapi/linux/vfio.h of Linux 6.19 (VFIO_DEVICE_FEATURE_DMA_BUF);
 * declared here because the build must not need headers that new.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "backend.h"

#define VFIO_DEVICE_FEATURE_NR _IO(';', 100 + 17)
#define VFIO_FEATURE_GET (1u << 16)
#define VFIO_FEATURE_DMA_BUF 11u

struct vfio_dma_buf_request {
	/* struct vfio_device_feature */
	uint32_t argsz;
	uint32_t flags;
	/* struct vfio_device_feature_dma_buf with one range */
	uint32_t region_index;
	uint32_t open_flags;
	uint32_t dma_buf_flags;
	uint32_t nr_ranges;
	uint64_t offset;
	uint64_t length;
};

_Static_assert(sizeof(struct vfio_dma_buf_request) == 40, "vfio ABI");
_Static_assert(offsetof(struct vfio_dma_buf_request, offset) == 24, "vfio ABI");

struct vfio_exporter {
	int fd;
	uint32_t region;
	uint64_t region_size;
};

static int vfio_open(const struct gs_binding *binding, void **self)
{
	struct vfio_exporter *v = calloc(1, sizeof(*v));

	if (!v)
		return -ENOMEM;
	v->fd = gs_binding_fd(binding, 0);
	v->region = (uint32_t)gs_binding_number(binding, 0, 0);
	v->region_size = (uint64_t)gs_binding_number(binding, 1, 0);
	*self = v;
	return 0;
}

static void vfio_close(void *self)
{
	free(self);
}

static int vfio_alloc(void *ctx, uint64_t size, struct gs_memory *memory)
{
	const struct vfio_exporter *v = ctx;

	if (v->region_size && size > v->region_size)
		return -ENOMEM;
	memory->size = size;
	return 0;
}

static int vfio_export(void *ctx, const struct gs_memory *memory,
		       uint64_t offset, uint64_t size, int *fd)
{
	const struct vfio_exporter *v = ctx;
	struct vfio_dma_buf_request request = {
		.argsz = sizeof(request),
		.flags = VFIO_FEATURE_GET | VFIO_FEATURE_DMA_BUF,
		.region_index = v->region,
		.open_flags = O_RDWR | O_CLOEXEC,
		.nr_ranges = 1,
		.offset = offset,
		.length = size,
	};
	int made = ioctl(v->fd, VFIO_DEVICE_FEATURE_NR, &request);

	(void)memory;
	if (made < 0)
		return -errno;
	*fd = made;
	return 0;
}

static int vfio_free(void *ctx, struct gs_memory *memory)
{
	(void)ctx;
	(void)memory;
	return 0;
}

static struct gs_exporter exporter_vfio = {
	.name = "vfio",
	.open = vfio_open,
	.close = vfio_close,
	.alloc = vfio_alloc,
	.export = vfio_export,
	.free = vfio_free,
};
GS_EXPORTER(exporter_vfio);
