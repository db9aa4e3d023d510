"""The journal on disk: what is written comes back, torn ends are survived, damage elsewhere is named."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gdrstorm.errors import BrokenError, UsageError
from gdrstorm.evidence.journal import JOURNAL, JournalWriter, parse_journal, read_journal
from gdrstorm.model import journal as j


def write(path: Path, count: int = 3) -> None:
    with JournalWriter(path / JOURNAL) as journal:
        for number in range(count):
            journal.write(j.Note(text=f"note {number}"), sync=number == 0)


def test_lines_come_back_numbered_and_timed(tmp_path: Path) -> None:
    write(tmp_path)
    lines = read_journal(tmp_path)
    assert [line.seq for line in lines] == [1, 2, 3]
    assert all(line.time_ns > 0 for line in lines)
    assert lines == read_journal(tmp_path / JOURNAL)


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    write(tmp_path)
    data = (tmp_path / JOURNAL).read_bytes()
    assert len(parse_journal(data[:-5])) == 2


def test_damage_in_the_middle_names_the_line(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / JOURNAL
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"{garbage\n" + lines[2])
    with pytest.raises(UsageError, match="line 2"):
        read_journal(tmp_path)


def test_a_newer_schema_is_refused() -> None:
    data = b'{"type":"start","schema":999,"run_id":"r","version":"9","argv":[],"bed":"host","platform":"hardware",'
    data += b'"boot_id":"","scenario":{"name":"s","summary":"x","time_limit_ns":1,"phases":[]}}\n'
    with pytest.raises(UsageError, match="schema 999"):
        parse_journal(data)


def test_no_journal_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no journal in"):
        read_journal(tmp_path)


def test_the_stream_gets_every_line(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    with JournalWriter(tmp_path / JOURNAL, write_fd) as journal:
        journal.write(j.Note(text="x"))
    os.close(write_fd)
    assert os.read(read_fd, 4096) == (tmp_path / JOURNAL).read_bytes()
    os.close(read_fd)


def test_an_hour_of_progress_fits_in_a_mebibyte(tmp_path: Path) -> None:
    """The default rate is one line a second for each group; a cycle of four operations."""
    beats = tuple(
        j.Beat(op, 123456, 0, 123456, 2345678, 34567890)
        for op in ("EXPORT", "REG", "DEREG", "CLOSE")
    )
    with JournalWriter(tmp_path / JOURNAL) as journal:
        for _ in range(100):
            journal.write(j.Progress(phase="storm", group="storm", ops=beats))
    assert (tmp_path / JOURNAL).stat().st_size * 36 <= 1 << 20


def test_a_line_that_does_not_fit_leaves_no_half_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk with room for half a line: the journal stays readable and the next line has the next number."""
    real = os.write

    def half(fd: int, data: memoryview) -> int:
        if len(data) < 50:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[: len(data) - 40])

    with JournalWriter(tmp_path / "journal.jsonl") as journal:
        journal.write(j.Note(text="one"))
        monkeypatch.setattr(os, "write", half)
        with pytest.raises(BrokenError, match="No space left"):
            journal.write(j.Note(text="x" * 100))
        monkeypatch.undo()
        journal.write(j.Note(text="two"))
    lines = read_journal(tmp_path)
    assert [(line.seq, line.text) for line in lines if isinstance(line, j.Note)] == [
        (1, "one"),
        (2, "two"),
    ]
