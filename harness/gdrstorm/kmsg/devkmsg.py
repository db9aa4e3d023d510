"""The kernel's rate limit on writers of /dev/kmsg: lifted while any run needs it, put back by the last one.

The limit drops lines silently, markers among them. Runs at the same time share the setting through a lock file that
holds the value to put back: whoever lifts holds the lock shared, and who gets it exclusively is the last. Locks end
with their process, so a killed run is cleaned up by its guard or by the next run.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gdrstorm.errors import errno_name

SETTING = Path("/proc/sys/kernel/printk_devkmsg")
LOCK = Path("/run/gdrstorm-devkmsg.lock")


def _try_exclusive(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _put_back(fd: int, setting: Path) -> None:
    """With the exclusive lock held: write the stored value, and forget it."""
    stored = os.pread(fd, 64, 0).decode().strip()
    if stored:
        with suppress(OSError):
            setting.write_text(stored + "\n")
        os.ftruncate(fd, 0)


def put_back_if_last(setting: Path = SETTING, lock: Path = LOCK) -> None:
    """Put the setting back when no run holds it any more; for the one who cleans up after a killed run."""
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if _try_exclusive(fd):
            _put_back(fd, setting)
    finally:
        os.close(fd)


@contextmanager
def devkmsg_unlimited(setting: Path = SETTING, lock: Path = LOCK) -> Iterator[str | None]:
    """Lift the limit; put it back on every way out. Yields the reason when it could not be lifted."""
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        yield f"{lock}: {error.strerror}"
        return
    try:
        problem = _lift(fd, setting)
        yield problem
    finally:
        if _try_exclusive(fd):
            _put_back(fd, setting)
        os.close(fd)


def _lift(fd: int, setting: Path) -> str | None:
    """Store the value and write `on`, as the first; then hold the lock shared. The reason when it cannot be done."""
    try:
        if _try_exclusive(fd):
            _put_back(fd, setting)  # left by runs that were killed together with their guards
            before = setting.read_text().strip()
            if before != "on":
                os.pwrite(fd, before.encode(), 0)
                setting.write_text("on\n")
    except OSError as error:
        os.ftruncate(fd, 0)
        return (
            f"cannot set {setting} to on: {errno_name(error.errno or 0)} ({error.strerror}): "
            "markers may be dropped (boot with printk.devkmsg=on)"
        )
    finally:
        fcntl.flock(fd, fcntl.LOCK_SH)
    return None
