"""Records to events. Pure and of constant memory: no I/O, no clock, bounded tables.

A record goes through three sieves: `suspicious` (most lines end there), the open reports (`bodies`: is it a
further line of one of them?) and the rows of `families` (is it a headline?). Finished reports are counted and
linked by `aggregate`. Nothing here raises on any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gdrstorm.kmsg import bodies
from gdrstorm.kmsg.aggregate import Aggregator
from gdrstorm.kmsg.draft import Draft, Part, open_draft
from gdrstorm.kmsg.headlines import match
from gdrstorm.kmsg.prefilter import suspicious
from gdrstorm.kmsg.rules import Body, Head, Line, Rule
from gdrstorm.kmsg.types import Gap, Record
from gdrstorm.model.event import Event, EventClass, Severity

_MAX_OPEN = 64
_EXPIRE_EVERY = 128


# How long a report waits for its next line, in log time (ns) and in records. Traces come in one go; a PCIe
# recovery waits for resets of up to a minute (drivers/pci/pcie/err.c).
_PATIENCE = {
    Body.AER: (70_000_000_000, 20_000),
    Body.DPC: (70_000_000_000, 20_000),
    Body.RECORD: (2_000_000_000, 5_000),
    Body.HEALTH: (30_000_000_000, 20_000),
    Body.GSP: (30_000_000_000, 256),
    Body.RM_INIT: (5_000_000_000, 256),
    Body.NVRM_LOST: (5_000_000_000, 256),
}
_DEFAULT_PATIENCE = (5_000_000_000, 24)

_SUPPRESSED = re.compile(r"\b(?P<func>\w+): (?P<number>\d+) callbacks suppressed")
# ___ratelimit() prints the function's name: which family a function belongs to.
_SUPPRESSED_FAMILY = (
    (re.compile(r"amd_iommu|dmar_fault|arm_smmu|iommu|viommu"), EventClass.IOMMU, Severity.ERROR),
    (re.compile(r"mlx5|wait_func|create_mkey|reg_mr_callback|dump_cqe"), EventClass.MLX5, Severity.ERROR),
    (re.compile(r"^aer_|pci_print_aer|cper_"), EventClass.AER, Severity.CORRECTED),
    (re.compile(r"ghes|mce"), EventClass.HARDWARE, Severity.CORRECTED),
    (re.compile(r"^ib_|rdma|uverbs|peermem|nv_mem|nv_get_p2p"), EventClass.RDMA, Severity.ERROR),
    (re.compile(r"^nv|_nv_|os_"), EventClass.NVRM, Severity.ERROR),
    (re.compile(r"warn_alloc|slab_out_of_memory"), EventClass.OOM, Severity.WARNING),
    (re.compile(r"dma_buf"), EventClass.DMABUF, Severity.ERROR),
)  # fmt: skip


class Classifier:
    """Feed records in order; completed events come out, each once.

    feed() and tick() return events that are complete; started() gives events whose first line came since the
    last call (same id as the completed event that follows later; count and lines still grow). window_ns: how
    long an event stays open for repeats, None for ever (until flush).
    """

    def __init__(
        self, window_ns: int | None = 5_000_000_000, window_records: int | None = 20_000
    ) -> None:
        self._index = 0
        self._now_ns = -1
        self._open: list[Draft] = []
        self._greedy: list[Draft] = []
        self._aggregate = Aggregator(window_ns, window_records)
        self._started: list[Draft] = []
        self._held_back: dict[EventClass, Draft] = {}
        self._last_id = (-1, 0)

    def feed(self, record: Record | Gap) -> list[Event]:
        """Take one record; return the events that it (or the passing of time) completed."""
        self._index += 1
        if isinstance(record, Gap):
            return self._gap(record)
        text = record.text
        if suspicious(text):
            return self._examine_all(record, self._open)
        if self._greedy:
            return self._examine_all(record, self._greedy)
        if self._index % _EXPIRE_EVERY == 0:
            return self.tick(record.time_ns)
        return []

    def _examine_all(self, record: Record, listeners: list[Draft]) -> list[Event]:
        """Show a record's lines to the open reports given, then to the tables."""
        events: list[Event] = []
        if record.time_ns >= 0:
            # Not the maximum: printk times run backwards between CPUs and across relayed logs.
            self._now_ns = record.time_ns
        text = record.text
        for part in text.split("\n") if "\n" in text else (text,):
            self._examine(Line(record, part.rstrip()), listeners, events)
        if self._index % _EXPIRE_EVERY == 0:
            events += self.tick(record.time_ns)
        return events

    def started(self) -> list[Event]:
        """Events that began since the last call, as known now. For alarms within milliseconds.

        A repeat of an event that is still held is no new event; while a report has not yet said what makes
        the difference (its code), it waits for its next lines.
        """
        events: list[Event] = []
        waiting: list[Draft] = []
        for draft in self._started:
            view = bodies.preview(draft)
            if view is None:
                waiting.append(draft)
            elif not self._aggregate.has_other(view.key, draft):
                draft.announced = True
                events.append(view.event())
        self._started = waiting
        return events

    def tick(self, time_ns: int) -> list[Event]:
        """Nothing was logged until time_ns (the log's clock): complete what that closes."""
        if time_ns >= 0:
            self._now_ns = time_ns
        events: list[Event] = []
        self._expire_open(events)
        events += self._aggregate.expire(self._now_ns, self._index)
        return events

    def flush(self) -> list[Event]:
        """The log ended: complete everything."""
        events: list[Event] = []
        for draft in list(self._open):
            self._close(draft, events)
        for draft in list(self._held_back.values()):
            events += self._aggregate.add(draft)
        self._held_back.clear()
        return events + self._aggregate.flush()

    def _identity(self, seq: int) -> str:
        last, times = self._last_id
        times = times + 1 if seq == last else 0
        self._last_id = (seq, times)
        return f"kmsg-{seq}.{times}" if times else f"kmsg-{seq}"

    def _gap(self, gap: Gap) -> list[Event]:
        return [
            Event(
                id=self._identity(gap.first_seq),
                cls=EventClass.LOG_LOST,
                severity=Severity.WARNING,
                device=None,
                code="kmsg",
                title="kernel log records lost before they were read",
                count=gap.lost,
                first_seq=gap.first_seq,
                last_seq=gap.first_seq + max(gap.lost - 1, 0),
                time_ns=max(self._now_ns, 0),
            )
        ]

    def _examine(self, line: Line, listeners: list[Draft], events: list[Event]) -> None:
        bdf = line.bdf
        victim = "can't recover" in line.text
        for draft in listeners[::-1]:
            # Most open reports wait for lines of one device: no need to ask them about others.
            if draft.keyed and bdf not in draft.devices and not victim:
                continue
            if self._late(draft):
                self._close(draft, events)
                continue
            part = draft.absorber(draft, line)
            if part is Part.NO:
                continue
            draft.take(line.record, line.text, self._index)
            if draft.framed and draft.body is Body.GSP and not draft.greedy:
                draft.greedy = True
                self._recount()
            if part is Part.END:
                # Kept a little: a panic, or the registers again, may follow the end marker.
                draft.ended, draft.patience_records = True, 24
            return
        if listeners is self._greedy:
            return
        if "suppressed" in line.text and self._suppressed(line):
            return
        matched = match(line)
        if matched is not None:
            self._begin(*matched, line, events)

    def _begin(self, rule: Rule, head: Head, line: Line, events: list[Event]) -> None:
        """Open a report; a prelude that waited for it becomes its beginning."""
        text = line.text
        draft = open_draft(
            self._identity(line.record.seq), rule, head, line.record, text, self._index
        )
        draft.absorber = bodies.ABSORBERS[draft.body]
        draft.greedy = draft.body in bodies.GREEDY
        draft.keyed = draft.body in bodies.KEYED
        draft.patience_ns, draft.patience_records = _PATIENCE.get(draft.body, _DEFAULT_PATIENCE)
        if draft.body is Body.RECORD:
            bodies.record_detail(draft, text)
        prelude = self._prelude(draft)
        if prelude is not None:
            _join(prelude, draft)
            prelude.take(line.record, text, self._index)
            self._recount()
            draft = prelude
        else:
            self._close_same(draft, events)
            # Offered lines last: a stack trace belongs to the kernel's own report, if one is open.
            self._open.insert(0 if draft.body is Body.GSP else len(self._open), draft)
            self._recount()
            if len(self._open) > _MAX_OPEN:
                self._close(min(self._open, key=lambda item: item.index), events)
            self._announce(draft)
        held = self._held_back.pop(draft.cls, None)
        if held is not None:
            draft.lines[:0] = held.lines
            draft.first_seq = min(draft.first_seq, held.first_seq)
            draft.count += held.missed
            draft.missed += held.missed
        if rule.escalates is not None:
            self._escalate(rule.escalates, draft)
        if draft.body is Body.NONE:
            self._close(draft, events)

    def _prelude(self, draft: Draft) -> Draft | None:
        for earlier in reversed(self._open):
            if earlier.caller and draft.caller and earlier.caller != draft.caller:
                continue
            if earlier.tag == "cut" and draft.body is Body.TRACE:
                return earlier
            if earlier.tag == "warn" and not earlier.framed and _explains(draft, earlier):
                return earlier
            if earlier.awaits:
                if draft.body is Body.TRACE and draft.tag in {"warn", "bug", "ubsan", "oops"}:
                    return earlier
            elif earlier.weak and _continues(earlier, draft):
                return earlier
        return None

    def _close_same(self, draft: Draft, events: list[Event]) -> None:
        """A new headline of the same kind from the same place ends the report before it."""
        for earlier in list(self._open):
            if earlier.body is not draft.body:
                continue
            if draft.greedy:
                same = earlier.caller == draft.caller or not earlier.caller or not draft.caller
            else:
                same = earlier.device == draft.device and earlier.tag == draft.tag
            if same:
                self._close(earlier, events)

    def _close(self, draft: Draft, events: list[Event]) -> None:
        bodies.complete(draft)
        if draft in self._open:
            self._open.remove(draft)
            self._recount()
        draft.closed = True
        events += self._aggregate.add(draft)
        if draft in self._started and not self._aggregate.has(draft):
            self._started.remove(draft)
        elif not draft.announced and self._aggregate.has(draft):
            self._announce(draft)

    def _announce(self, draft: Draft) -> None:
        if len(self._started) < _MAX_OPEN and draft not in self._started:
            self._started.append(draft)

    def _recount(self) -> None:
        # In place: _examine tells by identity which list it walks.
        self._greedy[:] = [draft for draft in self._open if draft.greedy]

    def _late(self, draft: Draft) -> bool:
        """Has a report waited in vain?"""
        if self._index - draft.index > draft.patience_records:
            return True
        waited_ns = self._now_ns - draft.last_time_ns
        return waited_ns > draft.patience_ns and self._now_ns >= 0 and draft.last_time_ns >= 0

    def _expire_open(self, events: list[Event]) -> None:
        for draft in [draft for draft in self._open if self._late(draft)]:
            self._close(draft, events)

    def _escalate(self, cls: EventClass, draft: Draft) -> None:
        for earlier in reversed(self._open):
            if earlier.cls is cls and earlier.code != "154":
                earlier.raise_severity(Severity.FATAL)
                return
        self._aggregate.escalate(cls, draft)

    def _suppressed(self, line: Line) -> bool:
        """`amd_iommu_report_page_fault: 6 callbacks suppressed`: six more of that family, without lines."""
        found = _SUPPRESSED.search(line.text)
        if found is None:
            return False
        family = next(
            (
                (cls, worst)
                for words, cls, worst in _SUPPRESSED_FAMILY
                if words.search(found["func"])
            ),
            None,
        )
        if family is None:
            return True
        cls, severity = family
        number = int(found["number"])
        host = next((draft for draft in reversed(self._open) if draft.cls is cls), None)
        host = host or self._aggregate.latest(cls) or self._held_back.get(cls)
        if host is not None:
            host.take(line.record, line.text, self._index)
            host.count += number
            host.missed += number
            return True
        self._held_back[cls] = _lone_suppressed(
            self._identity(line.record.seq), cls, severity, found["func"], number, line, self._index
        )
        return True


