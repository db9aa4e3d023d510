"""Journal lines to a verdict. Pure: no clock, no files, no hardware; the same lines give the same verdict anywhere.

Order of precedence: SKIP when the run said so before it began, LOST when the machine went away, FAIL when the stack
did something it should not, BROKEN when the harness did, and only then PASS. Nothing exercised is never a pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from gdrstorm.model import journal as j
from gdrstorm.model.audit import find_leaks
from gdrstorm.model.event import Event, EventClass, Severity
from gdrstorm.model.op import IDLE_OPS
from gdrstorm.model.scenario import Expect, ExpectedFault, How
from gdrstorm.model.verdict import Verdict, Word

_IDLE = {op.name for op in IDLE_OPS}


class Facts:
    """The lines of one run, sorted by what they say."""

    def __init__(self, lines: Iterable[j.Line]) -> None:
        self.start: j.Start | None = None
        self.end: j.End | None = None
        self.skipped: j.Skipped | None = None
        self.planned = False
        self.totals: list[j.Totals] = []
        self.gates: list[j.Gate] = []
        self.checks: list[j.Check] = []
        self.workers: dict[int, j.Worker] = {}
        self.hangs: list[j.Worker] = []
        self.seen: dict[tuple[str, str], j.Seen] = {}
        self.audits: dict[str, j.Audit] = {}
        self.lost: j.BedFact | None = None
        self.intents: dict[str, j.Intent] = {}
        self.blind: dict[str, str] = {}
        self.progressed = 0
        for line in lines:
            self._add(line)

    def _add(self, line: j.Line) -> None:
        match line:
            case j.Start():
                self.start = self.start or line
            case j.Planned():
                self.planned = True
            case j.End():
                self.end = line
            case j.Skipped():
                self.skipped = line
            case j.Totals():
                self.totals.append(line)
            case j.Gate():
                self.gates.append(line)
            case j.Check():
                self.checks.append(line)
            case j.Worker():
                self.workers[line.worker] = line
                if line.state == "hung":
                    self.hangs.append(line)
            case j.Seen():
                self.seen[(line.origin, line.event.id)] = line
            case j.Audit():
                self.audits[line.when] = line
            case j.BedFact(what="lost"):
                self.lost = self.lost or line
            case j.Intent():
                self.intents[line.id] = line
            case j.Done():
                self.intents.pop(line.id, None)
            case j.Progress():
                self.progressed += sum(beat.count for beat in line.ops if beat.op not in _IDLE)
            case j.Watching():
                self.blind = line.blind
            case _:
                pass

    @property
    def workers_whole(self) -> bool:
        """No worker was killed or crashed, so that whatever it had open was its own to close."""
        return not any(
            line.state in ("crashed", "killed", "failed") for line in self.workers.values()
        )

    @property
    def suspect(self) -> str:
        """The last step that was begun and never came back."""
        return next((intent.what for intent in reversed(self.intents.values())), "")

    def events(self) -> list[Event]:
        """Faults that happened in the run, worst first; what was there before is nobody's fault here."""
        found = [line.event for line in self.seen.values() if not line.before_run]
        return sorted(found, key=lambda event: -event.severity.rank)


def calls_made(facts: Facts) -> int:
    """Calls on the stack under test, failed ones included; waits and gate rows that were skipped do not count."""
    stormed = sum(op.count for total in facts.totals for op in total.ops if op.op not in _IDLE)
    if not facts.totals:
        stormed = facts.progressed  # the run ended before it could add up
    gated = sum(1 for gate in facts.gates for result in gate.results if not result.skipped)
    return stormed + gated + sum(1 for check in facts.checks if check.phase != "bed")


def judge(lines: Sequence[j.Line]) -> Verdict:
    """The verdict on a journal, whole or cut off at any line."""
    facts = Facts(lines)
    if facts.start is None:
        return Verdict(
            Word.BROKEN, "the journal has no start line: nothing is known about this run"
        )
    if facts.skipped:
        return Verdict(Word.SKIP, facts.skipped.reason)
    expect = facts.start.scenario.expect
    failures = _failures(facts, expect)
    if facts.lost or facts.end is None or facts.end.how == "lost":
        return _lost(facts, failures)
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        return Verdict(Word.FAIL, failures[0] + more, tuple(failures), facts.suspect)
    broken = _broken(facts, expect)
    if broken:
        return Verdict(Word.BROKEN, broken[0], tuple(broken), facts.suspect)
    return Verdict(Word.PASS, _pass_reason(facts, expect))


def _lost(facts: Facts, failures: list[str]) -> Verdict:
    if facts.lost:
        reason = facts.lost.detail
    elif facts.end is not None:
        reason = facts.end.detail or "the machine went away"
    else:
        reason = "the journal ends without an end line: the machine went away during the run"
    if facts.suspect:
        reason += f"; last step begun and not ended: {facts.suspect}"
    return Verdict(Word.LOST, reason, tuple(failures), facts.suspect)


def _failures(facts: Facts, expect: Expect) -> list[str]:
    """Everything the stack did that the scenario does not allow, worst first."""
    return [
        *_fault_failures(facts, expect),
        *_hang_failures(facts),
        *_check_failures(facts),
        *_error_failures(facts, expect),
        *_leak_failures(facts, expect),
        *_missing(facts, expect),
    ]


def _matches(fault: ExpectedFault, event: Event) -> bool:
    return (
        fault.cls == event.cls.value
        and (not fault.device or fault.device == event.device)
        and (not fault.code or fault.code == event.code)
    )


