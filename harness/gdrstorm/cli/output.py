"""What can happen to the command line's own output: closed from the start, closed by its reader, on a full disk.

Turns each into something that a verb need not think about. It never hides a verdict.
"""

from __future__ import annotations

import os
import sys


def open_missing_streams() -> None:
    """Standard descriptors that the caller closed become /dev/null, before a journal gets their numbers."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
            os.set_inheritable(number, True)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def give_up_stdout() -> None:
    """Nobody can take the output any more: what is still buffered goes to /dev/null, not into an exit code 120."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
