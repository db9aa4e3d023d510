"""The allow-list mode for soaks: kernel lines to shapes, and the lines whose shape no baseline has.

A shape is the line with everything that differs between two occurrences taken out (numbers, addresses, names
of tasks and devices). Pure but for read_baseline and write_baseline; a baseline file is one shape a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gdrstorm.errors import UsageError
from gdrstorm.kmsg.record import Record
from gdrstorm.kmsg.titles import normalise_title
from gdrstorm.model.event import Event, EventClass, Severity, Source

_WORD = re.compile(r"\b0x[0-9a-fA-F]+\b|\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{6,}\b|\d+")
_HEADER = "# gdrstorm kernel log baseline 1"
_REPORTED_LIMIT = 4096


def shape_of(text: str) -> str:
    """The line without its numbers: `eth0: link 5` and `eth1: link 7` have one shape."""
    return _WORD.sub("#", normalise_title(text))


def record_baseline(records: Iterable[Record]) -> frozenset[str]:
    """All shapes of a log that is known to be good."""
    return frozenset(shape_of(record.text) for record in records if record.text.strip())


def read_baseline(path: Path) -> frozenset[str]:
    """Shapes of a baseline file; comment lines are left out. Raises UsageError when it cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(
            f"cannot read baseline {path}: {reason}", "make one: gdrstorm kmsg --record-baseline"
        ) from None
    return frozenset(line for line in lines if line and not line.startswith("# "))


def write_baseline(path: Path, shapes: Iterable[str]) -> None:
    """Write a baseline file, sorted, so that two of them can be compared. Raises UsageError."""
    try:
        path.write_text("\n".join([_HEADER, *sorted(shapes)]) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write baseline {path}: {error.strerror}") from None


@dataclass(slots=True)
class BaselineFilter:
    """Reports each kernel line whose shape is not in the baseline: once a shape, bounded."""

    shapes: frozenset[str]
    reported: set[str] = field(default_factory=set)
    unreported: int = 0

    def check(self, record: Record) -> Event | None:
        """An event for a line that was never seen before, else None. Lines of users are none of the kernel's."""
        if record.facility != 0 or not record.text.strip():
            return None
        shape = shape_of(record.text)
        if shape in self.shapes or shape in self.reported:
            return None
        if len(self.reported) >= _REPORTED_LIMIT:
            self.unreported += 1
            return None
        self.reported.add(shape)
        return Event(
            id=f"baseline-{record.seq}",
            cls=EventClass.UNSEEN_LINE,
            severity=Severity.WARNING,
            device=None,
            code=None,
            title=normalise_title(record.text),
            first_seq=record.seq,
            last_seq=record.seq,
            time_ns=max(record.time_ns, 0),
            lines=(record.text,),
            source=Source.BASELINE,
        )
