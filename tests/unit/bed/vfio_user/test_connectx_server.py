"""The device model as a process: sockets, signals, and the death of its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gdrstorm.bed.connectx.control import ControlClient
from gdrstorm.bed.connectx.options import LinkLayer
from gdrstorm.bed.connectx.server import parse_arguments

PACKAGE_ROOT = Path(__file__).resolve().parents[4] / "harness"


def command(directory: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "gdrstorm.bed.connectx.server"),
        *("--socket", str(directory / "a.sock"), "--socket", str(directory / "b.sock")),
        *("--control", str(directory / "c.sock"), "--link-layer", "infiniband"),
    ]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
    made = subprocess.Popen(command(tmp_path), stdout=subprocess.PIPE, env=environment)
    yield made
    made.kill()
    made.wait()
    assert made.stdout is not None
    made.stdout.close()


def test_ready_serves_two_functions_and_quit_removes_the_sockets(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    with ControlClient.connect(tmp_path / "c.sock") as client:
        status = client.status()
        assert status.pid == process.pid
        assert [port.path for port in status.ports] == [
            str(tmp_path / "a.sock"),
            str(tmp_path / "b.sock"),
        ]
        client.quit()
    assert process.wait(20) == 0
    assert list(tmp_path.iterdir()) == []


def test_sigterm_removes_the_sockets(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert list(tmp_path.iterdir()) == []


def test_dies_with_its_parent(tmp_path: Path) -> None:
    """The parent is killed, so nobody tells the process."""
    script = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen({command(tmp_path)!r})\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment
    )
    assert parent.stdout is not None
    parent.stdout.readline()
    with ControlClient.connect(tmp_path / "c.sock", wait_s=20) as client:
        client.status()
    parent.kill()
    parent.wait()
    wait_for(lambda: not list(tmp_path.iterdir()))
    parent.stdout.close()


def test_a_socket_that_is_taken_is_told(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert process.stdout is not None
    process.stdout.readline()
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
    second = subprocess.run(
        command(tmp_path), capture_output=True, env=environment, text=True, check=False
    )
    assert second.returncode == 2
    assert "somebody does already" in second.stderr
    assert process.poll() is None
    assert (tmp_path / "a.sock").exists()


def test_arguments() -> None:
    options = parse_arguments(["--socket", "a", "--control", "c"])
    assert options.link_layer is LinkLayer.ETHERNET
    assert options.sockets == (Path("a"),)
    with pytest.raises(SystemExit):
        parse_arguments(["--control", "c"])
