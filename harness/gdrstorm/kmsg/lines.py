"""Text logs to records, whatever carried them. Pure: no I/O, no judgement; never drops a kernel line.

Formats: /dev/kmsg dumps, dmesg in its usual layouts (plain, -x, -r, -T, -d, -e, --time-format=iso, --json),
journalctl -k (short, short-iso, short-precise, short-full, short-monotonic, short-unix, json), syslog files,
serial consoles (with or without times, two records run together, ANSI colours, cut lines), pstore files.
Lines of other programs in a syslog file are no kernel records and are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec

from gdrstorm.kmsg.types import Field, Record

_DAYS = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH = rf"(?:{'|'.join(_MONTHS)})"
_LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")
_FACILITIES = ("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron")

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Numbers have as many digits as the kernel writes: longer ones are text, not times that overflow.
_KMSG = re.compile(r"\s*(\d{1,6}),(\d{1,18}),(\d{1,15}),([^;,]*)((?:,[^;]*)?);(.*)")
_KMSG_FIELD = re.compile(r" ([A-Z][A-Z0-9_]*)=(.*)")
_PRIO = re.compile(r"<(\d{1,3})>")
_DECODED = re.compile(rf"({'|'.join(_FACILITIES)})\s*:({'|'.join(_LEVELS)})\s*: ?")
_MONO = re.compile(r"\[\s*(\d{1,9})\.(\d{1,9})(?:\s*<[^>]*>)?\]")
_CALLER = re.compile(r" ?\[\s*([TC]\d+)\]")
_DELTA = re.compile(r"\[\s*(?:\+\d+\.\d+|" + _MONTH + r"\s?\d{1,2} \d\d:\d\d|<[^>]*>)\]")
# [2024-03-05 00:00:01]: what loggers of serial lines put before each line; Talos puts its own before that.
_BRACKET_ISO = re.compile(
    r"(?:\S+: kern:\s+\w+: )?\[(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?Z?)\]:? ?"
)
_QUOTED = re.compile(r"(?:> ?)+")
_CTIME = re.compile(
    rf"\[{_DAYS} ({_MONTH}) +(\d{{1,2}}) (\d\d):(\d\d):(\d\d)(?:[.,](\d{{1,9}}))? (\d{{4}})(?:\s*<[^>]*>)?\]"
)
_ISO = re.compile(
    r"(\d{4}[-/]\d\d[-/]\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?"
    r"(Z|[+-]\d\d:?\d\d| (?:UTC|MSK|WIB|[A-Z]{2,4}T))?(?=\s)"
)
_WEEKDAY = re.compile(r"[^\s\d\[]{1,4}\.? (?=\d{4}-\d\d-\d\d )")
_SYSLOG = re.compile(rf"({_MONTH}) +(\d{{1,2}}) (\d\d):(\d\d):(\d\d)(?:\.(\d{{1,9}}))?(?=\s)")
# What dmesg -T and journalctl write in other languages: `[Mi Mär  3 10:00:00 2021]`, `8月 20 08:40:47`.
_LOCAL = re.compile(
    r"(\[[^\s\d\[\]]{1,5} +)?([^\s\d\[\]]{3,5}|\d{1,2}[月월]) +(?=\d{1,2} \d\d:\d\d:\d\d[ .])"
)
_LOCAL_MONTHS = (
    "jan jän янв ene gen sty oca", "fév fev feb фев lut şub", "mär mrz mar мар mrt",
    "avr apr апр abr kwi nis", "mai май мая maj mei mag may", "juin jun июн giu cze haz",
    "juil jul июл lug lip tem", "aoû aug авг ago sie ağu", "sep сен set wrz eyl", "oct okt окт out ott paź eki",
    "nov ноя lis kas", "déc dez des дек dic gru dec ara",
)  # fmt: skip
_UNIX = re.compile(r"(\d{9,10})\.(\d{6})(?=\s)")
_HOST_IDENT = re.compile(
    r"\s*(?:\S+\s+)?(?:(?:kern|user|daemon|auth|syslog)\.\w+\s+)?(kernel|[\w.@/()-]+\[\d+\])(?:\[\d+\])?:(?:\s|$)"
)
# A host, then a program. What looks alike without a host are the first words of some kernel messages.
_OTHER_IDENT = re.compile(
    r"\s*(?!infiniband |arm-smmu|mlx5_core\.sf |NVRM |NETDEV |EDAC |nvidia-peermem |nv_mem |Internal |"
    r"Kernel |Hardware |Call |invalid |divide |double |stack |general )[^\s:\[<]+\s+([A-Za-z][\w.@/-]*):\s"
)
_HOST_KERNEL = re.compile(r"[\w.-]+ kernel: ?")
_KERNEL = re.compile(r"kernel: ?")
_CONSOLE_HOST = re.compile(r"[\w.-]+: (?=\[\s*\d+\.\d)")
# A record begins inside a line: glued to the one before it, or behind a prompt of the console.
_INNER = re.compile(
    r"(?:(?<=\S)|(?<=login: )|(?<=[$#>] ))(?=\[ *\d{1,7}\.\d{6}\](?:\[ *[TC]\d+\])?)"
)
_REPEATED = re.compile(r"\s*message repeated (\d{1,9}) times: \[ ?(.*?)\]?$")
_LAST_REPEATED = re.compile(r"\s*(?:\S+ )?last message repeated (\d{1,9}) times?")
_PSTORE = re.compile(
    r"(?:Panic|Oops|Emergency|Restart|Halt|Poweroff|Shutdown|Unknown)#\d+ Part ?\d+\s*$"
)
_DMESG_JSON = re.compile(r'\s*"(pri|time|msg|caller|fac)": *(.*?),?\s*$')
_DMESG_JSON_FRAME = re.compile(r'\s*(?:[{}\[\]]|"dmesg": ?\[|\},?\{|[\]}],?)\s*$')


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the prefixes of a line said, and what is left."""

    text: str
    time_ns: int = -1
    level: int = -1
    facility: int = 0
    caller: str = ""
    foreign: bool = False


