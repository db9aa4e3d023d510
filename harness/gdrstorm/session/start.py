"""Where a run goes: this machine or the VM bed. The one entry of the command line into the session."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gdrstorm.bed.vm.options import BedOptions, Domain, Iommu, Topology, check_options
from gdrstorm.errors import UnavailableError
from gdrstorm.model.scenario import Scenario
from gdrstorm.model.verdict import Verdict
from gdrstorm.session.choose import check_allowed, needs_vm, wanted_exporters, wanted_importers
from gdrstorm.session.options import RunOptions, Where
from gdrstorm.session.record import Observer
from gdrstorm.session.run import make_run_dir, run_here
from gdrstorm.session.vm import run_in_vm
from gdrstorm.session.watch import new_run_id
from gdrstorm.units import parse_size

#: what the bed's guest can offer
_BED_EXPORTERS = {"udmabuf", "dmaheap", "vfio"}
_BED_IMPORTERS = {"verbs", "uverbs", "prime", "host-memory", "core"}


def vm_cannot(scenario: Scenario, options: RunOptions) -> str:
    """Why the VM bed cannot run a scenario, or empty when it can."""
    if scenario.needs.gpu:
        return f"{scenario.name} needs an NVIDIA GPU, which the VM bed does not have"
    try:
        check_allowed(scenario, options)
    except UnavailableError as error:
        return error.message
    for kind, wanted, has in (
        ("exporter", wanted_exporters(scenario, options), _BED_EXPORTERS),
        ("importer", wanted_importers(scenario, options), _BED_IMPORTERS),
    ):
        if not set(wanted) & has:
            return f"the VM bed has no {kind} {' or '.join(wanted)}"
    return ""


def where_it_runs(scenario: Scenario, options: RunOptions, uid: int) -> tuple[str, str]:
    """`host`, `vm` or `no`, with the reason why not on the host."""
    if options.exporter == "fake" or options.importer == "fake":
        return "host", ""
    reason = needs_vm(scenario, options, uid)
    if not reason:
        return "host", ""
    cannot = vm_cannot(scenario, options)
    if cannot:
        return "no", reason if scenario.needs.gpu else cannot
    return ("vm", reason) if uid == 0 else ("no", "the VM bed needs root")


def bed_options(scenario: Scenario, overrides: Mapping[str, Any]) -> BedOptions:
    """The bed that the scenario asks for, with the user's options over it. Raises UsageError when it cannot work."""
    bed = scenario.bed
    asked: dict[str, Any] = {"rxe": bed.rxe}
    if bed.hca is not None:
        asked["hca"] = bed.hca
    if bed.bars:
        asked["bars"] = tuple(parse_size(size) for size in bed.bars)
    if bed.topology:
        asked["topology"] = Topology(bed.topology)
    if bed.iommu:
        asked["iommu"] = Iommu(bed.iommu)
    if bed.domain:
        asked["domain"] = Domain(bed.domain)
    made = BedOptions(**{**asked, **overrides})
    check_options(made)
    return made


def start(
    scenario: Scenario,
    options: RunOptions,
    overrides: Mapping[str, Any],
    out: Path | None,
    observers: Sequence[Observer],
    say: Callable[[str], None],
) -> tuple[Path, Verdict]:
    """Run a scenario where it can run. Returns its run directory and its verdict; UsageError for wrong use only."""
    where = options.where
    reason = ""
    if where is Where.AUTO:
        place, reason = where_it_runs(scenario, options, os.geteuid())
        where = Where.VM if place == "vm" else Where.HOST
    bed = bed_options(scenario, overrides)  # wrong ones are refused before anything is made
    run_dir = make_run_dir(out, f"{scenario.name.replace('/', '-')}-{new_run_id()}")
    if where is Where.VM:
        cannot = vm_cannot(scenario, options)
        if reason and not cannot:
            short = reason.partition(": ")[0]
            say(f"on the VM bed, emulated: {short} (gdrstorm check tells more)")
        return run_dir, run_in_vm(scenario, options, bed, run_dir, observers, say, cannot)
    return run_dir, run_here(scenario, options, run_dir, observers=observers)
