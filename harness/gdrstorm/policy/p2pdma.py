"""Linux's pci_p2pdma_distance() over an Inventory: the distance, the kind of mapping, the rule.

Facts of drivers/pci/p2pdma.c (Linux 7.3.4), calc_map_type_and_dist(): a common upstream bridge
without ACS redirect on the path maps by bus address; everything else goes through the host bridge,
which the CPU or a list of host bridges must allow. An unreadable fact leaves the answer unknown
unless every value of it would give the same answer.
"""

from __future__ import annotations

import re

import msgspec

from gdrstorm.model.admission import MapKind, P2pRoute
from gdrstorm.model.inventory import Inventory, PciDevice, Probe, Unknown, Why, known
from gdrstorm.policy.topology import find_chain

# PCI_ACS_RR, PCI_ACS_CR and PCI_ACS_EC (include/uapi/linux/pci_regs.h): each redirects.
ACS_REDIRECT_BITS = 0x04 | 0x08 | 0x20
_AMD_ZEN_FAMILY = 0x17
_INTEL, _GOOGLE, _NVIDIA = 0x8086, 0x1AE0, 0x10DE


class _Bridge(msgspec.Struct, frozen=True):
    vendor: int
    device: int | None
    same_only: bool = False
    """REQ_SAME_HOST_BRIDGE: both functions must hang from this very one."""
    since: tuple[int, int] = (0, 0)
    """Kernels before this one were not read for the entry: whether they have it is unknown."""


# pci_p2pdma_whitelist[]: compared with the first function on the root bus.
_ALLOWED = (
    _Bridge(_INTEL, 0x3C00, same_only=True),
    _Bridge(_INTEL, 0x3C01, same_only=True),
    _Bridge(_INTEL, 0x2F00, same_only=True),
    _Bridge(_INTEL, 0x2F01, same_only=True),
    *(_Bridge(_INTEL, d) for d in (0x2030, 0x2031, 0x2032, 0x2033, 0x2020, 0x09A2)),
    *(
        _Bridge(_INTEL, d, since=(7, 3))
        for d in (
            *(0x0B25, 0x0CFE, 0x11FB, 0x1212, 0x1216),
            *(0x4940, 0x4942, 0x4944, 0x4946, 0x4948),
        )
    ),
    _Bridge(_GOOGLE, None, since=(7, 3)),
    *(_Bridge(_NVIDIA, d, since=(7, 3)) for d in (0x2F95, 0x2F96, 0x2F97, 0x2F98)),
)


class _Allowed(msgspec.Struct, frozen=True):
    answer: Probe[bool]
    rule: str


def find_redirects(chain: tuple[PciDevice, ...]) -> tuple[tuple[str, ...], Unknown | None]:
    """Ports of a chain that redirect, and the first reason why one of them could not be read."""
    reason = next((d.acs.unknown for d in chain if d.acs.unknown), None)
    redirecting = (d.bdf for d in chain if d.acs.value and d.acs.value.control & ACS_REDIRECT_BITS)
    return tuple(redirecting), reason


def _cpu_allows(inventory: Inventory) -> _Allowed:
    vendor, family = inventory.machine.cpu_vendor, inventory.machine.cpu_family
    if vendor.value is not None and vendor.value != "AuthenticAMD":
        return _Allowed(known(False), f"CPU is {vendor.value}, no AMD Zen")
    if vendor.unknown or family.value is None:
        return _Allowed(Probe(unknown=vendor.unknown or family.unknown), "CPU vendor or family")
    name = f"AMD CPU of family {family.value:#x}"
    if family.value >= _AMD_ZEN_FAMILY:
        return _Allowed(known(True), f"{name} (0x17, Zen, or later forwards between ports)")
    return _Allowed(known(False), f"{name}, older than Zen (0x17)")


def find_host_device(inventory: Inventory, root_bus: str) -> Probe[PciDevice]:
    """The function that stands for a host bridge: 00.0, or a root port that comes first."""
    prefix = root_bus + ":"
    found = [d for d in inventory.pci.value or () if d.bdf.startswith(prefix) and not d.parent]
    if not found:
        return Probe(unknown=Unknown(Why.NO_DEVICE, f"no function on root bus {root_bus}"))
    first = min(found, key=lambda d: d.bdf)
    if first.bdf == f"{root_bus}:00.0":
        return known(first)
    if first.port_type.unknown:
        return Probe(unknown=first.port_type.unknown)
    if first.port_type.value == "root port":
        return known(first)
    return Probe(unknown=Unknown(Why.NO_DEVICE, f"first function {first.bdf} is no root port"))


