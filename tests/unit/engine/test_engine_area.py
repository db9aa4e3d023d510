"""The shared area: attaching, other processes, and workers that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from engine_storms import LIMIT_S, program, run, running, until

from gdrstorm.engine import Area, ThreadState
from gdrstorm.errors import CallError, UsageError
from gdrstorm.model.op import Op

WORKER = """
import sys
from gdrstorm.engine import Area, ExporterBinding, ImporterBinding, StormProgram, run_storm
from gdrstorm.model.op import Op

fd, worker, first, hang_at = map(int, sys.argv[1:])
cycle = (Op.ALLOC, Op.EXPORT, Op.REG, Op.DEREG, Op.CLOSE, Op.FREE)
run_storm(
    Area.attach(fd),
    worker=worker,
    first_thread=first,
    threads=2,
    program=StormProgram(cycle=cycle, seed=3, depth=4, count=1000),
    exporter=ExporterBinding("fake"),
    importer=ImporterBinding("fake", numbers=(0, 0, 0, 0, 0, Op.DEREG, hang_at, 0)),
)
"""
HARNESS = str(Path(__file__).resolve().parents[3] / "harness")


def start_worker(area: Area, worker: int, hang_at: int) -> subprocess.Popen[bytes]:
    arguments = [str(n) for n in (area.fd, worker, 2 * worker, hang_at)]
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, *arguments],
        pass_fds=[area.fd],
        env=os.environ | {"PYTHONPATH": HARNESS},
    )


def test_a_killed_worker_leaves_a_readable_area_and_the_other_ends_well() -> None:
    with Area.create(4) as area:
        hung, good = start_worker(area, 0, hang_at=50), start_worker(area, 1, hang_at=0)
        try:
            assert area.wait_ready(range(4), LIMIT_S)
            area.start()
            assert good.wait(LIMIT_S) == 0
            calls = until(
                lambda: c if len(c := area.in_flight(range(4), 50_000_000)) == 2 else None
            )
            assert {(c.op, c.thread, c.worker) for c in calls} == {("DEREG", 0, 0), ("DEREG", 1, 0)}
            tasks = {int(task.name) for task in Path(f"/proc/{hung.pid}/task").iterdir()}
            assert {c.tid for c in calls} <= tasks
            hung.send_signal(signal.SIGKILL)
            assert hung.wait(LIMIT_S) == -signal.SIGKILL
        finally:
            hung.kill()
            good.kill()
        assert [c.op for c in area.in_flight(range(2))] == ["DEREG"] * 2
        assert area.states(range(4)) == (ThreadState.RUNNING,) * 2 + (ThreadState.DONE,) * 2
        dead, done = area.snapshot(range(2)), area.snapshot(range(2, 4))
        counts = {s.op: s.count for s in dead.summaries()}
        assert (counts["DEREG"], counts["CLOSE"], counts["REG"]) == (2 * 49, 2 * 49, 2 * 53)
        assert (dead.outstanding, done.outstanding) == (8, 0)
        assert {s.count for s in done.summaries()} == {2000}
        assert [r.worker for r in area.thread_rates(range(4))] == [0, 0, 1, 1]


def test_snapshots_grow_and_their_difference_is_what_came_between() -> None:
    with Area.create(2) as area, running(area, program(count=1 << 60)):
        first = until(lambda: s if (s := area.snapshot(range(2))).summaries() else None)
        before = {s.op: s.count for s in first.summaries()}
        second = until(
            lambda: s if (s := area.snapshot(range(2))).summaries() != first.summaries() else None
        )
        total = {s.op: s.count for s in second.summaries()}
        between = {s.op: s.count for s in second.minus(first).summaries()}
        grown = {op: n - before.get(op, 0) for op, n in total.items()}
        assert between == {op: n for op, n in grown.items() if n}
        assert second.time_ns > first.time_ns


def test_attach_takes_only_an_area(tmp_path: Path) -> None:
    with Area.create(3) as area:
        size = os.fstat(area.fd).st_size
        other = Area.attach(area.fd)
        assert other.fd != area.fd
        assert other.thread_count == 3
        other.close()
        header = os.pread(area.fd, 64, 0)
    file = tmp_path / "no-area"
    for content, length in ((b"", 0), (b"x" * 64, size), (header, size - 4096), (header, size * 2)):
        file.write_bytes(content)
        os.truncate(file, length)
        with file.open("r+b") as f, pytest.raises(CallError, match="EPROTO"):
            Area.attach(f.fileno())
    file.write_bytes(header[:8] + b"\x63" + header[9:])
    os.truncate(file, size)
    with file.open("r+b") as f, pytest.raises(CallError, match="EPROTO"):
        Area.attach(f.fileno())
    with pytest.raises(CallError, match="EBADF"):
        Area.attach(-1)


def test_an_area_cannot_be_cut() -> None:
    with Area.create(1) as area, pytest.raises(PermissionError):
        os.ftruncate(area.fd, 0)


def test_wrong_use_is_named() -> None:
    with pytest.raises(UsageError, match="0 threads"):
        Area.create(0)
    area = Area.create(2)
    for wrong in (range(3), range(-1, 1), range(0, 2, 2), range(2, 1)):
        with pytest.raises(UsageError, match="not within"):
            area.snapshot(wrong)
    area.close()
    area.close()
    with pytest.raises(UsageError, match="closed"):
        area.states(range(1))


def test_untouched_threads_cost_no_memory() -> None:
    """Areas are sparse: reading slots that nobody used, and storms of one operation, fill few pages."""
    with Area.create(1000) as area:
        area.snapshot(range(1000))
        area.in_flight(range(1000))
        assert os.fstat(area.fd).st_blocks * 512 < 1000 * 2 * 4096 + 65536
        assert area.states(range(1000)) == (ThreadState.UNUSED,) * 1000
    with Area.create(10) as area:
        area.start()
        run(area, program((Op.CONTROL,), count=100))
        area.snapshot(range(10))
        assert os.fstat(area.fd).st_blocks * 512 < 10 * 48 * 1024


def test_wait_ready_times_out() -> None:
    with Area.create(1) as area:
        assert not area.wait_ready(range(1), 0.001)
        assert area.wait_ready(range(0), 0.0)
