"""The guest's side of the exec channel: frames on a virtio-serial port to processes and back.

Runs as root under /init, standard library only, single-threaded around one selector; it blocks when
the host does not read, so output is never lost. It never interprets output and never powers off
unless asked.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import selectors
import signal
import socket
import struct
import sys
import termios
import time
from pathlib import Path
from typing import Any, NoReturn

from gdrstorm.bed.vm.guest.wire import (
    AGENT_PORT,
    MAX_PAYLOAD_BYTES,
    PORTS_DIR,
    Decoder,
    Frame,
    Kind,
    WireError,
    encode,
)

HEARTBEAT_S = 2.0
READY_PATH = Path("/run/gdrstorm/ready")  # made by stage2.sh once modules and network are there
_STEP_S = 0.01
_PORT_OPEN_TRIES = 10_000
_READY_TRIES = 20_000
_DRAIN_READS = 32  # a dead command's pipe holds at most a megabyte


class Command:
    """One running command: its process, its pipes (or terminal) and its unwritten input."""

    def __init__(self, request: int, pid: int, outputs: dict[int, Kind], stdin: int | None) -> None:
        self.request = request
        self.pid = pid
        self.outputs = outputs
        self.stdin = stdin
        self.pending = bytearray()
        self.eof = False
        self.status: int | None = None


class Agent:
    """Owns the port and every command started through it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._selector = selectors.DefaultSelector()
        self._decoder = Decoder()
        self._commands: dict[int, Command] = {}
        self._wake, wake_write = socket.socketpair()
        self._wake.setblocking(False)
        wake_write.setblocking(False)
        self._wake_write = wake_write
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(wake_write.fileno())

    def send(self, kind: Kind, request: int, payload: bytes) -> None:
        """Write one frame whole; blocks while the host does not read."""
        view = memoryview(encode(kind, request, payload))
        while view:
            view = view[os.write(self._port, view) :]

    def send_json(self, kind: Kind, request: int, value: dict[str, Any]) -> None:
        self.send(kind, request, json.dumps(value).encode())

    def serve(self) -> None:
        """Until SHUTDOWN or a broken port."""
        self._selector.register(self._port, selectors.EVENT_READ, self._on_port)
        self._selector.register(self._wake, selectors.EVENT_READ, self._on_child)
        self.send_json(Kind.READY, 0, describe_guest())
        next_beat = time.monotonic() + HEARTBEAT_S
        while True:
            for key, _ in self._selector.select(max(0.0, next_beat - time.monotonic())):
                if key.data(key.fd):
                    return
            if time.monotonic() >= next_beat:
                self.send_json(Kind.HEARTBEAT, 0, {"uptime_s": time.monotonic()})
                next_beat = time.monotonic() + HEARTBEAT_S

    def _on_port(self, port: int) -> bool:
        data = os.read(port, 65536)
        if not data:
            # The host end is closed for the moment: virtio-serial reports that as end of file.
            time.sleep(0.05)
        stop = False
        for frame in self._decoder.feed(data):
            stop = self._dispatch(frame) or stop
        return stop

    def _dispatch(self, frame: Frame) -> bool:
        command = self._commands.get(frame.request)
        if frame.kind is Kind.EXEC:
            self._start(frame.request, json.loads(frame.payload))
        elif frame.kind is Kind.SHUTDOWN:
            return True
        elif command is None:
            return False
        elif frame.kind is Kind.STDIN:
            self._queue_stdin(command, frame.payload)
        elif frame.kind is Kind.SIGNAL:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.pid, json.loads(frame.payload)["number"])
        elif frame.kind is Kind.RESIZE and command.stdin is not None:
            size = json.loads(frame.payload)
            set_window(command.stdin, size["rows"], size["columns"])
        return False

    def _start(self, request: int, spec: dict[str, Any]) -> None:
        try:
            command = (
                spawn_terminal(request, spec) if spec.get("tty") else spawn_pipes(request, spec)
            )
        except OSError as error:
            status = 127 if isinstance(error, FileNotFoundError) else 126
            text = f"cannot start {spec['argv'][0]}: {error.strerror}"
            self.send_json(Kind.EXIT, request, {"status": status, "error": text})
            return
        self._commands[request] = command
        for fd in command.outputs:
            self._selector.register(fd, selectors.EVENT_READ, self._on_output)
        self._reap()

    def _on_output(self, fd: int) -> bool:
        command = next(c for c in self._commands.values() if fd in c.outputs)
        try:
            data = os.read(fd, MAX_PAYLOAD_BYTES)
        except OSError:  # EIO: the last process left the terminal
            data = b""
        if data:
            self.send(command.outputs[fd], command.request, data)
        else:
            self._selector.unregister(fd)
            del command.outputs[fd]
            if fd != command.stdin:
                os.close(fd)
            self._finish(command)
        return False

    def _queue_stdin(self, command: Command, data: bytes) -> None:
        if command.stdin is None:
            return
        command.pending += data
        command.eof = command.eof or not data
        self._flush_stdin(command.stdin)

    def _flush_stdin(self, fd: int) -> bool:
        command = next((c for c in self._commands.values() if c.stdin == fd), None)
        if command is None:
            return False
        try:
            while command.pending:
                del command.pending[: os.write(fd, command.pending)]
        except BlockingIOError:
            if fd in command.outputs:
                command.pending.clear()  # a terminal drops what nobody reads, as real ones do
            elif fd not in self._selector.get_map():
                self._selector.register(fd, selectors.EVENT_WRITE, self._flush_stdin)
            return False
        except OSError:  # EPIPE: the command does not read any more
            command.eof = True
        if command.eof and not command.outputs.get(fd):
            self._close_stdin(command)
        elif fd in self._selector.get_map() and fd not in command.outputs:
            self._selector.unregister(fd)
        return False

    def _close_stdin(self, command: Command) -> None:
        if command.stdin is None:
            return
        if command.stdin in self._selector.get_map():
            self._selector.unregister(command.stdin)
        os.close(command.stdin)
        command.stdin = None

    def _on_child(self, fd: int) -> bool:
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(4096)
        self._reap()
        return False

    def _reap(self) -> None:
        for command in list(self._commands.values()):
            if command.status is None:
                pid, status = os.waitpid(command.pid, os.WNOHANG)
                if pid:
                    command.status = os.waitstatus_to_exitcode(status)
                    self._finish(command)

    def _finish(self, command: Command) -> None:
        """Report the end once the process is gone and its output is drained."""
        if command.status is None:
            return
        self._drain(command)
        self._close_stdin(command)
        del self._commands[command.request]
        self.send_json(Kind.EXIT, command.request, {"status": command.status})

    def _drain(self, command: Command) -> None:
        """Read what the dead command left.

        A background child that keeps the pipe does not delay the end.
        """
        for fd in list(command.outputs):
            os.set_blocking(fd, False)
            with contextlib.suppress(OSError):
                for _ in range(_DRAIN_READS):
                    data = os.read(fd, MAX_PAYLOAD_BYTES)
                    if not data:
                        break
                    self.send(command.outputs[fd], command.request, data)
            self._selector.unregister(fd)
            del command.outputs[fd]
            if fd != command.stdin:
                os.close(fd)


