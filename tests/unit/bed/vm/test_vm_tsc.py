"""The guest's clock is right because the host's counter is measured right."""

from __future__ import annotations

import time

from gdrstorm.bed.vm import tsc


def test_arithmetic() -> None:
    assert tsc.tsc_khz((1000, 0), (2_500_001_000, 1_000_000_000)) == 2_500_000
    assert tsc.tsc_khz((5, 0), (5, 10)) is None
    assert tsc.tsc_khz((5, 10), (9, 10)) is None


def test_the_pair_with_the_least_delay_is_taken() -> None:
    moments = iter([0, 1000, 5000, 5010, 6000, 9000] * tsc._TRIES)
    ticks = iter(range(1000))
    assert tsc.sample_clocks(lambda: next(ticks), lambda: next(moments)) == (1, 5005)


def test_this_hosts_counter_keeps_the_measured_pace() -> None:
    """Measured twice, independently, within a thousandth."""
    first = tsc.measure_tsc_khz()
    tsc.measure_tsc_khz.cache_clear()
    time.sleep(0.01)
    second = tsc.measure_tsc_khz()
    assert first is not None and second is not None
    assert abs(first - second) < first / 1000
    assert 100_000 < first < 10_000_000
