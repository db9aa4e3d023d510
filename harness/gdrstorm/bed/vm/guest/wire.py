"""Frames between host and guest agent over a virtio-serial port.

One frame is a 9-byte header (kind, request id, payload length; big endian) and its payload.
Requests are JSON, output is raw bytes. Standard library only: the guest agent imports this file.
Pure: no I/O here.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

_HEADER = struct.Struct(">BII")
HEADER_BYTES = _HEADER.size
# Small enough that a heartbeat never waits long behind output, large enough to cost nothing.
MAX_PAYLOAD_BYTES = 64 * 1024

AGENT_PORT = "gdrstorm.agent"
JOURNAL_PORT = "gdrstorm.journal"
PORTS_DIR = "/dev/virtio-ports"


class Kind(enum.IntEnum):
    """What a frame carries. Below 16: host to guest; from 16 on: guest to host."""

    EXEC = 1  # JSON: argv, env, cwd, tty, rows, columns
    STDIN = 2  # bytes; an empty payload is end of file
    SIGNAL = 3  # JSON: number (sent to the command's process group)
    SHUTDOWN = 4
    RESIZE = 5  # JSON: rows, columns
    READY = 16  # JSON: kernel, rdma, uptime_s
    STDOUT = 17
    STDERR = 18
    EXIT = 19  # JSON: status (negative: signal number), error
    HEARTBEAT = 20  # JSON: uptime_s


class WireError(Exception):
    """The byte stream is not made of frames; nothing after it can be trusted."""


class Frame(NamedTuple):
    """One message; `request` 0 belongs to no command."""

    kind: Kind
    request: int
    payload: bytes


def encode(kind: Kind, request: int, payload: bytes = b"") -> bytes:
    """One frame as bytes. ValueError when the payload is too long for a frame."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"payload of {len(payload)} bytes exceeds {MAX_PAYLOAD_BYTES}")
    return _HEADER.pack(kind, request, len(payload)) + payload


class Decoder:
    """Bytes as they arrive to frames; keeps what is incomplete."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame]:
        """All frames that are complete now. WireError on an unknown kind or an oversized length."""
        self._buffer += data
        frames: list[Frame] = []
        offset = 0
        while len(self._buffer) - offset >= HEADER_BYTES:
            number, request, length = _HEADER.unpack_from(self._buffer, offset)
            if length > MAX_PAYLOAD_BYTES or number not in _KINDS:
                raise WireError(f"not a frame: kind={number} length={length}")
            end = offset + HEADER_BYTES + length
            if len(self._buffer) < end:
                break
            frames.append(
                Frame(Kind(number), request, bytes(self._buffer[offset + HEADER_BYTES : end]))
            )
            offset = end
        del self._buffer[:offset]
        return frames


_KINDS = frozenset(int(kind) for kind in Kind)
