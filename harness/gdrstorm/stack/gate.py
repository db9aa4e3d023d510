"""The tables of bad input: single calls that must be refused, each with the errno to get.

A case says what is bad, which ways it can take (`libibverbs`, or `ioctl` where the library would
stop it or answer itself) and the answer each way must get. `run_cases` makes the calls and records
what came; it judges nothing else. Errnos are those that Linux 7.3.4 gave (mlx5_ib, rdma_rxe).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress

import msgspec

from gdrstorm.errors import CallError, UnavailableError, errno_name
from gdrstorm.model.gate import GateResult
from gdrstorm.stack.exporter import DmaBuf, Exporter, Memory
from gdrstorm.stack.importer import ACCESS_DEFAULT, Importer, Registration
from gdrstorm.stack.importer.libibverbs import Hca
from gdrstorm.stack.importer.uverbs import UverbsImporter, UverbsMr
from gdrstorm.stack.importer.verbs import VerbsImporter
from gdrstorm.stack.verify import RdmaImporter
from gdrstorm.uapi.rdma_ioctl import Access

OK = "ok"
SIZE = 1 << 20  # of the buffer that bad ranges are about
LENGTH = 64 * 1024  # of a good range
_PAGE = mmap.PAGESIZE
_TOP = 1 << 64

LIBIBVERBS, IOCTL = "libibverbs", "ioctl"
Expected = Mapping[str, tuple[str, ...]]


class Call(msgspec.Struct, frozen=True):
    """Arguments of one registration. `fd` of None is the good descriptor."""

    fd: int | None = None
    offset: int = 0
    length: int = LENGTH
    iova: int = 0
    access: int = ACCESS_DEFAULT


class Case(msgspec.Struct, frozen=True):
    """One row: `act` does it on a bench and raises CallError when it is refused.

    `expected` has the right answers by path; a path that is not in it is not taken. `any` stands
    for importers that are no RDMA device.
    """

    name: str
    act: Callable[[Bench], None]
    expected: Expected
    note: str = ""


class Bench:
    """What a case works on: fresh memory and buffer of the exporter, and one way to register."""

    def __init__(self, exporter: Exporter, importer: Importer, stack: ExitStack) -> None:
        self.exporter = exporter
        self.importer = importer
        self.stack = stack
        self.memory: Memory = exporter.alloc(SIZE)
        stack.callback(self.memory.close)
        self.buffer: DmaBuf = exporter.export(self.memory, 0, SIZE)
        stack.callback(self.buffer.close)

    def register(self, call: Call = Call()) -> Registration:  # noqa: B008 - frozen
        """Make the call. What it registers against expectation is ended with the case."""
        fd = self.buffer.fd if call.fd is None else call.fd
        registration = self.importer.register(fd, call.offset, call.length, call.iova, call.access)
        self.stack.callback(_close_quietly, registration)
        return registration


def _close_quietly(registration: Registration) -> None:
    # The answer of the case is recorded already; its device may be unwell by now.
    with suppress(CallError):
        registration.close()


def run_bad_input(exporter: Exporter, importer: Importer) -> tuple[GateResult, ...]:
    """Every kind of bad input, and the orders of ending that must be fine. Raises UnavailableError, CallError."""
    return run_cases("bad-input", tuple(_bad_input()), exporter, importer)


def run_no_dmabuf(exporter: Exporter, importer: Importer) -> tuple[GateResult, ...]:
    """A driver without dma-buf MRs refuses them all. Raises UnavailableError, CallError."""
    return run_cases("no-dmabuf", tuple(_no_dmabuf()), exporter, importer)


def run_cases(
    table: str, cases: tuple[Case, ...], exporter: Exporter, importer: Importer
) -> tuple[GateResult, ...]:
    """Every case on every path that leads to the importer's driver.

    Raises:
        UnavailableError: the importer takes no dma-bufs.
        CallError: memory for a case could not be had.
    """
    return tuple(
        _run_case(table, case, path, exporter, way)
        for path, way in _ways(importer)
        for case in cases
    )


def _ways(importer: Importer) -> Iterator[tuple[str, Importer]]:
    """The paths that lead to this importer's driver; all share its device and PD."""
    if not isinstance(importer, RdmaImporter):
        yield importer.name, importer
        return
    if not importer.imports_dmabuf:
        raise UnavailableError(
            f"importer {importer.name} takes no dma-bufs, so it has none to refuse",
            "give --importer verbs",
        )
    yield LIBIBVERBS, VerbsImporter(importer.hca)
    yield IOCTL, UverbsImporter(importer.hca)


