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

from gdrstorm.kmsg.devkmsg import devkmsg_unlimited
from gdrstorm.kmsg.faults import Classifier
from gdrstorm.kmsg.reader import KmsgReader
from gdrstorm.kmsg.witness import Witness
from gdrstorm.model import journal as j
from gdrstorm.model.event import Event

Write = Callable[[j.Line], object]


class Watch:
    """Everything that looks at the kernel while a run goes on. `write` takes the journal lines it makes."""

    def __init__(
        self,
        run_id: str,
        write: Write,
        witnesses: Sequence[Witness] = (),
        kmsg: Path = Path("/dev/kmsg"),
    ) -> None:
        self._run_id = run_id
        self._write = write
        self._witnesses = list(witnesses)
        self._kmsg_path = kmsg
        self._stack = contextlib.ExitStack()
        self._reader: KmsgReader | None = None
        self._classifier = Classifier()
        self._first_marker: int | None = None
        self.phase = ""
        self.seen: dict[str, Event] = {}

    def open(self) -> None:
        """Start to look. What cannot look is named in the journal, never an exception."""
        blind: dict[str, str] = {}
        problem = self._stack.enter_context(devkmsg_unlimited())
        if problem:
            self._note(f"kernel log markers may be lost to the rate limit: {problem}")
        try:
            self._reader = self._stack.enter_context(KmsgReader(self._kmsg_path))
        except OSError as error:
            blind["kernel log"] = f"{self._kmsg_path}: {error.strerror} (needs root)"
        for witness in list(self._witnesses):
            try:
                witness.start()
            except Exception as error:
                blind[type(witness).__name__] = str(error)
                self._witnesses.remove(witness)
        looking = tuple(type(witness).__name__ for witness in self._witnesses)
        log = ("kernel log",) if self._reader is not None else ()
        self._write(j.Watching(witnesses=(*log, *looking), blind=blind))

    def fileno(self) -> int | None:
        """Descriptor of the kernel log to wait on, None when it cannot be read."""
        return self._reader.fileno() if self._reader else None

    @property
    def sees_log(self) -> bool:
        return self._reader is not None

    def mark(self, text: str) -> int | None:
        """Write a marker into the kernel log; its sequence number, None when it was not read back."""
        if self._reader is None:
            return None
        self.poll()
        try:
            seq = self._reader.write_marker(f"gdrstorm {self._run_id}: {text}")
        except OSError as error:
            self._note(f"cannot write a marker to the kernel log: {error.strerror}")
            return None
        if seq is None:
            self._note(f"marker `{text}` was not read back from the kernel log")
        elif self._first_marker is None:
            self._first_marker = seq
        return seq

    def poll(self) -> None:
        """Take what has come, from every witness."""
        if self._reader is not None:
            for record in self._reader.read_records():
                self._take(self._classifier.feed(record))
            self._take(self._classifier.started())
            self._take(self._classifier.tick(time.clock_gettime_ns(time.CLOCK_MONOTONIC)))
        for witness in self._witnesses:
            self._take(witness.poll())

    def close(self) -> None:
        """Take the last of it, restore the log's settings, close everything; twice is legal."""
        with contextlib.suppress(OSError):
            self.poll()
        self._take(self._classifier.flush())
        for witness in self._witnesses:
            with contextlib.suppress(OSError):
                witness.close()
        self._witnesses.clear()
        self._stack.close()
        self._reader = None

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if self.seen.get(event.id) == event:
                continue
            self.seen[event.id] = event
            before = self._first_marker is None or (
                0 < event.first_seq < self._first_marker and event.last_seq < self._first_marker
            )
            self._write(j.Seen(event=event, phase=self.phase, before_run=before))

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


__all__ = ["Watch", "boot_id", "new_run_id"]
