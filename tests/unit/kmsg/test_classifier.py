"""The classifier while following: memory, cut lines, repeats, links, holes, synthetic records, order."""

# ruff: noqa: E501  (log lines stay in one piece)

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kmsg_cases import as_records, benign, corpus, found_in, key_of

from gdrstorm.kmsg.draft import MAX_LINES
from gdrstorm.kmsg.faults import Classifier, classify
from gdrstorm.kmsg.record import Gap, Record
from gdrstorm.model.event import EventClass, Severity

CASES = [case for case in corpus() if case.events]
XID = "NVRM: Xid (PCI:0000:9b:00): 31, pid=1, name=x, Ch 00000001"
S = 10**9


def held(classifier: Classifier) -> int:
    """Everything the classifier keeps, in lines and entries."""
    drafts = [*classifier._open, *classifier._aggregate._held.values(), *classifier._started]
    return len(drafts) + sum(len(draft.lines) for draft in drafts)


def test_flood_in_constant_memory() -> None:
    classifier = Classifier()
    records = itertools.cycle(
        [
            "mlx5_core 0000:c1:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x002f address=0x24d08000 flags=0x0000]",
            "NVRM: Xid (PCI:0000:9b:00): 31, pid={0}, name=x, Ch 00000001",
            "WARNING: CPU: 2 PID: {0} at drivers/dma-buf/dma-buf.c:1527 dma_buf_vmap+0x224/0x430",
            "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
        ]
    )
    total = 0
    largest = 0
    for seq, text in enumerate(itertools.islice(records, 100_000)):
        for event in classifier.feed(Record(seq, text.format(seq), seq * 1000)):
            total += event.count
        classifier.started()
        largest = max(largest, held(classifier)) if seq % 997 == 0 else largest
    total += sum(event.count for event in classifier.flush())
    assert total == 100_000
    assert largest < 8 * MAX_LINES


def test_flood_of_different_keys_is_bounded() -> None:
    classifier = Classifier(window_ns=None, window_records=None)
    done = 0
    for seq in range(20_000):
        text = f"NVRM: Xid (PCI:{seq % 65536:04x}:9b:00): {1000 + seq}, x"
        done += len(classifier.feed(Record(seq, text, seq)))
    assert held(classifier) < 10_000
    assert done + len(classifier.flush()) == 20_000


def test_repeats_are_one_event_and_lines_are_bounded() -> None:
    (event,) = classify([Record(seq, XID, seq * S) for seq in range(1000)])
    assert (event.count, event.first_seq, event.last_seq) == (1000, 0, 999)
    assert len(event.lines) == MAX_LINES
    assert event.lines_dropped == 1000 - MAX_LINES


def test_a_quiet_window_ends_an_event_while_following() -> None:
    classifier = Classifier(window_ns=5 * S)
    assert classifier.feed(Record(1, XID, 1 * S)) == []
    (begun,) = classifier.started()
    assert classifier.started() == []
    assert classifier.tick(2 * S) == []
    (event,) = classifier.tick(30 * S)
    assert event.id == begun.id
    assert classifier.flush() == []


def test_announced_at_once() -> None:
    classifier = Classifier()
    classifier.feed(Record(1, "WARNING: CPU: 2 PID: 1 at lib/foo.c:7 foo+0x1/0x2", S))
    assert [event.code for event in classifier.started()] == ["foo.c:7"]


def test_repeats_are_not_announced_again() -> None:
    lines = [
        "pcieport 0000:00:1d.0: AER: Corrected error message received from 0000:00:1d.0",
        "pcieport 0000:00:1d.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        "pcieport 0000:00:1d.0:   device [8086:9d18] error status/mask=00000001/00002000",
        "pcieport 0000:00:1d.0:    [ 0] RxErr",
    ]
    classifier = Classifier()
    begun = []
    for seq, text in enumerate(lines * 5):
        classifier.feed(Record(seq, text, S + seq))
        begun += classifier.started()
    (event,) = classifier.flush()
    assert [found.id for found in begun] == [event.id]
    assert (begun[0].code, event.count) == ("RxErr", 5)


