"""Relations against what `nvidia-smi topo -m` printed for machines of the same shape."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from machines import a100, cloud_guest, desktop, h100, pcie, sriov, two_switches, vmd

from gdrstorm.host import read_inventory
from gdrstorm.model.inventory import Inventory
from gdrstorm.policy import find_path

TOPO = Path(__file__).parents[2] / "data" / "host" / "topo"


def parse_topo(text: str) -> dict[tuple[str, str], str]:
    """(GPU, NIC) to relation of an excerpt; columns are found by their words, not their place."""
    header, *rows = text.splitlines()
    names = re.findall(r"\b(?:GPU|NIC)\d+", header)
    found = {}
    for row in rows:
        gpu, *cells = row.split()
        for name, cell in zip(names, cells, strict=False):
            if name.startswith("NIC"):
                found[gpu, name] = cell
    return found


def relations(there: Inventory) -> dict[tuple[str, str], str]:
    """The same as the oracle sees it: GPUs by the driver's minor number, NICs by name."""
    found = {}
    for gpu in there.gpus:
        for hca in there.hcas:
            a, b = there.pci_device(gpu.bdf), there.pci_device(hca.bdf)
            assert a and b
            relation = find_path(there, a, b).relation.value
            name = "NIC" + hca.name.removeprefix("mlx5_")
            found[f"GPU{gpu.minor.value}", name] = relation.value if relation else "?"
    return found


@pytest.mark.parametrize(
    ("make", "excerpt", "count"),
    [
        (h100, "topo_h100_8gpu_9nic_rows.txt", 54),
        (a100, "topo_a100_8gpu_9nic_rows.txt", 63),
        (pcie, "topo_8x_pcie_14nic_row.txt", 56),
    ],
)
def test_relations_are_those_of_nvidia_smi(make, excerpt: str, count: int, tmp_path: Path) -> None:
    want = parse_topo((TOPO / excerpt).read_text())
    assert len(want) == count
    got = relations(read_inventory(make(tmp_path)))
    assert {pair: got[pair] for pair in want} == want


def test_without_numa_nodes_only_common_switches_are_known(tmp_path: Path) -> None:
    """nvidia-smi prints SYS for the rest of such a guest; nobody told either of us the nodes."""
    want = parse_topo((TOPO / "topo_vm_all_sys_8gpu_10nic_rows.txt").read_text())
    got = relations(read_inventory(cloud_guest(tmp_path)))
    assert len(want) == 60
    assert {p: {"PIX": "PIX", "SYS": "?"}[want[p]] for p in want} == {p: got[p] for p in want}


def only_path(root: Path):
    there = read_inventory(root)
    a, b = there.pci_device(there.gpus[0].bdf), there.pci_device(there.hcas[0].bdf)
    assert a and b
    return find_path(there, a, b)


def test_the_path_is_spelled_out_bridge_by_bridge(tmp_path: Path) -> None:
    path = only_path(two_switches(tmp_path))
    assert path.relation.value and path.relation.value.value == "PXB"
    assert path.up == ("0000:02:00.0",)
    assert path.common == "0000:01:00.0"
    assert path.down == ("0000:02:01.0", "0000:04:00.0", "0000:05:00.0")
    assert str(path) == (
        "0000:03:00.0 > 0000:02:00.0 > [0000:01:00.0] > 0000:02:01.0 > 0000:04:00.0 > "
        "0000:05:00.0 > 0000:06:00.0"
    )


def test_two_root_ports_of_one_host_bridge_are_phb(tmp_path: Path) -> None:
    path = only_path(desktop(tmp_path))
    assert path.relation.value and path.relation.value.value == "PHB"
    assert (path.common, path.up, path.down) == ("", ("0000:00:01.0",), ("0000:00:06.0",))
    assert "[host bridge 0000:00]" in str(path)


def test_virtual_functions_hang_where_their_physical_function_hangs(tmp_path: Path) -> None:
    there = read_inventory(sriov(tmp_path))
    gpu = there.pci_device(there.gpus[0].bdf)
    assert gpu and [h.name for h in there.hcas] == ["mlx5_0", "mlx5_1", "mlx5_2"]
    for hca in there.hcas:
        nic = there.pci_device(hca.bdf)
        assert nic
        assert nic.physfn == ("" if hca.name == "mlx5_0" else "0000:04:00.0")
        assert find_path(there, gpu, nic).common == "0000:01:00.0"


def test_a_root_bus_below_a_function_starts_a_chain_of_its_own(tmp_path: Path) -> None:
    there = read_inventory(vmd(tmp_path))
    nic = there.pci_device("10000:e1:00.0")
    assert nic and nic.root_bus == "10000:e0"
    port = there.pci_device(nic.parent)
    assert port and (port.bdf, port.parent) == ("10000:e0:01.0", "")
