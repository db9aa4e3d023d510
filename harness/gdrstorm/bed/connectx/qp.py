"""Queue pairs: their context, state machine and rings.

A modify command names a transition and carries a whole context, of which only the fields that the
transition requires and those of its optional-parameter mask count (mlx5 driver, qp.c). What the QP
does with its work requests is in requester and responder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gdrstorm.bed.connectx.fields import Field
from gdrstorm.bed.connectx.layouts import AdsLayout, QpcLayout
from gdrstorm.bed.connectx.memory import GuestMemory, PagedBuffer
from gdrstorm.bed.connectx.mkey import Accessor
from gdrstorm.bed.connectx.prm import (
    PAGE_SHIFT,
    SEGMENT_BYTES,
    WQE_BB_BYTES,
    Op,
    QpState,
    QpType,
    RqType,
)
from gdrstorm.bed.connectx.wqe import Sge, parse_receive
from gdrstorm.bed.vfio_user.device import Timer

_COUNTER_MASK: Final = 0xFFFF
_READ_AHEAD_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class Transition:
    """One modify command: states it may start in, where it ends, fields it must take."""

    start: frozenset[QpState]
    end: QpState
    required: tuple[Field, ...] = ()
    takes_path: bool = False


_ALL: Final = frozenset(QpState)
_ACCESS: Final = (QpcLayout.rre, QpcLayout.rwe, QpcLayout.rae)

TRANSITIONS: Final[dict[Op, Transition]] = {
    # The driver creates its registration QP without a PD and names it only here.
    Op.RST2INIT_QP: Transition(
        frozenset({QpState.RESET}),
        QpState.INIT,
        (QpcLayout.pd, QpcLayout.pm_state, QpcLayout.q_key, QpcLayout.counter_set_id, *_ACCESS),
        takes_path=True,
    ),
    Op.INIT2INIT_QP: Transition(frozenset({QpState.INIT}), QpState.INIT),
    Op.INIT2RTR_QP: Transition(
        frozenset({QpState.INIT}),
        QpState.RTR,
        (
            QpcLayout.mtu,
            QpcLayout.log_msg_max,
            QpcLayout.remote_qpn,
            QpcLayout.next_rcv_psn,
            QpcLayout.log_rra_max,
            QpcLayout.min_rnr_nak,
        ),
        takes_path=True,
    ),
    Op.RTR2RTS_QP: Transition(
        frozenset({QpState.RTR}),
        QpState.RTS,
        (
            QpcLayout.next_send_psn,
            QpcLayout.log_sra_max,
            QpcLayout.retry_count,
            QpcLayout.rnr_retry,
        ),
    ),
    Op.RTS2RTS_QP: Transition(frozenset({QpState.RTS}), QpState.RTS),
    Op.SQERR2RTS_QP: Transition(frozenset({QpState.SQ_ERROR}), QpState.RTS),
    Op.SQD_RTS_QP: Transition(frozenset({QpState.SQ_DRAINED, QpState.SQ_DRAINING}), QpState.RTS),
    Op.QP_2ERR: Transition(_ALL, QpState.ERROR),
    Op.QP_2RST: Transition(_ALL, QpState.RESET),
}

# Bits of opt_param_mask (MLX5_QP_OPTPAR_*) and the fields they bring.
OPTIONAL: Final[tuple[tuple[int, Field], ...]] = (
    (1 << 1, QpcLayout.rre),
    (1 << 2, QpcLayout.rae),
    (1 << 3, QpcLayout.rwe),
    (1 << 5, QpcLayout.q_key),
    (1 << 6, QpcLayout.min_rnr_nak),
    (1 << 8, QpcLayout.log_sra_max),
    (1 << 9, QpcLayout.log_rra_max),
    (1 << 10, QpcLayout.pm_state),
    (1 << 12, QpcLayout.retry_count),
    (1 << 13, QpcLayout.rnr_retry),
    (1 << 18, QpcLayout.srqn_rmpn_xrqn),
    (1 << 19, QpcLayout.cqn_rcv),
    (1 << 25, QpcLayout.counter_set_id),
)
_OPT_PKEY: Final = 1 << 4
_OPT_PATH: Final = 1 << 7
_OPT_TIMEOUT: Final = 1 << 14
_OPT_PORT: Final = 1 << 16


class SendRing:
    """The send queue's ring, in basic blocks of 64 bytes."""

    def __init__(self, buffer: PagedBuffer, doorbell_record: int, memory: GuestMemory) -> None:
        self.buffer = buffer
        self.blocks = buffer.size_bytes // WQE_BB_BYTES
        self._doorbell_record = doorbell_record
        self._memory = memory
        self.consumer = 0
        self.producer = 0

    def refresh(self) -> None:
        """Read how far the driver has posted. DmaError."""
        self.producer = self._memory.read_u32(self._doorbell_record) & _COUNTER_MASK

    @property
    def pending(self) -> int:
        """Blocks posted and not yet done; more than the ring holds is a broken doorbell."""
        return self.producer - self.consumer & _COUNTER_MASK

    def read(self) -> bytes:
        """The whole WQE at the consumer. DmaError."""
        at = self.consumer % self.blocks * WQE_BB_BYTES
        # Most requests fit into this, so that one access is enough.
        raw = self.buffer.read_ahead(at, _READ_AHEAD_BYTES)
        segments = raw[7] & 0x3F
        if segments * SEGMENT_BYTES > len(raw):
            raw = self.buffer.read(at, segments * SEGMENT_BYTES)
        return raw

    def advance(self, segments: int) -> None:
        blocks = max(1, (segments * SEGMENT_BYTES + WQE_BB_BYTES - 1) // WQE_BB_BYTES)
        self.consumer = self.consumer + min(blocks, self.pending or 1) & _COUNTER_MASK

    def reset(self) -> None:
        self.consumer = self.producer = 0


class ReceiveRing:
    """A QP's own receive queue."""

    def __init__(
        self, buffer: PagedBuffer, stride: int, doorbell_record: int, memory: GuestMemory
    ) -> None:
        self._buffer = buffer
        self.stride = stride
        self.entries = buffer.size_bytes // stride
        self._doorbell_record = doorbell_record
        self._memory = memory
        self.consumer = 0

    def pending(self) -> int:
        """Receives posted and not used. DmaError."""
        posted = self._memory.read_u32(self._doorbell_record) & _COUNTER_MASK
        return min(posted - self.consumer & _COUNTER_MASK, self.entries)

    def peek(self, terminate_lkey: int) -> tuple[int, tuple[Sge, ...]] | None:
        """Index and scatter list of the next receive, None when there is none. DmaError."""
        if not self.pending():
            return None
        raw = self._buffer.read(self.consumer % self.entries * self.stride, self.stride)
        return self.consumer, parse_receive(raw, terminate_lkey)

    def consume(self) -> None:
        self.consumer = self.consumer + 1 & _COUNTER_MASK

    def reset(self) -> None:
        self.consumer = 0


@dataclass(frozen=True, slots=True)
class Path:
    """Where a connected QP sends: parts of the address path that route a packet."""

    lid: int
    gid: bytes
    mac: bytes
    has_grh: bool
    gid_index: int


class QueuePair:
    """One QP. `epoch` changes whenever old timers and page faults must not touch it any more."""

    def __init__(
        self,
        number: int,
        context: bytearray,
        send: SendRing | None,
        receive: ReceiveRing | None,
    ) -> None:
        self.number = number
        self.context = context
        self.send = send
        self.receive = receive
        self.state = QpState.RESET
        self.epoch = 0
        self.waiting = False
        self.timer: Timer | None = None
        self.rnr_tries = 0
        self.transport_tries = 0
        self.fault_tries = 0
        # Bytes that the message at the head has moved: long ones go piece by piece.
        self.progress = 0
        self.established = False
        # Whether the driver was told of the error state.
        self.failed = False
        # A message that met a missing page keeps its receive until the page comes.
        self.fault_pending = False
        self.refresh()

    def refresh(self) -> None:
        """Cache what the fast path reads from the context."""
        context = self.context
        self.type = QpcLayout.st.get(context)
        self.pd = QpcLayout.pd.get(context)
        self.send_cqn = QpcLayout.cqn_snd.get(context)
        self.receive_cqn = QpcLayout.cqn_rcv.get(context)
        self.user_index = QpcLayout.user_index.get(context)
        self.remote_qpn = QpcLayout.remote_qpn.get(context)
        self.q_key = QpcLayout.q_key.get(context)
        self.xrcd = QpcLayout.xrcd.get(context)
        self.rnr_retry = QpcLayout.rnr_retry.get(context)
        self.retry_count = QpcLayout.retry_count.get(context)
        self.min_rnr_nak = QpcLayout.min_rnr_nak.get(context)
        self.allows_read = bool(QpcLayout.rre.get(context))
        self.allows_write = bool(QpcLayout.rwe.get(context))
        self.allows_atomic = bool(QpcLayout.rae.get(context))
        uses_srq = QpcLayout.rq_type.get(context) == RqType.SRQ
        self.srqn = QpcLayout.srqn_rmpn_xrqn.get(context) if uses_srq else 0
        path = QpcLayout.primary_address_path.bytes_of(context)
        self.ack_timeout = AdsLayout.ack_timeout.get(path)
        self.path = Path(
            lid=AdsLayout.rlid.get(path),
            gid=AdsLayout.rgid_rip.bytes_of(path),
            mac=path[AdsLayout.rmac_47_32.byte :][:6],
            has_grh=bool(AdsLayout.grh.get(path)),
            gid_index=AdsLayout.src_addr_index.get(path),
        )
        self.accessor = Accessor(self.pd, self.number, bool(QpcLayout.rlky.get(context)))

    @property
    def wire_qpn(self) -> int:
        """The number that the other side sees: the general services QP is always 1."""
        return 1 if self.type == QpType.QP1 else self.number

    @property
    def send_index(self) -> int:
        """Index of the work request that is being carried out."""
        return self.send.consumer if self.send is not None else 0

    @property
    def is_connected(self) -> bool:
        return self.type in (QpType.RC, QpType.UC, QpType.XRC)

    @property
    def can_receive(self) -> bool:
        return self.state in (QpState.RTR, QpState.RTS, QpState.SQ_DRAINED, QpState.SQ_ERROR)

    def modify(self, op: Op, mask: int, new: bytes | bytearray) -> bool:
        """Take a modify command; False when the QP is in the wrong state for it."""
        transition = TRANSITIONS[op]
        if self.state not in transition.start:
            return False
        for field in transition.required:
            field.put(self.context, field.get(new))
        for bit, field in OPTIONAL:
            if mask & bit:
                field.put(self.context, field.get(new))
        self._take_path(op, transition, mask, new)
        self.enter(transition.end)
        self.refresh()
        return True

    def _take_path(self, op: Op, transition: Transition, mask: int, new: bytes | bytearray) -> None:
        old = bytearray(QpcLayout.primary_address_path.bytes_of(self.context))
        path = bytearray(QpcLayout.primary_address_path.bytes_of(new))
        if transition.takes_path or mask & _OPT_PATH:
            fresh = bytearray(path)
            if op is not Op.RST2INIT_QP and not mask & _OPT_PKEY:
                AdsLayout.pkey_index.put(fresh, AdsLayout.pkey_index.get(old))
            if not AdsLayout.vhca_port_num.get(fresh):
                AdsLayout.vhca_port_num.put(fresh, AdsLayout.vhca_port_num.get(old))
            old = fresh
        if mask & _OPT_PKEY:
            AdsLayout.pkey_index.put(old, AdsLayout.pkey_index.get(path))
        if mask & _OPT_PORT:
            AdsLayout.vhca_port_num.put(old, AdsLayout.vhca_port_num.get(path))
        if op is Op.RTR2RTS_QP or mask & _OPT_TIMEOUT:
            AdsLayout.ack_timeout.put(old, AdsLayout.ack_timeout.get(path))
        QpcLayout.primary_address_path.put_bytes(self.context, bytes(old))

    def enter(self, state: QpState) -> None:
        """Change state; leaving RTS cancels what waits."""
        self.state = state
        QpcLayout.state.put(self.context, state)
        if state in (QpState.RESET, QpState.ERROR):
            self.cancel()
        if state is QpState.RESET:
            self.established = self.failed = False
            if self.send is not None:
                self.send.reset()
            if self.receive is not None:
                self.receive.reset()

    def cancel(self) -> None:
        """Nothing that was scheduled for this QP may happen any more."""
        self.epoch += 1
        self.waiting = False
        self.fault_pending = False
        self.rnr_tries = self.transport_tries = self.fault_tries = self.progress = 0
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def guard(self, action: Callable[[], None]) -> Callable[[], None]:
        """`action`, unless the QP was reset, destroyed or failed in the meantime."""
        epoch = self.epoch

        def run() -> None:
            if self.epoch == epoch:
                action()

        return run


def ring_geometry(context: bytes | bytearray) -> tuple[int, int, int, int, int]:
    """(page shift, offset, receive bytes, receive stride, send bytes) of a QP context."""
    shift = QpcLayout.log_page_size.get(context) + PAGE_SHIFT
    # page_offset counts 64ths of a page, whatever the page's size.
    offset = QpcLayout.page_offset.get(context) << shift >> 6
    stride = SEGMENT_BYTES << QpcLayout.log_rq_stride.get(context)
    has_rq = QpcLayout.rq_type.get(context) == RqType.REGULAR
    receive = stride << QpcLayout.log_rq_size.get(context) if has_rq else 0
    has_sq = not QpcLayout.no_sq.get(context)
    send = WQE_BB_BYTES << QpcLayout.log_sq_size.get(context) if has_sq else 0
    return shift, offset, receive, stride, send
