"""The guest agent run here, over a socket instead of a virtio port: commands, output, signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gdrstorm
from gdrstorm.bed.vm.guest.wire import MAX_PAYLOAD_BYTES, Decoder, Frame, Kind, encode

LIMIT_S = 60.0


class Host:
    """The host's side of one agent process."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(LIMIT_S)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gdrstorm.bed.vm.guest.agent", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": str(Path(gdrstorm.__file__).parents[1])},
        )
        theirs.close()
        self._decoder = Decoder()
        self._frames: list[Frame] = []

    def send(self, kind: Kind, request: int, payload: bytes = b"") -> None:
        self._socket.sendall(encode(kind, request, payload))

    def exec(self, request: int, *argv: str, **spec: object) -> None:
        self.send(Kind.EXEC, request, json.dumps({"argv": argv, "cwd": "/", **spec}).encode())

    def frame(self) -> Frame:
        while True:
            while not self._frames:
                data = self._socket.recv(65536)
                assert data, "the agent is gone"
                self._frames += self._decoder.feed(data)
            frame = self._frames.pop(0)
            if frame.kind is not Kind.HEARTBEAT:
                return frame

    def collect(self, request: int) -> tuple[bytes, bytes, dict[str, Any]]:
        """Output, errors and the end of one command."""
        out = {Kind.STDOUT: b"", Kind.STDERR: b""}
        while True:
            frame = self.frame()
            assert frame.request == request
            if frame.kind is Kind.EXIT:
                return out[Kind.STDOUT], out[Kind.STDERR], json.loads(frame.payload)
            out[frame.kind] += frame.payload

    def close(self) -> None:
        self._socket.close()
        self.process.kill()
        self.process.wait()


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture(scope="module")
def agent() -> Iterator[Host]:
    host = Host()
    assert host.frame().kind is Kind.READY
    yield host
    host.close()


def test_streams_and_status(agent: Host) -> None:
    agent.exec(1, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert agent.collect(1) == (b"out\n", b"err\n", {"status": 7})


def test_signal_ends_as_negative_status(agent: Host) -> None:
    agent.exec(2, "sh", "-c", "kill -9 $$")
    assert agent.collect(2)[2] == {"status": -signal.SIGKILL}


@pytest.mark.parametrize(
    ("argv", "status"), [(["/nonexistent/program"], 127), (["/etc/hostname"], 126)]
)
def test_what_cannot_start_says_why(agent: Host, argv: list[str], status: int) -> None:
    agent.exec(3, *argv)
    out, err, end = agent.collect(3)
    assert (out, err, end["status"]) == (b"", b"", status)
    assert argv[0] in end["error"]


def test_environment_and_directory(agent: Host) -> None:
    agent.exec(4, "sh", "-c", "echo $WORD; pwd", env={"WORD": "storm"}, cwd="/tmp")
    assert agent.collect(4)[0] == b"storm\n/tmp\n"


def test_large_input_comes_back_whole(agent: Host) -> None:
    data = os.urandom(1 << 20)
    agent.exec(5, "cat")

    def feed() -> None:
        for offset in range(0, len(data), MAX_PAYLOAD_BYTES):
            agent.send(Kind.STDIN, 5, data[offset : offset + MAX_PAYLOAD_BYTES])
        agent.send(Kind.STDIN, 5)

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    got, _, end = agent.collect(5)
    feeder.join(LIMIT_S)
    assert end == {"status": 0}
    assert got == data


def test_binary_output_is_untouched(agent: Host) -> None:
    agent.exec(
        6, sys.executable, "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 999)"
    )
    assert agent.collect(6)[0] == bytes(range(256)) * 999


def test_signal_reaches_the_whole_group(agent: Host) -> None:
    agent.exec(7, "sh", "-c", "sleep 600 & echo $!; wait")
    frame = agent.frame()
    agent.send(Kind.SIGNAL, 7, json.dumps({"number": signal.SIGTERM}).encode())
    assert agent.collect(7)[2] == {"status": -signal.SIGTERM}
    deadline = time.monotonic() + LIMIT_S
    while is_alive(int(frame.payload)):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_background_child_does_not_delay_the_end(agent: Host) -> None:
    agent.exec(8, "sh", "-c", "sleep 20 & echo $!; exit 3")
    out, _, end = agent.collect(8)
    os.kill(int(out), signal.SIGKILL)
    assert end == {"status": 3}


def test_commands_run_side_by_side(agent: Host) -> None:
    agent.exec(9, "cat")
    agent.exec(10, "echo", "second")
    assert agent.collect(10)[0] == b"second\n"
    agent.send(Kind.STDIN, 9, b"first")
    agent.send(Kind.STDIN, 9)
    assert agent.collect(9) == (b"first", b"", {"status": 0})


def test_input_to_a_command_that_does_not_read(agent: Host) -> None:
    agent.exec(11, "true")
    agent.send(Kind.STDIN, 11, bytes(MAX_PAYLOAD_BYTES))
    assert agent.collect(11)[2] == {"status": 0}
    agent.exec(12, "echo", "alive")
    assert agent.collect(12)[0] == b"alive\n"


def test_terminal_has_a_size_and_echoes(agent: Host) -> None:
    agent.exec(
        13, "sh", "-c", "stty size; read line; echo got $line", tty=True, rows=10, columns=70
    )
    agent.send(Kind.STDIN, 13, b"word\n")
    out, _, end = agent.collect(13)
    assert b"10 70\r\n" in out and b"got word\r\n" in out
    assert end == {"status": 0}


def test_shutdown_ends_the_agent() -> None:
    host = Host()
    host.frame()
    host.send(Kind.SHUTDOWN, 0)
    assert host.process.wait(LIMIT_S) == 0
    host.close()


def test_garbage_ends_the_agent() -> None:
    host = Host()
    host.frame()
    host._socket.sendall(b"\xff" * 64)
    assert host.process.wait(LIMIT_S) == 1
    host.close()
