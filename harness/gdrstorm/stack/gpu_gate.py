"""The gates of the GPU exporters: what the driver must refuse, keep and give back.

Each function runs one table on an opened stack and returns a result a row. A row that was meant to be
refused says so (`refused`); figures of GPU memory come from the resource manager itself, because
CUDA's own say nothing about buffers that outlive their owner.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, cast

from gdrstorm.errors import CallError, GdrstormError, UnavailableError, errno_name
from gdrstorm.model.gate import GateResult
from gdrstorm.stack.exporter import DmaBuf, Exporter, Memory
from gdrstorm.stack.exporter.gpu_device import (
    GpuDevice,
    Mapping,
    format_gpu_device,
    parse_gpu_device,
)
from gdrstorm.stack.exporter.rm import RmExporter
from gdrstorm.stack.exporter.rm_client import (
    ExportAnswer,
    ExportInput,
    ExportPart,
    RmClient,
    RmIo,
    RmMemory,
)
from gdrstorm.stack.exporter.rm_state import read_memory
from gdrstorm.stack.gpu_child import PassingChild
from gdrstorm.stack.gpu_rows import OK, PAGE, ROWS, SIZE, BadExport, Fd, Node
from gdrstorm.stack.importer import Importer
from gdrstorm.stack.importer.core_checks import name_of, run_core_checks
from gdrstorm.uapi import dma_buf, nvidia

_MIB = 1 << 20
#: large enough to stand out from what the driver keeps for itself
_BIG = 1 << 30
_SLACK = 64 * _MIB
_SETTLE_S = 3.0
_REPEATS = 1000
_PARAMS = Path("/proc/driver/nvidia/params")
_OPTION = "ExperimentalDmaBufP2P"
_FORCE_REFUSALS = ("NV_ERR_NOT_SUPPORTED", "CUDA_ERROR_NOT_SUPPORTED")


class GpuExporter(Protocol):
    """What the GPU exporters have beyond Exporter."""

    name: str
    bdf: str
    device: GpuDevice
    rm_io: RmIo | None

    def alloc(self, size_bytes: int) -> Memory: ...

    def export_mapped(
        self, memory: Memory, offset_bytes: int, size_bytes: int, mapping: Mapping
    ) -> DmaBuf: ...


class _Table:
    """Collects the rows of one run of a table."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path
        self.rows: list[GateResult] = []

    def add(
        self, case: str, expected: Sequence[str], got: str, *, is_refusal: bool = False
    ) -> None:
        """A row; `is_refusal` when the right answer is that the driver says no."""
        words = tuple(expected)
        self.rows.append(
            GateResult(self.name, case, self.path, words, got, got in words, is_refusal)
        )

    def call(self, case: str, expected: Sequence[str], action: Callable[[], object]) -> None:
        """A row whose answer is how the action ended."""
        self.add(case, expected, _outcome(action), is_refusal=OK not in expected)

    def skip(self, case: str, why: str) -> None:
        self.rows.append(GateResult(self.name, case, self.path, (), "", False, skipped=why))

    def results(self) -> tuple[GateResult, ...]:
        return tuple(self.rows)


def run_core_gate(exporter: Exporter, importer: Importer) -> tuple[GateResult, ...]:
    """The checks of the dma-buf core on one buffer of 1 MiB."""
    memory = exporter.alloc(SIZE)
    try:
        buffer = exporter.export(memory, 0, SIZE)
        try:
            return run_core_checks(buffer, lambda: exporter.export(memory, 0, SIZE))
        finally:
            buffer.close()
    finally:
        memory.close()


def run_force_pcie(exporter: Exporter, importer: Importer) -> tuple[GateResult, ...]:
    """The negative control: without the driver's option FORCE_PCIE is refused, every time, for nothing.

    Raises UnavailableError where the option is on, because then there is nothing to refuse.
    """
    gpu = _gpu(exporter)
    if read_option(_PARAMS) not in ("", "0"):
        raise UnavailableError(f"the driver runs with NVreg_{_OPTION}: FORCE_PCIE may be allowed")
    table = _Table("force-pcie-default-off", gpu.name)
    with _meter(gpu) as meter, _allocated(gpu, 4 * _MIB) as memory:
        start, before = _open_descriptors(), meter()

        def export(mapping: Mapping, offset: int = 0, size: int = 4 * _MIB) -> None:
            gpu.export_mapped(memory, offset, size, mapping).close()

        table.call("default mapping, the control", (OK,), lambda: export(Mapping.DEFAULT))
        force = Mapping.FORCE_PCIE
        table.call("FORCE_PCIE", _FORCE_REFUSALS, lambda: export(force))
        table.call("FORCE_PCIE, a page inside", _FORCE_REFUSALS, lambda: export(force, PAGE, PAGE))
        seen = {_outcome(lambda: export(force)) for _ in range(_REPEATS)}
        case = f"FORCE_PCIE {_REPEATS} times"
        table.add(case, _FORCE_REFUSALS, " and ".join(sorted(seen)), is_refusal=True)
        table.call("default mapping afterwards", (OK,), lambda: export(Mapping.DEFAULT))
        table.add("descriptors left", ("0",), str(_open_descriptors() - start))
        table.add("GPU memory", ("as before",), _compare(before, meter(), 0, 0))
    return table.results()


