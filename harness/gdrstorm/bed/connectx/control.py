"""The control socket of the device model: JSON lines, one request and one reply at a time.

A client arms plants, reads what the oracle saw, and stalls or ends the process while the guest
runs. Requests and replies are the typed records below; a bad line gets an error reply.
"""

from __future__ import annotations

import dataclasses
import enum
import errno
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import msgspec

from gdrstorm.bed.connectx.oracle import Oracle, OracleReport, TraceLine
from gdrstorm.bed.connectx.plant import (
    CommandPlant,
    CompletionPlant,
    DisasterPlant,
    HealthPlant,
    PageFaultPlant,
    Plant,
    PlantReport,
    Saboteur,
    StalePlant,
    UmrPlant,
)
from gdrstorm.bed.vfio_user.loop import READ, WRITE, EventLoop
from gdrstorm.bed.vfio_user.server import VfioUserServer, open_listener
from gdrstorm.errors import BrokenError, GdrstormError

_MAX_REQUEST_BYTES: Final = 1 << 16
_RECEIVE_BYTES: Final = 1 << 16
_T = TypeVar("_T")


class PlantKind(enum.Enum):
    """Name of a plant's type on the wire."""

    COMMAND = "command"
    UMR = "umr"
    COMPLETION = "completion"
    PAGE_FAULT = "page_fault"
    STALE = "stale"
    HEALTH = "health"
    DISASTER = "disaster"


_PLANT_TYPES: Final[dict[PlantKind, type[Plant]]] = {
    PlantKind.COMMAND: CommandPlant,
    PlantKind.UMR: UmrPlant,
    PlantKind.COMPLETION: CompletionPlant,
    PlantKind.PAGE_FAULT: PageFaultPlant,
    PlantKind.STALE: StalePlant,
    PlantKind.HEALTH: HealthPlant,
    PlantKind.DISASTER: DisasterPlant,
}
_PLANT_KINDS: Final = {plant_type: kind for kind, plant_type in _PLANT_TYPES.items()}


class _Request(msgspec.Struct, frozen=True, tag_field="cmd", forbid_unknown_fields=True):
    pass


class PlantRequest(_Request, frozen=True, tag="plant"):
    """Arm a plant; the result is its number."""

    kind: PlantKind
    plant: msgspec.Raw


class ClearRequest(_Request, frozen=True, tag="clear"):
    """Disarm one plant, or all."""

    number: int | None = None


class CountsRequest(_Request, frozen=True, tag="counts"):
    """Plants and counters without the oracle's records: :class:`Counts`."""


class OracleRequest(_Request, frozen=True, tag="oracle"):
    """Counters, and the records later than ``since_ns``: :class:`OracleAnswer`."""

    since_ns: int = 0


class ForgetRequest(_Request, frozen=True, tag="forget"):
    """Set the oracle back: a new measurement starts."""


class TraceRequest(_Request, frozen=True, tag="trace"):
    """Switch the trace, or ask for its lines later than ``since_ns``: :class:`TraceAnswer`."""

    on: bool | None = None
    since_ns: int | None = None


class StatusRequest(_Request, frozen=True, tag="status"):
    """How the process is: :class:`Status`."""


class WedgeRequest(_Request, frozen=True, tag="wedge"):
    """Answer the guest nothing for ``duration_s``, or until ``unwedge``: a hung device process."""

    duration_s: float | None = None


class UnwedgeRequest(_Request, frozen=True, tag="unwedge"):
    """Go on after ``wedge``."""


class QuitRequest(_Request, frozen=True, tag="quit"):
    """End the process in order."""


Request = (
    PlantRequest
    | ClearRequest
    | CountsRequest
    | OracleRequest
    | ForgetRequest
    | TraceRequest
    | StatusRequest
    | WedgeRequest
    | UnwedgeRequest
    | QuitRequest
)


class Reply(msgspec.Struct, frozen=True):
    """``result`` when ok, else ``error``."""

    ok: bool
    error: str = ""
    result: msgspec.Raw = msgspec.Raw(b"null")


