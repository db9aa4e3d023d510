"""Loads tests/data/kmsg for the tests beside it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from gdrstorm.kmsg.faults import classify
from gdrstorm.kmsg.record import Record, parse_lines
from gdrstorm.model.event import Event

DATA = Path(__file__).resolve().parents[2] / "data" / "kmsg"
Key = tuple[str, str | None, str | None]


class Answer(msgspec.Struct, frozen=True, rename={"cls": "class"}):
    """One expected event. severity and count are None where a case does not say."""

    cls: str
    device: str | None
    code: str | None
    severity: str | None = None
    count: int | None = None
    incomplete: bool | None = None

    @property
    def key(self) -> Key:
        return (self.cls, self.device, self.code)


class Case(msgspec.Struct, frozen=True):
    """One log with its right answers; benign when `events` is 0."""

    id: str
    lines: list[str]
    expect: Answer
    events: int
    note: str = ""
    events_max: int | None = None
    also: list[Answer] = []

    @property
    def most(self) -> int:
        return self.events_max or self.events


class Sample(msgspec.Struct, frozen=True):
    """One log with every event in it."""

    id: str
    lines: list[str]
    expect: list[Answer]


@cache
def corpus() -> tuple[Case, ...]:
    return tuple(msgspec.json.decode(line, type=Case) for line in _lines("corpus.jsonl"))


@cache
def samples() -> tuple[Sample, ...]:
    return tuple(msgspec.json.decode(line, type=Sample) for line in _lines("samples.jsonl"))


@cache
def benign() -> tuple[str, ...]:
    return tuple(_lines("benign.txt"))


def _lines(name: str) -> list[str]:
    return (DATA / name).read_text(encoding="utf-8").splitlines()


def key_of(event: Event) -> Key:
    return (event.cls.value, event.device, event.code)


def found_in(lines: list[str]) -> list[Event]:
    return classify(parse_lines(lines))


def as_records(lines: list[str]) -> list[Record]:
    return list(parse_lines(lines))


def check_case(case: Case, events: list[Event]) -> None:
    """The corpus' own rules: how many events, the most severe one, the further ones."""
    assert case.events <= len(events) <= case.most, [key_of(event) for event in events]
    if not case.events:
        return
    tuples = [(*key_of(event), event.severity.value) for event in events]
    assert (*case.expect.key, case.expect.severity) in tuples, tuples
    for answer in case.also:
        assert answer.key in [key_of(event) for event in events]
