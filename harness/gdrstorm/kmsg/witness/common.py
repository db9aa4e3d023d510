"""What the witnesses share: reading small files that may vanish, numbered events, the clock. Opens nothing to write."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

from gdrstorm.model.event import Detail, Event, EventClass, Severity, Source


def monotonic_ns() -> int:
    """The clock of /dev/kmsg and of trace files, near enough to tell what ran."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def read_text(path: Path) -> str | None:
    """Contents of a small file, None when it is gone or does not answer."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def entries(path: Path) -> list[Path]:
    """Sorted entries of a directory, none when it is not there."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


class EventMaker:
    """Numbers the events of one witness: `aer-counter-3`."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._numbers: Iterator[int] = itertools.count(1)

    def make(
        self,
        cls: EventClass,
        severity: Severity,
        title: str,
        *,
        device: str | None = None,
        code: str | None = None,
        count: int = 1,
        lines: tuple[str, ...] = (),
        time_ns: int | None = None,
        details: dict[str, str] | None = None,
    ) -> Event:
        """One event of this witness, now unless told otherwise."""
        when = monotonic_ns() if time_ns is None else time_ns
        return Event(
            id=f"{self._source.value}-{next(self._numbers)}",
            cls=cls,
            severity=severity,
            device=device,
            code=code,
            title=title,
            count=count,
            time_ns=when,
            last_time_ns=when,
            lines=lines,
            source=self._source,
            details=tuple(Detail(name, value) for name, value in (details or {}).items()),
        )
