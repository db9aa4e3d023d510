"""Log and counters say the same thing twice: keep the larger count, and say by how much they differ. Pure.

The kernel's log is rate limited and a counter is not, or a counter was reset and the log was not: whichever
saw more is right about how often.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gdrstorm.kmsg.bodies import aer_name_of
from gdrstorm.model.event import Detail, Event, EventClass, Source

_COUNTING = frozenset({Source.AER_COUNTER, Source.TRACEFS})


def _matches(log: Event, counter: Event) -> bool:
    """Do both speak of the same kind of fault on the same device?"""
    if log.cls is not counter.cls or log.device is None or log.device != counter.device:
        return False
    if counter.cls is EventClass.IOMMU:
        # The trace event has no reason, only that there was a fault.
        return True
    bits = {aer_name_of(name) for name in (log.detail("bits") or "").split(" ")}
    return counter.code in bits | {aer_name_of(log.code or "")}


def _merged(log: Event, counter: Event) -> Event:
    count = max(log.count, counter.count)
    said = (
        Detail("log_count", str(log.count - log.missed)),
        Detail(f"{counter.source.value}_count", str(counter.count)),
        Detail("difference", str(counter.count - log.count)),
    )
    return msgspec.structs.replace(
        log,
        count=count,
        missed=log.missed + count - log.count,
        linked=(*log.linked, counter.id),
        details=(*log.details, *said),
    )


def reconcile(log: Iterable[Event], counters: Iterable[Event]) -> list[Event]:
    """Log events with counts made whole, then those counter events that the log did not know at all.

    Counter events are cumulative over the same time: several of one key are added up first.
    """
    totals: dict[tuple[EventClass, str | None, str | None, Source], Event] = {}
    rest: list[Event] = []
    for event in counters:
        if event.source not in _COUNTING:
            rest.append(event)
            continue
        key = (*event.key, event.source)
        known = totals.get(key)
        totals[key] = (
            msgspec.structs.replace(
                known, count=known.count + event.count, last_time_ns=event.last_time_ns
            )
            if known
            else event
        )
    merged: list[Event] = []
    used: set[str] = set()
    for event in log:
        for counter in totals.values():
            if counter.id not in used and _matches(event, counter):
                used.add(counter.id)
                event = _merged(event, counter)
        merged.append(event)
    return merged + [event for event in totals.values() if event.id not in used] + rest
