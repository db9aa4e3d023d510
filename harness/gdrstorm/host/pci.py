"""PCI functions from sysfs to records, with the tree above each of them.

Reads only attributes that come from kernel memory, plus configuration space and link status of
functions whose reading wakes no sleeping GPU (see sleep.py).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from gdrstorm.host.pci_config import ConfigFacts, parse_config_space, unknown_facts
from gdrstorm.host.sleep import Sleeper, find_untouchable
from gdrstorm.host.sysfs import (
    read_as,
    read_hex,
    read_int,
    read_link_name,
    read_names,
    read_text,
)
from gdrstorm.model.inventory import (
    Bar,
    Iommu,
    IommuGroup,
    Link,
    PciDevice,
    Probe,
    Unknown,
    Why,
    known,
)

_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT_BUS = re.compile(r"pci([0-9a-f]{4,8}:[0-9a-f]{2})")

# include/linux/ioport.h
_RES_IO, _RES_MEM, _RES_PREFETCH, _RES_MEM_64 = 0x100, 0x200, 0x2000, 0x100000
_BAR_COUNT = 6


def parse_device_path(path: str) -> tuple[str, str]:
    """Parent bdf (empty on a root bus) and root bus of the last function in a /sys/devices path.

    A root bus may hang below a function (VMD): the chain starts anew there, as in the kernel.
    """
    parent = bdf = root_bus = ""
    for part in path.split("/"):
        if match := _ROOT_BUS.fullmatch(part):
            root_bus, bdf = match[1], ""
        elif _BDF.fullmatch(part):
            parent, bdf = bdf, part
    return parent, root_bus


def parse_resource(text: str) -> tuple[Bar, ...]:
    """BARs 0 to 5 of the `resource` attribute: `start end flags` a line, zeros when unused."""
    bars = []
    for index, line in enumerate(text.splitlines()[:_BAR_COUNT]):
        start, end, flags = (int(word, 16) for word in line.split())
        if not flags or end < start or (not start and not end):
            continue
        bars.append(
            Bar(
                index=index,
                start=start,
                size=end - start + 1,
                is_memory=bool(flags & _RES_MEM),
                is_64bit=bool(flags & _RES_MEM_64),
                is_prefetchable=bool(flags & _RES_PREFETCH),
            )
        )
    return tuple(bars)


def parse_link_speed(text: str) -> int:
    """Tenths of GT/s of `16.0 GT/s PCIe`; 0 for `Unknown`."""
    match = re.match(r"(\d+)(?:\.(\d))?", text)
    return int(match[1]) * 10 + int(match[2] or 0) if match else 0


def read_config_facts(path: Path) -> ConfigFacts:
    """Facts of the configuration space in a file, reading only what they need."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        denied = isinstance(error, PermissionError)
        why = Why.NO_PERMISSION if denied else Why.NO_FILE
        return unknown_facts(Unknown(why, str(path)))
    try:
        return parse_config_space(lambda offset, length: os.pread(fd, length, offset))
    except OSError as error:
        return unknown_facts(Unknown(Why.UNREADABLE, f"{path}: {error.strerror}"))
    finally:
        os.close(fd)


def _read_link(path: Path, asleep: Unknown | None) -> Probe[Link]:
    if asleep:
        return Probe(unknown=asleep)
    fields = (
        read_as(path / "current_link_speed", parse_link_speed),
        read_int(path / "current_link_width"),
        read_as(path / "max_link_speed", parse_link_speed),
        read_int(path / "max_link_width"),
    )
    if fields[0].unknown or fields[1].unknown:
        return Probe(unknown=fields[0].unknown or fields[1].unknown)
    speed, width, max_speed, max_width = (f.get(0) for f in fields)
    # 255 is the kernel's "not reported" width.
    return known(Link(speed, width % 255, max_speed, max_width % 255))


