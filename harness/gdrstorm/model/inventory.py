"""What a host is, as frozen records: kernel, PCI tree, IOMMU, GPUs, RDMA devices, modules, limits.

Every fact that had to be looked up is a `Probe`: a value, or the reason why nobody could tell.
Unknown is never false, zero or absent; whoever decides on a fact must handle both. Records only:
host/ fills them, policy/ and report/ read them, `encode_inventory` and `decode_inventory` keep them
in one versioned JSON file.
"""

from __future__ import annotations

from enum import Enum
from typing import Generic, TypeVar

import msgspec

from gdrstorm.errors import UsageError

SCHEMA_VERSION = 1

T = TypeVar("T")


class Why(Enum):
    """Kinds of not knowing; the kind decides what to advise, the detail says where."""

    NO_PERMISSION = "no permission"
    NO_FILE = "no such file"
    OLD_KERNEL = "old kernel"
    NO_LIBRARY = "no library"
    NO_DEVICE = "no device"
    NOT_ASKED = "not asked"
    ASLEEP = "device asleep"
    UNREADABLE = "unreadable"


class Unknown(msgspec.Struct, frozen=True):
    """Why a fact could not be had: the kind, and the path or call that failed."""

    why: Why
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.why.value}: {self.detail}" if self.detail else self.why.value


class Probe(msgspec.Struct, Generic[T], frozen=True, omit_defaults=True):
    """A value or a reason, never both and never neither. Make one with `known` or `unknown`."""

    value: T | None = None
    unknown: Unknown | None = None

    @property
    def is_known(self) -> bool:
        return self.unknown is None

    def get(self, default: T) -> T:
        """The value, or `default` where it is unknown: for display, never for a decision."""
        return default if self.value is None else self.value

    def __str__(self) -> str:
        return f"unknown ({self.unknown})" if self.unknown else str(self.value)


def known(value: T) -> Probe[T]:
    """A fact that was read."""
    return Probe(value=value)


def unknown(why: Why, detail: str = "") -> Probe[T]:
    """A fact that could not be read, and why."""
    return Probe(unknown=Unknown(why, detail))


class Platform(Enum):
    """Whether results from this machine may speak of hardware."""

    HARDWARE = "hardware"
    EMULATED = "emulated"


class Machine(msgspec.Struct, frozen=True):
    """The box: who made it, what runs under it, and whether it counts as hardware."""

    platform: Platform
    platform_reason: str
    hypervisor: Probe[str]
    vendor: Probe[str]
    product: Probe[str]
    serial: Probe[str]
    cpu_vendor: Probe[str]
    cpu_family: Probe[int]
    cpu_model: Probe[str]
    cpu_count: Probe[int]
    numa_nodes: Probe[int]
    memory_bytes: Probe[int]


class KernelOption(msgspec.Struct, frozen=True):
    """One CONFIG_ line; `value` is y, m, n (also for "is not set") or a string."""

    name: str
    value: str


class Kernel(msgspec.Struct, frozen=True):
    release: Probe[str]
    version: Probe[str]
    cmdline: Probe[str]
    taint: Probe[int]
    taint_flags: tuple[str, ...]
    lockdown: Probe[str]
    config: Probe[tuple[KernelOption, ...]]
    checkers: Probe[tuple[str, ...]]
    """Memory and lock checkers that are active: KASAN, lockdep, DMA_API_DEBUG and so on."""
    proven: tuple[KernelOption, ...] = ()
    """Options that the running kernel's own symbols prove; read where there is no config."""

    def option(self, name: str) -> Probe[str]:
        """`CONFIG_<name>`: y, m, n or text; n when the config is known and silent."""
        if self.config.value is None:
            shown = next((o.value for o in self.proven if o.name == name), None)
            return known(shown) if shown else Probe(unknown=self.config.unknown)
        for option in self.config.value:
            if option.name == name:
                return known(option.value)
        return known("n")


class Bar(msgspec.Struct, frozen=True):
    """One memory or I/O window of a function; `start` is the CPU (resource) address."""

    index: int
    start: int
    size: int
    is_memory: bool
    is_64bit: bool
    is_prefetchable: bool
    resizable_bytes: Probe[tuple[int, ...]] = Probe(unknown=Unknown(Why.NOT_ASKED))

    @property
    def last(self) -> int:
        """Address of the last byte."""
        return self.start + self.size - 1


