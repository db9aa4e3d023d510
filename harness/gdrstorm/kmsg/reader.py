"""/dev/kmsg to records: non-blocking, by sequence, holes reported, markers written and read back.

It only reads and writes the log; it never judges a line. Contract of the device: one record a read(), EAGAIN
when there is none, EPIPE when records were overwritten before they were read (Documentation/ABI/testing/dev-kmsg).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from gdrstorm.kmsg.record import Gap, Record, parse_kmsg_record

# include/linux/printk.h PRINTK_MESSAGE_MAX and fields: no record is larger.
_RECORD_BYTES = 8192
_MARKER_BYTES = 900
_VERIFY_RECORDS = 100_000
# syslog priority of a marker: facility user (1), level info (6)
_MARKER_PRIO = 1 << 3 | 6

ReadCall = Callable[[int, int], bytes]


class KmsgReader:
    """Owns one open descriptor of the log. Not thread-safe: one reader a thread.

    Starts at the end of the log, or at its oldest record (`from_start`), or after a marker still in it
    (`since`; marker_found says whether it was met so far). OSError when it cannot be opened.
    """

    def __init__(
        self,
        path: Path | str = "/dev/kmsg",
        *,
        from_start: bool = False,
        since: str | None = None,
        read: ReadCall = os.read,
    ) -> None:
        self._path = Path(path)
        self._read = read
        self._since = since
        self._expected: int | None = None
        self._overrun = False
        self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.lseek(self._fd, 0, os.SEEK_SET if from_start or since else os.SEEK_END)
        except OSError as error:
            if error.errno != errno.ESPIPE:
                self.close()
                raise

    @property
    def marker_found(self) -> bool:
        """False as long as a marker to start at was not met."""
        return self._since is None

    def fileno(self) -> int:
        """Descriptor to select on."""
        return self._fd

    def read_records(self, limit: int = 4096) -> list[Record | Gap]:
        """What has come since the last call, at most `limit` records; empty when there is nothing."""
        found: list[Record | Gap] = []
        for _ in range(limit):
            try:
                data = self._read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                self._overrun = True
                continue
            if not data:
                break
            found += self._take(data)
        return found

    def _take(self, data: bytes) -> list[Record | Gap]:
        try:
            record = parse_kmsg_record(data)
        except ValueError:
            # Not a record at all: keep the text, a half understood line is better than none.
            record = Record(self._expected or 0, data.decode("utf-8", "replace").rstrip("\n"))
        expected, self._expected = self._expected, record.seq + 1
        taken: list[Record | Gap] = []
        if expected is not None and record.seq > expected:
            taken.append(Gap(expected, record.seq - expected))
        elif self._overrun and expected is None:
            taken.append(Gap(0, record.seq))
        self._overrun = False
        if self._since is None:
            taken.append(record)
        elif self._since in record.text:
            self._since = None
        return taken

    def write_marker(self, text: str) -> int | None:
        """Write `text` to the log and find it again: its sequence number, or None when it was not read back.

        The kernel drops a writer's lines silently above its rate limit (see kmsg.devkmsg). OSError when the
        log cannot be written; ValueError when the text is no marker.
        """
        line = " ".join(text.split())
        if not line or len(line.encode()) > _MARKER_BYTES:
            raise ValueError(f"a marker is one line of 1 to {_MARKER_BYTES} bytes: {text[:40]!r}")
        watch = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.lseek(watch, 0, os.SEEK_END)
            out = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(out, f"<{_MARKER_PRIO}>{line}\n".encode())
            finally:
                os.close(out)
            return _find_marker(watch, line)
        finally:
            os.close(watch)

    def close(self) -> None:
        """Close the descriptor; twice is legal."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _find_marker(watch: int, line: str) -> int | None:
    for _ in range(_VERIFY_RECORDS):
        try:
            data = os.read(watch, _RECORD_BYTES)
        except BlockingIOError:
            return None
        except BrokenPipeError:
            continue
        if not data:
            return None
        try:
            record = parse_kmsg_record(data)
        except ValueError:
            continue
        if record.text == line:
            return record.seq
    return None
