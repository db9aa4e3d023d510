"""pci_p2pdma_distance() over trees, against a walk over the tree as an undirected graph."""

from __future__ import annotations

from collections import deque

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import bridge, device, host, inventory

from gdrstorm.model.admission import MapKind
from gdrstorm.model.inventory import PciDevice, known
from gdrstorm.policy import find_route

INTEL, UNLISTED = ("GenuineIntel", 6), (0x8086, 0x3E30)


def switch(
    acs_a: int | None = 0, acs_b: int | None = 0, acs_root: int | None = 0
) -> list[PciDevice]:
    """Root port, one switch, two functions a (03:00.0) and b (04:00.0)."""
    return [
        host("0000:00", *UNLISTED),
        bridge("0000:00:01.0", "", acs=acs_root, kind="root port"),
        bridge("0000:01:00.0", "0000:00:01.0", kind="upstream port"),
        bridge("0000:02:00.0", "0000:01:00.0", acs=acs_a),
        bridge("0000:02:01.0", "0000:01:00.0", acs=acs_b),
        device("0000:03:00.0", "0000:02:00.0"),
        device("0000:04:00.0", "0000:02:01.0"),
    ]


def route(devices: list[PciDevice], a: str, b: str, **more: object):
    there = inventory(devices, **({"cpu": INTEL} | more))  # type: ignore[arg-type]
    found = {d.bdf: d for d in devices}
    return find_route(there, found[a], found[b])


A, B = "0000:03:00.0", "0000:04:00.0"


def test_one_switch_without_redirect_maps_by_bus_address() -> None:
    got = route(switch(), A, B)
    assert (got.distance.value, got.kind.value, got.acs_redirect) == (4, MapKind.BUS_ADDR, ())


@pytest.mark.parametrize("bit", [0x04, 0x08, 0x20, 0x1D])
@pytest.mark.parametrize("side", ["a", "b"])
def test_redirect_on_either_side_goes_to_the_root_complex(bit: int, side: str) -> None:
    tree = switch(acs_a=bit) if side == "a" else switch(acs_b=bit)
    port = "0000:02:00.0" if side == "a" else "0000:02:01.0"
    refused = route(tree, A, B)
    assert (refused.distance.value, refused.kind.value) == (-1, MapKind.NOT_SUPPORTED)
    assert refused.acs_redirect == (port,) and port in refused.rule
    allowed = route(tree, A, B, cpu=("AuthenticAMD", 0x17))
    assert (allowed.distance.value, allowed.kind.value) == (4, MapKind.THRU_HOST_BRIDGE)


@pytest.mark.parametrize("bit", [0x01, 0x02, 0x10, 0x40])
def test_bits_that_do_not_redirect_change_nothing(bit: int) -> None:
    got = route(switch(acs_a=bit, acs_b=bit), A, B)
    assert (got.distance.value, got.kind.value) == (4, MapKind.BUS_ADDR)


def test_redirect_above_the_common_bridge_does_not_matter() -> None:
    assert route(switch(acs_root=0x1D), A, B).kind.value is MapKind.BUS_ADDR


def test_redirect_on_the_common_bridge_itself_counts() -> None:
    tree = switch()
    upstream = bridge("0000:01:00.0", "0000:00:01.0", acs=0x04, kind="upstream port")
    tree = [upstream if d.bdf == upstream.bdf else d for d in tree]
    assert route(tree, A, B).distance.value == -1


def test_redirect_on_an_endpoint_counts() -> None:
    tree = [
        msgspec.structs.replace(d, acs=bridge("x", acs=0x04).acs) if d.bdf == A else d
        for d in switch()
    ]
    assert route(tree, A, B).acs_redirect == (A,)


def test_unreadable_acs_is_unknown_only_where_it_decides() -> None:
    doubtful = route(switch(acs_b=None), A, B)
    assert doubtful.distance.unknown and doubtful.kind.unknown
    harmless = route(switch(acs_b=None), A, B, cpu=("AuthenticAMD", 0x19))
    assert harmless.distance.value == 4 and harmless.kind.unknown
    # One port is seen to redirect: what the other one does no longer matters.
    assert route(switch(acs_a=0x04, acs_b=None), A, B).distance.value == -1
    assert route(switch(acs_root=None), A, B).distance.value == 4


def two_roots(vendor: int, device_id: int, second: str = "0000:10") -> list[PciDevice]:
    """Two functions below root ports of two root buses (or of one, when `second` is the first)."""
    tree = [
        host("0000:00", vendor, device_id),
        bridge("0000:00:01.0", "", kind="root port"),
        device(A, "0000:00:01.0"),
        bridge(f"{second}:02.0", "", second, kind="root port"),
        device(B, f"{second}:02.0", second),
    ]
    return tree if second == "0000:00" else [*tree, host(second, vendor, device_id)]


LISTED_ANYWHERE = [
    (0x8086, d) for d in (0x2030, 0x2031, 0x2032, 0x2033, 0x2020, 0x09A2, 0x0B25, 0x4940, 0x1216)
]
LISTED_ANYWHERE += [(0x1AE0, 0x1234), (0x10DE, 0x2F95), (0x10DE, 0x2F98)]
LISTED_SAME = [(0x8086, d) for d in (0x3C00, 0x3C01, 0x2F00, 0x2F01)]
NOT_LISTED = [(0x8086, 0x3E30), (0x1022, 0x1450), (0x10DE, 0x2F94), (0x1234, 0x09A2)]


