"""Attribution and reconciliation: what ran, whose device it is, which count is right."""

from __future__ import annotations

import pytest

from gdrstorm.kmsg.attribute import Call, Marker, RunSpan, attribute, relation_of
from gdrstorm.kmsg.reconcile import reconcile
from gdrstorm.model.event import Belongs, Detail, Event, EventClass, Relation, Severity, Source

S = 10**9
GPU, NIC = "0000:81:00.0", "0000:c1:00.0"
SPAN = RunSpan(
    markers=[Marker(100, 10 * S, "storm"), Marker(200, 20 * S, "teardown")],
    end_ns=30 * S,
    tail_ns=5 * S,
    seed=7,
    under_test=frozenset({GPU, NIC}),
    beside=frozenset({"0000:80:01.0"}),
)


def event(
    seq: int = 150, time_ns: int = 15 * S, device: str | None = GPU, **other: object
) -> Event:
    fields: dict[str, object] = {
        "id": f"kmsg-{seq}",
        "cls": EventClass.AER,
        "severity": Severity.CORRECTED,
        "device": device,
        "code": "RxErr",
        "title": "AER corrected RxErr",
        "first_seq": seq,
        "last_seq": seq,
        "time_ns": time_ns,
    }
    return Event(**(fields | other))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seq", "time_ns", "belongs", "phase"),
    [
        (50, 5 * S, Belongs.PRE_EXISTING, None),
        (150, 15 * S, Belongs.RUN, "storm"),
        (250, 25 * S, Belongs.RUN, "teardown"),
        (260, 34 * S, Belongs.TAIL, "teardown"),
        (270, 36 * S, Belongs.AFTER, "teardown"),
    ],
)
def test_belongs_and_phase(seq: int, time_ns: int, belongs: Belongs, phase: str | None) -> None:
    told = attribute(event(seq, time_ns), SPAN).attribution
    assert told is not None
    assert (told.belongs, told.phase, told.seed) == (belongs, phase, 7)


def test_sequence_decides_for_log_events_and_time_for_the_others() -> None:
    late_clock = attribute(event(50, 15 * S), SPAN).attribution
    assert late_clock is not None
    assert late_clock.belongs is Belongs.PRE_EXISTING
    counter = attribute(event(0, 15 * S, source=Source.AER_COUNTER), SPAN).attribution
    assert counter is not None
    assert (counter.belongs, counter.phase) == (Belongs.RUN, "storm")


def test_calls_in_flight_and_just_over() -> None:
    calls = [
        Call(3, "REG", 14 * S, None),
        Call(1, "DEREG", 14 * S, 15 * S - 1000),
        Call(2, "CLOSE", 1 * S, 2 * S),
        Call(4, "EXPORT", 16 * S, None),
    ]
    told = attribute(event(), SPAN, calls).attribution
    assert told is not None
    assert (told.workers, told.calls) == ((1, 3), ("DEREG", "REG"))
    old = attribute(event(50, 14 * S), SPAN, calls).attribution
    assert old is not None
    assert old.workers == ()


@pytest.mark.parametrize(
    ("device", "relation"),
    [
        (GPU, Relation.UNDER_TEST),
        ("0000:c1:00.1", Relation.BESIDE),
        ("0000:80:01.0", Relation.BESIDE),
        ("0000:00:1f.0", Relation.UNRELATED),
        (None, Relation.UNKNOWN),
    ],
)
def test_relation(device: str | None, relation: Relation) -> None:
    assert relation_of(device, SPAN) is relation


def counted(count: int, number: int = 1, **other: object) -> Event:
    return event(0, source=Source.AER_COUNTER, count=count, id=f"aer-counter-{number}", **other)


def test_larger_count_is_kept_and_the_difference_told() -> None:
    (told,) = reconcile([event(count=3)], [counted(7, 1), counted(4, 2)])
    assert (told.count, told.missed) == (11, 8)
    assert told.detail("difference") == "8"
    assert told.linked == ("aer-counter-1",)
    (more,) = reconcile([event(count=30)], [counted(7)])
    assert (more.count, more.missed, more.detail("difference")) == (30, 0, "-23")


def test_old_long_names_and_further_bits_are_the_same_fault() -> None:
    long = event(code="Receiver Error")
    assert len(reconcile([long], [counted(2)])) == 1
    two = event(code="BadTLP", details=(Detail("bits", "BadTLP RxErr"),))
    assert len(reconcile([two], [counted(2)])) == 1


def test_what_the_log_never_said_stands_alone() -> None:
    found = reconcile([event()], [counted(2, device=NIC), counted(1, 2, code="BadDLLP")])
    assert [item.source for item in found] == [Source.KMSG, Source.AER_COUNTER, Source.AER_COUNTER]


def test_trace_faults_match_iommu_events_of_the_device() -> None:
    log = event(cls=EventClass.IOMMU, code="0x06")
    trace = event(
        0,
        cls=EventClass.IOMMU,
        code="io_page_fault",
        source=Source.TRACEFS,
        id="tracefs-1",
        count=9,
    )
    assert reconcile([log], [trace])[0].count == 9
