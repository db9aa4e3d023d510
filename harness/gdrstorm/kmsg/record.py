"""Kernel log bytes and lines to records, whatever carried them. Pure: no I/O, no judgement.

Formats: /dev/kmsg records (Documentation/ABI/testing/dev-kmsg), dmesg in its usual layouts (plain, -x, -r,
-T, -d, --time-format=iso, --json), journalctl -k (short, short-iso, short-precise, short-monotonic,
short-unix, json), syslog files, serial consoles (with or without times, two records run together, ANSI
colours, cut lines) and pstore files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec


class Field(msgspec.Struct, frozen=True):
    """A key=value line of a record, e.g. SUBSYSTEM=pci."""

    name: str
    value: str


class Record(msgspec.Struct, frozen=True):
    """One log record. level is 0 (emergency) to 7 (debug), -1 unknown; facility 0 is the kernel's own, 1 user.

    caller is `T123` (task) or `C0` (CPU) or empty. repeat > 1: syslog's "message repeated N times".
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


def parse_kmsg_record(data: bytes) -> Record:
    """One read() of /dev/kmsg to a Record. ValueError when it is none."""
    raise NotImplementedError


def parse_lines(lines: Iterable[str]) -> Iterator[Record]:
    """Text lines of any supported format to records; seq counts input lines where the format has none."""
    raise NotImplementedError
