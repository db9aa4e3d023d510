"""One bed as a context manager: boot, run commands, inject, and leave nothing behind.

    with Bed(BedOptions(hca=0), run_dir=path) as bed:
        result = bed.run(["uname", "-r"])

`run` raises a BedFailure when the bed ended meanwhile (see failures.py). It never judges what the
guest's kernel did.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from gdrstorm.bed.vm import failures, image
from gdrstorm.bed.vm.accel import choose_accel
from gdrstorm.bed.vm.console import ConsoleTail
from gdrstorm.bed.vm.guest.wire import MAX_PAYLOAD_BYTES, Kind
from gdrstorm.bed.vm.launch import Launched, console_log, launch
from gdrstorm.bed.vm.monitor import CommandQueue, Monitor
from gdrstorm.bed.vm.options import Accel, BedOptions, check_options
from gdrstorm.bed.vm.qmp import Qmp
from gdrstorm.errors import BrokenError

BytesCallback = Callable[[bytes], None]
_KILL_GRACE_S = 5.0
_STOP_GRACE_S = 10.0
_STEP_S = 0.01
_SYSRQ_KEYS = ("l", "w")
_SYSRQ_WAIT_S = 1.5
_SIGKILL = 9


class State(enum.StrEnum):
    NEW = "new"
    BOOTING = "booting"
    RUNNING = "running"
    ENDED = "ended"


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. Output is captured only where no callback took it."""

    argv: tuple[str, ...]
    status: int  # as a shell says it: 128 + number for a signal
    stdout: bytes = b""
    stderr: bytes = b""
    error: str = ""  # why it could not be started
    elapsed_s: float = 0.0


