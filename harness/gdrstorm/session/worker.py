"""A worker process: opens the back ends, does one job of one phase, closes them, says how it went.

Started by the supervisor as `python -m gdrstorm.session.worker FD PARENT NICE`. It is the only kind of process that
touches the device under test; it may hang, crash or be killed at any time.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import traceback
from collections import Counter

from gdrstorm.engine import Area, StormProgram, run_storm
from gdrstorm.errors import GdrstormError
from gdrstorm.model.plan import WorkerPlan
from gdrstorm.model.scenario import Do, Group
from gdrstorm.session import wire
from gdrstorm.session.process import descriptor_kinds, die_with_parent
from gdrstorm.stack import registry, tables
from gdrstorm.stack.exporter import Exporter
from gdrstorm.stack.importer import Importer


def program_of(plan: WorkerPlan, group: Group) -> StormProgram:
    """The engine's form of a group; every group of one run gets its own stream of random numbers."""
    memory = group.memory
    return StormProgram(
        cycle=group.cycle,
        seed=plan.seed,
        depth=group.depth,
        order=group.order,
        share=memory.share,
        size_min_bytes=memory.size_min_bytes,
        size_max_bytes=memory.size_max_bytes,
        size_step_bytes=memory.size_step_bytes,
        offset_max_bytes=memory.offset_max_bytes,
        length_bytes=memory.length_bytes,
        access=group.access,
        rereg_access=group.rereg_access,
        pacing_ns=group.pacing_ns,
        delay_ns=group.delay_ns,
        duration_ns=plan.duration_ns,
        count=plan.count,
    )


def _storm(job: wire.Job, exporter: Exporter, importer: Importer, sock: socket.socket) -> None:
    plan = job.plan
    assert plan.group is not None
    before = descriptor_kinds()
    cpus = (min(os.sched_getaffinity(0)),) if plan.group.one_cpu else ()
    area = Area.attach(job.area_fd)
    try:
        run_storm(
            area,
            worker=plan.worker,
            first_thread=plan.first_thread,
            threads=plan.threads,
            program=program_of(plan, plan.group),
            exporter=exporter.binding(),
            importer=importer.binding(),
            cpus=cpus,
        )
    finally:
        area.close()
    left: Counter[str] = descriptor_kinds() - before
    wire.send(sock, wire.StormDone({kind: count for kind, count in left.items() if _counts(kind)}))


def _counts(kind: str) -> bool:
    """Descriptors a storm may leave: its buffers and memory. Library caches of device nodes are no leak."""
    return "dmabuf" in kind or "memfd" in kind or "nvidia" in kind


def _check_data(exporter: Exporter, importer: Importer, sock: socket.socket) -> None:
    result = tables.verify_data(exporter, importer)
    wire.send(sock, wire.CheckDone(result.name, result.passed, result.detail))


def work(sock: socket.socket) -> int:
    """Do the job that comes on the socket. Returns the exit status: 0, or that of the error's class."""
    job = wire.receive_job(sock)
    stack = job.plan.stack
    try:
        with (
            registry.open_exporter(stack.exporter, stack.exporter_device or None) as exporter,
            registry.open_importer(stack.importer, stack.importer_device or None) as importer,
        ):
            wire.send(sock, wire.Opened(exporter.describe(), importer.describe()))
            if job.plan.do is Do.GATE:
                results = tables.run_gate(job.plan.table, exporter, importer)
                wire.send(sock, wire.GateDone(results))
            else:
                if job.plan.verify:
                    _check_data(exporter, importer, sock)
                _storm(job, exporter, importer, sock)
    except GdrstormError as error:
        wire.send(sock, wire.Failed(str(error), error.exit_code))
        return error.exit_code
    except Exception as error:
        traceback.print_exc()
        wire.send(sock, wire.Failed(f"{type(error).__name__}: {error}", 3))
        return 3
    return 0


def main() -> int:
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor decides what Ctrl-C means
    die_with_parent(int(sys.argv[2]))
    os.setpriority(os.PRIO_PROCESS, 0, int(sys.argv[3]))  # the supervisor's raised one is inherited
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        return work(sock)


if __name__ == "__main__":
    sys.exit(main())
