"""Receive steering: which receive queues an arriving Ethernet frame reaches.

Flow tables with groups (a mask) and entries (a value and destinations) lead from the root to TIRs,
and those to receive queues, directly or through an indirection table. Match layout: struct
mlx5_ifc_fte_match_set_lyr_2_4_bits; only outer headers are matched.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Final

from gdrstorm.bed.connectx.layouts import FteMatchSetLyr24Layout

MAX_LEVELS: Final = 64
MATCH_BYTES: Final = 64
_ACTION_FORWARD: Final = 4
_TO_TABLE: Final = 1
_TO_TIR: Final = 2
_OUTER_HEADERS: Final = 1
_VLAN: Final = 0x8100
_IPV4: Final = 0x0800
_IPV6: Final = 0x86DD
_TCP: Final = 6
_UDP: Final = 17


@dataclass(frozen=True, slots=True)
class Group:
    """`mask` is the outer header part; other criteria are never met."""

    mask: int
    other_criteria: bool


@dataclass(frozen=True, slots=True)
class Entry:
    group: int
    value: int
    action: int
    destinations: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Table:
    """`miss` is the table that a frame without a match goes to, 0 for none."""

    miss: int = 0
    groups: dict[int, Group] = field(default_factory=dict)
    entries: dict[int, Entry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tir:
    """Receive queues behind a TIR: one, or a table that a hash picks from."""

    transport_domain: int
    queue: int
    table: int


def describe_frame(frame: bytes) -> int:
    """The frame's headers as the match layout has them."""
    raw = bytearray(MATCH_BYTES)
    FteMatchSetLyr24Layout.dmac_47_16.put_bytes(raw, frame[0:4])
    FteMatchSetLyr24Layout.dmac_15_0.put_bytes(raw, frame[4:6])
    FteMatchSetLyr24Layout.smac_47_16.put_bytes(raw, frame[6:10])
    FteMatchSetLyr24Layout.smac_15_0.put_bytes(raw, frame[10:12])
    ethertype = int.from_bytes(frame[12:14], "big")
    at = 14
    if ethertype == _VLAN:
        tag = int.from_bytes(frame[14:16], "big")
        FteMatchSetLyr24Layout.cvlan_tag.put(raw, 1)
        FteMatchSetLyr24Layout.first_prio.put(raw, tag >> 13)
        FteMatchSetLyr24Layout.first_vid.put(raw, tag)
        ethertype = int.from_bytes(frame[16:18], "big")
        at = 18
    FteMatchSetLyr24Layout.ethertype.put(raw, ethertype)
    _describe_ip(raw, frame, at, ethertype)
    return int.from_bytes(raw, "big")


def _describe_ip(raw: bytearray, frame: bytes, at: int, ethertype: int) -> None:
    if ethertype == _IPV4 and len(frame) >= at + 20:
        FteMatchSetLyr24Layout.ip_version.put(raw, 4)
        protocol = frame[at + 9]
        tos, ttl = frame[at + 1], frame[at + 8]
        FteMatchSetLyr24Layout.src_ipv4_src_ipv6.put(raw, int.from_bytes(frame[at + 12 : at + 16]))
        FteMatchSetLyr24Layout.dst_ipv4_dst_ipv6.put(raw, int.from_bytes(frame[at + 16 : at + 20]))
        at += (frame[at] & 0xF) * 4
    elif ethertype == _IPV6 and len(frame) >= at + 40:
        FteMatchSetLyr24Layout.ip_version.put(raw, 6)
        protocol = frame[at + 6]
        tos, ttl = int.from_bytes(frame[at : at + 2]) >> 4 & 0xFF, frame[at + 7]
        FteMatchSetLyr24Layout.src_ipv4_src_ipv6.put_bytes(raw, frame[at + 8 : at + 24])
        FteMatchSetLyr24Layout.dst_ipv4_dst_ipv6.put_bytes(raw, frame[at + 24 : at + 40])
        at += 40
    else:
        return
    FteMatchSetLyr24Layout.ip_protocol.put(raw, protocol)
    FteMatchSetLyr24Layout.ip_dscp.put(raw, tos >> 2)
    FteMatchSetLyr24Layout.ip_ecn.put(raw, tos)
    FteMatchSetLyr24Layout.ttl_hoplimit.put(raw, ttl)
    if protocol in (_TCP, _UDP) and len(frame) >= at + 4:
        source, target = frame[at : at + 2], frame[at + 2 : at + 4]
        tcp = protocol == _TCP
        first = FteMatchSetLyr24Layout.tcp_sport if tcp else FteMatchSetLyr24Layout.udp_sport
        second = FteMatchSetLyr24Layout.tcp_dport if tcp else FteMatchSetLyr24Layout.udp_dport
        first.put_bytes(raw, source)
        second.put_bytes(raw, target)


class Steering:
    """All tables, TIRs and indirection tables of a function."""

    def __init__(self) -> None:
        self.tables: dict[int, Table] = {}
        self.root = 0
        self.tirs: dict[int, Tir] = {}
        self.indirection: dict[int, tuple[int, ...]] = {}
        # Transport domains of TISs, which say where a sent frame comes from.
        self.tis_domains: dict[int, int] = {}

    def find_queues(self, frame: bytes, not_domain: int | None = None) -> list[int]:
        """Receive queues that the frame reaches; TIRs of `not_domain` are left out."""
        described = describe_frame(frame)
        queues: list[int] = []
        table = self.root
        for _ in range(MAX_LEVELS):
            rules = self.tables.get(table)
            if rules is None:
                break
            entry = _match(rules, described)
            if entry is None:
                table = rules.miss
                continue
            if not entry.action & _ACTION_FORWARD:
                break
            following = 0
            for kind, number in entry.destinations:
                if kind == _TO_TABLE:
                    following = number
                elif kind == _TO_TIR:
                    queues += self._behind(number, frame, not_domain)
            table = following
        return queues

    def _behind(self, tirn: int, frame: bytes, not_domain: int | None) -> list[int]:
        tir = self.tirs.get(tirn)
        if tir is None or tir.transport_domain == not_domain:
            return []
        if not tir.table:
            return [tir.queue]
        queues = self.indirection.get(tir.table, ())
        if not queues:
            return []
        # Any hash of the flow will do; real cards use Toeplitz.
        return [queues[zlib.crc32(frame[26:42]) % len(queues)]]


def _match(rules: Table, described: int) -> Entry | None:
    for _, entry in sorted(rules.entries.items()):
        group = rules.groups.get(entry.group)
        if group is None or group.other_criteria:
            continue
        if described & group.mask == entry.value & group.mask:
            return entry
    return None


def make_group(criteria_enable: int, criteria: bytes) -> Group:
    """A flow group from its match criteria (fte_match_param)."""
    outer = int.from_bytes(criteria[:MATCH_BYTES], "big")
    others = criteria_enable & ~_OUTER_HEADERS and any(criteria[MATCH_BYTES:])
    return Group(outer if criteria_enable & _OUTER_HEADERS else 0, bool(others))


def make_entry(group: int, action: int, value: bytes, destinations: bytes) -> Entry:
    """A flow entry; each destination is eight bytes, type and number first."""
    found = tuple(
        (destinations[at], int.from_bytes(destinations[at + 1 : at + 4], "big"))
        for at in range(0, len(destinations) - 7, 8)
    )
    return Entry(group, int.from_bytes(value[:MATCH_BYTES], "big"), action, found)
