"""The virtual ConnectX of a run: plants that the user asked for, and what the device saw, into the journal.

The model is an oracle for one thing above all: a DMA through a translation that was unmapped, revoked or never made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from gdrstorm.bed.connectx.control import ControlClient, ControlError, PlantKind, decode_plant
from gdrstorm.bed.connectx.oracle import OracleReport
from gdrstorm.bed.connectx.plant import Plant
from gdrstorm.errors import UsageError
from gdrstorm.model import journal as j

_SHOWN = 5


def parse_plant(text: str) -> Plant:
    """`umr {"mishap": "drop", "nth": 500}` to a plant. Raises UsageError with what is wrong."""
    kind, _, fields = text.strip().partition(" ")
    kinds = ", ".join(one.value for one in PlantKind)
    try:
        plant_kind = PlantKind(kind)
    except ValueError:
        raise UsageError(
            f"no such plant: {kind!r}", f"there are: {kinds}; see docs/PLANTS.md"
        ) from None
    try:
        return decode_plant(plant_kind, msgspec.Raw(fields.encode() or b"{}"))
    except (msgspec.DecodeError, ValueError) as error:
        raise UsageError(f"cannot read plant {text!r}: {error}", "see docs/PLANTS.md") from None


def arm_plants(control: Path, texts: Sequence[str], write: Callable[[j.Line], object]) -> None:
    """Arm the plants of a run; each is written down, since it decides what the run means."""
    if not texts:
        return
    with ControlClient.connect(control, wait_s=5.0) as client:
        for text in texts:
            number = client.plant(parse_plant(text))
            write(j.BedFact(what="plant", detail=f"{number}: {text}"))


def record_model_view(control: Path, write: Callable[[j.Line], object]) -> str:
    """Counts and oracle reports of the device model. Returns what makes the bed itself doubtful, or nothing.

    A model that does not answer is a note, not a failure: a plant may have silenced it.
    """
    try:
        with ControlClient.connect(control) as client:
            report = client.oracle().report
            plants = client.counts().plants
            ports = client.status().ports
    except ControlError as error:
        write(j.Note(text=f"the device model did not tell what it saw: {error}"))
        return ""
    done = sum(report.wqes.values())
    commands = sum(report.commands.values())
    write(
        j.BedFact(
            what="oracle",
            detail=f"{commands} firmware commands, {done} work requests, {report.page_faults} page faults, "
            f"{sum(report.refusals.values())} accesses refused by an mkey",
        )
    )
    stray = [record for record in report.stray if not record.planted]
    write(
        j.Check(
            phase="bed",
            name="device model: no DMA to memory that was unmapped or never mapped",
            passed=not stray,
            detail=_stray_text(report) if stray else f"{done} work requests watched",
        )
    )
    for leak in report.leaks[:_SHOWN]:
        left = ", ".join(f"{count} {name}" for name, count in leak.objects.items())
        write(j.Note(text=f"the driver left objects in the device at {leak.when}: {left}"))
    for anomaly in report.anomalies[:_SHOWN]:
        write(j.Note(text=f"device model: {anomaly.what}"))
    for plant in plants:
        if not plant.struck:
            write(j.Note(text=f"plant {plant.number} never struck: it has shown nothing"))
    faulty = next((port for port in ports if port.device_faults), None)
    return f"the device model failed: {faulty.last_device_fault}" if faulty else ""


def _stray_text(report: OracleReport) -> str:
    words = []
    for record in report.stray[:_SHOWN]:
        way = "write to" if record.write else "read from"
        age = (
            "never mapped"
            if record.unmapped_ago_ns is None
            else f"unmapped {record.unmapped_ago_ns / 1e6:.1f}ms before"
        )
        words.append(
            f"{record.kind.value} {way} {record.iova:#x} ({age}, qpn {record.qpn}, mkey {record.mkey})"
        )
    more = f" and {report.stray_count - _SHOWN} more" if report.stray_count > _SHOWN else ""
    return "; ".join(words) + more
