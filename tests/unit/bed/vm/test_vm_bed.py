"""`Bed` over a guest agent that runs here instead of in a machine: results, limits, journal, ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_vm_build import IMAGE

import gdrstorm
from gdrstorm.bed.vm import (
    Bed,
    BedOptions,
    CommandTimeoutError,
    Outcome,
    QemuDiedError,
    State,
    launch,
)
from gdrstorm.bed.vm import bed as bed_module
from gdrstorm.bed.vm.options import Accel
from gdrstorm.errors import BrokenError, UnavailableError, UsageError

LIMIT_S = 60.0


class Fake:
    """What `launch` would start: an agent here, and our hand on the supervisor's channel."""

    def __init__(self) -> None:
        pairs = {name: socket.socketpair() for name in launch.Sockets.__struct_fields__}
        self.far = {name: pair[1] for name, pair in pairs.items()}
        self.sockets = launch.Sockets(**{name: pair[0] for name, pair in pairs.items()})
        agent = self.far["agent"].fileno()
        environment = {**os.environ, "PYTHONPATH": str(Path(gdrstorm.__file__).parents[1])}
        self.agent = subprocess.Popen(
            [sys.executable, "-m", "gdrstorm.bed.vm.guest.agent", str(agent)],
            pass_fds=[agent],
            env=environment,
        )
        # stands in for the supervisor: ends when its channel is shut down
        channel = self.far["supervisor"].fileno()
        code = f"import socket; socket.socket(fileno={channel}).recv(1)"
        self.supervisor = subprocess.Popen([sys.executable, "-c", code], pass_fds=[channel])

    def event(self, **event: object) -> None:
        self.far["supervisor"].sendall(json.dumps(event).encode() + b"\n")

    def close(self) -> None:
        for process in (self.agent, self.supervisor):
            process.kill()
            process.wait()
        for end in self.far.values():
            end.close()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(bed_module.image, "read_image", lambda: IMAGE)
    monkeypatch.setattr(bed_module, "choose_accel", lambda *_: Accel.TCG)
    made = Fake()

    def start(*_: object, **__: object) -> launch.Launched:
        work = tmp_path / "work"
        work.mkdir()
        return launch.Launched(
            workdir=work, sockets=made.sockets, supervisor=made.supervisor, control=work / "ctl"
        )

    monkeypatch.setattr(bed_module, "launch", start)
    yield made
    made.close()


@pytest.fixture
def bed(fake: Fake, tmp_path: Path) -> Iterator[Bed]:
    with Bed(BedOptions(hca=0), run_dir=tmp_path / "run") as made:
        yield made


def test_result(bed: Bed) -> None:
    result = bed.run(["sh", "-c", "echo out; echo err >&2; exit 5"], cwd="/", timeout_s=LIMIT_S)
    assert (result.status, result.stdout, result.stderr) == (5, b"out\n", b"err\n")
    assert bed.state is State.RUNNING and bed.accel is Accel.TCG


def test_status_of_a_signal_is_the_shells(bed: Bed) -> None:
    assert bed.run(["sh", "-c", "kill -TERM $$"], cwd="/").status == 128 + signal.SIGTERM
    assert bed.run(["/nonexistent"], cwd="/").status == 127


def test_output_streams_to_callbacks(bed: Bed) -> None:
    """The second half is written only after the first was called back."""
    seen: list[bytes] = []
    command = bed.start_command(["sh", "-c", "echo first; read x; echo $x"], cwd="/")

    def on_stdout(data: bytes) -> None:
        seen.append(data)
        if data == b"first\n":
            command.write_stdin(b"second\n")

    result = command.wait(LIMIT_S, on_stdout=on_stdout)
    assert b"".join(seen) == b"first\nsecond\n"
    assert result.stdout == b""


def test_large_input_and_output_at_once(bed: Bed) -> None:
    data = os.urandom(24 << 20)
    assert bed.run(["cat"], stdin=data, cwd="/", timeout_s=LIMIT_S).stdout == data


def test_timeout_kills_the_command_and_the_bed_lives(bed: Bed) -> None:
    with pytest.raises(CommandTimeoutError) as caught:
        bed.run(["sleep", "600"], timeout_s=0.2, cwd="/")
    assert caught.value.killed and caught.value.exit_code == 124
    assert bed.run(["true"], cwd="/").status == 0


