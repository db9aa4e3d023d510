"""Internet checksums, against known packets."""

from __future__ import annotations

import struct

import pytest

from gdrstorm.bed.connectx.checksum import fill_transport_checksum, network_offset, ones_sum

ETHERNET = bytes(12)


def ipv4(protocol: int, segment: bytes) -> bytes:
    header = struct.pack(
        ">BBHHHBBH4s4s",
        0x45,
        0,
        20 + len(segment),
        0,
        0,
        64,
        protocol,
        0,
        b"\x0a\0\0\1",
        b"\x0a\0\0\2",
    )
    return ETHERNET + b"\x08\x00" + header + segment


def test_sum_of_rfc_1071() -> None:
    assert ones_sum(bytes.fromhex("0001f203f4f5f6f7")) == 0xDDF2
    assert ones_sum(b"\x12") == 0x1200


@pytest.mark.parametrize(("protocol", "offset", "size"), [(17, 6, 8), (6, 16, 20)])
def test_filled_segments_sum_to_ones(protocol: int, offset: int, size: int) -> None:
    segment = bytes(range(size)) + b"odd payload"
    frame = fill_transport_checksum(ipv4(protocol, segment) + bytes(7))
    filled = frame[34 : 34 + len(segment)]
    pseudo = frame[26:34] + struct.pack(">II", len(segment), protocol)
    assert ones_sum(pseudo + filled) == 0xFFFF
    assert filled[:offset] == segment[:offset]
    assert filled[offset + 2 :] == segment[offset + 2 :]
    assert frame[-7:] == bytes(7)


def test_ipv6_udp() -> None:
    segment = struct.pack(">HHHH", 1, 2, 12, 0xBEEF) + b"data"
    header = struct.pack(">IHBB", 6 << 28, len(segment), 17, 64) + bytes(range(32))
    frame = fill_transport_checksum(ETHERNET + b"\x86\xdd" + header + segment)
    pseudo = bytes(range(32)) + struct.pack(">II", len(segment), 17)
    assert ones_sum(pseudo + frame[54:]) == 0xFFFF


@pytest.mark.parametrize(
    "frame",
    [b"", bytes(20), ipv4(1, bytes(20)), ipv4(6, bytes(4)), ETHERNET + b"\x08\x06" + bytes(40)],
)
def test_other_frames_stay_as_they_are(frame: bytes) -> None:
    assert fill_transport_checksum(frame) == frame


def test_vlan_tag_moves_the_network_header() -> None:
    tagged = ETHERNET + b"\x81\x00\x00\x05\x08\x00"
    assert network_offset(tagged) == (18, 0x0800)