# Whose WARNING may come before its message: which file warns, and the tag of the message's row.
_EXPLAINED = {
    "list": ("list_debug.c",),
    "refcount": ("refcount.c",),
    "odebug": ("debugobjects.c",),
    "dmaapi": ("dma-debug.c", "debug.c"),
    "lockup": ("watchdog.c", "watchdog_hld.c"),
    "netdev": ("sch_generic.c",),
}


# Newer kernels have no WARNING beside these messages: the code must not depend on that.
_NAMED_BY_MESSAGE = frozenset({"lockup", "netdev"})


def _explains(draft: Draft, warning: Draft) -> bool:
    """Is this the message of a WARNING whose headline came first (Arm, kernels before 4.15, lost order)?"""
    file = (warning.code or "").partition(":")[0]
    return file in _EXPLAINED.get(draft.tag, ())


def _continues(prelude: Draft, draft: Draft) -> bool:
    """Is this headline the one that the prelude announced?"""
    if prelude.tag == "gsp":
        return draft.body is Body.GSP
    if prelude.tag != draft.tag:
        return False
    return prelude.device is None or draft.device is None or draft.device in prelude.devices


def _join(prelude: Draft, draft: Draft) -> None:
    """The prelude becomes the report: the headline's words, the worse severity, the first line's place."""
    strong = prelude.awaits and not prelude.weak
    if prelude.tag == "warn" and draft.tag in _EXPLAINED:
        # The message says what is wrong; the WARNING only says where.
        prelude.cls, prelude.title, prelude.tag = draft.cls, draft.title, draft.tag
        prelude.device = draft.device
        prelude.code = draft.code if draft.tag in _NAMED_BY_MESSAGE else prelude.code
        draft.awaits, strong = False, True
    elif strong:
        if prelude.tag not in _NAMED_BY_MESSAGE:
            prelude.code = draft.code or prelude.code
    else:
        prelude.cls, prelude.code, prelude.title = draft.cls, draft.code, draft.title
        prelude.severity, prelude.tag, prelude.body = draft.severity, draft.tag, draft.body
        prelude.device = draft.device or prelude.device
    if strong and draft.tag == "refcount" and draft.awaits:
        prelude.awaits = True
    else:
        prelude.awaits = draft.awaits
    if not strong:
        prelude.absorber, prelude.greedy, prelude.keyed = draft.absorber, draft.greedy, draft.keyed
        prelude.patience_ns, prelude.patience_records = draft.patience_ns, draft.patience_records
    prelude.raise_severity(draft.severity)
    prelude.weak = draft.weak
    prelude.incomplete = draft.incomplete
    prelude.devices |= draft.devices
    for name, value in draft.details.items():
        prelude.details.setdefault(name, value)


def _lone_suppressed(
    identity: str,
    cls: EventClass,
    severity: Severity,
    func: str,
    number: int,
    line: Line,
    index: int,
) -> Draft:
    """What is left when the messages that a rate limit swallowed are all there was."""
    record = line.record
    return Draft(
        id=identity, cls=cls, severity=severity, device=None, code=func, title=f"{func}: messages suppressed",
        body=Body.NONE, tag="suppressed", details={}, caller=record.caller, weak=False, awaits=False,
        incomplete=True, synthetic=record.facility != 0, first_seq=record.seq, last_seq=record.seq,
        time_ns=record.time_ns, last_time_ns=record.time_ns, index=index, count=number, missed=number,
        lines=[line.text],
    )  # fmt: skip


def classify(records: Iterable[Record | Gap]) -> list[Event]:
    """All events of a whole log, repeats merged by (class, device, code), in order of first line."""
    classifier = Classifier(window_ns=None, window_records=None)
    events: list[Event] = []
    for record in records:
        events += classifier.feed(record)
    events += classifier.flush()
    return sorted(events, key=lambda event: event.first_seq)
