"""The bed itself: what the guest is, how commands and journal get through, and every way it can end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import gdrstorm
from gdrstorm.bed.vm import (
    Bed,
    BedOptions,
    CommandTimeoutError,
    GuestEndedError,
    GuestHangError,
    GuestPanicError,
    ModelDiedError,
    Outcome,
    QemuDiedError,
    State,
    read_image,
)
from gdrstorm.bed.vm.image import modules_path
from gdrstorm.bed.vm.workdir import PREFIX

pytestmark = pytest.mark.vm

PACKAGE_ROOT = Path(gdrstorm.__file__).parents[1]
LIMIT_S = 120.0
BARE = BedOptions(hca=0)


def shell(bed: Bed, script: str) -> str:
    """Output of a script that must succeed."""
    result = bed.run(["sh", "-ec", script], timeout_s=LIMIT_S)
    assert result.status == 0, result
    return result.stdout.decode()


def wait_until(what: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def leftovers(bed: Bed) -> list[str]:
    """Processes, directories and mounts of a bed that ended."""
    left = [name for name, pid in bed.pids.items() if is_alive(pid)]
    workdir = bed._launched.workdir if bed._launched else None
    if workdir is not None and workdir.exists():
        left.append(str(workdir))
    return left + [line for line in Path("/proc/mounts").read_text().splitlines() if PREFIX in line]


def test_guest_has_its_devices(bed: Bed) -> None:
    assert bed.state is State.RUNNING
    assert bed.guest["rdma"] == ["mlx5_0", "rxe0"]
    text = shell(bed, "ibv_devinfo -d mlx5_0; ip -br addr; uname -r")
    assert "PORT_ACTIVE" in text and "10.9.0.1/24" in text
    assert str(bed.guest["kernel"]) in text


def test_bar_is_vfios_and_has_its_size(bed: Bed) -> None:
    script = """
        for d in /sys/bus/pci/devices/*; do
            [ "$(cat $d/vendor)$(cat $d/device)" = 0x1af40x1110 ] || continue
            basename $(readlink $d/driver); stat -c %s $d/resource2; ls /dev/vfio
        done"""
    lines = shell(bed, script).split()
    assert lines[:2] == ["vfio-pci", str(64 << 20)] and "vfio" in lines


def test_domain_is_identity(bed: Bed) -> None:
    text = shell(bed, "cat /sys/bus/pci/devices/0000:*/iommu_group/type | sort -u")
    assert text.split() == ["identity"]


def test_package_is_importable_and_file_systems_are_there(bed: Bed) -> None:
    text = shell(
        bed,
        "python3 -c 'import gdrstorm.bed.vm.options; print(gdrstorm.__version__)';"
        "gdrstorm --help > /dev/null;"
        "ls /sys/kernel/debug/dma_buf/bufinfo /dev/udmabuf; test -d /sys/kernel/tracing/events;"
        "test -d /dev/shm; test -c /dev/pts/ptmx; echo x > /root/file; cat /root/file",
    )
    assert text.split()[0] == gdrstorm.__version__
    assert text.split()[-1] == "x"


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 42", 42), ("kill -9 $$", 137)]
)
def test_status_passes_through(bed: Bed, script: str, status: int) -> None:
    assert bed.run(["sh", "-c", script], timeout_s=LIMIT_S).status == status


def test_output_streams(bed: Bed) -> None:
    """The guest goes on only after the host saw its first line."""
    command = bed.start_command(["sh", "-c", "echo ready; read x; echo got $x >&2"])
    seen: list[bytes] = []

    def on_stdout(data: bytes) -> None:
        seen.append(data)
        command.write_stdin(b"go\n")

    result = command.wait(LIMIT_S, on_stdout=on_stdout)
    assert seen == [b"ready\n"] and result.stderr == b"got go\n"


def test_megabytes_arrive_whole(bed: Bed) -> None:
    data = os.urandom(8 << 20)
    assert bed.run(["cat"], stdin=data, timeout_s=LIMIT_S).stdout == data


def test_timeout_kills_and_the_bed_lives(bed: Bed) -> None:
    with pytest.raises(CommandTimeoutError) as caught:
        bed.run(["sleep", "1000"], timeout_s=1)
    assert caught.value.killed
    assert bed.run(["true"], timeout_s=LIMIT_S).status == 0


