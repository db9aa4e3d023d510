"""Where two PCI functions meet: the bridges between them and the relation nvidia-smi would print.

Pure over an Inventory. PIX: at most one switch (or one bridge) in common; PXB: several; PHB: the
same host bridge; NODE: other host bridges of one NUMA node; SYS: across nodes. Chains follow
pci_upstream_bridge(): a virtual function hangs where its physical function hangs.
"""

from __future__ import annotations

from gdrstorm.model.admission import PairPath, Relation
from gdrstorm.model.inventory import Inventory, PciDevice, Probe, Unknown, Why, known

# Deeper trees do not exist (256 buses); a longer chain is a loop in bad data.
_MAX_DEPTH = 256
# Through one switch: downstream, upstream, downstream; the devices at both ends make it 4 steps.
_ONE_SWITCH = 4


def find_chain(inventory: Inventory, device: PciDevice) -> tuple[PciDevice, ...]:
    """The function and every bridge above it, lowest first."""
    by_bdf = {d.bdf: d for d in inventory.pci.value or ()}
    chain = [device]
    for _ in range(_MAX_DEPTH):
        above = by_bdf.get(chain[-1].parent)
        if above is None:
            break
        chain.append(above)
    return tuple(chain)


def find_node(chain: tuple[PciDevice, ...]) -> Probe[int]:
    """NUMA node of a function, or of the nearest bridge that knows one."""
    for device in chain:
        if device.numa_node.value is not None and device.numa_node.value >= 0:
            return device.numa_node
    if chain[0].numa_node.unknown:
        return Probe(unknown=chain[0].numa_node.unknown)
    return Probe(unknown=Unknown(Why.NO_FILE, f"{chain[0].bdf} names no NUMA node"))


def _relate(
    a: tuple[PciDevice, ...], b: tuple[PciDevice, ...], steps: int | None, one_node: bool
) -> Probe[Relation]:
    if a[0].bdf == b[0].bdf:
        return known(Relation.SELF)
    if steps is not None:
        return known(Relation.PIX if steps <= _ONE_SWITCH else Relation.PXB)
    if a[0].root_bus and a[0].root_bus == b[0].root_bus:
        return known(Relation.PHB)
    # A machine with one node has nothing to cross, whatever the functions say.
    if one_node:
        return known(Relation.NODE)
    nodes = find_node(a), find_node(b)
    for node in nodes:
        if node.unknown:
            return Probe(unknown=node.unknown)
    return known(Relation.NODE if nodes[0].value == nodes[1].value else Relation.SYS)


def find_path(inventory: Inventory, exporter: PciDevice, importer: PciDevice) -> PairPath:
    """The whole way from one function to the other."""
    a, b = find_chain(inventory, exporter), find_chain(inventory, importer)
    index_b = {device.bdf: i for i, device in enumerate(b)}
    common = next(((i, index_b[d.bdf]) for i, d in enumerate(a) if d.bdf in index_b), None)
    steps = None if common is None else sum(common)
    up = a[1:] if common is None else a[1 : common[0]]
    down = b[1:] if common is None else b[1 : common[1]]
    return PairPath(
        exporter=exporter.bdf,
        importer=importer.bdf,
        relation=_relate(a, b, steps, inventory.machine.numa_nodes.value == 1),
        up=tuple(device.bdf for device in up),
        common="" if common is None else a[common[0]].bdf,
        down=tuple(device.bdf for device in reversed(down)),
        root_buses=(exporter.root_bus, importer.root_bus),
    )
