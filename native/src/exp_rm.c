/* SPDX-License-Identifier: Apache-2.0
 *
 * Exporter "rm": video memory and dma-bufs by the NVIDIA driver's own ioctls
 * (nv-ioctl.h, nvos.h of the open kernel modules). The Python side made the
 * client and the device; this only adds memory to them.
 *
 * fds: nvidiactl, nvidiaN. numbers: client, device, mapping type, chunks,
 * size of the export structure, size of the memory parameters, offset of the
 * status in the alloc structure. A refusal is -(0x10000 | NV_STATUS).
 */
#include "backend.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#define NV_REQUEST(nr, size) \
	((3UL << 30) | ((unsigned long)(size) << 16) | 0x4600 | (nr))
#define NR_FREE 0x29
#define NR_CONTROL 0x2a
#define NR_ALLOC 0x2b
#define NR_EXPORT 217

#define CLASS_VIDMEM 0x40
#define CMD_PRIVILEGED_STATUS 0x135
#define VIDMEM_FLAGS 0x18101
#define VIDMEM_ATTR (2U << 27)
#define VIDMEM_ATTR2 5
#define VIDMEM_ALIGNMENT 65536

#define MAX_PARTS 128
/* nv_ioctl_export_to_dma_buf_fd_t before 570: no mapping type. */
#define OLD_EXPORT_SIZE 2600
#define NEW_EXPORT_SIZE 2608
#define STATUS_BASE 0x10000
#define STATUS_UNTOUCHED 0xcafe
/* Handles of chunks are ours to choose; RM's own start at 0xcaf00000. */
#define HANDLE_FIRST 0x5d000000U
#define HANDLE_COUNT 0x10000000U

struct rm_free {
	uint32_t root, parent, old, status;
};

struct rm_control {
	uint32_t client, object, cmd, flags;
	uint64_t params;
	uint32_t params_size, status;
};

struct rm_alloc {
	uint32_t root, parent, object, cls;
	uint64_t params;
	uint32_t tail[2];
};

/* NV_MEMORY_ALLOCATION_PARAMS; the last field came with 545. */
struct rm_vidmem {
	uint32_t owner, type, flags, width, height;
	int32_t pitch;
	uint32_t attr, attr2, format, compr_covg, zcull_covg;
	uint64_t range_lo, range_hi, size, alignment, offset, limit, address;
	uint32_t ctag_offset, va_space, internal_flags, tag;
	int32_t numa_node;
};
_Static_assert(sizeof(struct rm_vidmem) == 128, "NV_MEMORY_ALLOCATION_PARAMS");
_Static_assert(offsetof(struct rm_vidmem, size) == 64, "size");

struct rm_export_head {
	int32_t fd;
	uint32_t client, total_objects, num_objects, index;
	uint64_t total_size;
};
_Static_assert(offsetof(struct rm_export_head, total_size) == 24, "total_size");

struct rm_self {
	int ctl_fd, dev_fd;
	uint32_t client, device, mapping, chunks, export_size;
	uint32_t handles_at, offsets_at, sizes_at, status_at;
	uint32_t alloc_status;
	_Atomic uint32_t next_handle;
};

/* `export` is zeroed once; each export writes what it uses. */
struct rm_thread {
	struct rm_self *self;
	_Alignas(8) uint8_t export[NEW_EXPORT_SIZE];
};

