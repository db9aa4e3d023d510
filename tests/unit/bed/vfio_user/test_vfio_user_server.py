"""The server as a client sees it: QEMU's handshake and life, and every kind of bad frame."""

from __future__ import annotations

import errno
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scratch_device import BAR_BYTES, DOORBELL, DOORBELL_FORM, FAULT, VECTORS, ScratchDevice
from vfio_user_client import QEMU_VERSION, Bench, Client

from gdrstorm.bed.vfio_user import protocol
from gdrstorm.bed.vfio_user.protocol import (
    FLAG_ERROR,
    FLAG_NO_REPLY,
    HEADER_BYTES,
    Command,
    DmaMap,
    DmaUnmap,
    IrqIndex,
    IrqInfoFlag,
    IrqSet,
    IrqSetFlag,
    MmapArea,
    RegionAccess,
)
from gdrstorm.bed.vfio_user.server import open_listener
from gdrstorm.errors import UsageError

EVENTFD = IrqSetFlag.DATA_EVENTFD | IrqSetFlag.ACTION_TRIGGER


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


@pytest.fixture
def client(bench: Bench) -> Client:
    bench.client.hello()
    return bench.client


@pytest.fixture
def memory() -> Iterator[int]:
    fd = os.memfd_create("guest")
    os.truncate(fd, 1 << 20)
    yield fd
    os.close(fd)


def open_fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_version_reply_fits_into_the_request_and_is_terminated(bench: Bench) -> None:
    answer = bench.client.hello()
    # QEMU receives the reply into the buffer of its request.
    assert len(answer.payload) <= len(QEMU_VERSION)
    assert answer.payload.endswith(b"\0")
    caps = msgspec.json.decode(answer.payload[4:-1])["capabilities"]
    assert caps == {
        "max_msg_fds": 16,
        "max_data_xfer_size": 1048576,
        "max_dma_maps": 65535,
        "pgsizes": 4096,
        "write_multiple": True,
    }


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\1\0\0\0",  # major 1
        b"\0\0\0\0{",
        b"\0\0\0\0{}",  # not terminated
        b"\0\0\0\0{]\0",
        b'\0\0\0\0{"capabilities": 7}\0',
        b'\0\0\0\0{"capabilities": {"pgsizes": 8192}}\0',
        b'\0\0\0\0{"capabilities": {"max_dma_maps": -1}}\0',
    ],
)
def test_bad_version_is_refused_and_a_good_one_may_follow(bench: Bench, payload: bytes) -> None:
    assert bench.client.error(Command.VERSION, payload) == errno.EINVAL
    bench.client.hello()


def test_version_comes_first_and_once(bench: Bench) -> None:
    assert bench.client.error(Command.DEVICE_RESET) == errno.EINVAL
    bench.client.hello()
    assert bench.client.error(Command.VERSION, QEMU_VERSION) == errno.EINVAL
    assert bench.device.resets == 0


def test_version_without_capabilities_gets_none(bench: Bench) -> None:
    assert bench.client.ok(Command.VERSION, b"\0\0\5\0").payload == b"\0\0\0\0"


def test_device_info(client: Client) -> None:
    payload = struct.pack("=IIII", 16, 0, 0, 0)
    assert client.ok(Command.DEVICE_GET_INFO, payload).payload == struct.pack("=IIII", 16, 3, 9, 5)
    assert client.error(Command.DEVICE_GET_INFO, payload[:15]) == errno.EINVAL


def test_region_info(client: Client) -> None:
    def ask(index: int) -> protocol.RegionInfo:
        payload = struct.pack("=IIIIQQ", 32, 0, index, 0, 0, 0)
        return protocol.parse_region_info(
            client.ok(Command.DEVICE_GET_REGION_INFO, payload).payload
        )

    assert (ask(0).size, ask(0).flags) == (BAR_BYTES, 3)
    assert (ask(7).size, ask(7).flags) == (4096, 3)
    assert (ask(1).size, ask(1).flags) == (0, 0)
    bad = struct.pack("=IIIIQQ", 32, 0, 9, 0, 0, 0)
    assert client.error(Command.DEVICE_GET_REGION_INFO, bad) == errno.EINVAL


