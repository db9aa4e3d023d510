"""Logs from the field, which no row was written for: each gives exactly its events, whatever carried it.

tests/data/kmsg/field.jsonl has the corpus' form; `count` is said where repeats or several lines of one report
matter. Each log is also put through every transport a log may have taken, and must give the same answer.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec
import pytest
from kmsg_cases import DATA, Case, as_records, benign, check_case, found_in, key_of

from gdrstorm.kmsg.faults import classify
from gdrstorm.kmsg.record import Record

CASES = [
    msgspec.json.decode(line, type=Case)
    for line in (DATA / "field.jsonl").read_text(encoding="utf-8").splitlines()
]
FAULTS = [case for case in CASES if case.events]
# Two reports of one device that only their times keep apart.
NEED_TIMES = {"mlx5-temp-then-synd"}


def by_id(case: Case) -> str:
    return case.id


def check(case: Case, lines: list[str]) -> None:
    events = found_in(lines)
    check_case(case, events)
    by_key = {key_of(event): event for event in events}
    for answer in (case.expect, *case.also) if case.events else ():
        event = by_key[answer.key]
        if answer.severity is not None:
            assert event.severity.value == answer.severity, event
        if answer.count is not None:
            assert event.count == answer.count, event


@pytest.mark.parametrize("case", CASES, ids=by_id)
def test_log_gives_its_events(case: Case) -> None:
    check(case, case.lines)


@pytest.mark.parametrize("case", [case for case in CASES if not case.events], ids=by_id)
def test_each_harmless_line_is_silent_alone(case: Case) -> None:
    for line in case.lines:
        assert found_in([line]) == [], line


@pytest.mark.parametrize("case", FAULTS, ids=by_id)
def test_log_with_harmless_lines_between(case: Case) -> None:
    mixed: list[Record] = []
    for record, line in zip(as_records(case.lines), itertools.cycle(benign())):
        mixed += [record, Record(0, line, record.time_ns)]
    check_case(case, classify(mixed))


def when(ns: int) -> datetime:
    return datetime(2024, 3, 5) + timedelta(microseconds=ns // 1000)


def monotonic(ns: int) -> str:
    return f"{ns / 1e9:12.6f}"


def journal_json(ns: int, text: str) -> str:
    entry = {
        "MESSAGE": text, "PRIORITY": "3", "SYSLOG_FACILITY": "0", "SYSLOG_IDENTIFIER": "kernel",
        "_TRANSPORT": "kernel", "_SOURCE_MONOTONIC_TIMESTAMP": str(ns // 1000),
    }  # fmt: skip
    return json.dumps(entry)


# One line of text at a time to what a tool or a wire makes of it.
TRANSPORTS: dict[str, Callable[[int, str], str]] = {
    "kmsg": lambda ns, text: f"3,{ns // 1000},{ns // 1000},-;{text}",
    "kmsg with caller": lambda ns, text: f"3,{ns // 1000},{ns // 1000},-,caller=T12;{text}",
    "dmesg": lambda ns, text: f"[{monotonic(ns)}] {text}",
    "dmesg with thread": lambda ns, text: f"[{monotonic(ns)}][  T123] {text}",
    "dmesg with CPU": lambda ns, text: f"[{monotonic(ns)}][    C3] {text}",
    "dmesg -T": lambda ns, text: f"[{when(ns):%a %b %e %H:%M:%S %Y}] {text}",
    "dmesg -x": lambda ns, text: f"kern  :err   : [{monotonic(ns)}] {text}",
    "dmesg -x -T": lambda ns, text: f"kern  :err   : [{when(ns):%a %b %e %H:%M:%S %Y}] {text}",
    "dmesg -r": lambda ns, text: f"<3>[{monotonic(ns)}] {text}",
    "dmesg -d": lambda ns, text: f"[{monotonic(ns)} <    0.000010>] {text}",
    "dmesg iso": lambda ns, text: f"{when(ns):%Y-%m-%dT%H:%M:%S,%f}+00:00 {text}",
    "journalctl short": lambda ns, text: f"{when(ns):%b %d %H:%M:%S} host1 kernel: {text}",
    "journalctl short-precise": lambda ns, text: (
        f"{when(ns):%b %d %H:%M:%S.%f} host1 kernel: {text}"
    ),
    "journalctl short-monotonic": lambda ns, text: f"[{monotonic(ns)}] host1 kernel: {text}",
    "journalctl short-iso": lambda ns, text: (
        f"{when(ns):%Y-%m-%dT%H:%M:%S}+0100 host1 kernel: {text}"
    ),
    "journalctl short-full": lambda ns, text: (
        f"{when(ns):%a %Y-%m-%d %H:%M:%S} CEST host1 kernel: {text}"
    ),
    "journalctl json": journal_json,
    "syslog": lambda ns, text: (
        f"{when(ns):%b %e %H:%M:%S} node-1.example.org kernel: [{monotonic(ns)}] {text}"
    ),
    "syslog with priority": lambda ns, text: (
        f"{when(ns):%b %e %H:%M:%S} host1 kern.err kernel: {text}"
    ),
    "netconsole": lambda ns, text: f"192.168.0.7: [{monotonic(ns)}] {text}",
    "serial logger": lambda ns, text: f"[{when(ns):%Y-%m-%d %H:%M:%S}] [{monotonic(ns)}] {text}",
    "moreutils ts": lambda ns, text: f"{when(ns):%b %d %H:%M:%S} [{monotonic(ns)}] {text}",
    "container log": lambda ns, text: f"{when(ns):%Y-%m-%dT%H:%M:%S.%f}000Z {text}",
    "Talos": lambda ns, text: (
        f"192.168.0.1: kern: warning: [{when(ns):%Y-%m-%dT%H:%M:%S.%f}000Z]: {text}"
    ),
    "dmesg -T, German": lambda ns, text: f"[Di Mär {when(ns):%e %H:%M:%S %Y}] {text}",
    "dmesg -T, Chinese": lambda ns, text: f"[二  3月 {when(ns):%e %H:%M:%S %Y}] {text}",
    "journalctl, French": lambda ns, text: f"mars {when(ns):%d %H:%M:%S} host1 kernel: {text}",
    "journalctl, Chinese": lambda ns, text: f"3月 {when(ns):%d %H:%M:%S} host1 kernel: {text}",
    "program's log": lambda ns, text: f"{when(ns):%Y/%m/%d %H:%M:%S} {text}",
    "CRLF": lambda ns, text: f"[{monotonic(ns)}] {text}\r\n",
    "colours": lambda ns, text: (
        f"\x1b[32m[{monotonic(ns)}] \x1b[0m\x1b[1m\x1b[31m{text[:9]}\x1b[0m{text[9:]}\x1b[0m"
    ),
    "mail quote": lambda ns, text: f"> > [{monotonic(ns)}] {text}",
    "indented": lambda ns, text: f"    [{monotonic(ns)}] {text}",
    "priority alone": lambda ns, text: f"<3>{text}",
    "serial without times": lambda ns, text: text,
}


def carried(case: Case, transport: Callable[[int, str], str]) -> list[str]:
    """The case's lines as the transport writes them; gaps between its lines are kept."""
    records = as_records(case.lines)
    start = records[0].time_ns if records[0].time_ns >= 10**15 else 0
    lines = []
    last = 10**9
    for record in records:
        last = record.time_ns - start + 10**9 if record.time_ns >= 0 else last + 10**6
        lines.append(transport(last, record.text))
    return lines


@pytest.mark.parametrize("name", TRANSPORTS)
def test_transport_changes_nothing(name: str) -> None:
    timeless = name in {"priority alone", "serial without times"}
    for case in CASES:
        if not (timeless and case.id in NEED_TIMES):
            check(case, carried(case, TRANSPORTS[name]))
