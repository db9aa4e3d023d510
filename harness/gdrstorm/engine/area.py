"""The shared area: thread slots with statistics, states and calls in flight, as Python records.

Reading copies, never blocks a writer and never writes; it works while threads run, hang, or are dead. Threads are
numbered through the whole area; a range of them is a worker's. Layout and its rules: native/src/area.h.
"""

from __future__ import annotations

import enum
from typing import Any, Self

from gdrstorm.engine.native import load
from gdrstorm.errors import CallError, UsageError, errno_name
from gdrstorm.model.op import CallInFlight, FirstError, Latency, Op, OpSummary, ThreadRate

#: Key in OpSummary.errors for errno values beyond the 16 that are kept apart.
OTHER_ERRORS = "other"


class ThreadState(enum.IntEnum):
    """Where a thread slot is. FAILED: its set-up failed, it never ran."""

    UNUSED = 0
    STARTING = 1
    READY = 2
    RUNNING = 3
    DONE = 4
    FAILED = 5


def _latency(buckets: Any, total_ns: int, min_ns: int, max_ns: int) -> Latency:
    ffi, lib = load()
    out = ffi.new("struct gs_latency *")
    lib.gs_latency_of(buckets, total_ns, min_ns, max_ns, out)
    return Latency(
        min_ns=out.min_ns,
        mean_ns=out.mean_ns,
        p50_ns=out.p50_ns,
        p90_ns=out.p90_ns,
        p99_ns=out.p99_ns,
        p999_ns=out.p999_ns,
        p9999_ns=out.p9999_ns,
        max_ns=out.max_ns,
    )


def _errors(totals: Any) -> dict[str, int]:
    pairs = zip(totals.errno_value, totals.errno_count, strict=True)
    errors = {errno_name(value): count for value, count in pairs if value and count}
    if totals.errno_other:
        errors[OTHER_ERRORS] = totals.errno_other
    return errors


def _summary(op: Op, t: Any) -> OpSummary:
    failed = None
    if t.error_count:
        failed = _latency(t.error, t.error_sum_ns, t.error_min_ns, t.error_max_ns)
    return OpSummary(
        op=op.name,
        count=t.ok_count + t.error_count,
        errors=_errors(t),
        latency=_latency(t.ok, t.ok_sum_ns, t.ok_min_ns, t.ok_max_ns),
        error_latency=failed,
    )


class AreaSnapshot:
    """A copy of the merged statistics of some threads. `minus` gives what happened since an older snapshot.

    `outstanding`: slots acquired and not yet released, now. `skipped`: operations left out because an earlier one of
    their slot failed. `leaked`: objects that could not be ended, twice tried.
    """

    def __init__(self, totals: Any) -> None:
        self._totals = totals

    @property
    def time_ns(self) -> int:
        return int(self._totals.time_ns)

    @property
    def outstanding(self) -> int:
        return int(self._totals.outstanding)

    @property
    def skipped(self) -> int:
        return int(self._totals.skipped)

    @property
    def leaked(self) -> int:
        return int(self._totals.leaked)

    def minus(self, older: AreaSnapshot) -> AreaSnapshot:
        """The interval between two snapshots of the same threads; its extremes are those of the interval."""
        ffi, lib = load()
        result = ffi.new("struct gs_totals *", self._totals[0])
        lib.gs_totals_subtract(result, older._totals)
        return AreaSnapshot(result)

    def summaries(self) -> tuple[OpSummary, ...]:
        """One record for each operation that was done at least once, in the order of the operations."""
        pairs = ((op, self._totals.op[op.value]) for op in Op)
        return tuple(_summary(op, t) for op, t in pairs if t.ok_count or t.error_count)


