"""What is here: a host read into one Inventory.

`read_inventory` reads sysfs and procfs and, on the live machine, asks NVML, libibverbs and devlink.
It changes nothing, wakes no sleeping GPU and always answers: what cannot be read is a reason.
"""

from __future__ import annotations

from pathlib import Path

from gdrstorm.host.kernel import read_kernel
from gdrstorm.host.libraries import read_libraries
from gdrstorm.host.machine import read_limits, read_machine, read_process
from gdrstorm.host.modules import read_modules
from gdrstorm.host.nvidia import (
    GpuStateReader,
    is_gpu,
    read_driver,
    read_gpu,
    unknown_state,
)
from gdrstorm.host.nvml import NvmlGpu, read_nvml
from gdrstorm.host.pci import read_devices, read_iommu
from gdrstorm.host.rdma import read_hcas
from gdrstorm.host.sysfs import read_text
from gdrstorm.host.verbs_probe import read_verbs
from gdrstorm.model.inventory import Gpu, Inventory, PciDevice, Why

__all__ = ["GpuStateReader", "read_inventory"]

_ASLEEP = {"suspended", "suspending", "resuming", "error"}


def read_inventory(
    root: Path = Path("/"),
    *,
    ask_devices: bool | None = None,
    hash_files: bool = True,
    gpu_reader: GpuStateReader | None = None,
) -> Inventory:
    """The inventory of the machine whose file system hangs at `root`.

    `ask_devices` (default: only on the live machine) opens RDMA devices, NVML and the libraries;
    `gpu_reader` answers what only the GPU driver knows; `hash_files` reads whole module files.
    """
    live = root == Path("/") if ask_devices is None else ask_devices
    kernel = read_kernel(root)
    pci = read_devices(root)
    devices = pci.value or ()
    hcas = read_hcas(root, read_verbs() if live else {})
    gpu_devices = [device for device in devices if is_gpu(device)]
    has_real_pci = bool(gpu_devices) or any(hca.bdf for hca in hcas)
    return Inventory(
        hostname=read_text(root / "proc/sys/kernel/hostname").get("unknown"),
        machine=read_machine(root, kernel.cmdline, has_real_pci),
        kernel=kernel,
        process=read_process(root),
        pci=pci,
        iommu=read_iommu(root),
        nvidia=read_driver(root),
        gpus=_read_gpus(root, gpu_devices, live, gpu_reader),
        hcas=hcas,
        modules=read_modules(root, kernel.release.get(""), hash_files=hash_files),
        limits=read_limits(root),
        libraries=read_libraries(hash_files=hash_files) if live else (),
    )


def _read_gpus(
    root: Path, devices: list[PciDevice], live: bool, reader: GpuStateReader | None
) -> tuple[Gpu, ...]:
    asleep = any(d.runtime_status.get("") in _ASLEEP for d in devices)
    details: dict[str, NvmlGpu] = {}
    # Attaching NVML wakes every GPU: one that sleeps keeps all of them from being asked.
    if live and devices and not asleep:
        details = read_nvml().value or {}
    gpus = []
    for index, device in enumerate(devices):
        if reader is None:
            state = unknown_state(Why.NOT_ASKED, "no reader for the driver's own state was given")
        elif device.runtime_status.get("") in _ASLEEP:
            state = unknown_state(Why.ASLEEP, f"GPU {device.bdf} is {device.runtime_status.value}")
        else:
            state = reader.read_gpu_state(device.bdf)
        gpus.append(read_gpu(root, index, device, state, details.get(device.bdf)))
    return tuple(gpus)