class PlantEntry(msgspec.Struct, frozen=True):
    """A PlantReport on the wire."""

    number: int
    kind: PlantKind
    plant: msgspec.Raw
    seen: int
    struck: int


class _CountsOnWire(msgspec.Struct, frozen=True):
    at_ns: int
    plants: tuple[PlantEntry, ...]
    oracle: OracleReport


class Counts(msgspec.Struct, frozen=True):
    """``oracle`` carries its counters; its lists are empty."""

    at_ns: int
    plants: tuple[PlantReport, ...]
    oracle: OracleReport


class OracleAnswer(msgspec.Struct, frozen=True):
    """``at_ns`` is the device's clock now: the ``since_ns`` of the next question."""

    at_ns: int
    report: OracleReport


class TraceAnswer(msgspec.Struct, frozen=True):
    on: bool
    at_ns: int
    lines: tuple[TraceLine, ...]


class PortStatus(msgspec.Struct, frozen=True):
    """One device; counters since the process started."""

    path: str
    connected: bool
    client_count: int
    messages: int
    error_replies: int
    last_error: str
    device_faults: int
    last_device_fault: str
    dma_maps: int
    irqs_armed: int
    irqs_raised: int


class Status(msgspec.Struct, frozen=True):
    pid: int
    uptime_ns: int
    wedged: bool
    ports: tuple[PortStatus, ...]


class ControlError(BrokenError):
    """The device model refused a request, or is gone."""


def encode_plant(plant: Plant) -> PlantRequest:
    """A plant as a request."""
    return PlantRequest(_PLANT_KINDS[type(plant)], msgspec.Raw(msgspec.json.encode(plant)))


def decode_plant(kind: PlantKind, plant: msgspec.Raw) -> Plant:
    """Back from the wire. Raises msgspec.ValidationError."""
    return msgspec.json.decode(plant, type=_PLANT_TYPES[kind])


def counters_of(report: OracleReport) -> OracleReport:
    """The report without its lists."""
    return dataclasses.replace(report, stray=(), refused=(), leaks=(), anomalies=())


def since(report: OracleReport, since_ns: int) -> OracleReport:
    """The report with the records later than a moment."""
    return dataclasses.replace(
        report,
        stray=tuple(record for record in report.stray if record.at_ns > since_ns),
        refused=tuple(record for record in report.refused if record.at_ns > since_ns),
        leaks=tuple(record for record in report.leaks if record.at_ns > since_ns),
        anomalies=tuple(record for record in report.anomalies if record.at_ns > since_ns),
    )


