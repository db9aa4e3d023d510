"""Data check: RDMA WRITE and READ through a registered dma-buf, compared byte for byte by the CPU.

Two RC QPs of one device in loopback; the range is registered at a non-zero offset inside one export, and guard bytes
on both sides of what is moved must stay, in the buffer and in the local memory. A completion alone proves nothing.
Needs memory that the CPU can map and an importer that is an RDMA device. With `host-memory` ordinary memory takes the
place of the dma-buf: the control.
"""

from __future__ import annotations

import mmap
import random
from contextlib import ExitStack, closing
from typing import Protocol, runtime_checkable

import msgspec

from gdrstorm.errors import UnavailableError
from gdrstorm.stack.exporter import Exporter
from gdrstorm.stack.importer import Importer
from gdrstorm.stack.importer.libibverbs import Hca
from gdrstorm.stack.loopback import GUARD, Loopback, TransferError
from gdrstorm.stack.tables import DataCheck
from gdrstorm.uapi import dma_buf

_BUFFER_BYTES = 1 << 20
_OFFSET_BYTES = 3 * 4096  # of the registered range in the export
_LENGTH_BYTES = 64 * 1024
_INSIDE_BYTES = 64  # of the moved bytes in the registered range, and of the guard behind them
_MOVED_BYTES = _LENGTH_BYTES - 2 * _INSIDE_BYTES
_START = _OFFSET_BYTES + _INSIDE_BYTES
_SEED = 0x6764


@runtime_checkable
class MappableMemory(Protocol):
    """Memory that the CPU can map: the optional ability of exporters that a data check needs."""

    size_bytes: int

    def map(self) -> mmap.mmap: ...

    def close(self) -> None: ...


@runtime_checkable
class RdmaImporter(Protocol):
    """An importer that is an RDMA device: `imports_dmabuf` is false where it brings its own memory."""

    hca: Hca
    imports_dmabuf: bool


class _Target(msgspec.Struct, frozen=True):
    """Where bytes go: the CPU's view, the registered range's rkey, what to add to offsets, and the dma-buf or -1."""

    view: mmap.mmap
    rkey: int
    base: int
    fd: int

    def fill(self, data: bytes) -> None:
        self._sync(dma_buf.SYNC_START | dma_buf.SYNC_WRITE)
        self.view[:] = data
        self._sync(dma_buf.SYNC_END | dma_buf.SYNC_WRITE)

    def copy(self) -> bytes:
        self._sync(dma_buf.SYNC_START | dma_buf.SYNC_READ)
        data = self.view[:]
        self._sync(dma_buf.SYNC_END | dma_buf.SYNC_READ)
        return data

    def _sync(self, flags: int) -> None:
        if self.fd >= 0:
            dma_buf.sync(self.fd, flags)


def verify_data(exporter: Exporter, importer: Importer) -> DataCheck:
    """Move bytes both ways between two QPs and compare.

    Raises:
        UnavailableError: this exporter or importer has no data path to check.
        CallError: a control call failed.
    """
    if not isinstance(importer, RdmaImporter):
        raise UnavailableError(
            f"cannot verify data: importer {importer.name} moves none",
            "verify = true needs the importer verbs, uverbs or host-memory",
        )
    with ExitStack() as stack:
        loopback = stack.enter_context(closing(Loopback.open(importer.hca.name, _LENGTH_BYTES)))
        if importer.imports_dmabuf:
            what, target = exporter.name, _dmabuf_target(exporter, loopback, stack)
        else:
            what, target = "memory", _memory_target(loopback, stack)
        # The MR ends before its memory does: the stack unwinds the other way round.
        stack.callback(loopback.close)
        try:
            problem = check_both(loopback, target)
        except TransferError as error:
            problem = str(error)
    detail = problem or f"{_MOVED_BYTES} bytes written and read at offset {_START}, guards intact"
    return DataCheck(f"rdma-loopback {what}>{importer.name}", not problem, detail)


def _dmabuf_target(exporter: Exporter, loopback: Loopback, stack: ExitStack) -> _Target:
    memory = stack.enter_context(closing(exporter.alloc(_BUFFER_BYTES)))
    if not isinstance(memory, MappableMemory):
        raise UnavailableError(
            f"cannot verify data: memory of exporter {exporter.name} has no CPU mapping",
            "use udmabuf, dmaheap or vfio",
        )
    buffer = stack.enter_context(closing(exporter.export(memory, 0, _BUFFER_BYTES)))
    view = stack.enter_context(closing(memory.map()))
    return _Target(view, loopback.register(buffer.fd, _OFFSET_BYTES, _LENGTH_BYTES), 0, buffer.fd)


def _memory_target(loopback: Loopback, stack: ExitStack) -> _Target:
    view = stack.enter_context(closing(mmap.mmap(-1, _BUFFER_BYTES)))
    base, rkey = loopback.register_memory(view, _OFFSET_BYTES, _LENGTH_BYTES)
    return _Target(view, rkey, base, -1)


class Mover(Protocol):
    """What the comparison needs of a loopback."""

    def write(self, data: bytes, remote: int, rkey: int) -> None: ...

    def read(self, length_bytes: int, remote: int, rkey: int) -> bytes: ...


def check_both(mover: Mover, target: _Target) -> str:
    """WRITE into the middle of the buffer and READ from it; empty, or what was wrong. Raises TransferError."""
    noise = random.Random(_SEED)
    before, data = noise.randbytes(_BUFFER_BYTES), noise.randbytes(_MOVED_BYTES)
    target.fill(before)
    mover.write(data, target.base + _START, target.rkey)
    expected = before[:_START] + data + before[_START + _MOVED_BYTES :]
    problem = compare("RDMA WRITE", target.copy(), expected)
    if problem:
        return problem
    back = noise.randbytes(_BUFFER_BYTES)
    target.fill(back)
    found = mover.read(_MOVED_BYTES, target.base + _START, target.rkey)
    problem = compare("RDMA READ", found, GUARD + back[_START : _START + _MOVED_BYTES] + GUARD)
    return problem or compare("RDMA READ's source", target.copy(), back)


def compare(what: str, found: bytes, expected: bytes) -> str:
    """Empty, or the first byte that differs and how many do."""
    if found == expected:
        return ""
    if len(found) != len(expected):
        return f"{what}: {len(found)} bytes instead of {len(expected)}"
    wrong = [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b]
    first = wrong[0]
    return (
        f"{what}: {len(wrong)} wrong bytes, the first at offset {first}: "
        f"{found[first]:#04x} instead of {expected[first]:#04x}"
    )
