"""A client for tests: sends what QEMU would send, and also what it would not."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from scratch_device import ScratchDevice

from gdrstorm.bed.vfio_user import protocol
from gdrstorm.bed.vfio_user.loop import EventLoop
from gdrstorm.bed.vfio_user.protocol import (
    Command,
    DmaMap,
    DmaUnmap,
    Header,
    IrqIndex,
    IrqSet,
    IrqSetFlag,
    RegionAccess,
)
from gdrstorm.bed.vfio_user.server import Port

# What QEMU 11.1 proposes, byte for byte.
QEMU_VERSION = (
    b"\0\0\0\0"
    b'{"capabilities": {"max_msg_fds": 16, "migration": {"max_bitmap_size": 268435456, '
    b'"pgsize": 4096}, "max_dma_maps": 65535, "write_multiple": true, '
    b'"max_data_xfer_size": 1048576, "pgsizes": 4096}}\0'
)


@dataclass(frozen=True)
class Answer:
    header: Header
    payload: bytes
    fds: tuple[int, ...] = ()


class Bench:
    """A server with one scratch device and a client on the same thread: turn by turn."""

    def __init__(self, directory: Path, device: ScratchDevice | None = None) -> None:
        self.loop = EventLoop()
        self.device = device or ScratchDevice()
        self.path = directory / "dev.sock"
        self.port = Port(self.path, self.device, self.loop)
        self.client = Client(self)

    def turn(self) -> None:
        self.loop.turn(0)

    def close(self) -> None:
        self.client.socket.close()
        self.port.close()
        self.loop.close()


class Client:
    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._next_id = 100
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(os.fspath(bench.path))
        self.socket.setblocking(False)
        self._data = b""

    def send(
        self, command: int, payload: bytes = b"", fds: tuple[int, ...] = (), flags: int = 0
    ) -> int:
        self._next_id += 1
        self.send_raw(protocol.build_request(self._next_id, command, payload, flags), fds)
        return self._next_id

    def send_raw(self, data: bytes, fds: tuple[int, ...] = ()) -> None:
        socket.send_fds(self.socket, [data], list(fds))

    def receive(self, turns: int = 50) -> Answer:
        """The next answer; the server gets turns until it has come."""
        fds: list[int] = []
        for _ in range(turns):
            self._bench.turn()
            if (answer := self._take(tuple(fds))) is not None:
                return answer
            try:
                data, new, _flags, _address = socket.recv_fds(self.socket, 1 << 21, 16)
            except BlockingIOError:
                continue
            if not data:
                raise EOFError
            self._data += data
            fds += new
        answer = self._take(tuple(fds))
        if answer is None:
            raise TimeoutError("no answer")
        return answer

    def _take(self, fds: tuple[int, ...]) -> Answer | None:
        if len(self._data) < protocol.HEADER_BYTES:
            return None
        header = protocol.parse_header(self._data)
        if len(self._data) < header.size:
            return None
        payload = self._data[protocol.HEADER_BYTES : header.size]
        self._data = self._data[header.size :]
        return Answer(header, payload, fds)

    def call(self, command: int, payload: bytes = b"", fds: tuple[int, ...] = ()) -> Answer:
        number = self.send(command, payload, fds)
        answer = self.receive()
        assert answer.header.message_id == number
        assert answer.header.command == command
        assert answer.header.is_reply
        assert answer.header.size == protocol.HEADER_BYTES + len(answer.payload)
        return answer

    def ok(self, command: int, payload: bytes = b"", fds: tuple[int, ...] = ()) -> Answer:
        answer = self.call(command, payload, fds)
        assert not answer.header.flags & protocol.FLAG_ERROR, os.strerror(answer.header.error)
        return answer

    def error(self, command: int, payload: bytes = b"", fds: tuple[int, ...] = ()) -> int:
        answer = self.call(command, payload, fds)
        assert answer.header.flags & protocol.FLAG_ERROR
        assert answer.payload == b""
        return answer.header.error

    def hello(self) -> Answer:
        return self.ok(Command.VERSION, QEMU_VERSION)

    def map(self, iova: int, size: int, fd: int | None, offset: int = 0, flags: int = 3) -> None:
        payload = protocol.build_dma_map(DmaMap(flags, offset, iova, size))
        self.ok(Command.DMA_MAP, payload, () if fd is None else (fd,))

    def unmap(self, iova: int, size: int, flags: int = 0) -> None:
        self.ok(Command.DMA_UNMAP, protocol.build_dma_unmap(DmaUnmap(flags, iova, size)))

    def read(self, region: int, offset: int, count: int) -> bytes:
        access = protocol.build_access(RegionAccess(offset, region, count))
        answer = self.ok(Command.REGION_READ, access)
        assert answer.payload[:16] == access
        return answer.payload[16:]

    def write(self, region: int, offset: int, data: bytes) -> None:
        payload = protocol.build_access(RegionAccess(offset, region, len(data), data))
        assert self.ok(Command.REGION_WRITE, payload).payload == payload[:16]

    def post(self, region: int, offset: int, data: bytes) -> None:
        """A posted write, as QEMU does for BARs: no reply comes."""
        payload = protocol.build_access(RegionAccess(offset, region, len(data), data))
        self.send(Command.REGION_WRITE, payload, flags=protocol.FLAG_NO_REPLY)

    def set_eventfd(self, vector: int, fd: int) -> None:
        flags = IrqSetFlag.DATA_EVENTFD | IrqSetFlag.ACTION_TRIGGER
        request = IrqSet(flags, IrqIndex.MSIX, vector, 1, b"")
        self.ok(Command.DEVICE_SET_IRQS, protocol.build_irq_set(request), (fd,))
