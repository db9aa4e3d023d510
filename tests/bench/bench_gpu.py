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
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gdrstorm.audit.profile import Sampler
from gdrstorm.engine import Area, StormProgram, run_storm
from gdrstorm.model.op import Op, OpSummary
from gdrstorm.stack import registry

ROOT = Path(__file__).resolve().parents[2]
SIZE = 2 << 20
THREADS = (1, 2, 4, 8, 16)
PAIR_THREADS = (1, 4, 16)


STORM = (Op.EXPORT, Op.CLOSE)
BYSTANDER = (Op.CONTROL,)


def program(milliseconds: int, cycle: tuple[Op, ...]) -> StormProgram:
    return StormProgram(
        cycle=cycle,
        seed=1,
        size_min_bytes=SIZE,
        size_max_bytes=SIZE,
        duration_ns=milliseconds * 1_000_000,
    )


class Job(NamedTuple):
    """One worker process: an exporter, its thread slots, and the CPU of all.

    `cpu` -1: not pinned, -2: thread i on CPU i.
    """

    name: str
    first: int
    threads: int
    milliseconds: int
    cpu: int = -1
    is_bystander: int = 0


def run_worker(fd: int, job: Job) -> None:
    """Inside a worker: the threads wait at the start line of the area behind `fd`."""
    with (
        Area.attach(fd) as area,
        registry.open_exporter(job.name) as exporter,
        registry.open_importer("core") as importer,
    ):
        run_storm(
            area,
            worker=job.first,
            first_thread=job.first,
            threads=job.threads,
            program=program(job.milliseconds, BYSTANDER if job.is_bystander else STORM),
            exporter=exporter.binding(),
            importer=importer.binding(),
            cpus={-1: (), -2: tuple(range(job.threads))}.get(job.cpu, (job.cpu,)),
        )


def run_jobs(area: Area, jobs: Sequence[Job], sampler: Sampler | None = None) -> int:
    """Run workers side by side to their end; assertions that the driver logged meanwhile."""
    command = [sys.executable, "-m", "tests.bench.bench_gpu", "--worker", str(area.fd)]
    workers = [
        subprocess.Popen([*command, *map(str, job)], pass_fds=(area.fd,), cwd=ROOT) for job in jobs
    ]
    try:
        if not area.wait_ready(range(area.thread_count), 60):
            raise SystemExit("workers did not get ready")
        before = count_assertions()
        area.start()
        for _ in range(50 if sampler else 0):
            assert sampler is not None
            sampler.look([worker.pid for worker in workers])
            time.sleep(0.01)
        status = [worker.wait(timeout=60) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    if any(status):
        raise SystemExit(f"a worker failed: {status}")
    return count_assertions() - before


def run_engine(
    name: str, processes: int, threads: int, milliseconds: int, cpu: int
) -> dict[str, Any]:
    """One cell: rate, latencies in microseconds, and the share of the slowest thread."""
    total = processes * threads
    with Area.create(total) as area:
        jobs = [Job(name, i * threads, threads, milliseconds, cpu) for i in range(processes)]
        assertions = run_jobs(area, jobs)
        ops = {op.op: op for op in area.snapshot(range(total)).summaries()}
        rates = area.thread_rates(range(total))
    counts = sorted(rate.count for rate in rates)
    return {
        "rate": round(ops["EXPORT"].count / milliseconds * 1000),
        **{op: _microseconds(summary) for op, summary in ops.items()},
        "errors": sum(sum(op.errors.values()) for op in ops.values()),
        "slowest thread / mean": round(counts[0] / (sum(counts) / len(counts)), 2),
        "assertions": assertions,
    }


def _microseconds(summary: OpSummary) -> list[float]:
    """p50, p99, p99.9, max."""
    t = summary.latency
    return [round(ns / 1000, 1) for ns in (t.p50_ns, t.p99_ns, t.p999_ns, t.max_ns)]


def measure_blame(name: str, milliseconds: int) -> dict[str, Any]:
    """A bystander's call alone and beside 8 exporting threads, and where those threads sleep."""
    cells: dict[str, Any] = {}
    # CUDA's own helper thread sleeps in poll and has nothing to do with the storm
    sampler = Sampler(ignore=("futex_wait", "do_sys_poll"))
    for key, threads in (("alone", 0), ("beside 8 threads", 8)):
        with Area.create(threads + 1) as area:
            jobs = [Job(name, threads, 1, milliseconds, -1, 1)]
            jobs += [Job(name, 0, threads, milliseconds)] if threads else []
            run_jobs(area, jobs, sampler if threads else None)
            (control,) = area.snapshot(range(threads, threads + 1)).summaries()
        cells[key] = {
            "rate": round(control.count / milliseconds * 1000),
            "CONTROL": _microseconds(control),
        }
    profile = sampler.profile()
    cells["blocked stacks"] = profile.summary
    cells["places"] = {f"{p.function} < {p.caller}": p.count for p in profile.places}
    return cells


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
                    c.append(round(run_plain(plain, name, threads, milliseconds, -2)))
                else:
                    engine.append(run_engine(name, 1, threads, milliseconds, -2)["rate"])
        each = [a / b for a, b in zip(engine, c, strict=True)]
        error = 2 * statistics.stdev(each) / len(each) ** 0.5
        pairs[str(threads)] = {
            "engine": engine,
            "plain": c,
            "ratio of medians": round(statistics.median(engine) / statistics.median(c), 3),
            "mean ratio": round(statistics.fmean(each), 3),
            "two standard errors": round(error, 3),
        }
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
    parser.add_argument("--worker", nargs=7, metavar="ARG")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--milliseconds", type=int, default=700)
    parser.add_argument("--exporters", default="rm,cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.worker:
        fd, name, *numbers = options.worker
        run_worker(int(fd), Job(name, *map(int, numbers)))
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
                "bystander": measure_blame(name, 2 * options.milliseconds),
            }
            print(name, json.dumps(results[name], indent=1), flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