class Link(msgspec.Struct, frozen=True):
    """PCIe link: speeds in tenths of GT/s (8.0 GT/s is 80), widths in lanes; 0 is "not known"."""

    speed: int
    width: int
    max_speed: int
    max_width: int

    @property
    def is_degraded(self) -> bool:
        slow = 0 < self.speed < self.max_speed
        return slow or 0 < self.width < self.max_width


class Acs(msgspec.Struct, frozen=True):
    """ACS of one function (PCIe base spec 7.7.11): both registers, zero without the capability."""

    is_present: bool
    capability: int = 0
    control: int = 0


class PciDevice(msgspec.Struct, frozen=True, kw_only=True):
    bdf: str
    vendor: int
    device: int
    class_code: int
    """24 bits: base class, subclass, programming interface."""
    revision: Probe[int]
    subsystem_vendor: Probe[int]
    subsystem_device: Probe[int]
    driver: Probe[str]
    """Empty when no driver is bound."""
    parent: str
    """bdf of the bridge above; empty on a root bus."""
    root_bus: str
    """`dddd:bb` of the root bus (host bridge) it hangs from."""
    numa_node: Probe[int]
    """-1 is the kernel's own "no node"."""
    runtime_status: Probe[str]
    bars: Probe[tuple[Bar, ...]]
    link: Probe[Link]
    port_type: Probe[str]
    """endpoint, root port, upstream port, downstream port, bridge, pci, ..."""
    acs: Probe[Acs]
    ats: Probe[bool]
    mps: Probe[int]
    iommu_group: Probe[int]
    """-1: the function is in no group (no IOMMU handles it)."""
    dma_mask_bits: Probe[int]
    physfn: str = ""
    """bdf of the physical function when this is a virtual one."""
    numvfs: Probe[int] = Probe(unknown=Unknown(Why.NOT_ASKED))
    totalvfs: Probe[int] = Probe(unknown=Unknown(Why.NOT_ASKED))

    @property
    def is_bridge(self) -> bool:
        return self.class_code >> 8 == 0x0604

    def bar(self, index: int) -> Bar | None:
        """The window with that index, or None when it is absent or the BARs are unknown."""
        return next((b for b in self.bars.value or () if b.index == index), None)


class IommuGroup(msgspec.Struct, frozen=True):
    number: int
    type: Probe[str]
    """identity, DMA, DMA-FQ, blocked, unmanaged; as /sys/kernel/iommu_groups/N/type says it."""
    bdfs: tuple[str, ...]


class Iommu(msgspec.Struct, frozen=True):
    """`units`: names under /sys/class/iommu; groups are all that exist."""

    units: Probe[tuple[str, ...]]
    groups: Probe[tuple[IommuGroup, ...]]


class StaticBar1(msgspec.Struct, frozen=True):
    """NV2080_CTRL_CMD_FB_GET_STATIC_BAR1_INFO: the part of BAR1 that maps video memory for good."""

    is_enabled: bool
    is_write_combined: bool
    start: int
    size: int


class GpuState(msgspec.Struct, frozen=True):
    """What only the GPU driver can tell; unknown until a reader is given."""

    static_bar1: Probe[StaticBar1]
    bar1_bytes: Probe[int]
    mig: Probe[bool]
    coherent: Probe[bool]
    """Video memory is coherent with the CPU (NVLink-C2C), so exports need no BAR1."""
    dmabuf: Probe[bool]
    """The driver says it can export dma-buf descriptors at all."""


class Gpu(msgspec.Struct, frozen=True):
    index: int
    bdf: str
    name: Probe[str]
    uuid: Probe[str]
    serial: Probe[str]
    minor: Probe[int]
    vbios: Probe[str]
    ecc: Probe[bool]
    gsp_firmware: Probe[str]
    bar1_used_bytes: Probe[int]
    state: GpuState


class NvidiaParam(msgspec.Struct, frozen=True):
    """One driver setting; `source` is the file it was read from."""

    name: str
    value: str
    source: str


class NvidiaDriver(msgspec.Struct, frozen=True):
    flavour: Probe[str]
    """open or proprietary."""
    version: Probe[str]
    params: Probe[tuple[NvidiaParam, ...]]
    peermem: Probe[bool]
    """nvidia_peermem is loaded (not needed for dma-buf; it changes plain registration)."""


