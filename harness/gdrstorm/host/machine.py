"""The box and who asks: DMI, CPU, hypervisor, container, limits, and hardware against emulated.

Reads /sys/class/dmi, /proc/cpuinfo, /proc/self. The embedded bed marks its guest with
`gdrstorm.bed=1` on the kernel command line; a machine whose CPU is software is emulated with or
without that mark.
"""

from __future__ import annotations

import re
from pathlib import Path

from gdrstorm.host.sysfs import read_as, read_link_name, read_names, read_text, read_value
from gdrstorm.model.inventory import (
    Limit,
    Limits,
    Machine,
    Platform,
    Probe,
    Process,
    Why,
    known,
    unknown,
)

BED_MARK = "gdrstorm.bed=1"
# The bed's other settings mark its guest as well.
_BED_WORDS = "gdrstorm."

_CONTAINER_WORDS = ("kubepods", "docker", "libpod", "containerd", "lxc", "garden")
_SEEN_HYPERVISORS = (
    ("qemu", "QEMU"),
    ("kvm", "KVM"),
    ("firecracker", "Firecracker"),
    ("vmware", "VMware"),
    ("microsoft corporation virtual", "Hyper-V"),
    ("amazon ec2", "EC2"),
    ("google compute engine", "GCE"),
    ("xen", "Xen"),
    ("innotek", "VirtualBox"),
)


def parse_cpuinfo(text: str) -> dict[str, str]:
    """Fields of the first processor in /proc/cpuinfo."""
    fields = {}
    for line in text.split("\n\n", 1)[0].splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields[name.strip()] = value.strip()
    return fields


def _cpu_field(text: Probe[str], name: str) -> Probe[str]:
    if text.value is None:
        return Probe(unknown=text.unknown)
    value = parse_cpuinfo(text.value).get(name)
    return unknown(Why.NO_FILE, f"{name!r} in /proc/cpuinfo") if value is None else known(value)


def _read_cpu_vendor(text: Probe[str]) -> Probe[str]:
    """The x86 vendor; other architectures are named by their implementer or left `not x86`."""
    vendor = _cpu_field(text, "vendor_id")
    if text.value is None or vendor.is_known:
        return vendor
    implementer = _cpu_field(text, "CPU implementer").get("")
    return known(f"implementer {implementer}" if implementer else "not x86")


def find_hypervisor(cpuinfo: Probe[str], names: tuple[str, ...]) -> Probe[str]:
    """`none`, or who runs this machine as far as CPU flags and DMI names tell."""
    if cpuinfo.value is None:
        return Probe(unknown=cpuinfo.unknown)
    fields = parse_cpuinfo(cpuinfo.value)
    seen = " ".join((*names, fields.get("model name", ""))).lower()
    match = next((label for word, label in _SEEN_HYPERVISORS if word in seen), None)
    if "hypervisor" in fields.get("flags", "").split():
        return known(match or "some hypervisor")
    if "flags" not in fields and match is None:
        # Only x86 has a flag for it; elsewhere silence says nothing.
        return unknown(Why.NO_FILE, "hypervisor flag in /proc/cpuinfo")
    return known(match or "none")


def decide_platform(
    cmdline: Probe[str], hypervisor: Probe[str], cpu_model: Probe[str], has_real_pci: bool
) -> tuple[Platform, str]:
    """Whether runs here may be called hardware; when in doubt they may not.

    `has_real_pci`: a GPU or NIC function is here that this machine's hypervisor does not make up.
    """
    mark = next((w for w in (cmdline.value or "").split() if w.startswith(_BED_WORDS)), "")
    if mark:
        return Platform.EMULATED, f"kernel command line has {mark}"
    if "tcg" in (cpu_model.value or "").lower():
        return Platform.EMULATED, f"CPU is software: {cpu_model.value}"
    if hypervisor.value == "none":
        return Platform.HARDWARE, "no hypervisor"
    known_name = hypervisor.value is not None
    reason = f"virtual machine under {hypervisor}" if known_name else f"hypervisor {hypervisor}"
    if has_real_pci:
        return Platform.HARDWARE, f"{reason}, with PCI GPU or NIC functions passed through"
    return Platform.EMULATED, f"{reason}, without a GPU or RDMA NIC function"