def test_journal_is_whole_behind_a_slow_reader(bed: Bed) -> None:
    count = 20_000
    got: list[bytes] = []
    busy = [True]

    def slow(line: bytes) -> None:
        if busy and len(got) < 20:
            time.sleep(0.02)
        got.append(line)

    bed.journal(slow)
    writer = f"""
        import os
        port = os.open("/dev/virtio-ports/gdrstorm.journal", os.O_WRONLY)
        data = b"".join(b"%07d" % n + bytes(range(11, 64)) + b"\\n" for n in range({count}))
        while data:
            data = data[os.write(port, data[:65536]):]
    """
    assert bed.run(["python3", "-c", textwrap.dedent(writer)], timeout_s=LIMIT_S).status == 0
    assert bed.drain_journal(LIMIT_S)
    assert got == [b"%07d" % n + bytes(range(11, 64)) for n in range(count)]


def test_aer_injection_reaches_the_kernel(bed: Bed) -> None:
    answer = bed.qmp("human-monitor-command", command_line="pcie_aer_inject_error aer0 RCVR")
    assert "OK" in answer
    assert wait_until(lambda: "AER: Correctable" in shell(bed, "dmesg"))


def test_guest_clock_runs_at_the_hosts_pace(bed: Bed) -> None:
    command = bed.start_command(["sh", "-c", "for n in 1 2; do cat /proc/uptime; read x; done"])
    seen: list[tuple[float, float]] = []

    def on_stdout(data: bytes) -> None:
        seen.append((time.monotonic(), float(data.split()[0])))
        time.sleep(2)
        command.write_stdin(b"\n")

    assert command.wait(LIMIT_S, on_stdout=on_stdout).status == 0
    (host_0, guest_0), (host_1, guest_1) = seen
    assert 0.5 < (guest_1 - guest_0) / (host_1 - host_0) < 1.5


def test_kernel_log_reaches_the_console_file(bed: Bed) -> None:
    shell(bed, "for n in $(seq 1 200); do echo gdrstorm-test $n > /dev/kmsg; done")
    assert wait_until(lambda: b"gdrstorm-test 200" in bed.console_path.read_bytes())
    assert bed.console_path.read_bytes().count(b"gdrstorm-test ") >= 200


def test_idle_bed_is_idle(bed: Bed) -> None:
    """CPU time of the whole bed over two idle seconds stays far below one CPU's."""

    def ticks() -> int:
        fields = [Path(f"/proc/{pid}/stat").read_text().split() for pid in bed.pids.values()]
        return sum(int(one[13]) + int(one[14]) for one in fields)

    time.sleep(1)
    before, began = ticks(), time.monotonic()
    time.sleep(3)
    used_s = (ticks() - before) / os.sysconf("SC_CLK_TCK")
    assert used_s / (time.monotonic() - began) < 0.3


def test_panic(tmp_path: Path) -> None:
    with Bed(BARE, run_dir=tmp_path) as bed:
        with pytest.raises(GuestPanicError, match="sysrq triggered crash") as caught:
            bed.run(["sh", "-c", "echo c > /proc/sysrq-trigger; sleep 1000"], timeout_s=LIMIT_S)
        assert bed.outcome is Outcome.PANIC
    console = caught.value.console_path.read_bytes()
    assert b"Call Trace" in console and b"Kernel panic - not syncing" in console
    assert leftovers(bed) == []


def test_kernel_of_ones_own(tmp_path: Path) -> None:
    """A compressed image and a modules directory from outside the tree's own places."""
    record = read_image()
    modules = tmp_path / "modules" / record.kernel_release
    modules.parent.mkdir()
    modules.symlink_to(modules_path(record))
    kernel = tmp_path / "bzImage"
    kernel.symlink_to(modules_path(record) / "vmlinuz")
    options = BedOptions(hca=0, rxe=True, kernel=kernel, modules=modules)
    with Bed(options, run_dir=tmp_path / "run") as bed:
        assert bed.guest["rdma"] == ["rxe0"]
        assert shell(bed, "mount | grep -c ' /usr/lib/modules/'").strip() == "1"


