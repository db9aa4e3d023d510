"""Witness: asynchronous events of a verbs context, from its descriptor, to events.

Reading consumes them, so the descriptor must be of a context that nobody else listens to. Layout: struct
ib_uverbs_async_event_desc (include/uapi/rdma/ib_user_verbs.h); numbers: enum ib_event_type (rdma/ib_verbs.h).
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from gdrstorm.kmsg.witness.common import EventMaker
from gdrstorm.model.event import Event, EventClass, Severity, Source

_DESC = struct.Struct("=QII")
_BATCH = 256


class Kind(NamedTuple):
    """One asynchronous event: its name in verbs and how bad it is."""

    name: str
    severity: Severity


F, E, W, INFO = Severity.FATAL, Severity.ERROR, Severity.WARNING, Severity.INFO
KINDS = {
    0: Kind("CQ_ERR", E),
    1: Kind("QP_FATAL", E),
    2: Kind("QP_REQ_ERR", E),
    3: Kind("QP_ACCESS_ERR", E),
    4: Kind("COMM_EST", INFO),
    5: Kind("SQ_DRAINED", INFO),
    6: Kind("PATH_MIG", INFO),
    7: Kind("PATH_MIG_ERR", W),
    8: Kind("DEVICE_FATAL", F),
    9: Kind("PORT_ACTIVE", INFO),
    10: Kind("PORT_ERR", W),
    11: Kind("LID_CHANGE", INFO),
    12: Kind("PKEY_CHANGE", INFO),
    13: Kind("SM_CHANGE", INFO),
    14: Kind("SRQ_ERR", E),
    15: Kind("SRQ_LIMIT_REACHED", INFO),
    16: Kind("QP_LAST_WQE_REACHED", INFO),
    17: Kind("CLIENT_REREGISTER", INFO),
    18: Kind("GID_CHANGE", INFO),
    19: Kind("WQ_FATAL", E),
}


def parse_async_events(data: bytes) -> list[tuple[int, Kind]]:
    """(element, kind) of each whole descriptor in what was read."""
    whole = len(data) - len(data) % _DESC.size
    return [
        (element, KINDS.get(number, Kind(f"event {number}", W)))
        for element, number, _ in _DESC.iter_unpack(data[:whole])
    ]


class RdmaAsync:
    """Asynchronous events of one RDMA device. The descriptor stays the caller's; it is made non-blocking."""

    def __init__(self, fd: int, ibdev: str, bdf: str | None = None) -> None:
        self._fd = fd
        self._ibdev = ibdev
        self._bdf = bdf
        self._maker = EventMaker(Source.RDMA_ASYNC)

    def start(self) -> None:
        """OSError when the descriptor is not open."""
        os.set_blocking(self._fd, False)

    def fileno(self) -> int:
        """Descriptor to select on."""
        return self._fd

    def poll(self) -> list[Event]:
        """Events since the last call."""
        try:
            data = os.read(self._fd, _DESC.size * _BATCH)
        except OSError:
            return []
        return [self._event(element, kind) for element, kind in parse_async_events(data)]

    def close(self) -> None:
        """The descriptor is not ours to close."""

    def _event(self, element: int, kind: Kind) -> Event:
        return self._maker.make(
            EventClass.RDMA,
            kind.severity,
            f"asynchronous event {kind.name}",
            device=self._bdf,
            code=kind.name,
            details={"ibdev": self._ibdev, "element": f"{element:#x}"},
        )
