"""The network between functions: which function owns an address, and the packets that travel.

Delivery is a call: a packet reaches the responder at once and its reply comes back as the result.
There is no wire, no loss and no reordering; what is not there is silence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gdrstorm.bed.connectx.prm import QpType, Syndrome, WqeOp
from gdrstorm.bed.connectx.wqe import AddressVector, AtomicArgs, Remote

if TYPE_CHECKING:
    from gdrstorm.bed.connectx.function import Function
    from gdrstorm.bed.connectx.pagefault import PageFault
    from gdrstorm.bed.connectx.qp import QueuePair

QP1 = 1
_MULTICAST_QPN = 0xFFFFFF


@dataclass(frozen=True, slots=True)
class Packet:
    """One message of a requester, or a piece of a long one; `total_bytes` is the whole message."""

    op: WqeOp
    source: Function
    source_qp: QueuePair
    data: bytes
    size_bytes: int
    total_bytes: int
    imm: int = 0
    solicited: bool = False
    remote: Remote | None = None
    atomic: AtomicArgs | None = None
    address: AddressVector | None = None
    xrc_srqn: int = 0


@dataclass(frozen=True, slots=True)
class Ack:
    """Done; `data` answers a read or an atomic."""

    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Nak:
    """Refused: the syndrome that the requester reports."""

    syndrome: Syndrome


@dataclass(frozen=True, slots=True)
class NotReady:
    """No receive posted: try again after the responder's RNR timer code."""

    timer_code: int


@dataclass(frozen=True, slots=True)
class Silence:
    """Nobody answered."""


@dataclass(frozen=True, slots=True)
class Held:
    """The responder met a missing page; the fault says when to try again."""

    fault: PageFault


Reply = Ack | Nak | NotReady | Silence | Held


@dataclass
class Fabric:
    """All functions of this process, and multicast groups."""

    functions: list[Function] = field(default_factory=list)
    _groups: dict[bytes, set[tuple[int, int]]] = field(default_factory=dict)

    def join(self, function: Function) -> None:
        """Add a function, in place of an older one of the same index."""
        self.leave(function.index)
        self.functions.append(function)

    def leave(self, index: int) -> None:
        self.functions = [f for f in self.functions if f.index != index]
        for members in self._groups.values():
            members.difference_update({m for m in members if m[0] == index})

    def find(self, gid: bytes, mac: bytes, lid: int) -> Function | None:
        """The function that owns an address: by GID, then MAC, then LID; its port must be up."""
        owners = [f for f in self.functions if f.port.owns_gid(gid)]
        if not owners and any(mac):
            owners = [f for f in self.functions if f.port.owns_mac(mac)]
        if not owners and lid:
            owners = [f for f in self.functions if f.port.lid == lid]
        exact = [f for f in owners if f.port.owns_mac(mac)]
        found = next(iter(exact or owners), None)
        return found if found is not None and found.port.is_up and not found.is_dead else None

    def peer_of(self, source: Function, qp: QueuePair) -> tuple[Function, QueuePair] | None:
        """The other end of a connected QP."""
        target = self.find(qp.path.gid, qp.path.mac, qp.path.lid)
        if target is None or not source.port.is_up:
            return None
        peer = target.qps.get(qp.remote_qpn)
        return None if peer is None else (target, peer)

    def datagram_targets(
        self, source: Function, address: AddressVector
    ) -> list[tuple[Function, QueuePair]]:
        """The QPs that a datagram reaches: one, or the members of a multicast group."""
        if not source.port.is_up:
            return []
        if address.qpn == _MULTICAST_QPN:
            members = self._groups.get(address.gid, set())
            by_index = {f.index: f for f in self.functions}
            found = [(by_index[i], by_index[i].qps.get(n)) for i, n in members if i in by_index]
            return [(f, qp) for f, qp in found if qp is not None]
        target = self.find(address.gid, address.mac, address.lid)
        if target is None:
            return []
        qp = target.general_qp() if address.qpn == QP1 else target.qps.get(address.qpn)
        return [(target, qp)] if qp is not None else []

    def attach(self, gid: bytes, index: int, qpn: int) -> None:
        self._groups.setdefault(gid, set()).add((index, qpn))

    def forget_qp(self, index: int, qpn: int) -> None:
        """A QP is gone: it leaves its multicast groups."""
        for members in self._groups.values():
            members.discard((index, qpn))

    def detach(self, gid: bytes, index: int, qpn: int) -> bool:
        members = self._groups.get(gid, set())
        if (index, qpn) not in members:
            return False
        members.discard((index, qpn))
        return True


def is_datagram(qp: QueuePair) -> bool:
    return qp.type in (QpType.UD, QpType.QP1, QpType.QP0)
