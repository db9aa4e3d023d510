"""A port's addresses and state: MAC, GIDs, LID, up or down, and counters of what passed.

Ethernet ports learn their GIDs from SET_ROCE_ADDRESS; InfiniBand ports have one GID made of the
subnet prefix and the port GUID.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gdrstorm.bed.connectx.layouts import RoceAddrLayoutLayout
from gdrstorm.bed.connectx.options import ConnectXOptions

ADDRESS_TABLE_SIZE: Final = 256
_SUBNET_PREFIX: Final = bytes.fromhex("fe80000000000000")
_IPV4_PREFIX: Final = bytes(10) + b"\xff\xff"
_L3_IPV4: Final = 0
ROCE_V1: Final = 0
ROCE_V2: Final = 2


@dataclass(frozen=True, slots=True)
class GidEntry:
    """One RoCE address. `gid` has IPv4 as ::ffff:a.b.c.d."""

    gid: bytes
    mac: bytes
    version: int
    is_ipv4: bool


def parse_gid_entry(raw: bytes) -> GidEntry | None:
    """A roce_addr_layout; None for an empty one, which removes the address."""
    if not any(raw):
        return None
    address = RoceAddrLayoutLayout.source_l3_address.bytes_of(raw)
    version = RoceAddrLayoutLayout.roce_version.get(raw)
    is_ipv4 = version == ROCE_V2 and RoceAddrLayoutLayout.roce_l3_type.get(raw) == _L3_IPV4
    gid = _IPV4_PREFIX + address[12:16] if is_ipv4 else address
    start = RoceAddrLayoutLayout.source_mac_47_32.byte
    return GidEntry(gid, raw[start : start + 6], version, is_ipv4)


@dataclass(slots=True)
class PortCounters:
    """Octets and packets of RDMA traffic, and of Ethernet frames."""

    transmit_octets: int = 0
    transmit_packets: int = 0
    receive_octets: int = 0
    receive_packets: int = 0


class Port:
    """The one port of a function."""

    def __init__(self, options: ConnectXOptions) -> None:
        self._options = options
        self.mac = options.mac_address
        self.guid = options.node_guid
        self.lid = 0 if options.is_ethernet else options.index + 1
        self.is_up = True
        self.roce_enabled = False
        self.mtu = 1500
        self.capability_mask = 0
        self.counters = PortCounters()
        self.gids: dict[int, GidEntry] = {}
        self._by_gid: dict[bytes, int] = {}
        if not options.is_ethernet:
            self._set(0, GidEntry(self.ib_gid, b"", ROCE_V1, False))

    @property
    def ib_gid(self) -> bytes:
        return _SUBNET_PREFIX + self.guid.to_bytes(8, "big")

    def set_gid(self, index: int, raw: bytes) -> bool:
        """Store or remove a RoCE address; False when the index is out of the table."""
        if not 0 <= index < ADDRESS_TABLE_SIZE:
            return False
        self._set(index, parse_gid_entry(raw))
        return True

    def _set(self, index: int, entry: GidEntry | None) -> None:
        if entry is None:
            self.gids.pop(index, None)
        else:
            self.gids[index] = entry
        self._by_gid = {e.gid: i for i, e in self.gids.items()}

    def owns_gid(self, gid: bytes) -> bool:
        return gid in self._by_gid

    def owns_mac(self, mac: bytes) -> bool:
        return mac == self.mac or any(e.mac == mac for e in self.gids.values() if e.mac)

    def gid_at(self, index: int) -> GidEntry | None:
        return self.gids.get(index)
