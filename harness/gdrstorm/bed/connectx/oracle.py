"""What the device saw that a correct driver never causes, and how much it did.

The device calls `Oracle`; a control channel reads `Oracle.snapshot`. Lists are bounded, counters
are not. A record here is an observation, never a verdict: the judge decides what it means.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from dataclasses import dataclass
from typing import Final

RECORD_LIMIT: Final = 4096
TRACE_LIMIT: Final = 65536


class StrayKind(enum.Enum):
    """Which part of the device touched memory that was not there."""

    DATA = "data"
    RING = "ring"
    MAILBOX = "mailbox"


class RefusalKind(enum.Enum):
    """Why an mkey refused an access before any DMA."""

    UNKNOWN = "unknown"
    FREE = "free"
    PD = "pd"
    RANGE = "range"
    PERMISSION = "permission"
    NOT_PRESENT = "not_present"
    BOUND = "bound"


@dataclass(frozen=True, slots=True)
class StrayDma:
    """A DMA to guest memory that was unmapped, or never mapped.

    `unmapped_ago_ns` is the time since the range was unmapped, None when it never was mapped.
    """

    at_ns: int
    function: int
    kind: StrayKind
    write: bool
    iova: int
    size_bytes: int
    mkey: int | None
    qpn: int | None
    wqe_index: int | None
    unmapped_ago_ns: int | None
    planted: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """An access that an mkey refused: legal for the driver, of interest in a revoke race."""

    at_ns: int
    function: int
    kind: RefusalKind
    mkey: int
    address: int
    size_bytes: int
    qpn: int


@dataclass(frozen=True, slots=True)
class Leak:
    """Objects that were still there when the driver tore the function down."""

    at_ns: int
    function: int
    when: str
    objects: dict[str, int]


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Anything else that the driver should not have done, in words."""

    at_ns: int
    function: int
    what: str


@dataclass(frozen=True, slots=True)
class TraceLine:
    at_ns: int
    function: int
    what: str


@dataclass(frozen=True, slots=True)
class OracleReport:
    """Everything at one moment; counts by name, lists oldest first."""

    commands: dict[str, int]
    command_failures: dict[str, int]
    wqes: dict[str, int]
    completions: dict[str, int]
    events: dict[str, int]
    refusals: dict[str, int]
    page_faults: int
    page_fault_errors: int
    stray_count: int
    stray: tuple[StrayDma, ...]
    refused: tuple[Refusal, ...]
    leaks: tuple[Leak, ...]
    anomalies: tuple[Anomaly, ...]


class Oracle:
    """Counters and bounded records of one or more functions."""

    def __init__(self, trace: bool = False) -> None:
        self.tracing = trace
        self.reset()

    def reset(self) -> None:
        """Forget everything: a new measurement starts."""
        self.commands: Counter[str] = Counter()
        self.command_failures: Counter[str] = Counter()
        self.wqes: Counter[str] = Counter()
        self.completions: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.page_faults = 0
        self.page_fault_errors = 0
        self.stray_count = 0
        self._stray: deque[StrayDma] = deque(maxlen=RECORD_LIMIT)
        self._refused: deque[Refusal] = deque(maxlen=RECORD_LIMIT)
        self._leaks: deque[Leak] = deque(maxlen=RECORD_LIMIT)
        self._anomalies: deque[Anomaly] = deque(maxlen=RECORD_LIMIT)
        self._trace: deque[TraceLine] = deque(maxlen=TRACE_LIMIT)

    def stray(self, record: StrayDma) -> None:
        self.stray_count += 1
        self._stray.append(record)

    def refuse(self, record: Refusal) -> None:
        self.refusals[record.kind.value] += 1
        self._refused.append(record)

    def leak(self, record: Leak) -> None:
        self._leaks.append(record)

    def anomaly(self, at_ns: int, function: int, what: str) -> None:
        self._anomalies.append(Anomaly(at_ns, function, what))

    def trace(self, at_ns: int, function: int, what: str) -> None:
        """Keep one line; callers test `tracing` first, so that an idle trace costs nothing."""
        self._trace.append(TraceLine(at_ns, function, what))

    def trace_lines(self) -> tuple[TraceLine, ...]:
        return tuple(self._trace)

    def snapshot(self) -> OracleReport:
        return OracleReport(
            commands=dict(self.commands),
            command_failures=dict(self.command_failures),
            wqes=dict(self.wqes),
            completions=dict(self.completions),
            events=dict(self.events),
            refusals=dict(self.refusals),
            page_faults=self.page_faults,
            page_fault_errors=self.page_fault_errors,
            stray_count=self.stray_count,
            stray=tuple(self._stray),
            refused=tuple(self._refused),
            leaks=tuple(self._leaks),
            anomalies=tuple(self._anomalies),
        )