def test_mappable_region_sends_its_descriptor_and_sparse_areas(tmp_path: Path, memory: int) -> None:
    bench = Bench(tmp_path, ScratchDevice(mmap_fd=memory))
    try:
        bench.client.hello()
        short = struct.pack("=IIIIQQ", 32, 0, 0, 0, 0, 0)
        first = bench.client.ok(Command.DEVICE_GET_REGION_INFO, short)
        argsz, flags, _index, cap_offset = struct.unpack_from("=IIII", first.payload)
        assert (argsz, flags, cap_offset, len(first.payload)) == (64, 15, 32, 32)
        long = struct.pack("=IIIIQQ", argsz, 0, 0, 0, 0, 0)
        second = bench.client.ok(Command.DEVICE_GET_REGION_INFO, long)
        info = protocol.parse_region_info(second.payload)
        assert info.areas == (MmapArea(0, 0x1000),)
        (fd,) = second.fds
        assert os.fstat(fd).st_ino == os.fstat(memory).st_ino
        for got in (*first.fds, fd):
            os.close(got)
    finally:
        bench.close()


def test_irq_info(client: Client) -> None:
    def ask(index: int) -> bytes:
        payload = struct.pack("=IIII", 16, 0, index, 0)
        return client.ok(Command.DEVICE_GET_IRQ_INFO, payload).payload

    msix = struct.pack("=IIII", 16, IrqInfoFlag.EVENTFD, 2, VECTORS)
    assert ask(IrqIndex.MSIX) == msix
    assert ask(IrqIndex.INTX) == struct.pack("=IIII", 16, 0, 0, 0)
    for index in (IrqIndex.ERR, IrqIndex.REQ, 5):
        bad = struct.pack("=IIII", 16, 0, index, 0)
        assert client.error(Command.DEVICE_GET_IRQ_INFO, bad) == errno.EINVAL


def test_region_read_and_write(client: Client) -> None:
    client.write(0, 0x10, b"\1\2\3\4")
    assert client.read(0, 0x0E, 8) == b"\0\0\1\2\3\4\0\0"
    assert client.read(7, 0, 4) == b"\x34\x12\x0b\x9d"


def test_posted_writes_get_no_reply_and_stay_in_order(client: Client) -> None:
    for value in range(50):
        client.post(0, 8, struct.pack("<I", value))
    assert client.read(0, 8, 4) == struct.pack("<I", 49)


def test_bad_posted_write_is_counted_and_not_answered(bench: Bench, client: Client) -> None:
    client.post(0, BAR_BYTES, b"\0")
    assert client.read(0, 0, 1) == b"\0"
    assert bench.port.endpoint.stats.error_replies == 1
    assert "outside" in bench.port.endpoint.stats.last_error


@pytest.mark.parametrize(
    ("region", "offset", "count", "expected"),
    [
        (0, BAR_BYTES - 4, 8, errno.EINVAL),
        (0, 1 << 63, 8, errno.EINVAL),
        (0, 0, (1 << 20) + 1, errno.EINVAL),
        (1, 0, 4, errno.EINVAL),
        (77, 0, 4, errno.EINVAL),
    ],
)
def test_reads_outside_are_refused(
    client: Client, region: int, offset: int, count: int, expected: int
) -> None:
    payload = protocol.build_access(RegionAccess(offset, region, count))
    assert client.error(Command.REGION_READ, payload) == expected


def test_write_to_a_read_only_region_or_with_a_wrong_count(client: Client) -> None:
    read_only = protocol.build_access(RegionAccess(0, 2, 1, b"x"))
    assert client.error(Command.REGION_WRITE, read_only) == errno.EPERM
    short = protocol.build_access(RegionAccess(0, 0, 4, b"xyz"))
    assert client.error(Command.REGION_WRITE, short) == errno.EINVAL


def test_write_multi(client: Client) -> None:
    writes = [RegionAccess(4 * n, 0, 4, struct.pack("<I", n + 1)) for n in range(10)]
    client.send(Command.REGION_WRITE_MULTI, protocol.build_write_multi(writes), flags=FLAG_NO_REPLY)
    assert client.read(0, 0, 40) == struct.pack("<10I", *range(1, 11))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        struct.pack("=Q", 1),
        struct.pack("=Q", 1 << 60),
        struct.pack("=Q", 201) + bytes(201 * 24),
        struct.pack("=QQII8s", 1, 0, 0, 9, b""),
    ],
)
def test_bad_write_multi(client: Client, payload: bytes) -> None:
    assert client.error(Command.REGION_WRITE_MULTI, payload) == errno.EINVAL


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (Command.DMA_READ, errno.EOPNOTSUPP),
        (Command.DIRTY_PAGES, errno.EOPNOTSUPP),
        (Command.DEVICE_FEATURE, errno.EOPNOTSUPP),
        (Command.MIG_DATA_READ, errno.EOPNOTSUPP),
        (Command.MIG_DATA_WRITE, errno.EOPNOTSUPP),
        (0, errno.ENOSYS),
        (999, errno.ENOSYS),
    ],
)
def test_commands_that_are_not_served(client: Client, command: int, expected: int) -> None:
    assert client.error(command, bytes(64)) == expected


