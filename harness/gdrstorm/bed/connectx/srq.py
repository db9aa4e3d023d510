"""Shared receive queues (RMP and XRC SRQ): a linked list of receive WQEs in a ring of memory.

Each WQE starts with a 16-byte segment that names the next one (struct mlx5_wqe_srq_next_seg); the
doorbell record counts how many were posted. The device follows the list, never the ring order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gdrstorm.bed.connectx.memory import GuestMemory, PagedBuffer
from gdrstorm.bed.connectx.prm import SEGMENT_BYTES
from gdrstorm.bed.connectx.wqe import Sge, parse_receive

_COUNTER_MASK: Final = 0xFFFF


class SharedReceiveQueue:
    """One SRQ. `cqn`, `user_index` and `xrcd` count for XRC only."""

    def __init__(
        self,
        number: int,
        context: bytearray,
        log_size: int,
        log_stride: int,
        pd: int,
        doorbell_record: int,
        buffer: PagedBuffer,
        memory: GuestMemory,
        on_limit: Callable[[int], None],
        cqn: int = 0,
        user_index: int = 0,
        xrcd: int = 0,
    ) -> None:
        self.number = number
        self.context = context
        self.log_size = log_size
        self._stride = 1 << log_stride
        self.pd = pd
        self._doorbell_record = doorbell_record
        self._buffer = buffer
        self._memory = memory
        self._on_limit = on_limit
        self.cqn = cqn
        self.user_index = user_index
        self.xrcd = xrcd
        self.limit = 0
        self._head = 0
        self.consumed = 0

    def peek(self, terminate_lkey: int) -> tuple[int, tuple[Sge, ...]] | None:
        """Index and scatter list of the next receive, None when there is none. DmaError."""
        if self.posted == self.consumed:
            return None
        raw = self._buffer.read(self._head * self._stride, self._stride)
        return self._head, parse_receive(raw[SEGMENT_BYTES:], terminate_lkey)

    @property
    def posted(self) -> int:
        return self._memory.read_u32(self._doorbell_record) & _COUNTER_MASK

    def consume(self) -> None:
        """The receive that `peek` gave is used: go to the one it names. DmaError."""
        raw = self._buffer.read(self._head * self._stride, SEGMENT_BYTES)
        self._head = int.from_bytes(raw[2:4], "big") & (1 << self.log_size) - 1
        self.consumed = self.consumed + 1 & _COUNTER_MASK
        if self.limit and (self.posted - self.consumed & _COUNTER_MASK) < self.limit:
            self.limit = 0
            self._on_limit(self.number)