class Gid(msgspec.Struct, frozen=True):
    index: int
    gid: str
    type: Probe[str]
    netdev: Probe[str]


class IbPort(msgspec.Struct, frozen=True):
    number: int
    state: Probe[str]
    """ACTIVE, DOWN, INIT, ARMED as sysfs writes it after the number."""
    phys_state: Probe[str]
    link_layer: Probe[str]
    rate: Probe[str]
    gids: Probe[tuple[Gid, ...]]


class VerbsState(msgspec.Struct, frozen=True):
    """What only an opened device can tell; unknown until it was asked."""

    dmabuf_mr: Probe[bool]
    odp: Probe[bool]
    max_mr: Probe[int]
    max_mr_bytes: Probe[int]
    provider_path: Probe[str]


class Hca(msgspec.Struct, frozen=True):
    name: str
    bdf: str
    """Empty for software devices (rxe, siw)."""
    driver: Probe[str]
    firmware: Probe[str]
    board_id: Probe[str]
    node_guid: Probe[str]
    netdevs: Probe[tuple[str, ...]]
    ports: Probe[tuple[IbPort, ...]]
    verbs: VerbsState


class Module(msgspec.Struct, frozen=True):
    """A loaded module against its file on disk."""

    name: str
    version: Probe[str]
    srcversion: Probe[str]
    path: Probe[str]
    file_srcversion: Probe[str]
    sha256: Probe[str]
    signer: Probe[str]
    vermagic: Probe[str]
    refcount: Probe[int]
    holders: Probe[tuple[str, ...]]

    @property
    def is_stale(self) -> bool:
        """The file on disk is not what is loaded (known to differ)."""
        loaded, disk = self.srcversion.value, self.file_srcversion.value
        return loaded is not None and disk is not None and loaded != disk


class Limit(msgspec.Struct, frozen=True):
    """A resource limit; -1 is unlimited."""

    soft: int
    hard: int


class Limits(msgspec.Struct, frozen=True):
    memlock: Probe[Limit]
    nofile: Probe[Limit]


class Library(msgspec.Struct, frozen=True):
    """A shared library as a process maps it, not as a package manager believes."""

    name: str
    path: Probe[str]
    version: Probe[str]
    sha256: Probe[str]


class Process(msgspec.Struct, frozen=True):
    """Who is asking: a probe that lacks root says so here once."""

    uid: Probe[int]
    capabilities: Probe[int]
    container: Probe[str]
    """none, docker, podman, lxc, kubernetes, ...: what the files of this process betray."""
    namespaces: Probe[tuple[str, ...]]


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """The whole host. Lists are sorted: PCI and GPUs by bdf, hcas and modules by name."""

    schema_version: int = SCHEMA_VERSION
    hostname: str
    machine: Machine
    kernel: Kernel
    process: Process
    pci: Probe[tuple[PciDevice, ...]]
    iommu: Iommu
    nvidia: NvidiaDriver
    gpus: tuple[Gpu, ...]
    hcas: tuple[Hca, ...]
    modules: Probe[tuple[Module, ...]]
    limits: Limits
    libraries: tuple[Library, ...]
    is_redacted: bool = False

    def pci_device(self, bdf: str) -> PciDevice | None:
        """The function at `bdf`, or None."""
        return next((d for d in self.pci.value or () if d.bdf == bdf), None)


def encode_inventory(inventory: Inventory) -> bytes:
    """Indented JSON, stable for one inventory."""
    return msgspec.json.format(msgspec.json.encode(inventory), indent=2) + b"\n"


def decode_inventory(data: bytes) -> Inventory:
    """The inventory in a file made by `gdrstorm inventory --json`.

    Raises:
        UsageError: no inventory, or one of a schema this program does not know.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.schema_version != SCHEMA_VERSION:
            raise UsageError(
                f"cannot read inventory: schema {head.schema_version} is not {SCHEMA_VERSION}",
                "make it again with this gdrstorm: gdrstorm inventory --json > host.json",
            )
        return msgspec.json.decode(data, type=Inventory)
    except (msgspec.DecodeError, RecursionError) as error:  # ValidationError is a kind of the first
        raise UsageError(f"cannot read inventory: {error}", "is this a host.json?") from error


class _Head(msgspec.Struct):
    schema_version: int
