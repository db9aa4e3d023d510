"""The witnesses over trees and sockets of our own: what is added is told, what was there is not."""

# ruff: noqa: E501  (log lines stay in one piece)

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from gdrstorm.kmsg.witness import netlink
from gdrstorm.kmsg.witness.aer import AerCounters, parse_aer_counters
from gdrstorm.kmsg.witness.common import EventMaker
from gdrstorm.kmsg.witness.hung import HungThreads
from gdrstorm.kmsg.witness.netlink import (
    DevlinkHealth,
    HealthState,
    LinkState,
    Uevents,
    bdf_of_path,
    parse_uevent,
)
from gdrstorm.kmsg.witness.port import PortCounters
from gdrstorm.kmsg.witness.presence import Presence
from gdrstorm.kmsg.witness.pstore import Pstore, order_dumps, read_pstore
from gdrstorm.kmsg.witness.rdma_async import RdmaAsync
from gdrstorm.kmsg.witness.select import select_witnesses
from gdrstorm.kmsg.witness.taint import TaintFlags
from gdrstorm.kmsg.witness.tracefs import TraceEvents, parse_trace_line
from gdrstorm.model.event import EventClass, Severity, Source

BDF = "0000:c1:00.0"
S = 10**9


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def aer_tree(root: Path, bdf: str = BDF) -> Path:
    device = root / "bus/pci/devices" / bdf
    put(device / "aer_dev_correctable", "RxErr 3\nBadTLP 0\nTOTAL_ERR_COR 3\n")
    put(device / "aer_dev_nonfatal", "CmpltTO 0\nTOTAL_ERR_NONFATAL 0\n")
    put(device / "aer_dev_fatal", "MalfTLP 0\nTOTAL_ERR_FATAL 0\n")
    return device


def test_aer_counters_tell_what_was_added(tmp_path: Path) -> None:
    device = aer_tree(tmp_path)
    witness = AerCounters(root=tmp_path)
    witness.start()
    assert witness.poll() == []
    put(device / "aer_dev_correctable", "RxErr 10\nBadTLP 0\nTOTAL_ERR_COR 10\n")
    put(device / "aer_dev_fatal", "MalfTLP 1\nTOTAL_ERR_FATAL 1\n")
    events = {event.code: event for event in witness.poll()}
    assert (events["RxErr"].count, events["RxErr"].severity) == (7, Severity.CORRECTED)
    assert (events["MalfTLP"].severity, events["MalfTLP"].device) == (Severity.FATAL, BDF)
    assert witness.poll() == []


def test_aer_counters_after_a_replug_start_at_zero(tmp_path: Path) -> None:
    device = aer_tree(tmp_path)
    witness = AerCounters([BDF], tmp_path)
    witness.start()
    put(device / "aer_dev_correctable", "RxErr 1\nBadTLP 0\n")
    assert [event.count for event in witness.poll()] == [1]


