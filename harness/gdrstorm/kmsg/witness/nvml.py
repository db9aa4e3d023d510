"""Witness NVML: critical Xid events as the driver's own library reports them, beside the kernel log.

nvmlEventSetWait to XID events. Only Xid is asked for, because other event types (clock changes) are no
faults; waiting is never done, each poll takes what is there. Sets nothing on the GPU.
Source: NVML API reference, event handling; nvmlEventTypeXidCriticalError.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
from typing import Any

from gdrstorm.kmsg.witness.common import EventMaker
from gdrstorm.model.event import Event, EventClass, Severity, Source

#: Xids that a process ending by force causes, or that report a recovery: kept, but no fault.
_NOTICE = {45, 63, 92, 94}
#: NVML has no event for "the GPU fell off the bus"; the next call says so instead.
_FALLEN_OFF = 79
#: events taken in one poll, so that a flood cannot hold the supervisor
_BATCH = 64


class NvmlWitness:
    """Xid events of all GPUs, or of the one at `bdf`."""

    def __init__(self, bdf: str = "", nvml: Any = None) -> None:
        self._bdf = bdf
        self._nvml = nvml
        self._set: Any = None
        self._lost: set[str] = set()
        self._maker = EventMaker(Source.NVML)

    def start(self) -> None:
        """Register for Xid events. Raises OSError with what NVML said."""
        try:
            self._nvml = self._nvml or importlib.import_module("pynvml")
        except ImportError as error:
            raise OSError(errno.ENOENT, "nvidia-ml-py is not installed") from error
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise OSError(errno.ENODEV, f"nvmlInit: {error}") from error
        try:
            self._set = nvml.nvmlEventSetCreate()
            for handle in self._handles():
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._set)
        except nvml.NVMLError as error:
            self.close()
            raise OSError(errno.EOPNOTSUPP, f"NVML Xid events: {error}") from error

    def poll(self) -> list[Event]:
        events: list[Event] = []
        while self._set is not None and len(events) < _BATCH:
            try:
                data = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except self._nvml.NVMLError as error:
                events += self._take_error(error)
                break
            events.append(self._event(self._read_bdf(data.device), int(data.eventData)))
        return events

    def close(self) -> None:
        if self._set is None:
            return
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlEventSetFree(self._set)
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()
        self._set = None

    def _handles(self) -> list[Any]:
        nvml = self._nvml
        if self._bdf:
            return [nvml.nvmlDeviceGetHandleByPciBusId(self._bdf.encode())]
        return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]

    def _take_error(self, error: Any) -> list[Event]:
        """Nothing there is the usual answer; a lost GPU is an event, once."""
        code = getattr(error, "value", None)
        if code != self._nvml.NVML_ERROR_GPU_IS_LOST or self._bdf in self._lost:
            return []
        self._lost.add(self._bdf)
        return [self._event(self._bdf or None, _FALLEN_OFF, "NVML: GPU is lost")]

    def _read_bdf(self, handle: Any) -> str | None:
        try:
            text = self._nvml.nvmlDeviceGetPciInfo(handle).busId
        except self._nvml.NVMLError:
            return self._bdf or None
        return parse_bus_id(text.decode() if isinstance(text, bytes) else str(text))

    def _event(self, bdf: str | None, xid: int, title: str = "") -> Event:
        return self._maker.make(
            EventClass.XID,
            Severity.INFO if xid in _NOTICE else Severity.ERROR,
            title or f"Xid {xid} (told by NVML)",
            device=bdf,
            code=str(xid),
        )


def parse_bus_id(text: str) -> str:
    """NVML's `00000000:9B:00.0` as the kernel writes it: `0000:9b:00.0`."""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
