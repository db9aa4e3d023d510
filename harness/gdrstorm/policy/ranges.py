"""Questions about ranges and masks over 64-bit addresses that must not overflow.

Python's integers do not wrap, so a start or a size beyond 64 bits is refused by itself: no kernel
could be asked for it.
"""

from __future__ import annotations

from gdrstorm.model.admission import Window

LIMIT = 1 << 64


def is_inside(inner: Window, outer: Window) -> bool:
    """`inner` is not empty and lies wholly inside `outer`; both are within 64 bits."""
    if inner.size <= 0 or outer.size <= 0 or inner.start < 0 or outer.start < 0:
        return False
    if inner.start + inner.size > LIMIT or outer.start + outer.size > LIMIT:
        return False
    last_inner, last_outer = inner.start + inner.size, outer.start + outer.size
    return inner.start >= outer.start and last_inner <= last_outer


def is_covered(window: Window, mask_bits: int) -> bool:
    """A device that drives `mask_bits` address bits reaches every byte of the window."""
    if window.size <= 0 or window.start < 0 or not 0 < mask_bits <= 64:
        return False
    return window.start + window.size <= 1 << mask_bits