static int rm_open(const struct gs_binding *b, void **out)
{
	struct rm_self *self;
	int64_t chunks = gs_binding_number(b, 3, 1);
	int64_t size = gs_binding_number(b, 4, 0);

	if (gs_binding_fd(b, 0) < 0 || gs_binding_fd(b, 1) < 0 ||
	    chunks < 1 || chunks > MAX_PARTS ||
	    (size != OLD_EXPORT_SIZE && size != NEW_EXPORT_SIZE))
		return -EINVAL;
	self = calloc(1, sizeof(*self));
	if (!self)
		return -ENOMEM;
	self->ctl_fd = gs_binding_fd(b, 0);
	self->dev_fd = gs_binding_fd(b, 1);
	self->client = (uint32_t)gs_binding_number(b, 0, 0);
	self->device = (uint32_t)gs_binding_number(b, 1, 0);
	self->mapping = (uint32_t)gs_binding_number(b, 2, 0);
	self->chunks = (uint32_t)chunks;
	self->export_size = (uint32_t)size;
	self->handles_at = size == OLD_EXPORT_SIZE ? 32 : 36;
	self->offsets_at = size == OLD_EXPORT_SIZE ? 544 : 552;
	self->sizes_at = self->offsets_at + MAX_PARTS * 8;
	self->status_at = self->sizes_at + MAX_PARTS * 8;
	self->alloc_status = gs_binding_number(b, 6, 28) == 24 ? 0 : 1;
	*out = self;
	return 0;
}

static void rm_close(void *self)
{
	free(self);
}

static int rm_thread_open(void *self, uint32_t thread, void **ctx)
{
	struct rm_thread *t = calloc(1, sizeof(*t));

	(void)thread;
	if (!t)
		return -ENOMEM;
	t->self = self;
	*ctx = t;
	return 0;
}

static void rm_thread_close(void *self, void *ctx)
{
	(void)self;
	free(ctx);
}

static int rm_answer(int rc, uint32_t status)
{
	if (rc < 0)
		return -errno;
	return status ? -(int)(STATUS_BASE | status) : 0;
}

static int rm_free_one(struct rm_self *self, uint32_t handle)
{
	struct rm_free arg = {
		.root = self->client,
		.parent = self->device,
		.old = handle,
		.status = STATUS_UNTOUCHED,
	};
	int rc = ioctl(self->ctl_fd, NV_REQUEST(NR_FREE, sizeof(arg)), &arg);

	return rm_answer(rc, arg.status);
}

static int rm_alloc_one(struct rm_self *self, uint32_t handle, uint64_t size)
{
	struct rm_vidmem params = {
		.owner = self->client,
		.flags = VIDMEM_FLAGS,
		.attr = VIDMEM_ATTR,
		.attr2 = VIDMEM_ATTR2,
		.size = size,
		.alignment = VIDMEM_ALIGNMENT,
	};
	struct rm_alloc arg = {
		.root = self->client,
		.parent = self->device,
		.object = handle,
		.cls = CLASS_VIDMEM,
		.params = (uintptr_t)&params,
	};
	int rc;

	arg.tail[self->alloc_status] = STATUS_UNTOUCHED;
	rc = ioctl(self->ctl_fd, NV_REQUEST(NR_ALLOC, sizeof(arg)), &arg);
	return rm_answer(rc, arg.tail[self->alloc_status]);
}

/* Bytes of each chunk but the last: equal shares, whole granules. One chunk is
 * left as it is, so that any size reaches RM.
 */
static uint64_t rm_step(const struct rm_self *self, uint64_t size)
{
	uint64_t units = (size + VIDMEM_ALIGNMENT - 1) / VIDMEM_ALIGNMENT;

	if (self->chunks == 1)
		return size;
	return (units + self->chunks - 1) / self->chunks * VIDMEM_ALIGNMENT;
}

static uint32_t rm_chunk_count(const struct rm_self *self, uint64_t size)
{
	uint64_t step = rm_step(self, size);

	return self->chunks == 1 || !step ? 1 : (uint32_t)((size + step - 1) / step);
}

static int rm_alloc(void *ctx, uint64_t size, struct gs_memory *memory)
{
	struct rm_self *self = ((struct rm_thread *)ctx)->self;
	uint64_t step = rm_step(self, size);
	uint32_t count = rm_chunk_count(self, size);
	uint32_t base = HANDLE_FIRST +
		atomic_fetch_add_explicit(&self->next_handle, count,
					  memory_order_relaxed) % HANDLE_COUNT;
	uint32_t i;
	int rc;

	for (i = 0; i < count; i++) {
		rc = rm_alloc_one(self, base + i, step);
		if (rc) {
			while (i--)
				rm_free_one(self, base + i);
			return rc;
		}
	}
	memory->size = size;
	memory->handle = base;
	return 0;
}