class Controller:
    """Carries out requests on the model and its server."""

    def __init__(self, server: VfioUserServer, saboteur: Saboteur, oracle: Oracle) -> None:
        self._server = server
        self._saboteur = saboteur
        self._oracle = oracle
        self._started_ns = time.monotonic_ns()
        self._wedges = 0  # numbers the wedges, so that an old timer does not end a new one
        self._wedged = False

    def handle(self, request: Request) -> object:
        """The result, which msgspec encodes. Raises GdrstormError or msgspec.ValidationError."""
        match request:
            case PlantRequest(kind, plant):
                return self._saboteur.plant(decode_plant(kind, plant))
            case CountsRequest():
                return self._counts()
            case OracleRequest(since_ns):
                report = since(self._oracle.snapshot(), since_ns)
                return OracleAnswer(time.monotonic_ns(), report)
            case TraceRequest(on, since_ns):
                return self._trace(on, since_ns)
            case StatusRequest():
                return self._status()
            case ClearRequest(number):
                self._saboteur.clear(number)
            case ForgetRequest():
                self._oracle.reset()
            case WedgeRequest(duration_s):
                self._wedge(duration_s)
            case UnwedgeRequest():
                self._unwedge(self._wedges)
            case QuitRequest():
                # Not here: the reply must go out first.
                self._server.loop.call_later(0, self._server.loop.stop)
        return None

    def _counts(self) -> _CountsOnWire:
        plants = tuple(
            PlantEntry(
                entry.number,
                _PLANT_KINDS[type(entry.plant)],
                msgspec.Raw(msgspec.json.encode(entry.plant)),
                entry.seen,
                entry.struck,
            )
            for entry in self._saboteur.report()
        )
        return _CountsOnWire(time.monotonic_ns(), plants, counters_of(self._oracle.snapshot()))

    def _trace(self, on: bool | None, since_ns: int | None) -> TraceAnswer:
        if on is not None:
            self._oracle.tracing = on
        lines: tuple[TraceLine, ...] = ()
        if since_ns is not None:
            kept = self._oracle.trace_lines()
            lines = tuple(line for line in kept if line.at_ns > since_ns)
        return TraceAnswer(self._oracle.tracing, time.monotonic_ns(), lines)

    def _status(self) -> Status:
        ports = []
        for port in self._server.ports:
            endpoint, stats = port.endpoint, port.endpoint.stats
            ports.append(
                PortStatus(
                    path=os.fspath(port.path),
                    connected=port.connected,
                    client_count=port.client_count,
                    messages=stats.messages,
                    error_replies=stats.error_replies,
                    last_error=stats.last_error,
                    device_faults=stats.device_faults,
                    last_device_fault=stats.last_device_fault,
                    dma_maps=len(endpoint.dma),
                    irqs_armed=len(endpoint.irqs.armed),
                    irqs_raised=endpoint.irqs.raised_count,
                )
            )
        uptime_ns = time.monotonic_ns() - self._started_ns
        return Status(os.getpid(), uptime_ns, self._wedged, tuple(ports))

    def _wedge(self, duration_s: float | None) -> None:
        if duration_s is not None and not 0 < duration_s <= 86400:
            raise ControlError(f"cannot wedge for {duration_s} s", "more than 0, at most a day")
        self._wedges += 1
        self._wedged = True
        self._server.pause()
        number = self._wedges
        if duration_s is not None:
            self._server.loop.call_later(duration_s, lambda: self._unwedge(number))

    def _unwedge(self, number: int) -> None:
        if self._wedged and number == self._wedges:
            self._wedged = False
            self._server.resume()


