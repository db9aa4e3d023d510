"""Witnesses on netlink: link state, uevents of devices, devlink health reporters. Listening only, nothing is set.

Sockets of our own join the kernel's broadcast groups, so that nobody else misses a message; pyroute2 takes the
messages apart. Formats: rtnetlink(7), lib/kobject_uevent.c, include/uapi/linux/devlink.h.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import msgspec

from gdrstorm.kmsg.witness.common import EventMaker, monotonic_ns
from gdrstorm.model.event import Event, EventClass, Severity, Source

_RECEIVE_BYTES = 1 << 16
_BATCH = 256
_NETLINK_ROUTE, _NETLINK_KOBJECT_UEVENT = 0, 15
_RTMGRP_LINK = 1
_UEVENT_GROUP = 1
_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def _listen(protocol: int, group: int) -> socket.socket:
    sock = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol
    )
    try:
        sock.bind((0, group))
    except OSError:
        sock.close()
        raise
    return sock


class _Listener:
    """A socket on one broadcast group; messages the kernel dropped become an event."""

    def __init__(self, protocol: int, group: int, source: Source) -> None:
        self._address = (protocol, group)
        self._socket: socket.socket | None = None
        self.maker = EventMaker(source)

    def start(self) -> None:
        """Join the group. OSError when it may not."""
        self._socket = _listen(*self._address)

    def fileno(self) -> int:
        """Descriptor to select on; -1 when closed."""
        return self._socket.fileno() if self._socket else -1

    def close(self) -> None:
        """Leave the group; twice is legal."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def receive(self) -> tuple[list[bytes], list[Event]]:
        """Messages that have come, and an event when some were dropped."""
        messages: list[bytes] = []
        events: list[Event] = []
        for _ in range(_BATCH):
            if self._socket is None:
                break
            try:
                messages.append(self._socket.recv(_RECEIVE_BYTES))
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                title = "netlink messages dropped: the socket was full"
                events.append(
                    self.maker.make(EventClass.LOG_LOST, Severity.WARNING, title, code="netlink")
                )
        return messages, events


