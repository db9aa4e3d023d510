"""A process that exports GPU memory, hands the descriptors to its parent and waits to be killed.

    python -m gdrstorm.stack.gpu_child EXPORTER DEVICE SIZE COUNT PASS SOCKET

It allocates and exports SIZE bytes COUNT times, sends the first PASS descriptors with one byte over
SOCKET, and sleeps. It dies with its parent, and at the latest after a minute.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from gdrstorm.errors import CallError, errno_name
from gdrstorm.stack import registry

_PR_SET_PDEATHSIG = 1
_LIMIT_S = 60


class PassingChild:
    """The child and what it passed: `fds` belong to the caller once taken. Leaving kills it."""

    def __init__(
        self, exporter: str, device: str, size_bytes: int, count: int, passed: int
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        arguments = (exporter, device, size_bytes, count, passed, theirs.fileno())
        command = [sys.executable, "-m", "gdrstorm.stack.gpu_child", *map(str, arguments)]
        # -m finds the package only by the path that found it here
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
        with ours, theirs:
            self._process = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                stderr=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": path},
            )
            theirs.close()
            ours.settimeout(_LIMIT_S)
            data, fds, _, _ = socket.recv_fds(ours, 1, max(1, passed))
        if not data:
            _, error = self._process.communicate()
            words = error.decode(errors="replace").strip().splitlines()
            raise CallError(
                f"exporting child failed: {words[-1] if words else 'no word'}", errno.EPIPE
            )
        self.fds = fds

    def kill(self) -> str:
        """SIGKILL; how the child ended."""
        self._process.kill()
        self._process.communicate()
        status = self._process.returncode
        return signal.Signals(-status).name if status < 0 else f"exit {status}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.kill()


def main(arguments: list[str]) -> int:
    exporter_name, device = arguments[:2]
    size, count, passed, number = (int(word) for word in arguments[2:])
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        sys.exit(f"cannot set the parent-death signal: {errno_name(ctypes.get_errno())}")
    with socket.socket(fileno=number) as sock:
        exporter = registry.open_exporter(exporter_name, device)
        memories = [exporter.alloc(size) for _ in range(count)]
        buffers = [exporter.export(memory, 0, size) for memory in memories]
        socket.send_fds(sock, [b"x"], [buffer.fd for buffer in buffers[:passed]])
        time.sleep(_LIMIT_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
