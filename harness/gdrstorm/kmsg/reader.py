"""/dev/kmsg to records: non-blocking, by sequence, gaps reported, markers written and verified.

Reading takes one record a read(2) and never blocks; EPIPE means that the kernel overwrote records that were not read
yet (Documentation/ABI/testing/dev-kmsg), which becomes a Gap. Writing needs the rate limit lifted, or lines vanish.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from gdrstorm.kmsg.record import Gap, Record, parse_kmsg_record

_RECORD_BYTES = 16384  # a record with its fields is at most 8 KiB, longer ones fail with EINVAL
_SETTING = "/proc/sys/kernel/printk_devkmsg"


class KmsgReader:
    """Owns one open descriptor of the log. Not thread-safe: one reader a thread.

    Starts at the end of the log, or with `from_start` at its oldest record. OSError when it cannot be opened.
    """

    def __init__(self, path: Path | str = "/dev/kmsg", *, from_start: bool = False) -> None:
        self._path = str(path)
        self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._ahead: deque[Record | Gap] = deque()
        self._next_seq: int | None = None
        if not from_start:
            os.lseek(self._fd, 0, os.SEEK_END)

    def fileno(self) -> int:
        """Descriptor to select on."""
        return self._fd

    def read_records(self, limit: int = 4096) -> list[Record | Gap]:
        """What has come since the last call, at most `limit`; empty when there is nothing."""
        found: list[Record | Gap] = []
        while self._ahead and len(found) < limit:
            found.append(self._ahead.popleft())
        while len(found) < limit:
            more = self._read_one()
            if not more:
                break
            found += more
        return found

    def _read_one(self) -> list[Record | Gap]:
        """The next record, with a Gap before it when records were lost; empty when there is none."""
        lost = False
        while True:
            try:
                data = os.read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                return []
            except OSError as error:
                if error.errno == errno.EPIPE:
                    lost = True
                    continue
                raise
            if not data:
                return []
            record = parse_kmsg_record(data)
            expected, self._next_seq = self._next_seq, record.seq + 1
            if expected is not None and record.seq > expected:
                return [Gap(expected, record.seq - expected), record]
            if lost and expected is None:
                return [Gap(0, record.seq), record]
            return [record]

    def write_marker(self, text: str) -> int | None:
        """Write `text` to the log and find it again: its sequence number, or None when it was not read back.

        Records that are read on the way are kept for read_records. OSError when the log cannot be written.
        """
        fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, f"<6>{text}\n".encode())
        finally:
            os.close(fd)
        seq = None
        while more := self._read_one():
            self._ahead += more
            last = more[-1]
            if isinstance(last, Record) and last.text == text:
                seq = last.seq
        return seq

    def close(self) -> None:
        """Close the descriptor; twice is legal."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> KmsgReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@contextmanager
def devkmsg_unlimited(path: Path | str = _SETTING) -> Iterator[str | None]:
    """Lift the rate limit on /dev/kmsg writers; restore it on every way out. Yields a reason when it could not."""
    setting = Path(path)
    try:
        before = setting.read_text().strip()
        if before == "on":
            yield None
            return
        setting.write_text("on\n")
    except OSError as error:
        yield f"{setting}: {error.strerror}"
        return
    try:
        yield None
    finally:
        with suppress(OSError):
            setting.write_text(before + "\n")
