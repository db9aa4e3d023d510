"""The oracle against the kernel: predicted and observed admission of a BAR by mlx5, in the VM bed.

`pytest tests/vm/test_policy_matrix.py` boots a handful of machines; GDRSTORM_MATRIX=full boots all
of them (half an hour without KVM) and GDRSTORM_MATRIX_OUT names a file for the table, which
docs/POLICY.md keeps. Each boot gives two rows: the domain as booted and the other one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gdrstorm.bed.vm import Bed, BedOptions, Domain, Iommu, Topology, find_image

pytestmark = pytest.mark.vm

SCRIPT = Path(__file__).with_name("guest_policy.py")
BAR_BYTES = 64 << 20
FULL = os.environ.get("GDRSTORM_MATRIX") == "full"
# TCG's Skylake is no AMD and its host bridge is not listed; EPYC is Zen; `max` is an AMD of family 6.
Row = dict[str, object]
EPYC, SKYLAKE, OLD_AMD = "EPYC", "Skylake-Server", "max"


class Case(msgspec.Struct, frozen=True):
    topology: Topology
    iommu: Iommu
    domain: Domain
    cpu: str

    @property
    def other(self) -> str:
        """What the group is switched to for the second row."""
        return "DMA" if self.domain is Domain.IDENTITY else "identity"

    def __str__(self) -> str:
        return f"{self.topology.value}-{self.iommu.value}-{self.domain.value}-{self.cpu}"


def list_cases() -> list[Case]:
    few = [
        Case(Topology.PHB, Iommu.INTEL, Domain.IDENTITY, EPYC),
        Case(Topology.PHB, Iommu.INTEL, Domain.IDENTITY, SKYLAKE),
        Case(Topology.PIX, Iommu.INTEL, Domain.IDENTITY, SKYLAKE),
    ]
    if not FULL:
        return few
    rest = [
        Case(topology, Iommu.INTEL, Domain.IDENTITY, cpu)
        for topology in Topology
        for cpu in (EPYC, SKYLAKE)
    ]
    rest += [
        Case(Topology.PHB, Iommu.INTEL, Domain.TRANSLATED, EPYC),
        Case(Topology.PIX, Iommu.INTEL, Domain.TRANSLATED, SKYLAKE),
        Case(Topology.PHB, Iommu.INTEL, Domain.IDENTITY, OLD_AMD),
        Case(Topology.PHB, Iommu.VIRTIO, Domain.IDENTITY, EPYC),
        Case(Topology.PIX, Iommu.VIRTIO, Domain.IDENTITY, SKYLAKE),
        Case(Topology.PHB, Iommu.VIRTIO, Domain.IDENTITY, SKYLAKE),
        Case(Topology.PHB, Iommu.AMD, Domain.IDENTITY, EPYC),
        Case(Topology.PIX, Iommu.AMD, Domain.IDENTITY, EPYC),
    ]
    return list(dict.fromkeys([*few, *rest]))


@pytest.fixture(scope="module")
def table() -> Iterator[list[Row]]:
    """All rows, told as they come; the table is printed at the end."""
    rows: list[Row] = []
    yield rows
    print("\n" + render(rows))


def keep(rows: list[Row]) -> None:
    """The table so far, where the environment says."""
    if out := os.environ.get("GDRSTORM_MATRIX_OUT"):
        Path(out).write_text(render(rows))


def render(rows: list[Row]) -> str:
    """The matrix as a table in Markdown."""
    names = (
        "topology",
        "iommu",
        "cpu",
        "domain",
        "relation",
        "distance",
        "kind",
        "predicted",
        "observed",
    )
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    for row in rows:
        seen = f"{row['observed']} {row['errno']}".strip()
        cells = [str(row[n]) for n in names[:-1]] + [seen]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


@pytest.mark.skipif(find_image() is None, reason="the VM bed is not built: gdrstorm bed build")
@pytest.mark.parametrize("case", list_cases(), ids=str)
def test_predicted_is_observed(case: Case, table: list[Row]) -> None:
    options = BedOptions(
        bars=(BAR_BYTES,),
        topology=case.topology,
        iommu=case.iommu,
        domain=case.domain,
        cpu=case.cpu,
    )
    with Bed(options) as bed:
        done = bed.run(["python3", "-", case.other], stdin=SCRIPT.read_bytes(), timeout_s=400)
    assert done.status == 0, done.stderr.decode()
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    asked = [row for row in rows if "skipped" not in row]
    for row in asked:
        table.append(row | {"topology": case.topology, "iommu": case.iommu, "cpu": case.cpu})
    keep(table)
    assert asked and asked[0]["platform"] == "emulated"
    for row in asked:
        assert row["predicted"] == row["observed"], row


def test_both_answers_were_seen(table: list[Row]) -> None:
    """A matrix that only admits, or only rejects, proves nothing."""
    if not table:
        pytest.skip("no machine booted")
    assert {row["observed"] for row in table} == {"admit", "reject"}
    if FULL:
        assert len(table) >= 24