def _fraction_ns(digits: str | None) -> int:
    return int((digits or "0").ljust(9, "0")[:9])


def _civil_ns(year: int, month: int, day: int, clock: str, fraction: str | None) -> int:
    """Nanoseconds of a civil time taken as UTC: only differences within one log are used."""
    try:
        hour, minute, second = (int(part) for part in clock.split(":"))
        when = datetime(year, month, day, hour, minute, min(second, 59))
    except ValueError:
        return -1
    return int((when - datetime(1970, 1, 1)).total_seconds()) * 10**9 + _fraction_ns(fraction)


def _iso_ns(found: re.Match[str]) -> int:
    year, month, day = (int(part) for part in re.split("[-/]", found[1]))
    return _civil_ns(year, month, day, found[2], found[3]) if 1 <= month <= 12 else -1


def _in_english(text: str) -> str | None:
    """A line whose date has a month of another language, with an English one; None when it has none."""
    found = _LOCAL.match(text)
    if found is None:
        return None
    word = found[2].lower()
    number = int(word[:-1]) if word[:-1].isdigit() else 0
    for index, names in enumerate(_LOCAL_MONTHS):
        if word.startswith(tuple(names.split())):
            number = index + 1
            break
    if not 1 <= number <= 12:
        return None
    english = f"{'[Mon ' if found[1] else ''}{_MONTHS[number - 1]} {text[found.end() :]}"
    return english if english != text else None


