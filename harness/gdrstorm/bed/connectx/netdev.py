"""Ethernet send and receive queues: frames within and between functions, nothing else.

A frame is offered to the function that owns its destination MAC, a multicast frame to all others,
and to the sender's own steering outside its transport domain (raw packet loopback). Steering names
the receive queues; one without a buffer drops it. There is no wire and no segmentation.
WQE formats from include/linux/mlx5/qp.h (mlx5_wqe_eth_seg).
"""

from __future__ import annotations

import struct
from typing import Final

from gdrstorm.bed.connectx.checksum import fill_transport_checksum, ones_sum
from gdrstorm.bed.connectx.cq import Completion, ErrorCompletion
from gdrstorm.bed.connectx.function import Function
from gdrstorm.bed.connectx.memory import Cause
from gdrstorm.bed.connectx.mkey import Accessor, Refused
from gdrstorm.bed.connectx.oracle import StrayKind
from gdrstorm.bed.connectx.prm import (
    ANY_PD,
    SEGMENT_BYTES,
    VENDOR_SYNDROME,
    Access,
    CqeOp,
    Syndrome,
    WqeOp,
    WqState,
)
from gdrstorm.bed.connectx.qp import ReceiveRing, SendRing
from gdrstorm.bed.connectx.responder import read_spans, write_spans
from gdrstorm.bed.connectx.wqe import CTRL_BYTES, BadWqe, Ctrl, Sge, parse_ctrl
from gdrstorm.bed.vfio_user.device import DmaError

_BUDGET: Final = 256
_INLINE_SIZE_MASK: Final = 0x3FFF
_MAX_FRAME_BYTES: Final = 16384
_MAC_BYTES: Final = 6
_L4_CHECKSUM: Final = 0x80
_HEADER_BYTES: Final = 14
_CHECKSUMS_GOOD: Final = 0x06


class EthernetSend:
    """A send queue of frames (SQ)."""

    def __init__(
        self, number: int, context: bytearray, cqn: int, tisn: int, ring: SendRing
    ) -> None:
        self.number = number
        self.tisn = tisn
        self.context = context
        self.cqn = cqn
        self.ring = ring
        self.state = WqState.RESET
        self._user_index = int.from_bytes(context[5:8], "big")

    def doorbell(self, function: Function) -> None:
        """The driver posted frames. A frame that cannot be read breaks the queue."""
        try:
            self.ring.refresh()
        except DmaError:
            self.state = WqState.ERROR
            return
        self.run(function)

    def run(self, function: Function) -> None:
        for _ in range(_BUDGET):
            if self.state != WqState.READY or not self.ring.pending:
                return
            if self.ring.pending > self.ring.blocks:
                self.state = WqState.ERROR
                return
            self._step(function)
        function.ctx.call_later(0, lambda: self.run(function))

    def _step(self, function: Function) -> None:
        index = self.ring.consumer
        try:
            raw = self.ring.read()
            ctrl = parse_ctrl(raw)
            if ctrl.opcode == WqeOp.SEND:
                frame = self._frame(function, raw, ctrl)
                deliver(function, frame, self.tisn)
        except (DmaError, BadWqe, Refused):
            self._fail(function, index)
            return
        self.ring.advance(ctrl.segments)
        function.oracle.wqes["FRAME"] += 1
        cq = function.cqs.get(self.cqn)
        if ctrl.signaled and cq is not None:
            cq.post(
                Completion(
                    CqeOp.REQUESTER, self.number, self._user_index, index, send_opcode=ctrl.opcode
                )
            )

    def _frame(self, function: Function, raw: bytes, ctrl: Ctrl) -> bytes:
        end = ctrl.segments * SEGMENT_BYTES
        at = CTRL_BYTES + 12
        if at + 4 > len(raw) or end > len(raw):
            raise BadWqe("frame without an Ethernet segment")
        inline = int.from_bytes(raw[at : at + 2], "big") & _INLINE_SIZE_MASK
        wants_checksum = raw[CTRL_BYTES + 4] & _L4_CHECKSUM
        parts = [raw[at + 2 : at + 2 + inline]]
        # Inline bytes beyond the two in the segment fill further segments.
        at = CTRL_BYTES + SEGMENT_BYTES
        at += (max(0, inline - 2) + SEGMENT_BYTES - 1) // SEGMENT_BYTES * SEGMENT_BYTES
        size = inline
        who = Accessor(ANY_PD, self.number, True)
        while at + SEGMENT_BYTES <= end:
            sge = Sge(*struct.unpack_from(">IIQ", raw, at))
            at += SEGMENT_BYTES
            size += sge.size_bytes
            if size > _MAX_FRAME_BYTES:
                raise BadWqe("frame is too long")
            spans = function.mkeys.translate(
                sge.key, sge.address, sge.size_bytes, Access.LOCAL_READ, who
            )
            parts.append(read_spans(function, spans, Cause(StrayKind.DATA, sge.key, self.number)))
        frame = b"".join(parts)
        return fill_transport_checksum(frame) if wants_checksum else frame

    def _fail(self, function: Function, index: int) -> None:
        self.state = WqState.ERROR
        cq = function.cqs.get(self.cqn)
        if cq is not None:
            syndrome = Syndrome.LOCAL_PROTECTION
            cq.post(
                ErrorCompletion(
                    CqeOp.REQUESTER_ERROR,
                    self.number,
                    self._user_index,
                    index,
                    0,
                    syndrome,
                    VENDOR_SYNDROME[syndrome],
                )
            )


