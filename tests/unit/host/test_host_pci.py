"""Configuration space, BARs and the tree: from bytes and files to records, never beyond them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from host_trees import Config
from hypothesis import given
from hypothesis import strategies as st
from machines import ACS_ON, gb206_asleep, h100, h100_unprivileged, nothing, one_switch_acs, sriov

from gdrstorm.host import read_inventory
from gdrstorm.host.pci import (
    parse_device_path,
    parse_link_speed,
    parse_resource,
    read_config_facts,
    read_devices,
)
from gdrstorm.host.pci_config import ConfigFacts, parse_config_space
from gdrstorm.host.sleep import Sleeper, find_untouchable
from gdrstorm.model.inventory import Acs, Bar, Link, Probe, Unknown, Why, known

MIB = 1 << 20


def parse(data: bytes) -> ConfigFacts:
    return parse_config_space(lambda offset, length: data[offset : offset + length])


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "endpoint"),
        (4, "root port"),
        (5, "upstream port"),
        (6, "downstream port"),
        (12, "type 12"),
    ],
)
def test_port_types(number: int, name: str) -> None:
    assert parse(Config(0x10DE, 1, 0x030000, number).pack()).port_type == known(name)


def test_everything_in_one_function() -> None:
    data = Config(
        0x10DE, 1, 0x030000, acs=ACS_ON, ats=True, rebar=((2, 1 << 8 | 1 << 18), (4, 1)), mps=2
    ).pack()
    facts = parse(data)
    assert facts.acs == known(Acs(True, 0x5F, ACS_ON))
    assert (facts.ats, facts.mps) == (known(True), known(512))
    assert facts.resizable == known(((2, (256 * MIB, 1 << 38)), (4, (MIB,))))


def test_without_the_capabilities() -> None:
    facts = parse(Config(0x10DE, 1, 0x030000).pack())
    assert facts.acs == known(Acs(is_present=False))
    assert (facts.ats, facts.resizable) == (known(False), known(()))


def test_conventional_functions_have_no_acs() -> None:
    facts = parse(Config(0x8086, 1, 0x060000, None).pack())
    assert (facts.port_type, facts.acs) == (known("pci"), known(Acs(is_present=False)))
    assert facts.mps.unknown and facts.mps.unknown.why is Why.NO_DEVICE


def test_hidden_space_is_unknown_and_never_off() -> None:
    facts = parse(Config(0x10DE, 1, 0x060400, 6, acs=ACS_ON, visible=64).pack())
    for probe in (facts.acs, facts.ats, facts.port_type, facts.mps, facts.resizable):
        assert probe.unknown and probe.unknown.why is Why.NO_PERMISSION


def test_a_function_that_fell_off_the_bus() -> None:
    facts = parse(b"\xff" * 4096)
    assert facts.acs.unknown and facts.acs.unknown.why is Why.UNREADABLE


def test_loops_in_capability_lists_end() -> None:
    data = bytearray(Config(0x10DE, 1, 0x030000).pack())
    data[0x41] = 0x40
    assert parse(bytes(data)).port_type == known("pci")
    loop = bytearray(Config(0x10DE, 1, 0x030000, acs=1).pack())
    struct.pack_into("<I", loop, 0x100, 0x0001 | 1 << 16 | 0x100 << 20)
    assert parse(bytes(loop)).acs == known(Acs(is_present=False))


@given(st.binary(max_size=600))
def test_any_bytes_give_an_answer(data: bytes) -> None:
    facts = parse(data)
    assert facts.acs.is_known != (facts.acs.unknown is not None)


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0", ("0000:00:01.0", "0000:00")),
        ("../../../devices/pci0000:00/0000:00:1f.3", ("", "0000:00")),
        ("../../../devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:01.0", ("", "10000:e0")),
        (
            "/sys/devices/platform/soc/1234.pcie/pci0002:00/0002:00:00.0/0002:01:00.0",
            ("0002:00:00.0", "0002:00"),
        ),
        ("not a path", ("", "")),
    ],
)
def test_device_paths(path: str, want: tuple[str, str]) -> None:
    assert parse_device_path(path) == want


def test_resource() -> None:
    text = (
        "0x00000000f6000000 0x00000000f6ffffff 0x0000000000040200\n"
        "0x0000002000000000 0x00000023ffffffff 0x000000000014220c\n"
        "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
        "0x000000000000e000 0x000000000000e07f 0x0000000000040101\n"
        "0x0000000000000000 0x000000ffffffffff 0x0000000000000000\n"
    )
    assert parse_resource(text) == (
        Bar(0, 0xF6000000, 16 * MIB, True, False, False),
        Bar(1, 0x2000000000, 16 << 30, True, True, True),
        Bar(3, 0xE000, 128, False, False, False),
    )


@pytest.mark.parametrize(
    ("text", "want"),
    [("16.0 GT/s PCIe", 160), ("2.5 GT/s PCIe", 25), ("64.0 GT/s PCIe", 640), ("Unknown", 0)],
)
def test_link_speed(text: str, want: int) -> None:
    assert parse_link_speed(text) == want


def test_links_that_are_not_full() -> None:
    assert Link(80, 16, 160, 16).is_degraded and Link(160, 8, 160, 16).is_degraded
    assert not Link(160, 16, 160, 16).is_degraded
    assert not Link(0, 0, 160, 16).is_degraded


def test_a_server(tmp_path: Path) -> None:
    there = read_inventory(h100(tmp_path))
    gpu, nic = there.pci_device(there.gpus[0].bdf), there.pci_device("0000:04:00.0")
    assert gpu and nic
    assert (gpu.driver, gpu.numa_node, gpu.dma_mask_bits) == (known("nvidia"), known(0), known(52))
    assert gpu.bar(2) and gpu.bar(2).size == 256 << 30  # type: ignore[union-attr]
    assert gpu.bar(2).resizable_bytes == known((1 << 37, 1 << 38))  # type: ignore[union-attr]
    assert gpu.bar(1) is None
    assert nic.link == known(Link(160, 16, 160, 16))
    groups = {g.number: g for g in there.iommu.groups.get(())}
    assert nic.bdf in groups[nic.iommu_group.get(-1)].bdfs
    assert groups[nic.iommu_group.get(-1)].type == known("identity")
    host = there.pci_device("0000:00:00.0")
    assert host and host.driver == known("") and host.iommu_group == known(-1)


def test_acs_bridge_by_bridge(tmp_path: Path) -> None:
    devices = {d.bdf: d for d in read_devices(one_switch_acs(tmp_path)).get(())}
    controls = {b: d.acs.value.control for b, d in devices.items() if d.is_bridge and d.acs.value}
    assert controls == {
        "0000:00:01.0": ACS_ON,
        "0000:01:00.0": 0,
        "0000:02:00.0": ACS_ON,
        "0000:02:01.0": ACS_ON,
    }


def test_an_ordinary_user_sees_the_tree_but_no_capabilities(tmp_path: Path) -> None:
    devices = read_devices(h100_unprivileged(tmp_path)).get(())
    assert len(devices) == 64
    assert all(d.acs.unknown and d.acs.unknown.why is Why.NO_PERMISSION for d in devices)
    assert all(d.bars.is_known and d.numa_node.is_known for d in devices)


def test_a_sleeping_gpu_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = gb206_asleep(tmp_path)
    touched = []
    import gdrstorm.host.pci as pci

    real = read_config_facts
    monkeypatch.setattr(
        pci, "read_config_facts", lambda p: touched.append(p.parent.name) or real(p)
    )
    for bdf in ("0000:41:00.0", "0000:42:00.0"):
        path = (root / "sys/bus/pci/devices" / bdf).resolve()
        for name in ("current_link_speed", "current_link_width"):
            (path / name).unlink()
    there = read_inventory(root)
    assert touched and not {"0000:41:00.0", "0000:42:00.0"} & set(touched)
    for gpu in there.gpus:
        device = there.pci_device(gpu.bdf)
        assert device
        for probe in (device.acs, device.link, device.ats, gpu.name, gpu.state.static_bar1):
            assert probe.unknown and probe.unknown.why in {Why.ASLEEP, Why.NOT_ASKED}
        assert device.bars.is_known


def sleeper(bdf: str, parent: str = "", kind: int = 0x060400, status: str = "suspended") -> Sleeper:
    return Sleeper(bdf, parent, kind, known(status))


def test_only_what_would_wake_a_gpu_is_left_alone() -> None:
    functions = [
        sleeper("root"),
        sleeper("up", "root"),
        sleeper("down0", "up"),
        sleeper("down1", "up"),
        sleeper("gpu", "down0", 0x030200),
        sleeper("audio", "down0", 0x040300),
        sleeper("disk", "down1", 0x010802),
        sleeper("other root"),
        sleeper("other disk", "other root", 0x010802),
        sleeper("awake gpu", "other root", 0x030000, "active"),
    ]
    want = {"root", "up", "down0", "down1", "gpu", "audio", "disk"}
    assert find_untouchable(functions) == want


def test_bridges_awake_above_a_sleeping_gpu_may_be_read() -> None:
    functions = [
        sleeper("root", status="active"),
        sleeper("down0", "root", status="active"),
        sleeper("down1", "root"),
        sleeper("gpu", "down0", 0x030200),
        sleeper("audio", "down0", 0x040300),
        sleeper("disk", "down1", 0x010802),
    ]
    assert find_untouchable(functions) == {"gpu"}


def test_a_gpu_whose_sleep_cannot_be_told_is_left_alone() -> None:
    denied = Probe(unknown=Unknown(Why.NO_PERMISSION, "x"))
    absent = Probe(unknown=Unknown(Why.NO_FILE, "x"))
    assert find_untouchable([Sleeper("gpu", "", 0x030000, denied)]) == {"gpu"}
    assert find_untouchable([Sleeper("gpu", "", 0x030000, absent)]) == set()


def test_reader_and_nvml_leave_sleeping_gpus_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reader:
        def read_gpu_state(self, bdf: str) -> None:
            raise AssertionError(f"{bdf} was woken")

    def attach() -> None:
        raise AssertionError("NVML was attached")

    import gdrstorm.host as host

    monkeypatch.setattr(host, "read_nvml", attach)
    monkeypatch.setattr(host, "read_verbs", dict)
    there = read_inventory(gb206_asleep(tmp_path), ask_devices=True, gpu_reader=Reader())  # type: ignore[arg-type]
    assert all(g.state.mig.unknown and g.state.mig.unknown.why is Why.ASLEEP for g in there.gpus)


def test_virtual_functions(tmp_path: Path) -> None:
    there = read_inventory(sriov(tmp_path))
    physical = there.pci_device("0000:04:00.0")
    assert physical and (physical.numvfs, physical.totalvfs) == (known(2), known(8))


def test_no_pci(tmp_path: Path) -> None:
    probe = read_devices(nothing(tmp_path))
    assert probe.unknown and probe.unknown.why is Why.NO_FILE
