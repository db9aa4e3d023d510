/* SPDX-License-Identifier: Apache-2.0
 *
 * Drives exp_rm.c with an ioctl of its own: prints every call, one a line, and
 * answers as the driver does. Compiled together with the back end by test_native_gpu.py
 * with -Dioctl=stub_ioctl.
 *
 *     native_rm EXPORT_SIZE MEMORY_SIZE STATUS_OFFSET CHUNKS MAPPING SIZE OFFSET LENGTH FAIL
 *
 * FAIL: number of the call (from 0) that is answered with status 0x51, or -1.
 */
#include "backend.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int stub_ioctl(int fd, unsigned long request, ...);

static long fail_at, calls;
static int64_t numbers[7];

static uint32_t word(const void *p, size_t at)
{
	uint32_t v;

	memcpy(&v, (const char *)p + at, sizeof(v));
	return v;
}

static uint64_t quad(const void *p, size_t at)
{
	uint64_t v;

	memcpy(&v, (const char *)p + at, sizeof(v));
	return v;
}

static void put(void *p, size_t at, uint32_t v)
{
	memcpy((char *)p + at, &v, sizeof(v));
}

static void print_export(char *p)
{
	size_t handles = numbers[4] == 2600 ? 32 : 36;
	size_t offsets = numbers[4] == 2600 ? 544 : 552;
	uint32_t i;

	printf("EXPORT fd=%d client=%#x total=%u num=%u index=%u size=%llu map=%d",
	       (int)word(p, 0), word(p, 4), word(p, 8), word(p, 12), word(p, 16),
	       (unsigned long long)quad(p, 24),
	       numbers[4] == 2600 ? -1 : p[32]);
	for (i = 0; i < word(p, 12); i++)
		printf(" %#x+%llu:%llu", word(p, handles + 4 * i),
		       (unsigned long long)quad(p, offsets + 8 * i),
		       (unsigned long long)quad(p, offsets + 1024 + 8 * i));
	putchar('\n');
}

int stub_ioctl(int fd, unsigned long request, ...)
{
	uint32_t status = calls++ == fail_at ? 0x51 : 0;
	uint32_t nr = request & 0xff, size = request >> 16 & 0x3fff;
	va_list args;
	char *p;

	va_start(args, request);
	p = va_arg(args, char *);
	va_end(args);
	if (nr == 0x2b) {
		char *params = (char *)(uintptr_t)quad(p, 16);

		printf("ALLOC fd=%d size=%u root=%#x parent=%#x new=%#x class=%#x bytes=%llu attr=%#x\n",
		       fd, size, word(p, 0), word(p, 4), word(p, 8), word(p, 12),
		       (unsigned long long)quad(params, 64), word(params, 24));
		put(p, (size_t)numbers[6], status);
	} else if (nr == 0x29) {
		printf("FREE fd=%d size=%u root=%#x parent=%#x old=%#x\n", fd, size,
		       word(p, 0), word(p, 4), word(p, 8));
		put(p, 12, status);
	} else if (nr == 0x2a) {
		printf("CONTROL fd=%d size=%u object=%#x cmd=%#x bytes=%u\n", fd, size,
		       word(p, 4), word(p, 8), word(p, 24));
		put(p, 28, status);
	} else {
		printf("fd=%d request=%#lx ", fd, request);
		print_export(p);
		put(p, (size_t)numbers[4] - 8, status);
		if (!status)
			put(p, 0, 77);
	}
	return 0;
}

int main(int argc, char **argv)
{
	const struct gs_exporter *rm = gs_find_exporter("rm");
	int fds[2] = { 5, 6 };
	struct gs_binding binding = {
		.fds = fds, .numbers = numbers, .fd_count = 2, .number_count = 7,
	};
	struct gs_memory memory;
	void *self, *ctx;
	int rc, made = -1;

	if (argc != 10)
		return 2;
	numbers[0] = 0xc1;
	numbers[1] = 0xd0;
	numbers[2] = atoi(argv[5]);
	numbers[3] = atoi(argv[4]);
	numbers[4] = atoi(argv[1]);
	numbers[5] = atoi(argv[2]);
	numbers[6] = atoi(argv[3]);
	fail_at = atol(argv[9]);
	rc = rm->open(&binding, &self);
	if (rc) {
		printf("open %d\n", rc);
		return 0;
	}
	rm->thread_open(self, 0, &ctx);
	rc = rm->alloc(ctx, strtoull(argv[6], NULL, 0), &memory);
	printf("alloc %#x\n", (unsigned)-rc);
	if (!rc) {
		rc = rm->export(ctx, &memory, strtoull(argv[7], NULL, 0),
				strtoull(argv[8], NULL, 0), &made);
		printf("export %#x fd %d\n", (unsigned)-rc, made);
		printf("free %#x\n", (unsigned)-rm->free(ctx, &memory));
		printf("control %#x\n", (unsigned)-rm->control(ctx));
	}
	rm->thread_close(self, ctx);
	rm->close(self);
	return 0;
}
