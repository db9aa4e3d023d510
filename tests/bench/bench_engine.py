"""What the native engine costs: an empty operation, real system calls against a plain C loop, memory over time.

    python tests/bench/bench_engine.py [--json] [--rounds N]
    python tests/bench/bench_engine.py --verbs mlx5_0      inside the VM bed or on a host with an RDMA device

Compared things take turns within one run; values are medians over the rounds. Prints a table, or rows as JSON:
{name, value, unit, how}. The plain loops are native/bench/*_loop.c (`make -C native bench`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gdrstorm.engine import Area, ExporterBinding, ImporterBinding, StormProgram, run_storm
from gdrstorm.engine.native import load
from gdrstorm.model.op import Op, Order, Share

ROOT = Path(__file__).resolve().parents[2]
LOOPS = ROOT / "build" / "native"
WARM_UP_S = 0.1
WARM_UP_RUNS = 2
FAKE = (ExporterBinding("fake"), ImporterBinding("fake"))
FULL = (Op.ALLOC, Op.EXPORT, Op.REG, Op.DEREG, Op.CLOSE, Op.FREE)
MIB = 1 << 20
PAGE = 4096


class Row(NamedTuple):
    """One measured value; `how` says how it was had."""

    name: str
    value: float
    unit: str
    how: str


class Rate(NamedTuple):
    """Cycles a second of time, and of CPU time: the second does not see what neighbours take."""

    wall: float
    cpu: float


Stack = tuple[ExporterBinding, ImporterBinding]


def storm(area: Area, program: StormProgram, stack: Stack = FAKE) -> None:
    run_storm(
        area,
        worker=0,
        first_thread=0,
        threads=area.thread_count,
        program=program,
        exporter=stack[0],
        importer=stack[1],
    )


def empty_op_ns(cycle: tuple[Op, ...], operations: int) -> float:
    """CPU time of one operation that does nothing: this process's, so that neighbours matter little."""
    program = StormProgram(cycle=cycle, seed=1, count=operations // len(cycle))
    with Area.create(1) as area:
        area.start()
        start = time.process_time_ns()
        storm(area, program)
        return (time.process_time_ns() - start) / (program.count * len(cycle))


def empty_op_rows(rounds: int) -> list[Row]:
    rows = []
    for name, cycle in (("one operation a cycle", (Op.CONTROL,)), ("six operations a cycle", FULL)):
        values = [empty_op_ns(cycle, 600_000) for _ in range(rounds)]
        clock = load().ffi.string(load().lib.gs_clock_name()).decode()
        how = (
            f"fake back ends, {name}: CPU time / operations, two {clock} reads, histogram, call table "
            f"and loop included; median of {rounds}, min {min(values):.1f}"
        )
        rows.append(
            Row(f"engine overhead, {name}", round(statistics.median(values), 1), "ns/op", how)
        )
    return rows


def engine_rate(
    threads: int, seconds: float, cycle: tuple[Op, ...], stack: Stack, **options: Any
) -> Rate:
    """Cycles a second, read from the area as loop.h reads its counters: after a warm-up, and at the end."""
    program = StormProgram(cycle=cycle, seed=1, count=1 << 60, **options)
    with Area.create(threads) as area:
        worker = threading.Thread(target=storm, args=(area, program, stack))
        worker.start()
        area.wait_ready(range(threads), 60)
        area.start()
        time.sleep(WARM_UP_S)
        # Both times before the counters: under TCG reading them takes a millisecond
        start, cpu = time.monotonic_ns(), time.process_time_ns()
        first = sum(rate.count for rate in area.thread_rates(range(threads)))
        time.sleep(seconds)
        elapsed, cpu = time.monotonic_ns() - start, time.process_time_ns() - cpu
        last = sum(rate.count for rate in area.thread_rates(range(threads)))
        area.request_stop()
        worker.join()
        errors = [s for s in area.snapshot(range(threads)).summaries() if s.errors]
    if errors:
        sys.exit(f"the storm had errors: {errors}")
    cycles = (last - first) / len(cycle) * 1e9
    return Rate(cycles / elapsed, cycles / cpu)


def loop_rate(command: list[str], threads: int, seconds: float) -> Rate:
    """The same of a plain loop, which prints: cycles, nanoseconds, nanoseconds of CPU, errors."""
    name, *rest = command
    done = subprocess.run([str(LOOPS / name), *rest], check=True, capture_output=True, text=True)
    cycles, elapsed, cpu, errors = map(int, done.stdout.split())
    if errors:
        sys.exit(f"{name} had {errors} errors in {cycles} cycles ({threads} threads, {seconds} s)")
    return Rate(cycles / elapsed * 1e9, cycles / cpu * 1e9)


def take_turns(rounds: int, settle_s: float, *rivals: Callable[[], Rate]) -> list[list[Rate]]:
    """Each round runs all, in an order that alternates, so that drift hits all alike.

    Each begins `settle_s` after the other: what the kernel still tidies up would else be on its account.
    """
    results: list[list[Rate]] = [[] for _ in rivals]
    for number in range(rounds):
        order = range(len(rivals)) if number % 2 == 0 else reversed(range(len(rivals)))
        for index in order:
            time.sleep(settle_s)
            results[index].append(rivals[index]())
    return results


def ratio_rows(title: str, a: list[Rate], b: list[Rate], how: str) -> list[Row]:
    """Medians of the rounds' ratios: what a round's neighbours did hits both sides of it."""
    pairs = list(zip(a, b, strict=True))
    medians = [statistics.median(rate.wall for rate in side) for side in (a, b)]
    how = f"{how}: {medians[0]:.0f} against {medians[1]:.0f} cycles/s; median of {len(a)} alternating rounds"
    wall = statistics.median(x.wall / y.wall for x, y in pairs)
    cpu = statistics.median(x.cpu / y.cpu for x, y in pairs)
    return [
        Row(title, round(wall, 3), "ratio", how),
        Row(f"{title}, per CPU second", round(cpu, 3), "ratio", how),
    ]


@contextlib.contextmanager
def pinned(cpus: int) -> Iterator[None]:
    """This process and its children on the first CPUs: where a thread sits decides more than who runs it.

    Migrations cost; and a completion interrupts CPU 0: who waits on another one is woken by one interrupt more.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cpus])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def syscall_rows(rounds: int, seconds: float) -> list[Row]:
    rows = []
    cycle = (Op.ALLOC, Op.FREE)
    stack = (ExporterBinding("udmabuf"), FAKE[1])
    for threads in (1, 2, 4):

        def plain(n: int = threads) -> Rate:
            return loop_rate(["memfd_loop", str(n), str(seconds)], n, seconds)

        def engine(n: int = threads) -> Rate:
            return engine_rate(n, seconds, cycle, stack)

        with pinned(threads):
            loops, storms = take_turns(rounds, 0.02, plain, engine)
        how = f"memfd_create, ftruncate, seal, close in {threads} threads"
        rows += ratio_rows(f"engine / plain C, {threads} threads", storms, loops, how)
    return rows


def resident_kib() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0])


def memory_rows(operations: int) -> list[Row]:
    """Ten million operations with errors, a deep window and a reader; the first storm is the warm-up."""
    failing = ImporterBinding("fake", numbers=(0, 0, 1000, 11))
    cycles = operations // len(FULL) // 2

    def one(count: int) -> None:
        program = StormProgram(cycle=FULL, seed=1, depth=64, order=Order.RANDOM, count=count)
        with Area.create(2) as area:
            area.start()
            storm(area, program, (FAKE[0], failing))
            area.snapshot(range(2)).summaries()

    for _ in range(WARM_UP_RUNS):
        one(cycles)
    before = resident_kib()
    one(cycles)
    growth = resident_kib() - before
    how = f"VmRSS over {2 * cycles * len(FULL)} operations in 2 threads, after {WARM_UP_RUNS} times as many"
    return [Row("memory growth over ten million operations", growth, "KiB", how)]


@contextlib.contextmanager
def one_buffer(size: int) -> Iterator[int]:
    """A dma-buf: udmabuf of a memfd, by the engine's own exporter code path."""
    from gdrstorm.stack.exporter.udmabuf import UdmabufExporter

    with UdmabufExporter.open() as exporter:
        memory = exporter.alloc(size)
        buffer = exporter.export(memory, 0, size)
        try:
            yield buffer.fd
        finally:
            buffer.close()
            memory.close()


def pyverbs_rate(device: str, size: int, threads: int, seconds: float) -> Rate:
    """The same registration by pyverbs in Python threads."""
    from pyverbs.device import Context
    from pyverbs.mr import DmaBufMR
    from pyverbs.pd import PD

    counts = [0] * threads
    stop = threading.Event()

    def body(index: int) -> None:
        while not stop.is_set():
            DmaBufMR(pd, size, 7, dmabuf=fd, offset=0).close()
            counts[index] += 1

    with one_buffer(size) as fd, Context(name=device) as context, PD(context) as pd:
        workers = [threading.Thread(target=body, args=(i,)) for i in range(threads)]
        for worker in workers:
            worker.start()
        time.sleep(WARM_UP_S)
        first, start, cpu = sum(counts), time.monotonic_ns(), time.process_time_ns()
        time.sleep(seconds)
        last, elapsed = sum(counts), time.monotonic_ns() - start
        cpu = time.process_time_ns() - cpu
        stop.set()
        for worker in workers:
            worker.join()
    return Rate((last - first) / elapsed * 1e9, (last - first) / cpu * 1e9)


def verbs_engine_rate(device: str, size: int, threads: int, seconds: float, share: Share) -> Rate:
    """REG and DEREG through the engine, of one dma-buf or of one a thread; its PD from the ABI's helpers."""
    ffi, lib = load()
    error = ffi.new("int *")
    context = lib.gs_open_device(device.encode(), error)
    pd = lib.gs_alloc_pd(context, error) if context else ffi.NULL
    if not pd:
        sys.exit(f"cannot open {device}: {os.strerror(error[0])}")
    try:
        with open("/dev/udmabuf", "r+b", buffering=0) as udmabuf:  # noqa: PTH123
            stack = (
                ExporterBinding("udmabuf", fds=(udmabuf.fileno(),)),
                ImporterBinding("verbs", addresses=(int(ffi.cast("uintptr_t", pd)),)),
            )
            return engine_rate(
                threads,
                seconds,
                (Op.REG, Op.DEREG),
                stack,
                share=share,
                size_min_bytes=size,
                size_max_bytes=size,
            )
    finally:
        lib.gs_dealloc_pd(pd)
        lib.gs_close_device(context)


def verbs_rows(device: str, rounds: int, seconds: float) -> list[Row]:
    """Engine, plain C and pyverbs on the same device; works wherever the package and libibverbs are.

    One page: how scattered the pages of a larger buffer are, which is chance, costs more than the loops differ.
    """
    rows = []
    size = PAGE
    for threads in (1, 2):

        def plain(n: int = threads) -> Rate:
            return loop_rate(["verbs_loop", device, str(n), str(seconds), str(size)], n, seconds)

        def engine(n: int = threads) -> Rate:
            return verbs_engine_rate(device, size, n, seconds, Share.BUFFER)

        def python(n: int = threads) -> Rate:
            return pyverbs_rate(device, size, n, seconds)

        with pinned(threads):
            loops, storms, pythons = take_turns(rounds, 0.5, plain, engine, python)
        what = f"REG and DEREG of one {size >> 10} KiB dma-buf on {device}, {threads} threads on {threads} CPUs"
        for name, rival in (("plain C", loops), ("pyverbs", pythons)):
            title = f"engine / {name}, REG+DEREG, {threads} threads"
            rows += ratio_rows(title, storms, rival, what)
    return rows + rate_rows(device, seconds)


def rate_rows(device: str, seconds: float, rounds: int = 7, size: int = MIB) -> list[Row]:
    """How many registrations the device and its driver do, each thread with a dma-buf of its own."""
    rows = []
    for threads in (1, 2, 4):
        rates = [
            verbs_engine_rate(device, size, threads, seconds, Share.NOTHING).wall
            for _ in range(rounds)
        ]
        how = f"{size >> 10} KiB, a dma-buf a thread, engine, not pinned; median of {rounds}, max {max(rates):.0f}"
        name = f"REG+DEREG pairs, {threads} threads"
        rows.append(Row(name, round(statistics.median(rates)), "pairs/s", how))
    return rows


def rows(rounds: int = 45, seconds: float = 0.2) -> list[Row]:
    """All that needs no device, for `make bench`."""
    subprocess.run(["make", "-s", "-C", str(ROOT / "native"), "bench"], check=True)
    return [
        *empty_op_rows(rounds),
        *syscall_rows(rounds, seconds),
        *memory_rows(10_000_000),
    ]


def measure() -> list[dict[str, Any]]:
    """The rows for tests.bench."""
    return [row._asdict() for row in rows()]


def print_table(found: list[Row]) -> None:
    for row in found:
        print(f"{row.name:<46} {row.value:>9} {row.unit:<6} {row.how}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="rows as JSON instead of a table")
    parser.add_argument("--rounds", type=int, default=45)
    parser.add_argument("--seconds", type=float, default=0.2, help="length of one round")
    parser.add_argument(
        "--verbs", metavar="DEVICE", help="REG and DEREG on this RDMA device instead"
    )
    given = parser.parse_args()
    found = (
        verbs_rows(given.verbs, given.rounds, given.seconds)
        if given.verbs
        else rows(given.rounds, given.seconds)
    )
    if given.json:
        print(json.dumps([row._asdict() for row in found]))
    else:
        print_table(found)


if __name__ == "__main__":
    main()
