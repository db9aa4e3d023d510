"""Predicates that several policies share, each from facts to one finding."""

from __future__ import annotations

from gdrstorm.model.admission import Answer, Finding, P2pRoute
from gdrstorm.model.inventory import (
    Hca,
    Inventory,
    PciDevice,
    Probe,
    Unknown,
    Why,
    known,
)

AS_ROOT = "run as root"
NO_IMPORTER = Unknown(Why.NO_DEVICE, "there is no RDMA device to ask for")
_MIN_MEMLOCK = 1 << 30


def make_finding(predicate: str, fact: Probe[bool], evidence: str, remedy: str = "") -> Finding:
    """YES or NO by the fact, UNKNOWN with its reason; the remedy belongs to NO."""
    if fact.unknown:
        return make_unknown(predicate, fact.unknown, evidence)
    return Finding(
        predicate, Answer.YES if fact.value else Answer.NO, evidence, "" if fact.value else remedy
    )


def make_unknown(predicate: str, reason: Unknown | None, subject: str = "") -> Finding:
    """UNKNOWN, with the advice that fits the kind of not knowing."""
    reason = reason or Unknown(Why.NOT_ASKED)
    hints = {
        Why.NO_PERMISSION: AS_ROOT,
        Why.ASLEEP: "wake the device first: use it, or write on to its power/control",
        Why.NOT_ASKED: "run gdrstorm check on the machine itself",
        Why.NO_LIBRARY: "install the library",
        Why.OLD_KERNEL: "decide by trying: gdrstorm run gate/admission",
    }
    text = f"{subject}: {reason}" if subject else str(reason)
    return Finding(predicate, Answer.UNKNOWN, text, hints.get(reason.why, ""))


def answer_distance(route: P2pRoute | None) -> Finding:
    """p2pdma-distance."""
    if route is None:
        return make_unknown("p2pdma-distance", NO_IMPORTER)
    distance = route.distance
    if distance.value is None:
        return make_unknown("p2pdma-distance", distance.unknown, route.rule)
    if distance.value >= 0:
        kind = route.kind.value.value if route.kind.value else "kind unknown"
        text = f"distance {distance.value}, {kind}: {route.rule}"
        return Finding("p2pdma-distance", Answer.YES, text)
    remedy = (
        "put both functions below one PCIe switch, or use a machine whose root complex is listed"
    )
    if route.acs_redirect:
        ports = ";".join(route.acs_redirect)
        remedy = (
            f"boot with pci=disable_acs_redir={ports} (risk: IOMMU groups merge, devices and "
            "guests are isolated less)"
        )
    return Finding("p2pdma-distance", Answer.NO, f"distance -1: {route.rule}", remedy)


def answer_option(inventory: Inventory, predicate: str, option: str) -> Finding:
    """A kernel configuration option that must be built in."""
    value = inventory.kernel.option(option)
    fact = Probe[bool](unknown=value.unknown) if value.value is None else known(value.value == "y")
    text = f"CONFIG_{option}={value.value}" if value.is_known else f"CONFIG_{option}"
    return make_finding(predicate, fact, text, f"use a kernel built with CONFIG_{option}=y")


def read_domain(inventory: Inventory, device: PciDevice) -> Probe[str]:
    """Type of the IOMMU domain of a function; `none` when it is in no group."""
    number = device.iommu_group
    if number.value is None:
        return Probe(unknown=number.unknown)
    if number.value < 0:
        return known("none")
    groups = inventory.iommu.groups
    if groups.value is None:
        return Probe(unknown=groups.unknown)
    group = next((g for g in groups.value if g.number == number.value), None)
    if group is None:
        return Probe(unknown=Unknown(Why.NO_FILE, f"IOMMU group {number.value} is not listed"))
    if group.type.value == "unknown":
        return Probe(unknown=Unknown(Why.UNREADABLE, f"group {number.value} says unknown"))
    return group.type


