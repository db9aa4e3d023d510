"""Machines of known shape, written with host_trees.Tree: servers with switches, desktops, guests.

Shapes follow public descriptions and the `nvidia-smi topo -m` excerpts in tests/data/host/topo; ids
are those of real parts. Each function writes one machine below a directory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from host_trees import AMD_CPU, CLOSED_DRIVER, INTEL_CPU, OPEN_DRIVER, Function, Tree

GIB, MIB = 1 << 30, 1 << 20
ACS_ON, ACS_OFF = 0x1D, 0x00
NVIDIA, MELLANOX, BROADCOM = 0x10DE, 0x15B3, 0x1000
ROOT_PORT, UPSTREAM, DOWNSTREAM = 4, 5, 6
BRIDGE_CLASS, HOST_CLASS, VGA_CLASS, CLASS_3D = 0x060400, 0x060000, 0x030000, 0x030200
NIC_CLASS = 0x020000
AMD_HOST, INTEL_HOST = (0x1022, 0x14A4), (0x8086, 0x09A2)


def bridge(
    bdf: str, kind: int, *, acs: int | None = ACS_OFF, node: int = -1, group: int | None = None
) -> Function:
    vendor, device = {ROOT_PORT: (0x1022, 0x14AB), UPSTREAM: (BROADCOM, 0xC030)}.get(
        kind, (BROADCOM, 0xC030)
    )
    return Function(
        bdf, vendor, device, BRIDGE_CLASS, "pcieport", node, port_type=kind, acs=acs, group=group
    )


def gpu(
    bdf: str,
    *,
    node: int = -1,
    group: int | None = None,
    start: int = 0x100000000000,
    size: int = 256 * GIB,
    device: int = 0x2335,
    runtime: str = "active",
) -> Function:
    bars = (
        (0, 0x0F0000000000 + (start >> 12), 16 * MIB),
        (2, start, size),
        (4, start + size, 32 * MIB),
    )
    return Function(
        bdf,
        NVIDIA,
        device,
        CLASS_3D,
        "nvidia",
        node,
        bars=bars,
        group=group,
        mask_bits=52,
        runtime=runtime,
        rebar=((2, 1 << 18 | 1 << 17),),
    )


def nic(
    bdf: str,
    *,
    node: int = -1,
    group: int | None = None,
    device: int = 0x1021,
    mask_bits: int = 64,
    physfn: str = "",
) -> Function:
    bars = ((0, 0x0E0000000000 + (int(bdf.split(":")[1], 16) << 25), 32 * MIB),)
    return Function(
        bdf,
        MELLANOX,
        device,
        NIC_CLASS,
        "mlx5_core",
        node,
        bars=bars,
        group=group,
        mask_bits=mask_bits,
        ats=False,
        physfn=physfn,
    )


def host_bridge(bus: str, ids: tuple[int, int], node: int = -1) -> Function:
    return Function(f"{bus}:00.0", *ids, HOST_CLASS, "", node, port_type=None, link=None)


class _Groups:
    """Hands out IOMMU group numbers, or none on a machine without an IOMMU."""

    def __init__(self, tree: Tree, kind: str | None) -> None:
        self.tree, self.kind, self.number = tree, kind, -1

    def next(self) -> int | None:
        if self.kind is None:
            return None
        self.number += 1
        self.tree.groups[self.number] = self.kind
        return self.number


def switched(
    tree: Tree,
    bus: str,
    node: int,
    *,
    host: tuple[int, int],
    groups: _Groups,
    gpus: list[str],
    nics: list[str],
    acs: int = ACS_OFF,
    start: int = 0,
) -> None:
    """Root bus `dddd:bb`: one root port, one switch, GPUs and NICs below it.

    Bus numbers inside count up from the root bus number.
    """
    domain, number = bus.split(":")
    base = int(number, 16)
    tree.function(host_bridge(bus, host, node))
    port = tree.function(bridge(f"{bus}:01.0", ROOT_PORT, acs=acs, node=node, group=groups.next()))
    up = f"{domain}:{base + 1:02x}:00.0"
    tree.function(bridge(up, UPSTREAM, acs=None, node=node, group=groups.next()), port)
    for i, name in enumerate(gpus + nics):
        down = f"{domain}:{base + 2:02x}:{i:02x}.0"
        tree.function(bridge(down, DOWNSTREAM, acs=acs, node=node, group=groups.next()), up)
        bdf = f"{domain}:{base + 3 + i:02x}:00.0"
        if name in gpus:
            place = 0x100000000000 + (start + i) * 512 * GIB
            tree.function(gpu(bdf, node=node, group=groups.next(), start=place), down)
            minor = int(name.removeprefix("gpu"))
            tree.gpu_files(bdf, minor, "NVIDIA H100 80GB HBM3")
        else:
            tree.function(nic(bdf, node=node, group=groups.next()), down)
            tree.hca(f"mlx5_{name.removeprefix('nic')}", bdf, int(name.removeprefix("nic")))


def _server(
    root: Path,
    layout: list[tuple[int, list[str], list[str]]],
    *,
    cpu: tuple[str, int, str],
    host: tuple[int, int],
    domain: str | None = "identity",
    acs: int = ACS_OFF,
    params: str = "",
    version: str = OPEN_DRIVER,
    hypervisor: bool = False,
    nodes: int = 2,
    privileged: bool = True,
) -> Path:
    """A server: for each entry (NUMA node, GPUs, NICs) one root bus with one switch."""
    tree = Tree(root, privileged=privileged)
    tree.machine(cpu=cpu, nodes=nodes, hypervisor=hypervisor, cmdline="quiet iommu=pt")
    tree.nvidia(version, params)
    groups = _Groups(tree, domain)
    for i, (node, gpus, nics) in enumerate(layout):
        switched(
            tree,
            f"0000:{i * 16:02x}",
            node,
            host=host,
            groups=groups,
            gpus=gpus,
            nics=nics,
            acs=acs,
            start=i * 4,
        )
    return root


H100_LAYOUT = [
    (0, ["gpu0"], ["nic0"]),
    (0, ["gpu1"], ["nic1"]),
    (0, ["gpu2"], ["nic2"]),
    (1, [], ["nic3"]),
    (1, ["gpu3"], ["nic4"]),
    (2, ["gpu4"], ["nic5"]),
    (2, ["gpu5"], ["nic6"]),
    (2, [], ["nic7"]),
    (3, ["gpu6"], ["nic8"]),
    (3, ["gpu7"], []),
]
A100_LAYOUT = [
    (0, [], ["nic0"]),
    (1, ["gpu4"], ["nic1"]),
    (0, ["gpu0"], ["nic2"]),
    (1, ["gpu5"], ["nic3"]),
    (0, ["gpu1"], ["nic4"]),
    (1, ["gpu6"], ["nic5"]),
    (0, ["gpu2"], ["nic6"]),
    (1, ["gpu7"], ["nic7"]),
    (0, ["gpu3"], ["nic8"]),
]
PCIE_LAYOUT = [
    (0, ["gpu0"], ["nic0"]),
    (0, ["gpu1"], ["nic1"]),
    (0, ["gpu2"], ["nic2"]),
    (0, [], ["nic3", "nic4", "nic5", "nic6"]),
    (0, ["gpu3"], ["nic7"]),
    (1, ["gpu4"], ["nic8"]),
    (1, ["gpu5"], ["nic9"]),
    (1, ["gpu6"], ["nic10"]),
    (1, [], ["nic11", "nic12"]),
    (1, ["gpu7"], ["nic13"]),
]


def h100(root: Path) -> Path:
    """Two sockets in four NUMA nodes (Intel), a switch per GPU and NIC, ACS off, stock driver."""
    return _server(root, H100_LAYOUT, cpu=INTEL_CPU, host=INTEL_HOST, nodes=4)


def h100_translated(root: Path) -> Path:
    """The same with a translated domain and ACS redirect on."""
    return _server(
        root,
        H100_LAYOUT,
        cpu=INTEL_CPU,
        host=INTEL_HOST,
        nodes=4,
        domain="DMA-FQ",
        acs=ACS_ON,
        params="EnableDmaBufP2P: 1\n",
    )


def h100_unprivileged(root: Path) -> Path:
    """As an ordinary user sees it: 64 bytes of configuration space."""
    return _server(root, H100_LAYOUT, cpu=INTEL_CPU, host=INTEL_HOST, nodes=4, privileged=False)


def a100(root: Path) -> Path:
    """Two AMD sockets; odd NICs on socket 1."""
    return _server(root, A100_LAYOUT, cpu=AMD_CPU, host=AMD_HOST)


def pcie(root: Path) -> Path:
    """Eight PCIe GPUs, fourteen NIC functions, AMD; the change's newer option is on."""
    return _server(root, PCIE_LAYOUT, cpu=AMD_CPU, host=AMD_HOST, params="EnableDmaBufP2P: 1\n")


