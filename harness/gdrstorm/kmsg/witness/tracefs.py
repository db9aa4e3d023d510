"""Witness: trace events iommu:io_page_fault, ras:aer_event and ras:mc_event, in a trace instance of its own.

An instance has its own buffer and switches, so that nobody's tracing is disturbed; it is removed at the end.
Lines are those of trace_pipe; formats: include/trace/events/iommu.h, include/ras/ras_event.h.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from gdrstorm.kmsg.bodies import aer_name_of
from gdrstorm.kmsg.families.pcie import aer_severity
from gdrstorm.kmsg.rules import parse_bdf
from gdrstorm.kmsg.witness.common import EventMaker
from gdrstorm.model.event import Event, EventClass, Severity, Source

_EVENTS = ("iommu/io_page_fault", "ras/aer_event", "ras/mc_event")
_LINE = re.compile(
    r"\s*(?P<task>.+)-\d+\s+\[\d+\].*?\s(?P<time>\d+\.\d+): (?P<name>\w+): (?P<text>.*)"
)
_LOST = re.compile(r"CPU:\d+ \[LOST (?P<number>\d+) EVENTS\]")
_IOMMU = re.compile(
    r"IOMMU:(?P<driver>\S+) (?P<device>\S+) iova=(?P<iova>0x[0-9a-f]+) flags=(?P<flags>0x[0-9a-f]+)"
)
_AER = re.compile(
    r"(?P<device>\S+) PCIe Bus Error: severity=(?P<severity>[^,]+), (?P<errors>.*), TLP Header="
)
_MC = re.compile(r"(?P<count>\d+) (?P<kind>Corrected|Uncorrected|Fatal|Deferred|Info) errors?:")
_READ_BYTES = 65536
_READS = 64


def parse_trace_line(text: str, maker: EventMaker) -> Event | None:
    """One line of trace_pipe to an event; None when it is none of ours."""
    if lost := _LOST.search(text):
        return maker.make(
            EventClass.LOG_LOST,
            Severity.WARNING,
            "trace events lost",
            code="trace",
            count=int(lost["number"]),
        )
    found = _LINE.match(text)
    if not found:
        return None
    time_ns = round(float(found["time"]) * 1e9)
    name, body = found["name"], found["text"]
    if name == "io_page_fault" and (fault := _IOMMU.search(body)):
        details = {"address": fault["iova"], "flags": fault["flags"], "driver": fault["driver"]}
        return maker.make(
            EventClass.IOMMU, Severity.ERROR, "IOMMU page fault", device=parse_bdf(fault["device"]),
            code="io_page_fault", lines=(text,), time_ns=time_ns, details=details,
        )  # fmt: skip
    if name == "aer_event" and (error := _AER.search(body)):
        severity = aer_severity(error["severity"]) or Severity.ERROR
        if error["severity"].strip() == "Fatal":
            severity = Severity.FATAL
        code = aer_name_of(error["errors"].split("|")[0].strip())
        return maker.make(
            EventClass.AER, severity, f"AER {severity.value} {code}", device=parse_bdf(error["device"]),
            code=code, lines=(text,), time_ns=time_ns,
        )  # fmt: skip
    if name == "mc_event" and (error := _MC.search(body)):
        corrected = error["kind"] in {"Corrected", "Info"}
        return maker.make(
            EventClass.HARDWARE, Severity.CORRECTED if corrected else Severity.ERROR, "memory error",
            code="CE" if corrected else "UE", count=int(error["count"]), lines=(text,), time_ns=time_ns,
        )  # fmt: skip
    return None


class TraceEvents:
    """Reads trace_pipe of its own instance without waiting."""

    def __init__(self, root: Path = Path("/sys/kernel/tracing")) -> None:
        self._root = root
        self._instance = root / f"instances/gdrstorm-{os.getpid()}"
        self._fd = -1
        self._rest = b""
        self._maker = EventMaker(Source.TRACEFS)

    def start(self) -> None:
        """Make the instance and switch the events on. OSError when this kernel or user may not."""
        there = [name for name in _EVENTS if (self._root / "events" / name).is_dir()]
        if not there:
            raise FileNotFoundError(2, f"no {', '.join(_EVENTS)} under {self._root}")
        self._instance.mkdir(exist_ok=True)
        try:
            for name in there:
                (self._instance / "events" / name / "enable").write_text("1\n")
            # printk's clock, so that times can be compared
            with suppress(OSError):
                (self._instance / "trace_clock").write_text("mono\n")
            pipe = self._instance / "trace_pipe"
            self._fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        """Descriptor to select on; -1 when closed."""
        return self._fd

    def poll(self) -> list[Event]:
        """Trace events since the last call."""
        events: list[Event] = []
        for _ in range(_READS):
            if self._fd < 0:
                break
            try:
                data = os.read(self._fd, _READ_BYTES)
            except OSError:
                break
            if not data:
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                event = parse_trace_line(line.decode("utf-8", "replace"), self._maker)
                if event is not None:
                    events.append(event)
        return events

    def close(self) -> None:
        """Switch off and remove the instance; twice is legal."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        for name in _EVENTS:
            with suppress(OSError):
                (self._instance / "events" / name / "enable").write_text("0\n")
        with suppress(OSError):
            self._instance.rmdir()