def test_suppressed_callbacks_count_before_and_after() -> None:
    fault = "nvidia 0000:81:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x001c address=0x1000 flags=0x0020]"
    (event,) = found_in(["amd_iommu_report_page_fault: 6 callbacks suppressed", fault])
    assert (event.count, event.missed) == (7, 6)
    (event,) = found_in([fault, "amd_iommu_report_page_fault: 6 callbacks suppressed"])
    assert (event.count, event.missed) == (7, 6)


def test_links_go_both_ways_and_only_near() -> None:
    iommu = "nvidia 0000:81:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x001c address=0x1000 flags=0x0020]"
    xid = "NVRM: Xid (PCI:0000:81:00): 31, x"
    cause, effect = classify([Record(1, iommu, 1 * S), Record(2, xid, 3 * S)])
    assert cause.linked == (effect.id,)
    assert effect.linked == (cause.id,)
    far = classify([Record(1, iommu, 1 * S), Record(2, xid, 60 * S)])
    assert [event.linked for event in far] == [(), ()]
    other = classify([Record(1, iommu, 1 * S), Record(2, xid.replace("81", "82"), 3 * S)])
    assert [event.linked for event in other] == [(), ()]


def test_aer_keeps_its_recovery_a_minute_later() -> None:
    lines = [
        "pcieport 0000:00:1c.0: AER: Uncorrected (Fatal) error message received from 0000:01:00.0",
        "nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
        "nvidia 0000:01:00.0:   device [10de:2684] error status/mask=00040000/00000000",
        "nvidia 0000:01:00.0:    [18] MalfTLP                (First)",
        "nvidia 0000:01:00.0:   TLP Header: 60000001 0100000f 000000ff ffffe000",
    ]
    records = [Record(seq, text, S + seq) for seq, text in enumerate(lines)]
    records.append(Record(9, "pcieport 0000:00:1c.0: AER: device recovery failed", 61 * S))
    (event,) = classify(records)
    assert (event.severity, event.code, event.device) == (Severity.FATAL, "MalfTLP", "0000:01:00.0")
    assert event.detail("recovery") == "failed"
    assert event.detail("layer") == "Transaction Layer"
    assert event.detail("agent") == "Receiver ID"
    assert event.detail("tlp_header") == "60000001 0100000f 000000ff ffffe000"
    assert event.detail("port") == "0000:00:1c.0"
    assert not event.incomplete


def test_aer_bits_from_the_status_when_their_lines_are_lost() -> None:
    (event,) = found_in(
        [
            "pcieport 0000:00:1d.0: AER: Corrected error message received from 0000:00:1d.0",
            "pcieport 0000:00:1d.0:   device [8086:9d18] error status/mask=00000080/00002000",
        ]
    )
    assert event.code == "BadDLLP"


def test_reports_cut_off_are_incomplete() -> None:
    head = "WARNING: CPU: 2 PID: 1 at lib/foo.c:7 foo+0x1/0x2"
    trace = ["Call Trace:", " foo+0x1/0x2", "---[ end trace 0000000000000000 ]---"]
    assert found_in([head])[0].incomplete
    assert not found_in([head, *trace])[0].incomplete
    assert found_in(["DMAR: DRHD: handling fault status reg 2"])[0].incomplete
    assert found_in(["NVRM: Xid (PCI:0000:9b"])[0].incomplete
    assert found_in(["NVRM: The NVIDIA GPU 0000:b3:00.0"])[0].incomplete


def test_gap_is_an_event() -> None:
    (event,) = Classifier().feed(Gap(100, 42))
    assert (event.cls, event.count, event.first_seq) == (EventClass.LOG_LOST, 42, 100)


def test_user_records_are_synthetic() -> None:
    (event,) = classify([Record(1, XID, S, 6, facility=1)])
    assert event.synthetic
    assert not classify([Record(1, XID, S, 6)])[0].synthetic


def test_dynamic_debug_never_counts() -> None:
    text = "infiniband mlx5_0: mlx5_ib_reg_user_mr:1310:(pid 2): umem get failed (-14)"
    assert classify([Record(1, text, S, level=7)]) == []
    assert [event.code for event in classify([Record(1, text, S, level=3)])] == ["-14"]


