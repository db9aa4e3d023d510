"""The small process that owns QEMU and the device model, so that they never outlive the bed.

Reads one JSON spec from its socket, starts the processes in order, reports starts and exits as JSON
lines. It ends everything when told, when the socket closes, or when the parent is gone, then
removes the bed's directory; if it is killed itself, PR_SET_PDEATHSIG ends its children. Standard
library only, run by path.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
_STEP_S = 0.01
_TERM_GRACE_S = 2.0
_LOCK = "lock"


class Supervisor:
    """Owns the children and the directory."""

    def __init__(self, channel: socket.socket, parent: int, spec: dict[str, Any]) -> None:
        self._channel = channel
        self._parent = parent
        self._spec = spec
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)

    def report(self, **event: object) -> None:
        with contextlib.suppress(OSError):
            self._channel.sendall(json.dumps(event).encode() + b"\n")

    def start(self) -> bool:
        """Start everything in order. False when something is missing; it has been reported."""
        for process in self._spec["processes"]:
            name = process["name"]
            with Path(process["log"]).open("ab") as log:
                try:
                    child = subprocess.Popen(
                        process["argv"],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        cwd=self._spec["directory"],
                        env={**os.environ, **process["env"]},
                        pass_fds=process["fds"],
                        preexec_fn=self._die_with_parent,
                    )
                except OSError as error:
                    self.report(event="failed", name=name, error=str(error))
                    return False
            self._children[name] = child
            self.report(event="started", name=name, pid=child.pid)
            for fd in process["fds"]:
                os.close(fd)
            if not self._wait_paths(child, process["wait"]):
                if not self._report_exits():
                    self.report(event="failed", name=name, error="its sockets did not appear")
                return False
        return True

    def _die_with_parent(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def _wait_paths(self, child: subprocess.Popen[bytes], paths: list[str]) -> bool:
        deadline = time.monotonic() + self._spec["wait_s"]
        while not all(Path(path).exists() for path in paths):
            if child.poll() is not None or time.monotonic() > deadline:
                return False
            if select.select([self._parent], [], [], _STEP_S)[0]:
                return False
        return True

    def _report_exits(self) -> bool:
        """Report children that ended. True when there was one."""
        ended = [name for name, child in self._children.items() if child.poll() is not None]
        for name in ended:
            self.report(event="exited", name=name, status=self._children.pop(name).returncode)
        return bool(ended)

    def serve(self) -> None:
        """Until told to stop, the channel closes, the parent is gone, or nothing is left to own."""
        wake, wake_write = socket.socketpair()
        for end in (wake, wake_write):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(wake_write.fileno())
        poll = select.poll()
        for fd in (self._channel.fileno(), wake.fileno(), self._parent):
            poll.register(fd, select.POLLIN)
        self._report_exits()
        try:
            self._watch(poll, wake)
        finally:
            signal.set_wakeup_fd(-1)

    def _watch(self, poll: select.poll, wake: socket.socket) -> None:
        while self._children:
            ready = {fd for fd, _ in poll.poll()}
            if self._parent in ready or self._channel.fileno() in ready:
                return
            with contextlib.suppress(BlockingIOError):
                wake.recv(4096)
            self._report_exits()

    def stop(self) -> None:
        """End the children: QEMU has no state to save, the model may flush its trace."""
        for name, child in self._children.items():
            child.send_signal(signal.SIGKILL if name == "qemu" else signal.SIGTERM)
        deadline = time.monotonic() + _TERM_GRACE_S
        for child in self._children.values():
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        gone = bool(select.select([self._parent], [], [], 0)[0])
        for path in self._spec["remove"] + (self._spec["remove_if_orphaned"] if gone else []):
            shutil.rmtree(path, ignore_errors=True)
        self.report(event="stopped")


def lock_directory(directory: str) -> int:
    """Mark a bed's directory as in use for as long as the returned descriptor lives."""
    fd = os.open(Path(directory) / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def read_spec(channel: socket.socket) -> dict[str, Any] | None:
    """The one line that says what to do; None when the parent left before."""
    data = bytearray()
    while not data.endswith(b"\n"):
        part = channel.recv(65536)
        if not part:
            return None
        data += part
    spec: dict[str, Any] = json.loads(data)
    return spec


def main() -> int:
    """Descriptor number of the channel and the parent's process id come as arguments."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    try:
        parent = os.pidfd_open(int(sys.argv[2]))
    except ProcessLookupError:
        return 1
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    spec = read_spec(channel)
    if spec is None:
        return 1
    lock_directory(spec["directory"])
    supervisor = Supervisor(channel, parent, spec)
    try:
        if supervisor.start():
            supervisor.serve()
    finally:
        supervisor.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
