"""`gdrstorm report`: a run's journal as text, HTML, a picture or JUnit."""

from __future__ import annotations

from pathlib import Path

import typer


def report(
    run: Path = typer.Argument(..., help="Run directory, or its journal.jsonl."),
    html: Path | None = typer.Option(None, help="Write an HTML page to this file."),
    svg: Path | None = typer.Option(None, help="Write the text as an SVG picture to this file."),
    junit: Path | None = typer.Option(None, help="Write JUnit XML to this file."),
    json: bool = typer.Option(False, "--json", help="Print the run's summary as one JSON object."),
) -> None:
    """Show what a run did and what it found, from its journal alone."""
    from gdrstorm.evidence.journal import read_journal
    from gdrstorm.report import junit as junit_report
    from gdrstorm.report import page
    from gdrstorm.report.text import print_summary, render_svg, summary_json
    from gdrstorm.verdict import judge

    lines = read_journal(run)
    verdict = judge(lines)
    written = False
    if html is not None:
        written = _write(html, page.render(lines, verdict))
    if svg is not None:
        written = _write(svg, render_svg(lines, verdict, str(run)))
    if junit is not None:
        written = _write(junit, junit_report.render(lines, verdict))
    if json:
        typer.echo(summary_json(lines, verdict, str(run)))
    elif not written:
        print_summary(lines, verdict, str(run))


def _write(path: Path, text: str) -> bool:
    from gdrstorm.errors import UsageError

    try:
        path.write_text(text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", "give another file") from None
    typer.echo(f"wrote {path}", err=True)
    return True
