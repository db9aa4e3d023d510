"""The QEMU command line and the kernel's, made from options: pure, no I/O.

QEMU runs from the bed's tree with the tree's own dynamic linker, so host libraries and QEMU's never
mix and nothing has to be mounted. Guest RAM and BARs are shared memory files: the device model maps
them (vfio-user).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gdrstorm.bed.vm.guest.wire import AGENT_PORT, JOURNAL_PORT
from gdrstorm.bed.vm.options import Accel, BedOptions, Domain, Iommu, LinkLayer, Topology
from gdrstorm.errors import UsageError

_LIB = "usr/lib/x86_64-linux-gnu"
_FIRMWARE = ("usr/share/qemu", "usr/share/seabios")
# First bus number of the second host bridge; the first bridge's switches and ports stay far below.
_PXB_BUS = 64
# Without HPET: the kernel leaves it ticking 250 times a second, idle or not, and each tick wakes QEMU.
_MACHINE = "q35,hpet=off,smbus=off,sata=off,usb=off,vmport=off,graphics=off"
_CMDLINE_BASE = (
    "gdrstorm.bed=1",  # says to everybody inside that nothing here is hardware
    "console=ttyS0",
    "panic=-1",  # with -no-reboot: QEMU ends when the kernel panics
    "printk.devkmsg=on",  # else /dev/kmsg drops lines beyond ten
    "loglevel=7",
    "no_timer_check",  # on a busy host a vCPU misses ticks, and the check panics
    "tsc=reliable",  # likewise the clocksource watchdog
    "mitigations=off",  # only speed: nothing here is about speculation
    "random.trust_cpu=on",
    "cryptomgr.notests",
    "audit=0",
)
_IOMMU_WORDS = {
    Iommu.NONE: (),
    Iommu.INTEL: ("intel_iommu=on",),
    Iommu.VIRTIO: (),
    Iommu.AMD: ("amd_iommu=on",),
}
_IOMMU_DEVICE = {
    Iommu.INTEL: "intel-iommu,caching-mode=on,intremap=on",
    Iommu.VIRTIO: "virtio-iommu-pci,bus=pcie.0",
    Iommu.AMD: "amd-iommu,intremap=on,dma-remap=on",
}


class Channels(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of the socket descriptors that QEMU inherits."""

    qmp: int
    agent: int
    journal: int


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """Paths that one QEMU uses, and what else it takes from this host."""

    tree: Path
    kernel: Path
    initramfs: Path
    package: Path  # directory `gdrstorm`, staged for the guest's Python
    console_log: Path
    hca_sockets: tuple[Path, ...] = ()
    tsc_khz: int | None = None  # of the host, where the guest sees its counter (TCG)


def tree_command(tree: Path, program: str) -> list[str]:
    """How to run a program of the tree on this host, without chroot."""
    linker = tree / "lib64/ld-linux-x86-64.so.2"
    return [str(linker), "--inhibit-cache", "--library-path", str(tree / _LIB), str(tree / program)]


def tree_environment(tree: Path) -> dict[str, str]:
    """Environment for `tree_command`: QEMU's loadable parts come from the tree too."""
    return {"QEMU_MODULE_DIR": str(tree / _LIB / "qemu")}


def modules_to_load(options: BedOptions) -> tuple[str, ...]:
    """Modules the guest loads at boot, each once, in order."""
    names: list[str] = []
    if options.hca:
        # mlx5_core is on its way since /init: what does not wait for it comes first
        names += ["ib_uverbs", "rdma_ucm", "mlx5_ib"]
    if options.rxe:
        names += ["dummy", "rdma_rxe", "ib_uverbs", "rdma_ucm"]
    if options.bars:
        names += ["vfio_iommu_type1", "vfio_pci"]
    return tuple(dict.fromkeys([*names, *options.load]))


