"""The short-named directory of one running bed (sockets, initramfs), and what dead ones left.

A directory belongs to a live bed while its `lock` is held, by the supervisor and by nobody else;
one whose lock is free is removed at the next start. Socket paths must stay below 108 bytes, hence
/tmp and not the run directory.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "gdrstorm-bed-"
# sun_path is 108 bytes (unix(7)); "/gdrstorm-bed-XXXXXXXX/control.sock" follows
_MAX_BASE_BYTES = 108 - 40
# A directory without a lock file may be one that is just being made.
_YOUNG_S = 60.0


def make_workdir() -> Path:
    """A new directory, after removing those that no process owns any more."""
    remove_stale_workdirs()
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=_base()))


def _base() -> Path:
    """TMPDIR, or /tmp where a socket's path would get too long below it."""
    base = Path(tempfile.gettempdir())
    return base if len(bytes(base)) <= _MAX_BASE_BYTES else Path("/tmp")


def remove_stale_workdirs() -> list[Path]:
    """Remove directories of beds that were killed with everything that could clean up."""
    removed = []
    for path in _base().glob(f"{PREFIX}*"):
        if _is_stale(path):
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed


def _is_stale(path: Path) -> bool:
    try:
        if path.is_symlink() or path.stat().st_uid != os.getuid():
            return False
        fd = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return path.exists() and time.time() - path.stat().st_mtime > _YOUNG_S
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