def cloud_guest(root: Path) -> Path:
    """A cloud guest: a virtual switch per GPU and NIC, and no NUMA node told for any function."""
    layout = [(-1, [f"gpu{i}"], [f"nic{i}"]) for i in range(8)] + [(-1, [], ["nic8", "nic9"])]
    return _server(root, layout, cpu=INTEL_CPU, host=(0x8086, 0x29C0), hypervisor=True)


def big(root: Path) -> Path:
    """8 GPUs, 16 NIC functions below cascaded switches: the size that speed is promised for."""
    layout = [(i // 4, [f"gpu{i}"], [f"nic{2 * i}", f"nic{2 * i + 1}"]) for i in range(8)]
    return _server(root, layout, cpu=AMD_CPU, host=AMD_HOST, params="EnableDmaBufP2P: 1\n")


def gb206(
    root: Path,
    *,
    option: str = "ExperimentalDmaBufP2P: 1\n",
    domain: str | None = "identity",
    cpu: tuple[str, int, str] = AMD_CPU,
    host: tuple[int, int] = AMD_HOST,
    version: str = OPEN_DRIVER,
    runtime: str = "active",
    mask_bits: int = 64,
) -> Path:
    """Two GeForce cards and a dual-port NIC below different root buses of one node (NODE)."""
    tree = Tree(root)
    tree.machine(cpu=cpu, nodes=1, product="Workstation")
    tree.nvidia(version, option)
    groups = _Groups(tree, domain)
    tree.function(host_bridge("0000:40", host, 0))
    for i, bus in enumerate(("41", "42")):
        port = tree.function(
            bridge(f"0000:40:0{i + 1}.1", ROOT_PORT, acs=ACS_ON, node=0, group=groups.next())
        )
        bdf = f"0000:{bus}:00.0"
        tree.function(
            gpu(
                bdf,
                node=0,
                group=groups.next(),
                start=0x20_0000_0000 + i * 32 * GIB,
                size=16 * GIB,
                device=0x2D04,
                runtime=runtime,
            ),
            port,
        )
        tree.gpu_files(bdf, i, "NVIDIA GeForce RTX 5060 Ti")
    tree.function(host_bridge("0000:60", host, 0))
    port = tree.function(bridge("0000:60:01.1", ROOT_PORT, acs=ACS_ON, node=0, group=groups.next()))
    for i in range(2):
        bdf = f"0000:62:00.{i}"
        tree.function(
            nic(bdf, node=0, group=groups.next(), device=0x101F, mask_bits=mask_bits), port
        )
        tree.hca(f"mlx5_{i}", bdf, i, state="4: ACTIVE" if i == 0 else "1: DOWN")
    return root


def gb206_off(root: Path) -> Path:
    """The change is in the driver and off, as its first generation is by default."""
    return gb206(root, option="ExperimentalDmaBufP2P: 0\n")


def gb206_translated(root: Path) -> Path:
    return gb206(root, domain="DMA-FQ")


def gb206_no_iommu(root: Path) -> Path:
    return gb206(root, domain=None)


def gb206_asleep(root: Path) -> Path:
    """Both GPUs runtime-suspended."""
    return gb206(root, runtime="suspended")


def closed_driver(root: Path) -> Path:
    """The proprietary modules."""
    return gb206(root, version=CLOSED_DRIVER, option="")


def desktop(root: Path) -> Path:
    """One GPU and one NIC on two root ports of one Intel client host bridge (PHB), not listed."""
    tree = Tree(root)
    tree.machine(cpu=INTEL_CPU, nodes=1, product="Desktop")
    tree.nvidia()
    groups = _Groups(tree, "DMA-FQ")
    tree.function(host_bridge("0000:00", (0x8086, 0xA700), -1))
    for device, (bus, make) in {"01": ("01", gpu), "06": ("02", nic)}.items():
        port = tree.function(
            bridge(f"0000:00:{device}.0", ROOT_PORT, acs=ACS_ON, group=groups.next())
        )
        bdf = f"0000:{bus}:00.0"
        tree.function(make(bdf, group=groups.next()), port)
        if make is gpu:
            tree.gpu_files(bdf, 0, "NVIDIA GeForce RTX 4090")
        else:
            tree.hca("mlx5_0", bdf)
    return root


def gpu_alone(root: Path) -> Path:
    """A cloud guest with one GPU on its root bus, no NIC and no IOMMU, stock driver."""
    tree = Tree(root)
    tree.machine(cpu=INTEL_CPU, hypervisor=True)
    tree.nvidia(params="GrdmaPciTopoCheckOverride: 0\n")
    tree.function(host_bridge("0000:00", (0x8086, 0x0D57)))
    tree.function(gpu("0000:00:06.0"))
    tree.gpu_files("0000:00:06.0", 0, "NVIDIA H200")
    return root


def one_switch(
    root: Path,
    *,
    acs: int = ACS_OFF,
    cpu: tuple[str, int, str] = INTEL_CPU,
    host: tuple[int, int] = (0x8086, 0x3E30),
    domain: str = "identity",
) -> Path:
    """GPU and NIC below one switch of a machine whose root complex is not listed."""
    return _server(
        root, [(0, ["gpu0"], ["nic0"])], cpu=cpu, host=host, acs=acs, domain=domain, nodes=1
    )


def one_switch_acs(root: Path) -> Path:
    return one_switch(root, acs=ACS_ON)


def two_switches(root: Path) -> Path:
    """A switch below a switch: GPU on the outer one, NIC on the inner one (PXB)."""
    tree = Tree(root)
    tree.machine(cpu=INTEL_CPU, nodes=1)
    tree.nvidia()
    tree.function(host_bridge("0000:00", (0x8086, 0x3E30)))
    port = tree.function(bridge("0000:00:01.0", ROOT_PORT))
    outer = tree.function(bridge("0000:01:00.0", UPSTREAM, acs=None), port)
    a = tree.function(bridge("0000:02:00.0", DOWNSTREAM), outer)
    b = tree.function(bridge("0000:02:01.0", DOWNSTREAM), outer)
    inner = tree.function(bridge("0000:04:00.0", UPSTREAM, acs=None), b)
    c = tree.function(bridge("0000:05:00.0", DOWNSTREAM), inner)
    tree.function(gpu("0000:03:00.0"), a)
    tree.gpu_files("0000:03:00.0", 0, "NVIDIA L40S")
    tree.function(nic("0000:06:00.0"), c)
    tree.hca("mlx5_0", "0000:06:00.0")
    return root


def sriov(root: Path) -> Path:
    """A NIC with two virtual functions, which hang where their physical function hangs."""
    tree = Tree(root)
    tree.machine(cpu=AMD_CPU, nodes=1)
    tree.nvidia()
    groups = _Groups(tree, "identity")
    switched(tree, "0000:00", 0, host=AMD_HOST, groups=groups, gpus=["gpu0"], nics=["nic0"])
    down = "0000:02:01.0"
    for i in (1, 2):
        bdf = f"0000:04:00.{i}"
        tree.function(
            nic(bdf, node=0, group=groups.next(), device=0x101E, physfn="0000:04:00.0"), down
        )
        tree.hca(f"mlx5_{i}", bdf, i)
    base = tree.paths["0000:04:00.0"]
    tree.write(f"{base}/sriov_numvfs", "2")
    tree.write(f"{base}/sriov_totalvfs", "8")
    return root


def vmd(root: Path) -> Path:
    """A root bus below a function (Intel VMD): what hangs there has a host bridge of its own."""
    tree = Tree(root)
    tree.machine(cpu=INTEL_CPU, nodes=1)
    tree.function(host_bridge("0000:00", INTEL_HOST))
    tree.function(Function("0000:00:0e.0", 0x8086, 0x28C0, 0x010400, "vmd", port_type=9, link=None))
    tree.paths["10000:e0"] = tree.paths["0000:00:0e.0"] + "/pci10000:e0"
    port = tree.function(bridge("10000:e0:01.0", ROOT_PORT), "10000:e0")
    tree.function(nic("10000:e1:00.0"), port)
    tree.hca("mlx5_0", "10000:e1:00.0")
    return root


def guest(root: Path) -> Path:
    """The VM bed's guest by its mark: everything in it is emulated."""
    one_switch(root)
    (root / "proc/cmdline").write_text("console=ttyS0 iommu=pt gdrstorm.bed=1\n")
    return root


def arm(root: Path) -> Path:
    """An arm64 machine with a coherent GPU: no x86 CPU fields, host bridge without function 00.0."""
    tree = Tree(root)
    tree.machine(x86=False, nodes=2)
    tree.nvidia(params="GrdmaPciTopoCheckOverride: 0\n")
    for domain, make, group in (("0009", gpu, 4), ("0000", nic, 5)):
        tree.groups[group] = "identity"
        port = Function(
            f"{domain}:00:00.0",
            NVIDIA,
            0x22B9,
            BRIDGE_CLASS,
            "pcieport",
            0,
            port_type=ROOT_PORT,
            acs=ACS_ON,
        )
        tree.function(port)
        bdf = f"{domain}:01:00.0"
        tree.function(make(bdf, node=0, group=group), port.bdf)
        if make is gpu:
            tree.gpu_files(bdf, 0, "NVIDIA GH200 120GB")
        else:
            tree.hca("mlx5_0", bdf)
    return root


def nothing(root: Path) -> Path:
    """No PCI, no RDMA, no /proc: an empty directory."""
    return root


def container(root: Path) -> Path:
    """A read-only container: procfs, but of sysfs only what the runtime masks through."""
    tree = Tree(root)
    tree.machine(cpu=AMD_CPU, config=None)
    tree.write(".dockerenv", "")
    (root / "sys/kernel/iommu_groups").rmdir()
    return root


MACHINES: dict[str, Callable[[Path], Path]] = {
    make.__name__: make
    for make in (
        h100,
        h100_translated,
        h100_unprivileged,
        a100,
        pcie,
        cloud_guest,
        big,
        gb206,
        gb206_off,
        gb206_translated,
        gb206_no_iommu,
        gb206_asleep,
        closed_driver,
        desktop,
        gpu_alone,
        one_switch,
        one_switch_acs,
        two_switches,
        sriov,
        vmd,
        guest,
        arm,
        nothing,
        container,
    )
}
