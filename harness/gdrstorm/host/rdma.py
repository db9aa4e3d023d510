"""RDMA devices and their ports from /sys/class/infiniband to records.

Reads names, states, GIDs and firmware as the kernel publishes them; opens no device and reads no
counter (some counters make a card's firmware log). Layout: Documentation/ABI/stable/sysfs-class-
infiniband. What only an opened device can tell comes from `verbs_probe`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from gdrstorm.host.sysfs import read_as, read_link_name, read_names, read_text
from gdrstorm.model.inventory import Gid, Hca, IbPort, Probe, VerbsState, Why, known, unknown

_ZERO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def parse_state(text: str) -> str:
    """`4: ACTIVE` is ACTIVE. ValueError when it has no such form."""
    number, colon, name = text.partition(":")
    if not colon or not number.strip().isdigit():
        raise ValueError(text)
    return name.strip()


def natural_key(name: str) -> tuple[tuple[str, int], ...]:
    """Sort key that puts mlx5_2 before mlx5_10."""
    return tuple((text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", name))


def not_asked(detail: str = "the device was not opened") -> VerbsState:
    """A verbs state of a device that nobody opened."""
    return VerbsState(*(unknown(Why.NOT_ASKED, detail) for _ in range(5)))


def _read_gids(port: Path) -> Probe[tuple[Gid, ...]]:
    names = read_names(port / "gids")
    if names.value is None:
        return Probe(unknown=names.unknown)
    found = []
    for index in sorted(int(name) for name in names.value if name.isdigit()):
        gid = read_text(port / "gids" / str(index)).get(_ZERO_GID)
        # The kernel answers EINVAL for the type of an empty entry: leave it alone.
        if gid not in {"", _ZERO_GID}:
            kind = read_text(port / "gid_attrs/types" / str(index))
            netdev = read_text(port / "gid_attrs/ndevs" / str(index))
            found.append(Gid(index, gid, kind, netdev))
    return known(tuple(found))


def _read_port(path: Path) -> IbPort:
    return IbPort(
        number=int(path.name),
        state=read_as(path / "state", parse_state),
        phys_state=read_as(path / "phys_state", parse_state),
        link_layer=read_text(path / "link_layer"),
        rate=read_text(path / "rate"),
        gids=_read_gids(path),
    )


def _read_ports(path: Path) -> Probe[tuple[IbPort, ...]]:
    names = read_names(path)
    if names.value is None:
        return Probe(unknown=names.unknown)
    numbers = sorted(int(name) for name in names.value if name.isdigit())
    return known(tuple(_read_port(path / str(number)) for number in numbers))


def read_hca(path: Path, verbs: VerbsState) -> Hca:
    """One device at /sys/class/infiniband/<name>."""
    bdf = read_link_name(path / "device").get("")
    driver = read_link_name(path / "device/driver")
    return Hca(
        name=path.name,
        bdf=bdf if _BDF.fullmatch(bdf) else "",
        driver=driver,
        firmware=read_text(path / "fw_ver"),
        board_id=read_text(path / "board_id"),
        node_guid=read_text(path / "node_guid"),
        netdevs=read_names(path / "device/net"),
        ports=_read_ports(path / "ports"),
        verbs=verbs,
    )


def read_hcas(root: Path, verbs: Mapping[str, VerbsState]) -> tuple[Hca, ...]:
    """All of them, in natural order of names; empty where the RDMA subsystem is not loaded."""
    folder = root / "sys/class/infiniband"
    names = sorted(read_names(folder).get(()), key=natural_key)
    return tuple(read_hca(folder / name, verbs.get(name, not_asked())) for name in names)
