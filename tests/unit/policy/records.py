"""Small inventories built by hand for policy tests: no file, no reader, only records."""

from __future__ import annotations

import msgspec

from gdrstorm.model.inventory import (
    Acs,
    Bar,
    Gpu,
    GpuState,
    Hca,
    IbPort,
    Inventory,
    Iommu,
    IommuGroup,
    Kernel,
    KernelOption,
    Limit,
    Limits,
    Link,
    Machine,
    NvidiaDriver,
    NvidiaParam,
    PciDevice,
    Platform,
    Probe,
    Process,
    StaticBar1,
    Unknown,
    VerbsState,
    Why,
    known,
)

UNKNOWN = Unknown(Why.NOT_ASKED, "test")
GIB = 1 << 30
GPU_BDF, NIC_BDF = "0000:41:00.0", "0000:62:00.0"


def no() -> Probe:
    """A fact nobody knows."""
    return Probe(unknown=UNKNOWN)


def device(bdf: str, parent: str = "", root_bus: str = "0000:00", **changes: object) -> PciDevice:
    """A function with unremarkable values; ACS absent."""
    base = PciDevice(
        bdf=bdf,
        vendor=0x1022,
        device=0x1483,
        class_code=0x020000,
        revision=known(1),
        subsystem_vendor=known(0),
        subsystem_device=known(0),
        driver=known(""),
        parent=parent,
        root_bus=root_bus,
        numa_node=known(0),
        runtime_status=known("active"),
        bars=known(()),
        link=known(Link(160, 16, 160, 16)),
        port_type=known("endpoint"),
        acs=known(Acs(is_present=False)),
        ats=known(False),
        mps=known(256),
        iommu_group=known(-1),
        dma_mask_bits=known(64),
    )
    return msgspec.structs.replace(base, **changes)


def bridge(
    bdf: str,
    parent: str = "",
    root_bus: str = "0000:00",
    acs: int | None = 0,
    kind: str = "downstream port",
) -> PciDevice:
    """A port; `acs` None makes its ACS unknown."""
    fact: Probe[Acs] = no() if acs is None else known(Acs(True, 0x5F, acs))
    return device(bdf, parent, root_bus, class_code=0x060400, port_type=known(kind), acs=fact)


def host(root_bus: str, vendor: int = 0x1022, device_id: int = 0x14A4) -> PciDevice:
    return device(
        f"{root_bus}:00.0",
        "",
        root_bus,
        vendor=vendor,
        device=device_id,
        class_code=0x060000,
        port_type=known("pci"),
    )


def hca(name: str = "mlx5_0", bdf: str = NIC_BDF, dmabuf: Probe[bool] | None = None) -> Hca:
    port = IbPort(1, known("ACTIVE"), known("LinkUp"), known("Ethernet"), known("400"), known(()))
    verbs = VerbsState(known(True) if dmabuf is None else dmabuf, no(), no(), no(), no())
    return Hca(
        name, bdf, known("mlx5_core"), known("28.1"), no(), no(), known(()), known((port,)), verbs
    )


def gpu(**changes: object) -> Gpu:
    state = GpuState(
        known(StaticBar1(True, True, 0x20000000, 0x3DFE00000)),
        known(16 * GIB),
        known(False),
        known(False),
        known(True),
    )
    state = msgspec.structs.replace(state, **changes)
    return Gpu(
        0, GPU_BDF, known("NVIDIA Test"), no(), no(), known(0), no(), no(), no(), no(), state
    )


def driver(
    flavour: str | None = "open",
    params: dict[str, str] | None = None,
    dwords: dict[str, str] | None = None,
) -> NvidiaDriver:
    values = {"EnableDmaBufP2P": "1"} if params is None else params
    found = [NvidiaParam(k, v, "/proc/driver/nvidia/params") for k, v in values.items()]
    found += [
        NvidiaParam(k, v, "/proc/driver/nvidia/params RegistryDwords")
        for k, v in (dwords or {}).items()
    ]
    return NvidiaDriver(
        no() if flavour is None else known(flavour),
        known("610.57.04"),
        known(tuple(found)),
        known(False),
    )


def inventory(
    devices: list[PciDevice],
    *,
    cpu: tuple[str, int] | None = ("AuthenticAMD", 25),
    release: str = "7.3.4",
    options: dict[str, str] | None = None,
    domains: dict[int, str] | None = None,
    nvidia: NvidiaDriver | None = None,
    gpus: tuple[Gpu, ...] = (),
    hcas: tuple[Hca, ...] = (),
    nodes: int = 2,
) -> Inventory:
    """A host around the given functions; everything else is unremarkable."""
    values = {"PCI_P2PDMA": "y", "VFIO_PCI_DMABUF": "y"} if options is None else options
    config: Probe = known(tuple(KernelOption(k, v) for k, v in values.items()))
    groups = tuple(
        IommuGroup(n, known(t), tuple(d.bdf for d in devices if d.iommu_group.value == n))
        for n, t in (domains or {}).items()
    )
    return Inventory(
        hostname="test",
        machine=Machine(
            Platform.HARDWARE,
            "test",
            known("none"),
            no(),
            no(),
            no(),
            no() if cpu is None else known(cpu[0]),
            no() if cpu is None else known(cpu[1]),
            no(),
            no(),
            known(nodes),
            no(),
        ),
        kernel=Kernel(known(release), no(), known(""), known(0), (), no(), config, known(())),
        process=Process(known(0), no(), known("none"), known(())),
        pci=known(tuple(devices)),
        iommu=Iommu(known(()), known(groups)),
        nvidia=nvidia or driver(),
        gpus=gpus,
        hcas=hcas,
        modules=known(()),
        limits=Limits(known(Limit(-1, -1)), known(Limit(1024, 1024))),
        libraries=(),
    )


def pair(
    *,
    domain: str | None = "identity",
    mask_bits: Probe[int] | None = None,
    acs: int = 0,
    **more: object,
) -> Inventory:
    """A GPU and a NIC below two root ports of two AMD root buses: what the change was tried on."""
    bars = known(
        (
            Bar(0, 0xE000_0000, 16 << 20, True, False, False),
            Bar(1, 0x20_0000_0000, 16 * GIB, True, True, True),
        )
    )
    group = known(-1) if domain is None else known(7)
    devices = [
        host("0000:40"),
        bridge("0000:40:01.1", "", "0000:40", acs, "root port"),
        device(
            GPU_BDF,
            "0000:40:01.1",
            "0000:40",
            vendor=0x10DE,
            class_code=0x030000,
            bars=bars,
            iommu_group=known(3),
        ),
        host("0000:60"),
        bridge("0000:60:01.1", "", "0000:60", acs, "root port"),
        device(
            NIC_BDF,
            "0000:60:01.1",
            "0000:60",
            vendor=0x15B3,
            iommu_group=group,
            dma_mask_bits=known(64) if mask_bits is None else mask_bits,
        ),
    ]
    domains = {3: "identity"} | ({} if domain is None else {7: domain})
    values = {"gpus": (gpu(),), "hcas": (hca(),)} | more
    return inventory(devices, domains=domains, **values)  # type: ignore[arg-type]