def _take_date(parts: _Parts) -> _Parts | None:
    """Strip one dated prefix (syslog, ISO, Unix); with it the host and the program that wrote the line."""
    text = parts.text
    weekday = _WEEKDAY.match(text)
    if weekday:
        text = text[weekday.end() :]
    dmesg_iso = False
    if found := _SYSLOG.match(text):
        # Syslog dates have no year; a leap year takes every date there is.
        time_ns = _civil_ns(
            2000,
            _MONTHS.index(found[1]) + 1,
            int(found[2]),
            ":".join(found.group(3, 4, 5)),
            found[6],
        )
    elif found := _ISO.match(text):
        time_ns = _iso_ns(found)
        # dmesg writes a comma, container logs nanoseconds, programs slashes: the text follows, not a host.
        dmesg_iso = "," in found[0] or "/" in found[1] or len(found[3] or "") == 9
    elif found := _UNIX.match(text):
        time_ns = int(found[1]) * 10**9 + _fraction_ns(found[2])
    else:
        english = _in_english(text)
        return _take_date(replace(parts, text=english)) if english else None
    rest = text[found.end() :]
    ident = None if dmesg_iso else _HOST_IDENT.match(rest) or _OTHER_IDENT.match(rest)
    if ident is None:
        return replace(parts, text=rest[1:], time_ns=time_ns)
    foreign = ident[1] != "kernel"
    return replace(parts, text=rest[ident.end() :], time_ns=time_ns, foreign=foreign)


def _take_bracket(parts: _Parts) -> _Parts | None:
    """Strip one bracketed time: seconds since boot, ctime, or a difference."""
    text = parts.text
    if found := _MONO.match(text):
        parts = replace(parts, time_ns=int(found[1]) * 10**9 + _fraction_ns(found[2]))
    elif found := _CTIME.match(text):
        month = _MONTHS.index(found[1]) + 1
        clock = ":".join(found.group(3, 4, 5))
        time_ns = _civil_ns(int(found[7]), month, int(found[2]), clock, found[6])
        parts = replace(parts, time_ns=time_ns)
    elif not (found := _DELTA.match(text)):
        english = _in_english(text)
        return _take_bracket(replace(parts, text=english)) if english else None
    rest = text[found.end() :]
    if caller := _CALLER.match(rest):
        parts = replace(parts, caller=caller[1])
        rest = rest[caller.end() :]
    return replace(parts, text=rest.removeprefix(" "))


def _take_prefix(parts: _Parts) -> _Parts | None:
    """Strip the one prefix a line begins with, or None when it begins with its text."""
    text = parts.text.lstrip()
    if not text:
        return None
    first = text[0]
    stripped = replace(parts, text=text)
    if first == ">" and text.startswith("> ") and (found := _QUOTED.match(text)):
        return replace(parts, text=text[found.end() :])
    if (first == "[" or ": kern:" in text[:80]) and (found := _BRACKET_ISO.match(text)):
        iso = _ISO.match(found["iso"] + " ")
        time_ns = _iso_ns(iso) if iso else -1
        return replace(parts, text=text[found.end() :], time_ns=time_ns)
    if first == "[":
        return _take_bracket(stripped)
    if first == "<" and (found := _PRIO.match(text)):
        prio = int(found[1])
        return replace(parts, text=text[found.end() :], level=prio & 7, facility=prio >> 3)
    if found := _KERNEL.match(text):
        return replace(parts, text=text[found.end() :])
    if found := _DECODED.match(text):
        level, facility = _LEVELS.index(found[2]), _FACILITIES.index(found[1])
        return replace(parts, text=text[found.end() :], level=level, facility=facility)
    if found := _CONSOLE_HOST.match(text):
        return replace(parts, text=text[found.end() :])
    if found := _HOST_KERNEL.match(text):
        return replace(parts, text=text[found.end() :])
    return _take_date(stripped)


def _split_prefixes(line: str) -> _Parts:
    parts = _Parts(line)
    for _ in range(5):
        shorter = _take_prefix(parts)
        if shorter is None or shorter.foreign:
            return shorter or parts
        parts = shorter
    return parts


def _json_text(value: object) -> str:
    """journald gives a list of byte values when a message is not plain UTF-8."""
    if isinstance(value, list):
        return bytes(item & 255 for item in value if isinstance(item, int)).decode(
            "utf-8", "replace"
        )
    return str(value)


