"""Exporter `fake`: memfds in place of dma-bufs, with planted failures (see plant.py).

It keeps the same rules as the real ones: ranges are whole pages inside the memory, exported buffers
outlive their memory. `device` is the text of the planted failures.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from typing import Self

from gdrstorm.engine import ExporterBinding
from gdrstorm.errors import CallError
from gdrstorm.model.op import Op
from gdrstorm.model.stack import StackPart, Support
from gdrstorm.stack.descriptor import Descriptor
from gdrstorm.stack.exporter import Memory
from gdrstorm.stack.plant import BUFFER_NAME, Planter, parse_plants

_PAGE = 4096


class FakeMemory(Descriptor):
    """A memfd whose FREE may be planted to fail: then it is still there."""

    def __init__(self, fd: int, size_bytes: int, planter: Planter) -> None:
        super().__init__(fd, size_bytes)
        self._planter = planter

    def map(self) -> mmap.mmap:
        """A shared, writable CPU mapping of all of it; the caller closes it."""
        return mmap.mmap(self.fd, self.size_bytes)

    def close(self) -> None:
        if self.fd >= 0:
            self._planter.call(Op.FREE, "cannot free fake memory")
        super().close()


class FakeBuf(Descriptor):
    """A second descriptor of the memory; a planted CLOSE closes it all the same, as close(2)."""

    def __init__(self, fd: int, size_bytes: int, planter: Planter) -> None:
        super().__init__(fd, size_bytes)
        self._planter = planter

    def close(self) -> None:
        was_open = self.fd >= 0
        super().close()
        if was_open:
            self._planter.call(Op.CLOSE, "cannot close fake buffer")


class FakeExporter:
    """Always there. A device that is no planted failure is wrong use."""

    name = "fake"

    def __init__(self, device: str) -> None:
        self._device = device
        self._planter = Planter(parse_plants(device))

    @classmethod
    def probe(cls, device: str | None = None) -> Support:
        parse_plants(device or "")  # what cannot be planted is refused before the run
        return Support(True)

    @classmethod
    def open(cls, device: str | None = None) -> Self:
        return cls(device or "")

    def describe(self) -> StackPart:
        return StackPart(name=self.name, device=self._device, driver="fake", emulated=True)

    def alloc(self, size_bytes: int) -> FakeMemory:
        act = f"cannot allocate fake memory: size={size_bytes}"
        self._planter.call(Op.ALLOC, act)
        if size_bytes <= 0 or size_bytes % _PAGE:
            raise CallError(act, errno.EINVAL)
        fd = os.memfd_create(BUFFER_NAME, os.MFD_CLOEXEC)
        os.ftruncate(fd, size_bytes)
        return FakeMemory(fd, size_bytes, self._planter)

    def export(self, memory: Memory, offset_bytes: int, size_bytes: int) -> FakeBuf:
        assert isinstance(memory, FakeMemory)
        act = f"cannot export fake memory: offset={offset_bytes} size={size_bytes}"
        self._planter.call(Op.EXPORT, act)
        unaligned = (offset_bytes | size_bytes) % _PAGE
        if unaligned or size_bytes <= 0 or not 0 <= offset_bytes <= memory.size_bytes - size_bytes:
            raise CallError(act, errno.EINVAL)
        if memory.fd < 0:
            raise CallError(act, errno.EBADF)
        return FakeBuf(fcntl.fcntl(memory.fd, fcntl.F_DUPFD_CLOEXEC, 0), size_bytes, self._planter)

    def binding(self) -> ExporterBinding:
        return ExporterBinding(backend="fake", numbers=self._planter.plan.numbers())

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
