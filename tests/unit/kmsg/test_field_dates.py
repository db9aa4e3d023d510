# SPDX-License-Identifier: Apache-2.0
"""Dates of other languages before a record: they say when, and nothing of them stays in the text."""

from __future__ import annotations

import pytest

from gdrstorm.kmsg.record import parse_lines

TEXT = "NVRM: Xid (PCI:0000:23:00): 79, GPU has fallen off the bus."
DAY_NS = 24 * 3600 * 10**9

MONTHS = [
    ("[Mi Jan", 1), ("[mer. févr.", 2), ("[Mi Mär", 3), ("[Ср мар", 3), ("[mer. avril", 4), ("[mié may", 5),
    ("[mer. juin", 6), ("[mer. juil.", 7), ("[五 8月", 8), ("[수  8월", 8), ("[qua set", 9), ("[Mi Okt", 10),
    ("[金 11月", 11), ("[Mi Dez", 12),
]  # fmt: skip


@pytest.mark.parametrize(("start", "month"), MONTHS)
def test_ctime(start: str, month: int) -> None:
    (record,) = parse_lines([f"{start} 20 08:40:47 2021] {TEXT}"])
    (english,) = parse_lines([f"2021-{month:02}-20T08:40:47,000000+00:00 {TEXT}"])
    assert (record.text, record.time_ns) == (TEXT, english.time_ns)


@pytest.mark.parametrize("start", ["Okt", "okt.", "10月", "окт", "Oct", "out"])
def test_syslog(start: str) -> None:
    first, second = parse_lines(
        [f"{start} 20 08:40:47 host1 kernel: {TEXT}", f"{start} 21 08:40:47 host1 kernel: {TEXT}"]
    )
    assert first.text == TEXT
    assert second.time_ns - first.time_ns == DAY_NS


@pytest.mark.parametrize(
    "line",
    [
        "Oct 99 17:59:27.x foo",
        "Okt  06 17:59:27. x",
        "13月 06 17:59:27 x",
        "[Mon Oct  06 17:59:27 no] x",
        "abc 06 17:59:27 x",
    ],
)
def test_no_date_stays_text(line: str) -> None:
    (record,) = parse_lines([line])
    assert (record.text, record.time_ns) == (line, -1)
