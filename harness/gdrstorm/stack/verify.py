"""Data check: RDMA WRITE and READ through a registered dma-buf, compared byte for byte by the CPU.

Two RC QPs of one device in loopback; the range is registered at a non-zero offset inside one export,
and guard bytes on both sides of what is moved must stay. A completion alone proves nothing. Needs
an exporter whose memory the CPU can map and an importer that is an RDMA device (pyverbs for QPs).
"""

from __future__ import annotations

import mmap
import random
from contextlib import ExitStack, closing
from typing import Any, Protocol, runtime_checkable

import msgspec

from gdrstorm.errors import UnavailableError
from gdrstorm.stack.exporter import Exporter
from gdrstorm.stack.importer import Importer
from gdrstorm.stack.loopback import Loopback, TransferError
from gdrstorm.uapi import dma_buf

_BUFFER_BYTES = 1 << 20
_OFFSET_BYTES = 3 * 4096  # of the registered range in the export
_LENGTH_BYTES = 64 * 1024
_INSIDE_BYTES = 64  # of the moved bytes in the registered range, and of the guard behind them
_SEED = 0x6764


class DataCheck(msgspec.Struct, frozen=True):
    """One data check; `detail` says what was moved, or where the first wrong byte is."""

    name: str
    passed: bool
    detail: str


@runtime_checkable
class MappableMemory(Protocol):
    """Memory that the CPU can map: the optional ability of exporters that a data check needs."""

    size_bytes: int

    def map(self) -> mmap.mmap: ...

    def close(self) -> None: ...


@runtime_checkable
class RdmaImporter(Protocol):
    """An importer that is an RDMA device; `hca` is its libibverbs device."""

    hca: Any


def verify_data(exporter: Exporter, importer: Importer) -> DataCheck:
    """Move bytes both ways between two QPs and compare.

    Raises:
        UnavailableError: this exporter or importer has no data path to check.
        CallError: a control call failed.
    """
    name = f"rdma-loopback {exporter.name}>{importer.name}"
    if not isinstance(importer, RdmaImporter):
        raise UnavailableError(
            f"cannot verify data: importer {importer.name} moves none",
            "verify = true needs the importer verbs or uverbs",
        )
    with ExitStack() as stack:
        memory = stack.enter_context(closing(exporter.alloc(_BUFFER_BYTES)))
        if not isinstance(memory, MappableMemory):
            raise UnavailableError(
                f"cannot verify data: memory of exporter {exporter.name} has no CPU mapping",
                "use udmabuf, dmaheap or vfio",
            )
        buffer = stack.enter_context(closing(exporter.export(memory, 0, _BUFFER_BYTES)))
        view = stack.enter_context(closing(memory.map()))
        loopback = stack.enter_context(closing(Loopback.open(importer.hca.name, _LENGTH_BYTES)))
        target = loopback.register(buffer.fd, _OFFSET_BYTES, _LENGTH_BYTES)
        try:
            problem = _check_both(loopback, target, view, buffer.fd)
        except TransferError as error:
            problem = str(error)
    detail = problem or f"{_moved()} bytes written and read at offset {_start()}, guards intact"
    return DataCheck(name, not problem, detail)


def _moved() -> int:
    return _LENGTH_BYTES - 2 * _INSIDE_BYTES


def _start() -> int:
    return _OFFSET_BYTES + _INSIDE_BYTES


def _check_both(loopback: Loopback, rkey: int, view: mmap.mmap, fd: int) -> str:
    """Empty, or what was wrong. `rkey` is of the registered range, whose iova is its offset."""
    noise = random.Random(_SEED)
    guard, data = noise.randbytes(_BUFFER_BYTES), noise.randbytes(_moved())
    _fill(view, fd, guard)
    loopback.write(data, _start(), rkey)
    expected = guard[: _start()] + data + guard[_start() + _moved() :]
    problem = _compare("RDMA WRITE", _copy(view, fd), expected)
    if problem:
        return problem
    back = noise.randbytes(_BUFFER_BYTES)
    _fill(view, fd, back)
    return _compare(
        "RDMA READ",
        loopback.read(_moved(), _start(), rkey),
        back[_start() : _start() + _moved()],
    )


def _fill(view: mmap.mmap, fd: int, data: bytes) -> None:
    dma_buf.sync(fd, dma_buf.SYNC_START | dma_buf.SYNC_WRITE)
    view[:] = data
    dma_buf.sync(fd, dma_buf.SYNC_END | dma_buf.SYNC_WRITE)


def _copy(view: mmap.mmap, fd: int) -> bytes:
    dma_buf.sync(fd, dma_buf.SYNC_START | dma_buf.SYNC_READ)
    data = view[:]
    dma_buf.sync(fd, dma_buf.SYNC_END | dma_buf.SYNC_READ)
    return data


def _compare(what: str, found: bytes, expected: bytes) -> str:
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
