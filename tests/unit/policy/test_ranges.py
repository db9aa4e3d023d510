"""Ranges and masks, against arithmetic on sets of bytes and on unsigned 64-bit numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.model.admission import Window
from gdrstorm.policy.ranges import is_covered, is_inside

MAX = 2**64 - 1
small = st.integers(0, 40)
u64 = st.one_of(
    st.integers(0, MAX),
    st.sampled_from([0, 1, 4095, 4096, 2**32 - 1, 2**32, 2**63 - 1, 2**63, MAX - 1, MAX]),
)


@given(small, small, small, small)
def test_inside_means_every_byte_is_a_byte_of_the_window(a: int, b: int, c: int, d: int) -> None:
    inner, outer = set(range(a, a + b)), set(range(c, c + d))
    assert is_inside(Window(a, b), Window(c, d)) == (bool(inner) and inner <= outer)


def driver_rule(start: int, size: int, window_start: int, window_size: int) -> bool:
    """The overflow-safe form in 64 bits: subtract only after ordering."""
    if size == 0 or window_size == 0 or start < window_start:
        return False
    gap = start - window_start
    return gap <= window_size and size <= window_size - gap


@given(u64, u64, u64, u64)
def test_inside_agrees_with_the_drivers_rule_for_windows_that_exist(
    start: int, size: int, window_start: int, window_size: int
) -> None:
    exists = window_start + window_size <= 2**64
    want = exists and driver_rule(start, size, window_start, window_size)
    assert is_inside(Window(start, size), Window(window_start, window_size)) == want


@given(u64, u64, u64)
def test_a_range_that_wraps_is_never_inside(
    start: int, window_start: int, window_size: int
) -> None:
    size = 2**64 - start + 1
    assert not is_inside(Window(start, size), Window(window_start, window_size))


@given(st.integers(0, MAX - 8192), st.integers(4096, 2**40))
def test_both_ends(window_start: int, size: int) -> None:
    size = min(size, MAX - window_start)
    window = Window(window_start, size)
    assert is_inside(window, window)
    assert is_inside(Window(window_start, 1), window)
    assert is_inside(Window(window_start + size - 1, 1), window)
    assert not is_inside(Window(window_start + size - 1, 2), window)
    assert not is_inside(Window(window_start + size, 1), window)
    assert not is_inside(Window(window_start, size + 1), window)
    assert not is_inside(Window(window_start + 1, size), window)
    assert not is_inside(Window(window_start, 0), window)
    if window_start:
        assert not is_inside(Window(window_start - 1, 1), window)
        assert not is_inside(Window(window_start - 1, 2), window)


def test_the_last_byte_of_the_address_space_belongs_to_it() -> None:
    everything = Window(0, 2**64)
    assert is_inside(Window(MAX, 1), everything)
    assert not is_inside(Window(MAX, 2), everything)
    assert not is_inside(Window(-1, 2), everything)


@given(u64, u64, st.integers(1, 64))
def test_mask_reaches_the_last_byte(start: int, size: int, bits: int) -> None:
    mask = (1 << bits) - 1
    want = size != 0 and start <= mask and size - 1 <= mask - start
    assert is_covered(Window(start, size), bits) == want


@given(u64, u64)
def test_no_mask_covers_nothing(start: int, size: int) -> None:
    assert not is_covered(Window(start, size), 0)
    assert not is_covered(Window(start, size), 65)