class RunningCommand:
    """A command in the guest. Not thread-safe, but different commands may run at once."""

    def __init__(self, bed: Bed, request: int, argv: Sequence[str], queue: CommandQueue) -> None:
        self._bed = bed
        self._request = request
        self._argv = tuple(argv)
        self._queue = queue
        self._started = time.monotonic()

    def feed(self, data: bytes) -> None:
        """Send all the input there is, then end of file."""
        if data:
            self.write_stdin(data)
        self.write_stdin(b"")

    def write_stdin(self, data: bytes) -> None:
        """Send input; no bytes mean end of file."""
        for offset in range(0, max(1, len(data)), MAX_PAYLOAD_BYTES):
            part = data[offset : offset + MAX_PAYLOAD_BYTES]
            self._bed.monitor.send(Kind.STDIN, self._request, part)

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group."""
        payload = json.dumps({"number": number}).encode()
        self._bed.monitor.send(Kind.SIGNAL, self._request, payload)

    def resize(self, rows: int, columns: int) -> None:
        payload = json.dumps({"rows": rows, "columns": columns}).encode()
        self._bed.monitor.send(Kind.RESIZE, self._request, payload)

    def wait(
        self,
        timeout_s: float | None = None,
        on_stdout: BytesCallback | None = None,
        on_stderr: BytesCallback | None = None,
    ) -> CommandResult:
        """Until the command ends.

        CommandTimeoutError after killing it; BedFailure when the bed ends first.
        """
        captured: dict[Kind, bytearray] = {Kind.STDOUT: bytearray(), Kind.STDERR: bytearray()}
        sinks = {
            Kind.STDOUT: on_stdout or captured[Kind.STDOUT].extend,
            Kind.STDERR: on_stderr or captured[Kind.STDERR].extend,
        }
        end = self._collect(sinks, timeout_s)
        self._bed.monitor.close_queue(self._request)
        status = end["status"]
        return CommandResult(
            argv=self._argv,
            status=status if status >= 0 else 128 - status,
            stdout=bytes(captured[Kind.STDOUT]),
            stderr=bytes(captured[Kind.STDERR]),
            error=end.get("error", ""),
            elapsed_s=time.monotonic() - self._started,
        )

    def _collect(self, sinks: dict[Kind, BytesCallback], timeout_s: float | None) -> dict[str, Any]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                frame = self._queue.get(left)
            except TimeoutError:
                killed = self._kill()
                raise failures.CommandTimeoutError(
                    list(self._argv), timeout_s or 0.0, killed=killed
                ) from None
            if frame is None:
                raise self._bed.failure()
            if frame.kind is Kind.EXIT:
                end: dict[str, Any] = json.loads(frame.payload)
                return end
            sinks[frame.kind](frame.payload)

    def _kill(self) -> bool:
        """SIGKILL the group. False when the command is still there after a while."""
        self.signal(_SIGKILL)
        deadline = time.monotonic() + _KILL_GRACE_S
        while True:
            try:
                frame = self._queue.get(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                return False
            if frame is None:
                raise self._bed.failure()
            if frame.kind is Kind.EXIT:
                return True


class Bed:
    """Owns one virtual machine from `with` to its end.

    Without `run_dir` logs are kept only on failure.
    """

    def __init__(
        self,
        options: BedOptions | None = None,
        *,
        run_dir: Path | None = None,
        on_console: BytesCallback | None = None,
    ) -> None:
        self.options = options or BedOptions()
        check_options(self.options)
        self._given_run_dir = run_dir
        self._on_console = on_console
        self._launched: Launched | None = None
        self._monitor: Monitor | None = None
        self._console: ConsoleTail | None = None
        self._qmp: Qmp | None = None
        self._use_lock: int | None = None
        self._journal: threading.Thread | None = None
        self._journal_busy = threading.Event()
        self._request = 0
        self._lock = threading.Lock()
        self.state = State.NEW
        self.outcome: failures.Outcome | None = None
        self.accel = Accel.TCG
        self.boot_s = 0.0
        self.run_dir = Path()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Boot, and wait until the guest's agent answers. BedFailure, UnavailableError."""
        if self.state is not State.NEW:
            raise BrokenError("a bed boots once: make another Bed")
        record = image.read_image()
        self.accel = choose_accel(record, self.options.accel)
        self.state = State.BOOTING
        began = time.monotonic()
        try:
            self._launch(record)
            self.monitor.ready.wait()
            if self.monitor.failure is not None:
                raise self.failure()
        except BaseException:
            self.close()
            raise
        self.boot_s = time.monotonic() - began
        self.state = State.RUNNING

    def _launch(self, record: image.Image) -> None:
        self._use_lock = image.open_use_lock(exclusive=False)
        if self._use_lock is None:
            raise BrokenError("the bed is being rebuilt", "wait for `gdrstorm bed build` to end")
        if self._given_run_dir is None:
            self.run_dir = Path(tempfile.mkdtemp(prefix="gdrstorm-run-"))
        else:
            self.run_dir = self._given_run_dir.absolute()
            self.run_dir.mkdir(parents=True, exist_ok=True)
        self._console = ConsoleTail(self.console_path)
        self._launched = launch(
            record,
            self.options,
            self.accel,
            self.run_dir,
            is_temporary=self._given_run_dir is None,
        )
        sockets = self._launched.sockets
        self._qmp = Qmp(sockets.qmp)
        self._monitor = Monitor(
            self.options,
            self.console_path,
            sockets.agent,
            self._console,
            sockets.supervisor,
            self._on_console,
        )

    @property
    def monitor(self) -> Monitor:
        if self._monitor is None:
            raise BrokenError("the bed is not running")
        return self._monitor

    @property
    def console_path(self) -> Path:
        """All that the guest wrote to its console; stays in `run_dir`."""
        return console_log(self.run_dir)

    @property
    def control(self) -> Path:
        """Socket on which the device model takes commands."""
        if self._launched is None or self._launched.control is None:
            raise BrokenError("this bed has no device model", "boot it with hca=1 or 2")
        return self._launched.control

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of `qemu`, `model` and `supervisor`."""
        own = {"supervisor": self._launched.supervisor.pid} if self._launched else {}
        return {**self.monitor.pids, **own}

    @property
    def guest(self) -> dict[str, object]:
        """What the guest said when it came up: kernel, rdma (device names), uptime_s."""
        return dict(self.monitor.guest)

    def failure(self) -> failures.BedFailure:
        """Why the bed ended."""
        found = self.monitor.failure
        if found is None:
            found = failures.SupervisorDiedError("the bed was closed meanwhile", self.console_path)
        self.outcome = found.outcome
        return found

    def start_command(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        terminal: tuple[int, int] | None = None,
    ) -> RunningCommand:
        """Start a command as root. `terminal` is (rows, columns) of a terminal to give it."""
        if not argv:
            raise BrokenError("no command to run")
        with self._lock:
            self._request += 1
            request = self._request
        queue = self.monitor.open_queue(request)
        spec: dict[str, object] = {"argv": list(argv), "env": dict(env or {}), "cwd": cwd}
        if terminal is not None:
            spec.update(tty=True, rows=terminal[0], columns=terminal[1])
        self.monitor.send(Kind.EXEC, request, json.dumps(spec).encode())
        return RunningCommand(self, request, argv, queue)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        on_stdout: BytesCallback | None = None,
        on_stderr: BytesCallback | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes = b"",
    ) -> CommandResult:
        """Run a command as root in the guest and wait for it."""
        command = self.start_command(argv, env=env, cwd=cwd)
        # beside the reading of output: a command that answers while it is fed would block both
        feeder = threading.Thread(target=command.feed, args=(stdin,), daemon=True)
        feeder.start()
        return command.wait(timeout_s, on_stdout, on_stderr)

    def qmp(self, command: str, **arguments: object) -> Any:
        """One QMP command; `human-monitor-command` takes `command_line=...` for HMP's."""
        if self._qmp is None:
            raise BrokenError("the bed is not running")
        return self._qmp.command(command, **arguments)

    def journal(self, on_line: BytesCallback) -> None:
        """Call back with each line (no newline) written to /dev/virtio-ports/gdrstorm.journal.

        The guest's writer waits while the callback works, so no byte is lost; before this call it
        waits too, once a small buffer is full. A last line without newline is delivered at the end
        of the bed.
        """
        if self._launched is None or self._journal is not None:
            raise BrokenError("a running bed's journal can be read once")
        sock = self._launched.sockets.journal
        self._journal = threading.Thread(
            target=self._read_journal, args=(sock, on_line), name="gdrstorm-journal", daemon=True
        )
        self._journal.start()

    def _read_journal(self, sock: socket.socket, on_line: BytesCallback) -> None:
        rest = b""
        while True:
            try:
                data = sock.recv(MAX_PAYLOAD_BYTES)
            except OSError:
                data = b""
            self._journal_busy.set()
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                on_line(line)
            self._journal_busy.clear()
        if rest:
            on_line(rest)

    def drain_journal(self, timeout_s: float = 10.0) -> bool:
        """Wait until all that has arrived was called back. False when it takes longer."""
        if self._launched is None or self._journal is None:
            return True
        deadline = time.monotonic() + timeout_s
        while self._journal.is_alive() and time.monotonic() < deadline:
            waiting = fcntl.ioctl(self._launched.sockets.journal, termios.FIONREAD, bytes(4))
            if not struct.unpack("i", waiting)[0] and not self._journal_busy.is_set():
                return True
            time.sleep(_STEP_S)
        return not self._journal.is_alive()

    def close(self) -> None:
        """End the bed at once.

        Legal at any time and twice. The journal is read to its end first.
        """
        if self.state is State.ENDED:
            return
        self.state = State.ENDED
        if self._monitor is not None:
            self._monitor.stop()
            failure = self._monitor.failure
            self.outcome = failure.outcome if failure else failures.Outcome.CLOSED
            if self.outcome is failures.Outcome.HANG:
                self._ask_why()
        if self._launched is not None:
            self._end_processes(self._launched)
        if self._console is not None:
            self._console.close()
        if self._use_lock is not None:
            os.close(self._use_lock)
            self._use_lock = None
        if self._given_run_dir is None and self.outcome is failures.Outcome.CLOSED:
            shutil.rmtree(self.run_dir, ignore_errors=True)

    def _ask_why(self) -> None:
        """Have a hanging kernel print what each CPU does and which tasks are blocked (sysrq l, w)."""
        with contextlib.suppress(BrokenError):
            for key in _SYSRQ_KEYS:
                keys = [{"type": "qcode", "data": name} for name in ("alt", "sysrq", key)]
                self.qmp("send-key", keys=keys)
                time.sleep(_SYSRQ_WAIT_S)

    def _end_processes(self, launched: Launched) -> None:
        sockets = launched.sockets
        with contextlib.suppress(OSError):
            sockets.supervisor.shutdown(socket.SHUT_WR)
        try:
            launched.supervisor.wait(_STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            launched.supervisor.kill()  # its children follow by PR_SET_PDEATHSIG
            launched.supervisor.wait()
        if self._journal is not None and threading.current_thread() is not self._journal:
            # what has arrived is still read, then the reader sees the end
            with contextlib.suppress(OSError):
                sockets.journal.shutdown(socket.SHUT_RD)
            self._journal.join()
        if self._qmp is not None:
            self._qmp.close()
        sockets.close()
        shutil.rmtree(launched.workdir, ignore_errors=True)
