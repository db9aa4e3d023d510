"""A scenario as it was written, after validation: what to run, on what, and what is expected to happen.

Made by plan.load from a TOML file (docs/SCENARIOS.md has every key). It names no device and no seed that the user
did not write; plan.resolve adds those.
"""

from __future__ import annotations

import enum

import msgspec

from gdrstorm.model.op import Op, Order, Share


class Do(enum.Enum):
    """What a phase does."""

    STORM = "storm"  # cycles of operations in the native engine
    GATE = "gate"  # a table of single calls, each with the answer it must get


class How(enum.Enum):
    """How often an expected error or fault has to be seen."""

    ALWAYS = "always"  # every call of that operation fails so, and there is at least one
    MUST = "must"  # at least `count` times
    MAY = "may"  # never a failure, seen or not


class Memory(msgspec.Struct, frozen=True):
    """Sizes and offsets of buffers, bytes. `length` 0 registers from the offset to the end of the buffer."""

    size_min_bytes: int
    size_max_bytes: int
    size_step_bytes: int = 4096
    offset_max_bytes: int = 0
    length_bytes: int = 0
    share: Share = Share.NOTHING


class Group(msgspec.Struct, frozen=True):
    """Workers of one kind inside a phase: `processes` times `threads`, all doing the same cycle."""

    name: str
    cycle: tuple[Op, ...]
    memory: Memory
    processes: int = 1
    threads: int = 1
    depth: int = 1
    order: Order = Order.FIFO
    pacing_ns: int = 0
    delay_ns: int = 0
    access: int = 7
    rereg_access: int = 1
    one_cpu: bool = False


class Phase(msgspec.Struct, frozen=True):
    """One step of a scenario. A storm has groups and a duration or a count; a gate has the name of its table."""

    name: str
    do: Do = Do.STORM
    groups: tuple[Group, ...] = ()
    duration_ns: int = 0
    count: int = 0
    table: str = ""
    verify: bool = False


class Needs(msgspec.Struct, frozen=True):
    """What the scenario cannot do without. Empty means no demand. `predicates` are names of policy/."""

    exporters: tuple[str, ...] = ()
    importers: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    predicates: tuple[str, ...] = ()
    root: bool = False
    gpu: bool = False


class ScenarioBed(msgspec.Struct, frozen=True):
    """What the scenario asks of the VM bed; None leaves the user's choice or the default."""

    hca: int | None = None
    bars: tuple[str, ...] = ()
    topology: str | None = None
    iommu: str | None = None
    domain: str | None = None
    rxe: bool = False


class ExpectedError(msgspec.Struct, frozen=True):
    """An errno that an operation is expected to answer."""

    op: Op
    errno: str
    how: How = How.MAY
    count: int = 1


class ExpectedFault(msgspec.Struct, frozen=True):
    """A kernel event that is expected: its class, and where given its device and code."""

    cls: str = msgspec.field(name="class")
    device: str = ""
    code: str = ""
    how: How = How.MUST
    count: int = 1


class Expect(msgspec.Struct, frozen=True):
    """What makes the run a pass, beside the absence of everything that is not listed here."""

    operations: int = 1
    errors: tuple[ExpectedError, ...] = ()
    faults: tuple[ExpectedFault, ...] = ()
    leaks: bool = False
    tail_ns: int = 1_000_000_000


class Scenario(msgspec.Struct, frozen=True):
    """A whole scenario. `name` is its path below the scenario directory without `.toml`."""

    name: str
    summary: str
    time_limit_ns: int
    phases: tuple[Phase, ...]
    needs: Needs = Needs()
    bed: ScenarioBed = ScenarioBed()
    expect: Expect = Expect()
    seed: int | None = None
    call_limit_ns: int = 10_000_000_000
    exporter: str = ""
    importer: str = ""