def kernel_cmdline(options: BedOptions, tsc_khz: int | None = None) -> str:
    """The guest kernel's command line; what follows `gdrstorm.` is read by the guest's init."""
    words = [*_CMDLINE_BASE, *_IOMMU_WORDS[options.iommu]]
    if options.iommu is not Iommu.NONE:
        words.append("iommu=pt" if options.domain is Domain.IDENTITY else "iommu=nopt")
    if tsc_khz is not None:
        words.append(f"tsc_early_khz={tsc_khz}")
    load = modules_to_load(options)
    if load:
        words.append(f"gdrstorm.load={','.join(load)}")
    for name, wanted in (
        ("rxe", options.rxe),
        ("bars", options.bars),
        ("share", options.share),
        ("modules_share", options.modules),
    ):
        if wanted:
            words.append(f"gdrstorm.{name}=1")
    return " ".join([*words, options.append]).rstrip()


def proof_argv(tree: Path, kernel: Path, initramfs: Path) -> list[str]:
    """The smallest KVM machine that boots the bed's kernel to its init, console on stdout."""
    argv = [*_program(tree), "-accel", "kvm", "-machine", _MACHINE + ",kernel-irqchip=split"]
    argv += ["-cpu", "host", "-smp", "2", "-m", "512M", "-serial", "stdio"]
    argv += ["-kernel", str(kernel), "-initrd", str(initramfs)]
    return [*argv, "-append", " ".join([*_CMDLINE_BASE, "gdrstorm.proof"])]


def _program(tree: Path) -> list[str]:
    argv = tree_command(tree, "usr/bin/qemu-system-x86_64")
    for directory in _FIRMWARE:
        argv += ["-L", str(tree / directory)]
    argv += ["-name", "gdrstorm-bed,process=gdrstorm-qemu", "-nodefaults", "-no-user-config"]
    return [*argv, "-display", "none", "-no-reboot"]


def qemu_argv(options: BedOptions, files: Files, channels: Channels, accel: Accel) -> list[str]:
    """The whole command line; `accel` is kvm or tcg."""
    argv = [*_program(files.tree), *_machine(options, accel)]
    argv += ["-kernel", str(files.kernel), "-initrd", str(files.initramfs)]
    argv += ["-append", kernel_cmdline(options, files.tsc_khz)]
    # vIOMMU first: devices behind it must find it
    if options.iommu is not Iommu.NONE:
        argv += ["-device", _IOMMU_DEVICE[options.iommu]]
    argv += _channels(channels, files.console_log)
    argv += _shares(options, files)
    argv += [word for device in _devices(options, files) for word in device]
    return argv


def _machine(options: BedOptions, accel: Accel) -> Iterator[str]:
    # Interrupt remapping needs the split irqchip under KVM; TCG has one kind only
    kvm = accel is Accel.KVM
    numa = options.topology in (Topology.NODE, Topology.SYS)
    machine = _MACHINE + (",kernel-irqchip=split" if kvm else "")
    yield from ("-accel", "kvm" if kvm else "tcg,thread=multi")
    yield from ("-cpu", options.cpu, "-smp", _smp(options), "-m", f"{options.memory_bytes}B")
    yield from ("-machine", machine if numa else machine + ",memory-backend=ram0")
    nodes = 2 if options.topology is Topology.SYS else 1
    for node in range(nodes):
        size = options.memory_bytes // nodes
        yield from ("-object", f"memory-backend-memfd,id=ram{node},size={size},share=on")
    if numa:
        yield from _numa(options.smp, nodes)


def _smp(options: BedOptions) -> str:
    # CPUs of two nodes in one socket would share a cache, and the scheduler warns about that
    if options.topology is Topology.SYS:
        return f"{options.smp},sockets=2,cores={options.smp // 2},threads=1"
    return str(options.smp)


def _numa(smp: int, nodes: int) -> Iterator[str]:
    first = 0
    for node in range(nodes):
        last = smp * (node + 1) // nodes - 1
        yield from ("-numa", f"node,nodeid={node},memdev=ram{node},cpus={first}-{last}")
        first = last + 1


