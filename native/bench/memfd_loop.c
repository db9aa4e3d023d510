/* SPDX-License-Identifier: Apache-2.0
 *
 * memfd_loop THREADS SECONDS: the system calls of the udmabuf exporter's ALLOC
 * and FREE (memfd_create, ftruncate, seal, close) in a plain loop.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "loop.h"

#define SIZE 1048576

static int loop_body(void *context)
{
	int fd = memfd_create("gdrstorm", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	(void)context;
	if (fd < 0)
		return errno;
	if (ftruncate(fd, SIZE) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)) {
		close(fd);
		return errno;
	}
	return close(fd) ? errno : 0;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	return loop_run((uint32_t)atoi(argv[1]), atof(argv[2]), NULL);
}
