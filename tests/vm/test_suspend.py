"""The virtual ConnectX comes back from `freeze` and `mem`, and what it registers then carries the right data.

A bed of its own, and all through the console: neither the root file system nor the agent's port survives a suspend.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final

import msgspec
import pytest

from gdrstorm.bed.connectx.control import ControlClient
from gdrstorm.bed.vm import Bed, BedOptions
from gdrstorm.kmsg.faults import classify
from gdrstorm.kmsg.record import parse_lines

pytestmark = pytest.mark.vm

TESTS: Final = Path(__file__).parents[1]
STATES: Final = ("freeze", "mem")
# TCG on a busy machine is slow; this only ends what would never end.
WAIT_S: Final = 300.0


class Said(msgspec.Struct, frozen=True):
    """One check of the guest, as tables.verify_data gives it."""

    name: str
    passed: bool
    detail: str


def said(console: str, what: str) -> Said | None:
    found = re.search(rf"suspend test: {what}: (\{{.*\}})", console)
    return msgspec.json.decode(found[1], type=Said) if found else None


def test_registers_after_each_suspend(tmp_path: Path) -> None:
    options = BedOptions(share=TESTS, boot_timeout_s=400, hang_s=WAIT_S)
    with (
        Bed(options, run_dir=tmp_path) as bed,
        ControlClient.connect(bed.control, timeout_s=60) as control,
    ):
        script = f"cd /gdrstorm/share/vm && exec python3 guest_suspend.py {' '.join(STATES)}"
        bed.start_command(["sh", "-c", script])
        deadline = time.monotonic() + WAIT_S
        while said(console := bed.console_path.read_text(errors="replace"), STATES[-1]) is None:
            assert "suspend test: failed" not in console and time.monotonic() < deadline, console
            time.sleep(0.5)
        report = control.oracle().report
    assert console.count("PM: suspend exit") == len(STATES)
    checks = [said(console, what) for what in ("rehearsal", *STATES)]
    assert [check is not None and check.passed for check in checks] == [True] * 3, checks
    assert classify(parse_lines(console.splitlines())) == []
    assert (report.stray_count, report.anomalies) == (0, ())
