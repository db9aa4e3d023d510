"""`gdrstorm run`: run scenarios, show them live, end with a verdict each."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from gdrstorm.model.scenario import Scenario
    from gdrstorm.session.options import RunOptions

_BED = "VM bed"


def run(
    scenarios: list[str] = typer.Argument(
        ..., metavar="SCENARIO...", help="Names from `gdrstorm list`, or paths of .toml files."
    ),
    bed: str = typer.Option(
        "auto", help="auto: this machine when it has what is needed, else the VM bed; host; vm."
    ),
    exporter: str = typer.Option(
        "", help="Exporter, or exporter:device (cuda:0, vfio:0000:04:00.0)."
    ),
    importer: str = typer.Option("", help="Importer: verbs, uverbs, prime, host-memory, core."),
    device: str = typer.Option(
        "", help="Device of the importer, as mlx5_0 or /dev/dri/renderD128."
    ),
    seed: int | None = typer.Option(
        None, min=0, help="Seed of all random choices; default: a new one."
    ),
    duration: str = typer.Option("", help="Length of each timed phase, as 30s or 2h."),
    out: Path | None = typer.Option(None, help="Directory for run directories; default ./runs."),
    baseline: Path | None = typer.Option(
        None,
        help="Report every kernel line that this baseline (gdrstorm kmsg --record-baseline) has not seen.",
    ),
    json: bool = typer.Option(
        False, "--json", help="Print one JSON object at the end, nothing else."
    ),
    hca: int | None = typer.Option(
        None, min=0, max=2, help="Virtual ConnectX functions.", rich_help_panel=_BED
    ),
    bar: list[str] = typer.Option(
        [], help="Size of a PCI BAR for exporter vfio; repeat.", rich_help_panel=_BED
    ),
    link_layer: str = typer.Option("", help="ethernet or infiniband.", rich_help_panel=_BED),
    topology: str = typer.Option("", help="pix, phb, node or sys.", rich_help_panel=_BED),
    iommu: str = typer.Option("", help="none, intel, virtio or amd.", rich_help_panel=_BED),
    domain: str = typer.Option("", help="identity or translated.", rich_help_panel=_BED),
    smp: int | None = typer.Option(None, help="CPUs of the guest.", rich_help_panel=_BED),
    memory: str = typer.Option("", help="Memory of the guest, as 2GiB.", rich_help_panel=_BED),
    cpu: str = typer.Option("", help="QEMU CPU model.", rich_help_panel=_BED),
    accel: str = typer.Option("", help="auto, kvm or tcg.", rich_help_panel=_BED),
    kernel: Path | None = typer.Option(
        None, help="A kernel image of your own.", rich_help_panel=_BED
    ),
    modules: Path | None = typer.Option(
        None, help="Its lib/modules/RELEASE directory.", rich_help_panel=_BED
    ),
    append: str = typer.Option("", help="More kernel command line.", rich_help_panel=_BED),
    plant: list[str] = typer.Option(
        [],
        help='Fault to plant in the virtual ConnectX, as \'umr {"mishap": "drop"}\'; docs/PLANTS.md.',
        rich_help_panel=_BED,
    ),
    timeout: float | None = typer.Option(
        None, help="Seconds after which the whole bed ends.", rich_help_panel=_BED
    ),
) -> None:
    """Run scenarios on this machine or in the VM bed, and judge them."""
    from gdrstorm.cli.bed_options import override_bed
    from gdrstorm.errors import UsageError
    from gdrstorm.plan.catalogue import find_scenario
    from gdrstorm.plan.fields import duration as parse_duration
    from gdrstorm.session.model_view import parse_plant
    from gdrstorm.session.options import RunOptions, Where

    problems: list[str] = []
    found: list[Scenario] = []
    for name in scenarios:
        try:
            found.append(find_scenario(name))
        except UsageError as error:
            problems.append(str(error))
    if bed not in [where.value for where in Where]:
        problems.append(f"--bed {bed}: must be auto, host or vm")
    duration_ns = None
    if duration:
        try:
            duration_ns = parse_duration(1_000_000)(duration)
        except ValueError as error:
            problems.append(f"--duration {error}")
    if problems:
        raise UsageError("\n".join(problems))
    name, _, exporter_device = exporter.partition(":")
    options = RunOptions(
        where=Where(bed),
        exporter=name,
        exporter_device=exporter_device,
        importer=importer,
        device=device,
        seed=seed,
        duration_ns=duration_ns,
        plants=tuple(plant),
        baseline=_read_baseline(baseline),
        argv=tuple(_argv()),
    )
    overrides = override_bed(
        hca=hca, bars=bar, link_layer=link_layer, topology=topology, iommu=iommu, domain=domain, smp=smp, memory=memory,
        cpu=cpu, accel=accel, kernel=kernel, modules=modules, append=append, timeout=timeout,
    )  # fmt: skip
    _check_names(options)
    _check_tables(found)
    for text in plant:
        parse_plant(text)
    code = 0
    for scenario in found:
        code = max(code, _run_one(scenario, options, overrides, out, json), key=_badness)
    raise typer.Exit(code)


def _read_baseline(path: Path | None) -> frozenset[str]:
    from gdrstorm.kmsg.baseline import read_baseline

    return frozenset() if path is None else read_baseline(path)


def _argv() -> list[str]:
    import sys

    from gdrstorm.cli.output import shown

    return ["gdrstorm", *map(shown, sys.argv[1:])]


def _badness(code: int) -> int:
    """Of several runs the worst counts: LOST, FAIL, BROKEN, SKIP, PASS."""
    return [0, 4, 3, 1, 5].index(code) if code in (0, 4, 3, 1, 5) else 9


def _check_names(options: RunOptions) -> None:
    from gdrstorm.errors import UsageError
    from gdrstorm.plan.fields import nearest
    from gdrstorm.stack import registry

    for kind, name, known in (
        ("exporter", options.exporter, registry.exporter_names()),
        ("importer", options.importer, registry.importer_names()),
    ):
        if name and name not in known:
            raise UsageError(
                f'no {kind} "{name}"{nearest(name, known)}', f"there are: {', '.join(known)}"
            )


def _check_tables(scenarios: list[Scenario]) -> None:
    """Gates that nobody can run are refused before the first scenario starts."""
    from gdrstorm.errors import UsageError
    from gdrstorm.model.scenario import Do
    from gdrstorm.plan.fields import nearest
    from gdrstorm.stack.tables import table_names

    known = table_names()
    for scenario in scenarios:
        for phase in scenario.phases:
            if phase.do is Do.GATE and phase.table not in known:
                raise UsageError(
                    f'{scenario.name}: no gate table "{phase.table}"{nearest(phase.table, known)}',
                    f"there are: {', '.join(known)}",
                )


def _run_one(
    scenario: Scenario,
    options: RunOptions,
    overrides: dict[str, object],
    out: Path | None,
    json: bool,
) -> int:
    """Run one scenario, show it, and give its exit code."""
    from gdrstorm.cli.output import give_up_stdout
    from gdrstorm.evidence.journal import read_journal
    from gdrstorm.report.live import live_view
    from gdrstorm.report.text import print_summary, summary_json
    from gdrstorm.session.start import start

    with live_view(quiet=json) as view:
        run_dir, verdict = start(scenario, options, overrides, out, (view.take,), view.say)
    lines = read_journal(run_dir)
    try:
        if json:
            typer.echo(summary_json(lines, verdict, str(run_dir)))
        else:
            print_summary(lines, verdict, str(run_dir))
    except (OSError, SystemExit):  # rich answers a closed pipe with SystemExit
        give_up_stdout()
        how = f"{verdict.word.value}, but its summary could not be printed"
        with contextlib.suppress(OSError):
            typer.echo(f"gdrstorm: {how} (gdrstorm report {run_dir})", err=True)
    return verdict.word.exit_code
