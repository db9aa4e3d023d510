"""Every journal in tests/data/runs is judged again and gives the verdict that it recorded; ends without one by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdrstorm.evidence.journal import read_journal
from gdrstorm.model import journal as j
from gdrstorm.verdict import judge

RUNS = Path(__file__).parents[2] / "data" / "runs"
JOURNALS = sorted(RUNS.rglob("*.jsonl"))


def test_there_are_runs_of_every_verdict() -> None:
    words = {judge(read_journal(path)).word.value for path in JOURNALS}
    assert words == {"PASS", "FAIL", "SKIP", "BROKEN", "LOST"}


@pytest.mark.parametrize("path", JOURNALS, ids=lambda p: str(p.relative_to(RUNS)))
def test_judge_agrees_with_the_run(path: Path) -> None:
    lines = read_journal(path)
    verdict = judge(lines)
    recorded = [line.verdict for line in lines if isinstance(line, j.Judged)]
    if recorded:
        assert (verdict.word, verdict.findings) == (recorded[-1].word, recorded[-1].findings)
    else:
        # cut off: the file is named after what it must give
        assert path.name.startswith(verdict.word.value.lower()), verdict


@pytest.mark.parametrize("path", JOURNALS, ids=lambda p: str(p.relative_to(RUNS)))
def test_every_recorded_run_says_what_it_ran_on(path: Path) -> None:
    start = read_journal(path)[0]
    assert isinstance(start, j.Start)
    assert start.platform in ("hardware", "emulated")
