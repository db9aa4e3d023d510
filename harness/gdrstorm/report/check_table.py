"""Renders what `gdrstorm check` found out as tables for a terminal: facts, matrix, requirements.

Takes records, gives rich tables; decides nothing. Answers carry a word as well as a colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from gdrstorm.model.admission import Admission, Answer, CheckResult, Decision, Finding
from gdrstorm.model.inventory import Gpu, Inventory, Probe
from gdrstorm.units import format_size

_STYLE = {Answer.YES: "green", Answer.NO: "bold red", Answer.UNKNOWN: "yellow"}
_WORD = {Answer.YES: "OK", Answer.NO: "NO", Answer.UNKNOWN: "UNKNOWN"}
_COLUMNS = 6
_WORST = (Answer.NO, Answer.UNKNOWN, Answer.YES)
_MARK = {Decision.ADMIT: "ok", Decision.REJECT: "no", Decision.UNKNOWN: "?"}
_DECISION_STYLE = {
    Decision.ADMIT: "green",
    Decision.REJECT: "bold red",
    Decision.UNKNOWN: "yellow",
}
BEST = (Decision.ADMIT, Decision.UNKNOWN, Decision.REJECT)


def best_decision(admissions: Iterable[Admission]) -> Decision:
    """Of several policies for one pair, the most favourable decision."""
    return min((a.decision for a in admissions), key=BEST.index, default=Decision.UNKNOWN)


def by_pair(admissions: Iterable[Admission]) -> dict[tuple[str, str], list[Admission]]:
    """Admissions of each (exporter bdf, importer bdf), in the order they came."""
    pairs: dict[tuple[str, str], list[Admission]] = {}
    for admission in admissions:
        pairs.setdefault((admission.exporter, admission.importer), []).append(admission)
    return pairs


def label_function(inventory: Inventory, bdf: str) -> str:
    """`GPU0` or `mlx5_0` for a function that has such a name, else its bdf."""
    if not bdf:
        return "(no importer)"
    gpu = next((f"GPU{g.index}" for g in inventory.gpus if g.bdf == bdf), None)
    return gpu or next((h.name for h in inventory.hcas if h.bdf == bdf), bdf)


def _cell(text: object) -> Text:
    return Text(str(text))


def _gpu_line(gpu: Gpu) -> str:
    static = gpu.state.static_bar1
    window = f"static BAR1 {format_size(static.value.size)}" if static.value else "static BAR1 ?"
    return f"GPU{gpu.index} {gpu.bdf} {gpu.name.get('(name unknown)')}, {window}"


def _domains(inventory: Inventory) -> str:
    groups = inventory.iommu.groups
    if groups.value is None:
        return str(groups)
    if not groups.value:
        return "no IOMMU groups"
    counts: dict[str, int] = {}
    for group in groups.value:
        kind = group.type.get("unknown")
        counts[kind] = counts.get(kind, 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


def _joined(probe: Probe[tuple[str, ...]], nothing: str) -> str:
    return str(probe) if probe.value is None else ", ".join(probe.value) or nothing


def render_facts(inventory: Inventory) -> Table:
    """What this host is, two columns."""
    kernel, machine, nvidia = inventory.kernel, inventory.machine, inventory.nvidia
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    pci = inventory.pci
    functions = str(pci) if pci.value is None else f"{len(pci.value)} functions"
    rows = [
        ("host", f"{inventory.hostname}: {machine.platform.value} ({machine.platform_reason})"),
        ("cpu", f"{machine.cpu_model}; {machine.numa_nodes} NUMA nodes"),
        ("kernel", f"{kernel.release}, lockdown {kernel.lockdown}"),
        ("taint", " ".join(kernel.taint_flags) or str(kernel.taint)),
        ("checkers", _joined(kernel.checkers, "none")),
        ("pci", functions),
        ("iommu", f"{_joined(inventory.iommu.units, 'no unit')}; groups: {_domains(inventory)}"),
        ("container", str(inventory.process.container)),
        (
            "nvidia",
            f"{nvidia.flavour}, {nvidia.version}" if nvidia.version.value else str(nvidia.version),
        ),
    ]
    rows += [("gpu", _gpu_line(gpu)) for gpu in inventory.gpus] or [("gpu", "no NVIDIA GPU")]
    rows += [
        ("hca", f"{h.name} {h.bdf or '(software)'} {h.driver.get('')}, firmware {h.firmware}")
        for h in inventory.hcas
    ] or [("hca", "no RDMA device")]
    for name, value in rows:
        table.add_row(name, _cell(value))
    return table


def render_matrix(inventory: Inventory, admissions: Sequence[Admission]) -> list[Table]:
    """Exporters against importers, six importers a table so that no verdict is cut off."""
    pairs = by_pair(admissions)
    importers = list(dict.fromkeys(importer for _, importer in pairs))
    parts = range(0, len(importers), _COLUMNS)
    return [_matrix_part(inventory, pairs, importers[i : i + _COLUMNS]) for i in parts]


def _matrix_part(
    inventory: Inventory, pairs: dict[tuple[str, str], list[Admission]], importers: list[str]
) -> Table:
    table = Table(title="pairs", title_justify="left")
    table.add_column("exporter", no_wrap=True)
    for importer in importers:
        table.add_column(label_function(inventory, importer), no_wrap=True)
    for exporter in dict.fromkeys(exporter for exporter, _ in pairs):
        cells = []
        for importer in importers:
            mine = pairs.get((exporter, importer), [])
            path = mine[0].path if mine else None
            relation = path.relation.value.value if path and path.relation.value else "?"
            decision = best_decision(mine)
            cells.append(Text(f"{relation} {_MARK[decision]}", _DECISION_STYLE[decision]))
        table.add_row(label_function(inventory, exporter), *cells)
    return table


def _merge(findings: Sequence[tuple[str, Finding]]) -> tuple[Text, str, str]:
    """Answers of one predicate over many pairs: counts, the worst evidence, what to do."""
    counts = {a: sum(f.answer is a for _, f in findings) for a in _WORST}
    worst = next(a for a in _WORST if counts[a])
    pair, shown = next((p, f) for p, f in findings if f.answer is worst)
    if len(findings) == 1 or counts[worst] == len(findings):
        word = Text(_WORD[worst], _STYLE[worst])
    else:
        parts = (f"{counts[a]} {_WORD[a]}" for a in _WORST if counts[a])
        word = Text(", ".join(parts), _STYLE[worst])
    distinct = len({f.evidence for _, f in findings}) > 1
    return word, f"{pair}: {shown.evidence}" if distinct else shown.evidence, shown.remedy


def render_requirements(inventory: Inventory, admissions: Sequence[Admission]) -> list[Table]:
    """One table a policy: every requirement, what is here, the answer, what to do next."""
    tables = []
    for policy in dict.fromkeys(a.request.policy for a in admissions):
        mine = [a for a in admissions if a.request.policy == policy]
        table = Table(title=f"policy {policy}", title_justify="left")
        for name in ("requirement", "answer"):
            table.add_column(name, no_wrap=True)
        table.add_column("what is here", overflow="fold", ratio=3)
        table.add_column("what to do next", overflow="fold", ratio=2)
        rows: dict[str, list[tuple[str, Finding]]] = {}
        for admission in mine:
            pair = "-".join(
                label_function(inventory, bdf) for bdf in (admission.exporter, admission.importer)
            )
            for finding in admission.findings:
                rows.setdefault(finding.predicate, []).append((pair, finding))
        for predicate, findings in rows.items():
            word, evidence, remedy = _merge(findings)
            name = f"({predicate})" if findings[0][1].is_advisory else predicate
            table.add_row(name, word, _cell(evidence), _cell(remedy))
        tables.append(table)
    return tables


def render_verdict(inventory: Inventory, result: CheckResult) -> list[Text]:
    """A line for each pair that is ready or, when none is, for what keeps each pair from it."""
    lines = []
    if not result.is_ready:
        for (exporter, importer), mine in list(by_pair(result.admissions).items())[:8]:
            best = min(mine, key=lambda a: (BEST.index(a.decision), len(a.reasons)))
            why = ", ".join(f.predicate for f in best.reasons)
            pair = f"{label_function(inventory, exporter)} -> {label_function(inventory, importer)}"
            lines.append(Text(f"{pair}: {best.decision.value} by {best.request.policy}: {why}"))
    ready: dict[tuple[str, str], list[str]] = {}
    for exporter, importer, policy in result.ready_pairs:
        ready.setdefault((exporter, policy), []).append(label_function(inventory, importer))
    for (exporter, policy), importers in ready.items():
        name = label_function(inventory, exporter)
        lines.append(Text(f"{name} -> {', '.join(importers)}: admitted by {policy}"))
    word = Text(
        "READY" if result.is_ready else "NOT READY", "bold green" if result.is_ready else "bold red"
    )
    lines.append(word + Text(f": {result.reason} ({result.platform})", "default"))
    return lines
