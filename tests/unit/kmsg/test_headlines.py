"""The look-up of rows by their literals finds what a plain search finds, wherever a literal stands; and the
first sieve never ends a line that a row knows, be it cut off anywhere.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kmsg_cases import as_records, benign, corpus, samples

from gdrstorm.kmsg.families import RULES
from gdrstorm.kmsg.headlines import _candidates, match
from gdrstorm.kmsg.prefilter import suspicious
from gdrstorm.kmsg.record import Record
from gdrstorm.kmsg.rules import Line

LITERALS = sorted({row.literal for row in RULES})
TEXTS = sorted(
    {*benign(), *(r.text for case in (*corpus(), *samples()) for r in as_records(case.lines))}
)


def plain_search(text: str) -> set[int]:
    return {number for number, row in enumerate(RULES) if row.literal in text}


@pytest.mark.parametrize("literal", LITERALS)
def test_a_literal_is_found_wherever_it_stands(literal: str) -> None:
    for before in range(7):
        for after in range(4):
            text = "~" * before + literal + "~" * after
            assert _candidates(text) == plain_search(text), text


@given(st.sampled_from(TEXTS), st.integers(0, 300), st.integers(0, 300))
def test_real_lines_cut_anywhere(text: str, start: int, length: int) -> None:
    text = text[start : start + length]
    assert _candidates(text) == plain_search(text)


@given(st.lists(st.one_of(st.sampled_from(LITERALS), st.text(max_size=5)), max_size=6))
def test_literals_side_by_side(parts: list[str]) -> None:
    text = "".join(parts)
    assert _candidates(text) == plain_search(text)


def test_what_a_row_knows_passes_the_first_sieve_even_cut_off() -> None:
    for text in TEXTS:
        for end in range(1, len(text) + 1):
            cut = text[:end].rstrip()
            if not suspicious(cut):
                assert match(Line(Record(0, cut), cut)) is None, cut