def parse_limits(text: str) -> dict[str, Limit]:
    """Rows of /proc/PID/limits by name; unlimited is -1."""
    rows = {}
    for match in re.finditer(
        r"^(Max [a-z ]+?) {2,}(\d+|unlimited) +(\d+|unlimited)", text, re.MULTILINE
    ):
        soft, hard = (-1 if v == "unlimited" else int(v) for v in match.group(2, 3))
        rows[match[1]] = Limit(soft, hard)
    return rows


def read_limits(root: Path) -> Limits:
    text = read_text(root / "proc/self/limits")

    def one(name: str) -> Probe[Limit]:
        if text.value is None:
            return Probe(unknown=text.unknown)
        limit = parse_limits(text.value).get(name)
        return unknown(Why.UNREADABLE, f"{name} in limits") if limit is None else known(limit)

    return Limits(memlock=one("Max locked memory"), nofile=one("Max open files"))


def _parse_status(text: str, name: str, base: int) -> int:
    match = re.search(rf"^{name}:\s*(\w+)", text, re.MULTILINE)
    if not match:
        raise ValueError(name)
    return int(match[1], base)


def find_container(root: Path) -> Probe[str]:
    """`none` or the kind of container, by the marks that container tools leave."""
    if (root / ".dockerenv").exists():
        return known("docker")
    if (root / "run/.containerenv").exists():
        return known("podman")
    cgroup = read_text(root / "proc/self/cgroup")
    if cgroup.value is None:
        return Probe(unknown=cgroup.unknown)
    mounts = (read_text(root / "proc/self/mountinfo").value or "").split("\n", 1)[0]
    word = next((w for w in _CONTAINER_WORDS if w in cgroup.value or w in mounts), None)
    return known(word or ("overlay root" if " / / " in mounts and "overlay" in mounts else "none"))


def _read_namespaces(folder: Path) -> Probe[tuple[str, ...]]:
    """`net:[4026531840]` and so on: equal texts are one namespace."""
    names = read_names(folder)
    if names.value is None:
        return names
    return known(tuple(read_link_name(folder / name).get(name) for name in names.value))


def read_process(root: Path) -> Process:
    status = read_text(root / "proc/self/status")
    return Process(
        uid=read_value(status, lambda text: _parse_status(text, "Uid", 10)),
        capabilities=read_value(status, lambda text: _parse_status(text, "CapEff", 16)),
        container=find_container(root),
        namespaces=_read_namespaces(root / "proc/self/ns"),
    )


def _parse_memory(text: str) -> int:
    match = re.search(r"^MemTotal:\s*(\d+) kB", text, re.MULTILINE)
    if not match:
        raise ValueError("MemTotal")
    return int(match[1]) << 10


def _count_nodes(root: Path) -> Probe[int]:
    names = read_names(root / "sys/devices/system/node")
    if names.value is None:
        return Probe(unknown=names.unknown)
    return known(sum(bool(re.fullmatch(r"node\d+", name)) for name in names.value))


def read_machine(root: Path, cmdline: Probe[str], has_real_pci: bool) -> Machine:
    dmi = root / "sys/class/dmi/id"
    cpuinfo = read_text(root / "proc/cpuinfo")
    vendor, product = read_text(dmi / "sys_vendor"), read_text(dmi / "product_name")
    hypervisor = find_hypervisor(cpuinfo, (vendor.get(""), product.get("")))
    cpu_model = _cpu_field(cpuinfo, "model name")
    platform, reason = decide_platform(cmdline, hypervisor, cpu_model, has_real_pci)
    return Machine(
        platform=platform,
        platform_reason=reason,
        hypervisor=hypervisor,
        vendor=vendor,
        product=product,
        serial=read_text(dmi / "product_serial"),
        cpu_vendor=_read_cpu_vendor(cpuinfo),
        cpu_family=read_value(_cpu_field(cpuinfo, "cpu family"), int),
        cpu_model=cpu_model,
        cpu_count=read_value(
            cpuinfo, lambda t: len(re.findall(r"^processor\s*:", t, re.MULTILINE))
        ),
        numa_nodes=_count_nodes(root),
        memory_bytes=read_as(root / "proc/meminfo", _parse_memory),
    )
