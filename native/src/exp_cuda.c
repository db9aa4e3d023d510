/* SPDX-License-Identifier: Apache-2.0
 *
 * Exporter "cuda": the CUDA driver API through function pointers that the
 * Python side found in the libcuda it has loaded. No CUDA headers: the few
 * types are declared here as the driver API documents them.
 *
 * numbers: device ordinal, range handle flags, kind (0 cuMemAlloc, 1 VMM),
 * chunks, granularity, gpuDirectRDMACapable. addresses: the context, then the
 * functions in the order of struct cuda_api. A CUresult is -(0x20000 | result).
 */
#include "backend.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RESULT_BASE 0x20000
#define HANDLE_TYPE_DMA_BUF_FD 1
#define ALLOCATION_TYPE_PINNED 1
#define LOCATION_TYPE_DEVICE 1
#define ACCESS_READWRITE 3
#define MAX_CHUNKS 128

typedef int cu_result;
typedef uint64_t cu_deviceptr;
typedef uint64_t cu_handle;

struct cu_location {
	int type;
	int id;
};

/* CUmemAllocationProp */
struct cu_alloc_prop {
	int type;
	int requested_handle_types;
	struct cu_location location;
	void *win32_metadata;
	struct {
		uint8_t compression_type;
		uint8_t gpu_direct_rdma_capable;
		uint16_t usage;
		uint8_t reserved[4];
	} flags;
};
_Static_assert(sizeof(struct cu_alloc_prop) == 32, "CUmemAllocationProp");

/* CUmemAccessDesc */
struct cu_access {
	struct cu_location location;
	int flags;
};

struct cuda_api {
	void *context;
	cu_result (*ctx_set_current)(void *context);
	cu_result (*mem_alloc)(cu_deviceptr *ptr, size_t size);
	cu_result (*mem_free)(cu_deviceptr ptr);
	cu_result (*range_handle)(void *handle, cu_deviceptr ptr, size_t size,
				  int type, unsigned long long flags);
	cu_result (*mem_get_info)(size_t *free, size_t *total);
	cu_result (*address_reserve)(cu_deviceptr *ptr, size_t size,
				     size_t alignment, cu_deviceptr addr,
				     unsigned long long flags);
	cu_result (*address_free)(cu_deviceptr ptr, size_t size);
	cu_result (*mem_create)(cu_handle *handle, size_t size,
				const struct cu_alloc_prop *prop,
				unsigned long long flags);
	cu_result (*mem_release)(cu_handle handle);
	cu_result (*mem_map)(cu_deviceptr ptr, size_t size, size_t offset,
			     cu_handle handle, unsigned long long flags);
	cu_result (*mem_unmap)(cu_deviceptr ptr, size_t size);
	cu_result (*set_access)(cu_deviceptr ptr, size_t size,
				const struct cu_access *access, size_t count);
};
#define API_COUNT (sizeof(struct cuda_api) / sizeof(void *))

struct cuda_self {
	struct cuda_api api;
	unsigned long long range_flags;
	uint64_t granularity;
	uint32_t chunks;
	int device, is_vmm, is_rdma_capable;
};

static int answer(cu_result result)
{
	return result ? -(RESULT_BASE | result) : 0;
}

static int cuda_open(const struct gs_binding *b, void **out)
{
	struct cuda_self *self;
	void **slots;
	int64_t chunks = gs_binding_number(b, 3, 1);
	uint32_t i;

	if (b->address_count < API_COUNT || chunks < 1 || chunks > MAX_CHUNKS ||
	    gs_binding_number(b, 4, 0) <= 0)
		return -EINVAL;
	self = calloc(1, sizeof(*self));
	if (!self)
		return -ENOMEM;
	slots = (void **)&self->api;
	for (i = 0; i < API_COUNT; i++)
		slots[i] = gs_binding_address(b, i);
	self->device = (int)gs_binding_number(b, 0, 0);
	self->range_flags = (unsigned long long)gs_binding_number(b, 1, 0);
	self->is_vmm = gs_binding_number(b, 2, 0) != 0;
	self->chunks = (uint32_t)chunks;
	self->granularity = (uint64_t)gs_binding_number(b, 4, 0);
	self->is_rdma_capable = gs_binding_number(b, 5, 0) != 0;
	*out = self;
	return 0;
}

static void cuda_close(void *self)
{
	free(self);
}

