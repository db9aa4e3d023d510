"""Runs every GPU scenario with each GPU exporter and keeps the journals, without what names the machine.

    python -m tests.hardware.collect_runs OUT [--exporters rm,cuda]

OUT gets one `<exporter>-<scenario>.jsonl` a run. Serial numbers, UUIDs and the kernel command line are
replaced in the inventory line; every other line stays as it was written, so `judge` gives the same
verdict. tests/data/runs/gpu was made so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from gdrstorm.host.redact import redact_inventory
from gdrstorm.model.inventory import Inventory, known

SCENARIOS = (
    "gate/force-pcie-default-off",
    "gate/rm-bad-input",
    "lifecycle/dma-buf-core",
    "lifecycle/gpu-free-before-close",
    "lifecycle/exporter-killed-after-passing",
    "storm/gpu-export-one-thread",
    "storm/gpu-close-vs-export",
    "storm/gpu-close-vs-export-cpus",
    "storm/gpu-export",
)
_LIMIT_S = 200


def redact_line(line: str) -> str:
    """The machine line without names; any other line unchanged."""
    fields = json.loads(line)
    if fields["type"] != "machine":
        return line
    inventory = redact_inventory(msgspec.convert(fields["inventory"], Inventory))
    kernel = msgspec.structs.replace(inventory.kernel, cmdline=known("(removed)"))
    kept = msgspec.structs.replace(inventory, kernel=kernel)
    fields["inventory"] = msgspec.to_builtins(kept)
    return json.dumps(fields, separators=(",", ":"))


def redact_journal(journal: Path, target: Path) -> None:
    lines = journal.read_text().splitlines()
    target.write_text("".join(redact_line(line) + "\n" for line in lines))


def run(exporter: str, scenario: str, out: Path) -> str:
    """One run; its verdict in a line."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "gdrstorm", "run", scenario, "--bed", "host", "--json"]
        command += ["--exporter", exporter, "--importer", "core", "--out", directory]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        journals = list(Path(directory).glob("*/journal.jsonl"))
        if not journals:
            return f"{exporter} {scenario}: no journal: {done.stderr.strip()[-300:]}"
        redact_journal(journals[0], out / f"{exporter}-{scenario.replace('/', '-')}.jsonl")
    summary = json.loads(done.stdout)
    return f"{exporter} {scenario}: {summary['verdict']} {summary['reason']}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--exporters", default="rm,cuda")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for exporter in options.exporters.split(","):
        for scenario in SCENARIOS:
            if exporter == "rm" or scenario != "gate/rm-bad-input":
                print(run(exporter, scenario, options.out), flush=True)


if __name__ == "__main__":
    main()
