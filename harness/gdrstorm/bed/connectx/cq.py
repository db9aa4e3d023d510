"""Completion queues: entries with an owner bit, arming, overrun and resize.

Entry formats (mlx5_cqe64, mlx5_err_cqe) from include/linux/mlx5/device.h. A CQ never knows which
QP fills it; the QP says what goes into an entry.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gdrstorm.bed.connectx.memory import GuestMemory, PagedBuffer
from gdrstorm.bed.connectx.prm import CQE_BYTES, CqeOp, Syndrome
from gdrstorm.bed.vfio_user.device import DmaError

_COUNTER_MASK: Final = 0xFFFFFF
_ARM_SOLICITED: Final = 1 << 24
# hash type, ml_path, checksum, slid, flags_rqpn, l4/l3, vlan, srqn, imm, byte_cnt, timestamp, qpn, counter
_GOOD: Final = struct.Struct(">16xBB2xHHIBBHII4xIQIHBB")
_BAD: Final = struct.Struct(">32xI18xBBIHBB")


@dataclass(frozen=True, slots=True)
class Completion:
    """What one work request came to. `owner_index` is the QP's (or SRQ's) user index."""

    opcode: CqeOp
    qpn: int
    owner_index: int
    wqe_counter: int
    send_opcode: int = 0
    byte_count: int = 0
    imm: int = 0
    remote_qpn: int = 0
    flags: int = 0
    slid: int = 0
    solicited: bool = False
    l4_l3_type: int = 0
    checksum_flags: int = 0
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class ErrorCompletion:
    opcode: CqeOp
    qpn: int
    owner_index: int
    wqe_counter: int
    send_opcode: int
    syndrome: Syndrome
    vendor_syndrome: int


def pack_completion(entry: Completion, timestamp: int, owner: int) -> bytes:
    return _GOOD.pack(
        0,
        0,
        entry.checksum,
        entry.slid,
        entry.flags << 24 | entry.remote_qpn & 0xFFFFFF,
        entry.checksum_flags,
        entry.l4_l3_type,
        0,
        entry.owner_index,
        entry.imm,
        entry.byte_count & 0xFFFFFFFF,
        timestamp & (1 << 64) - 1,
        entry.send_opcode << 24 | entry.qpn,
        entry.wqe_counter & 0xFFFF,
        0,
        entry.opcode << 4 | owner,
    )


def pack_error(entry: ErrorCompletion, owner: int) -> bytes:
    return _BAD.pack(
        entry.owner_index,
        entry.vendor_syndrome & 0xFF,
        entry.syndrome,
        entry.send_opcode << 24 | entry.qpn,
        entry.wqe_counter & 0xFFFF,
        0,
        entry.opcode << 4 | owner,
    )


class CompletionQueue:
    """One CQ. `notify` tells its event queue; `on_overrun` reports the error event."""

    def __init__(
        self,
        number: int,
        context: bytearray,
        log_size: int,
        entry_bytes: int,
        eqn: int,
        doorbell_record: int,
        ignore_overrun: bool,
        buffer: PagedBuffer,
        memory: GuestMemory,
        notify: Callable[[int, int], None],
        on_overrun: Callable[[CompletionQueue], None],
        now_ns: Callable[[], int],
    ) -> None:
        self.number = number
        self.context = context
        self.log_size = log_size
        self.entry_bytes = entry_bytes
        self.eqn = eqn
        self._doorbell_record = doorbell_record
        self._ignore_overrun = ignore_overrun
        self._buffer = buffer
        self._memory = memory
        self._notify = notify
        self._on_overrun = on_overrun
        self._now_ns = now_ns
        self.producer = 0
        self._consumer = 0
        self._armed = False
        self._armed_solicited = False
        self._last_solicited = 0
        self.failed = False

    def post(self, entry: Completion | ErrorCompletion) -> bool:
        """Write one entry and notify if armed; False when the CQ is in error."""
        if self.failed or not self._has_room():
            return False
        owner = self.producer >> self.log_size & 1
        if isinstance(entry, Completion):
            raw = pack_completion(entry, self._now_ns(), owner)
            solicited = entry.solicited
        else:
            raw = pack_error(entry, owner)
            solicited = True
        try:
            self._store(raw)
        except DmaError:
            return False
        self.producer = self.producer + 1 & _COUNTER_MASK
        if solicited:
            self._last_solicited = self.producer
        if self._armed or (solicited and self._armed_solicited):
            self._fire()
        return True

    def _store(self, raw: bytes) -> None:
        at = (self.producer & (1 << self.log_size) - 1) * self.entry_bytes
        # The 64 bytes that software reads are the last of a large entry.
        self._buffer.write(at + self.entry_bytes - CQE_BYTES, raw)

    def _has_room(self) -> bool:
        size = 1 << self.log_size
        if (self.producer - self._consumer & _COUNTER_MASK) < size or self._ignore_overrun:
            return True
        try:
            self._consumer = self._memory.read_u32(self._doorbell_record) & _COUNTER_MASK
        except DmaError:
            return False
        if (self.producer - self._consumer & _COUNTER_MASK) < size:
            return True
        self.failed = True
        self._on_overrun(self)
        return False

    def _fire(self) -> None:
        self._armed = self._armed_solicited = False
        self._notify(self.eqn, self.number)

    def arm(self, doorbell: int) -> None:
        """The driver read up to a counter and asks to be told of the next entry."""
        consumer = doorbell & _COUNTER_MASK
        self._consumer = consumer
        solicited_only = bool(doorbell & _ARM_SOLICITED)
        news = (self._last_solicited if solicited_only else self.producer) - consumer
        # A signed distance: what the driver already read is no news.
        if 0 < (news & _COUNTER_MASK) < 1 << 23:
            self._fire()
        elif solicited_only:
            self._armed_solicited = True
        else:
            self._armed = True

    def unread(self) -> int:
        """Entries that the driver has not taken, by its doorbell record. DmaError."""
        self._consumer = self._memory.read_u32(self._doorbell_record) & _COUNTER_MASK
        return self.producer - self._consumer & _COUNTER_MASK

    def resize(self, log_size: int, entry_bytes: int, buffer: PagedBuffer) -> None:
        """End the old ring with a RESIZE entry and go on in the new one. DmaError."""
        owner = self.producer >> self.log_size & 1
        last = Completion(CqeOp.RESIZE, 0, 0, 0)
        self._store(pack_completion(last, self._now_ns(), owner))
        self.producer = self.producer + 1 & _COUNTER_MASK
        self.log_size = log_size
        self.entry_bytes = entry_bytes
        self._buffer = buffer
