"""One thread that waits for descriptors and timers and runs their callbacks; idle costs nothing.

A callback that raises ends the loop: whoever wants to survive a fault catches it itself.
"""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import time
from collections.abc import Callable
from typing import Final

READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE

_MAX_CANCELLED: Final = 1024

EventHandler = Callable[[int], None]


class LoopTimer:
    """A callback at a time; the Timer of ``device.py``."""

    __slots__ = ("_loop", "callback")

    def __init__(self, loop: EventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self._loop.forget_cancelled()


class EventLoop:
    """Owns its selector and wake-up pipe; ``close`` when done."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._handlers: dict[int, EventHandler] = {}
        self._timers: list[tuple[int, int, LoopTimer]] = []  # due_ns, order, timer
        self._cancelled = 0
        self._order = itertools.count()
        self._stopping = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.watch(self._wake_read, READ, self._drain)

    @property
    def wake_fd(self) -> int:
        """A byte written here (``signal.set_wakeup_fd``) ends the wait."""
        return self._wake_write

    def watch(self, fd: int, events: int, handler: EventHandler) -> None:
        """Call ``handler(ready events)``; watching a descriptor again replaces the events."""
        if fd in self._handlers:
            self._selector.modify(fd, events, handler)
        else:
            self._selector.register(fd, events, handler)
        self._handlers[fd] = handler

    def unwatch(self, fd: int) -> None:
        """Legal when it is not watched."""
        if self._handlers.pop(fd, None) is not None:
            self._selector.unregister(fd)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> LoopTimer:
        due_ns = time.monotonic_ns() + max(0, round(delay_s * 1e9))
        timer = LoopTimer(self, callback)
        heapq.heappush(self._timers, (due_ns, next(self._order), timer))
        return timer

    def forget_cancelled(self) -> None:
        """Called by a timer that was cancelled: most retry timers are, long before they are due."""
        self._cancelled += 1
        if self._cancelled > _MAX_CANCELLED and self._cancelled * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if entry[2].callback is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def run(self) -> None:
        """Until ``stop``."""
        while not self._stopping:
            self.turn(None)

    def turn(self, timeout_s: float | None) -> None:
        """Wait once, at most ``timeout_s``, then run what is ready and what is due."""
        wait = self._wait_s(timeout_s)
        for key, events in self._selector.select(wait):
            # An earlier handler of this turn may have closed this descriptor.
            handler = self._handlers.get(key.fd)
            if handler is not None and handler == key.data:
                handler(events)
        self._run_timers()

    def _wait_s(self, timeout_s: float | None) -> float | None:
        if not self._timers:
            return timeout_s
        until = max(0, self._timers[0][0] - time.monotonic_ns()) / 1e9
        return until if timeout_s is None else min(until, timeout_s)

    def _run_timers(self) -> None:
        if not self._timers:
            return
        # Only what was asked for before: a callback that asks for 0 s waits for the next turn.
        limit = (time.monotonic_ns(), next(self._order))
        while self._timers and self._timers[0][:2] < limit:
            timer = heapq.heappop(self._timers)[2]
            callback, timer.callback = timer.callback, None
            if callback is None:
                self._cancelled -= 1
            else:
                callback()

    def stop(self) -> None:
        """End ``run`` after this turn; callable from a signal handler."""
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        if self._wake_write < 0:
            return
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            return  # full: it will wake up anyway

    def _drain(self, _events: int) -> None:
        os.read(self._wake_read, 4096)

    def close(self) -> None:
        """Legal twice."""
        if self._wake_read >= 0:
            self._selector.close()
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_read = self._wake_write = -1
