"""Storms are no fault: with every debug message of the drivers switched on, none of what they print becomes an event.

A storm prints nothing at the default level, so this is its traffic compressed: each registration, each command and
each completion is a line or ten, thousands a second, with all the words that failures are made of.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from gdrstorm.bed.vm import Bed, BedOptions

pytestmark = pytest.mark.vm

ROOT: Final = Path(__file__).parents[2]
MODULES: Final = ("mlx5_core", "mlx5_ib", "ib_core", "ib_uverbs", "udmabuf")
STORMS: Final = ("storm/private-buffer", "storm/reregister")
# TCG on a busy machine is slow; this only ends what would never end.
COMMAND_S: Final = 600.0
# Far below what was seen (20,000 and more): the log must have been spoken to at all.
LINES: Final = 4000


def test_storm_traffic_with_every_debug_message_is_silent(tmp_path: Path) -> None:
    options = BedOptions(
        hca=1, share=ROOT, append="log_buf_len=32M", boot_timeout_s=400, hang_s=300
    )
    with Bed(options, run_dir=tmp_path) as bed:

        def sh(command: str) -> str:
            done = bed.run(["sh", "-c", command], timeout_s=COMMAND_S)
            text = (done.stdout + done.stderr).decode(errors="replace")
            assert done.status == 0, text
            return text

        for module in MODULES:
            sh(f"echo 'module {module} +p' >/sys/kernel/debug/dynamic_debug/control")
        before = int(sh("dmesg | wc -l"))
        scenarios = "export GDRSTORM_SCENARIOS=/gdrstorm/share/scenarios"
        for storm in STORMS:
            run = (
                f"gdrstorm run {storm} --bed host --duration 5s --out /tmp/runs --json 2>/dev/null"
            )
            result = json.loads(sh(f"{scenarios}; {run}"))
            assert (result["verdict"], result["faults"]) == ("PASS", []), result
        lines = int(sh("dmesg | wc -l")) - before
        assert lines > LINES, "the drivers said too little for this to mean anything"
        assert sh("dmesg -x >/tmp/log; gdrstorm kmsg /tmp/log --json") == ""