class Area:
    """A mapped area; `close` unmaps it and may be called twice. `fd` belongs to this object.

    `create` makes a new one; `attach` duplicates the descriptor it is given, which stays the caller's.
    """

    def __init__(self, pointer: Any) -> None:
        self._pointer = pointer

    @classmethod
    def create(cls, threads: int) -> Self:
        """A new area of that many thread slots (1 to 65536), all UNUSED."""
        ffi, lib = load()
        error = ffi.new("int *")
        if not 0 < threads <= 65536:
            raise UsageError(
                f"cannot create an area of {threads} threads", "1 to 65536 are possible"
            )
        pointer = lib.gs_area_create(threads, error)
        if not pointer:
            raise CallError(f"cannot create the shared area: {threads} threads", error[0])
        return cls(pointer)

    @classmethod
    def attach(cls, fd: int) -> Self:
        """The area behind a descriptor of `create`; EPROTO when it is none or of another version."""
        ffi, lib = load()
        error = ffi.new("int *")
        pointer = lib.gs_area_attach(fd, error)
        if not pointer:
            raise CallError(
                f"cannot attach the shared area: descriptor {fd}",
                error[0],
                "is it a descriptor of Area.create, of the same gdrstorm version?",
            )
        return cls(pointer)

    @property
    def native(self) -> Any:
        """The C pointer, for engine/ only."""
        if self._pointer is None:
            raise UsageError("the shared area is closed")
        return self._pointer

    @property
    def fd(self) -> int:
        return int(load().lib.gs_area_fd(self.native))

    @property
    def thread_count(self) -> int:
        return int(load().lib.gs_area_threads(self.native))

    def close(self) -> None:
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            load().lib.gs_area_close(pointer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        """Release the start line: all threads that are ready, in all processes, begin at the same time."""
        load().lib.gs_area_start(self.native)

    def request_stop(self) -> None:
        """Ask all threads to release what is outstanding and to end; delays and barriers end at once."""
        load().lib.gs_area_stop(self.native)

    def wait_ready(self, threads: range, timeout_s: float) -> bool:
        """Whether all of them got ready in time; False at once when the set-up of one failed."""
        first, count = self._bounds(threads)
        return bool(
            load().lib.gs_area_wait_ready(self.native, first, count, int(timeout_s * 1e9)) > 0
        )

    def states(self, threads: range) -> tuple[ThreadState, ...]:
        ffi, lib = load()
        first, count = self._bounds(threads)
        out = ffi.new("uint8_t[]", count)
        lib.gs_area_states(self.native, first, count, out)
        return tuple(ThreadState(value) for value in out)

    def snapshot(self, threads: range) -> AreaSnapshot:
        """The statistics of these threads, merged, as of now (a thread may be a few operations ahead)."""
        ffi, lib = load()
        first, count = self._bounds(threads)
        totals = ffi.new("struct gs_totals *")
        lib.gs_area_totals(self.native, first, count, totals)
        return AreaSnapshot(totals)

    def in_flight(self, threads: range, min_age_ns: int = 0) -> tuple[CallInFlight, ...]:
        """Calls on the stack that threads are inside of for at least that long; also those of a dead worker."""
        ffi, lib = load()
        first, count = self._bounds(threads)
        out = ffi.new("struct gs_call[]", count)
        found = lib.gs_area_calls(self.native, first, count, max(min_age_ns, 0), out)
        return tuple(
            CallInFlight(
                worker=c.worker,
                thread=c.thread,
                tid=c.tid,
                op=Op(c.op).name,
                seq=c.seq,
                since_ns=c.since_ns,
                elapsed_ns=c.elapsed_ns,
            )
            for c in out[0:found]
        )

    def first_errors(self, threads: range) -> tuple[FirstError, ...]:
        """The first occurrence of each (operation, errno) of each thread, earliest first."""
        ffi, lib = load()
        first, count = self._bounds(threads)
        limit = count * lib.GS_OP_COUNT * lib.GS_ERRNOS
        limit = min(limit, 4096)
        out = ffi.new("struct gs_first_error[]", limit)
        found = lib.gs_area_errors(self.native, first, count, out, limit)
        records = (
            FirstError(
                op=Op(e.op).name,
                errno=errno_name(e.error),
                time_ns=e.time_ns,
                worker=e.worker,
                thread=e.thread,
                seq=e.seq,
                slot=e.slot,
                offset_bytes=e.offset,
                length_bytes=e.length,
                access=e.access,
            )
            for e in out[0:found]
        )
        return tuple(sorted(records, key=lambda e: e.time_ns))

    def thread_rates(self, threads: range) -> tuple[ThreadRate, ...]:
        """Operations done (delays and barriers left out) and the longest call, for each thread."""
        ffi, lib = load()
        first, count = self._bounds(threads)
        out = ffi.new("struct gs_rate[]", count)
        lib.gs_area_rates(self.native, first, count, out)
        return tuple(
            ThreadRate(worker=r.worker, thread=r.thread, count=r.count, max_ns=r.max_ns)
            for r in out
        )

    def _bounds(self, threads: range) -> tuple[int, int]:
        inside = 0 <= threads.start <= threads.stop <= self.thread_count
        if threads.step != 1 or not inside:
            raise UsageError(f"{threads} is not within the area's {self.thread_count} threads")
        return threads.start, len(threads)