def test_no_region_is_served_by_a_descriptor(client: Client) -> None:
    payload = struct.pack("=IIII", 16, 0, 0, 0)
    answer = client.ok(Command.DEVICE_GET_REGION_IO_FDS, payload)
    assert answer.payload == struct.pack("=IIII", 16, 0, 0, 0)


def test_dma_and_interrupt(bench: Bench, client: Client, memory: int) -> None:
    os.pwrite(memory, b"hello guest", 0x2000)
    event = os.eventfd(0, os.EFD_NONBLOCK)
    client.map(0x100000, 0x10000, memory, offset=0x1000)
    client.set_eventfd(3, event)
    doorbell = DOORBELL_FORM.pack(0x101000, 0x10F000, 11, 3)
    for offset in range(0, len(doorbell), 4):
        client.post(0, DOORBELL + offset, doorbell[offset : offset + 4])
    client.read(0, 0, 1)
    assert os.pread(memory, 11, 0x10000) == b"hello guest"
    assert os.eventfd_read(event) == 1
    assert bench.device.mapped == [(0x100000, 0x10000)]
    os.close(event)


def test_dma_to_nowhere_is_reported_not_fatal(client: Client) -> None:
    doorbell = DOORBELL_FORM.pack(0x1000, 0x2000, 4, 0)
    client.write(0, DOORBELL, doorbell[:-4])
    payload = protocol.build_access(RegionAccess(DOORBELL + len(doorbell) - 4, 0, 4, doorbell[-4:]))
    assert client.error(Command.REGION_WRITE, payload) == errno.EFAULT
    client.read(0, 0, 1)


def test_a_bug_of_the_device_is_recorded_not_fatal(bench: Bench, client: Client) -> None:
    payload = protocol.build_access(RegionAccess(FAULT, 0, 1, b"x"))
    assert client.error(Command.REGION_WRITE, payload) == errno.EIO
    assert bench.port.endpoint.stats.device_faults == 1
    assert "a bug of the device" in bench.port.endpoint.stats.last_device_fault
    client.read(0, 0, 1)


def test_map_errors(client: Client, memory: int) -> None:
    client.map(0x1000, 0x1000, memory)

    def refused(request: DmaMap, fds: tuple[int, ...] = ()) -> int:
        return client.error(Command.DMA_MAP, protocol.build_dma_map(request), fds)

    assert refused(DmaMap(3, 0, 0x1800, 0x1000)) == errno.EEXIST
    assert refused(DmaMap(3, 0, 0x4000, 0)) == errno.EINVAL
    assert refused(DmaMap(3, 0, (1 << 64) - 0x1000, 0x2000)) == errno.EINVAL
    assert refused(DmaMap(3, 1 << 20, 0x4000, 0x1000), (memory,)) == errno.EINVAL
    assert refused(DmaMap(3, 0, 0x4000, 0x1000), (memory, memory)) == errno.EINVAL
    assert client.error(Command.DMA_MAP, bytes(31)) == errno.EINVAL


def test_unmap_answers_with_the_request_and_tells_the_device(
    bench: Bench, client: Client, memory: int
) -> None:
    client.map(0x1000, 0x1000, memory)
    client.map(0x2000, 0x1000, memory)
    payload = protocol.build_dma_unmap(DmaUnmap(0, 0x1000, 0x1000))
    assert client.ok(Command.DMA_UNMAP, payload).payload == payload
    client.unmap(0, 0, protocol.UNMAP_FLAG_ALL)
    assert bench.device.unmapped == [(0x1000, 0x1000), (0x2000, 0x1000)]
    assert len(bench.port.endpoint.dma) == 0


def test_descriptors_never_leak(bench: Bench, client: Client, memory: int) -> None:
    before = open_fds()
    client.error(Command.DMA_MAP, b"", (memory, memory, memory))
    client.error(999, b"", (memory,))
    client.read(0, 0, 1)
    request = protocol.build_irq_set(IrqSet(EVENTFD, IrqIndex.MSIX, 0, 1, b""))
    assert client.error(Command.DEVICE_SET_IRQS, request, (memory,)) == errno.EINVAL
    assert open_fds() == before
    event = os.eventfd(0)
    for _ in range(3):
        client.set_eventfd(0, event)
    assert open_fds() == before + 2
    client.socket.close()
    bench.turn()
    os.close(event)
    assert open_fds() == before - 2  # the sockets of both ends


