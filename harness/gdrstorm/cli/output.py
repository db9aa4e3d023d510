"""What can happen to the command line's own output: closed from the start, closed by its reader, on a full disk.

Turns each into something that a verb need not think about. It never hides a verdict.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path


def prepare_streams() -> None:
    """Standard descriptors that the caller closed become /dev/null, before a journal gets their numbers;

    and what a stream cannot encode is written as an escape.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
            os.set_inheritable(number, True)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # a terminal that knows only ASCII must not end a run whose scenario has a name in Chinese
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def shown(given: str | Path) -> str:
    """A path or argument for JSON, which is UTF-8; what a user gives need not be."""
    return str(given).encode("utf-8", "backslashreplace").decode()


def give_up_stdout() -> None:
    """Nobody can take the output any more: what is still buffered goes to /dev/null, not into an exit code 120."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
