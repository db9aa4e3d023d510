"""From a line's arrival in /dev/kmsg to its event in the journal, while a storm keeps every CPU busy.

Synthetic Xid lines, each of another GPU, are written while a run on the fake back ends goes on; the journal's own
times say when each became an event. Needs root.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gdrstorm.evidence.journal import read_journal
from gdrstorm.model import journal as j

LINES = 150
PAUSE_S = 0.04
SCENARIO = """\
summary = "keep the CPUs busy"
time_limit = "2m"
[[phase]]
name = "storm"
threads = {threads}
cycle = ["EXPORT", "REG", "DEREG", "CLOSE"]
duration = "20s"
"""


def measure() -> list[dict[str, Any]]:
    """The latency row; none, with the reason on stderr, without root."""
    if os.geteuid() != 0:
        print("bench_watch: left out, needs root", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory() as name:
        delays = _delays_ns(Path(name))
    p99 = statistics.quantiles(delays, n=100)[98]
    how = f"{len(delays)} synthetic lines during a storm of {os.cpu_count()} threads on the fakes"
    rows = (("p50", statistics.median(delays)), ("p99", p99))
    return [
        {
            "name": f"kmsg line to event, {what}",
            "value": ns / 1e6,
            "unit": "ms (p99 at most 50)",
            "how": how,
        }
        for what, ns in rows
    ]


def _delays_ns(directory: Path) -> list[int]:
    scenario = directory / "busy.toml"
    scenario.write_text(SCENARIO.format(threads=os.cpu_count()))
    command = [sys.executable, "-m", "gdrstorm", "run", str(scenario), "--bed", "host", "--json"]
    command += ["--exporter", "fake", "--importer", "fake", "--out", str(directory / "runs")]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not any(
        '"type":"p"' in path.read_text() for path in directory.glob("runs/*/journal.jsonl")
    ):
        time.sleep(0.1)
    written = {}
    with Path("/dev/kmsg").open("w", buffering=1) as log:
        for number in range(LINES):
            device = f"{number:04x}:01:00"
            written[f"{device}.0"] = time.time_ns()
            log.write(f"<3>NVRM: Xid (PCI:{device}): 79, pid=1, GPU has fallen off the bus.\n")
            time.sleep(PAUSE_S)
    run.wait()
    (journal,) = directory.glob("runs/*/journal.jsonl")
    seen: dict[str, int] = {}
    for line in read_journal(journal):
        if isinstance(line, j.Seen) and line.event.device in written:
            seen.setdefault(line.event.device, line.time_ns)
    if len(seen) < LINES:
        print(f"bench_watch: {LINES - len(seen)} lines never became events", file=sys.stderr)
    return [seen[device] - at for device, at in written.items() if device in seen]
