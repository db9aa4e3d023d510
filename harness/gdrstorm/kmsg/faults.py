"""Records to events. Pure and of constant memory."""

from __future__ import annotations

from collections.abc import Iterable

from gdrstorm.kmsg.record import Gap, Record
from gdrstorm.model.event import Event


class Classifier:
    """Feed records in order; completed events come out, each once.

    feed() and tick() return events that are complete; started() gives events whose first line came since
    the last call (same id as the completed event that follows later; count and lines still grow).
    """

    def feed(self, record: Record | Gap) -> list[Event]:
        """Take one record; return the events that it (or the passing of time) completed."""
        raise NotImplementedError

    def started(self) -> list[Event]:
        """Events that began since the last call, as known now. For alarms within milliseconds."""
        raise NotImplementedError

    def tick(self, time_ns: int) -> list[Event]:
        """Nothing was logged until time_ns (the log's clock): complete what that closes."""
        raise NotImplementedError

    def flush(self) -> list[Event]:
        """The log ended: complete everything."""
        raise NotImplementedError


def classify(records: Iterable[Record | Gap]) -> list[Event]:
    """All events of a whole log, repeats merged by (class, device, code), in order of first line."""
    raise NotImplementedError
