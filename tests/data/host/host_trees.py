"""Makes file trees that look like machines: the parts of /sys, /proc and /boot that probes read.

`Tree` writes what the kernel would show for a function, a group or a driver; `machines.py` describes
whole servers with it. Written from Documentation/ABI, not from the code under test. Nothing here
was captured from a real machine; trees captured in the VM bed are the bed-*.json files.
"""

from __future__ import annotations

import json
import struct
import zlib
from base64 import b64decode
from dataclasses import dataclass, field
from pathlib import Path

RES_MEM, RES_PREFETCH, RES_MEM_64 = 0x200, 0x2000, 0x100000

AMD_CPU = ("AuthenticAMD", 25, "AMD EPYC 7763 64-Core Processor")
INTEL_CPU = ("GenuineIntel", 6, "Intel(R) Xeon(R) Platinum 8480C")
RELEASE = "7.3.4-test"
CONFIG = (
    "CONFIG_PCI_P2PDMA=y\nCONFIG_VFIO_PCI_DMABUF=y\nCONFIG_DMA_SHARED_BUFFER=y\n"
    "CONFIG_KASAN=y\nCONFIG_PROVE_LOCKING=y\n# CONFIG_DMA_API_DEBUG is not set\n"
    'CONFIG_LOCALVERSION="-test"\n'
)

OPEN_DRIVER = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  610.57.04  Release Build  "
    "(builder@host)  Mon Aug  3 12:00:00 UTC 2026\nGCC version:  gcc version 14.2.0\n"
)
CLOSED_DRIVER = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    "GCC version:  gcc version 12.2.0\n"
)


@dataclass
class Config:
    """Configuration space of one function."""

    vendor: int
    device: int
    class_code: int
    port_type: int | None = 0
    """PCIe device/port type; None makes a conventional PCI function."""
    acs: int | None = None
    """ACS control register; None leaves the capability out."""
    ats: bool | None = None
    rebar: tuple[tuple[int, int], ...] = ()
    """(BAR index, bit mask of sizes: bit n is 2^n MiB)."""
    mps: int = 1
    visible: int = 4096

    def pack(self) -> bytes:
        data = bytearray(4096)
        struct.pack_into("<HHHH", data, 0, self.vendor, self.device, 0x0406, 0x0010)
        data[8:12] = struct.pack("<I", self.class_code << 8 | 0xA1)
        data[0x0E] = 1 if self.class_code >> 8 == 0x0604 else 0
        data[0x34] = 0x40
        if self.port_type is None:
            data[0x40:0x42] = bytes((0x01, 0x00))
            return bytes(data[: min(self.visible, 256)])
        # A power management capability first, so that the list has to be walked.
        data[0x40:0x42] = bytes((0x01, 0x60))
        data[0x60:0x62] = bytes((0x10, 0x00))
        struct.pack_into("<H", data, 0x62, 0x0002 | self.port_type << 4)
        struct.pack_into("<H", data, 0x68, self.mps << 5)
        self._pack_extended(data)
        return bytes(data[: self.visible])

    def _pack_extended(self, data: bytearray) -> None:
        caps: list[tuple[int, bytes]] = [(0x01, bytes(0x3C))]
        if self.acs is not None:
            caps.append((0x0D, struct.pack("<HH", 0x005F, self.acs)))
        if self.ats is not None:
            caps.append((0x0F, struct.pack("<HH", 0x0020, 0x8000 if self.ats else 0)))
        if self.rebar:
            body = b""
            for i, (index, sizes) in enumerate(self.rebar):
                control = index | (len(self.rebar) << 5 if i == 0 else 0)
                body += struct.pack("<II", sizes << 4, control)
            caps.append((0x15, body))
        offset = 0x100
        for i, (cap, body) in enumerate(caps):
            after = offset + 4 + len(body) + 15 & ~15
            following = after if i + 1 < len(caps) else 0
            struct.pack_into("<I", data, offset, cap | 1 << 16 | following << 20)
            data[offset + 4 : offset + 4 + len(body)] = body
            offset = after


@dataclass
class Function:
    """One PCI function; `above` is the path of the bridge (or root bus) it hangs from."""

    bdf: str
    vendor: int
    device: int
    class_code: int
    driver: str = ""
    numa_node: int = -1
    bars: tuple[tuple[int, int, int], ...] = ()
    """(index, start, size): memory, 64 bit, prefetchable."""
    group: int | None = None
    mask_bits: int = 64
    runtime: str = "active"
    link: tuple[str, int, str, int] | None = ("16.0 GT/s PCIe", 16, "16.0 GT/s PCIe", 16)
    port_type: int | None = 0
    acs: int | None = None
    ats: bool | None = None
    rebar: tuple[tuple[int, int], ...] = ()
    physfn: str = ""


