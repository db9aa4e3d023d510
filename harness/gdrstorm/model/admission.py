"""What the admission oracle says: requests, findings, paths and decisions, as frozen records.

policy/ makes them from an Inventory, report/ and cli/ show them. A finding is one predicate with
its answer and the evidence for it; a decision follows from the findings alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

from gdrstorm.model.inventory import Probe


class Answer(Enum):
    """Of one predicate. UNKNOWN never counts as YES."""

    YES = "ok"
    NO = "no"
    UNKNOWN = "unknown"


class Decision(Enum):
    ADMIT = "admit"
    REJECT = "reject"
    UNKNOWN = "unknown"


class MappingType(Enum):
    """NV_DMABUF_EXPORT_MAPPING_TYPE_*; a BAR exporter such as VFIO has none (BAR)."""

    DEFAULT = "default"
    FORCE_PCIE = "force-pcie"
    BAR = "bar"


class Relation(Enum):
    """How far two functions are apart, in nvidia-smi's words (`nvidia-smi topo -m`)."""

    SELF = "X"
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"


class Window(msgspec.Struct, frozen=True):
    """A range of bytes. For a GPU relative to BAR1, for a BAR exporter relative to its BAR."""

    start: int
    size: int


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One mapping somebody wants: this memory of this exporter, for that importer."""

    policy: str
    exporter: str
    """bdf."""
    importer: str
    """Name of an hca, or a bdf; empty asks what the exporter alone decides."""
    mapping: MappingType
    window: Window | None = None
    """None asks for any range that is fit."""
    bar: int | None = None
    """Index of the BAR; None takes BAR1 of a GPU, the largest memory BAR of anything else."""


class Finding(msgspec.Struct, frozen=True):
    """One predicate, answered. `remedy` says what to do about NO or UNKNOWN, with its risk.

    An advisory finding informs and never decides.
    """

    predicate: str
    answer: Answer
    evidence: str
    remedy: str = ""
    is_advisory: bool = False

    def __str__(self) -> str:
        return f"{self.predicate}: {self.answer.value} ({self.evidence})"


class PairPath(msgspec.Struct, frozen=True):
    """Two functions and the bridges between them.

    `up` and `down` are the bridges strictly below the common one, in order from the exporter;
    `common` is empty where the paths meet in a host bridge or nowhere.
    """

    exporter: str
    importer: str
    relation: Probe[Relation]
    up: tuple[str, ...]
    common: str
    down: tuple[str, ...]
    root_buses: tuple[str, str]

    def __str__(self) -> str:
        if self.common:
            middle = f"[{self.common}]"
        elif self.root_buses[0] == self.root_buses[1]:
            middle = f"[host bridge {self.root_buses[0]}]"
        else:
            middle = f"[host bridges {self.root_buses[0]} and {self.root_buses[1]}]"
        return " > ".join((self.exporter, *self.up, middle, *self.down, self.importer))


class MapKind(Enum):
    """enum pci_p2pdma_map_type (include/linux/pci-p2pdma.h)."""

    BUS_ADDR = "bus address"
    THRU_HOST_BRIDGE = "through the host bridge"
    NOT_SUPPORTED = "not supported"


class P2pRoute(msgspec.Struct, frozen=True):
    """What pci_p2pdma_distance() answers, and the rule that decides."""

    distance: Probe[int]
    """-1 is the kernel's refusal."""
    kind: Probe[MapKind]
    rule: str
    acs_redirect: tuple[str, ...] = ()
    """Ports on the path whose ACS sends peer traffic up to the root complex."""


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """The oracle's answer to one request."""

    request: Request
    exporter: str
    importer: str
    """bdf of the importing function; empty where none was asked for."""
    decision: Decision
    findings: tuple[Finding, ...]
    path: PairPath | None
    route: P2pRoute | None

    @property
    def reasons(self) -> tuple[Finding, ...]:
        """The findings that keep it from being admitted."""
        blocking = (f for f in self.findings if not f.is_advisory)
        return tuple(f for f in blocking if f.answer is not Answer.YES)


def decide(findings: Iterable[Finding]) -> Decision:
    """One NO rejects, else one UNKNOWN leaves it open; nothing at all is unknown, not admitted."""
    answers = [f.answer for f in findings if not f.is_advisory]
    if Answer.NO in answers:
        return Decision.REJECT
    if Answer.UNKNOWN in answers or not answers:
        return Decision.UNKNOWN
    return Decision.ADMIT


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `gdrstorm check` found out, as it is written with --json."""

    schema_version: int = 1
    hostname: str
    platform: str
    is_ready: bool
    reason: str
    ready_pairs: tuple[tuple[str, str, str], ...]
    """(exporter, importer, policy) of everything that is admitted."""
    needs: tuple[Finding, ...]
    admissions: tuple[Admission, ...]


def conclude(
    hostname: str,
    platform: str,
    admissions: tuple[Admission, ...],
    needs: tuple[Finding, ...],
) -> CheckResult:
    """Ready: at least one pair is admitted by a policy, and every need of a scenario is met."""
    ready = tuple(
        (a.exporter, a.importer, a.request.policy)
        for a in admissions
        if a.decision is Decision.ADMIT
    )
    unmet = [str(f) for f in needs if f.answer is not Answer.YES]
    pairs = {(a.exporter, a.importer) for a in admissions}
    if not admissions:
        reason = "there is no GPU and no BAR exporter to ask about"
    elif not any(importer for _, importer in pairs):
        reason = "there is no RDMA device on PCI; only what the exporter decides was asked"
    elif unmet:
        reason = f"the scenario needs {'; '.join(unmet)}"
    else:
        count = len({pair[:2] for pair in ready})
        reason = f"{count} of {len(pairs)} pairs admitted"
    return CheckResult(
        hostname=hostname,
        platform=platform,
        is_ready=bool(ready) and not unmet,
        reason=reason,
        ready_pairs=ready,
        needs=needs,
        admissions=admissions,
    )
