"""RDMA devices: ports and GIDs from files, and what opening a device tells."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest
from host_trees import Tree
from machines import big, gb206

from gdrstorm.host import read_inventory
from gdrstorm.host.rdma import natural_key, parse_state
from gdrstorm.host.verbs_probe import judge_dmabuf_errno, parse_device_attr
from gdrstorm.model.inventory import Gid, Why, known


def test_ports(tmp_path: Path) -> None:
    there = read_inventory(gb206(tmp_path))
    first, second = there.hcas
    assert (first.name, first.bdf, first.driver) == ("mlx5_0", "0000:62:00.0", known("mlx5_core"))
    assert (first.firmware, first.netdevs) == (known("28.43.2026"), known(("eth0",)))
    (port,) = first.ports.get(())
    assert (port.number, port.state, port.phys_state) == (1, known("ACTIVE"), known("LinkUp"))
    assert port.link_layer == known("Ethernet")
    assert second.ports.get(())[0].state == known("DOWN")


def test_empty_gids_are_left_out(tmp_path: Path) -> None:
    gids = read_inventory(gb206(tmp_path)).hcas[1].ports.get(())[0].gids
    assert gids == known(
        (
            Gid(0, "fe80:0000:0000:0000:ba3f:d2ff:fea1:0001", known("RoCE v2"), known("eth1")),
            Gid(3, "0000:0000:0000:0000:0000:ffff:0a09:0001", known("RoCE v2"), known("eth1")),
        )
    )


def test_software_devices_have_no_bdf(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.machine()
    tree.write("sys/class/infiniband/rxe0/node_guid", "0000:0000:0000:0001")
    tree.write("sys/class/infiniband/rxe0/ports/1/state", "what")
    (rxe,) = read_inventory(tmp_path).hcas
    assert rxe.bdf == "" and rxe.firmware.unknown
    assert rxe.ports.get(())[0].state.unknown


def test_order(tmp_path: Path) -> None:
    names = [h.name for h in read_inventory(big(tmp_path)).hcas]
    assert names == [f"mlx5_{i}" for i in range(16)]
    assert sorted(["b10", "a", "b9", "b"], key=natural_key) == ["a", "b", "b9", "b10"]


def test_state() -> None:
    assert parse_state("4: ACTIVE") == "ACTIVE"
    for bad in ("ACTIVE", "", "x: y"):
        with pytest.raises(ValueError):
            parse_state(bad)


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (errno.EBADF, True),
        (errno.EOPNOTSUPP, False),
        (errno.EPROTONOSUPPORT, False),
        (errno.EINVAL, None),
        (0, None),
    ],
)
def test_what_trying_a_dmabuf_says(value: int, want: bool | None) -> None:
    answer = judge_dmabuf_errno(value)
    assert answer.value is want
    assert want is not None or (answer.unknown and answer.unknown.why is Why.UNREADABLE)


def test_device_attributes() -> None:
    data = bytearray(512)
    struct.pack_into("<Q", data, 80, 1 << 63)
    struct.pack_into("<i", data, 136, 16777216)
    assert parse_device_attr(bytes(data)) == (16777216, 1 << 63)
