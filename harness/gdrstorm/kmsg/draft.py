"""A report while its lines come in: the one mutable record of the classifier. Internal to kmsg/."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from gdrstorm.kmsg.rules import Body, Head, Line, Rule
from gdrstorm.kmsg.titles import normalise_title
from gdrstorm.kmsg.types import Record
from gdrstorm.model.event import Detail, Event, EventClass, Severity, Source

MAX_LINES = 200


class Part(enum.Enum):
    """Does a line belong to a report?"""

    NO = enum.auto()
    YES = enum.auto()
    END = enum.auto()


def _nothing(draft: Draft, line: Line) -> Part:
    return Part.NO


@dataclass(slots=True, eq=False)
class Draft:
    """One report being collected, later one entry of the aggregate."""

    id: str
    cls: EventClass
    severity: Severity
    device: str | None
    code: str | None
    title: str
    body: Body
    tag: str
    details: dict[str, str]
    caller: str
    weak: bool
    awaits: bool
    incomplete: bool
    synthetic: bool
    first_seq: int
    last_seq: int
    time_ns: int
    last_time_ns: int
    index: int
    count: int = 1
    missed: int = 0
    lines: list[str] = field(default_factory=list)
    dropped: int = 0
    devices: set[str] = field(default_factory=set)
    framed: bool = False
    ended: bool = False
    closed: bool = False
    announced: bool = False
    greedy: bool = False
    keyed: bool = False
    patience_ns: int = 5_000_000_000
    patience_records: int = 24
    row: int = 0
    absorber: Callable[[Draft, Line], Part] = _nothing
    linked: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[EventClass, str | None, str | None]:
        """What makes two reports one event."""
        return (self.cls, self.device, self.code)

    def raise_severity(self, severity: Severity) -> None:
        """Take the worse of the two."""
        if severity.rank > self.severity.rank:
            self.severity = severity

    def append(self, line: str) -> None:
        """Keep a line, within the limit."""
        if len(self.lines) < MAX_LINES:
            self.lines.append(line)
        else:
            self.dropped += 1

    def take(self, record: Record, line: str, index: int) -> None:
        """One more line of the report."""
        self.append(line)
        self.last_seq = record.seq
        self.index = index
        if record.time_ns > self.last_time_ns:
            self.last_time_ns = record.time_ns

    def absorb(self, later: Draft) -> None:
        """The same event again: count it, keep what was said, and the worse severity."""
        self.count += later.count
        self.missed += later.missed
        for line in later.lines:
            self.append(line)
        self.dropped += later.dropped
        self.last_seq = max(self.last_seq, later.last_seq)
        self.last_time_ns = max(self.last_time_ns, later.last_time_ns)
        self.index = max(self.index, later.index)
        self.raise_severity(later.severity)
        self.incomplete = self.incomplete and later.incomplete
        self.synthetic = self.synthetic or later.synthetic
        for name, value in later.details.items():
            self.details.setdefault(name, value)
        # An id that was announced must lead somewhere.
        announced = [later.id] if later.announced else []
        for other in (*announced, *later.linked):
            if other not in self.linked and other != self.id:
                self.linked.append(other)

    def event(self) -> Event:
        """The frozen record."""
        return Event(
            id=self.id,
            cls=self.cls,
            severity=self.severity,
            device=self.device,
            code=self.code,
            title=normalise_title(self.title),
            count=self.count,
            first_seq=self.first_seq,
            last_seq=self.last_seq,
            time_ns=max(self.time_ns, 0),
            last_time_ns=max(self.last_time_ns, 0),
            lines=tuple(self.lines),
            lines_dropped=self.dropped,
            missed=self.missed,
            incomplete=self.incomplete,
            synthetic=self.synthetic,
            source=Source.KMSG,
            linked=tuple(self.linked),
            details=tuple(Detail(name, value) for name, value in self.details.items()),
        )


def open_draft(
    identity: str, rule: Rule, head: Head, record: Record, line: str, index: int
) -> Draft:
    """A draft from the headline that a row matched."""
    draft = Draft(
        id=identity,
        cls=head.cls,
        severity=head.severity,
        device=head.device,
        code=head.code,
        title=head.title,
        body=head.body,
        tag=head.tag,
        details=head.details,
        caller=record.caller,
        weak=rule.weak,
        awaits=rule.awaits,
        incomplete=head.incomplete,
        synthetic=record.facility != 0,
        first_seq=record.seq,
        last_seq=record.seq,
        time_ns=record.time_ns,
        last_time_ns=record.time_ns,
        index=index,
        count=record.repeat,
        lines=[line],
    )
    draft.devices = {
        bdf
        for bdf in (head.device, head.details.get("port"), head.details.get("culprit"))
        if bdf is not None
    }
    return draft