def answer_dmabuf_mr(hca: Hca | None, importer: str) -> Finding:
    """importer-dmabuf-mr: what trying on the device said."""
    name = "importer-dmabuf-mr"
    if not importer:
        return make_unknown(name, NO_IMPORTER)
    if hca is None:
        return make_unknown(name, Unknown(Why.NO_DEVICE, f"{importer} is no RDMA device"))
    return make_finding(
        name,
        hca.verbs.dmabuf_mr,
        f"{hca.name} ({hca.driver.get('no driver')})",
        "use an mlx5 device (or another with dma-buf MRs) and a current rdma-core",
    )


def advise(
    inventory: Inventory, pair: tuple[PciDevice, PciDevice], hca: Hca | None
) -> tuple[Finding, ...]:
    """Advisory findings of a pair: they inform, they decide nothing."""
    return (
        *(_advise_port(hca) if hca else ()),
        *_advise_links(pair),
        *_advise_limits(inventory),
        *_advise_modules(inventory),
    )


def make_advice(predicate: str, answer: Answer, evidence: str, remedy: str = "") -> Finding:
    """An advisory finding."""
    return Finding(predicate, answer, evidence, remedy, is_advisory=True)


def advise_acs(route: P2pRoute) -> Finding:
    """acs-direct."""
    if route.acs_redirect:
        ports = ";".join(route.acs_redirect)
        return make_advice(
            "acs-direct",
            Answer.NO,
            f"peer traffic is redirected upstream by {ports}",
            f"pci=disable_acs_redir={ports} (risk: weaker isolation between devices and guests)",
        )
    if "could not be read" in route.rule:
        return make_advice("acs-direct", Answer.UNKNOWN, route.rule, AS_ROOT)
    return make_advice("acs-direct", Answer.YES, route.rule)


def _advise_port(hca: Hca) -> tuple[Finding, ...]:
    if hca.ports.value is None:
        return (make_advice("port-active", Answer.UNKNOWN, str(hca.ports)),)
    states = ", ".join(f"port {p.number} {p.state.get('?')}" for p in hca.ports.value) or "no port"
    active = any(p.state.value == "ACTIVE" for p in hca.ports.value)
    answer = Answer.YES if active else Answer.NO
    remedy = "" if active else "connect the port, or set its link up: ip link set dev NETDEV up"
    return (make_advice("port-active", answer, f"{hca.name}: {states}", remedy),)


def _advise_links(pair: tuple[PciDevice, PciDevice]) -> tuple[Finding, ...]:
    links = [(d.bdf, d.link.value) for d in pair if d.link.value is not None]
    slow = [
        f"{bdf} x{link.width} at {link.speed / 10:g} GT/s of x{link.max_width} at "
        f"{link.max_speed / 10:g}"
        for bdf, link in links
        if link.is_degraded
    ]
    if slow:
        remedy = "read it under load; if it stays, reseat the card or check the slot"
        return (make_advice("link-full", Answer.NO, "; ".join(slow), remedy),)
    if len(links) == len(pair):
        text = "; ".join(f"{bdf} x{k.width} at {k.speed / 10:g} GT/s" for bdf, k in links)
        return (make_advice("link-full", Answer.YES, text),)
    return ()


def _advise_limits(inventory: Inventory) -> tuple[Finding, ...]:
    limit = inventory.limits.memlock
    if limit.value is None:
        return (make_advice("memlock", Answer.UNKNOWN, str(limit)),)
    if limit.value.soft < 0 or limit.value.soft >= _MIN_MEMLOCK:
        return (make_advice("memlock", Answer.YES, f"soft limit {limit.value.soft}"),)
    text = f"soft limit {limit.value.soft} bytes"
    if inventory.process.uid.value == 0:
        return (make_advice("memlock", Answer.YES, f"{text} (root may exceed it)"),)
    remedy = "ulimit -l unlimited, or raise memlock in /etc/security/limits.conf"
    return (make_advice("memlock", Answer.NO, text, remedy),)


def _advise_modules(inventory: Inventory) -> tuple[Finding, ...]:
    stale = [m.name for m in inventory.modules.value or () if m.is_stale]
    if not stale:
        return ()
    names = ", ".join(stale)
    return (
        make_advice(
            "modules-fresh",
            Answer.NO,
            f"loaded and on disk differ: {names}",
            "reload the module or reboot (risk: ends everything that uses it)",
        ),
    )