def _run_case(
    table: str, case: Case, path: str, exporter: Exporter, importer: Importer
) -> GateResult:
    expected = case.expected.get(path, () if path in (LIBIBVERBS, IOCTL) else _other(case))
    result = GateResult(
        table=table,
        case=case.name,
        path=path,
        expected=expected,
        got="",
        passed=False,
        refused=OK not in expected,
        note=case.note,
    )
    if not expected:
        why = f"cannot be made through {path}"
        return msgspec.structs.replace(result, skipped=why)
    with ExitStack() as stack:
        bench = Bench(exporter, importer, stack)
        got = _answer(case, bench)
    return msgspec.structs.replace(result, got=got, passed=got in expected)


def _other(case: Case) -> tuple[str, ...]:
    return case.expected.get("any", ())


def _answer(case: Case, bench: Bench) -> str:
    try:
        case.act(bench)
    except CallError as error:
        return errno_name(error.errno)
    return OK


# -- the cases ---------------------------------------------------------------------------------


def _both(*names: str, other: tuple[str, ...] = ()) -> Expected:
    return {LIBIBVERBS: names, IOCTL: names, "any": other}


def _registering(name: str, call: Call, expected: Expected, note: str = "") -> Case:
    def act(bench: Bench) -> None:
        bench.register(call)

    return Case(name, act, expected, note)


def _descriptors() -> Iterator[Case]:
    def no_dmabuf(bench: Bench) -> None:
        fd = os.memfd_create("gdrstorm-gate", os.MFD_CLOEXEC)
        bench.stack.callback(os.close, fd)
        os.ftruncate(fd, SIZE)
        bench.register(Call(fd=fd))

    def closed(bench: Bench) -> None:
        fd = bench.buffer.fd
        bench.buffer.close()
        bench.register(Call(fd=fd))

    yield Case("descriptor is no dma-buf", no_dmabuf, _both("EINVAL", other=("EINVAL",)))
    yield Case("descriptor is closed", closed, _both("EBADF", other=("EBADF",)))
    for fd in (-1, -2, -(1 << 31)):
        yield _registering(f"descriptor is {fd}", Call(fd=fd), _both("EBADF", other=("EBADF",)))


def _ranges() -> Iterator[Case]:
    for name, call in (
        ("length is 0", Call(length=0)),
        ("length is one page beyond the end", Call(length=SIZE + _PAGE)),
        ("length is one byte beyond the end", Call(length=SIZE + 1)),
        ("length is the largest number", Call(length=_TOP - 1)),
        ("offset plus length overflows", Call(offset=2 * _PAGE, iova=0, length=_TOP - _PAGE)),
        ("iova plus length overflows", Call(iova=_TOP - _PAGE)),
        ("offset is the end", Call(offset=SIZE)),
        ("offset is beyond the end", Call(offset=SIZE + _PAGE)),
        ("offset is the last page of all", Call(offset=_TOP - _PAGE)),
        ("range begins inside and ends behind the end", Call(offset=SIZE - _PAGE)),
    ):
        yield _registering(name, call, _both("EINVAL"))
    yield _registering(
        "offset and iova differ within a page", Call(offset=1, iova=0), _both("EINVAL")
    )
    yield _registering(
        "offset is unaligned, iova alike", Call(offset=1, iova=1), _both(OK), "a legal range"
    )


