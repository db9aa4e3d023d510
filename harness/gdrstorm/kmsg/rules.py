"""What a row of the fault tables is, and what a row makes of a line. Pure.

A row has a literal (a plain substring, so that most rows cost nothing), a pattern with named groups, and what
they mean. Named groups other than `bdf` and `code` become the event's details. `Body` says which further
lines belong to the report; the absorbers of `bodies` know how.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from gdrstorm.kmsg.types import Record
from gdrstorm.model.event import EventClass, Severity

HEX_BDF = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}[.:][0-7]"
_BDF = re.compile(
    r"(?:(?P<domain>[0-9a-fA-F]{4,8}):)?(?P<bus>[0-9a-fA-F]{2}):(?P<slot>[0-9a-fA-F]{2})(?:[.:](?P<fn>[0-7]))?\Z"
)
_PREFIX = re.compile(r"\s*(?:[\w.:-]+ )?([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?::| )")


# Substrings, lower case: plain searches, because these rows see every line of a driver.
FAILING_WORDS = (
    "fail", "error", "timeout", "time out", "timed out", "unable", "can't", "cannot", "couldn't", "giving up", "leak",
    "abort", "invalid", "unexpected", "not responding", "not enough", "out of", "corrupt", "stuck", "overrun",
    "bad ", "err -", "err:-", "err=-", "err(-", "timedout", "unfree", "didn't", "is closed", "doesn't match",
    "could not", "bogus", "overflow", "exhausted", "sigerr",
)  # fmt: skip


class Body(enum.Enum):
    """Which kind of further lines a report has."""

    # A member is equal to itself alone; Enum's own hash is a call of Python for each look-up.
    __hash__ = object.__hash__

    NONE = enum.auto()
    AER = enum.auto()
    DPC = enum.auto()
    RECORD = enum.auto()
    DMAR = enum.auto()
    AMDVI = enum.auto()
    SMMU = enum.auto()
    SXID = enum.auto()
    COMMAND = enum.auto()
    EEH = enum.auto()
    RESTRACK = enum.auto()
    HEALTH = enum.auto()
    CQE = enum.auto()
    GSP = enum.auto()
    NVRM_LOST = enum.auto()
    RM_INIT = enum.auto()
    TRACE = enum.auto()
    OOM = enum.auto()


def parse_bdf(text: str) -> str | None:
    """`9b:00.0`, `0000:9B:00`, `05:00:0` to `dddd:bb:dd.f` (function 0 and domain 0 where not printed)."""
    found = _BDF.match(text.strip())
    if not found:
        return None
    domain = (found["domain"] or "0000").lower()
    if len(domain) > 4:
        domain = domain.lstrip("0").rjust(4, "0")
    return f"{domain}:{found['bus'].lower()}:{found['slot'].lower()}.{found['fn'] or '0'}"


@dataclass(slots=True)
class Line:
    """One line under examination."""

    record: Record
    text: str
    _bdf: str | None = None
    _looked: bool = False
    _failing: bool | None = None

    @property
    def bdf(self) -> str | None:
        """The device whose driver prefix the line has (`mlx5_core 0000:c1:00.0: ...`)."""
        if not self._looked:
            found = _PREFIX.match(self.text)
            self._bdf = found[1] if found else None
            self._looked = True
        return self._bdf

    @property
    def failing(self) -> bool:
        """Is there a word of failure in the line?"""
        if self._failing is None:
            self._failing = _has_any(self.text.lower(), FAILING_WORDS)
        return self._failing


def _has_any(text: str, words: tuple[str, ...]) -> bool:
    """A plain loop: any() with a generator takes twice as long."""
    for word in words:  # noqa: SIM110
        if word in text:
            return True
    return False


@dataclass(slots=True)
class Head:
    """What a row made of a headline; a row's `refine` may change it."""

    cls: EventClass
    severity: Severity
    device: str | None
    code: str | None
    title: str
    body: Body
    tag: str
    details: dict[str, str]
    incomplete: bool = False


class _Names(dict[str, str]):
    """Groups for a title; one that took no part in the match is printed as nothing."""

    def __missing__(self, key: str) -> str:
        return ""


Refine = Callable[[Head, re.Match[str], Line], Head | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One row. `weak`: opens a report whose real headline should follow (a prelude); alone it is incomplete.

    `awaits`: a message that the kernel prints before the WARNING or BUG of the same report. `half`: the
    headline was cut off. `quiet_debug`: level-7 records do not count (dynamic debug looks alike). `failing`: the
    line must have a word of failure. `escalates`: the class whose latest event this line makes fatal.
    """

    cls: EventClass
    severity: Severity
    literal: str
    pattern: re.Pattern[str]
    title: str
    code: str | None = None
    body: Body = Body.NONE
    refine: Refine | None = None
    weak: bool = False
    awaits: bool = False
    half: bool = False
    quiet_debug: bool = False
    failing: bool = False
    escalates: EventClass | None = None
    tag: str = field(default="")

    def match(self, line: Line) -> Head | None:
        """The headline this row sees in a line that has the literal, or None."""
        if self.quiet_debug and line.record.level == 7:
            return None
        if self.failing and not line.failing:
            return None
        found = self.pattern.search(line.text)
        if found is None:
            return None
        groups = {name: value.strip() for name, value in found.groupdict().items() if value}
        bdf = groups.pop("bdf", None)
        code = groups.pop("code", None)
        names = _Names(groups, code=code or "")
        head = Head(
            cls=self.cls,
            severity=self.severity,
            device=(parse_bdf(bdf) if bdf else None) or line.bdf,
            code=self.code.format_map(names) if self.code else code,
            title=self.title.format_map(names),
            body=self.body,
            tag=self.tag,
            details=groups,
            incomplete=self.half or self.weak,
        )
        return self.refine(head, found, line) if self.refine else head


def rule(
    cls: EventClass,
    severity: Severity,
    literal: str,
    pattern: str,
    title: str,
    *,
    code: str | None = None,
    body: Body = Body.NONE,
    refine: Refine | None = None,
    weak: bool = False,
    awaits: bool = False,
    half: bool = False,
    quiet_debug: bool = False,
    failing: bool = False,
    escalates: EventClass | None = None,
    tag: str = "",
) -> Rule:
    """Build a row from a pattern in text."""
    return Rule(
        cls,
        severity,
        literal,
        re.compile(pattern),
        title,
        code,
        body,
        refine,
        weak,
        awaits,
        half,
        quiet_debug,
        failing,
        escalates,
        tag,
    )
