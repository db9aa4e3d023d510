"""Text formats: each renders the same records, and so the same events."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kmsg_cases import Case, as_records, corpus, found_in, key_of

from gdrstorm.kmsg.record import Record, parse_kmsg_record, parse_lines

CASES = [case for case in corpus() if case.events]
TEXT = "pcieport 0000:00:1c.0:   device [8086:9d18] error status/mask=00000001/00002000"
SECONDS = 12.345678
NS = 12_345_678_000

# name -> (rendering of one record, does it keep the time since boot)
RENDERINGS: dict[str, tuple[Callable[[int, str], str], bool]] = {
    "kmsg": (lambda i, t: f"6,{i},12345678,-;{t}", True),
    "kmsg-caller": (lambda i, t: f"6,{i},12345678,-,caller=T77;{t}", True),
    "dmesg": (lambda i, t: f"[   12.345678] {t}", True),
    "dmesg-caller": (lambda i, t: f"[   12.345678][   T77] {t}", True),
    "dmesg-caller-apart": (lambda i, t: f"[   12.345678] [   T77] {t}", True),
    "dmesg-x": (lambda i, t: f"kern  :info  : [   12.345678] {t}", True),
    "dmesg-raw": (lambda i, t: f"<6>[   12.345678] {t}", True),
    "dmesg-delta": (lambda i, t: f"[   12.345678 <    0.000001>] {t}", True),
    "dmesg-reltime": (lambda i, t: f"[  +0.000001] {t}", False),
    "dmesg-reltime-head": (lambda i, t: f"[Aug30 11:43] {t}", False),
    "dmesg-T": (lambda i, t: f"[Fri Aug 30 11:43:09 2024] {t}", False),
    "dmesg-iso": (lambda i, t: f"2024-08-30T11:43:09,123456+00:00 {t}", False),
    "journal-short": (lambda i, t: f"Aug 30 11:43:09 host1 kernel: {t}", False),
    "journal-short-precise": (lambda i, t: f"Aug 30 11:43:09.123456 host1 kernel: {t}", False),
    "journal-short-iso": (lambda i, t: f"2024-08-30T11:43:09+0200 host1 kernel: {t}", False),
    "journal-short-full": (lambda i, t: f"Fri 2024-08-30 11:43:09 UTC host1 kernel: {t}", False),
    "journal-monotonic": (lambda i, t: f"[   12.345678] host1 kernel: {t}", True),
    "journal-unix": (lambda i, t: f"1725018189.123456 host1 kernel: {t}", False),
    "journal-json": (
        lambda i, t: json.dumps(
            {"MESSAGE": t, "PRIORITY": "6", "_TRANSPORT": "kernel", "_SOURCE_MONOTONIC_TIMESTAMP": "12345678"}
        ),
        True,
    ),
    "syslog-and-boot-time": (lambda i, t: f"Aug 30 11:43:09 host1 kernel: [   12.345678] {t}", True),
    "console-crlf": (lambda i, t: f"[   12.345678] {t}\r\n", True),
    "console-colour": (lambda i, t: f"\x1b[32m[   12.345678] \x1b[0m{t}\x1b[0m", True),
    "console-host": (lambda i, t: f"node-7: [   12.345678] {t}", True),
    "console-no-time": (lambda i, t: t, False),
}  # fmt: skip


@pytest.mark.parametrize("name", RENDERINGS)
def test_text_and_time_survive(name: str) -> None:
    render, keeps_time = RENDERINGS[name]
    (record,) = parse_lines([render(5, TEXT)])
    assert record.text == TEXT
    if keeps_time:
        assert record.time_ns == NS
    assert record.facility == 0


@pytest.mark.parametrize("name", RENDERINGS)
@pytest.mark.parametrize("case", CASES[::5], ids=lambda case: case.id)
def test_every_format_gives_the_same_events(name: str, case: Case) -> None:
    render, _ = RENDERINGS[name]
    plain = [record.text for record in as_records(case.lines)]
    want = sorted(map(str, map(key_of, found_in(plain))))
    lines = [render(index, text) for index, text in enumerate(plain)]
    assert sorted(map(str, map(key_of, found_in(lines)))) == want


def test_dmesg_json() -> None:
    lines = json.dumps(
        {
            "dmesg": [
                {"pri": 4, "time": SECONDS, "msg": TEXT},
                {"pri": 6, "time": 13.0, "msg": 'a "b"'},
            ]
        },
        indent=3,
    ).split("\n")
    first, second = parse_lines(lines)
    assert (first.text, first.time_ns, first.level) == (TEXT, NS, 4)
    assert second.text == 'a "b"'


def test_levels_facilities_and_callers() -> None:
    assert next(parse_lines(["<12>[    1.000000] hello"])).facility == 1
    assert next(parse_lines(["user  :warn  : [    1.000000] hello"])).facility == 1
    assert next(parse_lines(["[    1.000000][    C3] hello"])).caller == "C3"
    assert next(parse_lines(["<3>[    1.000000] hello"])).level == 3


def test_two_records_run_together_on_a_console() -> None:
    records = list(parse_lines(["[    1.000000] foo: bar[    2.000000] NVRM: baz"]))
    assert [(r.text, r.time_ns) for r in records] == [("foo: bar", 10**9), ("NVRM: baz", 2 * 10**9)]


def test_other_programs_are_no_kernel_lines() -> None:
    lines = [
        "Feb 14 05:03:41 host1 sshd[12]: BUG: soft lockup",
        "Feb 14 05:03:41 host1 dockerd: NVRM: Xid (PCI:0000:01:00): 79, x",
        '{"MESSAGE": "NVRM: Xid (PCI:0000:01:00): 79, x", "_TRANSPORT": "stdout"}',
    ]
    assert list(parse_lines(lines)) == []


def test_message_repeated() -> None:
    lines = [
        "Feb 14 05:03:41 host1 kernel: [    1.000000] NVRM: Xid (PCI:0000:01:00): 31, x",
        "Feb 14 05:03:42 host1 kernel: message repeated 3 times: [ [    1.000000] NVRM: Xid (PCI:0000:01:00): 31, x]",
        "Feb 14 05:03:43 host1 kernel: [    2.000000] NVRM: Xid (PCI:0000:01:00): 43, y",
        "Feb 14 05:03:44 host1 last message repeated 2 times",
    ]
    counts = {event.code: event.count for event in found_in(lines)}
    assert counts == {"31": 4, "43": 3}


def test_pstore_file() -> None:
    lines = ["Panic#2 Part1", "<0>[  100.000003] Kernel panic - not syncing: Fatal exception"]
    assert [record.text for record in parse_lines(lines)] == [
        "Kernel panic - not syncing: Fatal exception"
    ]


def test_kmsg_record_of_the_device() -> None:
    record = parse_kmsg_record(
        b"14,339,5140900,c,caller=T1;NET: caf\\xc3\\xa9\\x0asecond\n SUBSYSTEM=pci\n DEVICE=+pci:0000:01:00.0\n"
    )
    assert record.text == "NET: café\nsecond"
    assert (record.level, record.facility, record.seq) == (6, 1, 339)
    assert (record.time_ns, record.flags, record.caller) == (5_140_900_000, "c", "T1")
    assert record.field("DEVICE") == "+pci:0000:01:00.0"
    assert record.field("ABSENT") is None


def test_kmsg_dump_keeps_fields() -> None:
    lines = ["6,1,2,-;text", " SUBSYSTEM=pci", " DEVICE=+pci:0000:01:00.0", "6,2,3,-;more"]
    first, second = parse_lines(lines)
    assert first.field("SUBSYSTEM") == "pci"
    assert second.fields == ()


@pytest.mark.parametrize("data", [b"", b"garbage", b"1,2;x", b"a,b,c,-;x"])
def test_no_record(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_kmsg_record(data)


@given(st.lists(st.text(max_size=200), max_size=20))
def test_any_text_is_read(lines: list[str]) -> None:
    for record in parse_lines(lines):
        assert isinstance(record, Record)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_record_or_a_value_error(data: bytes) -> None:
    try:
        record = parse_kmsg_record(data)
    except ValueError:
        return
    assert record.seq is not None
