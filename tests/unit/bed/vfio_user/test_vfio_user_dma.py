"""Guest memory against a naive model: one dictionary entry a byte."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from gdrstorm.bed.vfio_user.device import DmaError
from gdrstorm.bed.vfio_user.dma import DmaTable
from gdrstorm.bed.vfio_user.protocol import ProtocolError

FILE_BYTES = 256
SPACE = 192  # addresses are small, so that ranges meet often


@pytest.fixture
def memory() -> Iterator[int]:
    fd = os.memfd_create("ram")
    os.truncate(fd, 8192)
    yield fd
    os.close(fd)


class NaiveMemory(RuleBasedStateMachine):
    """Every address maps to (file, offset, flags) or is absent."""

    @initialize()
    def open(self) -> None:
        self.table = DmaTable()
        self.files = [os.memfd_create(f"file{n}") for n in range(2)]
        self.content = [bytearray(os.urandom(FILE_BYTES)) for _ in self.files]
        for fd, content in zip(self.files, self.content, strict=True):
            os.pwrite(fd, content, 0)
        self.ranges: dict[int, tuple[int, int | None, int, int]] = {}  # start: size, file, off, fl

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.table.clear()
            for fd in self.files:
                os.close(fd)

    def address(self, iova: int) -> tuple[int | None, int, int] | None:
        for start, (size, file, offset, flags) in self.ranges.items():
            if start <= iova < start + size:
                return file, offset + iova - start, flags
        return None

    def reachable(self, iova: int, size: int, need: int) -> list[tuple[int, int]] | None:
        found: list[tuple[int, int]] = []
        for where in range(iova, iova + size):
            entry = self.address(where)
            if entry is None or entry[0] is None or not entry[2] & need:
                return None
            found.append((entry[0], entry[1]))
        return found

    @rule(
        iova=st.integers(0, SPACE),
        size=st.integers(0, 64),
        file=st.sampled_from([0, 1, None]),
        offset=st.integers(0, FILE_BYTES),
        flags=st.integers(0, 3),
    )
    def map(self, iova: int, size: int, file: int | None, offset: int, flags: int) -> None:
        clash = any(self.address(where) for where in range(iova, iova + size))
        beyond = file is not None and offset + size > FILE_BYTES
        expected = errno.EEXIST if clash else errno.EINVAL if beyond or not size else None
        try:
            fd = None if file is None else self.files[file]
            self.table.map(iova, size, flags, fd, offset)
        except ProtocolError as error:
            assert error.errno == expected
            return
        assert expected is None
        self.ranges[iova] = (size, file, offset, flags)

    @rule(iova=st.integers(0, SPACE), size=st.integers(1, SPACE))
    def unmap(self, iova: int, size: int) -> None:
        end = iova + size
        touched = {s: r for s, r in self.ranges.items() if s < end and s + r[0] > iova}
        cut = any(start < iova or start + entry[0] > end for start, entry in touched.items())
        try:
            removed = self.table.unmap(iova, size)
        except ProtocolError as error:
            assert cut and error.errno == errno.EINVAL
            return
        assert not cut
        assert [(m.iova, m.size) for m in removed] == sorted((s, r[0]) for s, r in touched.items())
        for start in touched:
            del self.ranges[start]

    @rule(iova=st.integers(0, SPACE + 8), size=st.integers(0, 96))
    def read(self, iova: int, size: int) -> None:
        found = self.reachable(iova, size, 1)
        if found is None:
            with pytest.raises(DmaError):
                self.table.read(iova, size)
            return
        assert self.table.read(iova, size) == bytes(self.content[f][o] for f, o in found)

    @rule(iova=st.integers(0, SPACE + 8), data=st.binary(max_size=96))
    def write(self, iova: int, data: bytes) -> None:
        found = self.reachable(iova, len(data), 2)
        if found is None:
            with pytest.raises(DmaError):
                self.table.write(iova, data)
            return
        self.table.write(iova, data)
        for (file, offset), value in zip(found, data, strict=True):
            self.content[file][offset] = value

    @rule(iova=st.integers(0, SPACE + 8), size=st.integers(1, 96))
    def view(self, iova: int, size: int) -> None:
        view = self.table.view(iova, size)
        whole = [s for s, r in self.ranges.items() if s <= iova and iova + size <= s + r[0]]
        if not whole or self.ranges[whole[0]][1] is None:
            assert view is None
            return
        _size, file, offset, flags = self.ranges[whole[0]]
        assert view is not None and file is not None
        start = offset + iova - whole[0]
        assert bytes(view) == bytes(self.content[file][start : start + size])
        assert view.readonly == (not flags & 2)
        view.release()

    @invariant()
    def files_hold_what_was_written(self) -> None:
        if not hasattr(self, "table"):
            return
        assert len(self.table) == len(self.ranges)
        for fd, content in zip(self.files, self.content, strict=True):
            assert os.pread(fd, FILE_BYTES, 0) == bytes(content)


TestNaiveMemory = NaiveMemory.TestCase
TestNaiveMemory.settings = settings(max_examples=60, stateful_step_count=40)


def test_each_file_is_mapped_once(memory: int) -> None:
    table = DmaTable()
    for round_ in range(100):
        table.map(0x1000, 4096, 3, memory, 0)
        table.map(0x4000, 4096, 3, memory, 4096)
        assert table.read(0x1000, 1) is not None
        table.unmap(0, 1 << 64)
        assert table.backing_count == 1, round_
    table.clear()
    assert table.backing_count == 0


def test_a_file_that_grew_is_mapped_again(memory: int) -> None:
    table = DmaTable()
    table.map(0, 8192, 3, memory)
    os.truncate(memory, 16384)
    table.map(8192, 8192, 3, memory, 8192)
    table.write(8000, b"x" * 400)
    assert os.pread(memory, 400, 8000) == b"x" * 400
    table.clear()


def test_a_read_only_descriptor_is_not_written_to(memory: int) -> None:
    table = DmaTable()
    read_only = os.open(f"/proc/self/fd/{memory}", os.O_RDONLY)
    table.map(0, 4096, 3, read_only)
    assert table.read(0, 4) == bytes(4)
    with pytest.raises(DmaError):
        table.write(0, b"x")
    view = table.view(0, 4)
    assert view is not None and view.readonly
    view.release()
    os.close(read_only)
    table.clear()


def test_write_that_leaves_the_map_changes_nothing(memory: int) -> None:
    table = DmaTable()
    table.map(0, 4096, 3, memory)
    table.map(4096, 4096, 1, memory, 4096)
    with pytest.raises(DmaError) as caught:
        table.write(4090, b"123456789")
    assert (caught.value.iova, caught.value.size, caught.value.why) == (4096, 3, "not writeable")
    assert os.pread(memory, 6, 4090) == bytes(6)
    table.clear()


def test_number_of_ranges_is_bounded(memory: int) -> None:
    table = DmaTable(max_maps=2)
    table.map(0, 1, 3, memory)
    table.map(1, 1, 3, memory)
    with pytest.raises(ProtocolError) as caught:
        table.map(2, 1, 3, memory)
    assert caught.value.errno == errno.ENOSPC


def test_a_view_held_too_long_does_not_break_clear(memory: int) -> None:
    table = DmaTable()
    table.map(0, 4096, 3, memory)
    view = table.view(0, 16)
    table.clear()
    assert view is not None
    assert bytes(view) == bytes(16)