def _journal_record(line: str, seq: int) -> Record | None:
    """One object of journalctl -o json; None when it is none or not the kernel's."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict) or "MESSAGE" not in entry:
        return None
    if entry.get("_TRANSPORT", "kernel") != "kernel" and entry.get("SYSLOG_IDENTIFIER") != "kernel":
        return None
    usec = entry.get("_SOURCE_MONOTONIC_TIMESTAMP") or entry.get("__MONOTONIC_TIMESTAMP") or -1
    device = entry.get("_KERNEL_DEVICE")
    try:
        return Record(
            seq,
            _json_text(entry["MESSAGE"]),
            int(usec) * 1000 if int(usec) >= 0 else -1,
            int(entry.get("PRIORITY", -1)),
            int(entry.get("SYSLOG_FACILITY", 0)),
            fields=(Field("DEVICE", str(device)),) if device else (),
        )
    except (TypeError, ValueError):
        return None


def _kmsg_record(found: re.Match[str]) -> Record:
    prio = int(found[1])
    caller = found[5].partition("caller=")[2]
    return Record(
        int(found[2]), found[6], int(found[3]) * 1000, prio & 7, prio >> 3, found[4] or "-", caller
    )


def _text_records(line: str, seq: int) -> Iterator[Record]:
    """The records of one text line: more than one when a console ran them together."""
    parts = _split_prefixes(line)
    if parts.foreign:
        return
    repeat = 1
    if found := _REPEATED.match(parts.text):
        repeat = int(found[1])
        inner = _split_prefixes(found[2])
        parts = replace(
            parts, text=inner.text, time_ns=inner.time_ns if inner.time_ns >= 0 else parts.time_ns
        )
    pieces = _INNER.split(parts.text) if "[" in parts.text[1:] else [parts.text]
    for index, piece in enumerate(pieces):
        part = parts if index == 0 else _split_prefixes(piece)
        text = pieces[0] if index == 0 else part.text
        yield Record(
            seq, text, part.time_ns, part.level, part.facility, caller=part.caller, repeat=repeat
        )


def _feed_dmesg_json(found: re.Match[str], entry: dict[str, str], seq: int) -> Record | None:
    """Collect the lines of one dmesg --json object; its msg line completes it."""
    name, value = found[1], found[2]
    if name != "msg":
        entry[name] = value
        return None
    try:
        text = str(json.loads(value))
    except ValueError:
        text = value.strip('"')
    prio = int(entry["pri"]) if entry.get("pri", "").isdigit() else -1
    try:
        time_ns = round(float(entry.get("time", "-1").strip('"')) * 1e9)
    except ValueError:
        time_ns = -1
    entry.clear()
    known = prio >= 0
    return Record(seq, text, time_ns, prio & 7 if known else -1, prio >> 3 if known else 0)


def _special(line: str, seq: int, entry: dict[str, str]) -> Record | bool | None:
    """Formats with a frame of their own. False: an ordinary text line; None: nothing on this line."""
    if found := _KMSG.match(line):
        return _kmsg_record(found)
    if line.startswith("{") and '"MESSAGE"' in line:
        return _journal_record(line, seq)
    if found := _DMESG_JSON.match(line):
        return _feed_dmesg_json(found, entry, seq)
    if _DMESG_JSON_FRAME.match(line) or _PSTORE.match(line):
        return None
    return False


def parse_lines(lines: Iterable[str]) -> Iterator[Record]:
    """Text lines of any supported format to records; seq counts input lines where the format has none.

    Nothing waits for the next line, but a /dev/kmsg record for its key=value lines.
    """
    held: Record | None = None
    last: Record | None = None
    entry: dict[str, str] = {}
    for seq, raw in enumerate(lines):
        line = raw.rstrip("\r\n")
        if "\x1b" in line:
            line = _ANSI.sub("", line)
        if held is not None:
            if more := _KMSG_FIELD.fullmatch(line):
                field = Field(more[1], more[2])
                held = msgspec.structs.replace(held, fields=(*held.fields, field))
                continue
            yield held
            held = None
        if last is not None and (again := _LAST_REPEATED.match(_split_prefixes(line).text)):
            yield msgspec.structs.replace(last, seq=seq, repeat=int(again[1]))
            continue
        special = _special(line, seq, entry)
        if isinstance(special, Record):
            last = special
            if _KMSG.match(line):
                held = special
            else:
                yield special
        elif special is False:
            for record in _text_records(line, seq):
                last = record
                yield record
    if held is not None:
        yield held
