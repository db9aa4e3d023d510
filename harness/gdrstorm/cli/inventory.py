"""`gdrstorm inventory`: everything that is known about this host, as one versioned JSON file."""

from __future__ import annotations

from pathlib import Path

import typer


def inventory(
    json: bool = typer.Option(False, "--json", help="Print JSON (for check --from)."),
    redact: bool = typer.Option(
        False, "--redact", help="Replace serials, UUIDs, GUIDs, MACs, GIDs and host names."
    ),
    source: Path | None = typer.Option(
        None, "--from", metavar="HOST.JSON", help="Read this inventory instead of the machine."
    ),
) -> None:
    """Print what this host is. Without --json a short table."""
    from gdrstorm.cli.host_input import load_inventory
    from gdrstorm.host.redact import redact_inventory
    from gdrstorm.model.inventory import encode_inventory

    found = load_inventory(source, hash_files=True)
    if redact:
        found = redact_inventory(found)
    if json:
        typer.echo(encode_inventory(found).decode(), nl=False)
        return
    from rich.console import Console

    from gdrstorm.report.check_table import render_facts

    console = Console()
    (console if console.is_terminal else Console(width=140)).print(render_facts(found))
