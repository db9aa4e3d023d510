"""The records of kmsg/: what one log record is, and what a hole in the log is."""

from __future__ import annotations

import msgspec


class Field(msgspec.Struct, frozen=True):
    """A key=value line of a record, e.g. SUBSYSTEM=pci."""

    name: str
    value: str


class Record(msgspec.Struct, frozen=True, gc=False):
    """One log record. Nothing in it can refer back to it, so the cycle collector need not know it.

    time_ns is -1 when the log has no times. level is 0 (emergency) to 7 (debug), -1 unknown; facility 0
    is the kernel's own, 1 a user's. caller is `T123` (task), `C0` (CPU) or empty. repeat > 1 stands for
    syslog's "message repeated N times".
    """

    seq: int
    text: str
    time_ns: int = -1
    level: int = -1
    facility: int = 0
    flags: str = "-"
    caller: str = ""
    fields: tuple[Field, ...] = ()
    repeat: int = 1

    def field(self, name: str) -> str | None:
        """Value of a key=value line, or None."""
        return next((item.value for item in self.fields if item.name == name), None)


class Gap(msgspec.Struct, frozen=True):
    """Records the kernel overwrote before they were read: first_seq and how many."""

    first_seq: int
    lost: int
