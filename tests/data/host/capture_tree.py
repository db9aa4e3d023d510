"""Prints the files that the probes of host/ read, as JSON that host_trees.unfold puts back.

    gdrstorm bed exec --bar 64MiB --topology pix -- python3 - < capture_tree.py > bed-pix.json

Reads only. Meant for the VM bed, whose guest has no names worth hiding.
"""

import base64
import json
import sys
import zlib
from pathlib import Path

DEVICE_FILES = """
    vendor device class revision subsystem_vendor subsystem_device numa_node dma_mask_bits
    power/runtime_status resource current_link_speed current_link_width max_link_speed
    max_link_width sriov_numvfs sriov_totalvfs
"""
PLAIN = """
    proc/cmdline proc/cpuinfo proc/meminfo proc/modules proc/self/limits proc/self/status
    proc/self/cgroup proc/self/mountinfo proc/sys/kernel/osrelease proc/sys/kernel/version
    proc/sys/kernel/hostname proc/sys/kernel/tainted sys/kernel/security/lockdown
    sys/class/dmi/id/sys_vendor sys/class/dmi/id/product_name
"""
ROOT = Path("/")

files: dict[str, str] = {}
binary: dict[str, str] = {}
links: dict[str, str] = {}


def take(path: Path) -> None:
    try:
        files[str(path.relative_to(ROOT))] = path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        print(f"left out {path}: {error.strerror}", file=sys.stderr)


def take_all(folder: Path, names: str) -> None:
    for name in names.split():
        if (folder / name).exists():
            take(folder / name)


def take_link(path: Path) -> None:
    if path.is_symlink():
        links[str(path.relative_to(ROOT))] = str(path.readlink())


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def take_device(link: Path) -> None:
    take_link(link)
    real = link.resolve()
    take_all(real, DEVICE_FILES)
    for name in ("driver", "iommu_group", "physfn"):
        take_link(real / name)
    for netdev in entries(real / "net"):
        take(netdev / "address")
    packed = zlib.compress((real / "config").read_bytes(), 9)
    binary[str((real / "config").relative_to(ROOT))] = base64.b64encode(packed).decode()


def take_hca(link: Path) -> None:
    take_link(link)
    real = link.resolve()
    take_link(real / "device")
    take_all(real, "fw_ver board_id node_guid")
    for port in entries(real / "ports"):
        take_all(port, "state phys_state link_layer rate")
        for index in range(8):
            for name in (f"gids/{index}", f"gid_attrs/types/{index}", f"gid_attrs/ndevs/{index}"):
                take_all(port, name)


take_all(ROOT, PLAIN)
for device in entries(Path("/sys/bus/pci/devices")):
    take_device(device)
for group in entries(Path("/sys/kernel/iommu_groups")):
    take(group / "type")
    for member in entries(group / "devices"):
        take_link(member)
for unit in entries(Path("/sys/class/iommu")):
    take_link(unit)
for node in Path("/sys/devices/system/node").glob("node[0-9]*"):
    take(node / "cpulist")
for hca in entries(Path("/sys/class/infiniband")):
    take_hca(hca)
json.dump({"files": files, "binary": binary, "links": links}, sys.stdout, indent=0, sort_keys=True)
