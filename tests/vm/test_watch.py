"""Real faults planted in the bed, found there by the classifier and the witnesses, with the right device.

One guest for all, in the order written; each test looks only at what came after its own marker. What
no emulation can cause (Xid) is written through /dev/kmsg and must come out as synthetic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from gdrstorm.bed.connectx.control import ControlClient
from gdrstorm.bed.connectx.plant import CommandPlant, HealthPlant, Mishap, UmrPlant
from gdrstorm.bed.connectx.prm import Op, Status
from gdrstorm.bed.vm import Bed, BedOptions
from gdrstorm.kmsg.faults import classify
from gdrstorm.kmsg.record import parse_lines
from gdrstorm.model.event import Event, EventClass, Severity

pytestmark = pytest.mark.vm

ROOT: Final = Path(__file__).parents[2]
ENV: Final = {"PYTHONPATH": "/gdrstorm/lib"}
WATCH: Final = "/gdrstorm/share/vm/guest_watch.py"
PLANT: Final = "/gdrstorm/share/vm/guest_plant.py"
HCA: Final = "0000:01:00.0"
# TCG on a busy machine is slow; these only end what would never end.
COMMAND_S: Final = 300.0
WAIT_S: Final = 180.0

Wanted = Callable[[Event], bool]


class Guest:
    """The bed, and the events of its log since the last `mark`."""

    def __init__(self, bed: Bed, control: ControlClient) -> None:
        self.bed = bed
        self.control = control
        self._marker = ""
        self._marks = 0

    def sh(self, command: str) -> str:
        result = self.bed.run(["sh", "-c", command], timeout_s=COMMAND_S)
        return (result.stdout + result.stderr).decode(errors="replace")

    def python(self, script: str, *arguments: str) -> str:
        result = self.bed.run(["python3", script, *arguments], env=ENV, timeout_s=COMMAND_S)
        assert result.status == 0, result.stderr.decode(errors="replace")
        return result.stdout.decode()

    def mark(self) -> None:
        self._marks += 1
        self._marker = f"gdrstorm watch test {self._marks} begins"
        self.sh(f"echo '{self._marker}' > /dev/kmsg")

    def events(self, *, all_of_it: bool = False) -> list[Event]:
        arguments = [] if all_of_it else [self._marker]
        lines = self.python(WATCH, "events", *arguments).splitlines()
        return [msgspec.json.decode(line, type=Event) for line in lines]

    def wait(self, wanted: Wanted) -> Event:
        """Until such an event is in the log."""
        deadline = time.monotonic() + WAIT_S
        while True:
            found = self.events()
            for event in found:
                if wanted(event):
                    return event
            assert time.monotonic() < deadline, found
            time.sleep(1)

    def console(self) -> str:
        """What the guest's console said since the last `mark`."""
        text = self.bed.console_path.read_text(encoding="utf-8", errors="replace")
        return text.rpartition(self._marker)[2]

    def faults(self) -> list[tuple[str, str | None, str | None, str]]:
        return [
            (event.cls.value, event.device, event.code, event.severity.value)
            for event in self.events()
            if event.is_fault
        ]


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    options = BedOptions(
        hca=1,
        bars=(1 << 20,),
        edu=True,
        aer=True,
        share=ROOT / "tests",
        boot_timeout_s=400,
        hang_s=180,
    )
    with (
        Bed(options, run_dir=tmp_path_factory.mktemp("watch")) as bed,
        ControlClient.connect(bed.control, timeout_s=60) as control,
    ):
        yield Guest(bed, control)


@pytest.fixture
def guest(booted: Guest) -> Guest:
    booted.control.clear()
    booted.mark()
    return booted


def test_boot_and_driver_load_are_silent(booted: Guest) -> None:
    assert booted.events(all_of_it=True) == []


def test_registrations_are_silent(guest: Guest) -> None:
    guest.python(PLANT, "register", "20")
    assert guest.events() == []


def test_iommu_fault_of_the_edu_device(guest: Guest) -> None:
    bdf = guest.python(WATCH, "edu").strip()
    event = guest.wait(lambda event: event.cls is EventClass.IOMMU)
    assert (event.device, event.severity) == (bdf, Severity.ERROR)
    assert event.code in {"0x06", "06"}
    assert int(event.detail("address") or "0", 16) == 0x2345000
    assert {event.cls for event in guest.events()} == {EventClass.IOMMU}


