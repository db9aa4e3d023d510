"""Which devices a run tests, and which witnesses look at them beside the kernel log."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from gdrstorm.kmsg.witness import Witness
from gdrstorm.kmsg.witness.nvml import NvmlWitness
from gdrstorm.kmsg.witness.select import select_witnesses
from gdrstorm.model.inventory import Hca, Inventory
from gdrstorm.model.plan import StackChoice

_RDMA = ("verbs", "uverbs", "host-memory")
_GPU = ("cuda", "rm")


class UnderTest(msgspec.Struct, frozen=True):
    """The devices of one run, and the ports and switches above them on the bus."""

    bdfs: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    ibdevs: tuple[str, ...] = ()
    netdevs: tuple[str, ...] = ()


def devices_of(stack: StackChoice, inventory: Inventory) -> UnderTest:
    """What a stack will touch. Where no device is named, all of the kind count: the default is one of them."""
    bdfs: list[str] = []
    hcas: list[Hca] = []
    if stack.importer in _RDMA:
        named = [hca for hca in inventory.hcas if hca.name == stack.importer_device]
        hcas = named or list(inventory.hcas)
        bdfs += [hca.bdf for hca in hcas if hca.bdf]
    if stack.exporter in _GPU:
        wanted = stack.exporter_device.split(",")[0]
        gpus = [gpu for gpu in inventory.gpus if wanted in (gpu.bdf, str(gpu.index))]
        bdfs += [gpu.bdf for gpu in gpus or inventory.gpus]
    if stack.exporter == "vfio" and stack.exporter_device:
        bdfs.append(stack.exporter_device.split(",")[0])
    return UnderTest(
        bdfs=tuple(dict.fromkeys(bdfs)),
        beside=tuple(_bridges_above(bdfs, inventory)),
        ibdevs=tuple(hca.name for hca in hcas),
        netdevs=tuple(name for hca in hcas for name in hca.netdevs.value or ()),
    )


def _bridges_above(bdfs: Iterable[str], inventory: Inventory) -> list[str]:
    found: dict[str, None] = {}
    for bdf in bdfs:
        device = inventory.pci_device(bdf)
        while device is not None and device.parent and device.parent not in found:
            found[device.parent] = None
            device = inventory.pci_device(device.parent)
    return list(found)


def make_witnesses(
    stack: StackChoice, devices: UnderTest, pids: Callable[[], Iterable[int]]
) -> list[Witness]:
    """Witnesses for a stack, not started yet; none where nothing but the fakes is exercised."""
    if stack.exporter == stack.importer == "fake":
        return []
    found = select_witnesses(
        (*devices.bdfs, *devices.beside), devices.ibdevs, devices.netdevs, pids
    )
    if stack.exporter in _GPU:
        found.append(NvmlWitness(devices.bdfs[0] if len(devices.bdfs) == 1 else ""))
    return found
