"""Sizes and times: text as people write it in scenario files and options, to integers and back."""

from __future__ import annotations

import re

# The number of digits is bounded: longer ones are no int of Python, or infinite as a float.
_SIZE = re.compile(r"([0-9]{1,20})\s*(B|KiB|MiB|GiB|TiB|K|M|G|T)?", re.IGNORECASE)
_SIZE_STEP = {"": 0, "B": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_TIME = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*(ns|us|ms|s|m|min|h)")
_TIME_NS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
}


def parse_size(text: str) -> int:
    """Bytes of `4096`, `64 KiB`, `2M`, `1GiB` (binary steps only). ValueError when it is no size."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"not a size: {text!r} (write 4096, 64KiB, 2MiB, 1GiB)")
    return int(match[1]) << _SIZE_STEP[(match[2] or "").upper()[:1]]


def parse_duration(text: str) -> int:
    """Nanoseconds of `500ms`, `2s`, `1.5 m`, `1h`. ValueError when it is no duration."""
    match = _TIME.fullmatch(text.strip())
    if not match:
        raise ValueError(f"not a duration: {text!r} (write 500us, 20ms, 5s, 2m, 1h)")
    return round(float(match[1]) * _TIME_NS[match[2]])


def format_size(size_bytes: int) -> str:
    """Shortest exact binary size: 65536 is `64KiB`, 65537 stays `65537B`."""
    for name, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes and size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift}{name}"
    return f"{size_bytes}B"


def format_ns(value_ns: float) -> str:
    """A time for tables, three digits: `812ns`, `1.23ms`, `4.5s`."""
    for name, unit in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if value_ns >= unit:
            return f"{value_ns / unit:.3g}{name}"
    return f"{value_ns:.0f}ns"
