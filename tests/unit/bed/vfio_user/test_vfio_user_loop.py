"""The event loop: order, cancelling, closing inside a turn, and sleeping while idle."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator

import pytest

from gdrstorm.bed.vfio_user.loop import READ, EventLoop


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    made = EventLoop()
    yield made
    made.close()
    made.close()


def test_timers_run_in_order_and_once(loop: EventLoop) -> None:
    seen: list[int] = []
    loop.call_later(0.002, lambda: seen.append(3))
    loop.call_later(0, lambda: seen.append(1))
    loop.call_later(0, lambda: seen.append(2))
    loop.call_later(0.004, loop.stop)
    loop.run()
    assert seen == [1, 2, 3]


def test_a_cancelled_timer_never_runs(loop: EventLoop) -> None:
    seen: list[int] = []
    timer = loop.call_later(0, lambda: seen.append(1))
    timer.cancel()
    timer.cancel()
    loop.call_later(0.001, loop.stop)
    loop.run()
    timer.cancel()
    assert seen == []


def test_cancelled_timers_do_not_pile_up(loop: EventLoop) -> None:
    for _ in range(20_000):
        loop.call_later(3600, lambda: None).cancel()
    assert len(loop._timers) < 3000


def test_a_timer_of_a_timer_waits_for_the_next_turn(loop: EventLoop) -> None:
    seen: list[int] = []

    def again() -> None:
        seen.append(len(seen))
        loop.call_later(0, again)

    loop.call_later(0, again)
    for turns in range(1, 4):
        loop.turn(0)
        assert len(seen) == turns


def test_a_descriptor_closed_in_the_same_turn_is_not_called(loop: EventLoop) -> None:
    pipes = [os.pipe() for _ in range(2)]
    called: list[int] = []

    def handler(number: int) -> None:
        called.append(number)
        for read, _write in pipes:
            loop.unwatch(read)

    loop.watch(pipes[0][0], READ, lambda _events: handler(0))
    loop.watch(pipes[1][0], READ, lambda _events: handler(1))
    for _read, write in pipes:
        os.write(write, b"x")
    loop.turn(0)
    loop.turn(0)
    assert len(called) == 1
    for pair in pipes:
        for fd in pair:
            os.close(fd)


def test_watching_again_keeps_the_handler_alive(loop: EventLoop) -> None:
    """Each mention of a method is a new object, equal to the last."""
    read, write = os.pipe()

    class Reader:
        seen = 0

        def ready(self, _events: int) -> None:
            self.seen += len(os.read(read, 16))

    reader = Reader()
    for expected in (1, 2):
        loop.watch(read, READ, reader.ready)
        os.write(write, b"x")
        loop.turn(0)
        assert reader.seen == expected
    os.close(read)
    os.close(write)


def test_idle_sleeps(loop: EventLoop) -> None:
    """A loop with nothing to do wakes up for its stop alone."""
    turns: list[int] = []
    original = loop.turn

    def counted(timeout_s: float | None) -> None:
        turns.append(1)
        original(timeout_s)

    loop.turn = counted  # type: ignore[method-assign]
    waker = threading.Timer(0.2, loop.stop)
    waker.start()
    before = resource.getrusage(resource.RUSAGE_THREAD)
    loop.run()
    after = resource.getrusage(resource.RUSAGE_THREAD)
    waker.join()
    assert len(turns) == 1
    assert after.ru_nvcsw - before.ru_nvcsw < 20
