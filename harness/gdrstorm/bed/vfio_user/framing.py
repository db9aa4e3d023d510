"""A byte stream with descriptors to whole vfio-user messages, without any I/O.

The kernel ends a receive after the data that carried descriptors (``unix_stream_read_generic``),
so the descriptors of a chunk belong to the message in which the chunk ends. That lets the reader
take many messages with one system call. Descriptors are owned by the frame they came with.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gdrstorm.bed.vfio_user import protocol
from gdrstorm.bed.vfio_user.protocol import Header, ProtocolError


def close_fds(fds: Iterable[int]) -> None:
    """Close received descriptors."""
    for fd in fds:
        os.close(fd)


@dataclass(slots=True)
class Frame:
    """One message. ``fds`` are the receiver's to take (``take_fds``) or to close."""

    header: Header
    payload: bytes
    fds: list[int] = field(default_factory=list)

    def take_fds(self) -> list[int]:
        """Move the descriptors to the caller."""
        taken, self.fds = self.fds, []
        return taken

    def close(self) -> None:
        """Close what nobody took. Legal twice."""
        close_fds(self.take_fds())


class FramingError(ProtocolError):
    """The stream cannot be read on; ``header`` is what to answer before it is closed."""

    def __init__(self, header: Header, errno_: int, what: str) -> None:
        super().__init__(errno_, what)
        self.header = header


class Framer:
    """Collects chunks and gives out messages; bounded by the largest legal message."""

    def __init__(self) -> None:
        self._data = b""
        self._position = 0  # of the first byte of _data in the stream
        self._fds: list[tuple[int, list[int]]] = []  # (position after the chunk, descriptors)

    def feed(self, chunk: bytes, fds: list[int]) -> None:
        """Add what one receive gave; takes the descriptors."""
        self._data = self._data + chunk if self._data else chunk
        if fds:
            self._fds.append((self._position + len(self._data), fds))

    def frames(self) -> Iterator[Frame]:
        """All messages that are complete. Raises FramingError when the stream makes no sense."""
        data, start = self._data, 0
        try:
            while len(data) - start >= protocol.HEADER_BYTES:
                header = protocol.parse_header(data, start)
                _check_size(header)
                end = start + header.size
                if end > len(data):
                    break
                frame = Frame(header, data[start + protocol.HEADER_BYTES : end])
                if self._fds:
                    frame.fds = self._fds_until(self._position + end)
                start = end
                yield frame
        finally:
            self._data = data[start:]
            self._position += start

    def _fds_until(self, position: int) -> list[int]:
        taken: list[int] = []
        while self._fds and self._fds[0][0] <= position:
            taken += self._fds.pop(0)[1]
        return taken

    def close(self) -> None:
        """Drop what is left and close its descriptors. Legal twice."""
        for _position, fds in self._fds:
            close_fds(fds)
        self._fds.clear()
        self._data = b""


def _check_size(header: Header) -> None:
    if header.size < protocol.HEADER_BYTES:
        raise FramingError(header, errno.EINVAL, f"size {header.size} below the header's")
    if header.size > protocol.MAX_MESSAGE_BYTES:
        raise FramingError(header, errno.EMSGSIZE, f"size {header.size}")
