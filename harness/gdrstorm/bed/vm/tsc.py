"""Frequency of this host's time stamp counter, which TCG hands to the guest as it is.

A guest calibrates its TSC against emulated timers; on a busy host its vCPU misses their ticks and
the guest's clock then runs several times too fast. Telling it the frequency (tsc_early_khz) is
exact. x86_64 only; measures, sets nothing.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import time
from collections.abc import Callable

# rdtsc; shl rdx, 32; or rax, rdx; ret
_RDTSC = bytes.fromhex("0f31 48c1e220 4809d0 c3")
_SPAN_S = 0.05
_TRIES = 50


@functools.cache
def measure_tsc_khz() -> int | None:
    """Kilohertz, exact to some parts in a hundred thousand; None where code cannot be mapped."""
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None
    page.write(_RDTSC)
    buffer = ctypes.c_char.from_buffer(page)
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(buffer))
    first = sample_clocks(read, time.monotonic_ns)
    time.sleep(_SPAN_S)
    second = sample_clocks(read, time.monotonic_ns)
    del buffer
    return tsc_khz(first, second)


def sample_clocks(read_tsc: Callable[[], int], read_ns: Callable[[], int]) -> tuple[int, int]:
    """(TSC, nanoseconds) of the same moment: the pair that was read with the least delay."""
    best: tuple[int, int, int] | None = None
    for _ in range(_TRIES):
        before = read_ns()
        ticks = read_tsc()
        after = read_ns()
        if best is None or after - before < best[0]:
            best = (after - before, ticks, (before + after) // 2)
    assert best is not None
    return best[1], best[2]


def tsc_khz(first: tuple[int, int], second: tuple[int, int]) -> int | None:
    """Frequency between two samples; None when a clock did not move forward."""
    ticks, nanoseconds = second[0] - first[0], second[1] - first[1]
    if ticks <= 0 or nanoseconds <= 0:
        return None
    return round(ticks * 1_000_000 / nanoseconds)