def _with_resizable(bars: Probe[tuple[Bar, ...]], facts: ConfigFacts) -> Probe[tuple[Bar, ...]]:
    if bars.value is None:
        return bars
    if facts.resizable.value is None:
        sizes = {
            b.index: Probe[tuple[int, ...]](unknown=facts.resizable.unknown) for b in bars.value
        }
    else:
        by_index = dict(facts.resizable.value)
        sizes = {b.index: known(by_index.get(b.index, ())) for b in bars.value}
    return known(
        tuple(
            Bar(
                b.index,
                b.start,
                b.size,
                b.is_memory,
                b.is_64bit,
                b.is_prefetchable,
                sizes[b.index],
            )
            for b in bars.value
        )
    )


def _read_target(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return str(path)


def _absent_is(probe: Probe[str], value: str) -> Probe[str]:
    """A link that does not exist says something: no driver, no group, no physical function."""
    if probe.unknown and probe.unknown.why is Why.NO_FILE:
        return known(value)
    return probe


def _read_sleeper(path: Path) -> Sleeper:
    parent, _ = parse_device_path(_read_target(path))
    status = read_text(path / "power/runtime_status")
    return Sleeper(path.name, parent, read_hex(path / "class").get(0), status)


def read_device(path: Path, asleep: Unknown | None = None) -> PciDevice:
    """One function at /sys/bus/pci/devices/<bdf>; `asleep` is why it must be left alone."""
    parent, root_bus = parse_device_path(_read_target(path))
    status = read_text(path / "power/runtime_status")
    facts = unknown_facts(asleep) if asleep else read_config_facts(path / "config")
    bars = read_as(path / "resource", parse_resource)
    group = _absent_is(read_link_name(path / "iommu_group"), "-1")
    return PciDevice(
        bdf=path.name,
        vendor=read_hex(path / "vendor").get(0),
        device=read_hex(path / "device").get(0),
        class_code=read_hex(path / "class").get(0),
        revision=read_hex(path / "revision"),
        subsystem_vendor=read_hex(path / "subsystem_vendor"),
        subsystem_device=read_hex(path / "subsystem_device"),
        driver=_absent_is(read_link_name(path / "driver"), ""),
        parent=parent,
        root_bus=root_bus,
        numa_node=read_int(path / "numa_node"),
        runtime_status=status,
        bars=_with_resizable(bars, facts),
        link=_read_link(path, asleep),
        port_type=facts.port_type,
        acs=facts.acs,
        ats=facts.ats,
        mps=facts.mps,
        iommu_group=Probe(unknown=group.unknown) if group.unknown else known(int(group.get("-1"))),
        dma_mask_bits=read_int(path / "dma_mask_bits"),
        physfn=_absent_is(read_link_name(path / "physfn"), "").get(""),
        numvfs=read_int(path / "sriov_numvfs"),
        totalvfs=read_int(path / "sriov_totalvfs"),
    )


def read_devices(root: Path) -> Probe[tuple[PciDevice, ...]]:
    """Every function, sorted by bdf; empty on a machine without PCI."""
    folder = root / "sys/bus/pci/devices"
    names = read_names(folder)
    if names.value is None:
        return Probe(unknown=names.unknown)
    paths = [folder / name for name in names.value if _BDF.fullmatch(name)]
    sleepers = {path.name: _read_sleeper(path) for path in paths}
    leave = find_untouchable(sleepers.values())
    asleep = {
        bdf: Unknown(Why.ASLEEP, f"runtime status is {sleepers[bdf].status}, a GPU would wake")
        for bdf in leave
    }
    return known(tuple(read_device(path, asleep.get(path.name)) for path in paths))


def read_iommu(root: Path) -> Iommu:
    """IOMMU units and groups with their domain types."""
    folder = root / "sys/kernel/iommu_groups"
    names = read_names(folder)
    groups: Probe[tuple[IommuGroup, ...]]
    if names.value is None:
        groups = Probe(unknown=names.unknown)
    else:
        numbers = sorted(int(name) for name in names.value if name.isdigit())
        groups = known(
            tuple(
                IommuGroup(
                    number=number,
                    type=read_text(folder / str(number) / "type"),
                    bdfs=read_names(folder / str(number) / "devices").get(()),
                )
                for number in numbers
            )
        )
    return Iommu(units=read_names(root / "sys/class/iommu"), groups=groups)
