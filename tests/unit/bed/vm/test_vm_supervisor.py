"""Whatever ends first - a child, the bed, its process, the supervisor itself - nothing is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gdrstorm.bed.vm import supervisor

SCRIPT = supervisor.__file__
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
LIMIT_S = 60.0


def process(tmp_path: Path, name: str, argv: list[str], **changes: object) -> dict[str, object]:
    base = {"name": name, "argv": argv, "env": {}, "log": str(tmp_path / "log"), "fds": []}
    return {**base, "wait": [], **changes}


def wait_until(what: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def is_gone(pid: int) -> bool:
    """No such process, or one that only waits to be reaped by a parent that is not ours."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


class Running:
    """A supervisor as the bed starts it."""

    def __init__(self, tmp_path: Path, processes: list[dict[str, object]]) -> None:
        self.directory = tmp_path / "work"
        self.directory.mkdir()
        self.channel, theirs = socket.socketpair()
        self.channel.settimeout(LIMIT_S)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", SCRIPT, str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        spec = {
            "directory": str(self.directory),
            "remove": [str(self.directory)],
            "remove_if_orphaned": [str(tmp_path / "logs")],
            "processes": processes,
            "wait_s": 30.0,
        }
        self.channel.sendall(json.dumps(spec).encode() + b"\n")
        self._lines = self.channel.makefile("rb")

    def event(self) -> dict[str, Any]:
        line = self._lines.readline()
        assert line, "the supervisor closed its channel"
        event: dict[str, Any] = json.loads(line)
        return event

    def close(self) -> None:
        self._lines.close()
        self.channel.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def begin(*processes: dict[str, object]) -> Running:
        running.append(Running(tmp_path, list(processes)))
        return running[-1]

    yield begin
    for one in running:
        one.close()
        one.process.kill()
        one.process.wait()


def test_exit_is_reported_and_ends_the_rest(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code = "import os, sys; sys.stdin.read(); os._exit(7)"
    run = start(
        process(tmp_path, "model", SLEEP), process(tmp_path, "qemu", [sys.executable, "-c", code])
    )
    model = run.event()
    assert (model["event"], model["name"]) == ("started", "model")
    assert run.event()["name"] == "qemu"
    assert run.event() == {"event": "exited", "name": "qemu", "status": 7}
    run.close()
    assert run.process.wait(LIMIT_S) == 0
    assert is_gone(model["pid"])
    assert not run.directory.exists()


def test_closed_channel_ends_everything(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "logs").mkdir()
    run = start(process(tmp_path, "model", SLEEP), process(tmp_path, "qemu", SLEEP))
    pids = [run.event()["pid"], run.event()["pid"]]
    run.close()
    assert run.process.wait(LIMIT_S) == 0
    assert (tmp_path / "logs").exists()
    assert all(is_gone(pid) for pid in pids)
    assert not run.directory.exists()


def test_killed_supervisor_takes_its_children_along(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run = start(process(tmp_path, "model", SLEEP), process(tmp_path, "qemu", SLEEP))
    pids = [run.event()["pid"], run.event()["pid"]]
    run.process.kill()
    run.process.wait()
    assert wait_until(lambda: all(is_gone(pid) for pid in pids))


def test_killed_parent_leaves_nothing(tmp_path: Path) -> None:
    """The parent dies of SIGKILL while another process still holds a copy of its channel."""
    directory = tmp_path / "work"
    directory.mkdir()
    (tmp_path / "logs").mkdir()
    spec = {
        "directory": str(directory),
        "remove": [str(directory)],
        "remove_if_orphaned": [str(tmp_path / "logs")],
        "processes": [process(tmp_path, "qemu", SLEEP)],
        "wait_s": 5,
    }
    code = f"""
        import os, socket, subprocess, sys, time
        ours, theirs = socket.socketpair()
        child = subprocess.Popen([sys.executable, "-I", "-S", {SCRIPT!r}, str(theirs.fileno()),
                                  str(os.getpid())], pass_fds=[theirs.fileno()])
        ours.sendall({json.dumps(spec).encode()!r} + b"\\n")
        line = ours.recv(4096).decode().strip()
        if os.fork() == 0:
            os.close(1)
            time.sleep(20)
        print(child.pid, line, flush=True)
        time.sleep(600)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid, line = parent.stdout.readline().split(" ", 1)
    pids = [int(pid), json.loads(line)["pid"]]
    assert not any(is_gone(pid) for pid in pids)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_until(lambda: all(is_gone(pid) for pid in pids) and not directory.exists())
    assert wait_until(lambda: not (tmp_path / "logs").exists())


def test_next_process_waits_for_the_sockets_of_the_one_before(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "work/control.sock"
    code = f"import time; time.sleep(0.2); open({str(path)!r}, 'w'); time.sleep(600)"
    model = process(tmp_path, "model", [sys.executable, "-c", code], wait=[str(path)])
    check = f"import os, sys; sys.exit(0 if os.path.exists({str(path)!r}) else 1)"
    run = start(model, process(tmp_path, "qemu", [sys.executable, "-c", check]))
    run.event()
    run.event()
    assert run.event() == {"event": "exited", "name": "qemu", "status": 0}


def test_model_that_dies_at_once_is_reported_and_qemu_not_started(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    dying = process(tmp_path, "model", [sys.executable, "-c", "raise SystemExit(9)"], wait=["/no"])
    run = start(dying, process(tmp_path, "qemu", SLEEP))
    run.event()
    assert run.event() == {"event": "exited", "name": "model", "status": 9}
    assert run.event()["event"] == "stopped"
    assert run.process.wait(LIMIT_S) == 0


def test_missing_program_is_reported(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run = start(process(tmp_path, "qemu", ["/nonexistent/qemu"]))
    event = run.event()
    assert event["event"] == "failed" and "/nonexistent/qemu" in event["error"]


def test_children_do_not_ignore_sigterm(start, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run = start(process(tmp_path, "model", SLEEP), process(tmp_path, "qemu", SLEEP))
    model = run.event()
    run.event()
    os.kill(model["pid"], signal.SIGTERM)
    assert run.event() == {"event": "exited", "name": "model", "status": -signal.SIGTERM}