def test_aer_counters_need_a_device(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no AER counters"):
        AerCounters(root=tmp_path).start()
    assert parse_aer_counters("junk\nRxErr x\nBadTLP 2\n") == {"BadTLP": 2}


def test_port_counters_at_most_once_an_interval(tmp_path: Path) -> None:
    clock = Clock()
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    error = put(port / "hw_counters/local_ack_timeout_err", "5\n")
    put(port / "hw_counters/rx_write_requests", "5\n")
    flush = put(port / "hw_counters/req_cqe_flush_error", "0\n")
    down = put(port / "counters/link_downed", "0\n")
    witness = PortCounters(root=tmp_path, interval_ns=S, clock=clock)
    witness.start()
    error.write_text("8\n")
    assert witness.poll() == []
    clock.now_ns = 2 * S
    (event,) = witness.poll()
    assert (event.code, event.count, event.severity) == (
        "local_ack_timeout_err",
        3,
        Severity.WARNING,
    )
    assert event.detail("ibdev") == "mlx5_0"
    flush.write_text("9\n")
    down.unlink()
    clock.now_ns = 4 * S
    assert [(event.code, event.is_fault) for event in witness.poll()] == [
        ("req_cqe_flush_error", False)
    ]


def test_taint_tells_new_flags_once(tmp_path: Path) -> None:
    path = put(tmp_path / "sys/kernel/tainted", str(1 << 12))
    witness = TaintFlags(tmp_path)
    witness.start()
    path.write_text(str(1 << 12 | 1 << 9 | 1 << 7))
    assert {(e.code, e.severity) for e in witness.poll()} == {
        ("W", Severity.WARNING),
        ("D", Severity.FATAL),
    }
    assert witness.poll() == []


def presence_tree(root: Path) -> Path:
    device = root / "bus/pci/devices" / BDF
    put(device / "power/runtime_status", "active\n")
    (device / "config").write_bytes(b"\xb3\x15\x1f\x10")
    return device


def test_presence_needs_two_misses(tmp_path: Path) -> None:
    device = presence_tree(tmp_path)
    witness = Presence(root=tmp_path)
    witness.start()
    assert witness.poll() == []
    away = device.rename(tmp_path / "away")
    assert witness.poll() == []
    away.rename(device)
    assert witness.poll() == []
    device.rename(away)
    assert witness.poll() == []
    (event,) = witness.poll()
    assert (event.code, event.device, event.severity) == ("vanished", BDF, Severity.FATAL)
    assert witness.poll() == []
    away.rename(device)
    assert [event.code for event in witness.poll()] == ["back"]


def test_presence_sees_silence_but_wakes_nobody(tmp_path: Path) -> None:
    device = presence_tree(tmp_path)
    witness = Presence([BDF], root=tmp_path)
    witness.start()
    (device / "config").write_bytes(b"\xff" * 4)
    put(device / "power/runtime_status", "suspended\n")
    assert witness.poll() == []
    put(device / "power/runtime_status", "active\n")
    assert [event.code for event in witness.poll()] == ["all-ff"]
    assert witness.poll() == []


def thread(root: Path, state: str, switches: int) -> None:
    task = root / "77/task/78"
    put(
        task / "status",
        f"Name:\tpython3\nState:\t{state} (x)\nvoluntary_ctxt_switches:\t{switches}\n",
    )
    put(
        task / "stack",
        "[<0>] __wait_for_common+0x9a/0x1b0\n[<0>] mlx5r_umr_post_send_wait+0x15f/0x2d0 [mlx5_ib]\n"
        "[<0>] mlx5r_umr_revoke_mr+0x98/0xc0 [mlx5_ib]\n",
    )


def test_hung_thread_is_told_once_with_its_stack(tmp_path: Path) -> None:
    clock = Clock()
    thread(tmp_path, "D", 5)
    witness = HungThreads(lambda: [77], 10 * S, tmp_path, clock)
    witness.start()
    assert witness.poll() == []
    clock.now_ns = 9 * S
    assert witness.poll() == []
    clock.now_ns = 11 * S
    (event,) = witness.poll()
    assert (event.code, event.cls) == ("mlx5r_umr_post_send_wait", EventClass.HUNG_TASK)
    assert len(event.lines) == 3
    assert event.detail("tid") == "78"
    assert witness.poll() == []


@pytest.mark.parametrize(("state", "switches"), [("D", 6), ("S", 5)])
def test_thread_that_moves_is_not_hung(tmp_path: Path, state: str, switches: int) -> None:
    clock = Clock()
    thread(tmp_path, "D", 5)
    witness = HungThreads(lambda: [77], 10 * S, tmp_path, clock)
    witness.poll()
    clock.now_ns = 11 * S
    thread(tmp_path, state, switches)
    assert witness.poll() == []


TRACES = {
    "          <idle>-0       [001] d.h1.   123.456789: io_page_fault: IOMMU:intel-iommu 0000:02:00.0 iova=0x0000000002345000 flags=0x0000": (
        EventClass.IOMMU, Severity.ERROR, "0000:02:00.0", "io_page_fault",
    ),
    "     irq/24-aerdrv-98      [000] .....   123.456789: aer_event: 0000:00:1d.0 PCIe Bus Error: severity=Corrected, Receiver Error, TLP Header=Not available": (
        EventClass.AER, Severity.CORRECTED, "0000:00:1d.0", "RxErr",
    ),
    "     irq/24-aerdrv-98      [000] .....   123.456789: aer_event: 0000:41:00.0 PCIe Bus Error: severity=Fatal, Malformed TLP, TLP Header={0x1,0x2,0x3,0x4}": (
        EventClass.AER, Severity.FATAL, "0000:41:00.0", "MalfTLP",
    ),
    "     kworker/1:1-45      [001] .....   123.456789: mc_event: 2 Corrected errors: memory read on DIMM_A1 (mc:0 location:0:0:-1 address:0x0 grain:1 syndrome:0x0)": (
        EventClass.HARDWARE, Severity.CORRECTED, None, "CE",
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", TRACES)
def test_trace_lines(text: str) -> None:
    event = parse_trace_line(text, EventMaker(Source.TRACEFS))
    assert event is not None
    assert (event.cls, event.severity, event.device, event.code) == TRACES[text]
    assert event.time_ns == 123_456_789_000


def test_trace_instance_is_made_and_switched_off(tmp_path: Path) -> None:
    (tmp_path / "events/ras/aer_event").mkdir(parents=True)
    instance = tmp_path / f"instances/gdrstorm-{os.getpid()}"
    enable = put(instance / "events/ras/aer_event/enable", "0\n")
    os.mkfifo(instance / "trace_pipe")
    witness = TraceEvents(tmp_path)
    witness.start()
    assert enable.read_text() == "1\n"
    with (instance / "trace_pipe").open("w") as pipe:
        pipe.write(f"{list(TRACES)[1]}\nCPU:1 [LOST 7 EVENTS]\nhalf a li")
        pipe.flush()
        events = witness.poll()
    assert [(event.cls, event.count) for event in events] == [
        (EventClass.AER, 1),
        (EventClass.LOG_LOST, 7),
    ]
    witness.close()
    witness.close()
    assert enable.read_text() == "0\n"


def test_trace_events_need_tracefs(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        TraceEvents(tmp_path).start()


def test_rdma_async_events() -> None:
    read_fd, write_fd = os.pipe()
    witness = RdmaAsync(read_fd, "mlx5_0", BDF)
    witness.start()
    assert witness.poll() == []
    os.write(write_fd, struct.pack("=QIIQII", 7, 8, 0, 1, 9, 0))
    fatal, active = witness.poll()
    assert (fatal.code, fatal.severity, fatal.device) == ("DEVICE_FATAL", Severity.FATAL, BDF)
    assert not active.is_fault
    os.close(read_fd)
    os.close(write_fd)


UEVENT = (
    b"remove@/devices/pci0000:00/0000:00:02.0/0000:c1:00.0\0ACTION=remove\0"
    b"DEVPATH=/devices/pci0000:00/0000:00:02.0/0000:c1:00.0\0SUBSYSTEM=pci\0SEQNUM=1\0"
)


class Pair:
    """Lets a listener read what the test sends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.send, receive = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        receive.setblocking(False)
        monkeypatch.setattr(netlink, "_listen", lambda protocol, group: receive)


def test_uevents_of_the_devices_under_test(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(monkeypatch)
    witness = Uevents([BDF])
    witness.start()
    pair.send.send(UEVENT)
    pair.send.send(UEVENT.replace(b"c1:00", b"c2:00"))
    pair.send.send(UEVENT.replace(b"remove", b"add"))
    pair.send.send(b"libudev\0garbage")
    removed, added = witness.poll()
    assert (removed.cls, removed.severity, removed.device) == (
        EventClass.DEVICE_LOST,
        Severity.ERROR,
        BDF,
    )
    assert not added.is_fault
    witness.close()
    witness.close()
    pair.send.close()


def test_uevent_parts() -> None:
    uevent = parse_uevent(UEVENT)
    assert uevent is not None
    assert (uevent.action, uevent.subsystem, bdf_of_path(uevent.devpath)) == ("remove", "pci", BDF)
    assert parse_uevent(b"libudev\0x") is None
    assert bdf_of_path("/devices/virtual/net/lo") is None


class Message(dict[str, object]):
    def get_attr(self, name: str) -> object:
        return self.get(name)


def test_link_state(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(monkeypatch)
    witness = LinkState(["eth0"])
    witness.start()
    states = iter(["UP", "DOWN", "DOWN", "UP"])
    witness._marshal = type(
        "M",
        (),
        {
            "parse": lambda self, data: [
                Message(IFLA_IFNAME=data.decode(), IFLA_OPERSTATE=next(states))
            ]
        },
    )()
    for _ in range(4):
        pair.send.send(b"eth0")
    down, up = witness.poll()
    assert (down.code, down.severity, down.detail("netdev")) == (
        "link down",
        Severity.WARNING,
        "eth0",
    )
    assert (up.code, up.is_fault) == ("link up", False)
    witness.close()
    pair.send.close()


def test_devlink_health() -> None:
    clock = Clock()
    states = [
        HealthState(BDF, "fw_fatal", False, 2, 2),
        HealthState("0000:01:00.0", "tx", False, 0, 0),
    ]
    witness = DevlinkHealth([BDF], lambda: list(states), S, clock)
    witness.start()
    states[0] = HealthState(BDF, "fw_fatal", True, 5, 2)
    assert witness.poll() == []
    clock.now_ns = 2 * S
    (event,) = witness.poll()
    assert (event.count, event.severity, event.code) == (3, Severity.FATAL, "health fw_fatal")
    clock.now_ns = 4 * S
    assert witness.poll() == []
    states[0] = HealthState(BDF, "fw_fatal", True, 1, 0)
    clock.now_ns = 6 * S
    assert [event.count for event in witness.poll()] == [1]


def test_pstore_puts_parts_in_order(tmp_path: Path) -> None:
    put(
        tmp_path / "dmesg-efi-1",
        "Panic#1 Part1\n<0>[  100.000003] Kernel panic - not syncing: Fatal exception\n",
    )
    witness = Pstore(tmp_path)
    witness.start()
    assert witness.poll() == []
    put(
        tmp_path / "dmesg-efi-2",
        "Oops#2 Part1\n<4>[  200.000002] RIP: 0010:dma_buf_detach+0x1/0x2\n",
    )
    put(
        tmp_path / "dmesg-efi-3",
        "Oops#2 Part2\n<1>[  200.000001] BUG: kernel NULL pointer dereference, address: 0\n",
    )
    put(tmp_path / "ftrace-efi-1", "BUG: nothing of a log\n")
    (event,) = witness.poll()
    assert (event.code, event.source) == ("dma_buf_detach", Source.PSTORE)
    assert witness.poll() == []
    assert len(read_pstore(tmp_path)) == 2
    assert order_dumps({"a": "Oops#2 Part1", "b": "Oops#2 Part2"}) == [
        "Oops#2 Part2",
        "Oops#2 Part1",
    ]


def test_every_witness_follows_the_protocol(tmp_path: Path) -> None:
    witnesses = select_witnesses(root=tmp_path, pids=list)
    assert len(witnesses) >= 10
    for witness in witnesses:
        poll: Callable[[], list[object]] = witness.poll
        assert poll() == []
        witness.close()
        witness.close()
