"""Follows the guest's console file while QEMU writes it, without polling (inotify).

QEMU writes the file itself: a file never makes the emulated serial port wait, while a socket does,
and then characters are lost and doubled. Reads only; bytes come in order, each once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

from gdrstorm.errors import CallError

_IN_MODIFY = 2  # include/uapi/linux/inotify.h
_READ_BYTES = 65536


class ConsoleTail:
    """Owns two descriptors. `fileno` becomes readable when there may be more."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        libc = ctypes.CDLL(None, use_errno=True)
        self._notify = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._notify < 0:
            os.close(self._file)
            raise CallError(f"inotify_init1 for {path}", ctypes.get_errno())
        if libc.inotify_add_watch(self._notify, bytes(path), _IN_MODIFY) < 0:
            number = ctypes.get_errno()
            self.close()
            raise CallError(f"inotify_add_watch {path}", number)

    def fileno(self) -> int:
        return int(self._notify)

    def read(self) -> bytes:
        """All that was written since the last time."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._notify, _READ_BYTES)
        parts = []
        while part := os.read(self._file, _READ_BYTES):
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        for name in ("_notify", "_file"):
            fd = getattr(self, name)
            if fd >= 0:
                os.close(fd)
                setattr(self, name, -1)