def test_irq_set_and_clear(bench: Bench, client: Client) -> None:
    events = tuple(os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2))
    request = IrqSet(EVENTFD, IrqIndex.MSIX, 1, 2, b"")
    client.ok(Command.DEVICE_SET_IRQS, protocol.build_irq_set(request), events)
    assert bench.port.endpoint.irqs.armed == (1, 2)
    trigger = IrqSetFlag.DATA_BOOL | IrqSetFlag.ACTION_TRIGGER
    request = IrqSet(trigger, IrqIndex.MSIX, 1, 2, b"\0\1")
    client.ok(Command.DEVICE_SET_IRQS, protocol.build_irq_set(request))
    with pytest.raises(BlockingIOError):
        os.eventfd_read(events[0])
    assert os.eventfd_read(events[1]) == 1
    # No descriptors: the vector is given back.
    request = IrqSet(EVENTFD, IrqIndex.MSIX, 1, 1, b"")
    client.ok(Command.DEVICE_SET_IRQS, protocol.build_irq_set(request))
    assert bench.port.endpoint.irqs.armed == (2,)
    none = IrqSetFlag.DATA_NONE | IrqSetFlag.ACTION_TRIGGER
    client.ok(
        Command.DEVICE_SET_IRQS, protocol.build_irq_set(IrqSet(none, IrqIndex.MSIX, 0, 0, b""))
    )
    assert bench.port.endpoint.irqs.armed == ()
    for event in events:
        os.close(event)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (IrqSet(EVENTFD, IrqIndex.MSIX, VECTORS, 1, b""), errno.EINVAL),
        (IrqSet(EVENTFD, IrqIndex.MSIX, 0, 1 << 31, b""), errno.EINVAL),
        (IrqSet(EVENTFD, IrqIndex.INTX, 0, 1, b""), errno.EINVAL),
        (IrqSet(EVENTFD, 9, 0, 1, b""), errno.EINVAL),
        (IrqSet(IrqSetFlag(0x3F), IrqIndex.MSIX, 0, 1, b""), errno.EINVAL),
        (IrqSet(IrqSetFlag(0x22), IrqIndex.MSIX, 0, 4, b"\1"), errno.EINVAL),
        (IrqSet(IrqSetFlag(0x09), IrqIndex.MSIX, 0, 1, b""), errno.ENOTTY),
    ],
)
def test_bad_irq_sets(client: Client, request_: IrqSet, expected: int) -> None:
    assert client.error(Command.DEVICE_SET_IRQS, protocol.build_irq_set(request_)) == expected


def test_reset(bench: Bench, client: Client) -> None:
    client.write(0, 0, b"x")
    client.ok(Command.DEVICE_RESET)
    assert client.read(0, 0, 1) == b"\0"
    assert bench.device.resets == 1


@pytest.mark.parametrize(("size", "expected"), [(15, errno.EINVAL), (1 << 22, errno.EMSGSIZE)])
def test_impossible_size_is_answered_and_closes(
    bench: Bench, client: Client, size: int, expected: int
) -> None:
    client.send_raw(protocol.HEADER.pack(7, Command.REGION_READ, size, 0, 0))
    answer = client.receive()
    assert answer.header.flags & FLAG_ERROR
    assert answer.header.error == expected
    with pytest.raises(EOFError):
        client.receive()
    assert not bench.port.connected


def test_client_may_come_back(bench: Bench, client: Client, memory: int) -> None:
    client.map(0x1000, 0x1000, memory)
    client.write(0, 0, b"x")
    client.socket.close()
    again = Client(bench)
    again.hello()
    assert bench.device.unmapped == [(0x1000, 0x1000)]
    assert bench.device.resets == 1
    assert again.read(0, 0, 1) == b"\0"
    again.map(0x1000, 0x1000, memory)
    again.socket.close()
    bench.turn()
    assert not bench.port.connected


def test_client_may_come_back_before_its_end_was_seen(bench: Bench, client: Client) -> None:
    again = Client(bench)
    client.socket.close()
    again.hello()
    assert bench.port.client_count == 2
    again.socket.close()


def test_second_client_is_turned_away(bench: Bench, client: Client) -> None:
    other = Client(bench)
    with pytest.raises(EOFError):
        other.receive()
    other.socket.close()
    client.read(0, 0, 1)


