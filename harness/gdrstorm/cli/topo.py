"""`gdrstorm topo`: the PCI tree with GPUs and RDMA devices, every pair's path, and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from gdrstorm.model.admission import Admission
    from gdrstorm.model.inventory import Inventory


def topo(
    svg: Path | None = typer.Option(None, metavar="FILE", help="Write a picture to this file."),
    source: Path | None = typer.Option(
        None, "--from", metavar="HOST.JSON", help="Draw the machine of this inventory."
    ),
    paths: bool = typer.Option(False, "--paths", help="Spell out every pair's path and its rule."),
) -> None:
    """Show the PCI tree, how far GPUs and RDMA devices are apart, and what decides it."""
    from rich.console import Console

    from gdrstorm.cli.host_input import find_exporters, find_importers, judge_all, load_inventory
    from gdrstorm.report.check_table import render_matrix
    from gdrstorm.report.topo_text import render_tree

    inventory = load_inventory(source, hash_files=False)
    exporters = find_exporters(inventory, "")
    admissions = judge_all(inventory, exporters, find_importers(inventory, ""), "")
    for line in render_tree(inventory, exporters):
        typer.echo(line)
    console = Console()
    for table in render_matrix(inventory, admissions):
        (console if console.is_terminal else Console(width=140)).print(table)
    shown = set()
    for admission in admissions if paths else ():
        path, route = admission.path, admission.route
        if path is None or route is None or (path.exporter, path.importer) in shown:
            continue
        shown.add((path.exporter, path.importer))
        relation = path.relation.value.value if path.relation.value else str(path.relation)
        typer.echo(f"{path}\n  {relation}, P2PDMA distance {route.distance}: {route.rule}")
    if svg is not None:
        _write_svg(svg, inventory, admissions)


def _write_svg(path: Path, inventory: Inventory, admissions: tuple[Admission, ...]) -> None:
    from gdrstorm.errors import UsageError
    from gdrstorm.report.topo_svg import render_svg

    text = render_svg(inventory, admissions)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    typer.echo(f"wrote {path}")
