/* SPDX-License-Identifier: Apache-2.0
 *
 * What the fake exporter and importer share: planted failures and the count of
 * live objects. Counts are per thread and summed when a context closes, so that
 * an empty operation stays empty.
 *
 * numbers of a fake binding, all optional, 0 = off:
 *   0 delay_ns   busy time of every call
 *   1 fail_op    enum gs_op that fails; 0 = any of this back end's
 *   2 fail_every each n-th call of it fails ...
 *   3 errno      ... with this (positive); EIO if 0
 *   4 fail_at    the n-th call of it fails, once
 *   5 hang_op    enum gs_op that hangs; 0 = any
 *   6 hang_at    the n-th call of it hangs
 *   7 hang_ns    for so long; 0 = for ever (only a kill ends it)
 * Calls are counted per thread, from 1.
 */
#ifndef GS_FAKE_H
#define GS_FAKE_H

#include "backend.h"

enum gs_fake_kind {
	GS_FAKE_MEMORY,
	GS_FAKE_BUFFER,
	GS_FAKE_REG,
	GS_FAKE_MISUSE,
	GS_FAKE_KINDS
};

struct gs_fake {
	uint64_t delay_ns;
	uint64_t fail_every;
	uint64_t fail_at;
	uint64_t hang_at;
	uint64_t hang_ns;
	uint32_t fail_op;
	uint32_t hang_op;
	int error;
};

struct gs_fake_context {
	struct gs_fake plan;
	uint64_t failing;
	uint64_t hanging;
	int64_t live[GS_FAKE_KINDS];
	uint32_t thread;
};

int gs_fake_open(const struct gs_binding *binding, void **self);
void gs_fake_close(void *self);
int gs_fake_thread_open(void *self, uint32_t thread, void **ctx);
void gs_fake_thread_close(void *self, void *ctx);
/* What the call `op` returns: 0, or the planted failure. */
int gs_fake_call(struct gs_fake_context *fake, enum gs_op op);

#endif