def _illegal_accesses() -> Iterator[tuple[str, int]]:
    """Every combination that writes from afar but not locally, and every unknown mandatory bit."""
    remote = (Access.REMOTE_WRITE, Access.REMOTE_READ, Access.REMOTE_ATOMIC)
    for mask in range(1 << len(remote)):
        access = sum(bit for index, bit in enumerate(remote) if mask >> index & 1)
        if access & (Access.REMOTE_WRITE | Access.REMOTE_ATOMIC):
            yield f"access {access:#x}: remote write without local write", access
            relaxed = access | Access.RELAXED_ORDERING
            yield f"access {relaxed:#x}: remote write without local write", relaxed
    for bit in (*range(4, 20), 30, 31):
        access = ACCESS_DEFAULT | 1 << bit
        yield f"access {access:#x}: bit {bit} is not for dma-bufs", access


def _accesses() -> Iterator[Case]:
    for name, access in _illegal_accesses():
        yield _registering(name, Call(access=access), _both("EINVAL"))


def _handles() -> Iterator[Case]:
    def destroyed_twice(bench: Bench) -> None:
        registration = bench.register()
        assert isinstance(registration, UverbsMr)
        registration.destroy()
        registration.destroy()

    def reregistered(bench: Bench) -> None:
        bench.importer.reregister(bench.register(), Access.LOCAL_WRITE)

    def foreign_pd(bench: Bench) -> None:
        assert isinstance(bench.importer, UverbsImporter)
        handle = _foreign_pd(bench)
        bench.importer.register_in(handle, bench.buffer.fd, 0, LENGTH)

    library = "libibverbs frees the MR at the first call"
    yield Case("deregistered twice", destroyed_twice, {IOCTL: ("ENOENT",)}, library)
    yield Case(
        "reregistered",
        reregistered,
        {LIBIBVERBS: ("EINVAL",), IOCTL: ("EOPNOTSUPP",)},
        "dma-buf MRs have no REREG",
    )
    yield Case("PD of another context", foreign_pd, {IOCTL: ("ENOENT",)}, "a PD has its context")


def _orders() -> Iterator[Case]:
    def closed_first(bench: Bench) -> None:
        registration = bench.register()
        bench.buffer.close()
        registration.close()

    def freed_first(bench: Bench) -> None:
        registration = bench.register()
        bench.memory.close()
        registration.close()
        bench.buffer.close()

    def all_first(bench: Bench) -> None:
        registration = bench.register()
        bench.buffer.close()
        bench.memory.close()
        registration.close()

    fine = _both(OK, other=(OK,))
    yield Case("descriptor closed before DEREG", closed_first, fine)
    yield Case("export freed before DEREG", freed_first, fine)
    yield Case("descriptor closed and export freed before DEREG", all_first, fine)


_FOREIGN_PDS = 64


def _foreign_pd(bench: Bench) -> int:
    """Handle of a PD of another context that is no object at all in this one.

    Handles are small numbers counted in each context, so a number is taken that is out of reach
    of the few objects the importer has.
    """
    assert isinstance(bench.importer, UverbsImporter)
    other = bench.stack.enter_context(closing(Hca.open(bench.importer.hca.name)))
    handle = 0
    for _ in range(_FOREIGN_PDS):
        handle = other.alloc_extra_pd()
    return handle


def _bad_input() -> Iterator[Case]:
    good = _both(OK, other=(OK,))
    yield _registering("control: a good registration", Call(), good, "proves that the rest says")
    yield from _descriptors()
    yield from _ranges()
    yield from _accesses()
    yield from _handles()
    yield from _orders()
    yield _registering("control: still a good registration", Call(), good)


def _no_dmabuf() -> Iterator[Case]:
    refused = _both("EOPNOTSUPP")
    yield _registering("a good dma-buf", Call(), refused, "this driver has no dma-buf MRs")
    yield _registering("a range of it", Call(offset=_PAGE, iova=_PAGE), refused)

    def control(bench: Bench) -> None:
        assert isinstance(bench.importer, VerbsImporter)
        memory = mmap.mmap(-1, LENGTH)
        bench.stack.callback(memory.close)
        address = _address_of(memory)
        bench.importer.hca.reg_memory(address, LENGTH, ACCESS_DEFAULT).close()

    yield Case("control: ordinary memory", control, {LIBIBVERBS: (OK,)})


def _address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