def describe_guest() -> dict[str, Any]:
    """What the host is told once: kernel release, RDMA devices, uptime."""
    try:
        rdma = sorted(path.name for path in Path("/sys/class/infiniband").iterdir())
    except FileNotFoundError:
        rdma = []
    return {"kernel": os.uname().release, "rdma": rdma, "uptime_s": time.monotonic()}


def set_window(fd: int, rows: int, columns: int) -> None:
    """Tell a terminal its size."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _exec(spec: dict[str, Any], errors: int) -> NoReturn:
    """In the child: become the command, or send the errno through `errors` (close-on-exec)."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(spec.get("cwd") or "/root")
        os.execvpe(spec["argv"][0], spec["argv"], {**os.environ, **spec.get("env", {})})
    except OSError as error:
        os.write(errors, struct.pack("i", error.errno or 0))
    finally:
        os._exit(127)


def _check_exec(errors: int, pid: int) -> None:
    data = os.read(errors, 4)
    os.close(errors)
    if data:
        os.waitpid(pid, 0)
        number = struct.unpack("i", data)[0]
        raise OSError(number, os.strerror(number))


def spawn_pipes(request: int, spec: dict[str, Any]) -> Command:
    """Start a command with three pipes in a session of its own.

    OSError when it cannot be executed.
    """
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    exec_read, exec_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        for source, target in ((in_read, 0), (out_write, 1), (err_write, 2)):
            os.dup2(source, target)
        _exec(spec, exec_write)
    for fd in (in_read, out_write, err_write, exec_write):
        os.close(fd)
    try:
        _check_exec(exec_read, pid)
    except OSError:
        for fd in (in_write, out_read, err_read):
            os.close(fd)
        raise
    os.set_blocking(in_write, False)
    return Command(request, pid, {out_read: Kind.STDOUT, err_read: Kind.STDERR}, in_write)


def spawn_terminal(request: int, spec: dict[str, Any]) -> Command:
    """Start a command on a terminal of its own. OSError when it cannot be executed."""
    exec_read, exec_write = os.pipe()
    pid, terminal = pty.fork()
    if pid == 0:
        _exec(spec, exec_write)
    os.close(exec_write)
    try:
        _check_exec(exec_read, pid)
    except OSError:
        os.close(terminal)
        raise
    os.set_blocking(terminal, False)
    set_window(terminal, spec.get("rows", 24), spec.get("columns", 80))
    return Command(request, pid, {terminal: Kind.STDOUT}, terminal)


def open_port(name: str) -> int:
    """Open a virtio-serial port; waits for the driver a bounded time."""
    path = f"{PORTS_DIR}/{name}"
    for _ in range(_PORT_OPEN_TRIES):
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        time.sleep(_STEP_S)
    raise FileNotFoundError(path)


def wait_ready() -> None:
    """Until stage2.sh has set the guest up, which goes on while this program starts."""
    for _ in range(_READY_TRIES):
        if READY_PATH.exists():
            return
        time.sleep(_STEP_S)
    raise TimeoutError(str(READY_PATH))


def main(argv: list[str]) -> int:
    """Serve the guest's port, or the descriptor that was named, until shutdown. 1 when it breaks."""
    try:
        agent = Agent(int(argv[0]) if argv else open_port(AGENT_PORT))
        if not argv:
            wait_ready()
        agent.serve()
    except (WireError, OSError) as error:
        print(f"gdrstorm agent: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
