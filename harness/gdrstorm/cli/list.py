"""`gdrstorm list`: the scenarios, what they need, and whether this machine can."""

from __future__ import annotations

import typer


def list_scenarios(
    names: list[str] = typer.Argument(
        None, metavar="[WORD]...", help="Only those whose name has one of the words."
    ),
    json: bool = typer.Option(False, "--json", help="Print one JSON array."),
) -> None:
    """Show the scenarios, what they need, and where they would run here."""
    import os

    import msgspec
    from rich.table import Table

    from gdrstorm.plan.catalogue import find_scenario, list_names
    from gdrstorm.report.text import make_console
    from gdrstorm.session.choose import wanted_exporters, wanted_importers
    from gdrstorm.session.options import RunOptions
    from gdrstorm.session.start import where_it_runs

    rows = []
    for name in list_names():
        if names and not any(word in name for word in names):
            continue
        scenario = find_scenario(name)
        options = RunOptions()
        needs = [
            "/".join(wanted_exporters(scenario, options)),
            "/".join(wanted_importers(scenario, options)),
            *(["GPU"] if scenario.needs.gpu else []),
            *scenario.needs.drivers,
            *scenario.needs.predicates,
        ]
        here, reason = where_it_runs(scenario, options, os.geteuid())
        rows.append(
            {
                "name": name,
                "summary": scenario.summary,
                "needs": needs,
                "here": here,
                "reason": reason,
            }
        )
    if json:
        typer.echo(msgspec.json.encode(rows).decode())
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("scenario", "here", "needs", "what it will do"):
        table.add_column(column, no_wrap=column == "scenario")
    colours = {"host": "green", "vm": "cyan", "no": "red"}
    for row in rows:
        here = str(row["here"])
        table.add_row(
            str(row["name"]),
            f"[{colours[here]}]{here}[/]",
            " + ".join(row["needs"]),
            str(row["summary"]),
        )
    make_console().print(table)
    reasons = {str(row["reason"]) for row in rows if row["here"] == "no"}
    for reason in sorted(reasons):
        typer.echo(f"no: {reason}")
