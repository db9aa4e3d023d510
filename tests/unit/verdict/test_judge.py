"""The verdict from journal lines alone: each kind of finding, their precedence, and cut-off journals."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.evidence.journal import parse_journal
from gdrstorm.model import journal as j
from gdrstorm.model.audit import Counter, Snapshot
from gdrstorm.model.event import Event, EventClass, Severity
from gdrstorm.model.gate import GateResult
from gdrstorm.model.op import Latency, Op, OpSummary
from gdrstorm.model.scenario import Expect, ExpectedError, ExpectedFault, How, Phase, Scenario
from gdrstorm.model.verdict import Word
from gdrstorm.verdict import judge

WARN = Event(
    id="e1", cls=EventClass.KERNEL_WARN, severity=Severity.WARNING, device=None, code="f",
    title="WARNING at f", first_seq=5, last_seq=5,
)  # fmt: skip


def start(**expect: Any) -> j.Start:
    scenario = Scenario("s", "x", 10**9, (Phase("p"),), expect=Expect(**expect))
    return j.Start(
        schema=1,
        run_id="r",
        version="0",
        argv=(),
        bed="host",
        platform="emulated",
        boot_id="",
        scenario=scenario,
    )


def totals(
    count: int = 100, errors: dict[str, int] | None = None, op: str = "REG", outstanding: int = 0
) -> j.Totals:
    summary = OpSummary(op, count, errors or {}, Latency(max_ns=1))
    return j.Totals(phase="p", group="g", elapsed_ns=1, ops=(summary,), outstanding=outstanding)


def run(*lines: j.Line, end: str = "completed", **expect: Any) -> list[j.Line]:
    return [start(**expect), *lines, j.End(how=end)]


def test_clean_run_passes_and_counts_what_was_done() -> None:
    verdict = judge(run(totals(100)))
    assert verdict.word is Word.PASS
    assert "100 operations" in verdict.reason
    assert "safe" not in verdict.reason


def test_nothing_exercised_is_no_pass() -> None:
    assert judge(run()).word is Word.BROKEN
    assert judge(run(totals(0))).word is Word.BROKEN
    waits = totals(50, op="DELAY")
    assert judge(run(waits)).reason == "nothing was exercised"
    skipped = GateResult("t", "c", "ioctl", ("EINVAL",), "", True, skipped="no device")
    assert judge(run(j.Gate(phase="p", results=(skipped,)))).word is Word.BROKEN


def test_too_few_operations_is_no_pass() -> None:
    assert judge(run(totals(99), operations=100)).word is Word.BROKEN
    assert judge(run(totals(100), operations=100)).word is Word.PASS


def test_unexpected_errno_fails_and_an_allowed_one_does_not() -> None:
    lines = totals(100, {"EINVAL": 3})
    verdict = judge(run(lines))
    assert verdict.word is Word.FAIL
    assert "REG failed with EINVAL 3 times" in verdict.reason
    assert judge(run(lines, errors=(ExpectedError(Op.REG, "EINVAL"),))).word is Word.PASS
    assert judge(run(lines, errors=(ExpectedError(Op.DEREG, "EINVAL"),))).word is Word.FAIL


@pytest.mark.parametrize(
    ("how", "count", "seen", "word"),
    [
        (How.MUST, 1, 0, Word.FAIL),
        (How.MUST, 2, 1, Word.FAIL),
        (How.MUST, 2, 2, Word.PASS),
        (How.ALWAYS, 1, 99, Word.FAIL),
        (How.ALWAYS, 1, 100, Word.PASS),
        (How.MAY, 5, 0, Word.PASS),
    ],
)
def test_expected_errors_have_to_come(how: How, count: int, seen: int, word: Word) -> None:
    errors = {"EOPNOTSUPP": seen} if seen else {}
    expected = (ExpectedError(Op.REG, "EOPNOTSUPP", how, count),)
    assert judge(run(totals(100, errors), errors=expected)).word is word


def test_faults_fail_unless_expected_or_older_than_the_run() -> None:
    seen = j.Seen(event=WARN)
    assert judge(run(totals(), seen)).word is Word.FAIL
    assert judge(run(totals(), j.Seen(event=WARN, before_run=True))).word is Word.PASS
    expected = (ExpectedFault("kernel_warn"),)
    assert judge(run(totals(), seen, faults=expected)).word is Word.PASS
    assert (
        judge(run(totals(), seen, faults=(ExpectedFault("kernel_warn", code="other"),))).word
        is Word.FAIL
    )


def test_expected_fault_that_does_not_come_fails() -> None:
    verdict = judge(run(totals(), faults=(ExpectedFault("aer", "0000:01:00.0", count=2),)))
    assert verdict.word is Word.FAIL
    assert "expected fault aer 0000:01:00.0 seen 0 times" in verdict.reason


def test_a_later_line_of_an_event_replaces_the_earlier_one() -> None:
    corrected = msgspec.structs.replace(WARN, severity=Severity.CORRECTED)
    assert judge(run(totals(), j.Seen(event=WARN), j.Seen(event=corrected))).word is Word.PASS


def test_leaks_fail() -> None:
    before = j.Audit(when="before", snapshot=Snapshot((Counter("dma-buf objects", 2),)))
    after = j.Audit(when="after", snapshot=Snapshot((Counter("dma-buf objects", 3),)))
    verdict = judge(run(totals(), before, after))
    assert verdict.word is Word.FAIL
    assert "1 objects of dma-buf objects left" in verdict.reason
    assert judge(run(totals(), before, after, leaks=True)).word is Word.PASS
    unknown = j.Audit(when="before", snapshot=Snapshot(unknown={"dma-buf objects": "no root"}))
    passed = judge(run(totals(), unknown, after))
    assert (passed.word, "leaks not checked for dma-buf objects" in passed.reason) == (
        Word.PASS,
        True,
    )


def test_outstanding_slots_fail_unless_the_worker_was_killed() -> None:
    assert judge(run(totals(outstanding=2))).word is Word.FAIL
    killed = j.Worker(worker=0, phase="p", state="killed", reason="SIGKILL")
    assert judge(run(totals(outstanding=2), killed)).word is Word.BROKEN


def test_a_hung_call_fails_and_a_dead_worker_is_broken() -> None:
    hung = j.Worker(worker=1, phase="p", state="hung", reason="thread 3 is in DEREG for 12s")
    killed = j.Worker(
        worker=1, phase="p", state="killed", reason="the worker process ended by SIGKILL"
    )
    assert judge(run(totals(), hung, killed, end="hung")).word is Word.FAIL
    assert "DEREG" in judge(run(totals(), hung, end="hung")).reason
    broken = judge(run(totals(), killed))
    assert (broken.word, "SIGKILL" in broken.reason) == (Word.BROKEN, True)


def test_wrong_gate_answers_fail() -> None:
    row = GateResult("bad-input", "length 0", "ioctl", ("EINVAL",), "ok", False)
    verdict = judge(run(j.Gate(phase="p", results=(row,))))
    assert verdict.word is Word.FAIL
    assert "length 0" in verdict.reason and "expected EINVAL" in verdict.reason
    good = GateResult("bad-input", "length 0", "ioctl", ("EINVAL",), "EINVAL", True)
    assert "1 refused as expected" in judge(run(j.Gate(phase="p", results=(good,)))).reason


def test_ends_are_told_apart() -> None:
    lines: list[j.Line] = [start(), totals()]
    assert judge(lines).word is Word.LOST
    assert judge([*lines, j.End(how="supervisor-died")]).word is Word.BROKEN
    assert judge([*lines, j.End(how="interrupted")]).word is Word.BROKEN
    assert (
        judge([*lines, j.BedFact(what="lost", detail="guest panic"), j.End(how="lost")]).word
        is Word.LOST
    )
    assert judge([start(), j.Skipped(reason="no GPU"), j.End(how="completed")]).reason == "no GPU"
    assert judge([]).word is Word.BROKEN


def test_the_suspect_is_the_intent_that_never_ended() -> None:
    lines = [
        start(),
        j.Intent(id="i1", what="phase a"),
        j.Done(id="i1"),
        j.Intent(id="i2", what="phase b"),
    ]
    verdict = judge(lines)
    assert verdict.suspect == "phase b"
    assert "phase b" in verdict.reason


def test_blind_witnesses_are_named_in_a_pass() -> None:
    verdict = judge(run(j.Watching(witnesses=(), blind={"kernel log": "no root"}), totals()))
    assert "not watched: kernel log" in verdict.reason


def test_a_gap_in_the_log_is_no_pass() -> None:
    gap = msgspec.structs.replace(WARN, cls=EventClass.LOG_LOST, title="500 records lost")
    verdict = judge(run(totals(), j.Seen(event=gap)))
    assert (verdict.word, "500 records lost" in verdict.reason) == (Word.BROKEN, True)


@given(st.integers(0, 2000))
def test_a_journal_cut_anywhere_is_judged(cut: int) -> None:
    """Cut off at any byte there is a verdict, and never a pass before the end line is whole."""
    lines: list[j.Line] = run(
        j.Intent(id="i1", what="phase p"), totals(), j.Seen(event=WARN, before_run=True)
    )
    data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    cut = min(cut, len(data))
    verdict = judge(parse_journal(data[:cut]))
    whole = data[:cut].count(b'"how":"completed"}') > 0
    assert (verdict.word is Word.PASS) == whole
