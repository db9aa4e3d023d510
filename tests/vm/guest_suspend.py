"""Runs inside the guest for test_suspend.py: suspends, resumes, registers memory and checks the data it carries.

python3 guest_suspend.py STATE...     `freeze` or `mem`, one after the other

The root file system (virtio-9p) and the agent's port do not come back from a suspend: everything is loaded by a
rehearsal and locked into memory before, and what came out goes to the kernel log, that is, to the console.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

import guest_connectx
import msgspec

MCL_CURRENT, MCL_FUTURE = 1, 2
POWER = Path("/sys/power")


def say(text: str) -> None:
    Path("/dev/kmsg").write_text(f"suspend test: {text}\n")


def ready_device() -> str:
    """As guest_connectx.wait_for_hca, without starting a program."""
    found: list[str] = []

    def is_there() -> bool:
        found[:] = guest_connectx.ready_devices()
        # The GID table of a new device follows its interface's addresses a moment later.
        return bool(found) and any("fe80:" in gid for gid in guest_connectx.gids())

    guest_connectx.wait_until(is_there)
    return found[0]


def check(what: str) -> None:
    say(f"{what}: {msgspec.json.encode(guest_connectx.verify(ready_device())).decode()}")


def main(states: list[str]) -> None:
    check("rehearsal")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(MCL_CURRENT | MCL_FUTURE):
        sys.exit(f"mlockall: errno {ctypes.get_errno()}")
    check("rehearsal in locked memory")
    # All of the drivers' and the device's part of a suspend, without the firmware's: it ends by itself after 5 s.
    (POWER / "pm_test").write_text("devices")
    for state in states:
        begun = time.monotonic()
        (POWER / "state").write_text(state)
        say(f"{state}: back after {time.monotonic() - begun:.1f} s")
        check(state)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BaseException as error:
        # No traceback: it would read sources from the file system that is gone
        say(f"failed: {error!r}")
        raise
