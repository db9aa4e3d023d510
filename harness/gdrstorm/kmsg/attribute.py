"""What ran when it happened: an event, the run's markers and the calls in flight, to an Attribution. Pure.

What came before the first marker is never blamed on the run; what comes up to the stated tail after the last
operation still belongs to it. Sequence numbers decide where an event has one, times where it has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gdrstorm.model.event import Attribution, Belongs, Event, Relation, Source


class Marker(msgspec.Struct, frozen=True):
    """A line of ours in the kernel log: from here on this phase ran."""

    seq: int
    time_ns: int
    phase: str


class Call(msgspec.Struct, frozen=True):
    """One call of a worker; end_ns is None while it is in flight."""

    worker: int
    name: str
    begin_ns: int
    end_ns: int | None = None


class RunSpan(msgspec.Struct, frozen=True):
    """One run: its markers in order, when its last operation ended (None: it goes on), and its devices."""

    markers: Sequence[Marker]
    end_ns: int | None = None
    tail_ns: int = 5_000_000_000
    seed: int | None = None
    under_test: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()


def relation_of(device: str | None, span: RunSpan) -> Relation:
    """Under test; beside: named so (a port or switch above), or another function of the same card."""
    if device is None:
        return Relation.UNKNOWN
    if device in span.under_test:
        return Relation.UNDER_TEST
    cards = {bdf.rsplit(".", 1)[0] for bdf in span.under_test}
    if device in span.beside or device.rsplit(".", 1)[0] in cards:
        return Relation.BESIDE
    return Relation.UNRELATED


def _over_before(event: Event, marker: Marker) -> bool:
    """Was the event over before the marker? By sequence for log events, else by time."""
    if event.source is Source.KMSG:
        return event.last_seq < marker.seq
    return event.time_ns < marker.time_ns


def _begun_before(event: Event, marker: Marker) -> bool:
    if event.source is Source.KMSG:
        return event.first_seq < marker.seq
    return event.time_ns < marker.time_ns


def _belongs(event: Event, span: RunSpan) -> Belongs:
    if not span.markers or _over_before(event, span.markers[0]):
        return Belongs.PRE_EXISTING
    if span.end_ns is None or event.time_ns <= span.end_ns:
        return Belongs.RUN
    return Belongs.TAIL if event.time_ns <= span.end_ns + span.tail_ns else Belongs.AFTER


def attribute(
    event: Event, span: RunSpan, calls: Iterable[Call] = (), slack_ns: int = 100_000_000
) -> Event:
    """The event with what ran around its first moment; slack_ns: how long before it a call may have ended."""
    phase = None
    for marker in span.markers:
        if _begun_before(event, marker):
            break
        phase = marker.phase
    near = [
        call
        for call in calls
        if call.begin_ns <= event.time_ns
        and (call.end_ns is None or call.end_ns >= event.time_ns - slack_ns)
    ]
    belongs = _belongs(event, span)
    blamed = near if belongs is not Belongs.PRE_EXISTING else []
    return msgspec.structs.replace(
        event,
        attribution=Attribution(
            belongs=belongs,
            relation=relation_of(event.device, span),
            phase=phase,
            workers=tuple(sorted({call.worker for call in blamed})),
            calls=tuple(sorted({call.name for call in blamed})),
            seed=span.seed,
        ),
    )
