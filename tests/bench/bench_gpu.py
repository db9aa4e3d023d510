"""The engine's GPU exports against a plain C program, and their curve by threads and processes.

    python -m tests.bench.bench_gpu [--rounds 5] [--milliseconds 700] [--out FILE]

Needs a GPU, root and gcc. Alternates engine and plain program, so that drift meets both; prints JSON:
`pairs` (rates of each round, ratio of the medians) and `curve` (rate, latencies, assertions of the
driver in the kernel log). Every cell is bounded in time; nothing is set on the GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gdrstorm.engine import Area, StormProgram, run_storm
from gdrstorm.model.op import Op
from gdrstorm.stack import registry

ROOT = Path(__file__).resolve().parents[2]
SIZE = 2 << 20
THREADS = (1, 2, 4, 8, 16)
PAIR_THREADS = (1, 4, 16)


def program(milliseconds: int) -> StormProgram:
    return StormProgram(
        cycle=(Op.EXPORT, Op.CLOSE),
        seed=1,
        size_min_bytes=SIZE,
        size_max_bytes=SIZE,
        duration_ns=milliseconds * 1_000_000,
    )


def run_worker(name: str, fd: int, first: int, threads: int, milliseconds: int, cpu: int) -> None:
    """One worker process: its threads wait at the start line of the area behind `fd`."""
    cpus = (cpu,) if cpu >= 0 else ()
    with (
        Area.attach(fd) as area,
        registry.open_exporter(name) as exporter,
        registry.open_importer("core") as importer,
    ):
        run_storm(
            area,
            worker=first,
            first_thread=first,
            threads=threads,
            program=program(milliseconds),
            exporter=exporter.binding(),
            importer=importer.binding(),
            cpus=cpus,
        )


def run_engine(
    name: str, processes: int, threads: int, milliseconds: int, cpu: int
) -> dict[str, Any]:
    """One cell: rate, latencies in microseconds, and the share of the slowest thread."""
    total = processes * threads
    with Area.create(total) as area:
        command = [sys.executable, "-m", "tests.bench.bench_gpu", "--worker", name, str(area.fd)]
        workers = [
            subprocess.Popen(
                [*command, str(i * threads), str(threads), str(milliseconds), str(cpu)],
                pass_fds=(area.fd,),
                cwd=ROOT,
            )
            for i in range(processes)
        ]
        try:
            if not area.wait_ready(range(total), 60):
                raise SystemExit(f"{name}: workers did not get ready")
            assertions = count_assertions()
            area.start()
            status = [worker.wait(timeout=60) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
        if any(status):
            raise SystemExit(f"{name}: a worker failed: {status}")
        ops = {op.op: op for op in area.snapshot(range(total)).summaries()}
        rates = area.thread_rates(range(total))
    cell: dict[str, Any] = {"rate": round(ops["EXPORT"].count / milliseconds * 1000)}
    for op, summary in ops.items():
        t = summary.latency
        cell[op] = [round(ns / 1000, 1) for ns in (t.p50_ns, t.p99_ns, t.p999_ns, t.max_ns)]
        cell["errors"] = cell.get("errors", 0) + sum(summary.errors.values())
    counts = sorted(rate.count for rate in rates)
    cell["slowest thread / mean"] = round(counts[0] / (sum(counts) / len(counts)), 2)
    cell["assertions"] = count_assertions() - assertions
    return cell


def count_assertions() -> int:
    """Lines of the kernel log that hold an NVRM assertion; -1 where it cannot be read."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return -1
    found = 0
    try:
        while True:
            try:
                record = os.read(fd, 8192)
            except BrokenPipeError:
                continue
            except BlockingIOError:
                return found
            found += b"NVRM" in record and b"ssert" in record
    finally:
        os.close(fd)


def build_plain(directory: str) -> str:
    target = str(Path(directory) / "gpu_export")
    source = str(ROOT / "native" / "bench" / "gpu_export.c")
    flags = ["-std=c11", "-O2", "-pthread"]
    subprocess.run([os.environ.get("CC", "cc"), *flags, source, "-ldl", "-o", target], check=True)
    return target


def run_plain(program_path: str, name: str, threads: int, milliseconds: int, cpu: int) -> float:
    command = [program_path, name, *map(str, (threads, milliseconds, SIZE, cpu))]
    return float(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)


def measure_pairs(plain: str, name: str, rounds: int, milliseconds: int) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for threads in PAIR_THREADS:
        engine, c = [], []
        for turn in range(rounds):
            for which in ("engine", "plain") if turn % 2 else ("plain", "engine"):
                if which == "plain":
                    c.append(round(run_plain(plain, name, threads, milliseconds, -1)))
                else:
                    engine.append(run_engine(name, 1, threads, milliseconds, -1)["rate"])
        ratio = statistics.median(engine) / statistics.median(c)
        pairs[str(threads)] = {"engine": engine, "plain": c, "ratio": round(ratio, 3)}
    return pairs


def measure_curve(name: str, milliseconds: int) -> dict[str, Any]:
    curve: dict[str, Any] = {}
    for threads in THREADS:
        curve[f"{threads} threads"] = run_engine(name, 1, threads, milliseconds, -1)
    for threads in THREADS[1:]:
        curve[f"{threads} threads on one CPU"] = run_engine(name, 1, threads, milliseconds, 0)
    for processes in THREADS[1:]:
        curve[f"{processes} processes"] = run_engine(name, processes, 1, milliseconds, -1)
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--worker", nargs=6, metavar="ARG")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--milliseconds", type=int, default=700)
    parser.add_argument("--exporters", default="rm,cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.worker:
        name, *numbers = options.worker
        fd, first, threads, milliseconds, cpu = map(int, numbers)
        run_worker(name, fd, first, threads, milliseconds, cpu)
        return
    results: dict[str, Any] = {"size": SIZE, "cpus": os.cpu_count(), "kernel": os.uname().release}
    with tempfile.TemporaryDirectory() as directory:
        plain = build_plain(directory)
        for name in options.exporters.split(","):
            with registry.open_exporter(name) as exporter:
                part = exporter.describe()
            results[name] = {
                "stack": {"bdf": part.bdf, "version": part.version, **part.details},
                "pairs": measure_pairs(plain, name, options.rounds, options.milliseconds),
                "curve": measure_curve(name, options.milliseconds),
            }
    text = json.dumps(results, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