def test_interrupted_wait_can_be_taken_up_again(bed: Bed) -> None:
    """As after Ctrl-C: the command is signalled and its end and last output still arrive."""
    script = "trap 'echo last; exit 3' INT; echo first; while :; do sleep 0.1; done"
    command = bed.start_command(["sh", "-c", script], cwd="/")

    def interrupt(_: bytes) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        command.wait(LIMIT_S, on_stdout=interrupt)
    time.sleep(0.2)
    command.signal(signal.SIGINT)
    result = command.wait(LIMIT_S)
    assert (result.status, result.stdout) == (3, b"last\n")


def test_command_that_will_not_die(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bed_module, "_KILL_GRACE_S", 0.1)
    monkeypatch.setattr(bed_module, "_SIGKILL", 0)
    with pytest.raises(CommandTimeoutError, match="inside the kernel"):
        bed.run(["sleep", "5"], timeout_s=0.1, cwd="/")


def test_end_of_the_machine_ends_the_command(bed: Bed, fake: Fake) -> None:
    command = bed.start_command(["sleep", "600"], cwd="/")
    fake.event(event="exited", name="qemu", status=-9)
    with pytest.raises(QemuDiedError, match="signal 9"):
        command.wait(LIMIT_S)
    assert bed.outcome is Outcome.QEMU_DIED
    with pytest.raises(QemuDiedError):
        bed.run(["true"])


def test_journal_lines_are_whole_whatever_the_writes(bed: Bed, fake: Fake) -> None:
    seen: list[bytes] = []
    bed.journal(seen.append)
    lines = [os.urandom(n).replace(b"\n", b"x") for n in (0, 1, 70_000, 300)]
    far = fake.far["journal"]
    for line in lines:
        far.sendall(line)
        far.sendall(b"\n")
    assert bed.drain_journal(LIMIT_S)
    assert seen == lines
    far.sendall(b"tail without newline")
    bed.close()
    assert seen[-1] == b"tail without newline"


def test_journal_waits_for_a_slow_reader_and_loses_nothing(bed: Bed, fake: Fake) -> None:
    count = 0

    def slow(line: bytes) -> None:
        nonlocal count
        assert int(line[:8]) == count
        count += 1

    total = 40_000
    writer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import os\nfor n in range({total}): os.write(1, b'%08d' % n + b'y' * 90 + b'\\n')",
        ],
        stdout=fake.far["journal"].fileno(),
    )
    assert writer.poll() is None
    bed.journal(slow)
    assert writer.wait(LIMIT_S) == 0
    assert bed.drain_journal(LIMIT_S)
    assert count == total


def test_journal_is_read_once(bed: Bed) -> None:
    bed.journal(lambda line: None)
    with pytest.raises(BrokenError, match="once"):
        bed.journal(lambda line: None)


def test_close_twice_and_use_after(bed: Bed, tmp_path: Path) -> None:
    bed.close()
    bed.close()
    assert bed.state is State.ENDED and bed.outcome is Outcome.CLOSED
    assert not (tmp_path / "work").exists()
    with pytest.raises(BrokenError, match="boots once"):
        bed.start()


def test_control_only_with_a_model(bed: Bed, tmp_path: Path) -> None:
    assert bed.control == tmp_path / "work/ctl"


def test_bad_options_are_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError):
        Bed(BedOptions(hca=9))


def test_no_bed_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UnavailableError, match="gdrstorm bed build"):
        Bed(BedOptions(hca=0)).start()


def test_logs_are_kept_only_on_failure(fake: Fake) -> None:
    with Bed(BedOptions(hca=0)) as bed:
        run_dir = bed.run_dir
        assert run_dir.is_dir()
    assert not run_dir.exists()


def test_logs_of_a_failure_stay(fake: Fake) -> None:
    with Bed(BedOptions(hca=0)) as bed:
        fake.event(event="exited", name="qemu", status=1)
        with pytest.raises(QemuDiedError) as caught:
            bed.run(["sleep", "600"], cwd="/")
    assert caught.value.console_path.parent.is_dir()
    for path in bed.run_dir.iterdir():
        path.unlink()
    bed.run_dir.rmdir()
