"""UNIX sockets to endpoints: one event loop, several devices, one client a device at a time.

A client that goes away frees its memory and interrupts; the socket then waits for the next one.
Descriptors travel as SCM_RIGHTS. While a client does not read its replies, nothing more is read
from it, so that memory stays bounded.
"""

from __future__ import annotations

import array
import errno
import logging
import os
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gdrstorm.bed.vfio_user import protocol
from gdrstorm.bed.vfio_user.device import PciDevice
from gdrstorm.bed.vfio_user.endpoint import Endpoint, Reply
from gdrstorm.bed.vfio_user.framing import Framer, FramingError, close_fds
from gdrstorm.bed.vfio_user.loop import READ, WRITE, EventLoop
from gdrstorm.errors import BrokenError, CallError, UsageError

_log = logging.getLogger(__name__)

_RECEIVE_BYTES: Final = 1 << 16
_FD_BYTES: Final = array.array("i").itemsize
# Room for the most descriptors the kernel passes at once (SCM_MAX_FD): more than a frame may
# carry, so that too many are seen and refused instead of cut off.
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(253 * _FD_BYTES)
# How long QEMU waits for an answer (x-msg-timeout of vfio-user-pci).
_CLIENT_PATIENCE_NS: Final = 5_000_000_000
_MAX_LATE_CHUNKS: Final = 64
_MAX_PATH_BYTES: Final = 107  # sockaddr_un.sun_path without its NUL


def open_listener(path: Path) -> socket.socket:
    """Bind and listen, for the owner only. A stale socket file is replaced, a live one is not."""
    # Bound under another name and moved: whoever waits for the file can connect when he sees it.
    draft = path.with_name(path.name + "~")
    if len(os.fsencode(draft)) > _MAX_PATH_BYTES:
        raise UsageError(f"socket path too long: {path}", f"at most {_MAX_PATH_BYTES - 1} bytes")
    _check_free(path)
    draft.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    mask = os.umask(0o177)
    try:
        listener.bind(os.fspath(draft))
        listener.listen(4)
        draft.rename(path)
    except OSError as error:
        listener.close()
        raise CallError(f"cannot listen: {path}", error.errno or errno.EIO) from error
    finally:
        os.umask(mask)
    return listener


