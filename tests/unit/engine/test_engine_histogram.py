"""Histogram arithmetic of the engine against a mirror in Python."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.engine.area import AreaSnapshot
from gdrstorm.engine.native import load
from gdrstorm.model.op import Op, OpSummary

SUB = 32
TOP = 1 << 40
times = st.integers(0, TOP - 1) | st.integers(0, 100_000)
samples = st.lists(times, min_size=1, max_size=200)


def mirror_bucket(ns: int) -> int:
    """The definition: exact below 32, then 32 equal parts of each power of two, all above 2^40 in the last."""
    ns = min(ns, TOP - 1)
    if ns < SUB:
        return ns
    octave = int(math.log2(ns))
    while 1 << octave > ns:
        octave -= 1
    while 1 << (octave + 1) <= ns:
        octave += 1
    part = (ns - (1 << octave)) * SUB >> octave
    return (octave - 4) * SUB + part


@given(st.integers(0, 2**64 - 1) | times)
def test_bucket_is_the_mirror(ns: int) -> None:
    assert load().lib.gs_bucket(ns) == mirror_bucket(ns)


@given(times)
def test_bucket_holds_its_value(ns: int) -> None:
    lib = load().lib
    bucket = lib.gs_bucket(ns)
    low, high = lib.gs_bucket_low(bucket), lib.gs_bucket_high(bucket)
    assert low <= ns <= high
    assert high - low <= low / SUB


def test_buckets_have_no_gap_and_no_overlap() -> None:
    lib = load().lib
    for bucket in range(lib.GS_BUCKETS - 1):
        assert lib.gs_bucket_high(bucket) + 1 == lib.gs_bucket_low(bucket + 1)
        assert lib.gs_bucket(lib.gs_bucket_low(bucket)) == bucket
        assert lib.gs_bucket(lib.gs_bucket_high(bucket)) == bucket
    assert lib.gs_bucket_high(lib.GS_BUCKETS - 1) == TOP - 1


def totals(op: Op, values: list[int], failed: list[int] = []) -> Any:  # noqa: B006
    """A gs_totals as the engine would have it after these samples; failed ones have EIO (5)."""
    ffi, lib = load()
    result = ffi.new("struct gs_totals *")
    t = result.op[op]
    for prefix, side, numbers in (("ok", t.ok, values), ("error", t.error, failed)):
        for ns in numbers:
            side[lib.gs_bucket(ns)] += 1
        setattr(t, f"{prefix}_count", len(numbers))
        setattr(t, f"{prefix}_sum_ns", sum(numbers))
        setattr(t, f"{prefix}_min_ns", min(numbers, default=0))
        setattr(t, f"{prefix}_max_ns", max(numbers, default=0))
    if failed:
        t.errno_value[0], t.errno_count[0] = 5, len(failed)
    return result


def only(snapshot: AreaSnapshot) -> OpSummary:
    (summary,) = snapshot.summaries()
    return summary


def rank(values: list[int], share: float) -> int:
    return sorted(values)[max(math.ceil(len(values) * share) - 1, 0)]


@given(samples)
def test_percentiles_are_within_one_bucket(values: list[int]) -> None:
    latency = only(AreaSnapshot(totals(Op.REG, values))).latency
    assert (latency.min_ns, latency.max_ns) == (min(values), max(values))
    assert latency.mean_ns == sum(values) // len(values)
    for got, share in ((latency.p50_ns, 0.5), (latency.p90_ns, 0.9), (latency.p99_ns, 0.99)):
        exact = rank(values, share)
        assert exact <= got <= exact + exact / SUB


@given(samples, samples)
def test_minus_is_the_interval(old: list[int], new: list[int]) -> None:
    older = AreaSnapshot(totals(Op.REG, old, failed=old))
    newer = AreaSnapshot(totals(Op.REG, old + new, failed=old + new))
    summary = only(newer.minus(older))
    assert summary.count == 2 * len(new)
    assert summary.errors == {"EIO": len(new)}
    assert summary.latency.mean_ns == sum(new) // len(new)
    assert summary.error_latency is not None
    for latency in (summary.latency, summary.error_latency):
        assert min(new) - min(new) / SUB <= latency.min_ns <= min(new)
        assert max(new) <= latency.max_ns <= max(new) + max(new) / SUB
        exact = rank(new, 0.5)
        assert exact <= latency.p50_ns <= exact + exact / SUB


@given(samples)
def test_minus_itself_is_nothing(values: list[int]) -> None:
    snapshot = AreaSnapshot(totals(Op.REG, values))
    assert snapshot.minus(snapshot).summaries() == ()
    assert only(snapshot).count == len(values)
