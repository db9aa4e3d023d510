"""Each plant causes in a stock kernel what docs/PLANTS.md says of it.

One guest for all, in the order written: the later plants end the driver's instance, and
`fresh_driver` removes and finds the function again before the next test. Nothing recovers from the
last two.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from gdrstorm.bed.connectx.control import ControlClient
from gdrstorm.bed.connectx.plant import (
    CommandPlant,
    CompletionPlant,
    Disaster,
    DisasterPlant,
    HealthPlant,
    Mishap,
    PageFaultPlant,
    Plant,
    StalePlant,
    UmrPlant,
)
from gdrstorm.bed.connectx.prm import Op, Status, Syndrome
from gdrstorm.bed.vm import Bed, BedOptions

pytestmark = pytest.mark.vm

ROOT: Final = Path(__file__).parents[2]
ENV: Final = {"PYTHONPATH": "/gdrstorm/lib"}
SCRIPT: Final = "/gdrstorm/share/vm/guest_plant.py"
# TCG on a busy machine is slow; these only end what would never end.
COMMAND_S: Final = 240.0
MESSAGE_S: Final = 120.0
RATE: Final = "/sys/class/infiniband/mlx5_0/ports/1/rate"


class Act(msgspec.Struct):
    """One line of guest_plant.py."""

    act: str
    status: str
    ms: float


class Guest:
    """The bed with its device model, and the kernel log since the last `mark`."""

    def __init__(self, bed: Bed, control: ControlClient) -> None:
        self.bed = bed
        self.control = control
        self._marker = ""
        self._marks = 0

    def sh(self, command: str) -> str:
        result = self.bed.run(["sh", "-c", command], timeout_s=COMMAND_S)
        return (result.stdout + result.stderr).decode(errors="replace")

    def mark(self) -> None:
        """What the kernel logged before does not count."""
        self._marks += 1
        self._marker = f"plant test {self._marks} begins"
        self.sh(f"echo '{self._marker}' > /dev/kmsg")

    def log(self) -> str:
        return self.sh("dmesg").rpartition(self._marker)[2]

    def wait_log(self, pattern: str) -> None:
        """Until the kernel log has a match."""
        deadline = time.monotonic() + MESSAGE_S
        while not re.search(pattern, log := self.log()):
            assert time.monotonic() < deadline, f"no {pattern!r} in:\n{log}"
            time.sleep(1)

    def act(self, *arguments: str) -> list[Act]:
        result = self.bed.run(["python3", SCRIPT, *arguments], env=ENV, timeout_s=COMMAND_S)
        assert result.status == 0, result.stderr.decode(errors="replace")
        return [msgspec.json.decode(line, type=Act) for line in result.stdout.splitlines()]

    def planted(self, plant: Plant, *arguments: str) -> list[Act]:
        """Arm a plant, act, see that it struck once, disarm."""
        number = self.control.plant(plant)
        acts = self.act(*arguments)
        struck = {report.number: report.struck for report in self.control.counts().plants}
        self.control.clear(number)
        assert struck[number] == 1
        return acts

    def fresh_driver(self) -> None:
        """A new instance of the driver on a device that is well."""
        self.control.clear()
        self.control.plant(DisasterPlant(disaster=Disaster.RETURN))
        self.control.plant(HealthPlant(syndrome=0))
        self.sh("echo 1 > /sys/bus/pci/devices/0000:01:00.0/remove")
        self.sh("echo 1 > /sys/bus/pci/rescan")
        deadline = time.monotonic() + MESSAGE_S
        while not self.sh(f"cat {RATE}").endswith("Gb/sec (1X QDR)\n"):
            assert time.monotonic() < deadline, self.log()
            time.sleep(1)


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    options = BedOptions(
        hca=1, bars=(1 << 20,), share=ROOT / "tests", boot_timeout_s=240, hang_s=120
    )
    with (
        Bed(options, run_dir=tmp_path_factory.mktemp("plants")) as bed,
        ControlClient.connect(bed.control, timeout_s=60) as control,
    ):
        yield Guest(bed, control)
        # A fault of the model would make every result here worthless.
        faults = [port.last_device_fault for port in control.status().ports if port.device_faults]
        assert faults == []


@pytest.fixture
def guest(booted: Guest) -> Guest:
    booted.control.clear()
    booted.mark()
    return booted


def statuses(acts: list[Act]) -> list[tuple[str, str]]:
    return [(act.act, act.status) for act in acts]


def test_nothing_planted(guest: Guest) -> None:
    """What the other tests compare with."""
    assert statuses(guest.act("register", "2")) == [("reg", "ok"), ("dereg", "ok")] * 2
    assert statuses(guest.act("bar-fault")) == [("write", "ok"), ("fault", "ok"), ("data", "ok")]
    assert not re.search(r"mlx5|WARNING|INFO: task", guest.log())


@pytest.mark.parametrize(
    ("status", "errno_name", "words"),
    [
        (Status.LIMIT, "ENOMEM", r"limits exceeded\(0x8\), syndrome \(0xabcdef\), err\(-12\)"),
        (Status.INTERNAL, "EIO", r"internal error\(0x1\), syndrome \(0xabcdef\), err\(-5\)"),
        (Status.RES_BUSY, "EBUSY", r"resource busy\(0x6\), syndrome \(0xabcdef\), err\(-16\)"),
    ],
)
def test_command_fail(guest: Guest, status: Status, errno_name: str, words: str) -> None:
    plant = CommandPlant(opcode=Op.ALLOC_PD, mishap=Mishap.FAIL, status=status, syndrome=0xABCDEF)
    assert statuses(guest.planted(plant, "pd")) == [("pd", errno_name)]
    assert re.search(rf"mlx5_cmd_out_err.*ALLOC_PD\(0x800\).*{words}", guest.log())
    assert statuses(guest.act("pd")) == [("pd", "ok")]


def test_command_delay(guest: Guest) -> None:
    plant = CommandPlant(opcode=Op.ALLOC_PD, mishap=Mishap.DELAY, delay_s=1.5)
    (act,) = guest.planted(plant, "pd")
    assert act.status == "ok"
    assert act.ms >= 1400  # the guest's clock is not the host's
    assert "mlx5" not in guest.log()


def test_umr_delay(guest: Guest) -> None:
    plant = UmrPlant(mishap=Mishap.DELAY, delay_s=2.0)
    registered, deregistered = guest.planted(plant, "register")
    assert (registered.status, deregistered.status) == ("ok", "ok")
    assert registered.ms >= 1900


def test_umr_fail(guest: Guest) -> None:
    acts = guest.planted(UmrPlant(mishap=Mishap.FAIL), "register", "2")
    assert statuses(acts) == [("reg", "EFAULT"), ("reg", "ok"), ("dereg", "ok")]
    log = guest.log()
    assert re.search(r"WARNING: .*drivers/infiniband/hw/mlx5/umr\.c", log)
    assert "reg umr failed (6). Trying to recover and resubmit" in log


@pytest.mark.parametrize(
    ("plant", "status"),
    [
        (
            CompletionPlant(syndrome=Syndrome.REMOTE_ACCESS),
            "completion with status 10, vendor 0x88",
        ),
        (
            CompletionPlant(syndrome=Syndrome.LOCAL_PROTECTION, vendor_syndrome=0x99),
            "completion with status 4, vendor 0x99",
        ),
        (
            CompletionPlant(syndrome=Syndrome.RETRY_EXCEEDED),
            "completion with status 12, vendor 0x81",
        ),
    ],
    ids=["remote-access", "local-protection", "retries"],
)
def test_completion(guest: Guest, plant: CompletionPlant, status: str) -> None:
    (act,) = guest.planted(plant, "write")
    assert act.status.startswith(status)
    assert "mlx5" not in guest.log()


def test_page_fault_delay(guest: Guest) -> None:
    plant = PageFaultPlant(mishap=Mishap.DELAY, delay_s=1.0)
    acts = guest.planted(plant, "bar-fault")
    assert statuses(acts) == [("write", "ok"), ("fault", "ok"), ("data", "ok")]
    assert acts[1].ms >= 950


def test_page_fault_fail(guest: Guest) -> None:
    first, second = guest.planted(PageFaultPlant(mishap=Mishap.FAIL), "bar-fault")
    assert first.status == "ok"
    assert second.status.startswith("completion with status 10")


def test_page_fault_drop(guest: Guest) -> None:
    first, second = guest.planted(PageFaultPlant(mishap=Mishap.DROP), "bar-fault")
    assert first.status == "ok"
    assert second.status.startswith("no completion")


def test_stale_write_while_revoked_is_a_stray_dma(guest: Guest) -> None:
    guest.control.forget()
    acts = guest.planted(StalePlant(delay_s=0.3), "bar-revoke", "4")
    assert statuses(acts) == [("write", "ok"), ("revoke", "ok")]
    (stray,) = guest.control.oracle().report.stray
    assert stray.planted and stray.write
    assert stray.unmapped_ago_ns is not None
    # Nothing but the device model saw it.
    assert "mlx5" not in guest.log()


def test_stale_write_after_the_revoke_is_corruption(guest: Guest) -> None:
    guest.control.forget()
    acts = guest.planted(StalePlant(delay_s=4.0), "bar-stale", "60")
    assert acts[-1].act == "bar"
    # 5a a5 "STALE!"
    assert acts[-1].status.startswith("5aa55354414c4521")
    assert guest.control.oracle().report.stray == ()


def test_health_report(guest: Guest) -> None:
    guest.control.plant(HealthPlant(syndrome=0x10))
    guest.wait_log(r"synd 0x10: High temperature")
    assert "Fatal error" not in guest.log()
    guest.control.plant(HealthPlant(syndrome=0))
    assert statuses(guest.act("pd")) == [("pd", "ok")]


def test_port_down_and_up(guest: Guest) -> None:
    guest.control.plant(DisasterPlant(disaster=Disaster.PORT_DOWN))
    guest.wait_log(r"eth0: Link down")
    guest.wait_log(r"mlx5_0: Port: 1 Link DOWN")
    guest.control.plant(DisasterPlant(disaster=Disaster.PORT_UP))
    guest.wait_log(r"eth0: Link up")
    guest.wait_log(r"mlx5_0: Port: 1 Link ACTIVE")


def test_short_process_wedge_only_takes_time(guest: Guest) -> None:
    guest.control.wedge(2.0)
    began = time.monotonic()
    assert guest.sh(f"cat {RATE}").endswith("Gb/sec (1X QDR)\n")
    assert time.monotonic() - began >= 1.5
    assert not guest.control.status().wedged
    assert "mlx5" not in guest.log()


def test_vanish_and_return(guest: Guest) -> None:
    guest.control.plant(DisasterPlant(disaster=Disaster.VANISH))
    guest.wait_log(r"Fatal error 1 detected")
    guest.control.plant(DisasterPlant(disaster=Disaster.RETURN))
    guest.wait_log(r"health recovery succeeded")
    guest.fresh_driver()
    assert statuses(guest.act("register")) == [("reg", "ok"), ("dereg", "ok")]


def test_wedged_device(guest: Guest) -> None:
    guest.control.plant(DisasterPlant(disaster=Disaster.WEDGE))
    guest.wait_log(r"device's health compromised - reached miss count")
    guest.control.plant(DisasterPlant(disaster=Disaster.RETURN))
    assert statuses(guest.act("pd")) == [("pd", "ok")]


def test_umr_drop_hangs_until_a_fatal_health_event(guest: Guest) -> None:
    guest.sh("echo 5 > /proc/sys/kernel/hung_task_timeout_secs")
    guest.control.plant(UmrPlant(mishap=Mishap.DROP))
    hanging = guest.bed.start_command(["python3", SCRIPT, "register"], env=ENV)
    hanging.write_stdin(b"")
    guest.wait_log(r"INFO: task python3:\d+ blocked for more than")
    guest.wait_log(r"mlx5r_umr_post_send_wait\+")
    guest.sh("echo 120 > /proc/sys/kernel/hung_task_timeout_secs")
    guest.control.plant(HealthPlant(syndrome=1, fatal=True))
    guest.wait_log(r"Fatal error 5 detected")
    guest.wait_log(r"synd 0x1: firmware internal error")
    result = hanging.wait(COMMAND_S)
    assert msgspec.json.decode(result.stdout.splitlines()[0], type=Act).status == "EIO"
    guest.wait_log(r"health recovery (succeeded|failed)")
    assert "health recovery succeeded" in guest.log()
    guest.fresh_driver()
    assert statuses(guest.act("register")) == [("reg", "ok"), ("dereg", "ok")]


def test_command_drop_times_out_after_a_minute(guest: Guest) -> None:
    """The slot of the lost command stays taken: no recovery of this driver works any more."""
    guest.control.plant(CommandPlant(opcode=Op.ACCESS_REG, mishap=Mishap.DROP))
    assert "Connection timed out" in guest.sh(f"cat {RATE}")
    log = guest.log()
    assert re.search(r"ACCESS_REG\(0x805\) No done completion", log)
    assert re.search(r"ACCESS_REG\(0x805\) timeout\. Will cause a leak", log)


def test_long_process_wedge_is_a_fatal_error(guest: Guest) -> None:
    """QEMU answers with ones meanwhile; the connection survives the late answers."""
    guest.control.wedge(25.0)
    guest.wait_log(r"Fatal error 1 detected")
    deadline = time.monotonic() + MESSAGE_S
    while guest.control.status().wedged:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert guest.sh("lspci -s 01:00.0 -n").startswith("01:00.0 0200: 15b3:101f")
    assert guest.control.status().ports[0].connected
