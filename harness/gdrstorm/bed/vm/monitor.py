"""Watches one running bed: one thread over guest agent, console and supervisor.

Turns what it sees into frames for the commands and, in the end, into one BedFailure. Silence of the
guest counts only while this thread is willing to read, so a slow reader of output is never called a
hang.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from gdrstorm.bed.vm import failures
from gdrstorm.bed.vm.console import ConsoleTail
from gdrstorm.bed.vm.guest.wire import Decoder, Frame, Kind, WireError, encode
from gdrstorm.bed.vm.options import BedOptions

PANIC = b"Kernel panic - not syncing"
# After the panic line come a call trace and the reboot; a guest stuck there is ended.
PANIC_GRACE_S = 10.0
_TAIL_BYTES = 4096
_QUEUE_FRAMES = 256
_READ_BYTES = 65536


class CommandQueue:
    """Frames of one command, from the monitor's thread to the caller's."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._frames: deque[Frame] = deque()
        self._condition = threading.Condition()
        self._wake = wake
        self._closed = False

    @property
    def is_full(self) -> bool:
        return len(self._frames) >= _QUEUE_FRAMES

    def put(self, frame: Frame) -> None:
        with self._condition:
            self._frames.append(frame)
            self._condition.notify()

    def close(self) -> None:
        """No frame will come any more."""
        with self._condition:
            self._closed = True
            self._condition.notify()

    def get(self, timeout_s: float | None) -> Frame | None:
        """Next frame; None at the end of the bed. TimeoutError."""
        with self._condition:
            if not self._condition.wait_for(lambda: self._frames or self._closed, timeout_s):
                raise TimeoutError
            if not self._frames:
                return None
            was_full = self.is_full
            frame = self._frames.popleft()
        if was_full:
            self._wake()
        return frame


