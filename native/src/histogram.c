/* SPDX-License-Identifier: Apache-2.0
 *
 * Log-linear histogram arithmetic: 32 sub-buckets an octave, exact below 32 ns,
 * up to 2^40 ns (18 minutes); longer times land in the last bucket.
 */
#include "histogram.h"

uint32_t gs_bucket(uint64_t ns)
{
	return gs_bucket_of(ns);
}

uint64_t gs_bucket_low(uint32_t bucket)
{
	uint32_t shift;

	if (bucket < 2 * GS_SUB_BUCKETS)
		return bucket;
	shift = bucket / GS_SUB_BUCKETS - 1;
	return (uint64_t)(GS_SUB_BUCKETS + bucket % GS_SUB_BUCKETS) << shift;
}

uint64_t gs_bucket_high(uint32_t bucket)
{
	return gs_bucket_low(bucket + 1) - 1;
}

/* Upper edge of the bucket that holds the value of that rank (from 1). */
static uint64_t value_at(const uint64_t *buckets, uint64_t rank)
{
	uint64_t seen = 0;

	for (uint32_t i = 0; i < GS_BUCKETS; i++) {
		seen += buckets[i];
		if (seen >= rank)
			return gs_bucket_high(i);
	}
	return gs_bucket_high(GS_BUCKETS - 1);
}

static uint64_t percentile(const uint64_t *buckets, uint64_t count,
			   uint64_t per_10000, const struct gs_latency *edges)
{
	/* 128 bits: count may pass 2^64 / 10000 in a long soak. */
	uint64_t rank = (uint64_t)(((unsigned __int128)count * per_10000 + 9999) /
				   10000);
	uint64_t value = value_at(buckets, rank ? rank : 1);

	if (value > edges->max_ns)
		value = edges->max_ns;
	return value < edges->min_ns ? edges->min_ns : value;
}

void gs_latency_of(const uint64_t *buckets, uint64_t sum_ns, uint64_t min_ns,
		   uint64_t max_ns, struct gs_latency *out)
{
	struct gs_latency result = { .min_ns = min_ns, .max_ns = max_ns };
	uint64_t count = 0;

	for (uint32_t i = 0; i < GS_BUCKETS; i++)
		count += buckets[i];
	if (count) {
		result.mean_ns = sum_ns / count;
		result.p50_ns = percentile(buckets, count, 5000, &result);
		result.p90_ns = percentile(buckets, count, 9000, &result);
		result.p99_ns = percentile(buckets, count, 9900, &result);
		result.p999_ns = percentile(buckets, count, 9990, &result);
		result.p9999_ns = percentile(buckets, count, 9999, &result);
	}
	*out = result;
}

/* Extremes of an interval: exact where the newer cumulative extreme is from
 * inside it, else the edge of the outermost bucket that grew.
 */
static void interval_extremes(const uint64_t *buckets, uint64_t older_count,
			      uint64_t older_min, uint64_t older_max,
			      uint64_t *min, uint64_t *max)
{
	uint64_t newer_min = *min, newer_max = *max;
	uint32_t low = 0, high = GS_BUCKETS;

	while (low < GS_BUCKETS && !buckets[low])
		low++;
	while (high > low && !buckets[high - 1])
		high--;
	*min = *max = 0;
	if (low == GS_BUCKETS)
		return;
	*min = gs_bucket_low(low);
	if (*min < newer_min || !older_count ||
	    newer_min < older_min)
		*min = newer_min;
	*max = gs_bucket_high(high - 1);
	if (*max > newer_max || !older_count ||
	    newer_max > older_max)
		*max = newer_max;
}

static uint64_t older_errno(const struct gs_op_totals *older, uint32_t value)
{
	for (uint32_t i = 0; i < GS_ERRNOS && older->errno_value[i]; i++)
		if (older->errno_value[i] == value)
			return older->errno_count[i];
	return 0;
}

static void subtract_op(struct gs_op_totals *newer,
			const struct gs_op_totals *older)
{
	newer->ok_count -= older->ok_count;
	newer->error_count -= older->error_count;
	newer->ok_sum_ns -= older->ok_sum_ns;
	newer->error_sum_ns -= older->error_sum_ns;
	newer->errno_other -= older->errno_other;
	for (uint32_t i = 0; i < GS_ERRNOS && newer->errno_value[i]; i++)
		newer->errno_count[i] -=
			older_errno(older, newer->errno_value[i]);
	for (uint32_t i = 0; i < GS_BUCKETS; i++) {
		newer->ok[i] -= older->ok[i];
		newer->error[i] -= older->error[i];
	}
	interval_extremes(newer->ok, older->ok_count, older->ok_min_ns,
			  older->ok_max_ns, &newer->ok_min_ns,
			  &newer->ok_max_ns);
	interval_extremes(newer->error, older->error_count,
			  older->error_min_ns, older->error_max_ns,
			  &newer->error_min_ns, &newer->error_max_ns);
}

void gs_totals_subtract(struct gs_totals *newer, const struct gs_totals *older)
{
	newer->skipped -= older->skipped;
	newer->leaked -= older->leaked;
	for (uint32_t op = 0; op < GS_OP_COUNT; op++)
		subtract_op(&newer->op[op], &older->op[op]);
}
