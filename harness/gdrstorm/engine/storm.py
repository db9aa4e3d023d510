"""Runs one worker's storm in the native engine and hands the program and the bindings over.

The calling thread waits without the GIL until all threads of the storm ended. Errors of calls in the storm are
counted in the area, never raised; a program that could not work is refused, a failing set-up raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gdrstorm.engine.area import Area
from gdrstorm.engine.native import load
from gdrstorm.engine.program import ExporterBinding, ImporterBinding, StormProgram
from gdrstorm.errors import CallError, UsageError
from gdrstorm.model.op import Op, Order, Share

_ORDER = {Order.FIFO: 0, Order.LIFO: 1, Order.RANDOM: 2}
_SHARE = {Share.NOTHING: 0, Share.ALLOCATION: 1, Share.BUFFER: 2}
_REFUSED = -1
_NO_VICTIM = 0xFFFFFFFF


class Step(NamedTuple):
    """One iteration of a thread: the slot it fills and with what; the slot it releases then, if the window is full."""

    slot: int
    size_bytes: int
    offset_bytes: int
    length_bytes: int
    victim: int | None


class _CData(NamedTuple):
    """A C struct and the arrays it points to, which must live as long."""

    pointer: Any
    kept: tuple[Any, ...]


def _program(program: StormProgram) -> _CData:
    ffi, _ = load()
    cycle = ffi.new("uint8_t[]", [int(op) for op in program.cycle])
    values = {
        "cycle": cycle,
        "cycle_length": len(program.cycle),
        "depth": program.depth,
        "order": _ORDER[program.order],
        "share": _SHARE[program.share],
        "access": program.access,
        "rereg_access": program.rereg_access,
        "stop_on_error": program.stop_on_error,
        "seed": program.seed & 0xFFFFFFFFFFFFFFFF,
        "size_min": program.size_min_bytes,
        "size_max": program.size_max_bytes,
        "size_step": program.size_step_bytes,
        "offset_max": program.offset_max_bytes,
        "length": program.length_bytes,
        "pacing_ns": program.pacing_ns,
        "delay_ns": program.delay_ns,
        "duration_ns": program.duration_ns,
        "count": program.count,
    }
    try:
        return _CData(ffi.new("struct gs_program *", values), (cycle,))
    except OverflowError as error:
        raise UsageError(f"the storm's program has a number out of range: {error}") from error


def _binding(binding: ExporterBinding | ImporterBinding) -> _CData:
    ffi, _ = load()
    name = ffi.new("char[]", binding.backend.encode())
    fds = ffi.new("int[]", binding.fds)
    numbers = ffi.new("int64_t[]", binding.numbers)
    addresses = ffi.new("uint64_t[]", binding.addresses)
    values = {
        "backend": name,
        "fds": fds,
        "numbers": numbers,
        "addresses": addresses,
        "fd_count": len(binding.fds),
        "number_count": len(binding.numbers),
        "address_count": len(binding.addresses),
    }
    return _CData(ffi.new("struct gs_binding *", values), (name, fds, numbers, addresses))


def _raise(failure: Any, exporter: ExporterBinding, importer: ImporterBinding) -> None:
    text = load().ffi.string(failure.text).decode(errors="replace")
    stack = f"exporter {exporter.backend}, importer {importer.backend}"
    if failure.op == _REFUSED:
        raise UsageError(f"the engine refuses the storm: {text} ({stack})")
    op = f"{Op(failure.op).name}: " if failure.op > 0 else ""
    raise CallError(f"cannot set up the storm: {op}{text}: {stack}", failure.error)


def run_storm(
    area: Area,
    *,
    worker: int,
    first_thread: int,
    threads: int,
    program: StormProgram,
    exporter: ExporterBinding,
    importer: ImporterBinding,
    cpus: Sequence[int] = (),
) -> None:
    """Set up `threads` threads from slot `first_thread` on, wait for the start line, run them to their end.

    Thread i is pinned to cpus[i % len(cpus)] when cpus are given. Returns when every thread ended and gave back what
    it had. Raises UsageError when the program is refused, CallError (operation and errno) when the set-up failed.
    """
    ffi, lib = load()
    if threads < 1 or first_thread < 0 or worker < 0:
        raise UsageError(f"no storm of {threads} threads from {first_thread} for worker {worker}")
    compiled, exporting, importing = _program(program), _binding(exporter), _binding(importer)
    pins = ffi.new("int[]", list(cpus))
    failure = ffi.new("struct gs_failure *")
    error = lib.gs_run_storm(
        area.native,
        worker,
        first_thread,
        threads,
        compiled.pointer,
        exporting.pointer,
        importing.pointer,
        pins,
        len(cpus),
        failure,
    )
    if error:
        _raise(failure, exporter, importer)


def sequence(program: StormProgram, thread: int, count: int) -> tuple[Step, ...]:
    """The first `count` iterations of a thread (numbered through the area); the same on every machine."""
    ffi, lib = load()
    compiled = _program(program)
    out = ffi.new("struct gs_step[]", count)
    lib.gs_sequence(compiled.pointer, thread, count, out)
    return tuple(
        Step(s.slot, s.size, s.offset, s.length, None if s.victim == _NO_VICTIM else s.victim)
        for s in out
    )


def has_exporter(name: str) -> bool:
    """Whether the engine has a C exporter of that name."""
    return bool(load().lib.gs_has_backend(0, name.encode()))


def has_importer(name: str) -> bool:
    """Whether the engine has a C importer of that name."""
    return bool(load().lib.gs_has_backend(1, name.encode()))
