"""Verdicts: a pure function of the journal."""

from gdrstorm.verdict.judge import Facts, calls_made, judge

__all__ = ["Facts", "calls_made", "judge"]
