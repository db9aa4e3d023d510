/* SPDX-License-Identifier: Apache-2.0
 *
 * What a C back end of the engine is: one file, one table of functions,
 * registered by name when the module is loaded (GS_EXPORTER, GS_IMPORTER).
 *
 * All functions return 0 or a negative errno. open, thread_open and place_open
 * run before the start line and may allocate; everything from alloc to control
 * runs inside the timed loop: no allocation, no lock, no logging there.
 *
 * Contexts: `self` is one a worker process, `ctx` one a thread; a back end
 * without thread_open gets `self` as `ctx`. Memory made through one ctx may be
 * exported and freed through any other ctx of the same self, concurrently
 * exported too (share = allocation), so tie memory to self, not to ctx.
 *
 * A free or dereg that fails is called once more when the slot is cleaned: it
 * must leave the object as it was, or mark it ended in what it was given.
 */
#ifndef GS_BACKEND_H
#define GS_BACKEND_H

#include "gs.h"

/* thread_open's thread number for the context that makes shared things. */
#define GS_THREAD_SETUP UINT32_MAX

/* Exporter's memory of one slot; alloc fills it, free gets it back unchanged. */
struct gs_memory {
	uint64_t size;
	uint64_t handle;
	void *ptr;
	int fd;
};

/* An importer's registration; reg fills it, dereg gets it back unchanged. */
struct gs_registration {
	uint64_t handle;
	void *ptr;
};

/* What REG and REREG get. `iova` equals `offset`, so that both have the same
 * position within a page, which mlx5 needs. `place`: see place_open.
 */
struct gs_range {
	uint64_t offset;
	uint64_t length;
	uint64_t iova;
	void *place;
	int fd;
	uint32_t access;
};

struct gs_exporter {
	const char *name;
	int (*open)(const struct gs_binding *binding, void **self);
	void (*close)(void *self);
	int (*thread_open)(void *self, uint32_t thread, void **ctx);
	void (*thread_close)(void *self, void *ctx);
	int (*alloc)(void *ctx, uint64_t size, struct gs_memory *memory);
	int (*export)(void *ctx, const struct gs_memory *memory,
		      uint64_t offset, uint64_t size, int *fd);
	int (*free)(void *ctx, struct gs_memory *memory);
	/* Optional: DMA_BUF_IOCTL_SYNC and close(2) when NULL. A close_fd that
	 * fails has closed all the same, as close(2) has.
	 */
	int (*sync)(void *ctx, int fd);
	int (*close_fd)(void *ctx, int fd);
	/* Optional: the bystander call (CONTROL). */
	int (*control)(void *ctx);
	struct gs_exporter *next;
};

struct gs_importer {
	const char *name;
	/* REG needs no dma-buf: the importer brings its own memory. */
	int ignores_fd;
	/* Slots never share a place, whatever the program shares. */
	int place_per_slot;
	int (*open)(const struct gs_binding *binding, void **self);
	void (*close)(void *self);
	int (*thread_open)(void *self, uint32_t thread, void **ctx);
	void (*thread_close)(void *self, void *ctx);
	/* Optional: something of the importer's for each slot (one for all when
	 * the program shares and not place_per_slot), at least `size` bytes
	 * where it is memory.
	 */
	int (*place_open)(void *self, uint64_t size, void **place);
	void (*place_close)(void *self, void *place, uint64_t size);
	int (*reg)(void *ctx, const struct gs_range *range,
		   struct gs_registration *registration);
	/* Optional: REREG is refused without it. May change *registration. */
	int (*rereg)(void *ctx, const struct gs_range *range,
		     struct gs_registration *registration);
	int (*dereg)(void *ctx, void *place,
		     struct gs_registration *registration);
	int (*control)(void *ctx);
	struct gs_importer *next;
};

void gs_register_exporter(struct gs_exporter *exporter);
void gs_register_importer(struct gs_importer *importer);
const struct gs_exporter *gs_find_exporter(const char *name);
const struct gs_importer *gs_find_importer(const char *name);

#define GS_EXPORTER(table)                                                     \
	__attribute__((constructor)) static void register_##table(void)        \
	{                                                                      \
		gs_register_exporter(&table);                                  \
	}                                                                      \
	_Static_assert(1, "")

#define GS_IMPORTER(table)                                                     \
	__attribute__((constructor)) static void register_##table(void)        \
	{                                                                      \
		gs_register_importer(&table);                                  \
	}                                                                      \
	_Static_assert(1, "")

/* Arguments of a binding, with a default where the caller gave none. */
static inline int gs_binding_fd(const struct gs_binding *b, uint32_t i)
{
	return i < b->fd_count ? b->fds[i] : -1;
}

static inline int64_t gs_binding_number(const struct gs_binding *b, uint32_t i,
					int64_t otherwise)
{
	return i < b->number_count ? b->numbers[i] : otherwise;
}

static inline void *gs_binding_address(const struct gs_binding *b, uint32_t i)
{
	return i < b->address_count ? (void *)(uintptr_t)b->addresses[i] : NULL;
}

#endif
