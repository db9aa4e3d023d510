"""/dev/kmsg to records: non-blocking, by sequence, gaps reported, markers written and verified."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from gdrstorm.kmsg.record import Gap, Record


class KmsgReader:
    """Owns one open descriptor of the log. Not thread-safe: one reader a thread."""

    def __init__(self, path: Path | str = "/dev/kmsg", *, from_start: bool = False) -> None:
        raise NotImplementedError

    def fileno(self) -> int:
        """Descriptor to select on."""
        raise NotImplementedError

    def read_records(self, limit: int = 4096) -> list[Record | Gap]:
        """What has come since the last call, at most `limit`; empty when there is nothing."""
        raise NotImplementedError

    def write_marker(self, text: str) -> int | None:
        """Write `text` to the log and find it again: its sequence number, or None when it was not read back."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the descriptor; twice is legal."""
        raise NotImplementedError

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
def devkmsg_unlimited(path: Path | str = "/proc/sys/kernel/printk_devkmsg") -> Iterator[str | None]:
    """Lift the rate limit on /dev/kmsg writers; restore it on every way out. Yields a reason when it could not."""
    raise NotImplementedError
    yield None
