"""What a stack holds at one moment, and what of it was not there before: leaks.

A snapshot is a set of counters by kind. A counter that could not be read is listed with the reason, and a
comparison over it is reported as not made, never as clean.
"""

from __future__ import annotations

import msgspec


class Counter(msgspec.Struct, frozen=True):
    """One counted kind of resource; `unit` is objects or bytes, `slack` what it may grow by without being a leak."""

    name: str
    value: int
    unit: str = "objects"
    slack: int = 0
    detail: str = ""


class Snapshot(msgspec.Struct, frozen=True):
    """All counters that could be read, and why the others could not."""

    counters: tuple[Counter, ...] = ()
    unknown: dict[str, str] = {}


class Leak(msgspec.Struct, frozen=True):
    """A counter that ended above where it began."""

    name: str
    before: int
    after: int
    unit: str = "objects"
    detail: str = ""

    def __str__(self) -> str:
        extra = f" ({self.detail})" if self.detail else ""
        more = self.after - self.before
        return f"{more} {self.unit} of {self.name} left ({self.before} before, {self.after} after){extra}"


def find_leaks(before: Snapshot, after: Snapshot) -> tuple[Leak, ...]:
    """Counters of `after` that are above `before` by more than their slack. Missing in `before` counts as 0."""
    start = {counter.name: counter.value for counter in before.counters}
    leaks = []
    for counter in after.counters:
        if counter.name in before.unknown:
            continue
        old = start.get(counter.name, 0)
        if counter.value > old + counter.slack:
            leaks.append(Leak(counter.name, old, counter.value, counter.unit, counter.detail))
    return tuple(leaks)
