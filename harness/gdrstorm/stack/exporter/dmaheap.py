"""Exporter `dmaheap`: buffers of a DMA-BUF heap, `system` unless `device` names another.

ALLOC makes the buffer (its descriptor is the memory), EXPORT gives one more descriptor of it. A
heap buffer is exported whole: a range is refused here with EINVAL, for the kernel has no such call.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path
from typing import Self

from gdrstorm.engine import ExporterBinding
from gdrstorm.errors import CallError, UnavailableError
from gdrstorm.model.stack import StackPart, Support
from gdrstorm.stack.descriptor import Descriptor, open_device
from gdrstorm.stack.exporter import Memory
from gdrstorm.uapi import dma_heap
from gdrstorm.uapi.ioctl import call

DEFAULT_HEAP = "system"
_OPEN_HINTS = {
    errno.ENOENT: f"no such heap; see {dma_heap.DEVICE_DIR}, needs CONFIG_DMABUF_HEAPS_SYSTEM",
    errno.EACCES: "run as root",
}


class HeapMemory(Descriptor):
    """A heap buffer; `fd` is the dma-buf itself."""

    def map(self) -> mmap.mmap:
        """A shared, writable CPU mapping of all of it; the caller closes it."""
        return mmap.mmap(self.fd, self.size_bytes)


class DmaHeapExporter:
    """One heap, open."""

    name = "dmaheap"

    def __init__(self, node: Descriptor, heap: str) -> None:
        self._node = node
        self._heap = heap

    @classmethod
    def probe(cls, device: str | None = None) -> Support:
        path = heap_path(device)
        if not Path(path).exists():
            return Support(False, f"no {path}")
        if not os.access(path, os.R_OK):
            return Support(False, f"no permission for {path}")
        return Support(True)

    @classmethod
    def open(cls, device: str | None = None) -> Self:
        try:
            # Heap nodes are often 0444 and need no write access.
            node = open_device(heap_path(device), os.O_RDONLY, _OPEN_HINTS)
        except CallError as error:
            raise UnavailableError(error.message, error.hint) from error
        return cls(node, device or DEFAULT_HEAP)

    def describe(self) -> StackPart:
        return StackPart(
            name=self.name,
            device=self._heap,
            driver=f"{self._heap} heap",
            version=os.uname().release,
            details={"memory": "system RAM (heap)"},
        )

    def alloc(self, size_bytes: int) -> HeapMemory:
        argument = dma_heap.DmaHeapAllocationData(size_bytes, 0, os.O_RDWR | os.O_CLOEXEC, 0)
        act = f"cannot allocate from heap: {self._heap} size={size_bytes}"
        call(act, self._node.fd, dma_heap.IOCTL_ALLOC, argument)
        return HeapMemory(argument.fd, size_bytes)

    def export(self, memory: Memory, offset_bytes: int, size_bytes: int) -> Descriptor:
        assert isinstance(memory, HeapMemory)
        act = f"cannot export heap buffer: {self._heap} offset={offset_bytes} size={size_bytes}"
        if offset_bytes != 0 or size_bytes != memory.size_bytes:
            raise CallError(act, errno.EINVAL, "a heap buffer is exported whole")
        try:
            fd = fcntl.fcntl(memory.fd, fcntl.F_DUPFD_CLOEXEC, 0)
        except OSError as error:
            raise CallError(act, error.errno or 0) from error
        return Descriptor(fd, size_bytes)

    def binding(self) -> ExporterBinding:
        return ExporterBinding(backend="dmaheap", fds=(self._node.fd,))

    def close(self) -> None:
        self._node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def heap_path(device: str | None) -> str:
    """Device node of a heap name. Raises UnavailableError for a name that is a path."""
    heap = device or DEFAULT_HEAP
    if "/" in heap:
        raise UnavailableError(f"no heap name: {heap!r}", f"give a name of {dma_heap.DEVICE_DIR}")
    return f"{dma_heap.DEVICE_DIR}/{heap}"
