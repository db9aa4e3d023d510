"""`gdrstorm check`: is this host ready, which requirement is missing, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from gdrstorm.model.admission import CheckResult
    from gdrstorm.model.inventory import Inventory


def check(
    gpu: str = typer.Option("", help="Index, UUID or bdf; a bdf of any function that has a BAR."),
    hca: str = typer.Option("", help="RDMA device by name or bdf."),
    policy: str = typer.Option("", help="Ask only this policy."),
    scenario: str = typer.Option("", help="Check what this scenario needs, too."),
    explain: str = typer.Option("", metavar="PREDICATE", help="Say what a requirement is and why."),
    source: Path | None = typer.Option(
        None, "--from", metavar="HOST.JSON", help="Answer for the machine of this inventory."
    ),
    json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Check whether this host is ready. Exit 0 ready, 4 not ready, 2 wrong use."""
    if explain:
        _explain(explain)
        return
    from gdrstorm.cli.host_input import find_exporters, find_importers, judge_all, load_inventory
    from gdrstorm.model.admission import conclude
    from gdrstorm.policy import answer_needs

    needs = _find_needs(scenario)
    inventory = load_inventory(source, hash_files=False)
    exporters, importers = find_exporters(inventory, gpu), find_importers(inventory, hca)
    admissions = judge_all(inventory, exporters, importers, policy)
    platform = inventory.machine.platform.value
    findings = answer_needs(admissions, needs)
    result = conclude(inventory.hostname, platform, admissions, findings)
    if json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
    else:
        _show(inventory, result)
    raise typer.Exit(0 if result.is_ready else 4)


def _show(inventory: Inventory, result: CheckResult) -> None:
    from rich.console import Console

    from gdrstorm.report import check_table

    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    console.print(check_table.render_facts(inventory))
    if len({(a.exporter, a.importer) for a in result.admissions}) > 1:
        for table in check_table.render_matrix(inventory, result.admissions):
            console.print(table)
    for table in check_table.render_requirements(inventory, result.admissions):
        console.print(table)
    for line in check_table.render_verdict(inventory, result):
        console.print(line)


def _find_needs(scenario: str) -> tuple[str, ...]:
    if not scenario:
        return ()
    from gdrstorm.plan.catalogue import find_scenario

    return find_scenario(scenario).needs.predicates


def _explain(name: str) -> None:
    from gdrstorm.policy import find_predicate

    predicate = find_predicate(name)
    kind = "advice: informs, never decides" if predicate.is_advisory else "decides admission"
    typer.echo(f"{predicate.name} ({kind})\n  {predicate.what}\n  {predicate.why}")
    typer.echo(f"  Source: {predicate.source}")
