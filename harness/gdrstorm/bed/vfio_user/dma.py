"""Guest memory as the device sees it: DMA ranges to bytes of the client's backing descriptors.

Each backing file is mapped into this process once and kept until the client goes, so that MAP and
UNMAP are bookkeeping only: firmware remaps the same RAM dozens of times. A range without a
descriptor is remembered (it must not overlap others) but cannot be reached.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from gdrstorm.bed.vfio_user.device import DmaError
from gdrstorm.bed.vfio_user.protocol import MAX_DMA_MAPS, DmaFlag, ProtocolError

ADDRESS_END: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class Backing:
    """One file of the client, mapped whole. ``view`` is read-only when the descriptor was."""

    memory: mmap.mmap
    view: memoryview


@dataclass(frozen=True, slots=True)
class Mapping:
    """``[iova, end)`` of the guest; ``base`` is the offset of ``iova`` in the backing file."""

    iova: int
    end: int
    flags: int
    backing: Backing | None
    base: int

    @property
    def size(self) -> int:
        return self.end - self.iova


def _open_backing(fd: int, size: int) -> Backing:
    writable = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    memory = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=protection)
    return Backing(memory, memoryview(memory))


class DmaTable:
    """All ranges of one client, sorted; ranges never overlap."""

    def __init__(self, max_maps: int = MAX_DMA_MAPS) -> None:
        self._max_maps = max_maps
        self._maps: list[Mapping] = []
        self._starts: list[int] = []
        self._backings: dict[tuple[int, int, int], Backing] = {}

    def __len__(self) -> int:
        return len(self._maps)

    @property
    def mappings(self) -> tuple[Mapping, ...]:
        return tuple(self._maps)

    @property
    def backing_count(self) -> int:
        return len(self._backings)

    def map(self, iova: int, size: int, flags: int, fd: int | None, offset: int = 0) -> None:
        """Add a range; ``fd`` stays the caller's. Raises ProtocolError with the reply's errno.

        EEXIST: overlaps a range. EINVAL: empty, beyond 64 bits, or beyond the end of the file.
        ENOSPC: too many ranges.
        """
        end = iova + size
        if size == 0 or end > ADDRESS_END:
            raise ProtocolError(errno.EINVAL, f"DMA_MAP: iova={iova:#x} size={size:#x}")
        if len(self._maps) >= self._max_maps:
            raise ProtocolError(errno.ENOSPC, f"DMA_MAP: more than {self._max_maps} ranges")
        place = bisect_right(self._starts, iova)
        before = place > 0 and self._maps[place - 1].end > iova
        after = place < len(self._maps) and self._starts[place] < end
        if before or after:
            raise ProtocolError(errno.EEXIST, f"DMA_MAP: iova={iova:#x} size={size:#x}")
        backing = None if fd is None else self._backing(fd, offset + size)
        if backing is not None and backing.view.readonly:
            flags &= ~DmaFlag.WRITE
        self._maps.insert(place, Mapping(iova, end, flags, backing, offset))
        self._starts.insert(place, iova)

    def _backing(self, fd: int, needed: int) -> Backing:
        stat = os.fstat(fd)
        if needed > stat.st_size:
            what = f"DMA_MAP: range ends at {needed:#x} of a file of {stat.st_size:#x} bytes"
            raise ProtocolError(errno.EINVAL, what)
        mode = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
        key = (stat.st_dev, stat.st_ino, mode)
        backing = self._backings.get(key)
        if backing is None or len(backing.memory) < needed:
            try:
                backing = _open_backing(fd, stat.st_size)
            except OSError as error:
                raise ProtocolError(error.errno or errno.EIO, "DMA_MAP: mmap") from error
            self._backings[key] = backing
        return backing

    def unmap(self, iova: int, size: int) -> list[Mapping]:
        """Remove all ranges inside ``[iova, iova + size)`` and give them back.

        As the kernel's type 1 IOMMU does, a vIOMMU's unmap of a large area takes what is there,
        perhaps nothing; EINVAL when the area would cut a range in two.
        """
        end = iova + size
        if size == 0 or end > ADDRESS_END:
            raise ProtocolError(errno.EINVAL, f"DMA_UNMAP: iova={iova:#x} size={size:#x}")
        first = bisect_right(self._starts, iova - 1)
        last = bisect_right(self._starts, end - 1)
        cut_first = first > 0 and self._maps[first - 1].end > iova
        cut_last = last > 0 and self._maps[last - 1].end > end
        if cut_first or cut_last:
            what = f"DMA_UNMAP: iova={iova:#x} size={size:#x} cuts a range"
            raise ProtocolError(errno.EINVAL, what)
        removed = self._maps[first:last]
        del self._maps[first:last]
        del self._starts[first:last]
        return removed

    def clear(self) -> list[Mapping]:
        """The client went: forget all ranges and let its memory go."""
        removed, self._maps, self._starts = self._maps, [], []
        backings = list(self._backings.values())
        self._backings.clear()
        for backing in backings:
            backing.view.release()
            try:
                backing.memory.close()
            except BufferError:
                # A view that the device still holds keeps the pages; they go with that view.
                continue
        return removed

    def _find(self, iova: int, size: int, need: int) -> Mapping:
        place = bisect_right(self._starts, iova) - 1
        if place < 0:
            raise DmaError(iova, size)
        mapping = self._maps[place]
        if iova >= mapping.end:
            raise DmaError(iova, size)
        if mapping.backing is None:
            raise DmaError(iova, size, "mapped without a descriptor")
        if not mapping.flags & need:
            raise DmaError(iova, size, "not writeable" if need == DmaFlag.WRITE else "not readable")
        return mapping

    def _pieces(self, iova: int, size: int, need: int) -> list[tuple[Backing, int, int]]:
        """(backing, offset, length) of every part; all found before any is touched."""
        pieces: list[tuple[Backing, int, int]] = []
        while size > 0:
            mapping = self._find(iova, size, need)
            assert mapping.backing is not None
            length = min(size, mapping.end - iova)
            pieces.append((mapping.backing, mapping.base + iova - mapping.iova, length))
            iova += length
            size -= length
        return pieces

    def read(self, iova: int, size: int) -> bytes:
        """Bytes of guest memory. Raises DmaError."""
        if size <= 0:
            return b""
        mapping = self._find(iova, size, DmaFlag.READ)
        if iova + size <= mapping.end:
            assert mapping.backing is not None
            start = mapping.base + iova - mapping.iova
            return mapping.backing.memory[start : start + size]
        pieces = self._pieces(iova, size, DmaFlag.READ)
        return b"".join(backing.memory[start : start + size] for backing, start, size in pieces)

    def write(self, iova: int, data: bytes | bytearray | memoryview) -> None:
        """Write guest memory, all or nothing. Raises DmaError."""
        size = len(data)
        if size == 0:
            return
        mapping = self._find(iova, size, DmaFlag.WRITE)
        if iova + size <= mapping.end:
            assert mapping.backing is not None
            start = mapping.base + iova - mapping.iova
            mapping.backing.memory[start : start + size] = data
            return
        done = 0
        for backing, start, length in self._pieces(iova, size, DmaFlag.WRITE):
            backing.memory[start : start + length] = data[done : done + length]
            done += length

    def view(self, iova: int, size: int) -> memoryview | None:
        """A direct view of a range that one mapping holds, else None; read-only where it is."""
        place = bisect_right(self._starts, iova) - 1
        if place < 0 or size <= 0:
            return None
        mapping = self._maps[place]
        if mapping.backing is None or iova + size > mapping.end:
            return None
        start = mapping.base + iova - mapping.iova
        view = mapping.backing.view[start : start + size]
        return view if mapping.flags & DmaFlag.WRITE else view.toreadonly()
