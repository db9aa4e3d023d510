"""The guard: a small process that outlives the supervisor and cleans up when it dies without saying goodbye.

It holds one end of a pipe. When the pipe closes without a farewell, it kills the workers, restores the kernel log
setting and writes the journal's end line, so that a killed supervisor can be told from a machine that went away.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from gdrstorm.kmsg.devkmsg import put_back_if_last

_BYE = b"bye"


class Guard:
    """The supervisor's side. `tell_worker` names a process to kill; `dismiss` ends the guard without any action."""

    def __init__(self, journal: Path) -> None:
        read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC)
        command = [
            sys.executable,
            "-m",
            "gdrstorm.session.guard",
            str(read_fd),
            str(journal),
        ]
        self._process = subprocess.Popen(
            command,
            pass_fds=(read_fd,),
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        os.close(read_fd)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell_worker(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            os.write(self._write_fd, f"{pid}\n".encode())

    def dismiss(self) -> None:
        """The run is over and everything is put back; twice is legal."""
        if self._write_fd < 0:
            return
        with contextlib.suppress(OSError):
            os.write(self._write_fd, _BYE)
        os.close(self._write_fd)
        self._write_fd = -1
        self._process.wait()


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _append_end(path: Path) -> None:
    """One valid line after whatever the supervisor managed to write; a torn line before it is cut off first."""
    with contextlib.suppress(OSError):
        data = path.read_bytes()
        whole, _, torn = data.rpartition(b"\n")
        if b'"type":"end"' in whole[-65536:]:
            return  # it died after its work was done
        with path.open("r+b") as file:
            if torn:
                file.truncate(len(whole) + 1 if whole else 0)
            file.seek(0, os.SEEK_END)
            line = (
                f'{{"type":"end","seq":{whole.count(10) + 2 if whole else 1},"time_ns":{time.time_ns()},'
                '"how":"supervisor-died","detail":"the supervisor process was killed or crashed"}\n'
            )
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())


def main() -> int:
    read_fd, journal = int(sys.argv[1]), Path(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    heard = b""
    while piece := os.read(read_fd, 4096):
        heard += piece
    if heard.endswith(_BYE):
        return 0
    _kill([int(word) for word in heard.split() if word.isdigit()])
    put_back_if_last()
    _append_end(journal)
    return 0


if __name__ == "__main__":
    sys.exit(main())
