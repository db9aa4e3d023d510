"""journal.jsonl: append lines while a run goes on, and read back whatever is there afterwards.

A line is on its way to the disk when `write` returns, and on the disk when `sync` does (before dangerous steps). A
torn last line (the machine died while writing) is dropped when reading; a torn line elsewhere is an error.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import msgspec

from gdrstorm.errors import BrokenError, UsageError
from gdrstorm.model import journal as j

JOURNAL = "journal.jsonl"
_decoder = msgspec.json.Decoder(j.Line)
_encoder = msgspec.json.Encoder()


class JournalWriter:
    """Appends to a journal. `stream_fd` gets a copy of every line: the way out of the guest."""

    def __init__(self, path: Path, stream_fd: int | None = None) -> None:
        with _named(path):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._fd).st_size
        self._stream_fd = stream_fd
        self._seq = 0
        self.path = path

    @property
    def is_streamed(self) -> bool:
        return self._stream_fd is not None

    @property
    def seq(self) -> int:
        """Number of the last line written."""
        return self._seq

    def write(self, line: j.Line, sync: bool = False) -> j.Line:
        """Append one line, stamped with its number and time; `sync` waits for the disk.

        Raises BrokenError when it cannot be written: a run without a journal proves nothing.
        """
        self._seq += 1
        stamped = msgspec.structs.replace(
            line, seq=self._seq, time_ns=line.time_ns or time.time_ns()
        )
        data = _encoder.encode(stamped) + b"\n"
        with _named(self.path):
            self._append(data)
            if self._stream_fd is not None:
                _write_all(self._stream_fd, data)
            if sync:
                os.fsync(self._fd)
        return stamped

    def _append(self, data: bytes) -> None:
        """All of it or nothing: after half a line on a full disk no reader could go on."""
        try:
            _write_all(self._fd, data)
        except OSError:
            self._seq -= 1
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def close(self) -> None:
        if self._fd >= 0:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BrokenError(
            f"cannot write journal {path}: {error.strerror}", "is the disk full? give --out DIR"
        ) from None


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def decode_line(data: bytes) -> j.Line:
    """One journal line. Raises msgspec.ValidationError or DecodeError."""
    return _decoder.decode(data)


def parse_journal(data: bytes, name: str = "journal") -> tuple[j.Line, ...]:
    """All lines of a journal. Raises UsageError naming the line that cannot be read."""
    return tuple(_parse(data, name))


def _parse(data: bytes, name: str) -> Iterator[j.Line]:
    pieces = data.split(b"\n")
    for number, piece in enumerate(pieces, start=1):
        if not piece.strip():
            continue
        try:
            line = _decoder.decode(piece)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if number == len(pieces):
                return  # torn: the writer died inside this line
            raise UsageError(
                f"cannot read {name} line {number}: {error}", "is this a gdrstorm journal?"
            ) from None
        if isinstance(line, j.Start) and line.schema > j.SCHEMA_VERSION:
            raise UsageError(
                f"{name} has schema {line.schema}, this gdrstorm reads up to {j.SCHEMA_VERSION}",
                "use a newer gdrstorm",
            )
        yield line


def journal_path(run: Path) -> Path:
    """The journal of a run directory (or the journal itself). Raises UsageError when there is none."""
    try:
        path = run if run.is_file() else run / JOURNAL
        is_there = path.is_file()
    except OSError as error:
        raise UsageError(f"cannot read {str(run)[:80]}: {error.strerror}") from None
    if not is_there:
        raise UsageError(f"no journal in {run}", "give the directory that gdrstorm run printed")
    return path


def read_journal(run: Path) -> tuple[j.Line, ...]:
    """The lines of a run. Raises UsageError when it cannot be read."""
    path = journal_path(run)
    try:
        return parse_journal(path.read_bytes(), str(path))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
