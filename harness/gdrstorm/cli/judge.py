"""`gdrstorm judge`: the verdict on a run, computed again from its journal alone."""

from __future__ import annotations

from pathlib import Path

import typer


def judge(
    runs: list[Path] = typer.Argument(
        ..., metavar="RUN...", help="Run directories, or journal.jsonl files."
    ),
    json: bool = typer.Option(False, "--json", help="Print one JSON object a run."),
) -> None:
    """Judge runs again from their journals, without hardware. Exit code is that of the worst verdict."""
    import msgspec

    from gdrstorm.cli.output import shown
    from gdrstorm.evidence.journal import read_journal
    from gdrstorm.model.journal import Judged
    from gdrstorm.verdict import judge as judge_lines

    code = 0
    for run in runs:
        lines = read_journal(run)
        verdict = judge_lines(lines)
        recorded = next(
            (line.verdict for line in reversed(lines) if isinstance(line, Judged)), None
        )
        if json:
            answer = {
                "run": shown(run),
                "verdict": verdict.word.value,
                "reason": verdict.reason,
                "findings": list(verdict.findings),
                "suspect": verdict.suspect,
                "recorded": recorded.word.value if recorded else None,
            }
            typer.echo(msgspec.json.encode(answer).decode())
        else:
            typer.echo(f"{verdict.word.value}  {run}  {verdict.reason}")
            for finding in verdict.findings[1:]:
                typer.echo(f"      {finding}")
            if recorded and recorded.word is not verdict.word:
                typer.echo(
                    f"      the run itself recorded {recorded.word.value}: {recorded.reason}"
                )
        order = [0, 4, 3, 1, 5]
        code = max(code, verdict.word.exit_code, key=order.index)
    raise typer.Exit(code)
