"""The console file is followed byte by byte, and a new run starts it anew."""

from __future__ import annotations

import select
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.bed.vm.console import ConsoleTail


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.booleans()), max_size=30))
def test_every_byte_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[bytes, bool]]
) -> None:
    path = tmp_path_factory.mktemp("console") / "log"
    tail = ConsoleTail(path)
    got = b""
    with path.open("ab", buffering=0) as file:
        for data, read_now in writes:
            file.write(data)
            if read_now:
                got += tail.read()
    got += tail.read()
    tail.close()
    assert got == b"".join(data for data, _ in writes)


def test_readiness_follows_the_writer(tmp_path: Path) -> None:
    tail = ConsoleTail(tmp_path / "log")
    poll = select.poll()
    poll.register(tail, select.POLLIN)
    assert poll.poll(0) == []
    (tmp_path / "log").write_bytes(b"x")
    assert poll.poll(5000)
    assert tail.read() == b"x"
    assert poll.poll(0) == []
    tail.close()


def test_old_contents_are_gone_and_a_writer_may_truncate(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"from the run before")
    tail = ConsoleTail(path)
    path.write_bytes(b"new")
    assert tail.read() == b"new"
    tail.close()
    tail.close()