static int rm_free(void *ctx, struct gs_memory *memory)
{
	struct rm_self *self = ((struct rm_thread *)ctx)->self;
	uint32_t i = rm_chunk_count(self, memory->size);
	int rc = 0;

	while (i--) {
		int one = rm_free_one(self, (uint32_t)memory->handle + i);

		rc = rc ? rc : one;
	}
	return rc;
}

/* Fill the three arrays with the parts of the range; the last chunk takes what
 * lies past the end. Returns their number.
 */
static uint32_t rm_split(struct rm_thread *t, const struct gs_memory *memory,
			 uint64_t offset, uint64_t size)
{
	struct rm_self *self = t->self;
	uint32_t *handles = (uint32_t *)(t->export + self->handles_at);
	uint64_t *offsets = (uint64_t *)(t->export + self->offsets_at);
	uint64_t *sizes = (uint64_t *)(t->export + self->sizes_at);
	uint64_t step = rm_step(self, memory->size);
	uint32_t count = rm_chunk_count(self, memory->size);
	uint32_t chunk = count > 1 ? (uint32_t)(offset / step) : 0;
	uint32_t parts = 0;

	if (chunk >= count)
		chunk = count - 1;
	offset -= chunk * step;
	for (;;) {
		uint64_t part = size;

		if (chunk + 1 < count && offset + size > step)
			part = step - offset;
		handles[parts] = (uint32_t)memory->handle + chunk;
		offsets[parts] = offset;
		sizes[parts] = part;
		parts++;
		size -= part;
		if (!size)
			return parts;
		chunk++;
		offset = 0;
	}
}

static int rm_export(void *ctx, const struct gs_memory *memory,
		     uint64_t offset, uint64_t size, int *fd)
{
	struct rm_thread *t = ctx;
	struct rm_self *self = t->self;
	struct rm_export_head *head = (struct rm_export_head *)t->export;
	uint32_t *status = (uint32_t *)(t->export + self->status_at);
	uint32_t parts = rm_split(t, memory, offset, size);
	int rc;

	/* RM writes the structure back: an old fd would ask to add to it. */
	head->fd = -1;
	head->client = self->client;
	head->total_objects = parts;
	head->num_objects = parts;
	head->index = 0;
	head->total_size = size;
	if (self->export_size == NEW_EXPORT_SIZE) {
		t->export[32] = (uint8_t)self->mapping;
		t->export[33] = 0;
	}
	*status = STATUS_UNTOUCHED;
	rc = ioctl(self->dev_fd, NV_REQUEST(NR_EXPORT, self->export_size),
		   t->export);
	rc = rm_answer(rc, *status);
	if (!rc && head->fd < 0)
		return -EBADF;
	*fd = head->fd;
	return rc;
}

/* The bystander: a control that takes the API lock for reading and no GPU. */
static int rm_control(void *ctx)
{
	struct rm_self *self = ((struct rm_thread *)ctx)->self;
	uint8_t flags = 0;
	struct rm_control arg = {
		.client = self->client,
		.object = self->client,
		.cmd = CMD_PRIVILEGED_STATUS,
		.params = (uintptr_t)&flags,
		.params_size = sizeof(flags),
		.status = STATUS_UNTOUCHED,
	};
	int rc = ioctl(self->ctl_fd, NV_REQUEST(NR_CONTROL, sizeof(arg)), &arg);

	return rm_answer(rc, arg.status);
}

static struct gs_exporter rm = {
	.name = "rm",
	.open = rm_open,
	.close = rm_close,
	.thread_open = rm_thread_open,
	.thread_close = rm_thread_close,
	.alloc = rm_alloc,
	.export = rm_export,
	.free = rm_free,
	.control = rm_control,
};
GS_EXPORTER(rm);
