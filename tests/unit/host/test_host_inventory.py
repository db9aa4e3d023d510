"""Whole inventories: every machine answers, JSON keeps them, redaction hides them, it is fast."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from host_trees import unfold
from machines import MACHINES, big, container, gb206, h100, nothing

from gdrstorm.errors import UsageError
from gdrstorm.host import read_inventory
from gdrstorm.host.redact import redact_inventory
from gdrstorm.model.inventory import Inventory, decode_inventory, encode_inventory, known
from gdrstorm.policy import LINUX_POLICY, P2P_POLICY, judge_pair

DATA = Path(__file__).parents[2] / "data" / "host"


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_every_machine_answers_and_survives_json(name: str, tmp_path: Path) -> None:
    there = read_inventory(MACHINES[name](tmp_path))
    data = encode_inventory(there)
    assert decode_inventory(data) == there
    text = data.decode()
    assert '"value": null' not in text and "Traceback" not in text


def probes_of(value: object) -> list[dict]:
    """Every {"value"} or {"unknown"} in a JSON tree."""
    if isinstance(value, dict):
        here = (
            [value]
            if value.keys() & {"value", "unknown"} and value.keys() <= {"value", "unknown"}
            else []
        )
        return here + [p for v in value.values() for p in probes_of(v)]
    if isinstance(value, list):
        return [p for v in value for p in probes_of(v)]
    return []


@pytest.mark.parametrize("make", [nothing, container, h100])
def test_a_probe_is_a_value_or_a_reason_never_both_or_neither(make, tmp_path: Path) -> None:
    probes = probes_of(json.loads(encode_inventory(read_inventory(make(tmp_path)))))
    assert len(probes) > 30
    for probe in probes:
        assert len(probe) == 1, probe
        if "unknown" in probe:
            assert probe["unknown"]["why"] and probe["unknown"]["detail"]


def test_a_host_with_nothing(tmp_path: Path) -> None:
    there = read_inventory(nothing(tmp_path))
    assert there.pci.unknown and there.modules.unknown and there.kernel.release.unknown
    assert (there.gpus, there.hcas, there.hostname) == ((), (), "unknown")


def test_the_live_machine_answers() -> None:
    there = read_inventory(hash_files=False)
    assert there.kernel.release.is_known and there.limits.nofile.is_known
    assert decode_inventory(encode_inventory(there)) == there


def test_reading_changes_nothing(tmp_path: Path) -> None:
    root = gb206(tmp_path)

    def snapshot() -> dict[str, tuple[int, int]]:
        return {str(p): (p.lstat().st_mtime_ns, p.lstat().st_size) for p in root.rglob("*")}

    before = snapshot()
    read_inventory(root)
    assert snapshot() == before


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cannot read inventory"),
        (b"[]", "cannot read inventory"),
        (b'{"schema_version": 99}', "schema 99"),
        (b'{"schema_version": 1}', "missing required field"),
    ],
)
def test_files_that_are_no_inventory(data: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        decode_inventory(data)


NAMES = [
    "gpu-node-17",
    "SN-0042-XYZ",
    "GPU-0a1b2c3d-0000-1111-2222-333344440000",
    "b83f:d203:00a1:0001",
    "fe80:0000:0000:0000:ba3f:d2ff:fea1:0001",
    "0000:0000:0000:0000:0000:ffff:0a09:0001",
    "b8:3f:d2:a1:00:01",
    "b83fd2a10001",
    "11111111-2222-3333-4444-555555555555",
    "10.9.0.1",
]


@pytest.fixture
def named(tmp_path: Path) -> Inventory:
    """An inventory whose free text carries names as well."""
    there = read_inventory(gb206(tmp_path))
    cmdline = (
        "root=UUID=11111111-2222-3333-4444-555555555555 ip=10.9.0.1::10.9.0.254:gpu-node-17 "
        "BOOTIF=01-b8-3f-d2-a1-00-01 ifname=enxb83fd2a10001:b8:3f:d2:a1:00:01 iommu=pt"
    )
    kernel = msgspec.structs.replace(there.kernel, cmdline=known(cmdline))
    return msgspec.structs.replace(there, kernel=kernel)


def test_redaction_hides_every_name(named: Inventory) -> None:
    plain = encode_inventory(named).decode()
    assert all(name in plain for name in NAMES)
    text = encode_inventory(redact_inventory(named)).decode()
    assert [name for name in NAMES if name.lower() in text.lower()] == []
    assert re.search(r"iommu=pt", text)


def test_redaction_is_consistent_and_repeatable(named: Inventory) -> None:
    first, second = redact_inventory(named), redact_inventory(named)
    assert first == second and first.is_redacted
    assert redact_inventory(first) == first
    cmdline = first.kernel.cmdline.get("")
    assert cmdline.count(first.hostname) == 1
    inside, outside = re.findall(r"ifname=enx(mac-\d+):(mac-\d+)", cmdline)[0]
    assert inside == outside
    guids = [h.node_guid.value for h in first.hcas]
    assert len(set(guids)) == 2


def test_a_redacted_inventory_answers_like_the_original(named: Inventory) -> None:
    hidden = redact_inventory(named)
    for gpu in named.gpus:
        for hca in named.hcas:
            before = judge_pair(named, P2P_POLICY, gpu.bdf, hca.name)
            after = judge_pair(hidden, P2P_POLICY, gpu.bdf, hca.name)
            assert (before.decision, before.route) == (after.decision, after.route)
            assert [f.answer for f in before.findings] == [f.answer for f in after.findings]


def test_versions_and_addresses_of_functions_stay(named: Inventory) -> None:
    hidden = redact_inventory(named)
    assert hidden.nvidia.version == named.nvidia.version
    assert [d.bdf for d in hidden.pci.get(())] == [d.bdf for d in named.pci.get(())]
    assert hidden.hcas[0].firmware == named.hcas[0].firmware
    assert hidden.gpus[0].vbios == named.gpus[0].vbios


def test_a_large_server_is_read_with_few_reads(tmp_path: Path) -> None:
    """Speed as work, not as time: reads grow with functions, never with pairs."""
    root = big(tmp_path)
    opened = []
    real = Path.open
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Path, "open", lambda self, *a, **k: opened.append(self) or real(self, *a, **k)
        )
        there = read_inventory(root)
        reads = len(opened)
        for gpu in there.gpus:
            for hca in there.hcas:
                judge_pair(there, P2P_POLICY, gpu.bdf, hca.name)
    assert (len(there.gpus), len(there.hcas)) == (8, 16)
    assert reads < 25 * len(there.pci.get(())) + 40 * len(there.hcas) + 200
    assert len(opened) == reads, "a judge that reads files"


@pytest.mark.parametrize(
    ("name", "relation", "domain", "distance"),
    [("bed-pix-translated", "PIX", "DMA", 4), ("bed-sys-identity", "?", "identity", 4)],
)
def test_trees_captured_in_the_bed(
    name: str, relation: str, domain: str, distance: int, tmp_path: Path
) -> None:
    """A real kernel's files: a stand-in GPU (ivshmem) and a virtual ConnectX in QEMU."""
    there = read_inventory(unfold(DATA / f"{name}.json", tmp_path))
    assert there.machine.platform.value == "emulated"
    (hca,) = there.hcas
    (bar,) = [d.bdf for d in there.pci.get(()) if (d.vendor, d.device) == (0x1AF4, 0x1110)]
    admission = judge_pair(there, LINUX_POLICY, bar, hca.name)
    assert admission.path
    # Its first host bridge names no NUMA node, so the distance between nodes is not known.
    seen = admission.path.relation.value
    assert (seen.value if seen else "?") == relation
    nic = there.pci_device(hca.bdf)
    assert nic and nic.driver == known("mlx5_core")
    groups = {g.number: g.type.get("") for g in there.iommu.groups.get(())}
    assert groups[nic.iommu_group.get(-1)].startswith(domain)
    assert admission.route and admission.route.distance.value == distance
    assert hca.ports.get(())[0].state == known("ACTIVE")
