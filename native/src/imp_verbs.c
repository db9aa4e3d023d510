/* SPDX-License-Identifier: Apache-2.0
 *
 * Importers `verbs` (ibv_reg_dmabuf_mr) and `host-memory` (ibv_reg_mr on memory
 * of the engine, the control that says what is about dma-buf and what is not).
 *
 * addresses[0]: struct ibv_pd *, kept open by the caller.
 * numbers[0]: ibv_rereg_mr flags, IBV_REREG_MR_CHANGE_ACCESS if absent or 0.
 *
 * libibverbs allocates the MR object itself inside the calls; that is part of
 * what is measured, as it is for every user of the library.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "verbs.h"

/* sizeof(struct ibv_device_attr) is 232; the library fills no more than that. */
#define DEVICE_ATTR_BYTES 1024

struct verbs_importer {
	struct ibv_pd *pd;
	uint32_t rereg_flags;
};

static int verbs_open(const struct gs_binding *binding, void **self)
{
	struct verbs_importer *v;

	if (!gs_verbs_load())
		return -ELIBACC;
	if (!gs_binding_address(binding, 0))
		return -EINVAL;
	v = calloc(1, sizeof(*v));
	if (!v)
		return -ENOMEM;
	v->pd = gs_binding_address(binding, 0);
	v->rereg_flags = (uint32_t)gs_binding_number(binding, 0, 0);
	if (!v->rereg_flags)
		v->rereg_flags = GS_REREG_CHANGE_ACCESS;
	*self = v;
	return 0;
}

static void verbs_close(void *self)
{
	free(self);
}

static int verbs_reg(void *ctx, const struct gs_range *range,
		     struct gs_registration *registration)
{
	struct verbs_importer *v = ctx;
	int error;

	registration->ptr = gs_reg_dmabuf_mr(v->pd, range->offset,
					     range->length, range->iova,
					     range->fd, range->access, &error);
	return -error;
}

static int verbs_rereg(void *ctx, const struct gs_range *range,
		       struct gs_registration *registration)
{
	struct verbs_importer *v = ctx;

	return -gs_rereg_mr(registration->ptr, v->rereg_flags, NULL, NULL, 0,
			    range->access);
}

static int verbs_dereg(void *ctx, void *place,
		       struct gs_registration *registration)
{
	(void)ctx;
	(void)place;
	return -gs_dereg_mr(registration->ptr);
}

static int verbs_control(void *ctx)
{
	struct verbs_importer *v = ctx;
	const struct gs_verbs *verbs = gs_verbs_load();
	uint64_t attr[DEVICE_ATTR_BYTES / sizeof(uint64_t)];

	if (!verbs->query_device)
		return -ENOSYS;
	return -verbs->query_device(v->pd->context, attr);
}

/* Populated, so that REG pins pages and does not also make them. */
static int host_place_open(void *self, uint64_t size, void **place)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	(void)self;
	if (memory == MAP_FAILED)
		return -errno;
	*place = memory;
	return 0;
}

static void host_place_close(void *self, void *place, uint64_t size)
{
	(void)self;
	munmap(place, size);
}

static int host_reg(void *ctx, const struct gs_range *range,
		    struct gs_registration *registration)
{
	struct verbs_importer *v = ctx;
	int error;

	registration->ptr = gs_reg_mr(v->pd, (char *)range->place + range->offset,
				      range->length, range->access, &error);
	return -error;
}

static struct gs_importer importer_verbs = {
	.name = "verbs",
	.open = verbs_open,
	.close = verbs_close,
	.reg = verbs_reg,
	.rereg = verbs_rereg,
	.dereg = verbs_dereg,
	.control = verbs_control,
};
GS_IMPORTER(importer_verbs);

static struct gs_importer importer_host = {
	.name = "host-memory",
	.ignores_fd = 1,
	.open = verbs_open,
	.close = verbs_close,
	.place_open = host_place_open,
	.place_close = host_place_close,
	.reg = host_reg,
	.rereg = verbs_rereg,
	.dereg = verbs_dereg,
	.control = verbs_control,
};
GS_IMPORTER(importer_host);
