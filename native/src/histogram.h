/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_HISTOGRAM_H
#define GS_HISTOGRAM_H

#include "gs.h"

#define GS_SUB_BUCKETS 32
#define GS_SUB_SHIFT 5
#define GS_OCTAVE_MAX 40

static inline uint32_t gs_bucket_of(uint64_t ns)
{
	uint32_t shift;

	if (ns >> GS_OCTAVE_MAX)
		return GS_BUCKETS - 1;
	/* Setting the sub-bucket bit makes the linear part fall out of the
	 * same formula, without a branch.
	 */
	shift = 63u - (uint32_t)__builtin_clzll(ns | GS_SUB_BUCKETS) -
		GS_SUB_SHIFT;
	return shift * GS_SUB_BUCKETS + (uint32_t)(ns >> shift);
}

#endif
