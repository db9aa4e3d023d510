"""Witness: the kernel's taint flags, to one event for each flag that was set while it looked.

Meaning of the bits: Documentation/admin-guide/tainted-kernels.rst.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gdrstorm.kmsg.witness.common import EventMaker
from gdrstorm.model.event import Event, EventClass, Severity, Source


class Flag(NamedTuple):
    """One taint flag: its letter, how bad it is that it came up now, and what it says."""

    letter: str
    severity: Severity
    meaning: str


F, E, W, INFO = Severity.FATAL, Severity.ERROR, Severity.WARNING, Severity.INFO
FLAGS = {
    0: Flag("P", INFO, "proprietary module loaded"),
    1: Flag("F", INFO, "module was force loaded"),
    2: Flag("S", INFO, "kernel runs on an out of specification system"),
    3: Flag("R", INFO, "module was force unloaded"),
    4: Flag("M", E, "processor reported a machine check"),
    5: Flag("B", F, "bad page referenced or unexpected page flags"),
    6: Flag("U", INFO, "taint requested by userspace"),
    7: Flag("D", F, "kernel died recently: oops or BUG"),
    8: Flag("A", INFO, "ACPI table overridden by user"),
    9: Flag("W", W, "kernel issued a warning"),
    10: Flag("C", INFO, "staging driver loaded"),
    11: Flag("I", INFO, "workaround for platform firmware"),
    12: Flag("O", INFO, "out-of-tree module loaded"),
    13: Flag("E", INFO, "unsigned module loaded"),
    14: Flag("L", F, "soft lockup occurred"),
    15: Flag("K", INFO, "kernel live patched"),
    16: Flag("X", INFO, "auxiliary taint of the distribution"),
    17: Flag("T", INFO, "struct randomization"),
    18: Flag("N", INFO, "in-kernel test ran"),
    19: Flag("J", INFO, "userspace used a mutating debug operation in fwctl"),
}


class TaintFlags:
    """New taint flags."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._path = root / "sys/kernel/tainted"
        self._before = 0
        self._maker = EventMaker(Source.TAINT)

    def start(self) -> None:
        """Take the flags as they are. OSError when they cannot be read."""
        self._before = int(self._path.read_text())

    def poll(self) -> list[Event]:
        """Flags that were set since the last call."""
        try:
            now = int(self._path.read_text())
        except (OSError, ValueError):
            return []
        added, self._before = now & ~self._before, now | self._before
        return [self._event(bit, now) for bit in range(64) if added >> bit & 1]

    def close(self) -> None:
        """Nothing is held."""

    def _event(self, bit: int, now: int) -> Event:
        flag = FLAGS.get(bit, Flag(f"bit {bit}", W, "unknown taint flag"))
        return self._maker.make(
            EventClass.TAINT,
            flag.severity,
            f"kernel tainted {flag.letter}: {flag.meaning}",
            code=flag.letter,
            details={"flags": str(now)},
        )
