"""How long the command line takes to say something: medians of several starts, page cache warm."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import Any

ROUNDS = 15


def median_s(*arguments: str) -> float:
    """Median wall time of `gdrstorm ARGUMENTS`; the first start, which compiles, is not counted."""
    times = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "gdrstorm", *arguments], stdout=subprocess.DEVNULL, check=False
        )
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def measure() -> list[dict[str, Any]]:
    how = f"median wall time of {ROUNDS} starts"
    return [
        {
            "name": "gdrstorm --help",
            "value": median_s("--help"),
            "unit": "s (at most 0.2)",
            "how": how,
        },
        {
            "name": "gdrstorm check",
            "value": median_s("check"),
            "unit": "s (at most 0.5)",
            "how": how,
        },
    ]
