"""What a run concludes. Five words, one exit code each; a skip is never a pass."""

from __future__ import annotations

import enum

import msgspec


class Word(enum.Enum):
    """The verdict itself."""

    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"
    BROKEN = "BROKEN"
    LOST = "LOST"

    @property
    def exit_code(self) -> int:
        """0 PASS, 1 FAIL, 3 BROKEN, 4 SKIP (kselftest's number), 5 LOST; 2 is wrong use and no verdict."""
        return {"PASS": 0, "FAIL": 1, "BROKEN": 3, "SKIP": 4, "LOST": 5}[self.value]


class Verdict(msgspec.Struct, frozen=True):
    """The word, one line why, and every single finding that led to it, worst first."""

    word: Word
    reason: str
    findings: tuple[str, ...] = ()
    suspect: str = ""
