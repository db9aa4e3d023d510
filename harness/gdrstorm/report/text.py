"""A finished run as text for a terminal, and as the one JSON object of --json. Records in, text out."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gdrstorm.model import journal as j
from gdrstorm.model.verdict import Verdict, Word
from gdrstorm.report.digest import Digest, make_digest, operations, slowest_and_fastest
from gdrstorm.units import format_ns

COLOURS = {
    Word.PASS: "bold green",
    Word.FAIL: "bold red",
    Word.SKIP: "bold yellow",
    Word.BROKEN: "bold magenta",
    Word.LOST: "bold red",
}


def make_console() -> Console:
    """Standard output; wide where it is no terminal, so that logs keep their tables whole."""
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=160)


def print_summary(
    lines: Sequence[j.Line], verdict: Verdict, run_dir: str, console: Console | None = None
) -> None:
    """The verdict in one line with its reason, the tables behind it, and where the run is."""
    out = console or make_console()
    digest = make_digest(lines, verdict)
    _print_head(out, digest)
    if digest.totals:
        _print_operations(out, digest)
    for blocked in digest.blocked:
        out.print(Text(f"blocked in {blocked.phase}: {blocked.summary}"))
    for gate in digest.gates:
        _print_gate(out, gate)
    for check in digest.checks:
        mark = "[green]ok[/]" if check.passed else "[red]FAILED[/]"
        out.print(f"check {check.name}: {mark} {check.detail}")
    _print_errors(out, digest)
    _print_events(out, digest)
    _print_rest(out, digest)
    name = digest.start.scenario.name if digest.start else "run"
    out.print(
        Text.assemble((verdict.word.value, COLOURS[verdict.word]), f"  {name}: {verdict.reason}")
    )
    for finding in verdict.findings[1:20]:
        out.print(Text(f"      {finding}"))
    if verdict.suspect:
        out.print(Text(f"      last step begun and not ended: {verdict.suspect}"))
    out.print(Text(f"run directory: {run_dir}"), soft_wrap=True)


def _print_head(out: Console, digest: Digest) -> None:
    start = digest.start
    if start is None:
        return
    platform = "[bold]HARDWARE[/]" if start.platform == "hardware" else "[bold]EMULATED[/]"
    out.print(f"{start.scenario.name} on {platform} (bed {start.bed}), seed {digest.seed}")
    for role, part in (("exporter", digest.exporter), ("importer", digest.importer)):
        if part.name:
            facts = [part.name, part.device, part.bdf, part.driver, part.version]
            words = " ".join(fact for fact in facts if fact)
            emulated = " (emulated)" if part.emulated else ""
            out.print(f"  {role}: {words}{emulated}", markup=False)
    if "kernel" in digest.machine:
        out.print(f"  kernel:   {digest.machine['kernel']}", markup=False)


def _print_operations(out: Console, digest: Digest) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("phase/group")
    table.add_column("operation")
    for column in ("count", "per second", "errors", "p50", "p99", "p99.9", "max"):
        table.add_column(column, justify="right")
    for total in digest.totals:
        seconds = max(total.elapsed_ns, 1) / 1e9
        name = total.phase if total.phase == total.group else f"{total.phase}/{total.group}"
        for op in total.ops:
            failed = sum(op.errors.values())
            latency = op.latency
            times = (latency.p50_ns, latency.p99_ns, latency.p999_ns, latency.max_ns)
            table.add_row(
                name,
                op.op,
                f"{op.count:,}",
                f"{op.count / seconds:,.0f}",
                f"[red]{failed:,}[/]" if failed else "0",
                *(format_ns(value) if value else "-" for value in times),
            )
            name = ""
    out.print(table)
    for total in digest.totals:
        pair = slowest_and_fastest(total.rates)
        if pair and pair[1].count > 2 * max(1, pair[0].count):
            out.print(
                f"unfair: in {total.phase} thread {pair[1].thread} did {pair[1].count:,} operations while thread "
                f"{pair[0].thread} did {pair[0].count:,} (its longest call {format_ns(pair[0].max_ns)})"
            )


def _print_gate(out: Console, gate: j.Gate) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("case", "path", "expected", "answered", ""):
        table.add_column(column)
    for row in gate.results:
        if row.skipped:
            mark = Text(f"not run: {row.skipped}", style="yellow")
        elif row.passed:
            mark = Text("refused as expected" if row.refused else "as expected", style="green")
        else:
            mark = Text("WRONG", style="bold red")
        table.add_row(row.case, row.path, " or ".join(row.expected), row.got, mark)
    out.print(table)


def _print_errors(out: Console, digest: Digest) -> None:
    for row in digest.errors:
        advice = f": {row.advice}" if row.advice else ""
        out.print(Text(f"{row.op} {row.errno} {row.count:,} times{advice}"))


def _print_events(out: Console, digest: Digest) -> None:
    shown = [line for line in digest.events if not line.before_run]
    for line in shown[:20]:
        event = line.event
        where = f" {event.device}" if event.device else ""
        origin = f" [{line.origin}]" if line.origin else ""
        during = f" in {line.phase}" if line.phase else ""
        out.print(
            Text(
                f"{event.severity.value}{origin}: {event.cls.value}{where}: {event.title} x{event.count}{during}"
            )
        )
    if len(shown) > 20:
        out.print(f"... and {len(shown) - 20} more events in the journal")
    older = len(digest.events) - len(shown)
    if older:
        out.print(f"{older} kernel events were there before the run and are not counted")


def _print_rest(out: Console, digest: Digest) -> None:
    for leak in digest.leaks:
        out.print(Text(f"leak: {leak}", style="red"))
    for name, why in digest.not_audited.items():
        out.print(Text(f"not checked for leaks: {name}: {why}"))
    if digest.blind:
        words = "; ".join(f"{name}: {why}" for name, why in digest.blind.items())
        out.print(Text(f"not watched: {words}", style="dim"))
    for worker in digest.workers:
        out.print(Text(f"worker {worker.worker} {worker.state}: {worker.reason}", style="red"))
        for call in worker.calls[:4]:
            out.print(Text(f"  thread {call.thread} in {call.op} for {format_ns(call.elapsed_ns)}"))
            for frame in call.stack[:12]:
                out.print(Text(f"    {frame}"))
    for note in digest.notes:
        out.print(Text(f"note: {note}", style="yellow"))


def render_svg(lines: Sequence[j.Line], verdict: Verdict, run_dir: str) -> str:
    """What print_summary shows, as an SVG picture without any outside font."""
    console = Console(
        record=True, width=112, file=io.StringIO(), force_terminal=True, highlight=False
    )
    print_summary(lines, verdict, run_dir, console)
    start = make_digest(lines, verdict).start
    title = " ".join(start.argv) if start else "gdrstorm"
    return re.sub(r"@font-face \{.*?\}", "", console.export_svg(title=title), flags=re.DOTALL)


def summary(lines: Sequence[j.Line], verdict: Verdict, run_dir: str) -> dict[str, Any]:
    """The object of --json."""
    digest = make_digest(lines, verdict)
    start = digest.start
    return {
        "verdict": verdict.word.value,
        "reason": verdict.reason,
        "findings": list(verdict.findings),
        "scenario": start.scenario.name if start else None,
        "bed": start.bed if start else None,
        "platform": start.platform if start else None,
        "exporter": digest.exporter.name,
        "importer": digest.importer.name,
        "device": digest.importer.device,
        "driver": digest.importer.driver,
        "seed": digest.seed,
        "operations": {
            name: {
                "count": op.count,
                "errors": op.errors,
                "p50_ns": op.latency.p50_ns,
                "p99_ns": op.latency.p99_ns,
                "p999_ns": op.latency.p999_ns,
                "max_ns": op.latency.max_ns,
            }
            for name, op in operations(digest).items()
        },
        "gates": [msgspec.to_builtins(row) for gate in digest.gates for row in gate.results],
        "checks": [{"name": c.name, "passed": c.passed, "detail": c.detail} for c in digest.checks],
        "faults": [
            {**msgspec.to_builtins(line.event), "phase": line.phase, "origin": line.origin}
            for line in digest.events
            if not line.before_run
        ],
        "leaks": [msgspec.to_builtins(leak) for leak in digest.leaks],
        "run_dir": run_dir,
    }


def summary_json(lines: Sequence[j.Line], verdict: Verdict, run_dir: str) -> str:
    text_dir = run_dir.encode("utf-8", "backslashreplace").decode()  # a path need not be UTF-8
    return msgspec.json.encode(summary(lines, verdict, text_dir)).decode()
