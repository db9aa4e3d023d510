"""Event queues: the device's only way to tell the driver that something happened.

An entry is written with an owner bit that flips each time the ring wraps; an interrupt follows
when the driver armed the queue. Entry formats from include/linux/mlx5/device.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from gdrstorm.bed.connectx.memory import PagedBuffer
from gdrstorm.bed.connectx.oracle import Oracle
from gdrstorm.bed.connectx.prm import EQE_BYTES, Event
from gdrstorm.bed.vfio_user.device import DmaError

_COUNTER_MASK: Final = 0xFFFFFF


def pack_event(kind: int, subtype: int, data: bytes, owner: int) -> bytes:
    """One entry; `data` is at most 28 bytes."""
    return struct.pack(">xBxB28x28s3xB", kind, subtype, data, owner)


class EventQueue:
    """One EQ of the function."""

    def __init__(
        self,
        number: int,
        log_size: int,
        vector: int,
        mask: int,
        buffer: PagedBuffer,
        raise_irq: Callable[[int], None],
    ) -> None:
        self.number = number
        self.log_size = log_size
        self.vector = vector
        self.mask = mask
        self._buffer = buffer
        self._raise_irq = raise_irq
        self.producer = 0
        self.consumer = 0
        # The driver arms a new queue itself; until then nothing is lost, only silent.
        self.armed = False

    def post(self, kind: int, subtype: int, data: bytes) -> bool:
        """Write one entry and interrupt if armed; False when the ring is full. DmaError."""
        size = 1 << self.log_size
        if (self.producer - self.consumer & _COUNTER_MASK) >= size:
            return False
        owner = self.producer >> self.log_size & 1
        at = (self.producer & size - 1) * EQE_BYTES
        self._buffer.write(at, pack_event(kind, subtype, data, owner))
        self.producer = self.producer + 1 & _COUNTER_MASK
        if self.armed:
            self.armed = False
            self._raise_irq(self.vector)
        return True

    def doorbell(self, consumer: int, arm: bool) -> None:
        """The driver read up to `consumer`, and perhaps wants the next interrupt."""
        self.consumer = consumer & _COUNTER_MASK
        if not arm:
            return
        if self.producer != self.consumer:
            self.armed = False
            self._raise_irq(self.vector)
        else:
            self.armed = True


class EventQueues:
    """All EQs of a function and which of them takes which event."""

    def __init__(self, oracle: Oracle, now_ns: Callable[[], int], function: int) -> None:
        self.queues: dict[int, EventQueue] = {}
        self._oracle = oracle
        self._now_ns = now_ns
        self._function = function

    def free_number(self) -> int | None:
        return next((n for n in range(1, 64) if n not in self.queues), None)

    def listener(self, event: Event) -> EventQueue | None:
        """The queue whose mask holds this event."""
        bit = 1 << event
        return next((q for q in self.queues.values() if q.mask & bit), None)

    def report(self, event: Event, subtype: int = 0, data: bytes = b"") -> bool:
        """Tell the driver of an asynchronous event; False when nobody listens."""
        queue = self.listener(event)
        return queue is not None and self.post(queue, event, subtype, data)

    def complete(self, number: int, cqn: int) -> None:
        """Tell the driver that a CQ has news."""
        queue = self.queues.get(number)
        if queue is not None:
            self.post(queue, Event.COMPLETION, 0, struct.pack(">24xI", cqn))

    def post(self, queue: EventQueue, event: Event, subtype: int, data: bytes) -> bool:
        self._oracle.events[event.name] += 1
        try:
            posted = queue.post(event, subtype, data)
        except DmaError:
            return False
        if not posted:
            what = f"EQ {queue.number} overrun by {event.name}"
            self._oracle.anomaly(self._now_ns(), self._function, what)
        return posted
