"""The VM bed in numbers: boot to RDMA device, registrations a second, who burns the CPU, and what an idle bed costs.

Everything in one boot of the default bed. Inside the guest bench_engine.py compares the engine with the plain C loop
and with pyverbs on the emulated mlx5. Nothing here says anything about real hardware.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gdrstorm.bed.vm import Bed, BedOptions, find_image

ROOT = Path(__file__).resolve().parents[2]
BOOTS = 3
IDLE_S = 15.0
_TICK = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system time of a process and its threads so far, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def row(name: str, value: float, unit: str, how: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "how": how}


def measure() -> list[dict[str, Any]]:
    """Rows of the bed; none, with the reason on stderr, where there is no bed or no root."""
    if os.geteuid() != 0 or find_image() is None:
        print("bench_bed: left out, needs root and `gdrstorm bed build`", file=sys.stderr)
        return []
    subprocess.run(["make", "-s", "-C", str(ROOT / "native"), "bench"], check=True)
    boots = []
    for _ in range(BOOTS - 1):
        with Bed(BedOptions()) as bed:
            boots.append(bed.boot_s)
    with Bed(BedOptions(share=ROOT)) as bed:
        boots.append(bed.boot_s)
        how = f"median of {BOOTS} boots, until the agent in the guest answers"
        rows = [row("bed: QEMU start to a usable guest", statistics.median(boots), "s", how)]
        return rows + _link(bed) + _idle(bed) + _storm(bed)


def _link(bed: Bed) -> list[dict[str, Any]]:
    """When the RDMA port came up, by the guest kernel's clock; QEMU and the kernel's own start come before it."""
    log = bed.run(["dmesg"]).stdout.decode()
    found = re.search(r"\[\s*([0-9.]+)\] .*Link ACTIVE", log)
    if not found:
        return []
    name = "bed: kernel start to RDMA link active"
    return [row(name, float(found[1]), "s (at most 10)", "the guest kernel's log, last boot")]


def _idle(bed: Bed) -> list[dict[str, Any]]:
    pids = bed.pids
    time.sleep(1.0)
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    time.sleep(IDLE_S)
    used = sum(cpu_s(pid) - before[name] for name, pid in pids.items())
    return [
        row(
            "bed: CPU of an idle bed",
            100 * used / IDLE_S,
            "% of a CPU",
            f"QEMU, model, supervisor over {IDLE_S:g} s",
        )
    ]


def _storm(bed: Bed) -> list[dict[str, Any]]:
    pids = bed.pids
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    script = "/gdrstorm/share/tests/bench/bench_engine.py"
    done = bed.run(
        ["python3", script, "--verbs", "mlx5_0", "--json", "--rounds", "21", "--seconds", "0.8"],
        timeout_s=900,
    )
    if done.status:
        sys.exit(f"bench in the guest failed: {done.stderr.decode()}")
    used = {name: cpu_s(pid) - before[name] for name, pid in pids.items()}
    share = used["model"] / max(used["qemu"], 1e-9)
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    rows.append(
        row(
            "bed: CPU of device model / QEMU",
            share,
            "ratio (below 1)",
            "over the registrations above",
        )
    )
    return [
        {**one, "name": f"guest: {one['name']}" if "bed:" not in one["name"] else one["name"]}
        for one in rows
    ]
