"""The watch of a run: kernel log and other witnesses to journal lines.

Opened before the first operation, closed a tail after the last. Markers bound the run in the log; what came before
the first is not blamed on the run. Runs inside the supervisor's loop, never blocks it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from gdrstorm.kmsg.attribute import Call, Marker, RunSpan, attribute
from gdrstorm.kmsg.baseline import BaselineFilter
from gdrstorm.kmsg.devkmsg import devkmsg_unlimited
from gdrstorm.kmsg.faults import Classifier
from gdrstorm.kmsg.reader import KmsgReader
from gdrstorm.kmsg.reconcile import reconcile
from gdrstorm.kmsg.record import Record
from gdrstorm.kmsg.witness import Witness
from gdrstorm.model import journal as j
from gdrstorm.model.event import Attribution, Belongs, Event, Severity, Source

Write = Callable[[j.Line], object]

#: witnesses other than the log read files; once a second is often enough for what they count
_WITNESS_NS = 1_000_000_000


def _no_calls() -> tuple[Call, ...]:
    return ()


class Watch:
    """Everything that looks at the kernel while a run goes on. `write` takes the journal lines it makes.

    `span` names the devices under test and those beside them; `calls` tells which calls are in flight right now.
    """

    def __init__(
        self,
        run_id: str,
        write: Write,
        witnesses: Sequence[Witness] = (),
        *,
        span: RunSpan | None = None,
        baseline: BaselineFilter | None = None,
        kmsg: Path = Path("/dev/kmsg"),
    ) -> None:
        self._run_id = run_id
        self._write = write
        self._witnesses = list(witnesses)
        self._span = span or RunSpan(())
        self._baseline = baseline
        self._kmsg_path = kmsg
        self._stack = contextlib.ExitStack()
        self._reader: KmsgReader | None = None
        self._classifier = Classifier()
        self._witnessed_ns = 0
        self._attributions: dict[str, Attribution] = {}
        self.calls: Callable[[], tuple[Call, ...]] = _no_calls
        self.phase = ""
        self.seen: dict[str, Event] = {}

    def open(self) -> None:
        """Start to look. What cannot look is named in the journal, never an exception."""
        blind: dict[str, str] = {}
        problem = self._stack.enter_context(devkmsg_unlimited())
        if problem:
            self._note(f"kernel log: {problem}")
        try:
            self._reader = self._stack.enter_context(KmsgReader(self._kmsg_path))
        except OSError as error:
            blind["kernel log"] = f"{self._kmsg_path}: {error.strerror} (needs root)"
        for witness in list(self._witnesses):
            try:
                witness.start()
            except OSError as error:
                blind[type(witness).__name__] = str(error)
                self._witnesses.remove(witness)
        looking = tuple(type(witness).__name__ for witness in self._witnesses)
        log = ("kernel log",) if self._reader is not None else ()
        self._write(j.Watching(witnesses=(*log, *looking), blind=blind))

    def fileno(self) -> int | None:
        """Descriptor of the kernel log to wait on, None when it cannot be read."""
        return self._reader.fileno() if self._reader else None

    def mark(self, text: str) -> int | None:
        """Write a marker into the kernel log; its sequence number, None when it was not read back."""
        self.poll()
        seq = None
        if self._reader is not None:
            try:
                seq = self._reader.write_marker(f"gdrstorm {self._run_id}: {text}")
            except OSError as error:
                self._note(f"cannot write a marker to the kernel log: {error.strerror}")
            else:
                if seq is None:
                    self._note(f"marker `{text}` was not read back from the kernel log")
        marker = Marker(seq or 0, time.clock_gettime_ns(time.CLOCK_MONOTONIC), self.phase)
        self._span = msgspec.structs.replace(self._span, markers=(*self._span.markers, marker))
        return seq

    def poll(self) -> None:
        """Take what has come from the log, and once a second from the other witnesses."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        if self._reader is not None:
            for record in self._reader.read_records():
                self._take(self._classifier.feed(record))
                if self._baseline is not None and isinstance(record, Record):
                    unseen = self._baseline.check(record)
                    self._take([unseen] if unseen else [])
            self._take(self._classifier.started())
            self._take(self._classifier.tick(now))
        if now - self._witnessed_ns >= _WITNESS_NS:
            self._ask_witnesses(now)

    def _ask_witnesses(self, now: int) -> None:
        self._witnessed_ns = now
        for witness in list(self._witnesses):
            try:
                self._take(witness.poll())
            except OSError as error:
                self._note(f"witness {type(witness).__name__} cannot look any more: {error}")
                self._witnesses.remove(witness)

    def operations_ended(self) -> None:
        """The last operation is over: what comes from now on belongs to the tail."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        self._span = msgspec.structs.replace(self._span, end_ns=now)

    def close(self) -> None:
        """Take the last of it, restore the log's settings, close everything; twice is legal."""
        try:
            with contextlib.suppress(OSError):
                self.poll()
                self._ask_witnesses(self._witnessed_ns)
            self._take(self._classifier.flush())
            self._reconcile()
        finally:  # also when the journal cannot take the last of it
            for witness in self._witnesses:
                with contextlib.suppress(OSError):
                    witness.close()
            self._witnesses.clear()
            self._stack.close()
            self._reader = None

    def _reconcile(self) -> None:
        """Counters that tell of the same faults as the log: the log's event gets the larger count, once."""
        log = [event for event in self.seen.values() if event.source is Source.KMSG]
        counters = [event for event in self.seen.values() if event.source is not Source.KMSG]
        merged = {event.id: event for event in reconcile(log, counters)}
        absorbed = {link for event in merged.values() for link in event.linked}
        self._take(list(merged.values()))
        for event in counters:
            if event.id in absorbed and event.id not in merged:
                told = f"{event.title} (counted with the log's event)"
                self._take([msgspec.structs.replace(event, severity=Severity.INFO, title=told)])

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            known = self._attributions.get(event.id)
            if known is None:
                known = attribute(event, self._span, self.calls()).attribution
                assert known is not None
                self._attributions[event.id] = known
            event = msgspec.structs.replace(event, attribution=known)
            if self.seen.get(event.id) == event:
                continue
            self.seen[event.id] = event
            before = known.belongs is Belongs.PRE_EXISTING
            self._write(j.Seen(event=event, phase=known.phase or "", before_run=before))

    def _note(self, text: str) -> None:
        self._write(j.Note(text=text))


def boot_id() -> str:
    """The kernel's random id of this boot; empty where it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def new_run_id() -> str:
    """Sortable by time and unlikely to clash: 20261130T190203-1a2b."""
    return f"{time.strftime('%Y%m%dT%H%M%S')}-{os.urandom(2).hex()}"