@pytest.mark.parametrize(("vendor", "device_id"), LISTED_ANYWHERE)
def test_listed_host_bridges(vendor: int, device_id: int) -> None:
    for second in ("0000:00", "0000:10"):
        got = route(two_roots(vendor, device_id, second), A, B)
        assert (got.distance.value, got.kind.value) == (4, MapKind.THRU_HOST_BRIDGE)


@pytest.mark.parametrize(("vendor", "device_id"), LISTED_SAME)
def test_host_bridges_listed_for_themselves_only(vendor: int, device_id: int) -> None:
    assert route(two_roots(vendor, device_id, "0000:00"), A, B).distance.value == 4
    assert route(two_roots(vendor, device_id, "0000:10"), A, B).distance.value == -1


@pytest.mark.parametrize(("vendor", "device_id"), NOT_LISTED)
def test_host_bridges_that_are_not_listed(vendor: int, device_id: int) -> None:
    for second in ("0000:00", "0000:10"):
        got = route(two_roots(vendor, device_id, second), A, B)
        assert got.distance.value == -1 and "not in the kernel's list" in got.rule


def test_both_host_bridges_must_be_listed() -> None:
    tree = two_roots(0x8086, 0x09A2)
    tree = [host("0000:10", *UNLISTED) if d.bdf == "0000:10:00.0" else d for d in tree]
    assert route(tree, A, B).distance.value == -1


def test_entries_newer_than_the_kernel_are_unknown() -> None:
    assert route(two_roots(0x10DE, 0x2F95), A, B, release="6.12.9").distance.unknown
    assert route(two_roots(0x8086, 0x09A2), A, B, release="6.12.9").distance.value == 4


@pytest.mark.parametrize(
    ("cpu", "want"),
    [
        (("AuthenticAMD", 0x17), 4),
        (("AuthenticAMD", 0x1A), 4),
        (("AuthenticAMD", 0x16), -1),
        (("AuthenticAMD", 6), -1),
        (("HygonGenuine", 0x18), -1),
        (("implementer 0x41", 8), -1),
    ],
)
def test_cpus(cpu: tuple[str, int], want: int) -> None:
    assert route(two_roots(*UNLISTED), A, B, cpu=cpu).distance.value == want


def test_unknown_cpu_is_unknown_unless_the_bridge_is_listed() -> None:
    assert route(two_roots(*UNLISTED), A, B, cpu=None).distance.unknown
    assert route(two_roots(0x8086, 0x09A2), A, B, cpu=None).distance.value == 4


def test_a_root_port_may_stand_for_the_host_bridge() -> None:
    """Skylake servers have no function 00.0 on such a bus; the first root port is listed itself."""
    tree = [d for d in two_roots(0x8086, 0x2031) if not d.bdf.endswith(":00.0") or d.parent]
    ports = [
        msgspec.structs.replace(d, vendor=0x8086, device=0x2031) if not d.parent else d
        for d in tree
    ]
    assert route(ports, A, B).distance.value == 4
    unseen = [
        msgspec.structs.replace(d, port_type=known("endpoint")) if not d.parent else d
        for d in ports
    ]
    assert route(unseen, A, B).distance.value == -1


def test_one_function_and_one_device() -> None:
    tree = [*switch(), device("0000:03:00.1", "0000:02:00.0")]
    assert route(tree, A, A).distance.value == 0
    assert route(tree, A, "0000:03:00.1").distance.value == 2


@st.composite
def trees(draw: st.DrawFn) -> list[PciDevice]:
    """A random forest of bridges on two root buses, ACS off everywhere."""
    nodes = [
        bridge("0000:00:01.0", "", kind="root port"),
        bridge("0000:10:01.0", "", "0000:10", kind="root port"),
    ]
    for i in range(draw(st.integers(2, 14))):
        above = draw(st.sampled_from(nodes))
        nodes.append(bridge(f"0000:{i + 0x20:02x}:00.0", above.bdf, above.root_bus))
    return nodes


def steps_between(tree: list[PciDevice], a: str, b: str) -> int | None:
    """Edges between two functions, walking the tree in both directions."""
    edges: dict[str, set[str]] = {d.bdf: set() for d in tree}
    for d in tree:
        if d.parent:
            edges[d.bdf].add(d.parent)
            edges[d.parent].add(d.bdf)
    seen, queue = {a: 0}, deque([a])
    while queue:
        here = queue.popleft()
        for there in edges[here] - seen.keys():
            seen[there] = seen[here] + 1
            queue.append(there)
    return seen.get(b)


@given(trees(), st.data())
def test_distance_is_the_number_of_steps(tree: list[PciDevice], data: st.DataObject) -> None:
    a, b = (data.draw(st.sampled_from(tree)).bdf for _ in range(2))
    want = steps_between(tree, a, b)
    got = route(tree, a, b)
    if want is None:
        assert got.distance.value == -1
    else:
        assert (got.distance.value, got.kind.value) == (want, MapKind.BUS_ADDR)
        assert route(tree, b, a).distance.value == want
