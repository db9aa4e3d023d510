"""A run's journal to the few tables that every report shows. Pure; text, HTML, JUnit and JSON are made from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from gdrstorm.model import journal as j
from gdrstorm.model.audit import Leak, find_leaks
from gdrstorm.model.op import OpSummary, ThreadRate
from gdrstorm.model.stack import StackPart
from gdrstorm.model.verdict import Verdict
from gdrstorm.report.advice import advise

T = TypeVar("T")


class ErrorRow(msgspec.Struct, frozen=True):
    """One (operation, errno) of a run with its likely cause."""

    op: str
    errno: str
    count: int
    advice: str


class Digest(msgspec.Struct, frozen=True):
    """What a run was and did."""

    verdict: Verdict
    start: j.Start | None
    exporter: StackPart
    importer: StackPart
    seed: int | None
    totals: tuple[j.Totals, ...]
    gates: tuple[j.Gate, ...]
    checks: tuple[j.Check, ...]
    blocked: tuple[j.Blocked, ...]
    errors: tuple[ErrorRow, ...]
    events: tuple[j.Seen, ...]
    leaks: tuple[Leak, ...]
    not_audited: dict[str, str]
    blind: dict[str, str]
    workers: tuple[j.Worker, ...]
    notes: tuple[str, ...]
    bed_facts: tuple[j.BedFact, ...]
    machine: dict[str, str]
    progress: tuple[j.Progress, ...]
    elapsed_ns: int


def make_digest(lines: Sequence[j.Line], verdict: Verdict) -> Digest:
    """The digest of a journal and the verdict on it."""
    start = _first(lines, j.Start)
    stack = _first(lines, j.Stack)
    planned = _first(lines, j.Planned)
    totals = tuple(line for line in lines if isinstance(line, j.Totals))
    seen = {(line.origin, line.event.id): line for line in lines if isinstance(line, j.Seen)}
    audits = {line.when: line.snapshot for line in lines if isinstance(line, j.Audit)}
    leaks: tuple[Leak, ...] = ()
    if {"before", "after"} <= audits.keys():
        leaks = find_leaks(audits["before"], audits["after"])
    return Digest(
        verdict=verdict,
        start=start,
        exporter=stack.exporter
        if stack
        else StackPart(planned.plan.stack.exporter if planned else ""),
        importer=stack.importer
        if stack
        else StackPart(planned.plan.stack.importer if planned else ""),
        seed=planned.plan.seed if planned else None,
        totals=totals,
        gates=tuple(line for line in lines if isinstance(line, j.Gate)),
        checks=tuple(line for line in lines if isinstance(line, j.Check)),
        blocked=tuple(line for line in lines if isinstance(line, j.Blocked) and line.places),
        errors=_errors(totals),
        events=tuple(sorted(seen.values(), key=lambda line: -line.event.severity.rank)),
        leaks=leaks,
        not_audited={k: v for snapshot in audits.values() for k, v in snapshot.unknown.items()},
        blind={
            name: why
            for line in lines
            if isinstance(line, j.Watching)
            for name, why in line.blind.items()
        },
        workers=tuple(
            line
            for line in lines
            if isinstance(line, j.Worker) and line.state in ("hung", "failed", "crashed", "killed")
        ),
        notes=tuple(line.text for line in lines if isinstance(line, j.Note)),
        bed_facts=tuple(line for line in lines if isinstance(line, j.BedFact)),
        machine=_machine(lines),
        progress=tuple(line for line in lines if isinstance(line, j.Progress)),
        elapsed_ns=lines[-1].time_ns - lines[0].time_ns if lines else 0,
    )


def _first(lines: Sequence[j.Line], kind: type[T]) -> T | None:
    return next((line for line in lines if isinstance(line, kind)), None)


def _errors(totals: Sequence[j.Totals]) -> tuple[ErrorRow, ...]:
    counts: dict[tuple[str, str], int] = {}
    for total in totals:
        for op in total.ops:
            for name, count in op.errors.items():
                counts[(op.op, name)] = counts.get((op.op, name), 0) + count
    rows = [ErrorRow(op, name, count, advise(op, name)) for (op, name), count in counts.items()]
    return tuple(sorted(rows, key=lambda row: -row.count))


def _machine(lines: Sequence[j.Line]) -> dict[str, str]:
    """The few facts of the inventory that belong on top of a report, by their path in it."""
    line = _first(lines, j.Machine)
    if line is None:
        return {}
    raw = msgspec.json.decode(bytes(line.inventory))
    picked = {}
    for name, path in (
        ("kernel", ("kernel", "release")),
        ("command line", ("kernel", "cmdline")),
        ("product", ("machine", "product")),
    ):
        value = raw
        for key in path:
            value = value.get(key, {}) if isinstance(value, dict) else {}
        text = value.get("value") if isinstance(value, dict) else value
        if text:
            picked[name] = str(text)
    return picked


def operations(digest: Digest) -> dict[str, OpSummary]:
    """Operations by name over the whole run. Where several groups did one, counts and errors are added up and the
    latencies are those of the group that did most of it (percentiles of different groups cannot be added)."""
    merged: dict[str, OpSummary] = {}
    for total in digest.totals:
        for op in total.ops:
            old = merged.get(op.op)
            if old is None:
                merged[op.op] = op
                continue
            errors = dict(old.errors)
            for name, count in op.errors.items():
                errors[name] = errors.get(name, 0) + count
            bigger = op if op.count > old.count else old
            latency = msgspec.structs.replace(
                bigger.latency,
                min_ns=min(op.latency.min_ns, old.latency.min_ns),
                max_ns=max(op.latency.max_ns, old.latency.max_ns),
            )
            merged[op.op] = OpSummary(
                op.op, old.count + op.count, errors, latency, bigger.error_latency
            )
    return merged


def slowest_and_fastest(rates: Sequence[ThreadRate]) -> tuple[ThreadRate, ThreadRate] | None:
    """The threads that got least and most done, or None when there is nothing to compare."""
    if len(rates) < 2:
        return None
    ordered = sorted(rates, key=lambda rate: rate.count)
    return ordered[0], ordered[-1]
