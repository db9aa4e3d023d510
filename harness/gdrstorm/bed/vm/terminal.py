"""A command of the guest on the user's own terminal: raw keys in, screen out, window size along.

Always gives the terminal back as it was. Nothing here knows which command it is.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Sequence

from gdrstorm.bed.vm.bed import Bed, RunningCommand
from gdrstorm.errors import UsageError

_READ_BYTES = 4096


def check_terminal() -> None:
    """UsageError when there is no terminal to work on."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("a shell needs a terminal", "for scripts: gdrstorm bed exec -- COMMAND")


def run_terminal(bed: Bed, argv: Sequence[str]) -> int:
    """Exit status of the command."""
    size = shutil.get_terminal_size()
    command = bed.start_command(argv, terminal=(size.lines, size.columns))
    keyboard, screen = sys.stdin.fileno(), sys.stdout.fileno()
    saved = termios.tcgetattr(keyboard)
    stop_read, stop_write = os.pipe()
    reader = threading.Thread(target=_send_keys, args=(command, keyboard, stop_read), daemon=True)
    before = signal.signal(signal.SIGWINCH, lambda _number, _frame: _resize(command))
    try:
        tty.setraw(keyboard)
        reader.start()
        return command.wait(on_stdout=lambda data: _write_all(screen, data)).status
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, saved)
        signal.signal(signal.SIGWINCH, before)
        os.write(stop_write, b"x")
        reader.join()
        os.close(stop_read)
        os.close(stop_write)


def _send_keys(command: RunningCommand, keyboard: int, stop: int) -> None:
    while True:
        ready, _, _ = select.select([keyboard, stop], [], [])
        if stop in ready:
            return
        data = os.read(keyboard, _READ_BYTES)
        command.write_stdin(data)
        if not data:
            return


def _resize(command: RunningCommand) -> None:
    size = shutil.get_terminal_size()
    command.resize(size.lines, size.columns)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
