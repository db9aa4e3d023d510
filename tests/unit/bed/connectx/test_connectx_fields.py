"""Bit fields of big-endian structures."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.bed.connectx.fields import Field
from gdrstorm.bed.connectx.layouts import CreateQpInLayout, MkcLayout, QpcLayout


@given(
    offset=st.integers(0, 200),
    width=st.integers(1, 64),
    background=st.binary(min_size=40, max_size=40),
    value=st.integers(0, 2**64 - 1),
    base=st.integers(0, 6),
)
def test_put_and_get_agree_and_touch_nothing_else(
    offset: int, width: int, background: bytes, value: int, base: int
) -> None:
    field = Field(offset, width)
    raw = bytearray(background)
    field.put(raw, value, base)
    wanted = value & (1 << width) - 1
    assert field.get(raw, base) == wanted
    bits = int.from_bytes(background, "big")
    shift = len(background) * 8 - base * 8 - offset - width
    expected = bits & ~(((1 << width) - 1) << shift) | wanted << shift
    assert int.from_bytes(raw, "big") == expected


def test_a_short_buffer_reads_as_nothing() -> None:
    assert Field(64, 32).get(b"\x01\x02") == 0


def test_generated_offsets_are_those_of_the_header() -> None:
    assert (MkcLayout.free.offset_bits, MkcLayout.free.width_bits) == (1, 1)
    assert (MkcLayout.start_addr.byte, MkcLayout.SIZE_BYTES) == (16, 64)
    assert (QpcLayout.state.offset_bits, QpcLayout.state.width_bits) == (0, 4)
    assert (CreateQpInLayout.qpc.byte, CreateQpInLayout.pas.byte) == (24, 0x110)
