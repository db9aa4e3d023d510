"""Draws the PCI tree of a host for a terminal: only what leads to GPUs, RDMA devices and exporters.

Pure: an Inventory in, lines of text out. Bridges show their ACS redirect, functions their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gdrstorm.model.inventory import Inventory, PciDevice

# PCI_ACS_RR | PCI_ACS_CR | PCI_ACS_EC
_REDIRECT = 0x2C


def find_interesting(inventory: Inventory, extra: Iterable[str] = ()) -> set[str]:
    """bdfs of GPUs, RDMA functions and `extra`, with every bridge above them."""
    by_bdf = {d.bdf: d for d in inventory.pci.value or ()}
    wanted = {g.bdf for g in inventory.gpus} | {h.bdf for h in inventory.hcas} | set(extra)
    found: set[str] = set()
    for bdf in wanted:
        # A chain ends at a root bus; what was seen before has its bridges already.
        while bdf in by_bdf and bdf not in found:
            found.add(bdf)
            bdf = by_bdf[bdf].parent
    return found


def describe_device(inventory: Inventory, device: PciDevice) -> str:
    """One line for a function: bdf, what it is, link, ACS, IOMMU group."""
    gpu = next((g for g in inventory.gpus if g.bdf == device.bdf), None)
    hca = next((h for h in inventory.hcas if h.bdf == device.bdf), None)
    if gpu:
        what = f"GPU{gpu.index} {gpu.name.get('')}".strip()
    elif hca:
        what = f"{hca.name} ({hca.driver.get('no driver')})"
    elif device.is_bridge:
        what = device.port_type.get("bridge")
    else:
        what = f"{device.vendor:04x}:{device.device:04x} {device.driver.get('')}".strip()
    parts = [device.bdf, what]
    if device.link.value and device.link.value.width:
        parts.append(f"x{device.link.value.width} {device.link.value.speed / 10:g} GT/s")
    if device.is_bridge:
        parts.append(_describe_acs(device))
    elif device.iommu_group.get(-1) >= 0:
        parts.append(f"group {device.iommu_group.value} {_domain(inventory, device)}")
    if device.physfn:
        parts.append(f"VF of {device.physfn}")
    return "  ".join(p for p in parts if p)


def _describe_acs(device: PciDevice) -> str:
    acs = device.acs.value
    if acs is None:
        return "ACS unknown"
    if not acs.is_present:
        return ""
    return "ACS redirects" if acs.control & _REDIRECT else "ACS direct"


def _domain(inventory: Inventory, device: PciDevice) -> str:
    for group in inventory.iommu.groups.value or ():
        if group.number == device.iommu_group.value:
            return group.type.get("domain unknown")
    return ""


def _draw(
    inventory: Inventory, parent: str, children: dict[str, list[PciDevice]], indent: str
) -> Iterator[str]:
    mine = children.get(parent, [])
    for i, device in enumerate(mine):
        last = i == len(mine) - 1
        yield f"{indent}{'└─' if last else '├─'} {describe_device(inventory, device)}"
        yield from _draw(inventory, device.bdf, children, indent + ("   " if last else "│  "))


def group_children(inventory: Inventory, shown: set[str]) -> dict[str, list[PciDevice]]:
    """Shown functions by the bridge above them; by their root bus where there is none."""
    children: dict[str, list[PciDevice]] = {}
    for device in inventory.pci.value or ():
        if device.bdf in shown:
            children.setdefault(device.parent or device.root_bus, []).append(device)
    return children


def render_tree(inventory: Inventory, extra: Iterable[str] = ()) -> list[str]:
    """The tree, one line a function, root buses grouped by NUMA node."""
    if inventory.pci.value is None:
        return [f"PCI: {inventory.pci}"]
    shown = find_interesting(inventory, extra)
    children = group_children(inventory, shown)
    roots = sorted({d.root_bus for d in inventory.pci.value if d.bdf in shown})
    if not roots:
        return ["no GPU and no RDMA device on PCI"]
    lines = []
    for root in roots:
        node = next((d.numa_node.get(-1) for d in inventory.pci.value if d.root_bus == root), -1)
        lines.append(f"host bridge {root}  NUMA node {node if node >= 0 else 'unknown'}")
        lines.extend(_draw(inventory, root, children, ""))
    return lines
