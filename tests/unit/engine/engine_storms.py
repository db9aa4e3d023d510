"""A storm in this process: the worker is a thread, the test is the supervisor."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from gdrstorm.engine import Area, ExporterBinding, ImporterBinding, StormProgram, run_storm
from gdrstorm.engine.native import load
from gdrstorm.model.op import Op

FULL = (Op.ALLOC, Op.EXPORT, Op.REG, Op.DEREG, Op.CLOSE, Op.FREE)
FAKE = "fake"
LIMIT_S = 30.0
T = TypeVar("T")


class Plant(NamedTuple):
    """Numbers of a fake binding, native/src/fake.h."""

    delay_ns: int = 0
    fail_op: int = 0
    fail_every: int = 0
    errno: int = 0
    fail_at: int = 0
    hang_op: int = 0
    hang_at: int = 0
    hang_ns: int = 0


class Live(NamedTuple):
    """What the fake back ends still have after a storm, and how often the engine broke their rules."""

    memory: int
    buffers: int
    registrations: int
    misuses: int


NOTHING = Live(0, 0, 0, 0)


def live() -> Live:
    lib = load().lib
    return Live(*(lib.gs_fake_live(kind) for kind in range(4)))


def program(cycle: tuple[Op, ...] = FULL, **changes: Any) -> StormProgram:
    defaults: dict[str, Any] = {"seed": 1, "count": 10}
    if "duration_ns" in changes:
        defaults["count"] = 0
    return StormProgram(cycle=cycle, **(defaults | changes))


def run(
    area: Area,
    storm: StormProgram,
    exporter: Plant = Plant(),  # noqa: B008
    importer: Plant = Plant(),  # noqa: B008
    cpus: tuple[int, ...] = (),
) -> None:
    """The storm on all threads of the area, fake back ends."""
    run_storm(
        area,
        worker=0,
        first_thread=0,
        threads=area.thread_count,
        program=storm,
        exporter=ExporterBinding(FAKE, numbers=exporter),
        importer=ImporterBinding(FAKE, numbers=importer),
        cpus=cpus,
    )


@contextmanager
def running(area: Area, storm: StormProgram, **options: Any) -> Iterator[threading.Thread]:
    """The storm in a thread of its own, started; at the end it is stopped and joined."""
    worker = threading.Thread(target=run, args=(area, storm), kwargs=options, daemon=True)
    worker.start()
    assert area.wait_ready(range(area.thread_count), LIMIT_S)
    area.start()
    try:
        yield worker
    finally:
        area.request_stop()
        worker.join(LIMIT_S)
        assert not worker.is_alive()


def until(read: Callable[[], T]) -> T:
    """Wait until `read` gives something; the test fails when it does not."""
    end = time.monotonic() + LIMIT_S
    while not (value := read()):
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.002)
    return value