def run_rm_bad_input(exporter: Exporter, importer: Importer) -> tuple[GateResult, ...]:
    """Every row of gpu_rows, then that nothing is left. Needs the exporter rm."""
    if not isinstance(exporter, RmExporter):
        raise UnavailableError("gate rm-bad-input is made for exporter rm")
    table = _Table("rm-bad-input", exporter.name)
    client = exporter.client
    memory = client.alloc(SIZE)
    try:
        start, before = _open_descriptors(), read_memory(client).used_bytes
        for row in ROWS:
            if (row.mapping or row.allow_mmap) and not client.generation.has_mapping_type:
                table.skip(row.case, f"driver {client.version} has no mapping type (570 and later)")
                continue
            answer = _send(client, memory, row)
            got = OK if answer.name == "NV_OK" else answer.name
            if got == OK and answer.fd < 0:
                got = "no descriptor"
            elif got != OK and answer.fd >= 0:
                got += " and a descriptor"
            if answer.fd >= 0:
                os.close(answer.fd)
            table.add(row.case, row.expected, got, is_refusal=OK not in row.expected)
        table.add("descriptors left", ("0",), str(_open_descriptors() - start))
        left = _compare(before, read_memory(client).used_bytes, 0, 0)
        table.add("GPU memory", ("as before",), left)
    finally:
        memory.close()
    return table.results()


