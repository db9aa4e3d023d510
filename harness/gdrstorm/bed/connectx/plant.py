"""Faults that can be planted in the device, and the saboteur that the device asks about them.

A plant is a typed record. `Saboteur.plant` arms it and gives its number; the device consults the
saboteur at the point where the fault would show. Nothing here touches the guest.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gdrstorm.bed.connectx.prm import Op, Status, Syndrome


class Mishap(enum.Enum):
    """What happens to a completion, a page fault or a command that was picked."""

    FAIL = "fail"
    DELAY = "delay"
    DROP = "drop"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandPlant:
    """Spoil commands of one opcode: fail with status and syndrome, delay, or never answer."""

    opcode: Op
    mishap: Mishap
    nth: int = 1
    times: int = 1
    status: Status = Status.INTERNAL
    syndrome: int = 0
    delay_s: float = 0.0
    function: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UmrPlant:
    """Spoil UMR completions (memory registration): a dropped one hangs ibv_reg_mr for ever."""

    mishap: Mishap
    nth: int = 1
    times: int = 1
    delay_s: float = 0.0
    function: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionPlant:
    """Turn the completion of user work requests into an error; `qpn` None means any QP."""

    syndrome: Syndrome
    vendor_syndrome: int = 0
    qpn: int | None = None
    nth: int = 1
    times: int = 1
    function: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFaultPlant:
    """Delay or drop a page-fault event, or fail the access without asking the driver."""

    mishap: Mishap
    nth: int = 1
    times: int = 1
    delay_s: float = 0.0
    function: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StalePlant:
    """Write through a translation after the driver took it away: a broken device.

    `delay_s` after the n-th revoke the first `size_bytes` of the old pages get a pattern.
    """

    nth: int = 1
    times: int = 1
    delay_s: float = 0.001
    size_bytes: int = 64
    function: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPlant:
    """Report a health syndrome; `fatal` asks the driver for a reset (the rfr bit)."""

    syndrome: int
    fatal: bool = False
    function: int | None = None


class Disaster(enum.Enum):
    """States of the whole function."""

    WEDGE = "wedge"
    VANISH = "vanish"
    RETURN = "return"
    PORT_DOWN = "port_down"
    PORT_UP = "port_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class DisasterPlant:
    """Wedge (no answers, health counter stands), vanish (reads give ones), or come back."""

    disaster: Disaster
    function: int | None = None


CountedPlant = CommandPlant | UmrPlant | CompletionPlant | PageFaultPlant | StalePlant
InstantPlant = HealthPlant | DisasterPlant
Plant = CountedPlant | InstantPlant
Picked = TypeVar("Picked", CommandPlant, UmrPlant, CompletionPlant, PageFaultPlant, StalePlant)


@dataclass(frozen=True, slots=True)
class PlantReport:
    """One armed plant: how many candidates it saw and how often it struck."""

    number: int
    plant: Plant
    seen: int
    struck: int


@dataclass(slots=True)
class _Armed:
    number: int
    plant: CountedPlant
    seen: int = 0
    struck: int = 0


class Saboteur:
    """Holds armed plants; the device asks `pick_*` and obeys."""

    def __init__(self) -> None:
        self._armed: dict[int, _Armed] = {}
        self._instant: dict[int, PlantReport] = {}
        self._next = 1
        self._listeners: list[Callable[[InstantPlant], None]] = []

    def listen(self, listener: Callable[[InstantPlant], None]) -> None:
        """A device asks to hear of plants that strike at once."""
        self._listeners.append(listener)

    def plant(self, plant: Plant) -> int:
        """Arm a plant (or strike, for instant ones) and give its number."""
        number = self._next
        self._next += 1
        if isinstance(plant, HealthPlant | DisasterPlant):
            for listener in self._listeners:
                listener(plant)
            self._instant[number] = PlantReport(number, plant, 1, 1)
        else:
            self._armed[number] = _Armed(number, plant)
        return number

    def clear(self, number: int | None = None) -> None:
        """Disarm one plant, or all."""
        if number is None:
            self._armed.clear()
        else:
            self._armed.pop(number, None)

    def report(self) -> tuple[PlantReport, ...]:
        armed = [PlantReport(a.number, a.plant, a.seen, a.struck) for a in self._armed.values()]
        return tuple(sorted([*armed, *self._instant.values()], key=lambda r: r.number))

    def pick_command(self, function: int, opcode: int) -> CommandPlant | None:
        if not self._armed:
            return None
        return self._pick(CommandPlant, function, lambda p: p.opcode == opcode)

    def pick_umr(self, function: int) -> UmrPlant | None:
        return self._pick(UmrPlant, function, lambda _: True) if self._armed else None

    def pick_completion(self, function: int, qpn: int) -> CompletionPlant | None:
        if not self._armed:
            return None
        return self._pick(CompletionPlant, function, lambda p: p.qpn in (None, qpn))

    def pick_page_fault(self, function: int) -> PageFaultPlant | None:
        return self._pick(PageFaultPlant, function, lambda _: True) if self._armed else None

    def pick_stale(self, function: int) -> StalePlant | None:
        return self._pick(StalePlant, function, lambda _: True) if self._armed else None

    def _pick(
        self, kind: type[Picked], function: int, wanted: Callable[[Picked], bool]
    ) -> Picked | None:
        """The first armed plant that this candidate is due for; all matching ones count it."""
        struck: Picked | None = None
        for armed in self._armed.values():
            plant = armed.plant
            if not isinstance(plant, kind) or plant.function not in (None, function):
                continue
            if not wanted(plant):
                continue
            armed.seen += 1
            if struck is None and armed.seen >= plant.nth and armed.struck < plant.times:
                armed.struck += 1
                struck = plant
        return struck