def _channels(channels: Channels, console_log: Path) -> Iterator[str]:
    yield from ("-chardev", f"socket,id=qmp,fd={channels.qmp}", "-qmp", "chardev:qmp")
    # A file, not a socket: see console.py
    yield from ("-chardev", f"file,id=console,path={_escape(console_log)}")
    yield from ("-serial", "chardev:console", "-device", "virtio-serial-pci,bus=pcie.0")
    for number, (name, fd) in enumerate(
        ((AGENT_PORT, channels.agent), (JOURNAL_PORT, channels.journal)), start=1
    ):
        yield from ("-chardev", f"socket,id=port{number},fd={fd}")
        yield from ("-device", f"virtserialport,chardev=port{number},name={name},nr={number}")


def _shares(options: BedOptions, files: Files) -> Iterator[str]:
    shares = [("tree", files.tree), ("package", files.package)]
    if options.modules:
        shares.append(("modules", options.modules.absolute()))
    if options.share:
        shares.append(("share", options.share.absolute()))
    for tag, path in shares:
        yield "-fsdev"
        yield (
            f"local,id={tag},path={_escape(path)},security_model=none,readonly=on,multidevs=remap"
        )
        yield from ("-device", f"virtio-9p-pci,bus=pcie.0,fsdev={tag},mount_tag={tag}")


def _escape(path: Path) -> str:
    return str(path).replace(",", ",,")


def _device(driver: str, **properties: object) -> tuple[str, str]:
    """`-device` in JSON, the only form that takes a nested socket address."""
    return "-device", json.dumps({"driver": driver, **properties})


def _devices(options: BedOptions, files: Files) -> Iterator[tuple[str, str]]:
    if len(files.hca_sockets) != options.hca:
        raise UsageError(f"{options.hca} HCAs but {len(files.hca_sockets)} sockets")
    ports = _Ports(options)
    yield from ports.shared()
    for number, socket in enumerate(files.hca_sockets):
        yield ports.port(f"rp-hca{number}", far=False)
        address = {"type": "unix", "path": str(socket)}
        yield _device("vfio-user-pci", id=f"hca{number}", bus=f"rp-hca{number}", socket=address)
    for number, size in enumerate(options.bars):
        yield "-object", f"memory-backend-memfd,id=barmem{number},size={size},share=on"
        yield ports.port(f"rp-bar{number}", far=True)
        yield _device(
            "ivshmem-plain", id=f"bar{number}", bus=f"rp-bar{number}", memdev=f"barmem{number}"
        )
    if options.aer:
        yield _device("pcie-root-port", id="aer0", bus="pcie.0", chassis=200, slot=200)
    if options.edu:
        yield _device("edu", id="edu0", bus="pcie.0")


class _Ports:
    """Hands out the downstream port for each device, as the topology wants it."""

    def __init__(self, options: BedOptions) -> None:
        self._topology = options.topology if options.bars else Topology.PHB
        self._slot = 0

    def shared(self) -> Iterator[tuple[str, str]]:
        """The switch or the second host bridge that the ports hang on."""
        if self._topology is Topology.PIX:
            yield _device("pcie-root-port", id="rp-switch", bus="pcie.0", chassis=100, slot=100)
            yield _device("x3130-upstream", id="switch", bus="rp-switch")
        elif self._topology in (Topology.NODE, Topology.SYS):
            node = 1 if self._topology is Topology.SYS else 0
            yield _device("pxb-pcie", id="pxb", bus="pcie.0", bus_nr=_PXB_BUS, numa_node=node)

    def port(self, name: str, *, far: bool) -> tuple[str, str]:
        """A downstream port called `name`; `far` ports are on the BARs' side."""
        self._slot += 1
        place = {"id": name, "chassis": self._slot, "slot": self._slot}
        if self._topology is Topology.PIX:
            return _device("xio3130-downstream", bus="switch", **place)
        remote = far and self._topology in (Topology.NODE, Topology.SYS)
        return _device("pcie-root-port", bus="pxb" if remote else "pcie.0", **place)


def model_argv(
    python: str, sockets: tuple[Path, ...], control: Path, link_layer: LinkLayer
) -> list[str]:
    """Command line of the device model process that serves the HCAs."""
    argv = [python, "-m", "gdrstorm.bed.connectx.server"]
    for socket in sockets:
        argv += ["--socket", str(socket)]
    return [*argv, "--control", str(control), "--link-layer", link_layer.value]
