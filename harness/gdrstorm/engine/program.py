"""What a storm is made of: the program of its threads and the bindings of its back ends.

Records only. Their meaning is docs/ENGINE.md; the engine refuses a program that could not work before it starts.
"""

from __future__ import annotations

import msgspec

from gdrstorm.model.op import Op, Order, Share


class StormProgram(msgspec.Struct, frozen=True):
    """What every thread of one worker does. Exactly one of `duration_ns` and `count` (cycles a thread) is not 0."""

    cycle: tuple[Op, ...]
    seed: int
    depth: int = 1
    order: Order = Order.FIFO
    share: Share = Share.NOTHING
    size_min_bytes: int = 1 << 20
    size_max_bytes: int = 1 << 20
    size_step_bytes: int = 4096
    offset_max_bytes: int = 0
    length_bytes: int = 0
    access: int = 7
    rereg_access: int = 1
    pacing_ns: int = 0
    delay_ns: int = 0
    duration_ns: int = 0
    count: int = 0
    stop_on_error: bool = False


class ExporterBinding(msgspec.Struct, frozen=True):
    """How the engine reaches an exporter: the name of its C back end and its arguments.

    `fds` are descriptors that the Python object keeps open; `addresses` are function or object pointers as integers.
    """

    backend: str
    fds: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    addresses: tuple[int, ...] = ()


class ImporterBinding(msgspec.Struct, frozen=True):
    """How the engine reaches an importer; as ExporterBinding."""

    backend: str
    fds: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    addresses: tuple[int, ...] = ()
