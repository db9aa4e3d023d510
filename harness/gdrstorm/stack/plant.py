"""Planted failures of the fake back ends: text to a plan, and when a call of it is due.

The text is the `device` of a fake, comma-separated: `reg=EINVAL/10` (every 10th REG fails),
`reg=EINVAL@10` (the 10th, once), `dereg=hang@100` (the 100th never returns), `any=...` for every
operation of the back end, `delay_ns=500` (every call), `hang_ns=1000000` (a hang ends after that).
One failing and one hanging operation at most: that is what the native back end takes (fake.h).
"""

from __future__ import annotations

import re
import time

import msgspec

from gdrstorm.errors import CallError, UsageError, errno_value
from gdrstorm.model.op import Op

_HINT = "write reg=EINVAL/10, reg=EINVAL@10, dereg=hang@100, delay_ns=500 or hang_ns=1000000"
# Counts and times fit the native back end's 64 bits.
_PART = re.compile(r"(?P<op>[a-z]+)=(?P<what>[A-Za-z0-9]+)(?P<how>[/@])(?P<n>[1-9][0-9]{0,17})")
_TIME = re.compile(r"(?P<name>delay_ns|hang_ns)=(?P<ns>[0-9]{1,18})")
_NANOSECOND = 1e-9
#: Name of the memfds that the fakes take for dma-bufs.
BUFFER_NAME = "gdrstorm-fake"


class PlantPlan(msgspec.Struct, frozen=True):
    """What is planted. Counts are from 1, 0 is off; an operation of None is any."""

    delay_ns: int = 0
    fail_op: Op | None = None
    fail_every: int = 0
    errno: int = 0
    fail_at: int = 0
    hang_op: Op | None = None
    hang_at: int = 0
    hang_ns: int = 0

    def numbers(self) -> tuple[int, ...]:
        """The binding of the native fake back ends, in the order of native/src/fake.h."""
        return (
            self.delay_ns,
            self.fail_op or 0,
            self.fail_every,
            self.errno,
            self.fail_at,
            self.hang_op or 0,
            self.hang_at,
            self.hang_ns,
        )


def parse_plants(text: str) -> PlantPlan:
    """The plan of a device text, empty for an empty one. Raises UsageError with the wrong part."""
    plan = PlantPlan()
    for part in filter(None, (part.strip() for part in text.split(","))):
        plan = _add(plan, part)
    return plan


def _add(plan: PlantPlan, part: str) -> PlantPlan:
    timed = _TIME.fullmatch(part)
    if timed:
        return msgspec.structs.replace(plan, **{timed["name"]: int(timed["ns"])})
    match = _PART.fullmatch(part)
    if not match or (match["op"] != "any" and match["op"].upper() not in Op.__members__):
        raise UsageError(f"cannot read planted failure: {part!r}", _HINT)
    op = None if match["op"] == "any" else Op[match["op"].upper()]
    number = int(match["n"])
    if match["what"] == "hang":
        if match["how"] == "/" or plan.hang_at:
            raise UsageError(f"one call hangs, by its number: {part!r}", _HINT)
        return msgspec.structs.replace(plan, hang_op=op, hang_at=number)
    value = errno_value(match["what"])
    if value is None:
        raise UsageError(f"no such errno: {match['what']!r} in {part!r}", _HINT)
    if plan.errno:
        raise UsageError(f"one operation fails, with one errno: {part!r}", _HINT)
    key = "fail_every" if match["how"] == "/" else "fail_at"
    return msgspec.structs.replace(plan, fail_op=op, errno=value, **{key: number})


class Planter:
    """Counts calls and does what is due. For one thread at a time, as the control path is."""

    def __init__(self, plan: PlantPlan) -> None:
        self.plan = plan
        self._failing = 0
        self._hanging = 0

    def call(self, op: Op, act: str) -> None:
        """Count one call: delay, hang or fail as planned. Raises CallError with the errno."""
        plan = self.plan
        time.sleep(plan.delay_ns * _NANOSECOND)
        if plan.hang_at and plan.hang_op in (None, op):
            self._hanging += 1
            if self._hanging == plan.hang_at:
                _hang(plan.hang_ns)
        if plan.errno and plan.fail_op in (None, op):
            self._failing += 1
            every = plan.fail_every and self._failing % plan.fail_every == 0
            if every or self._failing == plan.fail_at:
                raise CallError(act, plan.errno, "planted")


def _hang(ns: int) -> None:
    # For ever is bounded by the kill that ends every hung worker.
    while not ns:
        time.sleep(3600)
    time.sleep(ns * _NANOSECOND)
