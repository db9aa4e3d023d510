"""Which row of the fault tables knows a line as a headline. Pure.

A row can only match where its literal stands. Asking a line for each of some hundred literals would cost more
than all else, so the line is cut into steps of three characters: a literal of five or more shows at least one
whole step, wherever the cuts fall, and the steps of a line say which few literals to ask for.
"""

from __future__ import annotations

from gdrstorm.kmsg.families import RULES
from gdrstorm.kmsg.rules import Head, Line, Rule

_STEP = 3
_SHORTEST = 2 * _STEP - 1

_Rows = tuple[str, list[int]]


def _rows_by_literal() -> list[_Rows]:
    """Each literal once, with the numbers of its rows."""
    rows: dict[str, list[int]] = {}
    for number, row in enumerate(RULES):
        rows.setdefault(row.literal, []).append(number)
    return list(rows.items())


def _by_step(literals: list[_Rows]) -> dict[tuple[str, ...], list[_Rows]]:
    """Literals by each step that a line can show of them, one for each way the cuts can fall."""
    steps: dict[tuple[str, ...], list[_Rows]] = {}
    for literal, rows in literals:
        for start in range(_STEP):
            step = tuple(literal[start : start + _STEP])
            steps.setdefault(step, []).append((literal, rows))
    return steps


_ALL = _rows_by_literal()
_SHORT = [item for item in _ALL if len(item[0]) < _SHORTEST]
_BY_STEP = _by_step([item for item in _ALL if len(item[0]) >= _SHORTEST])


def match(line: Line) -> tuple[Rule, Head] | None:
    """The first row, in order, that knows the line as a headline."""
    for number in sorted(_candidates(line.text)):
        row = RULES[number]
        head = row.match(line)
        if head is not None:
            return row, head
    return None


def _candidates(text: str) -> set[int]:
    """Numbers of the rows whose literals the text has."""
    found: set[int] = set()
    for literal, rows in _SHORT:
        if literal in text:
            found.update(rows)
    steps = zip(text[::_STEP], text[1::_STEP], text[2::_STEP], strict=False)
    for step in _BY_STEP.keys() & steps:
        for literal, rows in _BY_STEP[step]:
            if literal in text:
                found.update(rows)
    return found
