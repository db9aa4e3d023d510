"""`python -m tests.bench` (make bench): every benchmark in one run, a table, and build/bench.json.

A row is {name, value, unit, how}. Each bench_*.py beside this file has `measure() -> list[Row]`; the VM bed's rows need
root and a built bed and are skipped with the reason where there is none. Nothing here asserts.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

MODULES = ("bench_engine", "bench_cli", "bench_kmsg", "bench_watch", "bench_bed")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("names", nargs="*", help=f"which: {', '.join(MODULES)}; default all")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"))
    wanted = parser.parse_args()
    rows = []
    for name in wanted.names or MODULES:
        print(f"== {name}", file=sys.stderr, flush=True)
        module = importlib.import_module(f"tests.bench.{name}")
        rows += module.measure()
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("name")
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("how")
    for row in rows:
        table.add_row(row["name"], f"{row['value']:.4g}", row["unit"], row["how"])
    Console(soft_wrap=True).print(table)
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"wrote {wanted.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
