"""Bit fields of big-endian firmware structures.

A Field is an offset and a width in bits, counted from the most significant bit of the first byte,
as include/linux/mlx5/mlx5_ifc.h counts them. Nothing here knows what a field means.
"""

from __future__ import annotations

from typing import Final

Buffer = bytes | bytearray | memoryview


class Field:
    """A bit field; `base` in its methods is the byte offset of the structure in the buffer."""

    __slots__ = ("_end", "_mask", "_shift", "byte", "offset_bits", "width_bits")

    def __init__(self, offset_bits: int, width_bits: int) -> None:
        self.offset_bits: Final = offset_bits
        self.width_bits: Final = width_bits
        self.byte: Final = offset_bits // 8
        self._end: Final = (offset_bits + width_bits + 7) // 8
        self._shift: Final = self._end * 8 - offset_bits - width_bits
        self._mask: Final = (1 << width_bits) - 1

    def get(self, buffer: Buffer, base: int = 0) -> int:
        """Value of the field; bytes past the end of the buffer read as nothing."""
        part = buffer[base + self.byte : base + self._end]
        return int.from_bytes(part, "big") >> self._shift & self._mask

    def put(self, buffer: bytearray, value: int, base: int = 0) -> None:
        """Store `value`, cut to the width of the field."""
        start, end = base + self.byte, base + self._end
        whole = int.from_bytes(buffer[start:end], "big")
        whole = whole & ~(self._mask << self._shift) | (value & self._mask) << self._shift
        buffer[start:end] = whole.to_bytes(end - start, "big")

    def bytes_of(self, buffer: Buffer, base: int = 0) -> bytes:
        """The bytes that a byte-aligned field holds: an address, a name, an inner structure."""
        return bytes(buffer[base + self.byte : base + self._end])

    def put_bytes(self, buffer: bytearray, value: bytes, base: int = 0) -> None:
        """Copy `value` to the start of a byte-aligned field, cut to its size."""
        value = value[: self.width_bits // 8]
        buffer[base + self.byte : base + self.byte + len(value)] = value


class Layout:
    """Base of the generated structures: only a name for a set of fields."""
