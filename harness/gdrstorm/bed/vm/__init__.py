"""The virtual machine bed: image, QEMU, guest channel, lifecycle.

Use `Bed` with `BedOptions`; failures are typed. Names are loaded on first use: the guest agent
imports this package too and must start fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdrstorm.bed.vm.bed import Bed, CommandResult, RunningCommand, State
    from gdrstorm.bed.vm.failures import (
        BedFailure,
        BedTimeoutError,
        BootError,
        CommandTimeoutError,
        GuestEndedError,
        GuestHangError,
        GuestPanicError,
        ModelDiedError,
        Outcome,
        QemuDiedError,
        SupervisorDiedError,
    )
    from gdrstorm.bed.vm.image import Image, find_image, read_image
    from gdrstorm.bed.vm.options import (
        Accel,
        BedOptions,
        Domain,
        Iommu,
        LinkLayer,
        Topology,
        check_options,
    )

_HOME = {
    "bed": ("Bed", "CommandResult", "RunningCommand", "State"),
    "failures": (
        "BedFailure",
        "BedTimeoutError",
        "BootError",
        "CommandTimeoutError",
        "GuestEndedError",
        "GuestHangError",
        "GuestPanicError",
        "ModelDiedError",
        "Outcome",
        "QemuDiedError",
        "SupervisorDiedError",
    ),
    "image": ("Image", "find_image", "read_image"),
    "options": (
        "Accel",
        "BedOptions",
        "Domain",
        "Iommu",
        "LinkLayer",
        "Topology",
        "check_options",
    ),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Accel",
    "Bed",
    "BedFailure",
    "BedOptions",
    "BedTimeoutError",
    "BootError",
    "CommandResult",
    "CommandTimeoutError",
    "Domain",
    "GuestEndedError",
    "GuestHangError",
    "GuestPanicError",
    "Image",
    "Iommu",
    "LinkLayer",
    "ModelDiedError",
    "Outcome",
    "QemuDiedError",
    "RunningCommand",
    "State",
    "SupervisorDiedError",
    "Topology",
    "check_options",
    "find_image",
    "read_image",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
