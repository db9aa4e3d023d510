"""Worker processes as the supervisor sees them: spawn, hear, notice their end, end them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field

from gdrstorm.model.plan import WorkerPlan
from gdrstorm.session import wire

_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}


@dataclass
class Child:
    """One worker process. `state` is started, opened, done, ended, failed, crashed, killed or hung."""

    plan: WorkerPlan
    process: subprocess.Popen[bytes]
    sock: socket.socket
    state: str = "started"
    reason: str = ""
    exit_code: int = 0
    opened: wire.Opened | None = None
    heard_ns: int = field(default_factory=time.monotonic_ns)
    descriptors_left: dict[str, int] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_over(self) -> bool:
        """The process is gone and its end was noticed."""
        return self.state in ("ended", "failed", "crashed", "killed")

    def hear(self) -> wire.Reply | None:
        """Take one message without waiting; None when there is none."""
        try:
            reply = wire.receive_reply(self.sock)
        except (BlockingIOError, ConnectionResetError):
            return None
        if reply is not None:
            self.heard_ns = time.monotonic_ns()
            self._note(reply)
        return reply

    def _note(self, reply: wire.Reply) -> None:
        match reply:
            case wire.Opened():
                self.opened, self.state = reply, "opened"
            case wire.StormDone(descriptors_left=left):
                self.state, self.descriptors_left = "done", left
            case wire.GateDone():
                self.state = "done"
            case wire.Failed(reason=reason, exit_code=code):
                self.state, self.reason, self.exit_code = "failing", reason, code

    def notice_end(self) -> bool:
        """True once, when the process has ended since the last look."""
        if self.is_over or self.process.poll() is None:
            return False
        status = self.process.returncode
        if status < 0:
            number = signal.Signals(-status)
            self.state = "crashed" if number in _CRASHES else "killed"
            self.reason = f"the worker process ended by {number.name}"
        elif self.state == "done" and status == 0:
            self.state = "ended"
        else:
            self.reason = (
                self.reason
                or f"the worker process ended with status {status} before its work was done"
            )
            self.state = "failed"
        return True

    def kill(self, wait_s: float = 5.0) -> bool:
        """SIGKILL it. False when it is still there afterwards: a thread sits in the kernel and cannot die."""
        if self.process.poll() is None:
            with contextlib.suppress(OSError):
                self.process.kill()
            try:
                self.process.wait(wait_s)
            except subprocess.TimeoutExpired:
                return False
        return True

    def close(self) -> None:
        self.sock.close()


def spawn(plan: WorkerPlan, area_fd: int | None, nice: int) -> Child:
    """Start a worker; it dies with this process. `area_fd` is inherited under the same number."""
    ours, theirs = wire.make_pair()
    keep = (theirs.fileno(),) if area_fd is None else (theirs.fileno(), area_fd)
    command = [
        sys.executable,
        "-m",
        "gdrstorm.session.worker",
        str(theirs.fileno()),
        str(os.getpid()),
        str(nice),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        command,
        pass_fds=keep,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        env=environment,
    )
    theirs.close()
    wire.send(ours, wire.Job(plan, -1 if area_fd is None else area_fd))
    ours.setblocking(False)
    return Child(plan, process, ours)
