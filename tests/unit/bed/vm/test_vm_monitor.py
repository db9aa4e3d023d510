"""How a bed ended is told apart: panic, hang, dead QEMU, dead model, dead supervisor, time."""

from __future__ import annotations

import json
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gdrstorm.bed.vm import failures, monitor
from gdrstorm.bed.vm.console import ConsoleTail
from gdrstorm.bed.vm.guest.wire import Kind, encode
from gdrstorm.bed.vm.options import BedOptions

OPTIONS = BedOptions(hca=0, boot_timeout_s=60, hang_s=60)
PANIC_LINE = b"[    9.1] Kernel panic - not syncing: sysrq triggered crash\r\n"
LIMIT_S = 30.0


class Far:
    """The far ends: guest agent, console and supervisor."""

    def __init__(self, options: BedOptions) -> None:
        pairs = [socket.socketpair() for _ in range(2)]
        self.agent, self.supervisor = (pair[1] for pair in pairs)
        self.seen: list[bytes] = []
        self._directory = tempfile.TemporaryDirectory()
        self._console_path = Path(self._directory.name) / "console"
        self._tail = ConsoleTail(self._console_path)
        self.monitor = monitor.Monitor(
            options,
            Path("/run/console.log"),
            pairs[0][0],
            self._tail,
            pairs[1][0],
            self.seen.append,
        )
        self._all = [end for pair in pairs for end in pair]

    def say(self, data: bytes) -> None:
        """On the console."""
        with self._console_path.open("ab") as file:
            file.write(data)

    def ready(self) -> None:
        self.agent.sendall(encode(Kind.READY, 0, b'{"kernel": "7.3"}'))
        assert self.monitor.ready.wait(LIMIT_S)

    def event(self, **event: object) -> None:
        self.supervisor.sendall(json.dumps(event).encode() + b"\n")

    def end(self) -> failures.BedFailure:
        """The failure, found by somebody who waits for a command."""
        queue = self.monitor.open_queue(1)
        while (frame := queue.get(LIMIT_S)) is not None:
            assert frame
        assert self.monitor.failure is not None
        return self.monitor.failure

    def close(self) -> None:
        self.monitor.stop()
        for end in self._all:
            end.close()
        self._tail.close()
        self._directory.cleanup()


@pytest.fixture
def far() -> Iterator[Far]:
    made = Far(OPTIONS)
    yield made
    made.close()


def made_with(**changes: object) -> Far:
    return Far(msgspec.structs.replace(OPTIONS, **changes))


def test_ready_carries_what_the_guest_says(far: Far) -> None:
    far.ready()
    assert far.monitor.guest == {"kernel": "7.3"}
    assert far.monitor.failure is None


def test_frames_reach_the_command_they_belong_to(far: Far) -> None:
    first, second = far.monitor.open_queue(1), far.monitor.open_queue(2)
    far.agent.sendall(encode(Kind.STDOUT, 2, b"two") + encode(Kind.STDOUT, 1, b"one"))
    frame = first.get(LIMIT_S)
    assert frame is not None and frame.payload == b"one"
    frame = second.get(LIMIT_S)
    assert frame is not None and frame.payload == b"two"
    with pytest.raises(TimeoutError):
        first.get(0.01)


def test_panic_then_exit(far: Far) -> None:
    far.ready()
    far.say(b"Oops\r\n" + PANIC_LINE[:20])
    far.say(PANIC_LINE[20:])
    far.event(event="exited", name="qemu", status=0)
    failure = far.end()
    assert isinstance(failure, failures.GuestPanicError)
    assert "sysrq triggered crash" in str(failure)
    assert failure.console_path == Path("/run/console.log")
    assert failure.exit_code == 5
    assert b"".join(far.seen).endswith(PANIC_LINE)


def test_panicked_guest_that_stays_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "PANIC_GRACE_S", 0.05)
    far = made_with()
    far.say(PANIC_LINE)
    assert isinstance(far.end(), failures.GuestPanicError)
    far.close()