def _check_free(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UsageError(f"cannot listen: {path} exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return
    raise UsageError(f"cannot listen: {path}: somebody does already")


def take_fds(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors of a ``recvmsg``; they are the caller's."""
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % _FD_BYTES])
    return fds.tolist()


class Connection:
    """One client. Owns its socket; ``close`` tells ``on_close`` once."""

    def __init__(
        self,
        sock: socket.socket,
        endpoint: Endpoint,
        loop: EventLoop,
        on_close: Callable[[Connection], None],
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._fd = sock.fileno()
        self._endpoint = endpoint
        self._loop = loop
        self._on_close = on_close
        self._framer = Framer()
        self._unsent = b""
        self._paused = False
        self._late = False
        self._watch()

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def _watch(self) -> None:
        if self._paused or self._fd < 0:
            return
        self._loop.watch(self._fd, WRITE if self._unsent else READ, self.on_ready)

    def pause(self) -> None:
        """Leave the client without answers until ``resume``."""
        self._paused = True
        self._loop.unwatch(self._fd)

    def resume(self, late: bool = False) -> None:
        """Go on; ``late`` says that the client may have given up what it asked meanwhile."""
        self._paused = False
        self._watch()
        self._late = late
        for _ in range(_MAX_LATE_CHUNKS if late else 0):
            before = self._endpoint.stats.messages
            self.on_ready(READ)
            if not self.is_open or self._endpoint.stats.messages == before:
                break
        self._late = False

    def on_ready(self, events: int) -> None:
        """Called by the loop. A broken stream or a client gone closes the connection."""
        try:
            if events & WRITE and not self._flush():
                return
            if events & READ and not self._receive():
                self.close()
                return
            self._process()
        except FramingError as error:
            _log.warning("%s: closing", error)
            self._endpoint.stats.error_replies += 1
            self._endpoint.stats.last_error = str(error)
            if error.header.wants_reply and not error.header.is_reply:
                self._send_last(protocol.build_error(error.header, error.errno))
            self.close()
        except (BrokenPipeError, ConnectionResetError):
            self.close()

    def _receive(self) -> bool:
        """Take one chunk. False: the client closed its end, or descriptors were lost."""
        try:
            chunk, ancillary, flags, _peer = self._socket.recvmsg(
                _RECEIVE_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return True
        fds = take_fds(ancillary) if ancillary else []
        if flags & socket.MSG_CTRUNC:
            _log.error("descriptors lost (limit of open files?): closing")
            close_fds(fds)
            return False
        if not chunk:
            close_fds(fds)
            return False
        self._framer.feed(chunk, fds)
        return True

    def _process(self) -> None:
        for frame in self._framer.frames():
            try:
                reply = self._endpoint.handle(frame)
            finally:
                frame.close()
            if reply is not None:
                if self._late and len(reply.data) > protocol.HEADER_BYTES:
                    # QEMU loses its place in the stream over the payload of an answer that it
                    # no longer expects, and drops the connection. A header alone it survives.
                    reply = Reply(protocol.build_error(frame.header, errno.ETIMEDOUT))
                self._send(reply)
                if self._unsent:
                    break

    def _send(self, reply: Reply) -> None:
        data = reply.data
        try:
            fds, sock = reply.fds, self._socket
            sent = socket.send_fds(sock, [data], list(fds)) if fds else sock.send(data)
        except BlockingIOError:
            if fds:
                raise BrokenError("client does not read a reply with descriptors") from None
            sent = 0
        if sent < len(data):
            self._unsent = data[sent:]
            self._watch()

    def _flush(self) -> bool:
        """Send on; True when all is out."""
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return False
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._watch()
        return not self._unsent

    def _send_last(self, data: bytes) -> None:
        try:
            self._socket.send(data)
        except OSError as error:
            _log.warning("cannot send the last reply: %s", error)

    def close(self) -> None:
        """Legal twice."""
        if self._fd < 0:
            return
        self._loop.unwatch(self._fd)
        self._fd = -1
        self._framer.close()
        self._socket.close()
        self._on_close(self)


class Port:
    """One listening socket with its device. Owns both; ``close`` removes the socket file."""

    def __init__(self, path: Path, device: PciDevice, loop: EventLoop) -> None:
        self.path = path
        self.endpoint = Endpoint(device, loop)
        self.client_count = 0
        self._loop = loop
        self._paused = False
        self._paused_ns = 0
        self._connection: Connection | None = None
        self._listener = open_listener(path)
        loop.watch(self._listener.fileno(), READ, self._accept)

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def _accept(self, _events: int) -> None:
        try:
            sock, _address = self._listener.accept()
        except BlockingIOError:
            return
        if self._connection is not None and not self._paused:
            # Its end may be waiting in the same turn of the loop, behind this event.
            self._connection.on_ready(READ)
        if self._connection is not None:
            _log.warning("%s: a second client was turned away", self.path)
            sock.close()
            return
        self.adopt(sock)

    def adopt(self, sock: socket.socket) -> None:
        """Serve a client over a connected socket."""
        if self.client_count:
            self.endpoint.client_came()
        self.client_count += 1
        self._connection = Connection(sock, self.endpoint, self._loop, self._closed)
        if self._paused:
            self._connection.pause()

    def _closed(self, _connection: Connection) -> None:
        self._connection = None
        self.endpoint.client_gone()

    def pause(self) -> None:
        """Stop answering and hold the device's timers, as if this process hung."""
        if not self._paused:
            self._paused_ns = time.monotonic_ns()
        self._paused = True
        self.endpoint.gate.closed = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        late = self._paused and time.monotonic_ns() - self._paused_ns > _CLIENT_PATIENCE_NS
        self._paused = False
        gate = self.endpoint.gate
        gate.closed = False
        held, gate.held = gate.held, []
        for callback in held:
            callback()
        if self._connection is not None:
            self._connection.resume(late)

    def close(self) -> None:
        """Legal twice."""
        if self._connection is not None:
            self._connection.close()
        if self._listener.fileno() >= 0:
            self._loop.unwatch(self._listener.fileno())
            self._listener.close()
            self.path.unlink(missing_ok=True)


class VfioUserServer:
    """All ports of one process on one loop. Owns the ports, not the loop."""

    def __init__(self, loop: EventLoop) -> None:
        self.loop = loop
        self.ports: list[Port] = []

    def add_device(self, path: Path, device: PciDevice) -> Port:
        """Listen for the client of a device."""
        port = Port(path, device, self.loop)
        self.ports.append(port)
        return port

    def pause(self) -> None:
        for port in self.ports:
            port.pause()

    def resume(self) -> None:
        for port in self.ports:
            port.resume()

    def close(self) -> None:
        """Legal twice."""
        for port in self.ports:
            port.close()
