"""Sizes and times as people write them, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.units import format_ns, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("64 KiB", 65536),
        ("2M", 2 << 20),
        ("1GiB", 1 << 30),
        ("0", 0),
        ("1tib", 1 << 40),
    ],
)
def test_sizes(text: str, value: int) -> None:
    assert parse_size(text) == value


@given(st.integers(0, 1 << 50))
def test_sizes_come_back(value: int) -> None:
    assert parse_size(format_size(value)) == value


@pytest.mark.parametrize("text", ["", "-1", "1.5K", "4 KB", "KiB", "0x10", "1 K i B", "١"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500us", 500_000),
        ("20ms", 20_000_000),
        ("1.5 m", 90 * 10**9),
        ("2h", 7200 * 10**9),
        ("7ns", 7),
        ("1min", 60 * 10**9),
    ],
)
def test_durations(text: str, value: int) -> None:
    assert parse_duration(text) == value


@pytest.mark.parametrize("text", ["", "5", "-1s", "1 day", "s", "1e3s", "١s"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [(12, "12ns"), (1230, "1.23us"), (1_500_000, "1.5ms"), (4_500_000_000, "4.5s")],
)
def test_times_for_tables(value: int, text: str) -> None:
    assert format_ns(value) == text
