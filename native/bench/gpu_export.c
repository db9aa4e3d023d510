/* SPDX-License-Identifier: Apache-2.0
 *
 * The yardstick for the engine's GPU back ends: a plain program that exports
 * and closes GPU memory from some threads and counts, with nothing around it.
 *
 *     gpu_export rm|cuda THREADS MILLISECONDS SIZE CPU
 *
 * Prints the number of export and close pairs per second. CPU -1: not pinned;
 * -2: thread i on CPU i; else all on that one.
 * Drivers from 570 only (one layout). Everything dies with the process.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 256
#define REQUEST(nr, size) \
	((3UL << 30) | ((unsigned long)(size) << 16) | 0x4600 | (nr))

struct rm_alloc {
	uint32_t root, parent, object, cls;
	uint64_t params;
	uint32_t size, status;
};

struct rm_export {
	int32_t fd;
	uint32_t client, total_objects, num_objects, index;
	uint64_t total_size;
	uint8_t mapping, mmap;
	uint32_t handles[128];
	uint64_t offsets[128], sizes[128];
	uint32_t status;
};

struct vidmem {
	uint32_t owner, type, flags, width, height, pitch, attr, attr2;
	uint32_t format, compr, zcull;
	uint64_t lo, hi, size, alignment, offset, limit, address;
	uint32_t tail[5];
};
_Static_assert(sizeof(struct rm_export) == 2608, "export");
_Static_assert(sizeof(struct vidmem) == 128, "vidmem");

static _Atomic int ready, go, stop;
static uint64_t counts[MAX_THREADS];
static int ctl, dev, pinned_cpu = -1;
static uint32_t client, device;
static uint64_t size;
static int is_cuda;
static void *context;
static int (*cu_set_current)(void *);
static int (*cu_alloc)(uint64_t *, size_t);
static int (*cu_export)(void *, uint64_t, size_t, int, unsigned long long);

static void die(const char *what, long value)
{
	fprintf(stderr, "gpu_export: %s: %ld (errno %d)\n", what, value, errno);
	exit(1);
}

static uint32_t rm_make(uint32_t parent, uint32_t cls, void *params)
{
	struct rm_alloc arg = {
		.root = client, .parent = parent, .cls = cls,
		.params = (uintptr_t)params,
	};

	if (ioctl(ctl, REQUEST(0x2b, sizeof(arg)), &arg) || arg.status)
		die("RM alloc", arg.status);
	return arg.object;
}

static void rm_start(void)
{
	uint32_t nv0080[14] = { 0 };
	uint32_t nv2080 = 0;
	int fd;

	ctl = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
	dev = open("/dev/nvidia0", O_RDWR | O_CLOEXEC);
	fd = ctl;
	if (ctl < 0 || dev < 0 || ioctl(dev, REQUEST(201, 4), &fd))
		die("open the driver", dev);
	client = rm_make(0, 0x41, NULL);
	nv0080[1] = client;
	device = rm_make(client, 0x80, nv0080);
	rm_make(device, 0x2080, &nv2080);
}

static void *symbol(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found)
		die(name, 0);
	return found;
}

static void cuda_start(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	int (*init)(unsigned);
	int (*retain)(void **, int);

	if (!library)
		die(dlerror(), 0);
	init = (int (*)(unsigned))symbol(library, "cuInit");
	retain = (int (*)(void **, int))symbol(library,
					       "cuDevicePrimaryCtxRetain");
	cu_set_current = (int (*)(void *))symbol(library, "cuCtxSetCurrent");
	cu_alloc = (int (*)(uint64_t *, size_t))symbol(library, "cuMemAlloc_v2");
	cu_export = (int (*)(void *, uint64_t, size_t, int, unsigned long long))
		symbol(library, "cuMemGetHandleForAddressRange");
	if (init(0) || retain(&context, 0))
		die("start CUDA", 0);
}

static uint64_t run_rm(void)
{
	struct vidmem params = {
		.owner = client, .flags = 0x18101, .attr = 2U << 27,
		.attr2 = 5, .size = size, .alignment = 65536,
	};
	uint32_t handle = rm_make(device, 0x40, &params);
	struct rm_export arg;
	uint64_t done = 0;

	memset(&arg, 0, sizeof(arg));
	atomic_fetch_add(&ready, 1);
	while (!atomic_load_explicit(&go, memory_order_acquire))
		sched_yield();
	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		arg.fd = -1;
		arg.client = client;
		arg.total_objects = arg.num_objects = 1;
		arg.index = 0;
		arg.total_size = size;
		arg.handles[0] = handle;
		arg.sizes[0] = size;
		if (ioctl(dev, REQUEST(217, sizeof(arg)), &arg) || arg.status)
			die("export", arg.status);
		if (close(arg.fd))
			die("close", arg.fd);
		done++;
	}
	return done;
}

static uint64_t run_cuda(void)
{
	uint64_t ptr, done = 0;
	int rc, fd;

	if (cu_set_current(context) || cu_alloc(&ptr, size))
		die("cuMemAlloc", 0);
	atomic_fetch_add(&ready, 1);
	while (!atomic_load_explicit(&go, memory_order_acquire))
		sched_yield();
	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		rc = cu_export(&fd, ptr, size, 1, 0);
		if (rc)
			die("cuMemGetHandleForAddressRange", rc);
		if (close(fd))
			die("close", fd);
		done++;
	}
	return done;
}

static void *run(void *out)
{
	long index = (uint64_t *)out - counts;

	if (pinned_cpu != -1) {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET((size_t)(pinned_cpu < 0 ? index : pinned_cpu), &set);
		if (sched_setaffinity(0, sizeof(set), &set))
			die("pin", index);
	}
	counts[index] = is_cuda ? run_cuda() : run_rm();
	return NULL;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
	static pthread_t threads[MAX_THREADS];
	struct timespec pause = { 0 };
	uint64_t total = 0;
	double begin, end;
	long count, ms, i;

	if (argc != 6)
		die("usage: gpu_export rm|cuda THREADS MS SIZE CPU", argc);
	is_cuda = !strcmp(argv[1], "cuda");
	count = atol(argv[2]);
	ms = atol(argv[3]);
	size = strtoull(argv[4], NULL, 0);
	pinned_cpu = atoi(argv[5]);
	if (count < 1 || count > MAX_THREADS || ms < 1 || ms > 60000)
		die("threads 1..256, milliseconds 1..60000", count);
	if (is_cuda)
		cuda_start();
	else
		rm_start();
	for (i = 0; i < count; i++)
		if (pthread_create(&threads[i], NULL, run, &counts[i]))
			die("pthread_create", i);
	while (atomic_load(&ready) < count)
		sched_yield();
	begin = now();
	atomic_store_explicit(&go, 1, memory_order_release);
	pause.tv_sec = ms / 1000;
	pause.tv_nsec = ms % 1000 * 1000000;
	nanosleep(&pause, NULL);
	atomic_store(&stop, 1);
	for (i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	end = now();
	for (i = 0; i < count; i++)
		total += counts[i];
	printf("%.1f\n", (double)total / (end - begin));
	return 0;
}
