"""Runs inside the guest for test_watch.py: reads the log into events, causes faults, runs witnesses.

python3 guest_watch.py events [MARKER]     JSON, one event a line
python3 guest_watch.py edu                 DMA from an address that no IOMMU domain maps
python3 guest_watch.py oom                 more memory than a cgroup has
python3 guest_watch.py watch SECONDS BDF   witnesses beside the log; prints `ready`, then events
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from gdrstorm.kmsg.faults import classify
from gdrstorm.kmsg.reader import KmsgReader
from gdrstorm.kmsg.witness.aer import AerCounters
from gdrstorm.kmsg.witness.netlink import DevlinkHealth, Uevents
from gdrstorm.kmsg.witness.presence import Presence
from gdrstorm.kmsg.witness.taint import TaintFlags
from gdrstorm.kmsg.witness.tracefs import TraceEvents
from gdrstorm.model.event import Event

EDU_ID = ("0x1234", "0x11e8")
# docs/specs/edu.rst of QEMU: DMA source, destination, count, command; bit 0 starts, direction 0 is RAM to device
EDU_SOURCE, EDU_TARGET, EDU_COUNT, EDU_COMMAND = 0x80, 0x88, 0x90, 0x98
EDU_BUFFER = 0x40000
UNMAPPED = 0x2345000
PCI_COMMAND, BUS_MASTER_AND_MEMORY = 4, 0x06
OOM_BYTES = 32 << 20


def show(event: Event) -> None:
    print(msgspec.json.encode(event).decode(), flush=True)


def events(marker: str | None) -> None:
    with KmsgReader(from_start=True, since=marker) as reader:
        records = reader.read_records(1_000_000)
        if not reader.marker_found:
            sys.exit(f"no marker {marker!r}")
    for event in classify(records):
        show(event)


def find_edu() -> Path:
    for device in Path("/sys/bus/pci/devices").iterdir():
        found = tuple((device / name).read_text().strip() for name in ("vendor", "device"))
        if found == EDU_ID:
            return device
    sys.exit("no edu device")


def edu() -> None:
    device = find_edu()
    # The group must be translated for an address to be unmapped.
    (device / "iommu_group/type").write_text("DMA\n")
    (device / "enable").write_text("1\n")
    with (device / "config").open("r+b", buffering=0) as config:
        config.seek(PCI_COMMAND)
        config.write(BUS_MASTER_AND_MEMORY.to_bytes(2, "little"))
    fd = os.open(device / "resource0", os.O_RDWR | os.O_SYNC)
    with mmap.mmap(fd, 1 << 20) as registers:
        for offset, value in (
            (EDU_SOURCE, UNMAPPED),
            (EDU_TARGET, EDU_BUFFER),
            (EDU_COUNT, 16),
            (EDU_COMMAND, 1),
        ):
            # A store of a known width: a copy into the map could be made in bytes.
            cell = ctypes.c_uint64.from_buffer(registers, offset)
            cell.value = value
            del cell
        time.sleep(1)
    os.close(fd)
    print(device.name)


def oom() -> None:
    root = Path("/sys/fs/cgroup")
    if not (root / "cgroup.controllers").exists():
        subprocess.run(["mount", "-t", "cgroup2", "none", str(root)], check=True)
    (root / "cgroup.subtree_control").write_text("+memory")
    group = root / "gdrstorm-oom"
    group.mkdir(exist_ok=True)
    (group / "memory.max").write_text(str(OOM_BYTES))
    join = f"pathlib.Path('{group}/cgroup.procs').write_text(str(os.getpid()))"
    eat = f"import pathlib, os; {join}; b'x' * (4 * {OOM_BYTES})"
    done = subprocess.run([sys.executable, "-c", eat], check=False)
    print(done.returncode)


def watch(seconds: float, bdf: str) -> None:
    witnesses = []
    for witness in (
        AerCounters(),
        Presence([bdf], read_config=False),
        Uevents([bdf]),
        TaintFlags(),
        TraceEvents(),
        DevlinkHealth(),
    ):
        try:
            witness.start()
        except OSError as error:
            print(f"blind {type(witness).__name__} {error}", flush=True)
        else:
            witnesses.append(witness)
    print("ready", flush=True)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for witness in witnesses:
            for event in witness.poll():
                show(event)
        time.sleep(0.2)
    for witness in witnesses:
        witness.close()
    left = list(Path("/sys/kernel/tracing/instances").glob("gdrstorm-*"))
    print(f"left {len(left)}", flush=True)


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    if verb == "events":
        events(arguments[0] if arguments else None)
    elif verb == "edu":
        edu()
    elif verb == "oom":
        oom()
    elif verb == "watch":
        watch(float(arguments[0]), arguments[1])