def parse_release(release: Probe[str]) -> tuple[int, int]:
    """(major, minor) of a kernel release; (0, 0) when it is unknown or odd."""
    match = re.match(r"(\d+)\.(\d+)", release.value or "")
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _bridge_allows(inventory: Inventory, root_bus: str, *, same: bool) -> _Allowed:
    host = find_host_device(inventory, root_bus)
    if host.value is None:
        if host.unknown and host.unknown.why is Why.NO_DEVICE:
            return _Allowed(known(False), host.unknown.detail)
        return _Allowed(Probe(unknown=host.unknown), f"host bridge {root_bus}")
    vendor, device = host.value.vendor, host.value.device
    name = f"host bridge {root_bus} ({vendor:04x}:{device:04x})"
    entry = next(
        (e for e in _ALLOWED if e.vendor == vendor and e.device in {device, None}),
        None,
    )
    if entry is None:
        return _Allowed(known(False), f"{name} is not in the kernel's list")
    if entry.since > parse_release(inventory.kernel.release):
        detail = f"{name} is in the list of Linux 7.3; older kernels were not read"
        return _Allowed(Probe(unknown=Unknown(Why.OLD_KERNEL, detail)), detail)
    if entry.same_only and not same:
        return _Allowed(known(False), f"{name} is allowed only below one and the same host bridge")
    return _Allowed(known(True), f"{name} is in the kernel's list")


def _host_bridges_allow(inventory: Inventory, a: str, b: str) -> _Allowed:
    if a == b:
        return _bridge_allows(inventory, a, same=True)
    both = [_bridge_allows(inventory, bus, same=False) for bus in (a, b)]
    for answer in both:
        if answer.answer.value is False:
            return answer
    for answer in both:
        if answer.answer.unknown:
            return answer
    return _Allowed(known(True), f"{both[0].rule}, {both[1].rule}")


def _root_allows(inventory: Inventory, a: PciDevice, b: PciDevice) -> _Allowed:
    """May traffic pass through the root complex: the CPU says so, or the host bridges do."""
    cpu = _cpu_allows(inventory)
    if cpu.answer.value:
        return cpu
    bridges = _host_bridges_allow(inventory, a.root_bus, b.root_bus)
    if bridges.answer.value:
        return bridges
    if cpu.answer.unknown:
        return cpu
    return _Allowed(bridges.answer, f"{cpu.rule}; {bridges.rule}")


def _through_root(allowed: _Allowed, distance: int, why: str, ports: tuple[str, ...]) -> P2pRoute:
    rule = f"{why}; {allowed.rule}"
    if allowed.answer.unknown:
        unknown: Unknown = allowed.answer.unknown
        return P2pRoute(Probe(unknown=unknown), Probe(unknown=unknown), rule, ports)
    if allowed.answer.value:
        return P2pRoute(known(distance), known(MapKind.THRU_HOST_BRIDGE), rule, ports)
    return P2pRoute(known(-1), known(MapKind.NOT_SUPPORTED), rule, ports)


def find_route(inventory: Inventory, provider: PciDevice, client: PciDevice) -> P2pRoute:
    """What the kernel would answer for this pair."""
    a, b = find_chain(inventory, provider), find_chain(inventory, client)
    index_b = {device.bdf: i for i, device in enumerate(b)}
    common = next(((i, index_b[d.bdf]) for i, d in enumerate(a) if d.bdf in index_b), None)
    allowed = _root_allows(inventory, provider, client)
    if common is None:
        why = "no common upstream bridge, so traffic goes through the host bridge"
        return _through_root(allowed, len(a) + len(b), why, ())
    # The kernel looks at the provider's side up to and with the common bridge, then at the other.
    walked = a[: common[0] + 1] + b[: common[1]]
    ports, reason = find_redirects(walked)
    distance, meeting = sum(common), a[common[0]].bdf
    if ports:
        why = f"ACS redirect on {', '.join(ports)} below common bridge {meeting}"
        return _through_root(allowed, distance, why, ports)
    if reason is None:
        rule = f"common upstream bridge {meeting}, no ACS redirect on the way"
        return P2pRoute(known(distance), known(MapKind.BUS_ADDR), rule)
    rule = f"common upstream bridge {meeting}, but ACS could not be read ({reason})"
    if allowed.answer.value:
        rule = f"{rule}; either way it is allowed: {allowed.rule}"
        return P2pRoute(known(distance), Probe(unknown=reason), rule)
    return P2pRoute(Probe(unknown=reason), Probe(unknown=reason), rule)
