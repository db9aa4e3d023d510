"""The responder half of queue pairs: what an arriving message does to memory and receive queues.

Each message is checked in the order of the InfiniBand specification (QP state, operation allowed,
receive posted, key) and answered with a Reply. A missing page holds the message; the driver is
asked and the requester tries again.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from gdrstorm.bed.connectx.cq import Completion, ErrorCompletion
from gdrstorm.bed.connectx.fabric import (
    Ack,
    Held,
    Nak,
    NotReady,
    Packet,
    Reply,
    Silence,
    is_datagram,
)
from gdrstorm.bed.connectx.function import Function
from gdrstorm.bed.connectx.memory import Cause
from gdrstorm.bed.connectx.mkey import Accessor, Refused, Span
from gdrstorm.bed.connectx.oracle import Refusal, StrayKind
from gdrstorm.bed.connectx.prm import (
    NO_PD,
    VENDOR_SYNDROME,
    Access,
    CqeOp,
    Event,
    EventSource,
    PageFaultType,
    QpState,
    QpType,
    Syndrome,
    WqeOp,
)
from gdrstorm.bed.connectx.qp import QueuePair, ReceiveRing
from gdrstorm.bed.connectx.roce import ROCE_V2, GidEntry
from gdrstorm.bed.connectx.srq import SharedReceiveQueue
from gdrstorm.bed.connectx.wqe import Sge
from gdrstorm.bed.vfio_user.device import DmaError

GRH_BYTES: Final = 40
# A driver that answers every fault with "retry" and never maps the page must not spin us for ever.
MAX_FAULT_TRIES: Final = 512
_PRIVILEGED_QKEY: Final = 1 << 31
_RECEIVE_OP: Final = {
    WqeOp.SEND: CqeOp.RECV_SEND,
    WqeOp.SEND_IMM: CqeOp.RECV_SEND_IMM,
    WqeOp.SEND_INVALIDATE: CqeOp.RECV_SEND_INVALIDATE,
    WqeOp.WRITE_IMM: CqeOp.RECV_WRITE_IMM,
}
_SENDS: Final = frozenset({WqeOp.SEND, WqeOp.SEND_IMM, WqeOp.SEND_INVALIDATE})
_ATOMICS: Final = frozenset({WqeOp.COMPARE_SWAP, WqeOp.FETCH_ADD})


def note_refusal(function: Function, qp: QueuePair, refused: Refused) -> None:
    function.oracle.refuse(
        Refusal(
            function.now_ns(),
            function.index,
            refused.kind,
            refused.key,
            refused.address,
            refused.size,
            qp.number,
        )
    )


def read_spans(function: Function, spans: list[Span], cause: Cause) -> bytes:
    if len(spans) == 1:
        return function.memory.read(spans[0].iova, spans[0].size_bytes, cause)
    return b"".join(function.memory.read(s.iova, s.size_bytes, cause) for s in spans)


def write_spans(function: Function, spans: list[Span], data: bytes, cause: Cause) -> None:
    if len(spans) == 1 and spans[0].size_bytes == len(data):
        function.memory.write(spans[0].iova, data, cause)
        return
    view = memoryview(data)
    done = 0
    for span in spans:
        part = view[done : done + span.size_bytes]
        if not len(part):
            break
        function.memory.write(span.iova, part, cause)
        done += len(part)


@dataclass(frozen=True, slots=True)
class _Slot:
    """The receive that a message will use."""

    queue: ReceiveRing | SharedReceiveQueue
    index: int
    sges: tuple[Sge, ...]

    def owner_index(self, qp: QueuePair) -> int:
        """What a completion names as owner: an XRC SRQ completes under its own index."""
        if qp.type == QpType.XRC and isinstance(self.queue, SharedReceiveQueue):
            return self.queue.user_index
        return qp.user_index


class Responder:
    """Answers the messages that reach one function."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def receive(self, qp: QueuePair, packet: Packet) -> Reply:
        """Carry out one message; a datagram is never answered, its Reply counts for nothing."""
        if not qp.can_receive:
            return Silence()
        if is_datagram(qp):
            return self._receive_datagram(qp, packet)
        if not qp.is_connected or packet.source_qp.number != qp.remote_qpn:
            return Silence()
        if qp.fault_pending:
            return NotReady(1)
        self._establish(qp)
        if packet.op in _SENDS:
            return self._receive_send(qp, packet)
        if packet.op in (WqeOp.WRITE, WqeOp.WRITE_IMM):
            return self._receive_write(qp, packet)
        if packet.op is WqeOp.READ:
            return self._receive_read(qp, packet)
        if packet.op in _ATOMICS:
            return self._receive_atomic(qp, packet)
        return Nak(Syndrome.REMOTE_INVALID_REQUEST)

    def _establish(self, qp: QueuePair) -> None:
        if not qp.established:
            qp.established = True
            if qp.state is QpState.RTR:
                self._function.queue_event(Event.COMM_EST, EventSource.QP, qp.number)

    # Remote access

    def _remote_spans(
        self, qp: QueuePair, packet: Packet, size: int, access: Access
    ) -> list[Span] | Reply:
        remote = packet.remote
        if remote is None:
            return Nak(Syndrome.REMOTE_INVALID_REQUEST)
        if size == 0:
            return []
        try:
            who = self._remote_accessor(qp, packet)
            return self._function.mkeys.translate(remote.key, remote.address, size, access, who)
        except Refused as refused:
            return self._refused_remote(qp, refused)

    def _remote_accessor(self, qp: QueuePair, packet: Packet) -> Accessor:
        """An XRC target has no protection domain of its own: that of the SRQ counts."""
        if qp.type != QpType.XRC:
            return qp.accessor
        srq = self._function.srqs.get(packet.xrc_srqn)
        return Accessor(srq.pd if srq is not None else NO_PD, qp.number)

    def _refused_remote(self, qp: QueuePair, refused: Refused) -> Reply:
        note_refusal(self._function, qp, refused)
        if refused.page_missing and qp.fault_tries < MAX_FAULT_TRIES:
            fault = self._function.faults.ask_remote(refused.key, refused.address, refused.size)
            if fault is not None:
                qp.fault_tries += 1
                return Held(fault)
        return self._remote_access_error(qp)

    def _remote_access_error(self, qp: QueuePair) -> Reply:
        """A bad remote access breaks a connected responder, as the specification says."""
        qp.fault_tries = 0
        if qp.type != QpType.UC:
            self._function.queue_event(Event.WQ_ACCESS_ERROR, EventSource.QP, qp.number)
            self._function.requester.fail_queue(qp)
        return Nak(Syndrome.REMOTE_ACCESS)

    def _cause(self, qp: QueuePair, packet: Packet) -> Cause:
        key = packet.remote.key if packet.remote else None
        return Cause(StrayKind.DATA, key, qp.number, packet.source_qp.send_index)

    def _receive_write(self, qp: QueuePair, packet: Packet) -> Reply:
        if not qp.allows_write:
            return self._invalid_request(qp)
        spans = self._remote_spans(qp, packet, packet.size_bytes, Access.REMOTE_WRITE)
        if not isinstance(spans, list):
            return spans
        slot = None
        if packet.op is WqeOp.WRITE_IMM:
            slot = self._next_receive(qp, packet)
            if slot is None:
                return NotReady(qp.min_rnr_nak)
        try:
            write_spans(self._function, spans, packet.data, self._cause(qp, packet))
        except DmaError:
            return self._remote_access_error(qp)
        qp.fault_tries = 0
        if slot is not None:
            self._complete_receive(qp, packet, slot, packet.total_bytes)
        return Ack()

    def _receive_read(self, qp: QueuePair, packet: Packet) -> Reply:
        if not qp.allows_read:
            return self._invalid_request(qp)
        spans = self._remote_spans(qp, packet, packet.size_bytes, Access.REMOTE_READ)
        if not isinstance(spans, list):
            return spans
        try:
            data = read_spans(self._function, spans, self._cause(qp, packet))
        except DmaError:
            return self._remote_access_error(qp)
        qp.fault_tries = 0
        return Ack(data)

    def _receive_atomic(self, qp: QueuePair, packet: Packet) -> Reply:
        if not qp.allows_atomic or packet.remote is None or packet.atomic is None:
            return self._invalid_request(qp)
        if packet.remote.address % 8:
            return self._invalid_request(qp)
        spans = self._remote_spans(qp, packet, 8, Access.ATOMIC)
        if not isinstance(spans, list):
            return spans
        cause = self._cause(qp, packet)
        try:
            old = read_spans(self._function, spans, cause)
            # Operands and memory are in the host's order: little-endian on x86.
            value = int.from_bytes(old, "little")
            if packet.op is WqeOp.FETCH_ADD:
                new = value + packet.atomic.swap_add & (1 << 64) - 1
            else:
                new = packet.atomic.swap_add if value == packet.atomic.compare else value
            write_spans(self._function, spans, new.to_bytes(8, "little"), cause)
        except DmaError:
            return self._remote_access_error(qp)
        qp.fault_tries = 0
        return Ack(old)

    def _invalid_request(self, qp: QueuePair) -> Reply:
        if qp.type != QpType.UC:
            self._function.queue_event(Event.WQ_INVALID_REQUEST, EventSource.QP, qp.number)
            self._function.requester.fail_queue(qp)
        return Nak(Syndrome.REMOTE_INVALID_REQUEST)

    # Receive queues

    def _queue_for(self, qp: QueuePair, packet: Packet) -> ReceiveRing | SharedReceiveQueue | None:
        if qp.type == QpType.XRC:
            return self._function.srqs.get(packet.xrc_srqn)
        if qp.srqn:
            return self._function.srqs.get(qp.srqn)
        return qp.receive

    def _next_receive(self, qp: QueuePair, packet: Packet) -> _Slot | None:
        queue = self._queue_for(qp, packet)
        if queue is None:
            return None
        try:
            found = queue.peek(self._function.mkeys.TERMINATE_LKEY)
        except DmaError:
            return None
        return None if found is None else _Slot(queue, *found)

    def _receive_send(self, qp: QueuePair, packet: Packet) -> Reply:
        slot = self._next_receive(qp, packet)
        if slot is None:
            return NotReady(qp.min_rnr_nak) if qp.type != QpType.UC else Silence()
        if packet.op is WqeOp.SEND_INVALIDATE and not self._invalidate(qp, packet.imm):
            return self._remote_access_error(qp)
        reply = self._scatter(qp, packet, slot, packet.data)
        if isinstance(reply, Ack):
            self._complete_receive(qp, packet, slot, packet.size_bytes)
        return reply

    def _invalidate(self, qp: QueuePair, key: int) -> bool:
        try:
            mkey = self._function.mkeys.find(key, 0, 0)
        except Refused as refused:
            note_refusal(self._function, qp, refused)
            return False
        if not mkey.remote_invalidate or mkey.pd != qp.pd:
            return False
        mkey.free = True
        return True

    def _scatter(self, qp: QueuePair, packet: Packet, slot: _Slot, data: bytes) -> Reply:
        """Put a message into a receive; errors complete the receive and break the QP."""
        if len(data) > sum(sge.size_bytes for sge in slot.sges):
            self._fail_receive(qp, packet, slot, Syndrome.LOCAL_LENGTH)
            return Nak(Syndrome.REMOTE_INVALID_REQUEST)
        view = memoryview(data)
        done = 0
        try:
            targets: list[tuple[list[Span], Sge]] = []
            for sge in slot.sges:
                size = min(sge.size_bytes, len(data) - done)
                if size <= 0:
                    break
                spans = self._function.mkeys.translate(
                    sge.key, sge.address, size, Access.LOCAL_WRITE, self._receive_pd(qp, slot)
                )
                targets.append((spans, sge))
                done += size
            done = 0
            for spans, sge in targets:
                size = sum(s.size_bytes for s in spans)
                cause = Cause(StrayKind.DATA, sge.key, qp.number, slot.index)
                write_spans(self._function, spans, bytes(view[done : done + size]), cause)
                done += size
        except Refused as refused:
            return self._refused_receive(qp, packet, slot, refused)
        except DmaError:
            self._fail_receive(qp, packet, slot, Syndrome.LOCAL_PROTECTION)
            return Nak(Syndrome.REMOTE_OPERATION)
        qp.fault_tries = 0
        return Ack()

    def _receive_pd(self, qp: QueuePair, slot: _Slot) -> Accessor:
        if isinstance(slot.queue, SharedReceiveQueue):
            return Accessor(slot.queue.pd, qp.number, qp.accessor.reserved_lkey)
        return qp.accessor

    def _refused_receive(
        self, qp: QueuePair, packet: Packet, slot: _Slot, refused: Refused
    ) -> Reply:
        note_refusal(self._function, qp, refused)
        if refused.page_missing and qp.fault_tries < MAX_FAULT_TRIES:
            shared = isinstance(slot.queue, SharedReceiveQueue)
            kind = PageFaultType.SRQ if shared else PageFaultType.RESPONDER
            number = slot.queue.number if isinstance(slot.queue, SharedReceiveQueue) else qp.number
            fault = self._function.faults.ask_local(kind, number, slot.index)
            if fault is not None:
                qp.fault_tries += 1
                return Held(fault)
        qp.fault_tries = 0
        self._fail_receive(qp, packet, slot, Syndrome.LOCAL_PROTECTION)
        return Nak(Syndrome.REMOTE_OPERATION)

    def _complete_receive(
        self,
        qp: QueuePair,
        packet: Packet,
        slot: _Slot,
        size: int,
        flags: int = 0,
        imm: int | None = None,
    ) -> None:
        entry = Completion(
            opcode=_RECEIVE_OP[packet.op],
            qpn=qp.number,
            owner_index=slot.owner_index(qp),
            wqe_counter=slot.index,
            byte_count=size,
            imm=packet.imm if imm is None else imm,
            remote_qpn=packet.source_qp.wire_qpn,
            flags=flags,
            solicited=packet.solicited,
        )
        self._use(slot)
        self._function.oracle.completions["receive"] += 1
        counters = self._function.port.counters
        counters.receive_packets += 1
        counters.receive_octets += size
        self._post(qp, slot, entry)

    def _fail_receive(self, qp: QueuePair, packet: Packet, slot: _Slot, syndrome: Syndrome) -> None:
        entry = ErrorCompletion(
            CqeOp.RESPONDER_ERROR,
            qp.number,
            slot.owner_index(qp),
            slot.index,
            0,
            syndrome,
            VENDOR_SYNDROME[syndrome],
        )
        self._use(slot)
        self._function.oracle.completions[f"receive:{syndrome.name}"] += 1
        self._post(qp, slot, entry)
        self._function.requester.fail_queue(qp)

    @staticmethod
    def _use(slot: _Slot) -> None:
        try:
            slot.queue.consume()
        except DmaError:
            return

    def _post(self, qp: QueuePair, slot: _Slot, entry: Completion | ErrorCompletion) -> None:
        xrc = qp.type == QpType.XRC and isinstance(slot.queue, SharedReceiveQueue)
        cqn = slot.queue.cqn if xrc and isinstance(slot.queue, SharedReceiveQueue) else 0
        cq = self._function.cqs.get(cqn or qp.receive_cqn)
        if cq is not None:
            cq.post(entry)

    # Datagrams

    def _receive_datagram(self, qp: QueuePair, packet: Packet) -> Reply:
        address = packet.address
        if address is None or packet.op not in _SENDS:
            return Silence()
        if qp.type == QpType.UD and self._qkey(packet) != qp.q_key:
            return Silence()
        slot = self._next_receive(qp, packet)
        if slot is None:
            return Silence()
        header, flags = self._header(packet)
        reply = self._scatter(qp, packet, slot, header + packet.data)
        if isinstance(reply, Ack):
            # For QP 1 the driver looks its P_Key up in the entry.
            imm = 0xFFFF if qp.type == QpType.QP1 else None
            size = packet.size_bytes + GRH_BYTES
            self._complete_receive(qp, packet, slot, size, flags, imm)
        return Silence()

    @staticmethod
    def _qkey(packet: Packet) -> int:
        assert packet.address is not None
        given = packet.address.qkey
        return packet.source_qp.q_key if given & _PRIVILEGED_QKEY else given

    def _header(self, packet: Packet) -> tuple[bytes, int]:
        """The 40 bytes before a datagram's data, and the header flags of its completion."""
        address = packet.address
        assert address is not None
        source = packet.source.port.gid_at(address.gid_index)
        if source is None or not (address.has_grh or any(address.gid)):
            return bytes(GRH_BYTES), 0
        if source.version == ROCE_V2 and source.is_ipv4:
            return bytes(20) + _ipv4_header(source, address.gid, packet), 0x10 | 2
        kind = 1 if source.version == ROCE_V2 else 0
        return _grh(source, address.gid, packet, kind), 0x10 | kind


def _grh(source: GidEntry, target: bytes, packet: Packet, kind: int) -> bytes:
    assert packet.address is not None
    first = 6 << 28 | packet.address.traffic_class << 20 | packet.address.flow_label
    next_header = 0x11 if kind else 0x1B
    head = struct.pack(
        ">IHBB", first, packet.size_bytes & 0xFFFF, next_header, packet.address.hop_limit
    )
    return head + source.gid + target


def _ipv4_header(source: GidEntry, target: bytes, packet: Packet) -> bytes:
    assert packet.address is not None
    length = packet.size_bytes + 20 + 8 & 0xFFFF
    header = struct.pack(
        ">BBHHHBBH4s4s",
        0x45,
        packet.address.traffic_class,
        length,
        0,
        0x4000,
        packet.address.hop_limit,
        0x11,
        0,
        source.gid[12:],
        target[12:],
    )
    total = sum(struct.unpack(">10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    return header[:10] + struct.pack(">H", ~total & 0xFFFF) + header[12:]
