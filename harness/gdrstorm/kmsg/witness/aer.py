"""Witness: AER counters in sysfs, to events of what was added. The kernel counts errors that it does not print.

The files (Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats) are kept by the kernel: reading them does
not touch the device, and cannot wake it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gdrstorm.kmsg.witness.common import EventMaker, entries, read_text
from gdrstorm.model.event import Event, EventClass, Severity, Source

_FILES = {
    "aer_dev_correctable": Severity.CORRECTED,
    "aer_dev_nonfatal": Severity.ERROR,
    "aer_dev_fatal": Severity.FATAL,
}
_Counters = dict[tuple[str, str], int]


def parse_aer_counters(text: str) -> dict[str, int]:
    """`RxErr 3` lines to numbers, the TOTAL line left out."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name and value.isdigit() and not name.startswith("TOTAL_"):
            found[name] = int(value)
    return found


class AerCounters:
    """AER counters of the functions named, or of all that have them."""

    def __init__(self, bdfs: Iterable[str] = (), root: Path = Path("/sys")) -> None:
        self._devices = root / "bus/pci/devices"
        self._bdfs = tuple(bdfs)
        self._before: dict[str, _Counters] = {}
        self._maker = EventMaker(Source.AER_COUNTER)

    def start(self) -> None:
        """Take the counters as they are. OSError when no function has any."""
        self._before = {bdf: counters for bdf in self._names() if (counters := self._read(bdf))}
        if not self._before:
            raise FileNotFoundError(2, f"no AER counters under {self._devices}")

    def poll(self) -> list[Event]:
        """What was added since the last call."""
        events: list[Event] = []
        for bdf in self._names():
            now = self._read(bdf)
            if not now:
                continue
            before = self._before.get(bdf)
            self._before[bdf] = now
            # Not known before: plugged in again, with counters of its own.
            for (file, name), value in now.items():
                added = value - (before.get((file, name), 0) if before is not None else 0)
                if added < 0:
                    added = value
                if added:
                    events.append(self._event(bdf, file, name, added))
        return events

    def close(self) -> None:
        """Nothing is held."""
        self._before.clear()

    def _names(self) -> tuple[str, ...]:
        return self._bdfs or tuple(path.name for path in entries(self._devices))

    def _read(self, bdf: str) -> _Counters:
        found: _Counters = {}
        for file in _FILES:
            text = read_text(self._devices / bdf / file)
            if text is not None:
                found |= {(file, name): n for name, n in parse_aer_counters(text).items()}
        return found

    def _event(self, bdf: str, file: str, name: str, added: int) -> Event:
        severity = _FILES[file]
        title = f"AER {severity.value} {name}"
        return self._maker.make(
            EventClass.AER,
            severity,
            title,
            device=bdf,
            code=name,
            count=added,
            details={"file": file},
        )
