"""How one virtual ConnectX is set up."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gdrstorm.errors import UsageError


class LinkLayer(enum.Enum):
    ETHERNET = "ethernet"
    INFINIBAND = "infiniband"


@dataclass(frozen=True, slots=True)
class ConnectXOptions:
    """`mac` is six bytes; `guid` is the node GUID; `index` tells functions of one process apart.

    A `mac` or `guid` of None is made from the index.
    """

    link_layer: LinkLayer = LinkLayer.ETHERNET
    index: int = 0
    mac: bytes | None = None
    guid: int | None = None

    def __post_init__(self) -> None:
        if self.mac is not None and len(self.mac) != 6:
            raise UsageError(f"MAC address of {len(self.mac)} bytes")
        if not 0 <= self.index < 64:
            raise UsageError(f"function index {self.index} (0 to 63)")

    @property
    def is_ethernet(self) -> bool:
        return self.link_layer is LinkLayer.ETHERNET

    @property
    def mac_address(self) -> bytes:
        # Locally administered, so that it can be no real card's.
        return self.mac or bytes((0x02, 0x67, 0x64, 0x72, 0x00, self.index + 1))

    @property
    def node_guid(self) -> int:
        if self.guid is not None:
            return self.guid
        mac = self.mac_address
        return int.from_bytes(mac[:3] + b"\x03\x00" + mac[3:], "big")