def _fault_failures(facts: Facts, expect: Expect) -> list[str]:
    found = []
    for event in facts.events():
        if not event.is_fault or any(_matches(fault, event) for fault in expect.faults):
            continue
        if event.cls in (EventClass.LOG_LOST, EventClass.MARKER_LOST):
            continue  # a gap in the log is the harness's blindness, see _broken
        times = f" ({event.count} times)" if event.count > 1 else ""
        where = f" {event.device}" if event.device else ""
        mark = " [synthetic: written to the log by a program]" if event.synthetic else ""
        found.append(f"{event.cls.value} {event.severity.value}{where}: {event.title}{times}{mark}")
    return found


def _hang_failures(facts: Facts) -> list[str]:
    return [f"worker {line.worker} hangs: {line.reason}" for line in facts.hangs]


def _check_failures(facts: Facts) -> list[str]:
    wrong = [
        f"gate {r.table}: {r.case} ({r.path}) answered {r.got}, expected {' or '.join(r.expected)}"
        for gate in facts.gates
        for r in gate.results
        if not r.skipped and not r.passed
    ]
    wrong += [f"check {c.name} failed: {c.detail}" for c in facts.checks if not c.passed]
    return wrong


def error_counts(facts: Facts) -> Counter[tuple[str, str]]:
    """Failed calls by (operation, errno name), over all phases."""
    counts: Counter[tuple[str, str]] = Counter()
    for total in facts.totals:
        for op in total.ops:
            for name, count in op.errors.items():
                counts[(op.op, name)] += count
    return counts


def _error_failures(facts: Facts, expect: Expect) -> list[str]:
    allowed = {(error.op.name, error.errno) for error in expect.errors}
    found = []
    for (op, name), count in error_counts(facts).most_common():
        if (op, name) not in allowed:
            found.append(
                f"{op} failed with {name} {count} times, which the scenario does not expect"
            )
    return found


def _leak_failures(facts: Facts, expect: Expect) -> list[str]:
    wrong = [
        f"{total.outstanding} slots of group {total.group} were never released"
        for total in facts.totals
        if total.outstanding and not facts.hangs and facts.workers_whole
    ]
    if expect.leaks or not {"before", "after"} <= facts.audits.keys():
        return wrong
    leaks = find_leaks(facts.audits["before"].snapshot, facts.audits["after"].snapshot)
    return wrong + [f"leak: {leak}" for leak in leaks]


def _missing(facts: Facts, expect: Expect) -> list[str]:
    """Expected errors and faults that did not come. Only asked of a run that went to its end."""
    if facts.end is None or facts.end.how != "completed":
        return []
    errors = error_counts(facts)
    counts = Counter({op.op: 0 for total in facts.totals for op in total.ops})
    for total in facts.totals:
        for op in total.ops:
            counts[op.op] += op.count
    wrong = []
    for error in expect.errors:
        seen = errors[(error.op.name, error.errno)]
        if error.how is How.MUST and seen < error.count:
            wrong.append(
                f"{error.op.name} failed with {error.errno} {seen} times, expected at least {error.count}"
            )
        if error.how is How.ALWAYS and (seen == 0 or seen != counts[error.op.name]):
            wrong.append(
                f"{error.op.name} failed with {error.errno} in {seen} of {counts[error.op.name]} calls, expected in all"
            )
    for fault in expect.faults:
        seen = sum(
            event.count
            for event in facts.events()
            if event.severity is not Severity.INFO and _matches(fault, event)
        )
        if fault.how is not How.MAY and seen < fault.count:
            what = " ".join(part for part in (fault.cls, fault.device, fault.code) if part)
            wrong.append(
                f"expected fault {what} seen {seen} times, expected at least {fault.count}"
            )
    return wrong


def _broken(facts: Facts, expect: Expect) -> list[str]:
    """What the harness itself did wrong or could not see."""
    assert facts.end is not None
    wrong = []
    if facts.end.how != "completed":
        wrong.append(f"the run ended as {facts.end.how}: {facts.end.detail}".rstrip(": "))
    for line in facts.workers.values():
        if line.state in ("failed", "crashed", "killed"):
            wrong.append(f"worker {line.worker} {line.state}: {line.reason}")
    for event in facts.events():
        if event.cls in (EventClass.LOG_LOST, EventClass.MARKER_LOST):
            wrong.append(f"the kernel log was not seen whole: {event.title}")
    made = calls_made(facts)
    if made == 0:
        wrong.append("nothing was exercised")
    elif made < expect.operations:
        wrong.append(f"only {made} operations were made, the scenario asks for {expect.operations}")
    return wrong


def _pass_reason(facts: Facts, expect: Expect) -> str:
    made = calls_made(facts)
    refused = sum(
        1 for gate in facts.gates for r in gate.results if r.refused and r.passed and not r.skipped
    )
    refused_calls = sum(
        count
        for (op, name), count in error_counts(facts).items()
        if any(e.op.name == op and e.errno == name and e.how is not How.MAY for e in expect.errors)
    )
    parts = [f"no unexpected fault, error or leak seen in {made} operations"]
    if refused or refused_calls:
        parts.append(f"{refused + refused_calls} refused as expected")
    skipped = sum(1 for gate in facts.gates for r in gate.results if r.skipped)
    if skipped:
        parts.append(f"{skipped} cases not run")
    notable = [e for e in facts.events() if e.severity is Severity.CORRECTED]
    if notable:
        parts.append(f"{sum(e.count for e in notable)} corrected events")
    if facts.blind:
        parts.append(f"not watched: {', '.join(facts.blind)}")
    unknown = set()
    for audit in facts.audits.values():
        unknown |= set(audit.snapshot.unknown)
    if unknown:
        parts.append(f"leaks not checked for {', '.join(sorted(unknown))}")
    return "; ".join(parts)
