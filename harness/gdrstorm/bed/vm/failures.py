"""How a bed can end, each as its own exception: the guest, QEMU, the device model, or time.

Every one names the console file. LOST (exit code 5) is what the guest did, BROKEN (3) what the
harness did.
"""

from __future__ import annotations

import enum
from pathlib import Path

from gdrstorm.errors import BrokenError, GdrstormError, LostError


class Outcome(enum.StrEnum):
    CLOSED = "closed"  # in order
    PANIC = "panic"
    HANG = "hang"
    GUEST_ENDED = "guest-ended"
    BOOT_FAILED = "boot-failed"
    QEMU_DIED = "qemu-died"
    MODEL_DIED = "model-died"
    SUPERVISOR_DIED = "supervisor-died"
    TIMEOUT = "timeout"


class BedFailure(GdrstormError):
    """The bed is over. `outcome` says how, `console_path` keeps what the guest said."""

    outcome: Outcome

    def __init__(self, message: str, console_path: Path, hint: str | None = None) -> None:
        super().__init__(message, hint or f"console: {console_path}")
        self.console_path = console_path


class GuestPanicError(BedFailure, LostError):
    """The guest kernel panicked."""

    outcome = Outcome.PANIC


class GuestHangError(BedFailure, LostError):
    """The guest's agent was silent longer than `hang_s`."""

    outcome = Outcome.HANG


class GuestEndedError(BedFailure, LostError):
    """The guest powered off or rebooted by itself."""

    outcome = Outcome.GUEST_ENDED


class BedTimeoutError(BedFailure, LostError):
    """The bed was older than its `timeout_s`."""

    outcome = Outcome.TIMEOUT


class BootError(BedFailure, BrokenError):
    """The guest did not come up within `boot_timeout_s`."""

    outcome = Outcome.BOOT_FAILED


class QemuDiedError(BedFailure, BrokenError):
    """QEMU ended without being asked."""

    outcome = Outcome.QEMU_DIED


class ModelDiedError(BedFailure, BrokenError):
    """The device model process ended without being asked."""

    outcome = Outcome.MODEL_DIED


class SupervisorDiedError(BedFailure, BrokenError):
    """The process that owns QEMU ended without being asked."""

    outcome = Outcome.SUPERVISOR_DIED


class CommandTimeoutError(GdrstormError):
    """One command was too slow and was killed.

    The bed lives on. `killed` is False when it would not die.
    """

    exit_code = 124

    def __init__(self, argv: list[str], timeout_s: float, *, killed: bool) -> None:
        state = "killed" if killed else "it does not die of SIGKILL: it is inside the kernel"
        super().__init__(f"command {argv[0]!r} ran longer than {timeout_s:g} s ({state})")
        self.killed = killed
