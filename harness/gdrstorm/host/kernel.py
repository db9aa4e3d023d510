"""Kernel facts from procfs and sysfs: release, command line, taint, lockdown, config, checkers.

Configuration comes from /proc/config.gz or /boot/config-<release>; checkers are derived from it
and from the command line, because no kernel lists them in one place. Flags and their letters:
Documentation/admin-guide/tainted-kernels.rst.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Mapping
from pathlib import Path

from gdrstorm.host.sysfs import read_as, read_bytes, read_int, read_text
from gdrstorm.model.inventory import Kernel, KernelOption, Probe, Why, known, unknown

# Letter by bit, bits 0 to 19.
_TAINT = "PFSRMBUDAWCIOELKXTNJ"

# The options that decide about this path or about what a fault would look like.
WANTED_OPTIONS = (
    "AMD_IOMMU",
    "DEBUG_ATOMIC_SLEEP",
    "DEBUG_LIST",
    "DEBUG_OBJECTS",
    "DEBUG_PAGEALLOC",
    "DMABUF_DEBUG",
    "DMABUF_HEAPS",
    "DMABUF_HEAPS_SYSTEM",
    "DMA_API_DEBUG",
    "DMA_SHARED_BUFFER",
    "FAIL_PAGE_ALLOC",
    "FAILSLAB",
    "FAULT_INJECTION",
    "FUNCTION_ERROR_INJECTION",
    "HOTPLUG_PCI",
    "INFINIBAND_ON_DEMAND_PAGING",
    "INFINIBAND_USER_ACCESS",
    "INTEL_IOMMU",
    "IOMMUFD",
    "IOMMU_DEFAULT_DMA_LAZY",
    "IOMMU_DEFAULT_DMA_STRICT",
    "IOMMU_DEFAULT_PASSTHROUGH",
    "KASAN",
    "KCSAN",
    "KFENCE",
    "KPROBES",
    "LOCKDEP",
    "MLX5_CORE",
    "MLX5_INFINIBAND",
    "NET_DEVMEM",
    "PCIEAER",
    "PCIEAER_INJECT",
    "PCI_P2PDMA",
    "PREEMPT_RT",
    "PROVE_LOCKING",
    "RDMA_RXE",
    "REF_TRACKER",
    "SLUB_DEBUG_ON",
    "UBSAN",
    "UDMABUF",
    "VFIO_NOIOMMU",
    "VFIO_PCI",
    "VFIO_PCI_DMABUF",
    "VIRTIO_IOMMU",
    "ZONE_DEVICE",
)

_CHECKER_OPTIONS = {
    "KASAN": "KASAN",
    "KCSAN": "KCSAN",
    "KFENCE": "KFENCE",
    "UBSAN": "UBSAN",
    "PROVE_LOCKING": "lockdep",
    "DEBUG_ATOMIC_SLEEP": "DEBUG_ATOMIC_SLEEP",
    "DEBUG_LIST": "DEBUG_LIST",
    "DEBUG_OBJECTS": "DEBUG_OBJECTS",
    "DMA_API_DEBUG": "DMA_API_DEBUG",
    "DMABUF_DEBUG": "DMABUF_DEBUG",
    "REF_TRACKER": "REF_TRACKER",
    "SLUB_DEBUG_ON": "slub_debug",
}
# Without a configuration: a function that only the option brings, looked up in a BTF file's strings.
_PROOFS = {
    "PCI_P2PDMA": ("vmlinux", b"\0pci_p2pdma_distance_many\0"),
    "VFIO_PCI_DMABUF": ("vfio_pci_core", b"\0vfio_pci_dma_buf_map\0"),
    "DMA_SHARED_BUFFER": ("vmlinux", b"\0dma_buf_export\0"),
}
_MAX_BTF_BYTES = 32 << 20
_CONFIG_LINE = re.compile(r"^(?:CONFIG_(\w+)=(.*)|# CONFIG_(\w+) is not set)$", re.MULTILINE)


def parse_taint(value: int) -> tuple[str, ...]:
    """Letters of the bits that are set; a bit without a letter is `bit N`."""
    bits = (bit for bit in range(64) if value >> bit & 1)
    return tuple(_TAINT[bit] if bit < len(_TAINT) else f"bit {bit}" for bit in bits)


def parse_config(text: str, wanted: tuple[str, ...] = WANTED_OPTIONS) -> tuple[KernelOption, ...]:
    """The wanted options that a kernel configuration mentions, sorted."""
    found = {}
    for match in _CONFIG_LINE.finditer(text):
        name = match[1] or match[3]
        if name in wanted:
            found[name] = "n" if match[3] else match[2].strip('"')
    return tuple(KernelOption(name, found[name]) for name in sorted(found))


def parse_lockdown(text: str) -> str:
    """The bracketed word of /sys/kernel/security/lockdown. ValueError without one."""
    match = re.search(r"\[(\w+)\]", text)
    if not match:
        raise ValueError(text)
    return match[1]


def find_checkers(
    config: Probe[tuple[KernelOption, ...]], cmdline: Probe[str], kmemleak: bool
) -> Probe[tuple[str, ...]]:
    """Checkers that are built in and not switched off on the command line."""
    if config.value is None:
        return Probe(unknown=config.unknown)
    on = {o.name for o in config.value if o.value == "y"}
    words = set((cmdline.value or "").split())
    found = {label for option, label in _CHECKER_OPTIONS.items() if option in on}
    if words & {"dma_debug=off", "dma_debug=0"}:
        found.discard("DMA_API_DEBUG")
    if words & {"kasan=off", "kasan=0"}:
        found.discard("KASAN")
    if any(w == "slub_debug" or w.startswith(("slub_debug=", "slab_debug")) for w in words):
        found.add("slub_debug")
    if kmemleak:
        found.add("kmemleak")
    return known(tuple(sorted(found)))


def read_config(root: Path, release: Probe[str]) -> Probe[tuple[KernelOption, ...]]:
    """Configuration of the running kernel from the first file that has it."""
    packed = read_bytes(root / "proc/config.gz")
    if packed.value is not None:
        try:
            return known(parse_config(gzip.decompress(packed.value).decode("ascii", "replace")))
        except (OSError, EOFError, zlib.error) as error:
            return unknown(Why.UNREADABLE, f"{root / 'proc/config.gz'}: {error}")
    if release.value is None:
        return Probe(unknown=packed.unknown)
    for path in (f"boot/config-{release.value}", f"lib/modules/{release.value}/config"):
        text = read_text(root / path)
        if text.value is not None:
            return known(parse_config(text.value))
    return unknown(Why.NO_FILE, f"{root / 'proc/config.gz'} and boot/config-{release.value}")


def find_proven(btf: Mapping[str, bytes]) -> tuple[KernelOption, ...]:
    """Options that BTF files (by name) prove. Absence proves nothing: the file may be missing."""
    return tuple(
        KernelOption(option, "y")
        for option, (name, symbol) in _PROOFS.items()
        if symbol in btf.get(name, b"")
    )


def _read_proven(root: Path) -> tuple[KernelOption, ...]:
    names = {name for name, _ in _PROOFS.values()}
    folder = root / "sys/kernel/btf"
    return find_proven({n: read_bytes(folder / n, _MAX_BTF_BYTES).get(b"") for n in names})


def read_kernel(root: Path) -> Kernel:
    """All of it; costs a few small files."""
    release = read_text(root / "proc/sys/kernel/osrelease")
    cmdline = read_text(root / "proc/cmdline")
    taint = read_int(root / "proc/sys/kernel/tainted")
    config = read_config(root, release)
    kmemleak = read_text(root / "sys/kernel/debug/kmemleak").is_known
    return Kernel(
        release=release,
        version=read_text(root / "proc/sys/kernel/version"),
        cmdline=cmdline,
        taint=taint,
        taint_flags=parse_taint(taint.value or 0),
        lockdown=read_as(root / "sys/kernel/security/lockdown", parse_lockdown),
        config=config,
        checkers=find_checkers(config, cmdline, kmemleak),
        proven=() if config.is_known else _read_proven(root),
    )