def run_free_before_close(exporter: Exporter, importer: Importer) -> tuple[GateResult, ...]:
    """Memory freed under an exported buffer stays until the descriptor closes, then comes back."""
    gpu = _gpu(exporter)
    table = _Table("gpu-free-before-close", gpu.name)
    with _meter(gpu) as meter:
        start = meter()
        memory = gpu.alloc(_BIG)
        table.add("allocated", ("held",), _compare(start, meter(), _BIG))
        buffer = gpu.export_mapped(memory, 0, _BIG, Mapping.DEFAULT)
        page = gpu.export_mapped(memory, PAGE, PAGE, Mapping.DEFAULT)
        table.add("exported twice: no more memory", ("held",), _compare(start, meter(), _BIG))
        table.call("free under open descriptors", (OK,), memory.close)
        table.add("freed, descriptors open", ("held",), _compare(start, meter(), _BIG))
        table.add("its size afterwards", (OK,), _size(buffer, _BIG))
        table.call(
            "registered after the free",
            (OK,),
            lambda: importer.register(buffer.fd, 0, buffer.size_bytes).close(),
        )
        buffer.close()
        chunk = -(-_BIG // gpu.device.chunks)
        table.add("one page still exported: its chunk", ("held",), _compare(start, meter(), chunk))
        page.close()
        table.add("last descriptor closed", ("as before",), _settle(start, meter))
        table.call("close again", (OK,), buffer.close)
        _close_then_free(table, gpu, meter)
    return table.results()


def _close_then_free(table: _Table, gpu: GpuExporter, meter: Callable[[], int]) -> None:
    """The usual order, as the control."""
    start = meter()
    memory = gpu.alloc(_BIG)
    gpu.export_mapped(memory, 0, _BIG, Mapping.DEFAULT).close()
    table.add("closed first: the owner holds it", ("held",), _compare(start, meter(), _BIG))
    memory.close()
    table.add("closed, then freed", ("as before",), _settle(start, meter))


def run_exporter_killed(exporter: Exporter, importer: Importer) -> tuple[GateResult, ...]:
    """A process exports, passes a descriptor and is killed: the receiver keeps it, nothing else stays."""
    gpu = _gpu(exporter)
    table = _Table("exporter-killed-after-passing", gpu.name)
    device = format_gpu_device(gpu.device)
    with _meter(gpu) as meter:
        start = meter()
        with PassingChild(gpu.name, device, _BIG, 1, 1) as child:
            buffer = _Received(child.fds[0], _BIG)
            table.add("passed over a socket", (OK,), _size(buffer, _BIG))
            table.add("exporter ends by", ("SIGKILL",), child.kill())
        table.add("exporter dead, its memory", ("held",), _settle_held(start, meter, _BIG))
        table.add("its size afterwards", (OK,), _size(buffer, _BIG))
        table.call(
            "registered afterwards", (OK,), lambda: importer.register(buffer.fd, 0, _BIG).close()
        )
        table.call("close", (OK,), buffer.close)
        table.add("last descriptor closed", ("as before",), _settle(start, meter))
        with PassingChild(gpu.name, device, 16 * _MIB, 64, 0) as child:
            table.add("64 exports open, killed by", ("SIGKILL",), child.kill())
        table.add("GPU memory of the dead", ("as before",), _settle(start, meter))
    return table.results()


class _Received:
    """A descriptor that came from another process, owned here."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.fd = fd
        self.size_bytes = size_bytes

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def read_option(params: Path) -> str:
    """Value of the driver's FORCE_PCIE option; empty when the driver does not have it."""
    with suppress(OSError):
        for line in params.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == _OPTION:
                return value.strip()
    return ""


def _gpu(exporter: Exporter) -> GpuExporter:
    if not hasattr(exporter, "export_mapped"):
        raise UnavailableError(f"this gate needs a GPU exporter (cuda or rm), not {exporter.name}")
    return cast(GpuExporter, exporter)


@contextmanager
def _meter(gpu: GpuExporter) -> Iterator[Callable[[], int]]:
    """Bytes of GPU memory in use, as RM counts them, by a client that is opened first and stays."""
    try:
        client = RmClient.open(parse_gpu_device(gpu.bdf), gpu.rm_io)
    except GdrstormError as error:
        raise UnavailableError(f"GPU memory figures cannot be read: {error}") from error
    try:
        yield lambda: read_memory(client).used_bytes
    finally:
        client.close()


@contextmanager
def _allocated(gpu: GpuExporter, size: int) -> Iterator[Memory]:
    memory = gpu.alloc(size)
    try:
        yield memory
    finally:
        memory.close()


def _outcome(action: Callable[[], object]) -> str:
    try:
        action()
    except CallError as error:
        return name_of(error)
    except OSError as error:
        return errno_name(error.errno or 0)
    return OK


def _compare(before: int, now: int, more: int, slack: int = _SLACK) -> str:
    """`as before`, `held` (more bytes than before, within the slack), or the difference in words."""
    difference = now - before
    if abs(difference) <= slack:
        return "as before"
    if more and abs(difference - more) <= slack:
        return "held"
    return f"{difference / _MIB:+g} MiB"


def _settle(before: int, meter: Callable[[], int]) -> str:
    """The comparison once it says `as before`, or what it says after a few seconds."""
    deadline = time.monotonic() + _SETTLE_S
    while (said := _compare(before, meter(), 0)) != "as before" and time.monotonic() < deadline:
        time.sleep(0.02)
    return said


def _settle_held(before: int, meter: Callable[[], int], more: int) -> str:
    """As _settle, for memory that must stay while its dead owner's other memory goes."""
    deadline = time.monotonic() + _SETTLE_S
    while (said := _compare(before, meter(), more)) != "held" and time.monotonic() < deadline:
        time.sleep(0.02)
    return said


def _size(buffer: DmaBuf, size: int) -> str:
    try:
        seen = dma_buf.read_size(buffer.fd)
    except OSError as error:
        return errno_name(error.errno or 0)
    return OK if seen == size else f"{seen} bytes"


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _send(client: RmClient, memory: RmMemory, row: BadExport) -> ExportAnswer:
    """One row's ioctl. The structure is made large enough for any size that the request word says."""
    base = client.generation.export
    roomy = type("Roomy", (base,), {"_fields_": [("room", nvidia.U8 * 64)]})
    size = nvidia.request(nvidia.NR_EXPORT_TO_DMABUF_FD, base) + (row.extra_bytes << 16)
    node = client.ctl_fd if row.node is Node.CTL else client.dev_fd
    if row.is_null:
        try:
            client.io.ioctl(node, size, 0)
        except OSError as error:
            return ExportAnswer(error.errno or errno.EIO, 0, -1)
        return ExportAnswer(0, 0, -1)
    with _named_fd(client, row.fd) as fd:
        parts = tuple(ExportPart(memory.handles[0], offset, part) for offset, part in row.parts)
        what = ExportInput(
            parts=parts,
            mapping=row.mapping,
            allow_mmap=row.allow_mmap,
            fd=fd,
            total_objects=row.total_objects,
            num_objects=row.num_objects,
            total_size=row.total_size,
        )
        return client.send_export(node, size, client.fill_export(roomy, what))


@contextmanager
def _named_fd(client: RmClient, fd: Fd) -> Iterator[int]:
    if fd is Fd.NULL or fd is Fd.CLOSED:
        number = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        if fd is Fd.CLOSED:
            os.close(number)
        try:
            yield number
        finally:
            if fd is Fd.NULL:
                os.close(number)
    else:
        yield {Fd.NEW: -1, Fd.MINUS_TWO: -2, Fd.CTL: client.ctl_fd}[fd]
