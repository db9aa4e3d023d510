"""Finished reports to events: repeats counted under one key, related ones linked, rate limits added up.

Pure and bounded: at most `limit` keys are held; the oldest leaves first. Everything is measured in the log's
own time and in records, never by a clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from gdrstorm.kmsg.draft import Draft
from gdrstorm.model.event import Event, EventClass, Severity

LINK_NS = 5_000_000_000
LINK_RECORDS = 1000
_LIMIT = 4096

# Classes that can be cause and effect of each other on one device.
_HARDWARE = frozenset(
    {
        EventClass.XID, EventClass.NVRM, EventClass.AER, EventClass.DPC, EventClass.PCIE, EventClass.IOMMU,
        EventClass.MLX5, EventClass.RDMA,
    }
)  # fmt: skip
# Classes that belong together although one of the two does not say its bdf.
_KIN: dict[EventClass, frozenset[EventClass]] = {
    EventClass.XID: frozenset({EventClass.NVRM}),
    EventClass.NVRM: frozenset({EventClass.XID}),
    EventClass.IOMMU: frozenset({EventClass.MLX5, EventClass.RDMA}),
    EventClass.MLX5: frozenset({EventClass.IOMMU, EventClass.RDMA, EventClass.HUNG_TASK}),
    EventClass.RDMA: frozenset({EventClass.IOMMU, EventClass.MLX5}),
    EventClass.HUNG_TASK: frozenset({EventClass.MLX5}),
}
_NO_KIN: frozenset[EventClass] = frozenset()

_Key = tuple[EventClass, str | None, str | None]


def near(first: Draft, second: Draft) -> bool:
    """Within the linking window, by time where both have one, else by records. Clocks may run backwards."""
    if first.time_ns >= 0 and second.time_ns >= 0:
        gap = min(abs(second.time_ns - first.time_ns), abs(second.time_ns - first.last_time_ns))
        return gap <= LINK_NS
    return abs(second.index - first.index) <= LINK_RECORDS


def _same_domain(first: Draft, second: Draft) -> bool:
    if not first.device or not second.device:
        return False
    return first.device.split(":", 1)[0] == second.device.split(":", 1)[0]


def related(first: Draft, second: Draft) -> bool:
    """Can one have caused the other?"""
    if first.device and second.device:
        if first.device != second.device and first.devices.isdisjoint(second.devices):
            return False
        return first.cls in _HARDWARE and second.cls in _HARDWARE
    return second.cls in _KIN.get(first.cls, _NO_KIN)


class Aggregator:
    """Holds events until they have been quiet for the window (None: until the end)."""

    def __init__(
        self, window_ns: int | None = None, window_records: int | None = None, limit: int = _LIMIT
    ) -> None:
        self._window_ns = window_ns
        self._window_records = window_records
        self._limit = limit
        self._held: OrderedDict[_Key, Draft] = OrderedDict()
        self._recent: deque[Draft] = deque(maxlen=64)

    def has(self, draft: Draft) -> bool:
        """Is this very report held as an event of its own?"""
        return self._held.get(draft.key) is draft

    def has_other(self, key: _Key, draft: Draft) -> bool:
        """Is another report held under this key?"""
        held = self._held.get(key)
        return held is not None and held is not draft

    def latest(self, cls: EventClass, device: str | None = None) -> Draft | None:
        """The event of this class (and device) added last and still held."""
        return self._newest(cls, lambda draft: device is None or draft.device == device)

    def _newest(self, cls: EventClass, fits: Callable[[Draft], bool]) -> Draft | None:
        return next((d for d in reversed(self._recent) if d.cls is cls and fits(d)), None)

    def add(self, draft: Draft) -> list[Event]:
        """Take a finished report; returns what had to leave for it."""
        host = self._host(draft)
        if host is not None:
            host.absorb(draft)
            self._link(host, draft)
            return []
        self._held[draft.key] = draft
        self._link(draft, draft)
        self._recent.append(draft)
        if len(self._held) > self._limit:
            return [self._held.popitem(last=False)[1].event()]
        return []

    def _host(self, draft: Draft) -> Draft | None:
        """The held event of which this report is a repeat or a further word."""
        host = self._held.get(draft.key)
        if host is not None:
            if draft.tag == "rcu-starved" and near(host, draft):
                # The thread that was to end the grace period: why, not once more.
                draft.count = 0
            return host
        if draft.cls is EventClass.NVRM and draft.code == "79":
            # The driver says it twice: once as Xid 79, once in words. One loss.
            host = self._held.get((EventClass.XID, draft.device, "79"))
            if host is not None:
                draft.count = 0
                return host
        if draft.tag == "gsp" and draft.incomplete:
            host = self._held.get((EventClass.XID, draft.device, "119"))
            if host is not None:
                draft.count = 0
                return host
        if draft.cls is EventClass.AER and draft.code in {None, "no details", "recovery failed"}:
            return self._any_aer(draft)
        if draft.cls is EventClass.RCU_STALL and draft.incomplete:
            host = self.latest(EventClass.RCU_STALL)
            if host is not None:
                draft.count = 0
            return host
        return None

    def _of_port(self, draft: Draft) -> Draft | None:
        """The last AER report with every device that this one names: some ports give a wrong source."""
        if not draft.devices:
            return None
        return self._newest(EventClass.AER, lambda host: draft.devices <= host.devices)

    def _of_domain(self, draft: Draft) -> Draft | None:
        """The bridge above says that recovery failed: it can be a switch's port that nothing else names."""
        return self._newest(
            EventClass.AER,
            lambda host: host.severity.rank >= Severity.ERROR.rank and _same_domain(host, draft),
        )

    def _any_aer(self, draft: Draft) -> Draft | None:
        """Reports without error bits count for the last report of that device that had them."""
        host = self.latest(EventClass.AER, draft.device) or self._of_port(draft)
        if host is None and draft.code == "recovery failed":
            host = self._of_domain(draft)
            if host is not None and near(host, draft):
                draft.count = 0
        if host is None or not near(host, draft):
            return None
        if draft.code is None and host.severity is not draft.severity:
            return None
        draft.severity = min(draft.severity, host.severity, key=lambda item: item.rank)
        return host

    def _link(self, entry: Draft, newcomer: Draft) -> None:
        if newcomer.cls not in _HARDWARE and newcomer.cls is not EventClass.HUNG_TASK:
            return
        for other in self._recent:
            if not related(other, newcomer) or other.key == entry.key or not near(other, newcomer):
                continue
            if other.id not in entry.linked:
                entry.linked.append(other.id)
            if entry.id not in other.linked:
                other.linked.append(entry.id)

    def escalate(self, cls: EventClass, later: Draft) -> None:
        """`later` says that the last event of this class left the device unusable: it was fatal."""
        for draft in reversed(self._recent):
            if draft.cls is cls and draft.code != "154" and near(draft, later):
                draft.raise_severity(Severity.FATAL)
                draft.details["escalated"] = later.code or later.title
                return

    def expire(self, now_ns: int, index: int) -> list[Event]:
        """Events that have been quiet for the window."""
        # Events whose last line is before these have been quiet for the window; none is before a negative one.
        last_ns = -1 if self._window_ns is None else now_ns - self._window_ns
        last_index = -1 if self._window_records is None else index - self._window_records
        gone = [
            key
            for key, draft in self._held.items()
            if draft.index < last_index or 0 <= draft.last_time_ns < last_ns
        ]
        return [self._leave(key).event() for key in gone]

    def _leave(self, key: _Key) -> Draft:
        draft = self._held.pop(key)
        if draft in self._recent:
            self._recent.remove(draft)
        return draft

    def flush(self) -> list[Event]:
        """Everything held, in order of first line."""
        events = [draft.event() for draft in self._held.values()]
        self._held.clear()
        self._recent.clear()
        return sorted(events, key=lambda event: event.first_seq)
