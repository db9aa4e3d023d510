"""Which PCI functions must not be touched because a sleeping GPU would wake.

The kernel resumes a suspended function, and every bridge above it, to read its configuration space
or link (drivers/pci/pci-sysfs.c, pci_config_pm_runtime_get); a bridge that comes back from D3cold
resumes what is below it (drivers/pci/pci.c, pci_resume_bus). Idle bridges and other functions are
read all the same, as lspci does: they fall asleep again by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gdrstorm.model.inventory import Probe, Why

# Base classes: display controller, processing accelerator.
_GPU_CLASSES = (0x03, 0x12)
_MAX_DEPTH = 256


class Sleeper(msgspec.Struct, frozen=True):
    """What has to be known of a function before anything of it is read."""

    bdf: str
    parent: str
    class_code: int
    status: Probe[str]

    @property
    def is_asleep(self) -> bool:
        """Suspended, or not known to be awake. Without runtime power management nothing sleeps."""
        if self.status.unknown:
            return self.status.unknown.why is not Why.NO_FILE
        return self.status.value not in {"active", "unsupported"}


def _ancestors(by_bdf: dict[str, Sleeper], bdf: str) -> Iterable[Sleeper]:
    for _ in range(_MAX_DEPTH):
        above = by_bdf.get(by_bdf[bdf].parent)
        if above is None:
            return
        yield above
        bdf = above.bdf


def find_untouchable(functions: Iterable[Sleeper]) -> frozenset[str]:
    """bdfs of sleeping GPUs, of the sleeping bridges above them, and of all that sleeps below these."""
    by_bdf = {f.bdf: f for f in functions}
    sleeping = [f for f in by_bdf.values() if f.is_asleep]
    gpus = [f for f in sleeping if f.class_code >> 16 in _GPU_CLASSES]
    found = {f.bdf for f in gpus}
    found |= {a.bdf for gpu in gpus for a in _ancestors(by_bdf, gpu.bdf) if a.is_asleep}
    bridges = frozenset(found)
    found |= {f.bdf for f in sleeping if any(a.bdf in bridges for a in _ancestors(by_bdf, f.bdf))}
    return frozenset(found)
