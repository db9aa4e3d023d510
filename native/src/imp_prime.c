/* SPDX-License-Identifier: Apache-2.0
 *
 * Importer `prime`: a DRM driver attaches the buffer (drm/drm.h, PRIME).
 * fds[0]: a DRM node, render or card. REG is PRIME_FD_TO_HANDLE of the whole
 * buffer (offset, length and access have no meaning), DEREG is GEM_CLOSE.
 *
 * One DRM file gives the same handle for every import of the same buffer, and
 * one close then ends them all. So each slot has its own DRM file, opened
 * before the start through /proc/self/fd.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "backend.h"

struct drm_prime_request {
	uint32_t handle;
	uint32_t flags;
	int32_t fd;
};

struct drm_close_request {
	uint32_t handle;
	uint32_t pad;
};

#define DRM_PRIME_FD_TO_HANDLE _IOWR('d', 0x2e, struct drm_prime_request)
#define DRM_GEM_CLOSE _IOW('d', 0x09, struct drm_close_request)

struct prime_importer {
	int fd;
};

static int prime_open(const struct gs_binding *binding, void **self)
{
	struct prime_importer *p = calloc(1, sizeof(*p));

	if (!p)
		return -ENOMEM;
	p->fd = gs_binding_fd(binding, 0);
	*self = p;
	return 0;
}

static void prime_close(void *self)
{
	free(self);
}

static int prime_place_open(void *self, uint64_t size, void **place)
{
	const struct prime_importer *p = self;
	char path[64];
	int fd;

	(void)size;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", p->fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	*place = (void *)(intptr_t)fd;
	return 0;
}

static void prime_place_close(void *self, void *place, uint64_t size)
{
	(void)self;
	(void)size;
	close((int)(intptr_t)place);
}

static int prime_reg(void *ctx, const struct gs_range *range,
		     struct gs_registration *registration)
{
	struct drm_prime_request request = { .fd = range->fd };

	(void)ctx;
	if (ioctl((int)(intptr_t)range->place, DRM_PRIME_FD_TO_HANDLE,
		  &request))
		return -errno;
	registration->handle = request.handle;
	return 0;
}

static int prime_dereg(void *ctx, void *place,
		       struct gs_registration *registration)
{
	struct drm_close_request request = {
		.handle = (uint32_t)registration->handle,
	};

	(void)ctx;
	return ioctl((int)(intptr_t)place, DRM_GEM_CLOSE, &request) ? -errno
								    : 0;
}

static struct gs_importer importer_prime = {
	.name = "prime",
	.place_per_slot = 1,
	.open = prime_open,
	.close = prime_close,
	.place_open = prime_place_open,
	.place_close = prime_place_close,
	.reg = prime_reg,
	.dereg = prime_dereg,
};
GS_IMPORTER(importer_prime);
