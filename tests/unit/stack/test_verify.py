"""The comparison of a data check, with movers that work and movers that do not."""

from __future__ import annotations

import mmap

import pytest

from gdrstorm.errors import UnavailableError
from gdrstorm.stack import registry, tables
from gdrstorm.stack.loopback import GUARD
from gdrstorm.stack.verify import _Target, check_both, compare

SIZE = 1 << 20


class Mover:
    """A memcpy in place of a NIC; `spoil_*` is (offset from the range's start, length) of damage it does."""

    def __init__(self, view: mmap.mmap) -> None:
        self.view = view
        self.skip_write = False
        self.shift = 0
        self.spoil: int | None = None
        self.spoil_local = False
        self.spoil_source: int | None = None

    def write(self, data: bytes, remote: int, rkey: int) -> None:
        if not self.skip_write:
            self.view[remote + self.shift : remote + self.shift + len(data)] = data
        if self.spoil is not None:
            self.view[remote + self.spoil] ^= 1

    def read(self, length_bytes: int, remote: int, rkey: int) -> bytes:
        data = self.view[remote + self.shift : remote + self.shift + length_bytes]
        if self.spoil_source is not None:
            self.view[remote + self.spoil_source] ^= 1
        tail = b"\0" + GUARD[1:] if self.spoil_local else GUARD
        return GUARD + data + tail


@pytest.fixture
def mover() -> Mover:
    return Mover(mmap.mmap(-1, SIZE))


def check(mover: Mover) -> str:
    return check_both(mover, _Target(mover.view, 1, 0, -1))


def test_a_true_mover_passes(mover: Mover) -> None:
    assert check(mover) == ""


def test_a_write_that_never_came(mover: Mover) -> None:
    mover.skip_write = True
    assert check(mover).startswith("RDMA WRITE: 6")


def test_a_wrong_offset(mover: Mover) -> None:
    mover.shift = 4096
    assert check(mover).startswith("RDMA WRITE: ")


@pytest.mark.parametrize("where", [-1, 0, 65407, 65408, -12352, SIZE - 12352 - 1])
def test_one_wrong_bit_anywhere_in_the_buffer(mover: Mover, where: int) -> None:
    mover.spoil = where
    assert check(mover).startswith(
        f"RDMA WRITE: 1 wrong bytes, the first at offset {12352 + where}: "
    )


def test_a_read_that_goes_beyond_its_length(mover: Mover) -> None:
    mover.spoil_local = True
    assert (
        check(mover) == "RDMA READ: 1 wrong bytes, the first at offset 65472: 0x00 instead of 0xa5"
    )


def test_a_read_that_changes_its_source(mover: Mover) -> None:
    mover.spoil_source = 5
    assert check(mover).startswith("RDMA READ's source: 1 wrong bytes")


def test_compare_lengths() -> None:
    assert compare("x", b"ab", b"abc") == "x: 2 bytes instead of 3"
    assert compare("x", b"", b"") == ""


def test_no_data_path_is_unavailable_and_no_pass() -> None:
    with (
        registry.open_exporter("fake") as exporter,
        registry.open_importer("fake") as importer,
        pytest.raises(UnavailableError, match="importer fake moves none"),
    ):
        tables.verify_data(exporter, importer)