@pytest.mark.parametrize(
    ("error", "severity", "code"),
    [
        ("RCVR", Severity.CORRECTED, "RxErr"),
        ("COMP_TIME", Severity.ERROR, "CmpltTO"),
        ("DLP", Severity.FATAL, "DLP"),
    ],
)
def test_aer(guest: Guest, error: str, severity: Severity, code: str) -> None:
    port = guest.sh("ls -d /sys/bus/pci/devices/*/*:pcie*").split()
    answer = guest.bed.qmp(
        "human-monitor-command", command_line=f"pcie_aer_inject_error aer0 {error}"
    )
    assert "OK" in answer
    event = guest.wait(lambda event: event.cls is EventClass.AER and event.code == code)
    assert event.severity is severity
    assert event.device is not None
    assert any(event.device in path for path in port) or not port
    assert not event.incomplete


def test_command_failure_with_syndrome(guest: Guest) -> None:
    plant = CommandPlant(
        opcode=Op.ALLOC_PD, mishap=Mishap.FAIL, status=Status.LIMIT, syndrome=0xABCDEF
    )
    guest.control.plant(plant)
    guest.python(PLANT, "pd")
    assert guest.faults() == [("mlx5", HCA, "0xabcdef", "error")]


def test_umr_failure_is_a_kernel_warn(guest: Guest) -> None:
    guest.control.plant(UmrPlant(mishap=Mishap.FAIL))
    guest.python(PLANT, "register", "2")
    warn = guest.wait(lambda event: event.cls is EventClass.KERNEL_WARN)
    assert warn.code is not None
    assert warn.code.startswith("umr.c:")
    assert not warn.incomplete
    assert ("mlx5", None, "reg umr failed", "error") in guest.faults()


def test_health_syndrome(guest: Guest) -> None:
    guest.control.plant(HealthPlant(syndrome=0x10))
    event = guest.wait(lambda event: event.cls is EventClass.MLX5 and event.code == "0x10")
    assert event.device == HCA
    guest.control.plant(HealthPlant(syndrome=0))


def test_oom_in_a_cgroup(guest: Guest) -> None:
    guest.python(WATCH, "oom")
    (event,) = guest.events()
    assert (event.cls, event.severity, event.code) == (EventClass.OOM, Severity.ERROR, "oom-kill")
    assert not event.incomplete


def test_synthetic_xid(guest: Guest) -> None:
    guest.sh("echo 'NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.' > /dev/kmsg")
    (event,) = guest.events()
    assert (event.cls, event.code, event.device) == (EventClass.XID, "79", "0000:9b:00.0")
    assert event.synthetic


def test_hung_call(guest: Guest) -> None:
    guest.sh("echo 5 > /proc/sys/kernel/hung_task_timeout_secs")
    guest.control.plant(UmrPlant(mishap=Mishap.DROP))
    hanging = guest.bed.start_command(["python3", PLANT, "register"], env=ENV)
    hanging.write_stdin(b"")
    event = guest.wait(lambda event: event.cls is EventClass.HUNG_TASK and not event.incomplete)
    assert event.code == "mlx5r_umr_post_send_wait"
    guest.sh("echo 120 > /proc/sys/kernel/hung_task_timeout_secs")
    guest.control.plant(HealthPlant(syndrome=1, fatal=True))
    fatal = guest.wait(
        lambda event: event.cls is EventClass.MLX5 and event.severity is Severity.FATAL
    )
    assert fatal.device == HCA
    hanging.wait(COMMAND_S)


def test_witnesses_see_counters_and_removal(guest: Guest) -> None:
    bar = guest.sh(
        "for d in /sys/bus/pci/devices/*; do grep -q 0x1110 $d/device && basename $d; done"
    ).strip()
    watching = guest.bed.start_command(["python3", WATCH, "watch", "90", bar], env=ENV)
    watching.write_stdin(b"")
    time.sleep(20)
    guest.bed.qmp("human-monitor-command", command_line="pcie_aer_inject_error aer0 BAD_TLP")
    guest.bed.qmp("device_del", id="bar0")
    lines = watching.wait(COMMAND_S).stdout.decode().splitlines()
    assert "ready" in lines
    assert lines[-1] == "left 0"
    found = [msgspec.json.decode(line, type=Event) for line in lines if line.startswith("{")]
    keys = {(event.source.value, event.code) for event in found}
    assert ("aer-counter", "BadTLP") in keys
    assert ("uevent", "remove pci") in keys
    assert ("sysfs", "vanished") in keys
    assert all(event.device == bar for event in found if event.code == "vanished")


def test_suspend_is_silent(guest: Guest) -> None:
    """Read from the host, and last: the agent's port does not come back from a suspend."""
    guest.mark()
    suspend = "echo devices > /sys/power/pm_test; echo freeze > /sys/power/state"
    guest.bed.start_command(["sh", "-c", suspend]).write_stdin(b"")
    deadline = time.monotonic() + WAIT_S
    while "PM: suspend exit" not in (said := guest.console()):
        assert time.monotonic() < deadline, said
        time.sleep(1)
    assert classify(parse_lines(said.splitlines())) == []