class EthernetReceive:
    """A receive queue of frames (RQ)."""

    def __init__(
        self, number: int, context: bytearray, cqn: int, ring: ReceiveRing, is_linked: bool
    ) -> None:
        self.number = number
        self.context = context
        self.cqn = cqn
        self.ring = ring
        self.is_linked = is_linked
        self.state = WqState.RESET
        self._user_index = int.from_bytes(context[5:8], "big")

    def take(self, function: Function, frame: bytes) -> bool:
        """Put a frame into the next buffer; False when there is none. Raises DmaError, Refused."""
        slot = self.ring.peek(function.mkeys.TERMINATE_LKEY)
        if slot is None:
            return False
        index, sges = slot
        if len(frame) > sum(sge.size_bytes for sge in sges):
            return False
        done = 0
        who = Accessor(ANY_PD, self.number, True)
        for sge in sges:
            part = frame[done : done + sge.size_bytes]
            if not part:
                break
            spans = function.mkeys.translate(
                sge.key, sge.address, len(part), Access.LOCAL_WRITE, who
            )
            write_spans(function, spans, part, Cause(StrayKind.DATA, sge.key, self.number, index))
            done += len(part)
        self.ring.consume()
        cq = function.cqs.get(self.cqn)
        if cq is not None:
            cq.post(
                Completion(
                    CqeOp.RECV_SEND,
                    self.number,
                    self._user_index,
                    index,
                    byte_count=len(frame),
                    checksum_flags=_CHECKSUMS_GOOD,
                    # Of everything behind the Ethernet header.
                    checksum=ones_sum(frame[_HEADER_BYTES:]),
                )
            )
        return True


def deliver(source: Function, frame: bytes, tisn: int) -> int:
    """Give a frame to whom it is addressed; counts the receive queues that took it."""
    target = frame[:_MAC_BYTES]
    if len(frame) < _HEADER_BYTES or not source.port.is_up:
        return 0
    is_multicast = bool(target[0] & 1)
    taken = 0
    for function in source.fabric.functions:
        if not function.port.is_up or function.is_dead:
            continue
        if function is source:
            domain = source.steering.tis_domains.get(tisn)
            if domain is not None:
                taken += _receive(function, frame, domain)
        elif is_multicast or function.port.owns_mac(target):
            taken += _receive(function, frame, None)
    return taken


def _receive(function: Function, frame: bytes, not_domain: int | None) -> int:
    taken = 0
    for number in function.steering.find_queues(frame, not_domain):
        queue = function.rqs.get(number)
        if queue is None or queue.state != WqState.READY or queue.is_linked:
            continue
        try:
            taken += queue.take(function, frame)
        except (DmaError, Refused):
            continue
    function.oracle.wqes["FRAME_RECEIVED"] += taken
    return taken
