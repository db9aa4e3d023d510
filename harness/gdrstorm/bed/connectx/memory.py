"""Guest memory as the function sees it, with the oracle watching.

Every DMA goes through `GuestMemory`; one that reaches no mapping is recorded with what caused it
(mkey, QP, WQE) and how long ago the range was unmapped, and raises DmaError.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from typing import Final

from gdrstorm.bed.connectx.oracle import Oracle, StrayDma, StrayKind
from gdrstorm.bed.vfio_user.device import DeviceContext, DmaError

_UNMAPPED_LIMIT: Final = 4096


@dataclass(frozen=True, slots=True)
class Cause:
    """Why the device touches memory: the mkey and the work request."""

    kind: StrayKind
    mkey: int | None = None
    qpn: int | None = None
    wqe_index: int | None = None
    planted: bool = False


RING: Final = Cause(StrayKind.RING)
MAILBOX: Final = Cause(StrayKind.MAILBOX)


@dataclass(frozen=True, slots=True)
class _Unmapped:
    start: int
    end: int
    at_ns: int


class GuestMemory:
    """DMA of one function."""

    def __init__(self, ctx: DeviceContext, oracle: Oracle, function: int) -> None:
        self._ctx = ctx
        self._oracle = oracle
        self._function = function
        self._unmapped: deque[_Unmapped] = deque(maxlen=_UNMAPPED_LIMIT)
        self._closed = False

    def close(self) -> None:
        """The function was reset or is gone: old timers must not reach the guest any more."""
        self._closed = True

    def read(self, iova: int, size: int, cause: Cause = RING) -> bytes:
        if self._closed:
            raise DmaError(iova, size, "the function is gone")
        try:
            return self._ctx.read_dma(iova, size)
        except DmaError:
            self._record(iova, size, False, cause)
            raise

    def write(self, iova: int, data: bytes | bytearray | memoryview, cause: Cause = RING) -> None:
        if self._closed:
            raise DmaError(iova, len(data), "the function is gone")
        try:
            self._ctx.write_dma(iova, data)
        except DmaError:
            self._record(iova, len(data), True, cause)
            raise

    def read_u32(self, iova: int) -> int:
        """One big-endian word, as doorbell records are."""
        return int.from_bytes(self.read(iova, 4), "big")

    def note_unmapped(self, iova: int, size: int) -> None:
        self._unmapped.append(_Unmapped(iova, iova + size, self._ctx.now_ns()))

    def _record(self, iova: int, size: int, write: bool, cause: Cause) -> None:
        now = self._ctx.now_ns()
        since = next(
            (
                now - u.at_ns
                for u in reversed(self._unmapped)
                if u.start < iova + size and iova < u.end
            ),
            None,
        )
        self._oracle.stray(
            StrayDma(
                at_ns=now,
                function=self._function,
                kind=cause.kind,
                write=write,
                iova=iova,
                size_bytes=size,
                mkey=cause.mkey,
                qpn=cause.qpn,
                wqe_index=cause.wqe_index,
                unmapped_ago_ns=since,
                planted=cause.planted,
            )
        )


class PagedBuffer:
    """A buffer that the driver gave as a list of pages: rings of queues.

    `offset` is the start of the ring in the first page. Accesses wrap at `size_bytes`.
    """

    __slots__ = ("_memory", "_offset", "_page_mask", "_page_shift", "_pages", "size_bytes")

    def __init__(
        self,
        memory: GuestMemory,
        pages: tuple[int, ...],
        page_shift: int,
        offset: int,
        size_bytes: int,
    ) -> None:
        self._memory = memory
        self._pages = pages
        self._page_shift = page_shift
        self._page_mask = (1 << page_shift) - 1
        self._offset = offset
        self.size_bytes = size_bytes

    @staticmethod
    def needed_pages(page_shift: int, offset: int, size_bytes: int) -> int:
        return offset + size_bytes + (1 << page_shift) - 1 >> page_shift

    def _pieces(self, position: int, size: int) -> list[tuple[int, int]]:
        """(address, length) of each part of a range that may cross pages and the ring's end."""
        pieces = []
        while size > 0:
            position %= self.size_bytes
            place = position + self._offset
            inside = place & self._page_mask
            length = min(size, self._page_mask + 1 - inside, self.size_bytes - position)
            pieces.append((self._pages[place >> self._page_shift] + inside, length))
            position += length
            size -= length
        return pieces

    def read(self, position: int, size: int) -> bytes:
        """Bytes from `position`; at most one whole ring. Raises DmaError."""
        size = min(size, self.size_bytes)
        if size <= 0:
            return b""
        place = position % self.size_bytes + self._offset
        inside = place & self._page_mask
        if inside + size <= self._page_mask + 1 and place - self._offset + size <= self.size_bytes:
            return self._memory.read(self._pages[place >> self._page_shift] + inside, size)
        return b"".join(
            self._memory.read(at, length) for at, length in self._pieces(position, size)
        )

    def read_ahead(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`, as far as one page and the ring go. DmaError."""
        position %= self.size_bytes
        place = position + self._offset
        inside = place & self._page_mask
        size = min(size, self._page_mask + 1 - inside, self.size_bytes - position)
        return self._memory.read(self._pages[place >> self._page_shift] + inside, size)

    def write(self, position: int, data: bytes | bytearray) -> None:
        """Store an element of a ring. Raises DmaError."""
        done = 0
        for at, length in self._pieces(position, len(data)):
            self._memory.write(at, data[done : done + length])
            done += length


def unpack_pages(raw: bytes | memoryview) -> tuple[int, ...]:
    """Page addresses from a command's `pas` array: big-endian, low bits are flags."""
    count = len(raw) // 8
    return tuple(address & ~0xFFF for address in struct.unpack_from(f">{count}Q", raw))