def test_hang(tmp_path: Path) -> None:
    """The agent is stopped: the kernel lives, but nobody answers any more."""
    options = msgspec.structs.replace(BARE, hang_s=8.0)
    with Bed(options, run_dir=tmp_path) as bed:
        began = time.monotonic()
        with pytest.raises(GuestHangError, match="no heartbeat for 8 s"):
            bed.run(["sh", "-c", "kill -STOP $PPID"])
        assert time.monotonic() - began >= 8
        assert bed.outcome is Outcome.HANG
    assert b"sysrq: Show Blocked State" in bed.console_path.read_bytes()
    assert leftovers(bed) == []


def test_dead_device_model(tmp_path: Path) -> None:
    with Bed(BedOptions(hca=1), run_dir=tmp_path) as bed:
        command = bed.start_command(["sleep", "1000"])
        os.kill(bed.pids["model"], signal.SIGKILL)
        with pytest.raises(ModelDiedError, match="signal 9"):
            command.wait(LIMIT_S)
    assert leftovers(bed) == []
    assert (tmp_path / "console.log").stat().st_size


def test_guest_that_powers_off_then_dead_qemu(tmp_path: Path) -> None:
    with Bed(BARE, run_dir=tmp_path / "off") as bed, pytest.raises(GuestEndedError):
        bed.run(["busybox", "poweroff", "-f"], timeout_s=LIMIT_S)
    assert leftovers(bed) == []


CHILD = """
import sys
from pathlib import Path
from gdrstorm.bed.vm import Bed, BedOptions
bed = Bed(BedOptions(hca=0), run_dir=Path(sys.argv[1]))
print("made", flush=True)
bed.start()
print("up", flush=True)
bed.run(["sleep", "1000"])
"""


def start_child(run_dir: Path, temporary: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT), "TMPDIR": str(temporary)}
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(run_dir)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def bed_processes(run_dir: Path) -> list[int]:
    """Processes that name this run's directory or are its supervisor, by /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()
            environment = (path / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        is_ours = str(run_dir).encode() in words or str(run_dir.parent).encode() in environment
        if is_ours and is_alive(int(path.name)) and int(path.name) != os.getpid():
            found.append(int(path.name))
    return found


def has_qemu(run_dir: Path) -> bool:
    paths = [Path(f"/proc/{pid}/cmdline") for pid in bed_processes(run_dir)]
    return any(path.exists() and b"qemu-system" in path.read_bytes() for path in paths)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "SIGINT"])
def test_killed_parent_leaves_nothing(number: signal.Signals) -> None:
    """While QEMU boots: process, directory, sockets and mounts all go, whatever took the parent."""
    with tempfile.TemporaryDirectory(prefix="gdrt-") as directory:
        temporary, run_dir = Path(directory), Path(directory) / "run"
        child = start_child(run_dir, temporary)
        assert wait_until(lambda: has_qemu(run_dir)), child.communicate()
        assert list(temporary.glob(f"{PREFIX}*"))
        child.send_signal(number)
        child.communicate(timeout=LIMIT_S)
        assert wait_until(lambda: not bed_processes(run_dir))
        assert wait_until(lambda: not list(temporary.glob(f"{PREFIX}*")))
        assert PREFIX not in Path("/proc/mounts").read_text()


def test_dead_qemu_while_booting(tmp_path: Path) -> None:
    bed = Bed(BARE, run_dir=tmp_path, on_console=lambda _: kill_qemu(bed))
    with pytest.raises(QemuDiedError, match="signal 9"):
        bed.start()
    assert leftovers(bed) == []


def kill_qemu(bed: Bed) -> None:
    """At the first word on the console."""
    if "qemu" in bed.monitor.pids:
        os.kill(bed.monitor.pids["qemu"], signal.SIGKILL)


def test_exec_from_the_command_line(tmp_path: Path) -> None:
    code = "from gdrstorm.cli.bed import app; app()"
    argv = [sys.executable, "-c", code, "exec", "--hca", "0", "--run-dir", str(tmp_path)]
    argv += ["--share", str(Path(__file__).parent)]
    script = (
        "cat /gdrstorm/share/test_bed.py | wc -c; echo err >&2; touch /gdrstorm/share/x; exit 9"
    )
    done = subprocess.run(
        [*argv, "--", "sh", "-c", script],
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 9
    assert int(done.stdout) == Path(__file__).stat().st_size
    assert done.stderr.startswith("err\n") and "Read-only" in done.stderr
