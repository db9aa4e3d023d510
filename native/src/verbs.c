/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads libibverbs and gives its calls uniform errors. Nothing is checked here:
 * bad arguments reach the library and the kernel.
 */
#define _GNU_SOURCE
#include "verbs.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

/* IBV_ACCESS_OPTIONAL_RANGE: needs ibv_reg_mr_iova2, as in the header's macro. */
#define OPTIONAL_ACCESS 0x3ff00000u

static struct gs_verbs verbs;
static int loaded;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
	static const struct {
		const char *name;
		size_t offset;
	} wanted[] = {
#define WANT(function) { "ibv_" #function, offsetof(struct gs_verbs, function) }
		WANT(get_device_list), WANT(free_device_list),
		WANT(get_device_name), WANT(open_device),
		WANT(close_device),    WANT(import_device),
		WANT(alloc_pd),	       WANT(dealloc_pd),
		WANT(import_pd),       WANT(unimport_pd),
		WANT(reg_mr),	       WANT(reg_mr_iova2),
		WANT(reg_dmabuf_mr),   WANT(rereg_mr),
		WANT(dereg_mr),	       WANT(query_device),
#undef WANT
	};
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return;
	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
		void *symbol = dlsym(library, wanted[i].name);

		memcpy((char *)&verbs + wanted[i].offset, &symbol,
		       sizeof(symbol));
	}
	loaded = verbs.dereg_mr && verbs.reg_mr && verbs.open_device &&
		 verbs.get_device_list;
}

const struct gs_verbs *gs_verbs_load(void)
{
	pthread_once(&once, load);
	return loaded ? &verbs : NULL;
}

/* A call failed: its errno, and never 0. */
static int last_error(void)
{
	return errno ? errno : EIO;
}


/* The library's enders return an errno, or -1 and set errno. */
static int ended(int result)
{
	return result > 0 ? result : result ? last_error() : 0;
}

#define HAVE(function) (gs_verbs_load() && verbs.function)
#define MISSING (gs_verbs_load() ? ENOSYS : ELIBACC)

#define MAKE(function, ...)                                             \
	(HAVE(function) ? (errno = 0, verbs.function(__VA_ARGS__))            \
			: (errno = MISSING, NULL))

static void *made(void *object, int *error)
{
	*error = object ? 0 : last_error();
	return object;
}

struct ibv_context *gs_open_device(const char *name, int *error)
{
	struct ibv_context *context = NULL;
	struct ibv_device **list;

	*error = MISSING;
	if (!gs_verbs_load())
		return NULL;
	errno = 0;
	list = verbs.get_device_list(NULL);
	*error = last_error();
	if (!list)
		return NULL;
	*error = ENODEV;
	for (int i = 0; list[i]; i++) {
		if (strcmp(verbs.get_device_name(list[i]), name))
			continue;
		errno = 0;
		context = made(verbs.open_device(list[i]), error);
		break;
	}
	verbs.free_device_list(list);
	return context;
}

int gs_close_device(struct ibv_context *context)
{
	return HAVE(close_device) ? ended(verbs.close_device(context)) : MISSING;
}

struct ibv_pd *gs_alloc_pd(struct ibv_context *context, int *error)
{
	return made(MAKE(alloc_pd, context), error);
}

int gs_dealloc_pd(struct ibv_pd *pd)
{
	return HAVE(dealloc_pd) ? ended(verbs.dealloc_pd(pd)) : MISSING;
}

uint32_t gs_pd_handle(struct ibv_pd *pd)
{
	return pd->handle;
}

struct ibv_context *gs_import_device(int cmd_fd, int *error)
{
	int fd = fcntl(cmd_fd, F_DUPFD_CLOEXEC, 0);
	struct ibv_context *context;

	if (fd < 0) {
		*error = errno;
		return NULL;
	}
	context = made(MAKE(import_device, fd), error);
	/* Refused before a provider saw it: still ours. After any other failure
	 * the provider may have closed it, and the number may be someone's.
	 */
	if (!context && (*error == EOPNOTSUPP || *error == MISSING))
		close(fd);
	return context;
}

struct ibv_pd *gs_import_pd(struct ibv_context *context, uint32_t handle,
			    int *error)
{
	return made(MAKE(import_pd, context, handle), error);
}

void gs_unimport_pd(struct ibv_pd *pd)
{
	if (HAVE(unimport_pd))
		verbs.unimport_pd(pd);
}

struct ibv_mr *gs_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
			 uint32_t access, int *error)
{
	if (access & OPTIONAL_ACCESS)
		return made(MAKE(reg_mr_iova2, pd, addr, length,
				 (uintptr_t)addr, access),
			    error);
	return made(MAKE(reg_mr, pd, addr, length, (int)access), error);
}

struct ibv_mr *gs_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset,
				size_t length, uint64_t iova, int fd,
				uint32_t access, int *error)
{
	return made(MAKE(reg_dmabuf_mr, pd, offset, length, iova, fd,
			 (int)access),
		    error);
}

int gs_rereg_mr(struct ibv_mr *mr, uint32_t flags, struct ibv_pd *pd,
		void *addr, size_t length, uint32_t access)
{
	if (!HAVE(rereg_mr))
		return MISSING;
	errno = 0;
	return verbs.rereg_mr(mr, (int)flags, pd, addr, length, (int)access)
		       ? last_error()
		       : 0;
}

int gs_dereg_mr(struct ibv_mr *mr)
{
	errno = 0;
	return HAVE(dereg_mr) ? ended(verbs.dereg_mr(mr)) : MISSING;
}

void gs_mr_keys(struct ibv_mr *mr, struct gs_mr_keys *out)
{
	out->handle = mr->handle;
	out->lkey = mr->lkey;
	out->rkey = mr->rkey;
}
