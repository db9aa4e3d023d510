"""Journals of runs on an H200 with driver 580.159.04, judged again without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdrstorm.evidence.journal import read_journal
from gdrstorm.model import journal as j
from gdrstorm.model.verdict import Word
from gdrstorm.verdict import judge

DATA = Path(__file__).parents[2] / "data" / "runs" / "gpu"
JOURNALS = sorted(DATA.glob("*.jsonl"))
#: several CPUs export at once, which the driver's shared statistics do not bear
FAILING = ("storm-gpu-export.jsonl", "storm-gpu-close-vs-export-cpus.jsonl")


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_verdict_is_the_one_given_on_the_gpu(path: Path) -> None:
    lines = list(read_journal(path))
    given = next(line.verdict for line in lines if isinstance(line, j.Judged))
    again = judge([line for line in lines if not isinstance(line, j.Judged)])
    assert (again.word, again.findings) == (given.word, given.findings)
    assert again.word is (Word.FAIL if path.name.endswith(FAILING) else Word.PASS)


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_run_says_that_it_was_hardware(path: Path) -> None:
    start = next(line for line in read_journal(path) if isinstance(line, j.Start))
    assert (start.platform, start.bed) == ("hardware", "host")


def test_failing_storms_fail_for_the_assertions_of_the_driver() -> None:
    for path in JOURNALS:
        if not path.name.endswith(FAILING):
            continue
        faults = [line.event for line in read_journal(path) if isinstance(line, j.Seen)]
        assert faults
        assert {event.cls.value for event in faults} == {"nvrm"}
        assert all("RUSD_SEQ_DATA_VALID" in event.title for event in faults)


def test_every_scenario_of_both_exporters_is_there() -> None:
    names = {path.stem.partition("-")[::2] for path in JOURNALS}
    assert len(names) == 17
    rm = {name for exporter, name in names if exporter == "rm"}
    assert rm - {name for exporter, name in names if exporter == "cuda"} == {"gate-rm-bad-input"}