/* A context is current per thread, and the driver API knows nothing else. */
static int cuda_thread_open(void *self, uint32_t thread, void **ctx)
{
	struct cuda_self *cuda = self;

	(void)thread;
	*ctx = self;
	return answer(cuda->api.ctx_set_current(cuda->api.context));
}

static void cuda_thread_close(void *self, void *ctx)
{
	(void)self;
	(void)ctx;
}

/* Bytes of each chunk, and of all together: equal shares, whole granules. */
static uint64_t vmm_step(const struct cuda_self *self, uint64_t size)
{
	uint64_t units = (size + self->granularity - 1) / self->granularity;

	return (units + self->chunks - 1) / self->chunks * self->granularity;
}

static uint64_t vmm_total(const struct cuda_self *self, uint64_t size)
{
	uint64_t step = vmm_step(self, size);

	return step ? (size + step - 1) / step * step : 0;
}

/* One chunk; its handle is given up at once, the mapping keeps the memory. */
static cu_result vmm_map_chunk(const struct cuda_self *self, cu_deviceptr at,
			       uint64_t step)
{
	struct cu_alloc_prop prop = {
		.type = ALLOCATION_TYPE_PINNED,
		.location = { LOCATION_TYPE_DEVICE, self->device },
		.flags.gpu_direct_rdma_capable =
			(uint8_t)self->is_rdma_capable,
	};
	cu_handle handle;
	cu_result result = self->api.mem_create(&handle, step, &prop, 0);
	cu_result released;

	if (result)
		return result;
	result = self->api.mem_map(at, step, 0, handle, 0);
	released = self->api.mem_release(handle);
	return result ? result : released;
}

static int vmm_alloc(const struct cuda_self *self, uint64_t size,
		     cu_deviceptr *out)
{
	struct cu_access access = {
		{ LOCATION_TYPE_DEVICE, self->device }, ACCESS_READWRITE
	};
	uint64_t step = vmm_step(self, size);
	uint64_t total = vmm_total(self, size);
	uint64_t done = 0;
	cu_deviceptr base = 0;
	cu_result result = self->api.address_reserve(&base, total, 0, 0, 0);

	if (result)
		return answer(result);
	while (!result && done < total) {
		result = vmm_map_chunk(self, base + done, step);
		if (!result)
			done += step;
	}
	if (!result)
		result = self->api.set_access(base, total, &access, 1);
	if (result) {
		if (done)
			self->api.mem_unmap(base, done);
		self->api.address_free(base, total);
		return answer(result);
	}
	*out = base;
	return 0;
}

static int vmm_free(const struct cuda_self *self,
		    const struct gs_memory *memory)
{
	uint64_t total = vmm_total(self, memory->size);
	cu_result unmapped = self->api.mem_unmap(memory->handle, total);
	cu_result freed = self->api.address_free(memory->handle, total);

	return answer(unmapped ? unmapped : freed);
}

static int cuda_alloc(void *ctx, uint64_t size, struct gs_memory *memory)
{
	const struct cuda_self *self = ctx;
	cu_deviceptr ptr = 0;
	int rc = self->is_vmm ? vmm_alloc(self, size, &ptr)
			      : answer(self->api.mem_alloc(&ptr, size));

	if (rc)
		return rc;
	memory->size = size;
	memory->handle = ptr;
	return 0;
}

static int cuda_export(void *ctx, const struct gs_memory *memory,
		       uint64_t offset, uint64_t size, int *fd)
{
	const struct cuda_self *self = ctx;

	*fd = -1;
	return answer(self->api.range_handle(fd, memory->handle + offset, size,
					     HANDLE_TYPE_DMA_BUF_FD,
					     self->range_flags));
}

static int cuda_free(void *ctx, struct gs_memory *memory)
{
	const struct cuda_self *self = ctx;

	return self->is_vmm ? vmm_free(self, memory)
			    : answer(self->api.mem_free(memory->handle));
}

/* The bystander: a question that libcuda passes on to the driver. */
static int cuda_control(void *ctx)
{
	const struct cuda_self *self = ctx;
	size_t left, total;

	return answer(self->api.mem_get_info(&left, &total));
}

static struct gs_exporter cuda = {
	.name = "cuda",
	.open = cuda_open,
	.close = cuda_close,
	.thread_open = cuda_thread_open,
	.thread_close = cuda_thread_close,
	.alloc = cuda_alloc,
	.export = cuda_export,
	.free = cuda_free,
	.control = cuda_control,
};
GS_EXPORTER(cuda);
