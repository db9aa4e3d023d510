"""The lines of journal.jsonl, one record type a kind; together they are all that a verdict is made from.

Every line has `type`, `seq` (from 1, no gaps) and `time_ns` (wall clock). Readers accept SCHEMA_VERSION and older.
Lines once written are never changed; a later line of the same subject replaces an earlier one when read.
"""

from __future__ import annotations

import msgspec

from gdrstorm.model.audit import Snapshot
from gdrstorm.model.event import Event
from gdrstorm.model.gate import GateResult
from gdrstorm.model.op import CallInFlight, FirstError, OpSummary, ThreadRate
from gdrstorm.model.plan import Plan
from gdrstorm.model.scenario import Scenario
from gdrstorm.model.stack import StackPart
from gdrstorm.model.verdict import Verdict

SCHEMA_VERSION = 1


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Common part of every line."""

    seq: int = 0
    time_ns: int = 0


class Start(Entry, frozen=True, kw_only=True, tag="start"):
    """First line: what this run is. `platform` is `hardware` or `emulated`; `bed` is `host` or `vm`."""

    schema: int
    run_id: str
    version: str
    argv: tuple[str, ...]
    bed: str
    platform: str
    boot_id: str
    scenario: Scenario


class Machine(Entry, frozen=True, kw_only=True, tag="machine"):
    """The inventory as JSON text of model.inventory (kept opaque here, so that old runs stay readable)."""

    inventory: msgspec.Raw


class Stack(Entry, frozen=True, kw_only=True, tag="stack"):
    """The back ends as they were opened."""

    exporter: StackPart
    importer: StackPart


class Planned(Entry, frozen=True, kw_only=True, tag="plan"):
    """Everything that was decided before the first operation."""

    plan: Plan


class Intent(Entry, frozen=True, kw_only=True, tag="intent"):
    """Something dangerous is about to be done; flushed to disk before it is. Ended by Done of the same `id`."""

    id: str
    what: str
    marker_seq: int | None = None


class Done(Entry, frozen=True, kw_only=True, tag="done"):
    """The intended step came back."""

    id: str
    detail: str = ""
    marker_seq: int | None = None


class Worker(Entry, frozen=True, kw_only=True, tag="worker"):
    """A worker process changed its state: started, ready, ended, failed, crashed, killed, hung."""

    worker: int
    phase: str
    state: str
    pid: int = 0
    reason: str = ""
    calls: tuple[CallInFlight, ...] = ()


class Beat(msgspec.Struct, frozen=True, array_like=True):
    """One operation in one second of one group, short on disk: name, calls, failed calls, p50, p99, max."""

    op: str
    count: int
    failed: int
    p50_ns: int
    p99_ns: int
    max_ns: int


class Progress(Entry, frozen=True, kw_only=True, tag="p"):
    """What a worker group did since the last such line."""

    phase: str
    group: str
    ops: tuple[Beat, ...]


class Totals(Entry, frozen=True, kw_only=True, tag="totals"):
    """What a worker group did in the whole phase, first errors and fairness included."""

    phase: str
    group: str
    elapsed_ns: int
    ops: tuple[OpSummary, ...]
    outstanding: int = 0
    first_errors: tuple[FirstError, ...] = ()
    rates: tuple[ThreadRate, ...] = ()


class Blocked(Entry, frozen=True, kw_only=True, tag="blocked"):
    """Where workers of a phase slept: sampled kernel stacks, counted by (function, times, commonest caller)."""

    phase: str
    summary: str
    taken: int = 0
    rounds: int = 0
    places: tuple[tuple[str, int, str], ...] = ()


class Gate(Entry, frozen=True, kw_only=True, tag="gate"):
    """The answers of one gate table."""

    phase: str
    results: tuple[GateResult, ...]


class Check(Entry, frozen=True, kw_only=True, tag="check"):
    """A data check or another self-contained proof: what was compared and how it ended."""

    phase: str
    name: str
    passed: bool
    detail: str = ""


class Seen(Entry, frozen=True, kw_only=True, tag="event"):
    """A fault or notice; a later line with the same event id replaces it (counts grow).

    `before_run` is true when it happened before the run's first marker. `origin` is empty for this machine's own
    witnesses, `console` and `model` for what the bed saw from outside the guest.
    """

    event: Event
    phase: str = ""
    before_run: bool = False
    origin: str = ""


class Audit(Entry, frozen=True, kw_only=True, tag="audit"):
    """What was held, `when` is before or after."""

    when: str
    snapshot: Snapshot


class Watching(Entry, frozen=True, kw_only=True, tag="watching"):
    """Which witnesses look at this run, and which cannot and why. A blind witness is named in every verdict."""

    witnesses: tuple[str, ...]
    blind: dict[str, str] = {}


class Note(Entry, frozen=True, kw_only=True, tag="note"):
    """Something a reader should know that decides nothing: a clean-up that failed, a witness that could not look."""

    text: str


class BedFact(Entry, frozen=True, kw_only=True, tag="bed"):
    """What the VM bed says of itself: `what` is boot, oracle, lost, end; a lost guest decides the verdict."""

    what: str
    detail: str = ""


class Skipped(Entry, frozen=True, kw_only=True, tag="skip"):
    """The run cannot be made here, for this reason."""

    reason: str


class End(Entry, frozen=True, kw_only=True, tag="end"):
    """Last line of the work. `how` is completed, interrupted, time-limit, broken, supervisor-died or lost."""

    how: str
    detail: str = ""


class Judged(Entry, frozen=True, kw_only=True, tag="verdict"):
    """The verdict as it was given when the run ended; judge computes it again from the lines before."""

    verdict: Verdict


Line = (
    Start
    | Machine
    | Stack
    | Planned
    | Intent
    | Done
    | Worker
    | Progress
    | Totals
    | Blocked
    | Gate
    | Check
    | Seen
    | Audit
    | Watching
    | Note
    | BedFact
    | Skipped
    | End
    | Judged
)