@dataclass
class Tree:
    """A machine being written below `root`. `privileged` decides how much config space is seen."""

    root: Path
    privileged: bool = True
    groups: dict[int, str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)

    def write(self, path: str, text: str | bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(text, bytes):
            target.write_bytes(text)
        else:
            target.write_text(text if text.endswith("\n") or not text else text + "\n")

    def link(self, path: str, target: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def machine(
        self,
        *,
        cpu: tuple[str, int, str] = AMD_CPU,
        nodes: int = 1,
        cmdline: str = "BOOT_IMAGE=/vmlinuz quiet",
        hypervisor: bool = False,
        config: str | None = CONFIG,
        product: str = "Server",
        x86: bool = True,
    ) -> None:
        """CPU, kernel, memory and process files."""
        flags = "fpu vme sse2" + (" hypervisor" if hypervisor else "")
        block = "processor\t: {n}\n"
        if x86:
            block += (
                f"vendor_id\t: {cpu[0]}\ncpu family\t: {cpu[1]}\nmodel\t\t: 1\n"
                f"model name\t: {cpu[2]}\nflags\t\t: {flags}\n"
            )
        else:
            block += "CPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"
        self.write("proc/cpuinfo", "\n".join(block.format(n=n) for n in range(4)))
        self.write("proc/meminfo", "MemTotal:       1056748036 kB\nMemFree:  1 kB")
        self.write("proc/cmdline", cmdline)
        self.write("proc/sys/kernel/osrelease", RELEASE)
        self.write("proc/sys/kernel/version", "#1 SMP PREEMPT_DYNAMIC Debian 7.3.4-1")
        self.write("proc/sys/kernel/hostname", "gpu-node-17")
        self.write("proc/sys/kernel/tainted", "12288")
        if config is not None:
            self.write(f"boot/config-{RELEASE}", config)
        self.write("sys/kernel/security/lockdown", "none [integrity] confidentiality")
        self.write("sys/class/dmi/id/sys_vendor", "Example Inc.")
        self.write("sys/class/dmi/id/product_name", product)
        self.write("sys/class/dmi/id/product_serial", "SN-0042-XYZ")
        self.write(
            "proc/self/status", "Name:\tpython3\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff"
        )
        self.write("proc/self/cgroup", "0::/user.slice/session-1.scope")
        self.write("proc/self/mountinfo", "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw")
        self.write(
            "proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units     \n"
            "Max cpu time              unlimited            unlimited            seconds   \n"
            "Max locked memory         8388608              unlimited            bytes     \n"
            "Max open files            1024                 1048576              files     ",
        )
        for node in range(nodes):
            self.write(f"sys/devices/system/node/node{node}/cpulist", "0-3")
        for folder in ("sys/kernel/iommu_groups", "sys/class/iommu", "sys/bus/pci/devices"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)

    def function(self, function: Function, above: str = "") -> str:
        """Write one function below the bridge `above` (or its own root bus); returns its bdf."""
        domain, bus = function.bdf.split(":")[:2]
        base = self.paths[above] if above else f"sys/devices/pci{domain}:{bus}"
        path = f"{base}/{function.bdf}"
        self.paths[function.bdf] = path
        depth = path.count("/")
        self.link(f"sys/bus/pci/devices/{function.bdf}", f"../../../{path.removeprefix('sys/')}")
        self._write_attributes(function, path)
        up = "../" * depth
        if function.driver:
            (self.root / f"sys/bus/pci/drivers/{function.driver}").mkdir(
                parents=True, exist_ok=True
            )
            self.link(f"{path}/driver", f"{up}bus/pci/drivers/{function.driver}")
        if function.group is not None:
            self.link(f"{path}/iommu_group", f"{up}kernel/iommu_groups/{function.group}")
            folder = f"sys/kernel/iommu_groups/{function.group}"
            self.link(
                f"{folder}/devices/{function.bdf}", f"../../../../{path.removeprefix('sys/')}"
            )
            self.write(f"{folder}/type", self.groups.get(function.group, "identity"))
        if function.physfn:
            self.link(f"{path}/physfn", f"../{function.physfn}")
        return function.bdf

    def _write_attributes(self, function: Function, path: str) -> None:
        config = Config(
            function.vendor,
            function.device,
            function.class_code,
            function.port_type,
            function.acs,
            function.ats,
            function.rebar,
            visible=4096 if self.privileged else 64,
        )
        values = {
            "vendor": f"0x{function.vendor:04x}",
            "device": f"0x{function.device:04x}",
            "class": f"0x{function.class_code:06x}",
            "revision": "0xa1",
            "subsystem_vendor": f"0x{function.vendor:04x}",
            "subsystem_device": "0x0001",
            "numa_node": str(function.numa_node),
            "dma_mask_bits": str(function.mask_bits),
            "consistent_dma_mask_bits": str(function.mask_bits),
            "power/runtime_status": function.runtime,
        }
        if function.link:
            names = ("current_link_speed", "current_link_width", "max_link_speed", "max_link_width")
            values |= {n: str(v) for n, v in zip(names, function.link, strict=True)}
        for name, value in values.items():
            self.write(f"{path}/{name}", value)
        self.write(f"{path}/config", config.pack())
        self.write(f"{path}/resource", _resource(function.bars))

    def gpu_files(self, bdf: str, minor: int, model: str) -> None:
        """What the NVIDIA driver shows for one GPU."""
        self.write(
            f"proc/driver/nvidia/gpus/{bdf}/information",
            f"Model: \t\t {model}\nIRQ:   \t\t 130\n"
            f"GPU UUID: \t GPU-0a1b2c3d-0000-1111-2222-33334444{minor:04x}\n"
            "Video BIOS: \t 96.00.99.00.01\nBus Type: \t PCIe\nDMA Size: \t 52 bits\n"
            f"DMA Mask: \t 0xfffffffffffff\nBus Location: \t {bdf}\nDevice Minor: \t {minor}\n"
            "GPU Firmware: \t 610.57.04\nGPU Excluded:\t No",
        )

    def nvidia(self, version: str = OPEN_DRIVER, params: str = "") -> None:
        """The loaded NVIDIA driver."""
        self.write("proc/driver/nvidia/version", version)
        self.write(
            "proc/driver/nvidia/params",
            "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nEnableResizableBar: 0\n"
            f'{params}RegistryDwords: ""\nRegistryDwordsPerDevice: ""\n'
            if "RegistryDwords" not in params
            else params,
        )
        (self.root / "sys/module/nvidia").mkdir(parents=True, exist_ok=True)

    def hca(self, name: str, bdf: str, number: int = 0, *, state: str = "4: ACTIVE") -> None:
        """An RDMA device with one RoCE port on a function."""
        base = f"sys/class/infiniband/{name}"
        self.link(f"{base}/device", f"../../../{self.paths[bdf].removeprefix('sys/')}")
        self.write(f"{base}/fw_ver", "28.43.2026")
        self.write(f"{base}/board_id", "MT_0000000838")
        self.write(f"{base}/node_guid", f"b83f:d203:00a1:{number:04x}")
        self.write(f"{self.paths[bdf]}/net/eth{number}/address", f"b8:3f:d2:a1:00:{number:02x}")
        port = f"{base}/ports/1"
        self.write(f"{port}/state", state)
        self.write(f"{port}/phys_state", "5: LinkUp")
        self.write(f"{port}/link_layer", "Ethernet")
        self.write(f"{port}/rate", "400 Gb/sec (4X NDR)")
        zero = "0000:0000:0000:0000:0000:0000:0000:0000"
        gids = {
            0: f"fe80:0000:0000:0000:ba3f:d2ff:fea1:{number:04x}",
            3: f"0000:0000:0000:0000:0000:ffff:0a09:{number:04x}",
        }
        for index in range(8):
            self.write(f"{port}/gids/{index}", gids.get(index, zero))
            if index in gids:
                self.write(f"{port}/gid_attrs/types/{index}", "RoCE v2")
                self.write(f"{port}/gid_attrs/ndevs/{index}", f"eth{number}")


def _resource(bars: tuple[tuple[int, int, int], ...]) -> str:
    by_index = {index: (start, size) for index, start, size in bars}
    lines = []
    for index in range(17):
        if index in by_index:
            start, size = by_index[index]
            flags = RES_MEM | RES_PREFETCH | RES_MEM_64
            lines.append(f"0x{start:016x} 0x{start + size - 1:016x} 0x{flags:016x}")
        else:
            lines.append("0x" + "0" * 16 + " 0x" + "0" * 16 + " 0x" + "0" * 16)
    return "\n".join(lines)


def unfold(path: Path, root: Path) -> Path:
    """Writes a tree that was captured in the bed (tools: capture_tree.py) below `root`."""
    tree = json.loads(path.read_text())
    for name, text in tree["files"].items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    for name, packed in tree["binary"].items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(zlib.decompress(b64decode(packed)))
    for name, where in tree["links"].items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(where)
    return root
