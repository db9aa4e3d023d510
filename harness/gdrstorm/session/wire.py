"""Messages between the supervisor and a worker: one JSON object a datagram on a SOCK_SEQPACKET pair.

The supervisor sends one Job; the worker answers Opened, then GateDone or StormDone, or Failed. Statistics do not
travel here: they are in the shared area.
"""

from __future__ import annotations

import socket

import msgspec

from gdrstorm.model.gate import GateResult
from gdrstorm.model.plan import WorkerPlan
from gdrstorm.model.stack import StackPart

#: Largest message; a gate table with a few hundred rows fits.
MESSAGE_BYTES = 1 << 20


class Message(msgspec.Struct, frozen=True, tag_field="type"):
    pass


class Job(Message, frozen=True, tag="job"):
    """What to do; `area_fd` is the number of the inherited descriptor of the shared area, -1 for none."""

    plan: WorkerPlan
    area_fd: int = -1


class Opened(Message, frozen=True, tag="opened"):
    """Both back ends are open; the storm's threads are about to line up."""

    exporter: StackPart
    importer: StackPart


class CheckDone(Message, frozen=True, tag="check"):
    """A data check ended."""

    name: str
    passed: bool
    detail: str


class GateDone(Message, frozen=True, tag="gate"):
    results: tuple[GateResult, ...]


class StormDone(Message, frozen=True, tag="storm"):
    """The storm ended; `descriptors_left` counts descriptors that it opened and did not close, by kind."""

    descriptors_left: dict[str, int]


class Failed(Message, frozen=True, tag="failed"):
    """The worker cannot go on. `exit_code` is that of the error's class: 4 means not available here."""

    reason: str
    exit_code: int


Reply = Opened | CheckDone | GateDone | StormDone | Failed

_replies = msgspec.json.Decoder(Reply)
_jobs = msgspec.json.Decoder(Job)


def send(sock: socket.socket, message: Message) -> None:
    sock.send(msgspec.json.encode(message))


def receive_reply(sock: socket.socket) -> Reply | None:
    """The next message of a worker, or None when it is gone."""
    data = sock.recv(MESSAGE_BYTES)
    return _replies.decode(data) if data else None


def receive_job(sock: socket.socket) -> Job:
    return _jobs.decode(sock.recv(MESSAGE_BYTES))


def make_pair() -> tuple[socket.socket, socket.socket]:
    """A supervisor's and a worker's end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
    return ours, theirs
