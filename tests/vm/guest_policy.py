"""Runs inside the guest: what the oracle predicts for each BAR and HCA, and what the kernel does.

    python3 - [DOMAIN ...] < guest_policy.py

For the domain as booted and then for each DOMAIN (identity, DMA) that the HCA's IOMMU group is
switched to, one JSON line a pair. The inventory is read and judged before anything is tried.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from gdrstorm.errors import CallError, GdrstormError, errno_name
from gdrstorm.host import read_inventory
from gdrstorm.model.admission import Admission
from gdrstorm.model.inventory import Inventory
from gdrstorm.policy import LINUX_POLICY, judge_pair
from gdrstorm.policy.common import read_domain
from gdrstorm.stack.exporter.vfio import VfioExporter
from gdrstorm.stack.importer.verbs import VerbsImporter
from gdrstorm.stack.vfio_bind import bind_vfio, stand_in_bdfs

SIZE = 1 << 16
READ_WRITE = 7
PCI = Path("/sys/bus/pci/devices")


def observe(bar: str, hca: str) -> tuple[str, str]:
    """(admit or reject, errno name) of exporting a range of the BAR and registering it."""
    try:
        with bind_vfio(bar), VfioExporter.open(bar) as exporter:
            memory = exporter.alloc(SIZE)
            buffer = exporter.export(memory, 0, SIZE)
            try:
                with VerbsImporter.open(hca) as importer:
                    importer.register(buffer.fd, 0, SIZE, 0, READ_WRITE).close()
            finally:
                buffer.close()
                memory.close()
    except CallError as error:
        return "reject", errno_name(error.errno)
    except GdrstormError as error:
        return "reject", str(error)
    return "admit", ""


def switch_domain(hca_bdf: str, kind: str) -> str:
    """Give the HCA's group another default domain; returns why it could not be done, or nothing."""
    device = PCI / hca_bdf
    driver = (device / "driver").resolve()
    group = (device / "iommu_group").resolve()
    (driver / "unbind").write_text(hca_bdf)
    try:
        (group / "type").write_text(kind)
        problem = ""
    except OSError as error:
        problem = f"cannot write {kind} to {group}/type: {error.strerror}"
    finally:
        (driver / "bind").write_text(hca_bdf)
    deadline = time.monotonic() + 60
    while not list(Path("/sys/class/infiniband").glob("*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    return problem


def tell_pairs(variant: str) -> None:
    there = read_inventory(hash_files=False)
    admissions = {
        (bar, hca.name): judge_pair(there, LINUX_POLICY, bar, hca.name)
        for bar in stand_in_bdfs()
        for hca in there.hcas
        if hca.bdf
    }
    for (bar, hca), admission in admissions.items():
        seen, why = observe(bar, hca)
        print(
            json.dumps(describe(there, variant, admission) | {"observed": seen, "errno": why}),
            flush=True,
        )


def describe(there: Inventory, variant: str, admission: Admission) -> dict[str, object]:
    """The prediction in words, with what it rests on."""
    importer = there.pci_device(admission.importer)
    path, route = admission.path, admission.route
    assert importer and path and route
    return {
        "variant": variant,
        "relation": path.relation.value.value if path.relation.value else "?",
        "domain": str(read_domain(there, importer)),
        "cpu": f"{there.machine.cpu_vendor} {there.machine.cpu_family}",
        "platform": there.machine.platform.value,
        "predicted": admission.decision.value,
        "distance": route.distance.value,
        "kind": route.kind.value.value if route.kind.value else "?",
        "rule": route.rule,
        "reasons": [str(finding) for finding in admission.reasons],
        "path": str(path),
    }


def main() -> None:
    tell_pairs("as booted")
    hcas = [hca.bdf for hca in read_inventory(hash_files=False, ask_devices=False).hcas if hca.bdf]
    for kind in sys.argv[1:]:
        problems = [switch_domain(bdf, kind) for bdf in hcas]
        if any(problems):
            print(
                json.dumps({"variant": kind, "skipped": "; ".join(filter(None, problems))}),
                flush=True,
            )
        else:
            tell_pairs(kind)


if __name__ == "__main__":
    main()