class Monitor:
    """The thread, its deadlines and the verdict on how the bed ended."""

    def __init__(
        self,
        options: BedOptions,
        console_path: Path,
        agent: socket.socket,
        console: ConsoleTail,
        supervisor: socket.socket,
        on_console: Callable[[bytes], None] | None,
    ) -> None:
        self._options = options
        self._console_path = console_path
        self._agent = agent
        self._console = console
        self._sockets = {"agent": agent, "supervisor": supervisor}
        self._on_console = on_console
        self._decoder = Decoder()
        self._queues: dict[int, CommandQueue] = {}
        self._lock = threading.Lock()
        self._tail = b""
        self._events = b""
        self._panic_at: float | None = None
        self._started = self._heard = time.monotonic()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._stopping = False
        self.ready = threading.Event()  # set when the guest is up, and when the bed ended before
        self.guest: dict[str, object] = {}
        self.pids: dict[str, int] = {}
        self.failure: failures.BedFailure | None = None
        self._thread = threading.Thread(target=self._run, name="gdrstorm-bed", daemon=True)
        self._thread.start()

    def open_queue(self, request: int) -> CommandQueue:
        queue = CommandQueue(self.wake)
        with self._lock:
            self._queues[request] = queue
            if self.failure is not None or self._stopping:
                queue.close()
        return queue

    def close_queue(self, request: int) -> None:
        with self._lock:
            self._queues.pop(request, None)

    def send(self, kind: Kind, request: int, payload: bytes) -> None:
        """One frame to the agent.

        Blocks while the guest does not read. A dead bed is reported by the queue.
        """
        with contextlib.suppress(OSError):
            self._agent.sendall(encode(kind, request, payload))

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"w")

    def stop(self) -> None:
        """End the thread; the caller ends the processes."""
        self._stopping = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        try:
            while not self._stopping and self.failure is None:
                self._step()
        except Exception as error:  # the harness's own fault must not look like a hang
            self._fail(failures.SupervisorDiedError, f"bed monitor failed: {error!r}")
        finally:
            with self._lock:
                for queue in self._queues.values():
                    queue.close()
            self.ready.set()

    def _step(self) -> None:
        with self._lock:
            congested = any(queue.is_full for queue in self._queues.values())
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        poll.register(self._console, select.POLLIN)
        names = {}
        for name, sock in self._sockets.items():
            if not (name == "agent" and congested):
                poll.register(sock.fileno(), select.POLLIN)
                names[sock.fileno()] = name
        for fd, _ in poll.poll(self._poll_ms()):
            if fd == self._wake_read:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, _READ_BYTES)
            elif fd == self._console.fileno():
                self._read_console()
            else:
                self._read(names[fd])
        if congested:
            self._heard = time.monotonic()
        self._check_deadlines()

    def _deadlines(self) -> list[tuple[float, type[failures.BedFailure], str]]:
        options = self._options
        found: list[tuple[float, type[failures.BedFailure], str]] = []
        if self._panic_at is not None:
            found.append(
                (self._panic_at + PANIC_GRACE_S, failures.GuestPanicError, self._panic_text())
            )
        elif self.ready.is_set():
            text = f"guest hangs: no heartbeat for {options.hang_s:g} s"
            found.append((self._heard + options.hang_s, failures.GuestHangError, text))
        else:
            text = f"guest did not come up within {options.boot_timeout_s:g} s"
            found.append((self._started + options.boot_timeout_s, failures.BootError, text))
        if options.timeout_s is not None:
            text = f"bed is older than its {options.timeout_s:g} s"
            found.append((self._started + options.timeout_s, failures.BedTimeoutError, text))
        return found

    def _poll_ms(self) -> int:
        nearest = min(at for at, _, _ in self._deadlines()) - time.monotonic()
        return max(0, int(nearest * 1000) + 1)

    def _check_deadlines(self) -> None:
        for at, failure, text in self._deadlines():
            if time.monotonic() >= at:
                self._fail(failure, text)

    def _read(self, name: str) -> None:
        try:
            data = self._sockets[name].recv(_READ_BYTES)
        except OSError:
            data = b""
        if not data and name != "supervisor":
            # QEMU closed its end: the supervisor tells why, at once
            del self._sockets[name]
        elif name == "agent":
            self._on_agent(data)
        elif data:
            self._on_events(data)
        else:
            self._fail(failures.SupervisorDiedError, "the bed's supervisor is gone")

    def _on_agent(self, data: bytes) -> None:
        self._heard = time.monotonic()
        try:
            frames = self._decoder.feed(data)
        except WireError as error:
            self._fail(failures.QemuDiedError, f"guest channel is broken: {error}")
            return
        for frame in frames:
            if frame.kind is Kind.READY:
                self.guest = json.loads(frame.payload)
                self.ready.set()
            with self._lock:
                queue = self._queues.get(frame.request)
            if queue is not None:
                queue.put(frame)

    def _read_console(self) -> None:
        data = self._console.read()
        if not data:
            return
        self._tail = (self._tail + data)[-_TAIL_BYTES:]
        if self._panic_at is None and PANIC in self._tail:
            self._panic_at = time.monotonic()
        if self._on_console is not None:
            self._on_console(data)

    def _panic_text(self) -> str:
        line = (
            self._tail[self._tail.rfind(PANIC) :].split(b"\n", 1)[0]
            if PANIC in self._tail
            else PANIC
        )
        return f"guest panicked: {line.decode(errors='replace').strip()}"

    def _on_events(self, data: bytes) -> None:
        *lines, self._events = (self._events + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            name = event.get("name")
            if event["event"] == "started":
                self.pids[name] = event["pid"]
            elif event["event"] == "failed":
                self._on_exit(name, event["error"])
            elif event["event"] == "exited":
                self._on_exit(name, _describe_status(event["status"]), event["status"])

    def _on_exit(self, name: str, what: str, status: int | None = None) -> None:
        self._read_console()  # what it still holds decides between a panic and an orderly end
        if name != "qemu":
            self._fail(failures.ModelDiedError, f"the device model ended: {what}")
        elif self._panic_at is not None:
            self._fail(failures.GuestPanicError, self._panic_text())
        elif status == 0:
            early = "before it was up" if not self.ready.is_set() else "by itself"
            self._fail(failures.GuestEndedError, f"guest ended {early}")
        else:
            self._fail(failures.QemuDiedError, f"QEMU ended: {what}")

    def _fail(self, failure: type[failures.BedFailure], text: str) -> None:
        if self.failure is None:
            self.failure = failure(text, self._console_path)


def _describe_status(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"
