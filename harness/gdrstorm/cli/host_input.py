"""What the verbs check, topo and inventory share: reading the host, choosing pairs, asking policies.

Imports are inside the functions, so that `gdrstorm --help` stays fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdrstorm.model.admission import Admission
    from gdrstorm.model.inventory import Inventory


def load_inventory(source: Path | None, *, hash_files: bool) -> Inventory:
    """From a file, or of this machine with everything that can be asked."""
    from gdrstorm.errors import UsageError
    from gdrstorm.model.inventory import decode_inventory

    if source is not None:
        try:
            return decode_inventory(source.read_bytes())
        except OSError as error:
            raise UsageError(f"cannot read {source}: {error.strerror}") from None
    from gdrstorm.host import GpuStateReader, read_inventory

    reader: GpuStateReader | None = None
    if Path("/proc/driver/nvidia/version").exists():
        from gdrstorm.stack.exporter.rm_state import RmStateReader

        reader = RmStateReader()
    return read_inventory(hash_files=hash_files, gpu_reader=reader)


def find_exporters(inventory: Inventory, wanted: str) -> list[str]:
    """bdfs of the exporter that was asked for, or of every GPU, or of the stand-ins for GPUs."""
    from gdrstorm.errors import UsageError
    from gdrstorm.policy import find_bar_exporters

    if wanted:
        for gpu in inventory.gpus:
            names = {str(gpu.index), f"gpu{gpu.index}", gpu.bdf, gpu.uuid.value}
            if wanted in names or wanted.lower() in names:
                return [gpu.bdf]
        if inventory.pci_device(wanted.lower()):
            return [wanted.lower()]
        count = len(inventory.gpus)
        raise UsageError(
            f"no such GPU: {wanted} ({count} here)", "give an index, a UUID or a PCI function"
        )
    if inventory.gpus:
        return [gpu.bdf for gpu in inventory.gpus]
    return list(find_bar_exporters(inventory))


def find_importers(inventory: Inventory, wanted: str) -> list[str]:
    """Names of the RDMA device that was asked for, or of all that are PCI functions."""
    from gdrstorm.errors import UsageError
    from gdrstorm.policy import find_importers

    hcas = find_importers(inventory)
    if not wanted:
        return [hca.name for hca in hcas]
    mine = [hca.name for hca in hcas if wanted in {hca.name, hca.bdf}]
    if not mine:
        names = ", ".join(hca.name for hca in hcas) or "none"
        raise UsageError(f"no such hca: {wanted}", f"PCI RDMA devices here: {names}")
    return mine


def judge_all(
    inventory: Inventory, exporters: list[str], importers: list[str], policy: str
) -> tuple[Admission, ...]:
    """Every pair by the policy that was asked for, or by each that fits the exporter."""
    from gdrstorm.errors import UsageError
    from gdrstorm.policy import DEFAULT_POLICY, LINUX_POLICY, P2P_POLICY, POLICIES, judge_pair

    if policy and policy not in POLICIES:
        raise UsageError(f"no such policy: {policy}", f"one of {', '.join(POLICIES)}")
    gpus = {gpu.bdf for gpu in inventory.gpus}
    admissions = []
    for exporter in exporters:
        fitting = (P2P_POLICY, DEFAULT_POLICY) if exporter in gpus else (LINUX_POLICY,)
        # Without an RDMA device there is still what the exporter alone decides.
        for importer in importers or [""]:
            for name in (policy,) if policy else fitting:
                admissions.append(judge_pair(inventory, name, exporter, importer))
    return tuple(admissions)
