"""The admission oracle: would this memory be mapped for that device, and why.

`judge` takes an Inventory and a Request and answers admit, reject or unknown, predicate by
predicate with evidence. Pure: no file is read, nothing is tried. Fail-closed: what is unknown
never counts as admitted.
"""

from __future__ import annotations

from collections.abc import Iterable

from gdrstorm.errors import UsageError
from gdrstorm.model.admission import (
    Admission,
    Answer,
    Finding,
    MappingType,
    P2pRoute,
    PairPath,
    Request,
    decide,
)
from gdrstorm.model.inventory import Hca, Inventory, PciDevice
from gdrstorm.policy.common import advise, advise_acs
from gdrstorm.policy.linux import LINUX_POLICY, judge_linux
from gdrstorm.policy.nvidia import (
    DEFAULT_POLICY,
    P2P_POLICY,
    gather,
    judge_default,
    judge_p2p,
)
from gdrstorm.policy.p2pdma import find_route
from gdrstorm.policy.predicates import PREDICATES, Predicate, find_predicate
from gdrstorm.policy.topology import find_path

__all__ = [
    "DEFAULT_POLICY",
    "LINUX_POLICY",
    "P2P_POLICY",
    "POLICIES",
    "PREDICATES",
    "Predicate",
    "answer_needs",
    "find_importers",
    "find_path",
    "find_predicate",
    "find_route",
    "judge",
    "judge_pair",
]

POLICIES = (P2P_POLICY, DEFAULT_POLICY, LINUX_POLICY)
_MAPPING = {
    P2P_POLICY: MappingType.FORCE_PCIE,
    DEFAULT_POLICY: MappingType.DEFAULT,
    LINUX_POLICY: MappingType.BAR,
}


_IVSHMEM = (0x1AF4, 0x1110)


def _find_function(inventory: Inventory, what: str, bdf: str) -> PciDevice:
    device = inventory.pci_device(bdf)
    if device is None:
        raise UsageError(f"no such {what}: {bdf}", "gdrstorm topo lists what is here")
    return device


def _find_importer(inventory: Inventory, name: str) -> tuple[PciDevice, Hca | None]:
    hca = next((h for h in inventory.hcas if name in {h.name, h.bdf}), None)
    if hca is not None and not hca.bdf:
        raise UsageError(f"{name} is a software device and can import no peer memory")
    return _find_function(inventory, "hca", hca.bdf if hca else name), hca


def find_bar_exporters(inventory: Inventory) -> tuple[str, ...]:
    """bdfs of functions whose BARs stand in for a GPU's: bound to vfio-pci, or QEMU's ivshmem (the VM bed)."""
    return tuple(
        device.bdf
        for device in inventory.pci.value or ()
        if (device.vendor, device.device) == _IVSHMEM or device.driver.value == "vfio-pci"
    )


def find_importers(inventory: Inventory) -> tuple[Hca, ...]:
    """The RDMA devices that are PCI functions."""
    return tuple(hca for hca in inventory.hcas if hca.bdf and inventory.pci_device(hca.bdf))


def judge(inventory: Inventory, request: Request) -> Admission:
    """Admit, reject or unknown for one request.

    An empty importer asks what the exporter alone decides: never more than unknown, but a refusal
    that no importer could change is seen.

    Raises:
        UsageError: a device that is not in the inventory, or a policy that does not exist.
    """
    if request.policy not in POLICIES:
        raise UsageError(f"no such policy: {request.policy}", f"one of {', '.join(POLICIES)}")
    exporter = _find_function(inventory, "exporter", request.exporter)
    if not request.importer:
        findings = _judge_by(inventory, request, (exporter, None), (None, None), None)
        return _make_admission(request, exporter, None, findings, (None, None))
    importer, hca = _find_importer(inventory, request.importer)
    way = find_path(inventory, exporter, importer), find_route(inventory, exporter, importer)
    findings = _judge_by(inventory, request, (exporter, importer), way, hca)
    findings = (*findings, advise_acs(way[1]), *advise(inventory, (exporter, importer), hca))
    return _make_admission(request, exporter, importer, findings, way)


def _make_admission(
    request: Request,
    exporter: PciDevice,
    importer: PciDevice | None,
    findings: tuple[Finding, ...],
    way: tuple[PairPath | None, P2pRoute | None],
) -> Admission:
    return Admission(
        request=request,
        exporter=exporter.bdf,
        importer=importer.bdf if importer else "",
        decision=decide(findings),
        findings=findings,
        path=way[0],
        route=way[1],
    )


def _judge_by(
    inventory: Inventory,
    request: Request,
    pair: tuple[PciDevice, PciDevice | None],
    way: tuple[PairPath | None, P2pRoute | None],
    hca: Hca | None,
) -> tuple[Finding, ...]:
    exporter, importer = pair
    path, route = way
    name = importer.bdf if importer else ""
    if request.policy == LINUX_POLICY:
        return judge_linux(inventory, request, pair, route, hca)
    gpu = next((g for g in inventory.gpus if g.bdf == exporter.bdf), None)
    if gpu is None:
        raise UsageError(f"{exporter.bdf} is no NVIDIA GPU", f"use policy {LINUX_POLICY} for it")
    facts = gather(inventory, request, gpu, exporter, importer)
    if request.policy == P2P_POLICY:
        return judge_p2p(inventory, facts, route, hca, name)
    return judge_default(facts, path, hca, name)


def judge_pair(inventory: Inventory, policy: str, exporter: str, importer: str) -> Admission:
    """The plain question of a policy: its own mapping type, any range that is fit."""
    mapping = _MAPPING.get(policy, MappingType.BAR)
    request = Request(policy=policy, exporter=exporter, importer=importer, mapping=mapping)
    return judge(inventory, request)


def answer_needs(admissions: Iterable[Admission], names: Iterable[str]) -> tuple[Finding, ...]:
    """What scenarios demand: the best answer each predicate has among the admissions.

    A predicate that no admission asked is unknown: a demand is never met by silence.

    Raises:
        UsageError: a name that is no predicate.
    """
    order = (Answer.YES, Answer.UNKNOWN, Answer.NO)
    seen = [finding for admission in admissions for finding in admission.findings]
    answers = []
    for name in names:
        find_predicate(name)
        mine = [finding for finding in seen if finding.predicate == name]
        nothing = Finding(name, Answer.UNKNOWN, "no pair of devices here to ask it of")
        answers.append(min(mine, key=lambda f: order.index(f.answer), default=nothing))
    return tuple(answers)
