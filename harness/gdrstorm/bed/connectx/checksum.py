"""Internet checksums of Ethernet frames: what a card fills in on send and reports on receive. Pure."""

from __future__ import annotations

import struct
from typing import Final

_VLAN: Final = 0x8100
_IPV4: Final = 0x0800
_IPV6: Final = 0x86DD
_TCP: Final = 6
_UDP: Final = 17
_CHECKSUM_OFFSET: Final = {_TCP: 16, _UDP: 6}


def ones_sum(data: bytes) -> int:
    """The 16-bit one's complement sum of big-endian words."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def network_offset(frame: bytes) -> tuple[int, int]:
    """(where the network header starts, its Ethernet type)."""
    kind = int.from_bytes(frame[12:14], "big")
    if kind == _VLAN:
        return 18, int.from_bytes(frame[16:18], "big")
    return 14, kind


def fill_transport_checksum(frame: bytes) -> bytes:
    """The frame with its TCP or UDP checksum computed; any other frame as it is."""
    at, kind = network_offset(frame)
    if kind == _IPV4 and len(frame) >= at + 20:
        protocol = frame[at + 9]
        start = at + (frame[at] & 0xF) * 4
        end = min(len(frame), at + int.from_bytes(frame[at + 2 : at + 4], "big"))
        addresses = frame[at + 12 : at + 20]
    elif kind == _IPV6 and len(frame) >= at + 40:
        protocol = frame[at + 6]
        start = at + 40
        end = min(len(frame), start + int.from_bytes(frame[at + 4 : at + 6], "big"))
        addresses = frame[at + 8 : at + 40]
    else:
        return frame
    where = start + _CHECKSUM_OFFSET.get(protocol, 0)
    if protocol not in _CHECKSUM_OFFSET or end < where + 2:
        return frame
    segment = bytearray(frame[start:end])
    segment[where - start : where - start + 2] = bytes(2)
    pseudo = addresses + struct.pack(">II", len(segment), protocol)
    value = ~ones_sum(pseudo + bytes(segment)) & 0xFFFF
    # UDP sends a computed zero as ones: zero means that there is none.
    value = value or 0xFFFF
    return frame[:where] + value.to_bytes(2, "big") + frame[where + 2 :]
