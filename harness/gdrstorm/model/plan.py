"""A scenario resolved against a machine: which back ends, which devices, which workers, which seed.

Made by plan.resolve, written to the journal, handed to the workers as JSON. A worker needs nothing but its
WorkerPlan and the descriptor of the shared area.
"""

from __future__ import annotations

import msgspec

from gdrstorm.model.op import Op, Order
from gdrstorm.model.scenario import Do, Group, Memory


class StackChoice(msgspec.Struct, frozen=True):
    """The back ends of a run and the devices they open; an empty device means the back end's default."""

    exporter: str
    importer: str
    exporter_device: str = ""
    importer_device: str = ""


class WorkerPlan(msgspec.Struct, frozen=True):
    """What one worker process does in one phase. Thread slots are those of the shared area."""

    worker: int
    phase: str
    do: Do
    stack: StackChoice
    seed: int
    first_thread: int = 0
    threads: int = 0
    group: Group | None = None
    duration_ns: int = 0
    count: int = 0
    table: str = ""
    verify: bool = False


class PhasePlan(msgspec.Struct, frozen=True):
    """The workers of one phase. `threads` is the number of slots that its shared area needs."""

    name: str
    do: Do
    threads: int
    workers: tuple[WorkerPlan, ...]
    duration_ns: int = 0
    count: int = 0


class Plan(msgspec.Struct, frozen=True):
    """Everything that is decided before the first operation."""

    stack: StackChoice
    seed: int
    phases: tuple[PhasePlan, ...]
    time_limit_ns: int
    call_limit_ns: int
    tail_ns: int


__all__ = ["Do", "Group", "Memory", "Op", "Order", "PhasePlan", "Plan", "StackChoice", "WorkerPlan"]
