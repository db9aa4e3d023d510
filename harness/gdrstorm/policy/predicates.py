"""The catalogue of predicates: what each one asks, why it matters, where that comes from.

Names are stable: scenarios demand them, `gdrstorm check --explain` tells them, findings carry them.
Data only; policies answer them.
"""

from __future__ import annotations

import msgspec

from gdrstorm.errors import UsageError


class Predicate(msgspec.Struct, frozen=True):
    name: str
    what: str
    why: str
    source: str
    is_advisory: bool = False


_PR = "the draft driver change behind this project, "
_NV = "NVIDIA open kernel modules, "
_LINUX = "Linux 7.3.4, "

PREDICATES = (
    Predicate(
        "driver-open",
        "The loaded NVIDIA kernel driver is the open flavour.",
        "The change is a patch to the open modules, and dma-buf export for RDMA is supported "
        "only with them. The proprietary module cannot carry the option.",
        "/proc/driver/nvidia/version",
    ),
    Predicate(
        "option-on",
        "The driver knows the non-coherent DMA-BUF option and it is on.",
        "Without it FORCE_PCIE exports of a non-coherent GPU are refused (RM status 0x56, CUDA "
        "error 801). Two generations: ExperimentalDmaBufP2P, off by default, which RegistryDwords "
        "may carry too; then EnableDmaBufP2P, on by default, which replaced it without an alias. "
        "EnablePcieP2P is CUDA's peer path and decides nothing here.",
        _PR + "nv-reg.h; /proc/driver/nvidia/params",
    ),
    Predicate(
        "mapping-force-pcie",
        "The export asks for the mapping type FORCE_PCIE.",
        "The option widens this mapping type only; every other keeps its stock behaviour.",
        _PR + "dmabuf_gdr_policy.h",
    ),
    Predicate(
        "gpu-not-coherent",
        "The GPU's memory is not coherent with the CPU (no NVLink-C2C).",
        "Coherent GPUs keep the stock path with its own topology rule.",
        _PR + "dmabuf_gdr_policy.h",
    ),
    Predicate(
        "static-bar1",
        "BAR1 is usable and a static BAR1 window is active.",
        "The path takes physical addresses inside BAR1 that never move. Without the window each "
        "mapping would need BAR1 space of its own, which the change does not do.",
        "NV2080_CTRL_CMD_FB_GET_STATIC_BAR1_INFO; " + _PR + "dmabuf_gdr_policy.h",
    ),
    Predicate(
        "mig-off",
        "MIG is disabled on the GPU.",
        "Partitions have windows of their own; the change excludes them.",
        _PR + "dmabuf_gdr_policy.h",
    ),
    Predicate(
        "range-in-static-bar1",
        "The exported range is not empty and lies wholly inside the static BAR1 window.",
        "A range that leaves the window would be mapped to something else. The comparison must not "
        "overflow: size is compared with what is left of the window, never start + size.",
        _PR + "dmabuf_gdr_policy.h",
    ),
    Predicate(
        "importer-identity-domain",
        "The importer's IOMMU domain is an identity domain.",
        "The driver asks for the domain of the importer and wants IOMMU_DOMAIN_IDENTITY. A "
        "translated domain is refused, and so is no domain at all (no IOMMU, or switched off).",
        _PR + "nv-pci.c; /sys/kernel/iommu_groups/N/type",
    ),
    Predicate(
        "importer-dma-mask",
        "The importer's DMA mask reaches the last byte it would have to address.",
        "BARs of large GPUs lie above 2^44; a device with a smaller mask would wrap or be refused. "
        "The NVIDIA policy wants the whole of BAR1 covered, Linux the mapped range, and that only "
        "where addresses are not translated.",
        _PR + "dmabuf-gdr-topology-policy.h; " + _LINUX + "include/linux/dma-direct.h",
    ),
    Predicate(
        "p2pdma-distance",
        "pci_p2pdma_distance() between the two functions is not negative.",
        "Linux refuses peer traffic that would have to pass a root complex it does not know to "
        "forward it. A common upstream bridge without ACS redirect is always fine; otherwise the "
        "CPU (AMD Zen or later) or the host bridge must be in the kernel's list.",
        _LINUX + "drivers/pci/p2pdma.c",
    ),
    Predicate(
        "kernel-p2pdma",
        "The kernel is built with CONFIG_PCI_P2PDMA.",
        "Without it pci_p2pdma_distance() always answers -1 and BARs cannot be exported.",
        _LINUX + "include/linux/pci-p2pdma.h",
    ),
    Predicate(
        "importer-dmabuf-mr",
        "The RDMA device registers dma-buf memory regions.",
        "Both the kernel driver and the user provider must implement it; found by trying.",
        _LINUX + "drivers/infiniband/core/uverbs_std_types_mr.c",
    ),
    Predicate(
        "kernel-vfio-dmabuf",
        "The kernel is built with CONFIG_VFIO_PCI_DMABUF.",
        "VFIO exports a BAR as a dma-buf only with it.",
        _LINUX + "drivers/vfio/pci/vfio_pci_dmabuf.c",
    ),
    Predicate(
        "exporter-iommu-group",
        "The exporting function is in an IOMMU group.",
        "VFIO opens devices by group: without an IOMMU there is none.",
        _LINUX + "drivers/vfio/group.c",
    ),
    Predicate(
        "exporter-bar",
        "The exporter has the memory BAR that is to be exported.",
        "Only memory BARs have a P2PDMA provider.",
        _LINUX + "drivers/pci/p2pdma.c",
    ),
    Predicate(
        "range-in-bar",
        "The range is not empty, page aligned and inside the BAR.",
        "VFIO answers EINVAL otherwise.",
        _LINUX + "drivers/vfio/pci/vfio_pci_dmabuf.c",
    ),
    Predicate(
        "driver-dmabuf",
        "The NVIDIA driver says that it can export dma-buf descriptors.",
        "An old or proprietary driver, or a kernel without DMA_SHARED_BUFFER, cannot.",
        "NV2080_CTRL_GPU_INFO_INDEX_DMABUF_CAPABILITY",
    ),
    Predicate(
        "mapping-default",
        "The export asks for the default mapping type.",
        "This is what CUDA uses when nobody asks for FORCE_PCIE, and what stock drivers admit.",
        _NV + "kernel-open/nvidia/nv-dmabuf.c",
    ),
    Predicate(
        "grdma-topology",
        "The stock driver's own topology check lets the importer attach.",
        "On coherent GPUs it always does for the default mapping. On others a chipset that is on "
        "NVIDIA's list of broken ones needs a common switch; GrdmaPciTopoCheckOverride (until "
        "R590) allows (1) or denies (2) everything.",
        _NV + "kernel-open/nvidia/nv-pci.c",
    ),
    Predicate(
        "cuda-userspace",
        "CUDA's user library lets programs reach this path.",
        "On some GeForce GPUs stock libcuda does not advertise dma-buf, so the kernel path is "
        "never asked. The kernel decides without CUDA: raw RM calls reach the path.",
        "reports from users of the change; cuDeviceGetAttribute(DMA_BUF_SUPPORTED)",
        is_advisory=True,
    ),
    Predicate(
        "force-spa",
        "RmGpuDirectRdmaForceSPA is not set on a non-coherent GPU.",
        "The override translates addresses on coherent platforms; it must stay without effect "
        "elsewhere. A run that sets it on another GPU tests exactly that, on purpose.",
        _PR + "dmabuf_gdr_policy.h",
        is_advisory=True,
    ),
    Predicate(
        "acs-direct",
        "No port between the two redirects peer traffic with ACS.",
        "With redirect on, traffic below one switch climbs to the root complex and back: slower, "
        "and refused where the root complex is not known to forward. Turning it off merges IOMMU "
        "groups and weakens isolation between devices and virtual machines.",
        _LINUX + "drivers/pci/p2pdma.c; PCIe base specification 6.12",
        is_advisory=True,
    ),
    Predicate(
        "port-active",
        "The RDMA device has an active port.",
        "Registration works without one, traffic does not.",
        "/sys/class/infiniband/NAME/ports/N/state",
        is_advisory=True,
    ),
    Predicate(
        "memlock",
        "The locked-memory limit leaves room for pinned host memory.",
        "Host-memory controls and udmabuf pin pages; the small default limit ends in ENOMEM.",
        "/proc/self/limits",
        is_advisory=True,
    ),
    Predicate(
        "link-full",
        "The PCIe links of both functions run at their full speed and width.",
        "A narrow link does not change admission; it makes every number worthless. Idle GPUs lower "
        "their speed on purpose.",
        "current_link_speed and current_link_width in sysfs",
        is_advisory=True,
    ),
    Predicate(
        "modules-fresh",
        "The loaded modules are the ones on disk.",
        "A rebuilt module that was not reloaded tests yesterday's driver.",
        "srcversion in /sys/module and in the file",
        is_advisory=True,
    ),
)

_BY_NAME = {p.name: p for p in PREDICATES}


def find_predicate(name: str) -> Predicate:
    """The predicate of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in _BY_NAME:
        names = ", ".join(sorted(_BY_NAME))
        raise UsageError(f"no such predicate: {name}", f"one of {names}")
    return _BY_NAME[name]
