"""The requester half of queue pairs: work through the send queue, message by message.

Each work request ends in a completion, or waits: for a receiver (RNR), for an answer (transport
retry) or for a page. Loops are bounded by the ring, and a long queue yields to the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gdrstorm.bed.connectx.cq import Completion
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
from gdrstorm.bed.connectx.flush import Flusher, opcode_at_head, segments_at_head
from gdrstorm.bed.connectx.function import Function
from gdrstorm.bed.connectx.memory import Cause
from gdrstorm.bed.connectx.mkey import Refused, Span
from gdrstorm.bed.connectx.oracle import StrayKind
from gdrstorm.bed.connectx.pagefault import PageFault
from gdrstorm.bed.connectx.plant import Mishap, StalePlant, UmrPlant
from gdrstorm.bed.connectx.prm import (
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
from gdrstorm.bed.connectx.qp import QueuePair
from gdrstorm.bed.connectx.responder import MAX_FAULT_TRIES, note_refusal, read_spans, write_spans
from gdrstorm.bed.connectx.umr import UmrVerdict, Withdrawn, apply_umr, check_umr
from gdrstorm.bed.connectx.wqe import BadWqe, Remote, SendWqe, Sge, parse_send, window
from gdrstorm.bed.vfio_user.device import DmaError

BUDGET: Final = 256
MAX_MESSAGE_BYTES: Final = 1 << 30
# Between pieces the event loop turns, so that an unmap can come in the middle of a message.
PIECE_BYTES: Final = 1 << 18
_STALE_PATTERN: Final = b"\x5a\xa5STALE!"
_READS: Final = frozenset({WqeOp.READ, WqeOp.COMPARE_SWAP, WqeOp.FETCH_ADD})
_CARRIED: Final = frozenset(
    {
        WqeOp.SEND,
        WqeOp.SEND_IMM,
        WqeOp.SEND_INVALIDATE,
        WqeOp.WRITE,
        WqeOp.WRITE_IMM,
        WqeOp.READ,
        WqeOp.COMPARE_SWAP,
        WqeOp.FETCH_ADD,
    }
)
# Milliseconds of the RNR timer codes 0 to 31 (InfiniBand specification, table 45).
_RNR_MS: Final = (
    655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28,
    1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84,
    245.76, 327.68, 491.52,
)  # fmt: skip
_FOREVER: Final = 7
_ATOMIC_BYTES: Final = 8


class _Failed(Exception):
    """The work request ends with this error."""

    def __init__(self, syndrome: Syndrome) -> None:
        super().__init__(syndrome.name)
        self.syndrome = syndrome


class _Waits(Exception):
    """The work request goes on later; the QP is marked as waiting."""


class _Silent(Exception):
    """The work request is done but its completion is lost: a plant."""


class Requester:
    """Works through the send queues of one function."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._flusher = Flusher(function)
        self._delayed: set[int] = set()

    def doorbell(self, qp: QueuePair) -> None:
        """The driver rang: read how far it posted, and work."""
        if qp.send is None:
            return
        try:
            qp.send.refresh()
        except DmaError:
            self.fail_queue(qp)
            return
        self.run(qp)

    def run(self, qp: QueuePair) -> None:
        """Work until the queue is empty, waits or has used its turn."""
        send = qp.send
        if send is None:
            return
        for _ in range(BUDGET):
            if qp.waiting or not send.pending:
                return
            if qp.state is QpState.ERROR:
                self._flusher.flush_send(qp)
                return
            if qp.state is not QpState.RTS:
                return
            if send.pending > send.blocks:
                self._function.oracle.anomaly(
                    self._function.now_ns(),
                    self._function.index,
                    f"QP {qp.number:#x}: bad doorbell",
                )
                self.fail_queue(qp)
                return
            self._step(qp)
        self._function.ctx.call_later(0, qp.guard(lambda: self.run(qp)))

    def _step(self, qp: QueuePair) -> None:
        """Carry out the work request at the head of the send queue."""
        assert qp.send is not None
        try:
            raw = qp.send.read()
            wqe = parse_send(raw, qp.type)
        except (DmaError, BadWqe):
            self._complete_error(qp, Syndrome.LOCAL_QP_OPERATION, 0)
            return
        if self._function.oracle.tracing:
            self._trace(qp, wqe)
        try:
            size = self._execute(qp, wqe)
        except _Waits:
            return
        except _Silent:
            qp.send.advance(wqe.ctrl.segments)
            return
        except _Failed as failed:
            self._complete_error(qp, failed.syndrome, wqe.ctrl.opcode)
            return
        except DmaError:
            self._complete_error(qp, Syndrome.LOCAL_PROTECTION, wqe.ctrl.opcode)
            return
        qp.rnr_tries = qp.transport_tries = qp.fault_tries = 0
        self._complete(qp, wqe, size)

    def _trace(self, qp: QueuePair, wqe: SendWqe) -> None:
        """One line a try: a request that waits appears again."""
        remote = f" to {wqe.remote.address:#x} key {wqe.remote.key:#x}" if wqe.remote else ""
        what = (
            f"QP {qp.number:#x} WQE {qp.send_index} op {wqe.ctrl.opcode:#x} {wqe.size_bytes} bytes"
        )
        self._function.oracle.trace(self._function.now_ns(), self._function.index, what + remote)

    def _execute(self, qp: QueuePair, wqe: SendWqe) -> int:
        """Do what the work request says; gives the bytes that a read brought."""
        opcode = wqe.ctrl.opcode
        if opcode == WqeOp.NOP:
            return 0
        if opcode == WqeOp.UMR:
            self._count(WqeOp.UMR)
            self._umr(qp, wqe)
            return 0
        if opcode not in _CARRIED or qp.type == QpType.REG_UMR:
            raise _Failed(Syndrome.LOCAL_QP_OPERATION)
        op = WqeOp(opcode)
        if wqe.size_bytes > MAX_MESSAGE_BYTES:
            raise _Failed(Syndrome.LOCAL_LENGTH)
        if is_datagram(qp):
            self._send_datagram(qp, wqe, op)
            return 0
        if op is WqeOp.READ:
            self._read(qp, wqe)
            return wqe.size_bytes
        if op in _READS:
            self._atomic(qp, wqe, op)
            return _ATOMIC_BYTES
        if op in (WqeOp.WRITE, WqeOp.WRITE_IMM):
            self._write(qp, wqe, op)
        else:
            data = self._gather(wqe.data, qp)
            self._exchange(qp, self._packet(qp, wqe, op, data, len(data)))
        self._count(op)
        counters = self._function.port.counters
        counters.transmit_packets += 1
        counters.transmit_octets += wqe.size_bytes
        return 0

    def _count(self, op: WqeOp) -> None:
        self._function.oracle.wqes[op.name] += 1

    # Local memory

    def _spans(self, qp: QueuePair, sge: Sge, access: Access, kind: PageFaultType) -> list[Span]:
        try:
            return self._function.mkeys.translate(
                sge.key, sge.address, sge.size_bytes, access, qp.accessor
            )
        except Refused as refused:
            note_refusal(self._function, qp, refused)
            if refused.page_missing and qp.fault_tries < MAX_FAULT_TRIES:
                fault = self._function.faults.ask_local(kind, qp.number, qp.send_index)
                if fault is not None:
                    qp.fault_tries += 1
                    self._wait_for_page(qp, fault, Syndrome.LOCAL_PROTECTION)
            raise _Failed(Syndrome.LOCAL_PROTECTION) from refused

    def _gather(self, pieces: Iterable[Sge | bytes], qp: QueuePair) -> bytes:
        parts = []
        for piece in pieces:
            if isinstance(piece, bytes):
                parts.append(piece)
                continue
            spans = self._spans(qp, piece, Access.LOCAL_READ, PageFaultType.REQUESTER_WRITE)
            cause = Cause(StrayKind.DATA, piece.key, qp.number, qp.send_index)
            parts.append(read_spans(self._function, spans, cause))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _scatter(self, pieces: Iterable[Sge | bytes], qp: QueuePair, data: bytes) -> None:
        done = 0
        for sge in pieces:
            if isinstance(sge, bytes):
                raise _Failed(Syndrome.LOCAL_QP_OPERATION)
            spans = self._spans(qp, sge, Access.LOCAL_WRITE, PageFaultType.REQUESTER_READ)
            part = data[done : done + sge.size_bytes]
            cause = Cause(StrayKind.DATA, sge.key, qp.number, qp.send_index)
            write_spans(self._function, spans, part, cause)
            done += len(part)

    # Messages

    def _packet(
        self, qp: QueuePair, wqe: SendWqe, op: WqeOp, data: bytes, size: int, start: int = 0
    ) -> Packet:
        remote = wqe.remote
        if remote is not None and start:
            remote = Remote(remote.address + start, remote.key)
        return Packet(
            op,
            self._function,
            qp,
            data,
            size,
            max(size, wqe.size_bytes),
            wqe.ctrl.imm,
            wqe.ctrl.solicited,
            remote,
            wqe.atomic,
            wqe.address,
            wqe.xrc_srqn,
        )

    def _write(self, qp: QueuePair, wqe: SendWqe, op: WqeOp) -> None:
        """Move the next piece; only the last carries the immediate value."""
        total = wqe.size_bytes
        start = qp.progress
        size = min(PIECE_BYTES, total - start)
        is_last = start + size == total
        pieces = wqe.data if size == total else window(wqe.data, start, size)
        data = self._gather(pieces, qp)
        packet = self._packet(qp, wqe, op if is_last else WqeOp.WRITE, data, size, start)
        self._exchange(qp, packet)
        self._finish_piece(qp, size, is_last)

    def _read(self, qp: QueuePair, wqe: SendWqe) -> None:
        total = wqe.size_bytes
        start = qp.progress
        size = min(PIECE_BYTES, total - start)
        is_last = start + size == total
        pieces = wqe.data if size == total else window(wqe.data, start, size)
        ack = self._exchange(qp, self._packet(qp, wqe, WqeOp.READ, b"", size, start))
        self._scatter(pieces, qp, ack.data)
        self._finish_piece(qp, size, is_last)
        self._count(WqeOp.READ)

    def _finish_piece(self, qp: QueuePair, size: int, is_last: bool) -> None:
        qp.rnr_tries = qp.transport_tries = qp.fault_tries = 0
        if not is_last:
            qp.progress += size
            self._retry_in(qp, 0)

    def _atomic(self, qp: QueuePair, wqe: SendWqe, op: WqeOp) -> None:
        if wqe.size_bytes != _ATOMIC_BYTES:
            raise _Failed(Syndrome.LOCAL_LENGTH)
        # Local pages must be there before the other side carries it out: it is not repeatable.
        for sge in wqe.data:
            if isinstance(sge, Sge):
                self._spans(qp, sge, Access.LOCAL_WRITE, PageFaultType.REQUESTER_READ)
        ack = self._exchange(qp, self._packet(qp, wqe, op, b"", _ATOMIC_BYTES))
        self._scatter(wqe.data, qp, ack.data)
        self._count(op)

    def _exchange(self, qp: QueuePair, packet: Packet) -> Ack:
        """Deliver a message to the peer; raises when it is not acknowledged now."""
        peer = self._function.fabric.peer_of(self._function, qp)
        reply: Reply = Silence()
        if peer is not None:
            target, other = peer
            reply = target.responder.receive(other, packet)
        if isinstance(reply, Ack):
            return reply
        if qp.type == QpType.UC:
            # Unreliable: the sender never hears of it.
            return Ack()
        if isinstance(reply, Nak):
            raise _Failed(reply.syndrome)
        if isinstance(reply, NotReady):
            self._retry_not_ready(qp, reply)
        if isinstance(reply, Held) and peer is not None:
            self._wait_for_remote_page(qp, peer[1], reply.fault)
        self._retry_silence(qp)
        raise _Waits

    def _retry_not_ready(self, qp: QueuePair, reply: NotReady) -> None:
        if qp.rnr_retry != _FOREVER and qp.rnr_tries >= qp.rnr_retry:
            raise _Failed(Syndrome.RNR_EXCEEDED)
        qp.rnr_tries += 1
        self._retry_in(qp, _RNR_MS[reply.timer_code & 31] / 1000)

    def _retry_silence(self, qp: QueuePair) -> None:
        qp.transport_tries += 1
        if not qp.ack_timeout:
            # No timeout: the message is lost for ever, and with it the queue.
            qp.waiting = True
            raise _Waits
        if qp.transport_tries > qp.retry_count + 1:
            raise _Failed(Syndrome.RETRY_EXCEEDED)
        self._retry_in(qp, 4.096e-6 * (1 << qp.ack_timeout))

    def _retry_in(self, qp: QueuePair, delay_s: float) -> None:
        qp.waiting = True

        def again() -> None:
            qp.waiting = False
            qp.timer = None
            self.run(qp)

        qp.timer = self._function.ctx.call_later(delay_s, qp.guard(again))
        raise _Waits

    def _wait_for_page(self, qp: QueuePair, fault: PageFault, syndrome: Syndrome) -> None:
        qp.waiting = True
        epoch = qp.epoch

        def resolved(error: bool) -> None:
            if qp.epoch != epoch:
                return
            qp.waiting = False
            if error:
                self._complete_error(qp, syndrome, opcode_at_head(qp))
            else:
                self.run(qp)

        fault.then(resolved)
        raise _Waits

    def _wait_for_remote_page(self, qp: QueuePair, peer: QueuePair, fault: PageFault) -> None:
        """The responder's driver maps the page; until then other messages find it busy."""
        qp.waiting = True
        peer.fault_pending = True
        epoch, peer_epoch = qp.epoch, peer.epoch
        target = self._function.fabric.peer_of(self._function, qp)

        def resolved(error: bool) -> None:
            if peer.epoch == peer_epoch:
                peer.fault_pending = False
                if error and target is not None and qp.type != QpType.UC:
                    target[0].queue_event(Event.WQ_ACCESS_ERROR, EventSource.QP, peer.number)
                    target[0].requester.fail_queue(peer)
            if qp.epoch != epoch:
                return
            qp.waiting = False
            if error:
                self._complete_error(qp, Syndrome.REMOTE_ACCESS, opcode_at_head(qp))
            else:
                self.run(qp)

        fault.then(resolved)
        raise _Waits

    def _send_datagram(self, qp: QueuePair, wqe: SendWqe, op: WqeOp) -> None:
        if wqe.address is None or op in _READS or wqe.remote is not None:
            raise _Failed(Syndrome.LOCAL_QP_OPERATION)
        data = self._gather(wqe.data, qp)
        packet = self._packet(qp, wqe, op, data, len(data))
        fabric = self._function.fabric
        for target, other in fabric.datagram_targets(self._function, wqe.address):
            if other is not qp or not _is_multicast(wqe):
                target.responder.receive(other, packet)
        self._count(op)

    # Memory registration

    def _umr(self, qp: QueuePair, wqe: SendWqe) -> None:
        args = wqe.umr
        mkey = self._function.mkeys.keys.get(wqe.ctrl.imm >> 8)
        if args is None or mkey is None:
            raise _Failed(Syndrome.MW_BIND)
        plant = self._pick_umr(qp)
        if plant is not None and plant.mishap is Mishap.DELAY:
            self._delayed.add(qp.number)
            self._retry_in(qp, plant.delay_s)
        if plant is not None and plant.mishap is Mishap.FAIL:
            raise _Failed(Syndrome.MW_BIND)
        verdict = check_umr(mkey, args)
        if verdict is not UmrVerdict.OK:
            what = f"UMR of mkey {mkey.key:#x} by QP {qp.number:#x}: {verdict.value}"
            self._function.oracle.anomaly(self._function.now_ns(), self._function.index, what)
            raise _Failed(Syndrome.MW_BIND)
        table = args.inline_table
        if not table and args.table_bytes and wqe.data:
            table = self._gather(wqe.data, qp)[: args.table_bytes]
        withdrawn = apply_umr(mkey, args, table)
        if withdrawn is not None:
            self._perhaps_go_stale(withdrawn)
        if plant is not None and plant.mishap is Mishap.DROP:
            raise _Silent

    def _pick_umr(self, qp: QueuePair) -> UmrPlant | None:
        if qp.number in self._delayed:
            # It was picked before and its delay is over: no new candidate.
            self._delayed.discard(qp.number)
            return None
        return self._function.saboteur.pick_umr(self._function.index)

    def _perhaps_go_stale(self, withdrawn: Withdrawn) -> None:
        plant = self._function.saboteur.pick_stale(self._function.index)
        if plant is not None:
            self._function.ctx.call_later(
                plant.delay_s, lambda: self._write_stale(withdrawn, plant)
            )

    def _write_stale(self, withdrawn: Withdrawn, plant: StalePlant) -> None:
        """The planted bug: a DMA through a translation that is no longer ours."""
        cause = Cause(StrayKind.DATA, withdrawn.key, planted=True)
        size = max(1, plant.size_bytes)
        pattern = (_STALE_PATTERN * (size // len(_STALE_PATTERN) + 1))[:size]
        for page in withdrawn.pages:
            try:
                self._function.memory.write(page, pattern, cause)
            except DmaError:
                continue

    # Completions

    def _complete(self, qp: QueuePair, wqe: SendWqe, size: int) -> None:
        send = qp.send
        assert send is not None
        function = self._function
        if qp.type != QpType.REG_UMR:
            plant = function.saboteur.pick_completion(function.index, qp.number)
            if plant is not None:
                vendor = plant.vendor_syndrome or VENDOR_SYNDROME[plant.syndrome]
                self._complete_error(qp, plant.syndrome, wqe.ctrl.opcode, vendor)
                return
        index = send.consumer
        send.advance(wqe.ctrl.segments)
        qp.progress = 0
        if not wqe.ctrl.signaled:
            return
        cq = function.cqs.get(qp.send_cqn)
        if cq is None:
            return
        function.oracle.completions["send"] += 1
        cq.post(
            Completion(
                opcode=CqeOp.REQUESTER,
                qpn=qp.number,
                owner_index=qp.user_index,
                wqe_counter=index,
                send_opcode=wqe.ctrl.opcode,
                byte_count=size,
                solicited=wqe.ctrl.solicited,
            )
        )

    def _complete_error(
        self, qp: QueuePair, syndrome: Syndrome, opcode: int, vendor: int | None = None
    ) -> None:
        """End the work request at the head with an error, and the QP with it."""
        send = qp.send
        assert send is not None
        code = VENDOR_SYNDROME[syndrome] if vendor is None else vendor
        self._flusher.post_error(qp, send.consumer, opcode, syndrome, code)
        send.advance(segments_at_head(qp))
        qp.progress = 0
        self.fail_queue(qp)

    def fail_queue(self, qp: QueuePair) -> None:
        """Put the QP into the error state and flush it."""
        self._flusher.fail(qp)


def _is_multicast(wqe: SendWqe) -> bool:
    return wqe.address is not None and wqe.address.qpn == 0xFFFFFF
