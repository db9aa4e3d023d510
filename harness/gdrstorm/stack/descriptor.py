"""Owned descriptors: closed by their object, twice is legal, never again after that.

The exporter or driver that made a descriptor is known to the caller; this only owns it.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

from gdrstorm.errors import CallError


class Descriptor:
    """An open descriptor and the size of what it stands for; `fd` is -1 after `close`."""

    def __init__(self, fd: int, size_bytes: int = 0) -> None:
        self.fd = fd
        self.size_bytes = size_bytes

    def close(self) -> None:
        """Close it. Raises CallError when close(2) fails; it is closed all the same."""
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        try:
            os.close(fd)
        except OSError as error:
            raise CallError(f"cannot close descriptor: fd={fd}", error.errno or 0) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_device(
    path: str, flags: int = os.O_RDWR, hints: dict[int, str] | None = None
) -> Descriptor:
    """open(2) with O_CLOEXEC. Raises CallError with the path, the errno and its hint."""
    try:
        return Descriptor(os.open(path, flags | os.O_CLOEXEC))
    except OSError as error:
        value = error.errno or 0
        raise CallError(f"cannot open {path}", value, (hints or {}).get(value)) from error
