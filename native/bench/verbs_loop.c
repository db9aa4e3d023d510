/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_loop DEVICE THREADS SECONDS SIZE: ibv_reg_dmabuf_mr and ibv_dereg_mr of
 * one dma-buf (a udmabuf, as the engine's exporter makes it) in a plain loop.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "loop.h"

struct ibv_device;
struct ibv_context;
struct ibv_pd;
struct ibv_mr;

#define ACCESS 7

static struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *, uint64_t, size_t,
				       uint64_t, int, int);
static int (*dereg_mr)(struct ibv_mr *);
static size_t size;
static int fd;

static int loop_body(void *context)
{
	struct ibv_mr *mr = reg_dmabuf_mr(context, 0, size, 0, fd, ACCESS);

	if (!mr)
		return errno;
	return dereg_mr(mr);
}

static void *symbol(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found) {
		fprintf(stderr, "verbs_loop: libibverbs lacks %s\n", name);
		exit(3);
	}
	return found;
}

static struct ibv_pd *open_pd(void *library, const char *name)
{
	struct ibv_device **(*get_list)(int *) =
		(struct ibv_device * *(*)(int *))
			symbol(library, "ibv_get_device_list");
	const char *(*get_name)(struct ibv_device *) =
		(const char *(*)(struct ibv_device *))
			symbol(library, "ibv_get_device_name");
	struct ibv_context *(*open_device)(struct ibv_device *) =
		(struct ibv_context * (*)(struct ibv_device *))
			symbol(library, "ibv_open_device");
	struct ibv_pd *(*alloc_pd)(struct ibv_context *) =
		(struct ibv_pd * (*)(struct ibv_context *))
			symbol(library, "ibv_alloc_pd");
	struct ibv_device **list = get_list(NULL);
	struct ibv_context *context = NULL;

	for (int i = 0; list && list[i] && !context; i++)
		if (!strcmp(get_name(list[i]), name))
			context = open_device(list[i]);
	return context ? alloc_pd(context) : NULL;
}

static int make_buffer(size_t bytes)
{
	struct udmabuf_create create = {
		.flags = UDMABUF_FLAGS_CLOEXEC,
		.size = bytes,
	};
	int memory = memfd_create("verbs_loop", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int udmabuf = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);

	if (memory < 0 || udmabuf < 0 || ftruncate(memory, (off_t)bytes) ||
	    fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK))
		return -1;
	create.memfd = (uint32_t)memory;
	return ioctl(udmabuf, UDMABUF_CREATE, &create);
}

int main(int argc, char **argv)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW);
	struct ibv_pd *pd;

	if (argc != 5 || !library) {
		fprintf(stderr, "verbs_loop: %s\n",
			library ? "four arguments" : dlerror());
		return 2;
	}
	reg_dmabuf_mr = (struct ibv_mr * (*)(struct ibv_pd *, uint64_t, size_t,
					     uint64_t, int, int))
		symbol(library, "ibv_reg_dmabuf_mr");
	dereg_mr = (int (*)(struct ibv_mr *))symbol(library, "ibv_dereg_mr");
	pd = open_pd(library, argv[1]);
	if (!pd) {
		fprintf(stderr, "verbs_loop: cannot open %s: %s\n", argv[1],
			strerror(errno));
		return 3;
	}
	size = strtoull(argv[4], NULL, 0);
	fd = make_buffer(size);
	if (fd < 0) {
		fprintf(stderr, "verbs_loop: cannot make a udmabuf: %s\n",
			strerror(errno));
		return 3;
	}
	return loop_run((uint32_t)atoi(argv[2]), atof(argv[3]), pd);
}
