"""Events: what the kernel, a device or a counter said, as frozen records that go into the journal.

An event is one occurrence with a time; a fault is an event of severity warning or worse. Its key is
(class, device, code): repeats of one key are one event with a count. Classification only observes;
what a run concludes from events is verdict's business.
"""

from __future__ import annotations

import enum

import msgspec


class Severity(enum.StrEnum):
    """How bad it is, by what was said; `rank` orders them."""

    INFO = "info"
    CORRECTED = "corrected"
    WARNING = "warning"
    ERROR = "error"
    FATAL = "fatal"

    @property
    def rank(self) -> int:
        """0 (info) to 4 (fatal)."""
        return _RANK[self]


_RANK = {severity: rank for rank, severity in enumerate(Severity)}


class EventClass(enum.StrEnum):
    """Family of an event; the wire spelling is the value."""

    XID = "xid"
    NVRM = "nvrm"
    AER = "aer"
    DPC = "dpc"
    PCIE = "pcie"
    HARDWARE = "hardware"
    IOMMU = "iommu"
    MLX5 = "mlx5"
    RDMA = "rdma"
    DMABUF = "dmabuf"
    P2PDMA = "p2pdma"
    DMA_API = "dma_api"
    KERNEL_BUG = "kernel_bug"
    KERNEL_WARN = "kernel_warn"
    KASAN = "kasan"
    KFENCE = "kfence"
    KCSAN = "kcsan"
    KMSAN = "kmsan"
    UBSAN = "ubsan"
    LOCKDEP = "lockdep"
    KMEMLEAK = "kmemleak"
    HUNG_TASK = "hung_task"
    LOCKUP = "lockup"
    RCU_STALL = "rcu_stall"
    OOM = "oom"
    MODULE = "module"
    TAINT = "taint"
    NETLINK = "netlink"
    DEVICE_LOST = "device_lost"
    COUNTER = "counter"
    LOG_LOST = "log_lost"
    MARKER_LOST = "marker_lost"
    UNSEEN_LINE = "unseen_line"


class Source(enum.StrEnum):
    """Which witness saw it."""

    KMSG = "kmsg"
    AER_COUNTER = "aer-counter"
    PORT_COUNTER = "port-counter"
    NETLINK = "netlink"
    UEVENT = "uevent"
    RDMA_ASYNC = "rdma-async"
    TAINT = "taint"
    TRACEFS = "tracefs"
    HUNG_THREAD = "hung-thread"
    SYSFS = "sysfs"
    PSTORE = "pstore"
    BASELINE = "baseline"
    NVML = "nvml"


class Relation(enum.StrEnum):
    """Where an event's device stands to the devices under test."""

    UNDER_TEST = "under-test"
    BESIDE = "beside"
    UNRELATED = "unrelated"
    UNKNOWN = "unknown"


class Belongs(enum.StrEnum):
    """When an event came, seen from the run."""

    PRE_EXISTING = "pre-existing"
    RUN = "run"
    TAIL = "tail"
    AFTER = "after"


class Detail(msgspec.Struct, frozen=True):
    """One named particular of an event, as printed: `address`, `process`, `reason`, `ibdev`, ..."""

    name: str
    value: str


class Attribution(msgspec.Struct, frozen=True):
    """What ran around an event's time."""

    belongs: Belongs
    relation: Relation
    phase: str | None = None
    workers: tuple[int, ...] = ()
    calls: tuple[str, ...] = ()
    seed: int | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One fault or notice, with everything that was said about it.

    time_ns is the log's own clock (monotonic since boot for /dev/kmsg; wall clock for dated logs; 0 when
    the log has none). `lines` are the raw lines kept (bounded, `lines_dropped` says how many were not).
    `count` is how often it happened as far as known; `missed` of these were told by another witness
    or by a rate limit notice and have no line. `linked` are the ids of related events.
    """

    id: str
    cls: EventClass = msgspec.field(name="class")
    severity: Severity
    device: str | None
    code: str | None
    title: str
    count: int = 1
    first_seq: int = 0
    last_seq: int = 0
    time_ns: int = 0
    last_time_ns: int = 0
    lines: tuple[str, ...] = ()
    lines_dropped: int = 0
    missed: int = 0
    incomplete: bool = False
    synthetic: bool = False
    source: Source = Source.KMSG
    linked: tuple[str, ...] = ()
    details: tuple[Detail, ...] = ()
    attribution: Attribution | None = None

    @property
    def key(self) -> tuple[EventClass, str | None, str | None]:
        """What makes two events the same event."""
        return (self.cls, self.device, self.code)

    @property
    def is_fault(self) -> bool:
        """Warning or worse."""
        return self.severity.rank >= Severity.WARNING.rank

    def detail(self, name: str) -> str | None:
        """Value of one particular, or None."""
        return next((item.value for item in self.details if item.name == name), None)


Fault = Event