def test_callers_keep_traces_apart() -> None:
    one = ["WARNING: CPU: 0 PID: 1 at a/one.c:1 one+0x1/0x2", "Call Trace:", " one_caller+0x1/0x2"]
    two = [
        "INFO: task x:2 blocked for more than 120 seconds.",
        "Call Trace:",
        " two_caller+0x1/0x2",
    ]
    records = []
    for seq, (first, second) in enumerate(zip(one, two, strict=True)):
        records.append(Record(2 * seq, first, S, caller="T1"))
        records.append(Record(2 * seq + 1, second, S, caller="T2"))
    warn, hung = classify(records)
    assert warn.lines == tuple(one)
    assert hung.lines == tuple(two)
    assert hung.code == "two_caller"


def test_multi_line_message_in_one_record() -> None:
    text = (
        "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands."
    )
    (event,) = classify([Record(1, text, S)])
    assert (event.code, event.device, len(event.lines)) == ("79", "0000:b3:00.0", 3)


def test_gpu_lost_in_words_is_the_same_loss_as_xid_79() -> None:
    (event,) = found_in(
        [
            "NVRM: Xid (PCI:0000:06:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "NVRM: GPU 0000:06:00.0: GPU has fallen off the bus.",
        ]
    )
    assert (event.cls, event.count, len(event.lines)) == (EventClass.XID, 1, 2)


def test_ids_are_unique() -> None:
    text = "NVRM: Xid (PCI:0000:01:00): 31, x\nNVRM: Xid (PCI:0000:02:00): 31, x"
    ids = [event.id for event in classify([Record(7, text, S)])]
    assert len(set(ids)) == len(ids) == 2


FAULT_LINES = [record.text for case in CASES for record in as_records(case.lines)]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_cut_lines_never_crash(data: st.DataObject) -> None:
    """Any lines of any reports, each cut anywhere, in any order."""
    picked = data.draw(st.lists(st.sampled_from(FAULT_LINES), max_size=12))
    cut = [text[: data.draw(st.integers(0, len(text)))] for text in picked]
    for event in classify([Record(seq, text, seq) for seq, text in enumerate(cut)]):
        assert event.count >= 1
        assert event.title


@pytest.mark.parametrize("text", benign())
def test_cut_benign_lines_stay_benign(text: str) -> None:
    for end in range(len(text) + 1):
        assert found_in([text[:end]]) == [], text[:end]


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_judged(text: str) -> None:
    classify([Record(1, text, 1)])


# What must be in a cut line for it to be known as a fault.
LITERALS = (
    "NVRM: Xid (", "PCIe Bus Error:", "BUG: KASAN:", "BUG: soft lockup", "DPC: containment event",
    "AMD-Vi: Event logged [", "[Hardware Error]:", "kernel BUG at", "Kernel panic", "RmInitAdapter failed",
    "-[ cut here ]-", "refcount_t: u", "list_add corruption", "dump error cqe", "WC error: 4",
)  # fmt: skip


@pytest.mark.parametrize("literal", LITERALS)
def test_a_line_cut_anywhere_behind_its_literal_is_never_benign(literal: str) -> None:
    texts = [text for text in FAULT_LINES if literal in text and "aer_" not in text]
    assert texts
    for text in texts:
        for end in range(text.index(literal) + len(literal), len(text)):
            assert found_in([text[:end]]), text[:end]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_last_lines_lost_is_never_silence(case: object) -> None:
    """Of each report at least half is enough for an event of the right class."""
    lines = case.lines  # type: ignore[attr-defined]
    known = {key_of(event)[0] for event in found_in(lines)}
    for keep in range((len(lines) + 1) // 2, len(lines) + 1):
        classes = {event.cls.value for event in found_in(lines[:keep])}
        assert classes <= known | {"kernel_warn", "hardware"}
    first = next(index for index in range(1, len(lines) + 1) if found_in(lines[:index]))
    assert first <= len(lines)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_pure(case: object) -> None:
    lines = case.lines  # type: ignore[attr-defined]
    assert found_in(lines) == found_in(lines)
