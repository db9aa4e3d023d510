"""Says which PCI function or RDMA device a back end stands on, and whether it is real hardware.

Reads sysfs only. In doubt it is not called real: software devices, QEMU's own functions, and
everything inside the bed are emulated.
"""

from __future__ import annotations

import os
from pathlib import Path

from gdrstorm.host.machine import BED_MARK
from gdrstorm.host.rdma import not_asked, read_hca
from gdrstorm.host.sysfs import read_hex, read_link_name, read_text
from gdrstorm.model.stack import StackPart

SYSFS = Path("/sys")
_PCI = SYSFS / "bus/pci/devices"
_INFINIBAND = SYSFS / "class/infiniband"
# Subsystem vendor of everything that QEMU makes up (Red Hat; docs/specs/pci-ids in QEMU).
_QEMU_SUBSYSTEM = 0x1AF4
# Board id (PSID) of the bed's ConnectX model begins so.
_MODEL_BOARD = "GDRSTORM"
_CMDLINE = Path("/proc/cmdline")
_BED_WORDS = BED_MARK.partition(".")[0] + "."  # gdrstorm.bed=1, and the bed's other settings
# rxe and siw have no parent device; their drivers are known by how their default names begin.
_SOFTWARE = (("rxe", "rdma_rxe"), ("siw", "siw"))


def in_bed() -> bool:
    """Whether this is the guest of the VM bed: its command line has words of ours."""
    return any(word.startswith(_BED_WORDS) for word in read_text(_CMDLINE).get("").split())


def is_emulated_pci(bdf: str) -> bool:
    """Whether a function is not hardware; True when nobody can tell."""
    vendor = read_hex(_PCI / bdf / "subsystem_vendor").value
    return in_bed() or vendor is None or vendor == _QEMU_SUBSYSTEM


def read_pci_driver(bdf: str) -> str:
    """The driver bound to a function, empty when there is none."""
    return read_link_name(_PCI / bdf / "driver").get("")


def read_module_version(module: str) -> str:
    """`version` of a loaded module, else the kernel's release, which is its version in tree."""
    return read_text(SYSFS / "module" / module / "version").get("") or os.uname().release


def is_software_hca(name: str) -> bool:
    """Whether an RDMA device has no parent device (rxe, siw)."""
    return not (_INFINIBAND / name / "device").exists()


def describe_hca(importer: str, name: str) -> StackPart:
    """What an RDMA device is. Unknown parts are empty, and an unknown driver counts as emulated."""
    hca = read_hca(_INFINIBAND / name, not_asked())
    driver = hca.driver.get("") or _software_driver(name)
    details = {"firmware": hca.firmware.get(""), "board_id": hca.board_id.get("")}
    return StackPart(
        name=importer,
        device=name,
        bdf=hca.bdf,
        driver=driver,
        version=read_module_version(driver) if driver else "",
        emulated=not hca.bdf
        or is_emulated_pci(hca.bdf)
        or hca.board_id.get("").startswith(_MODEL_BOARD),
        details={key: value for key, value in details.items() if value},
    )


def _software_driver(name: str) -> str:
    if not is_software_hca(name):
        return ""
    for prefix, driver in _SOFTWARE:
        if name.startswith(prefix) or (SYSFS / "module" / driver).exists():
            return driver
    return ""
