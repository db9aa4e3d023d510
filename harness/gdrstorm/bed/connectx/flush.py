"""Queue pairs in the error state: everything posted, then and later, is completed as flushed.

Receives posted after the error ring no doorbell, so failed QPs are looked at: at first often, then
rarely, and not at all when none is left.
"""

from __future__ import annotations

from typing import Final

from gdrstorm.bed.connectx.cq import ErrorCompletion
from gdrstorm.bed.connectx.function import Function
from gdrstorm.bed.connectx.prm import (
    VENDOR_SYNDROME,
    CqeOp,
    Event,
    EventSource,
    QpState,
    QpType,
    Syndrome,
)
from gdrstorm.bed.connectx.qp import QueuePair
from gdrstorm.bed.vfio_user.device import DmaError

_FIRST_LOOK_S: Final = 0.002
_LAST_LOOK_S: Final = 0.1


def opcode_at_head(qp: QueuePair) -> int:
    """Operation of the work request at the head, for the entry that reports its error."""
    try:
        return qp.send.read()[3] if qp.send is not None else 0
    except DmaError:
        return 0


def segments_at_head(qp: QueuePair) -> int:
    """Its size, which says where the next one is."""
    try:
        return qp.send.read()[7] & 0x3F if qp.send is not None else 1
    except DmaError:
        return 1


class Flusher:
    """Fails and flushes the QPs of one function."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._failed: set[int] = set()
        self._delay_s = 0.0

    def post_error(
        self, qp: QueuePair, index: int, opcode: int, syndrome: Syndrome, vendor: int
    ) -> None:
        self._function.oracle.completions[f"send:{syndrome.name}"] += 1
        cq = self._function.cqs.get(qp.send_cqn)
        if cq is not None:
            cq.post(
                ErrorCompletion(
                    CqeOp.REQUESTER_ERROR,
                    qp.number,
                    qp.user_index,
                    index,
                    opcode,
                    syndrome,
                    vendor,
                )
            )

    def fail(self, qp: QueuePair) -> None:
        """Put the QP into the error state and flush it; legal when it is there already."""
        if qp.state is not QpState.ERROR:
            qp.enter(QpState.ERROR)
        if not qp.failed:
            qp.failed = True
            if qp.srqn and qp.type != QpType.XRC:
                self._function.queue_event(Event.LAST_WQE, EventSource.QP, qp.number)
        self.flush(qp)
        self._watch_failed(qp)

    def flush(self, qp: QueuePair) -> None:
        """Complete everything posted with a flush error."""
        if qp.send is not None:
            try:
                qp.send.refresh()
            except DmaError:
                return
            self.flush_send(qp)
        self._flush_receive(qp)

    def flush_send(self, qp: QueuePair) -> None:
        send = qp.send
        assert send is not None
        vendor = VENDOR_SYNDROME[Syndrome.FLUSHED]
        for _ in range(send.blocks):
            if not send.pending:
                return
            opcode = opcode_at_head(qp)
            self.post_error(qp, send.consumer, opcode, Syndrome.FLUSHED, vendor)
            send.advance(segments_at_head(qp))
        send.consumer = send.producer

    def _flush_receive(self, qp: QueuePair) -> None:
        receive = qp.receive
        cq = self._function.cqs.get(qp.receive_cqn)
        if receive is None or cq is None or qp.srqn:
            return
        try:
            pending = receive.pending()
        except DmaError:
            return
        for _ in range(pending):
            entry = ErrorCompletion(
                CqeOp.RESPONDER_ERROR,
                qp.number,
                qp.user_index,
                receive.consumer,
                0,
                Syndrome.FLUSHED,
                VENDOR_SYNDROME[Syndrome.FLUSHED],
            )
            receive.consume()
            self._function.oracle.completions["receive:FLUSHED"] += 1
            cq.post(entry)

    def _watch_failed(self, qp: QueuePair) -> None:
        if qp.receive is None:
            return
        idle = not self._failed
        self._failed.add(qp.number)
        self._delay_s = _FIRST_LOOK_S
        if idle:
            self._function.ctx.call_later(self._delay_s, self._look_at_failed)

    def _look_at_failed(self) -> None:
        if self._function.is_dead:
            self._failed.clear()
            return
        for number in list(self._failed):
            qp = self._function.qps.get(number)
            if qp is None or qp.state is not QpState.ERROR:
                self._failed.discard(number)
            else:
                self._flush_receive(qp)
        if self._failed:
            self._delay_s = min(self._delay_s * 2, _LAST_LOOK_S)
            self._function.ctx.call_later(self._delay_s, self._look_at_failed)
