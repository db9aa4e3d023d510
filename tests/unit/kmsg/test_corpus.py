"""Every real log of the corpus and every sample gives exactly its events, alone and inside other logs."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from kmsg_cases import (
    Case,
    Sample,
    as_records,
    benign,
    check_case,
    corpus,
    found_in,
    key_of,
    samples,
)

from gdrstorm.kmsg import families
from gdrstorm.kmsg.faults import Classifier, classify
from gdrstorm.kmsg.prefilter import suspicious
from gdrstorm.kmsg.record import Record
from gdrstorm.kmsg.rules import Line
from gdrstorm.model.event import Event

CASES = [case for case in corpus() if case.events]
AROUND = 10_000
DEBUG_LOG = Path(__file__).parents[2] / "data" / "kmsg" / "debug.log"


def by_id(item: Case | Sample) -> str:
    return item.id


def padding(count: int, start_ns: int) -> list[Record]:
    texts = itertools.islice(itertools.cycle(benign()), count)
    return [Record(0, text, start_ns + index * 1000) for index, text in enumerate(texts)]


def renumber(records: list[Record]) -> list[Record]:
    return [
        Record(seq, r.text, r.time_ns, r.level, r.facility, r.flags, r.caller, (), r.repeat)
        for seq, r in enumerate(records)
    ]


@pytest.mark.parametrize("case", corpus(), ids=by_id)
def test_case_gives_its_events(case: Case) -> None:
    check_case(case, found_in(case.lines))


@pytest.mark.parametrize("sample", samples(), ids=by_id)
def test_sample_gives_its_events(sample: Sample) -> None:
    found = [
        (*key_of(event), event.severity.value, event.count, event.incomplete)
        for event in found_in(sample.lines)
    ]
    assert found == [
        (*answer.key, answer.severity, answer.count, answer.incomplete) for answer in sample.expect
    ]


def test_benign_lines_are_silent() -> None:
    for line in benign():
        assert found_in([line]) == [], line
    assert found_in(list(benign())) == []


def test_debug_messages_are_silent_and_without_their_level_nearly() -> None:
    """Everything that the drivers and the kernel's PCI, IOMMU and dma-buf code say about storms and reloads."""
    lines = DEBUG_LOG.read_text(encoding="utf-8").splitlines()
    assert found_in(lines) == []
    # Who cannot see the level cannot tell a refusal that was asked for, or an odd -EINVAL, from trouble.
    bare = found_in([line.partition(": ")[2] for line in lines])
    assert [event.title for event in bare] == [
        "infiniband mlx5_<n>: reg_user_mr_dmabuf: umem_dmabuf get failed (-EBADF)",
        "mlx5_core: max_uc_list_get_devlink_param: Failed to get param. err = -22",
    ]


@pytest.mark.parametrize("case", CASES[::4], ids=by_id)
def test_case_inside_ten_thousand_benign_lines(case: Case) -> None:
    records = as_records(case.lines)
    start = max(records[0].time_ns, 0)
    before = padding(AROUND // 2, start - AROUND * 500)
    after = padding(AROUND // 2, records[-1].time_ns + 1000)
    check_case(case, classify(renumber([*before, *records, *after])))


@pytest.mark.parametrize("case", CASES, ids=by_id)
def test_case_with_benign_lines_between_its_lines(case: Case) -> None:
    mixed: list[Record] = []
    for record, line in zip(as_records(case.lines), itertools.cycle(benign())):
        mixed += [record, Record(0, line, record.time_ns)]
    check_case(case, classify(renumber(mixed)))


def pairs() -> list[tuple[Case, Case]]:
    """Cases of different devices and kinds whose lines can be told apart in one log."""
    prefixed = {"aer", "dpc", "iommu", "xid", "mlx5"}
    devices = [case for case in CASES if case.expect.cls in prefixed and case.expect.device]
    traces = [case for case in CASES if case.expect.cls in {"kernel_bug", "kasan", "hung_task"}]
    return list(zip(devices, itertools.cycle(traces)))


@pytest.mark.parametrize("pair", pairs(), ids=lambda pair: f"{pair[0].id}+{pair[1].id}")
def test_two_reports_line_by_line(pair: tuple[Case, Case]) -> None:
    first, second = pair
    one = [Record(0, r.text) for r in as_records(first.lines)]
    two = [Record(0, r.text) for r in as_records(second.lines)]
    mixed = [r for both in itertools.zip_longest(one, two) for r in both if r is not None]
    keys = [key_of(event) for event in classify(renumber(mixed))]
    assert first.expect.key in keys
    assert second.expect.key in keys


def feed_all(records: list[Record]) -> tuple[list[Event], list[Event]]:
    classifier = Classifier()
    done: list[Event] = []
    begun: list[Event] = []
    for record in records:
        done += classifier.feed(record)
        begun += classifier.started()
    done += classifier.flush()
    return begun + classifier.started(), done


@pytest.mark.parametrize("case", CASES, ids=by_id)
def test_following_finds_the_same_and_announces_it(case: Case) -> None:
    begun, done = feed_all(as_records(case.lines))
    assert case.expect.key in [key_of(event) for event in done]
    announced = {event.id for event in begun}
    for event in done:
        # A prelude may be swallowed, but no event comes without a word before.
        assert event.id in announced or event.count == event.missed


ROW_COMMENT = re.compile(r"    # (?! )(.*)")
FAMILIES = Path(families.__file__).parent


def documented_lines() -> list[str]:
    """The real lines above the rows; six blanks set off a remark."""
    found = [
        ROW_COMMENT.match(text)
        for path in sorted(FAMILIES.glob("*.py"))
        for text in path.read_text(encoding="utf-8").splitlines()
    ]
    return [re.sub(r"\s{6,}.*", "", match[1]) for match in found if match]


@pytest.mark.parametrize("text", documented_lines())
def test_line_above_a_row_is_an_event(text: str) -> None:
    assert suspicious(text)
    assert found_in([text])


def test_each_row_is_proven_and_passes_the_prefilter() -> None:
    """What a row matches must get through `suspicious`, or the row is dead."""
    texts = documented_lines()
    texts += [r.text for case in CASES for r in as_records(case.lines)]
    texts += [r.text for sample in samples() for r in as_records(sample.lines)]
    proven = set()
    for text in texts:
        line = Line(Record(0, text), text.rstrip())
        for row in families.RULES:
            if row.literal in text and row.match(line) is not None:
                proven.add(row)
                assert suspicious(text), (row.pattern.pattern, text)
    assert [row.pattern.pattern for row in families.RULES if row not in proven] == []
