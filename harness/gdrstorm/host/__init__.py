"""What is here: a host read into one Inventory.

`read_inventory` reads sysfs, procfs and, only on the live machine, NVML and the verbs devices.
It changes nothing, wakes no sleeping device and always answers: what cannot be read is a reason.
"""

from __future__ import annotations

from pathlib import Path

from gdrstorm.host.kernel import read_kernel
from gdrstorm.host.machine import read_limits, read_machine, read_process
from gdrstorm.host.sysfs import read_text
from gdrstorm.model.inventory import Inventory, Iommu, NvidiaDriver, Why, unknown

__all__ = ["read_inventory"]


def read_inventory(root: Path = Path("/")) -> Inventory:
    """The inventory of the machine whose file system hangs at `root`."""
    kernel = read_kernel(root)
    later = "not read yet"
    return Inventory(
        hostname=read_text(root / "proc/sys/kernel/hostname").get("unknown"),
        machine=read_machine(root, kernel.cmdline, has_real_pci=False),
        kernel=kernel,
        process=read_process(root),
        pci=unknown(Why.NOT_ASKED, later),
        iommu=Iommu(unknown(Why.NOT_ASKED, later), unknown(Why.NOT_ASKED, later)),
        nvidia=NvidiaDriver(*(unknown(Why.NOT_ASKED, later) for _ in range(4))),
        gpus=(),
        hcas=(),
        modules=unknown(Why.NOT_ASKED, later),
        limits=read_limits(root),
        libraries=(),
    )
