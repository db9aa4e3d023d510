"""One bug has one title; two bugs have two. And the allow-list's shapes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kmsg_cases import corpus, found_in

from gdrstorm.kmsg.baseline import (
    BaselineFilter,
    read_baseline,
    record_baseline,
    shape_of,
    write_baseline,
)
from gdrstorm.kmsg.record import Record
from gdrstorm.kmsg.titles import normalise_title

SAME = [
    ("BUG: KASAN: use-after-free in foo+0x1/0x20 [mlx5_ib]", "BUG: KASAN: use-after-free in foo+0x9/0x40 [mlx5_ib]"),
    ("soft lockup - CPU#44 stuck for 26s! [python3:73464]", "soft lockup - CPU#1 stuck for 30s! [python3:9]"),
    ("device 0000:c1:00.0 failed", "device 0001:03:00.1 failed"),
    ("NVRM: Xid (PCI:0000:9b:00)", "NVRM: Xid (PCI:0002:01:00)"),
    ("fault addr 0x7cd80000", "fault addr 0x12345678"),
    ("async reg mr failed (pid 12)", "async reg mr failed (pid 2298062)"),
    ("infiniband mlx5_0: leak", "infiniband mlx5_12: leak"),
    ("GPU0 assertion", "GPU7 assertion"),
    ("in foo.isra.0", "in foo.constprop.3"),
]  # fmt: skip
DIFFERENT = [
    ("Xid 31 MMU fault", "Xid 13 graphics engine exception"),
    ("KASAN: use-after-free in foo", "KASAN: use-after-free in bar"),
    ("status bad parameter(0x3)", "status bad parameter(0x5)"),
    ("fault reason 0x05", "fault reason 0x06"),
]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_one_title(first: str, second: str) -> None:
    assert normalise_title(first) == normalise_title(second)


@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_two_titles(first: str, second: str) -> None:
    assert normalise_title(first) != normalise_title(second)


@given(st.text(max_size=150))
def test_normalising_twice_changes_nothing(text: str) -> None:
    once = normalise_title(text)
    assert normalise_title(once) == once


@pytest.mark.parametrize(
    "case", [case for case in corpus() if case.events], ids=lambda case: case.id
)
def test_titles_of_events_are_normal(case: object) -> None:
    for event in found_in(case.lines):  # type: ignore[attr-defined]
        assert event.title
        assert normalise_title(event.title) == event.title
        assert event.device is None or event.device not in event.title


def test_same_fault_on_another_machine_has_the_same_title() -> None:
    one = "INFO: task python3:2157 blocked for more than 120 seconds."
    two = "INFO: task python3:99 blocked for more than 245 seconds."
    trace = ["Call Trace:", " schedule+0x1/0x2", " mlx5_ib_dereg_mr+0x379/0x5d0 [mlx5_ib]"]
    other = [line.replace("0x379/0x5d0", "0x1/0x9") for line in trace]
    assert found_in([one, *trace])[0].title == found_in([two, *other])[0].title


def test_baseline_reports_only_new_shapes(tmp_path: Path) -> None:
    known = [Record(1, "eth0: link 5 up"), Record(2, "usb 1-1: new device number 2")]
    path = tmp_path / "baseline"
    write_baseline(path, record_baseline(known))
    allowed = BaselineFilter(read_baseline(path))
    assert allowed.check(Record(3, "eth7: link 9 up")) is None
    assert allowed.check(Record(4, "usb 2-1: new device number 77")) is None
    event = allowed.check(Record(5, "eth0: link 5 down"))
    assert event is not None
    assert event.lines == ("eth0: link 5 down",)
    assert allowed.check(Record(6, "eth1: link 6 down")) is None
    assert allowed.check(Record(7, "a marker", facility=1)) is None


def test_shape_keeps_words() -> None:
    assert shape_of("pci 0000:01:00.0: BAR 2 [mem 0xfe000000-0xfe0fffff]") != shape_of(
        "pci 0000:01:00.0: BAR 2 [io 0xfe]"
    )