def test_panic_on_the_console_beats_the_exit_that_came_first(far: Far) -> None:
    far.ready()
    far.say(PANIC_LINE)
    far.event(event="exited", name="qemu", status=0)
    assert isinstance(far.end(), failures.GuestPanicError)


@pytest.mark.parametrize(
    ("event", "kind", "code", "text"),
    [
        ({"name": "qemu", "status": 0}, failures.GuestEndedError, 5, "by itself"),
        ({"name": "qemu", "status": -9}, failures.QemuDiedError, 3, "signal 9"),
        ({"name": "qemu", "status": 1}, failures.QemuDiedError, 3, "status 1"),
        ({"name": "model", "status": -11}, failures.ModelDiedError, 3, "signal 11"),
    ],
)
def test_exits(
    far: Far, event: dict[str, object], kind: type[Exception], code: int, text: str
) -> None:
    far.ready()
    far.event(event="exited", **event)
    failure = far.end()
    assert type(failure) is kind
    assert failure.exit_code == code
    assert text in str(failure) and "/run/console.log" in str(failure)


def test_failed_start(far: Far) -> None:
    far.event(event="failed", name="qemu", error="No such file")
    assert "No such file" in str(far.end())
    assert far.monitor.ready.is_set()


def test_dead_supervisor(far: Far) -> None:
    far.ready()
    far.supervisor.close()
    assert isinstance(far.end(), failures.SupervisorDiedError)


def test_silence_is_a_hang_only_after_boot() -> None:
    far = made_with(hang_s=0.1)
    far.ready()
    failure = far.end()
    assert isinstance(failure, failures.GuestHangError)
    assert failure.outcome is failures.Outcome.HANG
    far.close()


def test_heartbeats_keep_it_alive() -> None:
    far = made_with(hang_s=0.4)
    far.ready()
    for _ in range(12):
        time.sleep(0.05)
        far.agent.sendall(encode(Kind.HEARTBEAT, 0, b"{}"))
    assert far.monitor.failure is None
    far.close()


def test_slow_reader_is_not_a_hang() -> None:
    far = made_with(hang_s=0.2)
    far.ready()
    queue = far.monitor.open_queue(1)
    frame = encode(Kind.STDOUT, 1, b"x")
    far.agent.sendall(frame * (monitor._QUEUE_FRAMES + 10))
    time.sleep(0.5)
    assert far.monitor.failure is None
    for _ in range(monitor._QUEUE_FRAMES + 10):
        assert queue.get(LIMIT_S) is not None
    assert isinstance(far.end(), failures.GuestHangError)
    far.close()


def test_boot_limit() -> None:
    far = made_with(boot_timeout_s=0.05)
    failure = far.end()
    assert isinstance(failure, failures.BootError)
    assert far.monitor.ready.is_set()
    far.close()


def test_bed_limit() -> None:
    far = made_with(timeout_s=0.05)
    far.ready()
    assert isinstance(far.end(), failures.BedTimeoutError)
    far.close()


def test_broken_channel(far: Far) -> None:
    far.ready()
    far.agent.sendall(b"\xff" * 100)
    assert "channel is broken" in str(far.end())


def test_our_own_fault_is_not_a_hang() -> None:
    def fail(_: bytes) -> None:
        raise RuntimeError("callback broke")

    far = made_with()
    far.monitor._on_console = fail
    far.say(b"text")
    assert "callback broke" in str(far.end())
    far.close()


def test_process_ids(far: Far) -> None:
    far.event(event="started", name="qemu", pid=42)
    far.ready()
    deadline = time.monotonic() + LIMIT_S
    while "qemu" not in far.monitor.pids and time.monotonic() < deadline:
        time.sleep(0.005)
    assert far.monitor.pids == {"qemu": 42}


def test_queue_opened_after_the_end_is_closed(far: Far) -> None:
    far.event(event="exited", name="qemu", status=1)
    far.end()
    assert far.monitor.open_queue(9).get(LIMIT_S) is None