def test_message_in_pieces(client: Client) -> None:
    access = protocol.build_access(RegionAccess(0, 0, 4))
    message = protocol.build_request(5, Command.REGION_READ, access)
    for place in range(len(message) - 1):
        client.send_raw(message[place : place + 1])
        with pytest.raises(TimeoutError):
            client.receive(turns=1)
    client.send_raw(message[-1:])
    assert client.receive().header.message_id == 5


def test_descriptors_find_their_message_in_a_burst(bench: Bench, client: Client) -> None:
    fds = []
    for number in range(8):
        client.post(0, 4 * number, b"abcd")
        fd = os.memfd_create(f"ram{number}")
        os.pwrite(fd, bytes([number]) * 4096, 0)
        request = protocol.build_dma_map(DmaMap(3, 0, number << 12, 4096))
        client.send(Command.DMA_MAP, request, (fd,))
        fds.append(fd)
    for _ in range(8):
        client.receive()
    for number in range(8):
        assert bench.port.endpoint.dma.read(number << 12, 4) == bytes([number]) * 4
    for fd in fds:
        os.close(fd)


def test_a_client_that_reads_nothing_is_not_read_from(bench: Bench, client: Client) -> None:
    """Replies beyond the socket's buffer stop the server from reading more requests."""
    access = protocol.build_access(RegionAccess(0, 7, 4096))
    sent = 0
    for _ in range(1000):
        try:
            client.send(Command.REGION_READ, access)
        except BlockingIOError:
            break
        sent += 1
        bench.turn()
    handled = bench.port.endpoint.stats.messages - 1
    assert handled < sent
    for _ in range(sent):
        answer = client.receive()
        assert len(answer.payload) == 16 + 4096


def test_pause_holds_answers_and_timers(bench: Bench, client: Client) -> None:
    fired: list[str] = []
    bench.port.pause()
    bench.device.ctx.call_later(0, lambda: fired.append("held"))
    cancelled = bench.device.ctx.call_later(0, lambda: fired.append("cancelled"))
    client.send(Command.REGION_READ, protocol.build_access(RegionAccess(0, 0, 4)))
    with pytest.raises(TimeoutError):
        client.receive(turns=5)
    assert fired == []
    cancelled.cancel()
    bench.port.resume()
    assert fired == ["held"]
    client.receive()
    assert bench.port.endpoint.stats.device_faults == 0


def test_answers_after_a_long_pause_have_no_payload(
    bench: Bench, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """QEMU has given up and would take the payload for the next header."""
    bench.port.pause()
    client.send(Command.REGION_READ, protocol.build_access(RegionAccess(0, 0, 4)))
    client.post(0, 0, b"late")
    client.send(Command.DEVICE_RESET)
    now = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now + 5_100_000_000)
    bench.port.resume()
    read = client.receive()
    assert (read.header.size, read.header.error) == (HEADER_BYTES, errno.ETIMEDOUT)
    reset = client.receive()
    assert (reset.header.command, reset.header.error) == (Command.DEVICE_RESET, 0)
    assert client.read(0, 0, 4) == bytes(4)


def test_listening_twice_is_refused_and_a_stale_socket_is_not(bench: Bench) -> None:
    with pytest.raises(UsageError, match="somebody does already"):
        open_listener(bench.path)
    bench.port.close()
    assert not bench.path.exists()
    stale = open_listener(bench.path)
    stale.close()
    assert bench.path.exists()
    assert bench.path.stat().st_mode & 0o077 == 0
    open_listener(bench.path).close()
    bench.path.unlink()
    bench.path.write_text("precious")
    with pytest.raises(UsageError, match="no socket"):
        open_listener(bench.path)
    with pytest.raises(UsageError, match="too long"):
        open_listener(bench.path.parent / ("x" * 200))


@given(st.binary(max_size=200), st.integers(0, 20), st.sampled_from([0, 1, 2, 0x10, 0x30]))
def test_any_payload_gets_a_reply_or_an_error(payload: bytes, command: int, flags: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory))
        try:
            bench.client.hello()
            bench.client.send(command, payload, flags=flags)
            if flags in (0, 2):
                assert bench.client.receive().header.command == command
            assert len(bench.client.read(7, 0, 64)) == 64
            assert bench.port.endpoint.stats.device_faults == 0
        finally:
            bench.close()


def test_header_size() -> None:
    assert HEADER_BYTES == 16
