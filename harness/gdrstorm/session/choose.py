"""Which stack a run gets: the user's word first, then the scenario's, then the most real thing that works here.

The fake back ends are never chosen, only named. A reason why something cannot be had is passed on word for word.
"""

from __future__ import annotations

from pathlib import Path

from gdrstorm.errors import UnavailableError
from gdrstorm.model.plan import StackChoice
from gdrstorm.model.scenario import Scenario
from gdrstorm.model.stack import Support
from gdrstorm.session.options import RunOptions
from gdrstorm.stack import registry

#: what a scenario runs on when nobody says anything, the most real first
_EXPORTERS = ("cuda", "rm", "udmabuf", "dmaheap")
_IMPORTERS = ("verbs",)


def _pick(kind: str, wanted: tuple[str, ...], device: str) -> str:
    """The first back end that works here. Raises UnavailableError with every reason."""
    probe = registry.probe_exporter if kind == "exporter" else registry.probe_importer
    reasons = []
    for name in wanted:
        support: Support = probe(name, device or None)
        if support.ok:
            return name
        reasons.append(f"{name}: {support.reason}")
    raise UnavailableError(f"no {kind} works here: {'; '.join(reasons)}")


def wanted_exporters(scenario: Scenario, options: RunOptions) -> tuple[str, ...]:
    """Exporters in the order of preference."""
    if options.exporter:
        return (options.exporter,)
    if scenario.exporter:
        return (scenario.exporter,)
    return scenario.needs.exporters or _EXPORTERS


def wanted_importers(scenario: Scenario, options: RunOptions) -> tuple[str, ...]:
    """Importers in the order of preference."""
    if options.importer:
        return (options.importer,)
    if scenario.importer:
        return (scenario.importer,)
    return scenario.needs.importers or _IMPORTERS


def check_allowed(scenario: Scenario, options: RunOptions) -> None:
    """Raises UnavailableError when the user named a back end that the scenario was not made for."""
    for kind, named, allowed in (
        ("exporter", options.exporter, scenario.needs.exporters),
        ("importer", options.importer, scenario.needs.importers),
    ):
        if named and allowed and named not in allowed and named != "fake":
            raise UnavailableError(
                f"{scenario.name} is made for {kind} {' or '.join(allowed)}, not for {named}"
            )


def check_needs(scenario: Scenario, uid: int) -> None:
    """Raises UnavailableError for a need that no choice of back end can meet."""
    if scenario.needs.root and uid != 0:
        raise UnavailableError(f"{scenario.name} needs root", "run it with sudo")
    if scenario.needs.gpu and not Path("/dev/nvidiactl").exists():
        raise UnavailableError(
            f"{scenario.name} needs an NVIDIA GPU: there is no /dev/nvidiactl",
            "gdrstorm check tells more",
        )
    missing = [name for name in scenario.needs.drivers if not Path(f"/sys/module/{name}").exists()]
    if missing:
        raise UnavailableError(
            f"{scenario.name} needs the driver {', '.join(missing)}, which is not loaded"
        )


def choose_stack(scenario: Scenario, options: RunOptions, uid: int) -> StackChoice:
    """The stack on this machine. UnavailableError: the scenario cannot run here; UsageError: no such back end."""
    check_allowed(scenario, options)
    check_needs(scenario, uid)
    return StackChoice(
        exporter=_pick("exporter", wanted_exporters(scenario, options), options.exporter_device),
        importer=_pick("importer", wanted_importers(scenario, options), options.device),
        exporter_device=options.exporter_device,
        importer_device=options.device,
    )


def needs_vm(scenario: Scenario, options: RunOptions, uid: int) -> str:
    """Why this machine cannot run the scenario, or empty when it can."""
    try:
        choose_stack(scenario, options, uid)
    except UnavailableError as error:
        return error.message
    return ""
