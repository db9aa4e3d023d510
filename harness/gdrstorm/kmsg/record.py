"""/dev/kmsg records: bytes of one read() to a Record. Pure: no I/O, no judgement.

Format (Documentation/ABI/testing/dev-kmsg): `prio,seq,usec,flags[,caller=T12];text`, then continuation
lines ` KEY=value`, unprintable bytes as \\xNN. Text logs of other formats are read by `lines`.
"""

from __future__ import annotations

import re

import msgspec

from gdrstorm.kmsg.lines import parse_lines
from gdrstorm.kmsg.types import Field, Gap, Record

__all__ = ["Field", "Gap", "Record", "parse_kmsg_record", "parse_lines", "with_text"]

_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


def _unescape(text: str) -> str:
    """Undo the kernel's \\xNN; bytes above 0x7f were UTF-8 and come back as such."""
    raw = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    try:
        return raw.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return raw


def _fields(lines: list[str]) -> tuple[Field, ...]:
    found = []
    for line in lines:
        name, equals, value = line.strip().partition("=")
        if equals:
            found.append(Field(name, value))
    return tuple(found)


def parse_kmsg_record(data: bytes) -> Record:
    """One read() of /dev/kmsg to a Record. ValueError when it is none."""
    head, semicolon, body = data.decode("utf-8", "replace").partition(";")
    parts = head.split(",")
    if not semicolon or len(parts) < 3:
        raise ValueError(f"not a kmsg record: {data[:60]!r}")
    prio = int(parts[0])
    caller = ""
    if len(parts) > 4:
        caller = next((part[7:] for part in parts[4:] if part.startswith("caller=")), "")
    text, _, rest = body.partition("\n")
    return Record(
        int(parts[1]),
        _unescape(text) if "\\x" in text else text,
        int(parts[2]) * 1000,
        prio & 7,
        prio >> 3,
        parts[3] if len(parts) > 3 else "-",
        caller,
        _fields(rest.split("\n")) if rest else (),
    )


def with_text(record: Record, text: str) -> Record:
    """The same record with another text: one line of a message of several."""
    return msgspec.structs.replace(record, text=text)
