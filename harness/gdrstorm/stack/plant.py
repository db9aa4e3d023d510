"""Planted failures of the fake back ends: text to records, and when one is due.

The text is the `device` of a fake: comma-separated `OP=WHAT/EVERY`, for example
`reg=EINVAL/10,dereg=hang/1000,close=leak/50`. WHAT is an errno name, `hang` (blocks for ever) or
`leak` (says yes and does nothing). EVERY n: the n-th, 2n-th, ... call of that operation, from 1.
"""

from __future__ import annotations

import enum
import time

import msgspec

from gdrstorm.errors import CallError, UsageError, errno_value
from gdrstorm.model.op import Op


class What(enum.Enum):
    """What a planted failure does to the call."""

    ERROR = "error"
    HANG = "hang"
    LEAK = "leak"


class Plant(msgspec.Struct, frozen=True):
    """One planted failure; `errno` is 0 unless `what` is ERROR."""

    op: Op
    what: What
    every: int = 1
    errno: int = 0


def parse_plants(text: str) -> tuple[Plant, ...]:
    """Plants of a device text, none of an empty one. Raises UsageError with the wrong part."""
    return tuple(_parse_one(part.strip()) for part in text.split(",") if part.strip())


def _parse_one(part: str) -> Plant:
    head, _, every_text = part.partition("/")
    op_text, _, what_text = head.partition("=")
    hint = "write OP=WHAT/EVERY, WHAT an errno name, hang or leak: reg=EINVAL/10"
    if op_text.upper() not in Op.__members__ or not what_text:
        raise UsageError(f"cannot read planted failure: {part!r}", hint)
    every = int(every_text) if every_text.isdecimal() else 0 if every_text else 1
    if every < 1:
        raise UsageError(f"cannot read planted failure: {part!r}", hint)
    op = Op[op_text.upper()]
    if what_text in (What.HANG.value, What.LEAK.value):
        return Plant(op, What(what_text), every)
    value = errno_value(what_text)
    if value is None:
        raise UsageError(f"no such errno: {what_text!r} in {part!r}", hint)
    return Plant(op, What.ERROR, every, value)


class Planter:
    """Counts calls and does what is due. For one thread at a time, as the control path is."""

    def __init__(self, plants: tuple[Plant, ...]) -> None:
        self.plants = plants
        self._counts: dict[Op, int] = {}

    def is_leaked(self, op: Op, act: str) -> bool:
        """Count one call. Whether the back end must do nothing and say yes.

        Raises:
            CallError: a planted errno is due.
        """
        count = self._counts.get(op, 0) + 1
        self._counts[op] = count
        for plant in self.plants:
            if plant.op is not op or count % plant.every:
                continue
            if plant.what is What.ERROR:
                raise CallError(act, plant.errno, "planted")
            if plant.what is What.HANG:
                _hang()
            return True
        return False


def _hang() -> None:
    # Bounded by the kill that ends every hung worker; never by a timeout of its own.
    while True:
        time.sleep(3600)