class LinkState(_Listener):
    """Network links of the devices under test (all, when none is named) going down, away, or up again."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__(_NETLINK_ROUTE, _RTMGRP_LINK, Source.NETLINK)
        self._names = frozenset(names)
        self._states: dict[str, str] = {}
        self._marshal: Any = None

    def start(self) -> None:
        """Join the link group. OSError when pyroute2 is not installed."""
        try:
            from pyroute2.netlink.rtnl.iprsocket import MarshalRtnl
        except ImportError as error:
            raise OSError(errno.ENOENT, "pyroute2 is not installed") from error
        self._marshal = MarshalRtnl()
        super().start()

    def poll(self) -> list[Event]:
        """Changes since the last call."""
        messages, events = self.receive()
        for data in messages:
            for message in self._marshal.parse(data):
                name = message.get_attr("IFLA_IFNAME")
                if name and (not self._names or name in self._names):
                    gone = message.get("event") == "RTM_DELLINK"
                    state = "gone" if gone else str(message.get_attr("IFLA_OPERSTATE"))
                    events += self._change(name, state)
        return events

    def _change(self, name: str, state: str) -> list[Event]:
        before = self._states.get(name)
        self._states[name] = state
        if state == before or (before is None and state in {"UP", "UNKNOWN"}):
            return []
        bad = state in {"gone", "DOWN", "LOWERLAYERDOWN"}
        severity = Severity.WARNING if bad else Severity.INFO
        title = f"link {state.lower()}"
        return [
            self.maker.make(
                EventClass.NETLINK,
                severity,
                title,
                code=title,
                details={"netdev": name, "before": before or ""},
            )
        ]


class Uevent(msgspec.Struct, frozen=True):
    """One kernel uevent."""

    action: str
    devpath: str
    subsystem: str
    driver: str = ""


def parse_uevent(data: bytes) -> Uevent | None:
    """`remove@/devices/...` and its KEY=value strings; None for what udev (not the kernel) sent."""
    head, _, rest = data.partition(b"\0")
    if b"@" not in head:
        return None
    pairs = (item.decode("utf-8", "replace").partition("=") for item in rest.split(b"\0"))
    fields = {name: value for name, equals, value in pairs if equals}
    if not fields.get("ACTION"):
        return None
    return Uevent(
        fields["ACTION"],
        fields.get("DEVPATH", ""),
        fields.get("SUBSYSTEM", ""),
        fields.get("DRIVER", ""),
    )


def bdf_of_path(devpath: str) -> str | None:
    """The innermost PCI function of a sysfs path."""
    found = _BDF.findall(devpath)
    return found[-1] if found else None


# What the removal of an object of this subsystem means; others are of no interest.
_REMOVE = {
    "pci": Severity.ERROR,
    "infiniband": Severity.WARNING,
    "net": Severity.WARNING,
    "drm": Severity.WARNING,
    "iommu": Severity.WARNING,
}


class Uevents(_Listener):
    """Devices that are removed, added or change while the run goes on."""

    def __init__(self, bdfs: Iterable[str] = ()) -> None:
        super().__init__(_NETLINK_KOBJECT_UEVENT, _UEVENT_GROUP, Source.UEVENT)
        self._bdfs = frozenset(bdfs)

    def poll(self) -> list[Event]:
        """Uevents since the last call, of the functions named or of all."""
        messages, events = self.receive()
        for data in messages:
            uevent = parse_uevent(data)
            if uevent is None or uevent.subsystem not in _REMOVE:
                continue
            bdf = bdf_of_path(uevent.devpath)
            if self._bdfs and bdf not in self._bdfs:
                continue
            removed = uevent.action == "remove"
            severity = _REMOVE[uevent.subsystem] if removed else Severity.INFO
            code = f"{uevent.action} {uevent.subsystem}"
            events.append(
                self.maker.make(
                    EventClass.DEVICE_LOST if removed else EventClass.NETLINK,
                    severity,
                    f"uevent {code}",
                    device=bdf,
                    code=code,
                    details={"devpath": uevent.devpath},
                )
            )
        return events


class HealthState(msgspec.Struct, frozen=True):
    """One devlink health reporter: what it counted so far."""

    bdf: str
    reporter: str
    error: bool
    errors: int
    recoveries: int


def read_health_reporters() -> list[HealthState]:
    """All health reporters of PCI devices. OSError when there is no devlink here."""
    try:
        from pyroute2 import DL
        from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST
        from pyroute2.netlink.devlink import devlinkcmd
        from pyroute2.netlink.exceptions import NetlinkError
    except ImportError as error:
        raise OSError(errno.ENOENT, "pyroute2 is not installed") from error
    request = devlinkcmd()
    request["cmd"] = 52  # DEVLINK_CMD_HEALTH_REPORTER_GET
    found = []
    try:
        with DL() as devlink:
            flags = NLM_F_REQUEST | NLM_F_DUMP
            for message in devlink.nlm_request(request, msg_type=devlink.prid, msg_flags=flags):
                found.append(_health_state(message))
    except NetlinkError as error:
        raise OSError(error.code, "devlink does not answer") from error
    return [state for state in found if state is not None]


def _health_state(message: Any) -> HealthState | None:
    reporter = message.get_attr("DEVLINK_ATTR_HEALTH_REPORTER")
    if message.get_attr("DEVLINK_ATTR_BUS_NAME") != "pci" or reporter is None:
        return None

    def number(name: str) -> int:
        return int(reporter.get_attr(f"DEVLINK_ATTR_HEALTH_REPORTER_{name}") or 0)

    return HealthState(
        bdf=str(message.get_attr("DEVLINK_ATTR_DEV_NAME")),
        reporter=str(reporter.get_attr("DEVLINK_ATTR_HEALTH_REPORTER_NAME")),
        error=number("STATE") != 0,
        errors=number("ERR_COUNT"),
        recoveries=number("RECOVER_COUNT"),
    )


class DevlinkHealth:
    """Health reporters whose error counts grow. Asks the kernel's books, not the device."""

    # Reporters of a device as a whole; tx and rx reporters count single queues.
    _FATAL = ("fw_fatal",)

    def __init__(
        self,
        bdfs: Iterable[str] = (),
        query: Callable[[], list[HealthState]] = read_health_reporters,
        interval_ns: int = 1_000_000_000,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._bdfs = frozenset(bdfs)
        self._query = query
        self._interval_ns = interval_ns
        self._clock = clock
        self._next_ns = 0
        self._before: dict[tuple[str, str], HealthState] = {}
        self._maker = EventMaker(Source.NETLINK)

    def start(self) -> None:
        """Take the counts as they are. OSError when there is no reporter."""
        self._before = {(state.bdf, state.reporter): state for state in self._states()}
        if not self._before:
            raise FileNotFoundError(errno.ENOENT, "no devlink health reporter")
        self._next_ns = self._clock() + self._interval_ns

    def poll(self) -> list[Event]:
        """What was added, at most once an interval."""
        now = self._clock()
        if now < self._next_ns:
            return []
        self._next_ns = now + self._interval_ns
        events: list[Event] = []
        with suppress(OSError):
            for state in self._states():
                before = self._before.get((state.bdf, state.reporter))
                self._before[(state.bdf, state.reporter)] = state
                # A driver that was loaded again starts at zero.
                known = before.errors if before and before.errors <= state.errors else 0
                if state.errors > known:
                    events.append(self._event(state, state.errors - known))
        return events

    def close(self) -> None:
        """Nothing is held."""
        self._before.clear()

    def _states(self) -> list[HealthState]:
        return [state for state in self._query() if not self._bdfs or state.bdf in self._bdfs]

    def _event(self, state: HealthState, added: int) -> Event:
        return self._maker.make(
            EventClass.MLX5 if state.reporter.startswith("fw") else EventClass.NETLINK,
            Severity.FATAL if state.reporter in self._FATAL else Severity.ERROR,
            f"devlink health reporter {state.reporter}",
            device=state.bdf,
            code=f"health {state.reporter}",
            count=added,
            details={
                "state": "error" if state.error else "healthy",
                "recoveries": str(state.recoveries),
            },
        )
