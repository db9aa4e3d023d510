"""Exception families and errno names.

Only wrong use, missing abilities and crashes of the harness are exceptions. What the kernel did (a fault), what a
call returned (an error) and what a run concludes (a verdict) are records, see model/.
"""

from __future__ import annotations

import errno
import re

# Kernel-internal errno values that leak to userspace; libc has no name for them
# (include/linux/errno.h).
_KERNEL_ERRNO = {
    512: "ERESTARTSYS",
    513: "ERESTARTNOINTR",
    514: "ERESTARTNOHAND",
    515: "ENOIOCTLCMD",
    516: "ERESTART_RESTARTBLOCK",
    517: "EPROBE_DEFER",
    518: "EOPENSTALE",
    519: "ENOPARAM",
    524: "ENOTSUPP",
}
# errorcode has one name a value; where Linux gives two, the one used on this path.
_PREFERRED = {11: "EAGAIN", 95: "EOPNOTSUPP"}
_BY_NAME = {name: value for value, name in _KERNEL_ERRNO.items()}

#: The GPU back ends answer in numbers of their own; in a storm these are counted above all errno values.
NV_STATUS_BASE = 0x10000
CUDA_BASE = 0x20000
_GPU_NAME = re.compile(r"NV_STATUS 0x([0-9a-f]{1,4})|CUDA (\d{1,4})")


def errno_name(value: int) -> str:
    """Name of a positive errno value, kernel-internal ones included; `errno 999` when nobody named it.

    Statuses of the GPU driver read `NV_STATUS 0x56`, results of CUDA `CUDA 801`.
    """
    value = abs(value)
    if value >= CUDA_BASE:
        return f"CUDA {value - CUDA_BASE}"
    if value >= NV_STATUS_BASE:
        return f"NV_STATUS {value - NV_STATUS_BASE:#x}"
    known = _PREFERRED.get(value) or errno.errorcode.get(value) or _KERNEL_ERRNO.get(value)
    return known or f"errno {value}"


def errno_value(name: str) -> int | None:
    """Number of an errno name, or None when there is no such name."""
    gpu = _GPU_NAME.fullmatch(name)
    if gpu:
        return NV_STATUS_BASE + int(gpu[1], 16) if gpu[1] else CUDA_BASE + int(gpu[2])
    value: int | None = getattr(errno, name, None) if name.startswith("E") else None
    return value if isinstance(value, int) else _BY_NAME.get(name)


class GdrstormError(Exception):
    """Base of all errors with one clear line for the user; `hint` says what to do next."""

    exit_code = 3

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(GdrstormError):
    """Wrong use or a bad input file: exit code 2."""

    exit_code = 2


class UnavailableError(GdrstormError):
    """Something this run needs is not here; the run is skipped with this reason: exit code 4."""

    exit_code = 4


class CallError(GdrstormError):
    """A control-path call on the stack failed with an errno (storm errors are counted, not raised)."""

    def __init__(self, act: str, errno_: int, hint: str | None = None) -> None:
        super().__init__(f"{act}: {errno_name(errno_)}", hint)
        self.errno = errno_


class BrokenError(GdrstormError):
    """The harness itself failed: exit code 3."""


class LostError(GdrstormError):
    """The machine (or the guest) went away: exit code 5."""

    exit_code = 5
