"""What a bed looks like, as one frozen record used from Python and from the command line.

Turns nothing into anything: choices are enums, `check_options` raises UsageError for what cannot
work. The QEMU command line is made from it in qemu.py.
"""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

from gdrstorm.errors import UsageError
from gdrstorm.units import format_size

MAX_HCA = 2
MAX_BARS = 4
_MIN_BAR_BYTES = 4096
_MAX_BAR_BYTES = 16 << 30
_MIN_MEMORY_BYTES = 512 << 20


class LinkLayer(enum.StrEnum):
    ETHERNET = "ethernet"
    INFINIBAND = "infiniband"


class Topology(enum.StrEnum):
    """Where the BARs are, seen from the HCAs (nvidia-smi's words)."""

    PIX = "pix"  # under one switch
    PHB = "phb"  # other root port, same host bridge
    NODE = "node"  # other host bridge, same NUMA node
    SYS = "sys"  # other host bridge, other NUMA node


class Iommu(enum.StrEnum):
    NONE = "none"
    INTEL = "intel"
    VIRTIO = "virtio"
    AMD = "amd"


class Domain(enum.StrEnum):
    """Default type of the guest's IOMMU domains."""

    IDENTITY = "identity"
    TRANSLATED = "translated"


class Accel(enum.StrEnum):
    AUTO = "auto"
    KVM = "kvm"
    TCG = "tcg"


class BedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One bed. The defaults give one virtual ConnectX with RoCE behind an identity IOMMU domain."""

    hca: int = 1  # virtual ConnectX devices
    link_layer: LinkLayer = LinkLayer.ETHERNET
    rxe: bool = False  # a software RDMA device (rxe0) too
    bars: tuple[int, ...] = ()  # sizes in bytes of PCI BARs bound to vfio-pci
    topology: Topology = Topology.PHB
    iommu: Iommu = Iommu.INTEL
    domain: Domain = Domain.IDENTITY
    smp: int = 2
    memory_bytes: int = 1 << 30
    cpu: str = "EPYC"  # p2pdma accepts its host bridge; Skylake's it refuses
    accel: Accel = Accel.AUTO
    kernel: Path | None = None  # a bzImage of one's own
    modules: Path | None = None  # its lib/modules/RELEASE (as modules_install makes it)
    load: tuple[str, ...] = ()  # modules to load at boot, beside those that the devices need
    append: str = ""  # more kernel command line
    edu: bool = False  # QEMU's edu device: DMA to any address, so IOMMU faults are real
    aer: bool = False  # an empty root port `aer0` with slot, for error injection
    share: Path | None = None  # host directory, read-only in the guest at /gdrstorm/share
    boot_timeout_s: float = 180.0
    hang_s: float = 60.0  # silence of the guest that counts as a hang
    timeout_s: float | None = None  # for the whole bed


def check_options(options: BedOptions) -> None:
    """UsageError naming the first option that cannot work."""
    if not 0 <= options.hca <= MAX_HCA:
        raise UsageError(f"hca={options.hca}: the bed has 0 to {MAX_HCA} HCAs")
    if len(options.bars) > MAX_BARS:
        raise UsageError(f"{len(options.bars)} BARs: the bed has at most {MAX_BARS}")
    for size in options.bars:
        if size & (size - 1) or not _MIN_BAR_BYTES <= size <= _MAX_BAR_BYTES:
            raise UsageError(
                f"BAR of {format_size(size)}: a BAR's size is a power of two from 4KiB to 16GiB"
            )
    if options.bars and options.iommu is Iommu.NONE:
        raise UsageError(
            "bars without an IOMMU: vfio-pci needs one to hand out BARs",
            "give --iommu intel, virtio or amd",
        )
    if not 1 <= options.smp <= 64:
        raise UsageError(f"smp={options.smp}: 1 to 64 CPUs")
    if options.memory_bytes < _MIN_MEMORY_BYTES:
        raise UsageError(f"memory of {format_size(options.memory_bytes)}: at least 512MiB")
    if options.topology is Topology.SYS and options.smp % 2:
        raise UsageError("topology sys has two NUMA nodes: give an even --smp")
    if "," in options.cpu and options.cpu.startswith(","):
        raise UsageError(f"cpu={options.cpu!r} names no CPU model")
    _check_paths(options)
    _check_times(options)


def _check_paths(options: BedOptions) -> None:
    if options.kernel and not options.kernel.is_file():
        raise UsageError(f"kernel image {options.kernel} is not a file")
    if options.modules and not options.kernel:
        raise UsageError("--modules belongs to a kernel of your own: give --kernel too")
    if options.modules and not (options.modules / "modules.dep").is_file():
        raise UsageError(
            f"{options.modules} has no modules.dep",
            "give DIR/lib/modules/RELEASE as `make modules_install INSTALL_MOD_PATH=DIR` makes it",
        )
    if options.share and not options.share.is_dir():
        raise UsageError(f"shared directory {options.share} is not a directory")
    for path in (options.share, options.modules):
        if path and "," in str(path):
            raise UsageError(f"{path}: QEMU cannot share a path with a comma")


def _check_times(options: BedOptions) -> None:
    if options.boot_timeout_s <= 0 or options.hang_s < 6:
        raise UsageError("boot_timeout_s must be above 0 and hang_s at least 6")
    if options.timeout_s is not None and not 0 < options.timeout_s < 1e9:
        raise UsageError(f"timeout_s={options.timeout_s}: above 0 and below 1e9 seconds")
