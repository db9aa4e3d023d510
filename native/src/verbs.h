/* SPDX-License-Identifier: Apache-2.0
 *
 * libibverbs as the engine uses it: found by dlopen, called directly. The
 * layouts are libibverbs' ABI since 1.1 (infiniband/verbs.h, rdma-core).
 */
#ifndef GS_VERBS_H
#define GS_VERBS_H

#include "backend.h"

struct ibv_device;

struct ibv_pd {
	struct ibv_context *context;
	uint32_t handle;
};

struct ibv_mr {
	struct ibv_context *context;
	struct ibv_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle;
	uint32_t lkey;
	uint32_t rkey;
};

/* enum ibv_rereg_mr_flags */
#define GS_REREG_CHANGE_ACCESS 4u

struct gs_verbs {
	struct ibv_device **(*get_device_list)(int *count);
	void (*free_device_list)(struct ibv_device **list);
	const char *(*get_device_name)(struct ibv_device *device);
	struct ibv_context *(*open_device)(struct ibv_device *device);
	int (*close_device)(struct ibv_context *context);
	struct ibv_context *(*import_device)(int cmd_fd);
	struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
	int (*dealloc_pd)(struct ibv_pd *pd);
	struct ibv_pd *(*import_pd)(struct ibv_context *context, uint32_t pd);
	void (*unimport_pd)(struct ibv_pd *pd);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *addr, size_t length,
				 int access);
	struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *pd, void *addr,
				       size_t length, uint64_t iova,
				       unsigned int access);
	struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset,
					size_t length, uint64_t iova, int fd,
					int access);
	int (*rereg_mr)(struct ibv_mr *mr, int flags, struct ibv_pd *pd,
			void *addr, size_t length, int access);
	int (*dereg_mr)(struct ibv_mr *mr);
	int (*query_device)(struct ibv_context *context, void *attr);
};

/* NULL when there is no libibverbs here; single functions may be NULL too. */
const struct gs_verbs *gs_verbs_load(void);

#endif