class _ControlConnection:
    """One client: lines in, lines out, both bounded by not reading while a reply is unsent."""

    def __init__(
        self, sock: socket.socket, loop: EventLoop, answer: Callable[[bytes], bytes]
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._loop = loop
        self._answer = answer
        self._received = b""
        self._unsent = b""
        loop.watch(sock.fileno(), READ, self._on_ready)

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def _on_ready(self, events: int) -> None:
        try:
            if events & WRITE:
                self._flush()
            elif not self._receive():
                self.close()
                return
            while not self._unsent and b"\n" in self._received:
                line, _newline, self._received = self._received.partition(b"\n")
                self._unsent = self._answer(line)
                self._flush()
        except (BrokenPipeError, ConnectionResetError):
            self.close()

    def _receive(self) -> bool:
        try:
            chunk = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return True
        self._received += chunk
        longest = len(self._received) - self._received.rfind(b"\n") - 1
        return bool(chunk) and longest <= _MAX_REQUEST_BYTES

    def _flush(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        self._unsent = self._unsent[sent:]
        self._loop.watch(self._socket.fileno(), WRITE if self._unsent else READ, self._on_ready)

    def close(self) -> None:
        """Legal twice."""
        if self.is_open:
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()


class ControlServer:
    """The listening control socket on the model's loop. ``close`` removes the socket file."""

    def __init__(self, path: Path, loop: EventLoop, controller: Controller) -> None:
        self._path = path
        self._loop = loop
        self._controller = controller
        self._decoder = msgspec.json.Decoder(Request)
        self._connections: list[_ControlConnection] = []
        self._listener = open_listener(path)
        loop.watch(self._listener.fileno(), READ, self._accept)

    def _accept(self, _events: int) -> None:
        try:
            sock, _address = self._listener.accept()
        except BlockingIOError:
            return
        self._connections = [one for one in self._connections if one.is_open]
        self._connections.append(_ControlConnection(sock, self._loop, self._answer))

    def _answer(self, line: bytes) -> bytes:
        try:
            result = self._controller.handle(self._decoder.decode(line))
        except (msgspec.DecodeError, GdrstormError) as error:
            reply = Reply(False, str(error))
        else:
            reply = Reply(True, result=msgspec.Raw(msgspec.json.encode(result)))
        return msgspec.json.encode(reply) + b"\n"

    def close(self) -> None:
        """Legal twice."""
        for connection in self._connections:
            connection.close()
        if self._listener.fileno() >= 0:
            self._loop.unwatch(self._listener.fileno())
            self._listener.close()
            self._path.unlink(missing_ok=True)


class ControlClient:
    """The other end, blocking: one request at a time. Owns its socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._received = b""

    @classmethod
    def connect(cls, path: Path, wait_s: float = 0.0, timeout_s: float = 10.0) -> ControlClient:
        """Connect, for ``wait_s`` until the process listens. Raises ControlError."""
        until = time.monotonic() + wait_s
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(timeout_s)
            try:
                sock.connect(os.fspath(path))
            except OSError as error:
                sock.close()
                late = time.monotonic() >= until
                if late or error.errno not in (errno.ENOENT, errno.ECONNREFUSED):
                    hint = "is the device model running?"
                    raise ControlError(f"cannot connect: {path}: {error.strerror}", hint) from error
                time.sleep(0.02)
                continue
            return cls(sock)

    def plant(self, plant: Plant) -> int:
        """Arm a plant and give its number."""
        return self._call(encode_plant(plant), int)

    def clear(self, number: int | None = None) -> None:
        self._call(ClearRequest(number), type(None))

    def counts(self) -> Counts:
        wire = self._call(CountsRequest(), _CountsOnWire)
        plants = tuple(
            PlantReport(
                entry.number, decode_plant(entry.kind, entry.plant), entry.seen, entry.struck
            )
            for entry in wire.plants
        )
        return Counts(wire.at_ns, plants, wire.oracle)

    def oracle(self, since_ns: int = 0) -> OracleAnswer:
        return self._call(OracleRequest(since_ns), OracleAnswer)

    def forget(self) -> None:
        self._call(ForgetRequest(), type(None))

    def trace(self, on: bool) -> None:
        self._call(TraceRequest(on=on), TraceAnswer)

    def trace_lines(self, since_ns: int = 0) -> TraceAnswer:
        return self._call(TraceRequest(since_ns=since_ns), TraceAnswer)

    def status(self) -> Status:
        return self._call(StatusRequest(), Status)

    def wedge(self, duration_s: float | None = None) -> None:
        self._call(WedgeRequest(duration_s), type(None))

    def unwedge(self) -> None:
        self._call(UnwedgeRequest(), type(None))

    def quit(self) -> None:
        self._call(QuitRequest(), type(None))

    def _call(self, request: Request, result: type[_T]) -> _T:
        try:
            self._socket.sendall(msgspec.json.encode(request) + b"\n")
            line = self._read_line()
        except OSError as error:
            raise ControlError(f"device model does not answer: {error}") from error
        reply = msgspec.json.decode(line, type=Reply)
        if not reply.ok:
            raise ControlError(f"device model refuses: {reply.error}")
        decoded: Any = msgspec.json.decode(reply.result, type=result)
        return decoded  # type: ignore[no-any-return]

    def _read_line(self) -> bytes:
        chunks = [self._received]
        while b"\n" not in chunks[-1]:
            chunk = self._socket.recv(_RECEIVE_BYTES)
            if not chunk:
                raise ControlError("device model is gone", "see its log")
            chunks.append(chunk)
        line, _newline, self._received = b"".join(chunks).partition(b"\n")
        return line

    def close(self) -> None:
        """Legal twice."""
        self._socket.close()

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()
