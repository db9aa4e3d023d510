"""The operations of a storm and what is kept about them.

Operation numbers are the ABI of the native engine (native/include/decl.h, enum gs_op); the engine package asserts
that both agree. All times are monotonic nanoseconds.
"""

from __future__ import annotations

import enum

import msgspec


class Op(enum.IntEnum):
    """One step of a cycle. The comments say who does it and what it makes or ends."""

    ALLOC = 1  # exporter: memory for one slot
    EXPORT = 2  # exporter: memory to a dma-buf descriptor
    REG = 3  # importer: attach and map the descriptor, register an MR
    REREG = 4  # importer: change access or range of the MR
    DEREG = 5  # importer: end the MR, its mapping and its attachment
    CLOSE = 6  # close the dma-buf descriptor
    FREE = 7  # exporter: give the memory back
    SYNC = 8  # DMA_BUF_IOCTL_SYNC start and end on the descriptor
    DELAY = 9  # sleep; not a call on the stack
    BARRIER = 10  # wait for all threads of the group; not a call on the stack
    CONTROL = 11  # an innocent control call of the back end: the bystander


#: Operations that end something; a cycle is split before the first of them.
RELEASE_OPS = frozenset({Op.DEREG, Op.CLOSE, Op.FREE})
#: Operations that are no calls on the stack under test and never count as exercise.
IDLE_OPS = frozenset({Op.DELAY, Op.BARRIER})


class Order(enum.Enum):
    """Which outstanding slot a full window releases next."""

    FIFO = "fifo"
    LIFO = "lifo"
    RANDOM = "random"


class Share(enum.Enum):
    """What the threads of one worker process have in common."""

    NOTHING = "nothing"  # each slot has its own allocation and buffer
    ALLOCATION = "allocation"  # one allocation a process, every slot exports it again
    BUFFER = "buffer"  # one dma-buf descriptor a process, every slot registers it


class Latency(msgspec.Struct, frozen=True):
    """Percentiles of one histogram, nanoseconds; the error is at most one log-linear bucket (3.2 %)."""

    min_ns: int = 0
    mean_ns: int = 0
    p50_ns: int = 0
    p90_ns: int = 0
    p99_ns: int = 0
    p999_ns: int = 0
    p9999_ns: int = 0
    max_ns: int = 0


class OpSummary(msgspec.Struct, frozen=True):
    """What one operation did over some threads and some time. `count` includes the failed ones.

    `errors` counts by errno name; `latency` is of the successful calls, `error_latency` of the failed ones.
    """

    op: str
    count: int
    errors: dict[str, int] = {}
    latency: Latency = Latency()
    error_latency: Latency | None = None


class FirstError(msgspec.Struct, frozen=True):
    """The first occurrence of one (operation, errno) in one thread, with the arguments it had."""

    op: str
    errno: str
    time_ns: int
    worker: int
    thread: int
    seq: int
    slot: int
    offset_bytes: int
    length_bytes: int
    access: int


class CallInFlight(msgspec.Struct, frozen=True):
    """A call that a thread is inside of right now. `stack` is /proc/PID/task/TID/stack where readable."""

    worker: int
    thread: int
    tid: int
    op: str
    seq: int
    since_ns: int
    elapsed_ns: int
    stack: tuple[str, ...] = ()


class ThreadRate(msgspec.Struct, frozen=True):
    """One thread's share of the work, for fairness: operations done and its longest call."""

    worker: int
    thread: int
    count: int
    max_ns: int
