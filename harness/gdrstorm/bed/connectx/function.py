"""The state of one function between resets: its queues, keys, addresses and what they share.

A reset throws the whole object away and makes a new one, so nothing can be forgotten. Behaviour
lives elsewhere (cmd, requester, responder, netdev); here is only what they all need.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from gdrstorm.bed.connectx.caps import build_caps
from gdrstorm.bed.connectx.cq import CompletionQueue
from gdrstorm.bed.connectx.eq import EventQueues
from gdrstorm.bed.connectx.fabric import Fabric
from gdrstorm.bed.connectx.memory import GuestMemory
from gdrstorm.bed.connectx.mkey import MkeyTable
from gdrstorm.bed.connectx.options import ConnectXOptions
from gdrstorm.bed.connectx.oracle import Leak, Oracle
from gdrstorm.bed.connectx.pagefault import PageFaults
from gdrstorm.bed.connectx.plant import Saboteur
from gdrstorm.bed.connectx.prm import Event, EventSource, QpType, WqState
from gdrstorm.bed.connectx.qp import QueuePair
from gdrstorm.bed.connectx.roce import Port
from gdrstorm.bed.connectx.srq import SharedReceiveQueue
from gdrstorm.bed.connectx.steering import Steering
from gdrstorm.bed.vfio_user.device import DeviceContext

if TYPE_CHECKING:
    from gdrstorm.bed.connectx.netdev import EthernetReceive, EthernetSend
    from gdrstorm.bed.connectx.requester import Requester
    from gdrstorm.bed.connectx.responder import Responder


# UARs are pages of BAR 0, counter sets are named by a byte; all else has room.
_RANGES: Final = {"uar": (0x10, 0x1FFF), "q_counter": (1, 0xFF)}


class Numbers:
    """Object numbers of one kind, handed out in turn and reused as late as possible."""

    def __init__(self, first: int, last: int) -> None:
        self._first = first
        self._last = last
        self._next = first
        self.used: set[int] = set()

    def take(self) -> int | None:
        """A free number, None when all are used."""
        if len(self.used) > self._last - self._first:
            return None
        while self._next in self.used:
            self._step()
        number = self._next
        self.used.add(number)
        self._step()
        return number

    def _step(self) -> None:
        self._next = self._next + 1 if self._next < self._last else self._first

    def give(self, number: int) -> bool:
        """Free a number; False when it was not used."""
        if number not in self.used:
            return False
        self.used.discard(number)
        return True


class Function:
    """One HCA from reset to reset."""

    requester: Requester
    responder: Responder

    def __init__(
        self,
        options: ConnectXOptions,
        ctx: DeviceContext,
        fabric: Fabric,
        oracle: Oracle,
        saboteur: Saboteur,
    ) -> None:
        self.options = options
        self.index = options.index
        self.ctx = ctx
        self.fabric = fabric
        self.oracle = oracle
        self.saboteur = saboteur
        self.is_dead = False
        self.memory = GuestMemory(ctx, oracle, self.index)
        self.port = Port(options)
        self.eqs = EventQueues(oracle, ctx.now_ns, self.index)
        self.faults = PageFaults(ctx, self.eqs, oracle, saboteur, self.index)
        self.mkeys = MkeyTable()
        self.cqs: dict[int, CompletionQueue] = {}
        self.qps: dict[int, QueuePair] = {}
        self.srqs: dict[int, SharedReceiveQueue] = {}
        self.steering = Steering()
        self.sqs: dict[int, EthernetSend] = {}
        self.rqs: dict[int, EthernetReceive] = {}
        self.pages: set[int] = set()
        self.current_caps = build_caps(options)
        self.cq_numbers = Numbers(0x400, 0xFFFF)
        # QPs, SQs, RQs and SRQs share numbers, so that an event names one object.
        self.queue_numbers = Numbers(0x100, 0x1FFFF)
        self.plain: dict[str, Numbers] = {}

    def numbers(self, kind: str) -> Numbers:
        """Numbers of objects that are nothing but a number: PDs, UARs, flow tables."""
        if kind not in self.plain:
            self.plain[kind] = Numbers(*_RANGES.get(kind, (1, 0xFFFF)))
        return self.plain[kind]

    def general_qp(self) -> QueuePair | None:
        """The general services QP, which the wire calls QP 1."""
        return next((qp for qp in self.qps.values() if qp.type == QpType.QP1), None)

    def now_ns(self) -> int:
        return self.ctx.now_ns()

    def raise_irq(self, vector: int) -> None:
        if not self.is_dead:
            self.ctx.raise_irq(vector)

    def queue_event(self, event: Event, source: EventSource, number: int) -> None:
        """An asynchronous event of a queue: access error, last WQE, SRQ limit."""
        data = bytes(20) + bytes((source, 0, 0, 0)) + number.to_bytes(4, "big")
        self.eqs.report(event, 0, data)

    def live_objects(self) -> dict[str, int]:
        """How many objects of each kind exist; kinds without any are left out."""
        counts: Counter[str] = Counter(
            eq=len(self.eqs.queues),
            cq=len(self.cqs),
            qp=len(self.qps),
            srq=len(self.srqs),
            sq=len(self.sqs),
            rq=len(self.rqs),
            mkey=len(self.mkeys.keys),
        )
        for kind, numbers in self.plain.items():
            counts[kind] += len(numbers.used)
        return {kind: count for kind, count in counts.items() if count}

    def record_leaks(self, when: str, objects: dict[str, int]) -> None:
        if objects:
            self.oracle.leak(Leak(self.now_ns(), self.index, when, objects))

    def forget_objects(self) -> None:
        """Drop all that the driver made; nothing of it may reach the guest again."""
        self.faults.clear()
        for qp in self.qps.values():
            qp.cancel()
        for sq in self.sqs.values():
            sq.state = WqState.RESET
        for objects in (self.eqs.queues, self.cqs, self.qps, self.srqs, self.sqs, self.rqs):
            objects.clear()
        self.mkeys.keys.clear()
        for numbers in (self.cq_numbers, self.queue_numbers, *self.plain.values()):
            numbers.used.clear()
        self.steering = Steering()
        self.pages.clear()
        # Joining again leaves the multicast groups of the old QPs.
        self.fabric.join(self)

    def kill(self) -> None:
        """End this incarnation: nothing of it may reach the guest again."""
        self.is_dead = True
        self.memory.close()
        self.faults.clear()
        for qp in self.qps.values():
            qp.cancel()
        self.fabric.leave(self.index)
