"""Names of error numbers, both ways; the ones that libc cannot name among them."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.errors import CallError, UnavailableError, UsageError, errno_name, errno_value


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (22, "EINVAL"),
        (11, "EAGAIN"),
        (95, "EOPNOTSUPP"),
        (524, "ENOTSUPP"),
        (-524, "ENOTSUPP"),
        (9999, "errno 9999"),
        (0x10056, "NV_STATUS 0x56"),
        (0x20000 + 801, "CUDA 801"),
    ],
)
def test_names(value: int, name: str) -> None:
    assert errno_name(value) == name


@given(
    st.sampled_from(sorted(errno.errorcode))
    | st.integers(0x10000, 0x10FFF)
    | st.integers(0x20000, 0x20000 + 9999)
)
def test_a_name_gives_its_number_back(value: int) -> None:
    assert errno_value(errno_name(value)) == value


@pytest.mark.parametrize("name", ["", "EFOO", "einval", "E", "errorcode", "CUDA x", "NV_STATUS 86"])
def test_words_that_are_no_names(name: str) -> None:
    assert errno_value(name) is None


def test_errors_are_one_line_with_a_hint() -> None:
    error = CallError("cannot register MR: mlx5_0 length=65536", 95, "try: gdrstorm check")
    assert str(error) == "cannot register MR: mlx5_0 length=65536: EOPNOTSUPP (try: gdrstorm check)"
    assert (UsageError("x").exit_code, UnavailableError("x").exit_code, error.exit_code) == (
        2,
        4,
        3,
    )
