"""Small facts about processes: die with the parent, count descriptors, read a thread's kernel stack."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
_ATTENTIVE_NICE = -10


def die_with_parent(parent: int) -> None:
    """Be killed when the parent dies; exits at once when it is dead already."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


@contextlib.contextmanager
def attentive() -> Iterator[int]:
    """Run this process before the storm's own threads, so that events are seen while every CPU is busy.

    Yields the niceness that workers go back to; without the right to do so nothing changes.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, min(before, _ATTENTIVE_NICE))
    try:
        yield before
    finally:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


def descriptor_kinds(pid: int | str = "self") -> Counter[str]:
    """Open descriptors of a process by what they point to; numbers in names are dropped."""
    kinds: Counter[str] = Counter()
    directory = Path(f"/proc/{pid}/fd")
    for entry in list(directory.iterdir()):
        try:
            target = str(entry.readlink())
        except OSError:
            continue  # closed since the listing, the listing's own one among them
        kinds[target.split(":[")[0] if ":[" in target else target.removesuffix(" (deleted)")] += 1
    return kinds


def kernel_stack(pid: int, tid: int) -> tuple[str, ...]:
    """The kernel stack of a thread, innermost first; empty where it cannot be read (needs root)."""
    try:
        text = Path(f"/proc/{pid}/task/{tid}/stack").read_text()
    except OSError:
        return ()
    return tuple(line.split("] ", 1)[-1].strip() for line in text.splitlines() if line.strip())


def thread_state(pid: int, tid: int) -> str:
    """One letter as in /proc/PID/task/TID/stat (R, S, D, ...), or empty when it is gone."""
    try:
        text = Path(f"/proc/{pid}/task/{tid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]
