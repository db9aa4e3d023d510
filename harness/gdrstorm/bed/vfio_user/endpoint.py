"""One device behind the protocol: vfio-user frames to calls on a PciDevice, and replies.

No socket I/O here. Whatever a client sends gets its reply or an error reply, and a device that
raises is recorded in the statistics and answered with EIO: neither ends the server.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gdrstorm.bed.vfio_user import protocol
from gdrstorm.bed.vfio_user.device import (
    CONFIG_REGION,
    REGION_COUNT,
    DmaError,
    MappableRegions,
    PciDevice,
    RegionFlag,
    Timer,
)
from gdrstorm.bed.vfio_user.dma import ADDRESS_END, DmaTable
from gdrstorm.bed.vfio_user.framing import Frame
from gdrstorm.bed.vfio_user.irq import IrqTable
from gdrstorm.bed.vfio_user.loop import EventLoop
from gdrstorm.bed.vfio_user.protocol import (
    Command,
    DeviceFlag,
    MmapArea,
    ProtocolError,
    RegionAccess,
    RegionInfo,
)

_log = logging.getLogger(__name__)

# What needs live migration, and what only a server may ask for.
_UNSUPPORTED: Final = frozenset(
    {
        Command.DMA_READ,
        Command.DMA_WRITE,
        Command.DIRTY_PAGES,
        Command.DEVICE_FEATURE,
        Command.MIG_DATA_READ,
        Command.MIG_DATA_WRITE,
    }
)


@dataclass(slots=True)
class EndpointStats:
    """Counters since the start. ``device_faults`` are exceptions out of the device model."""

    messages: int = 0
    error_replies: int = 0
    last_error: str = ""
    device_faults: int = 0
    last_device_fault: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole message to send; ``fds`` stay the device's."""

    data: bytes
    fds: tuple[int, ...] = ()


@dataclass(slots=True)
class Gate:
    """While ``closed``, timers of the device are held back instead of run."""

    closed: bool = False
    held: list[Callable[[], None]] = field(default_factory=list)


class Context:
    """The DeviceContext of one device; the hot calls are the tables' own methods."""

    def __init__(self, loop: EventLoop, dma: DmaTable, irqs: IrqTable, gate: Gate) -> None:
        self.read_dma = dma.read
        self.write_dma = dma.write
        self.dma_view = dma.view
        self.raise_irq = irqs.raise_irq
        self.now_ns = time.monotonic_ns
        self.guard: Callable[[Callable[[], None]], None] = lambda call: call()
        self._loop = loop
        self._gate = gate

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> Timer:
        return _DeviceTimer(self, delay_s, fn)

    def start(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_s, callback)

    def hold(self, callback: Callable[[], None]) -> bool:
        """Keep a due callback for later when the gate is closed."""
        if self._gate.closed:
            self._gate.held.append(callback)
        return self._gate.closed


class _DeviceTimer:
    """A timer that stays cancellable while a closed gate holds it."""

    __slots__ = ("_context", "_fn", "_timer")

    def __init__(self, context: Context, delay_s: float, fn: Callable[[], None]) -> None:
        self._context = context
        self._fn: Callable[[], None] | None = fn
        self._timer = context.start(delay_s, self._due)

    def _due(self) -> None:
        if self._fn is None or self._context.hold(self._due):
            return
        fn, self._fn = self._fn, None
        self._context.guard(fn)

    def cancel(self) -> None:
        self._fn = None
        self._timer.cancel()


class Endpoint:
    """Protocol state of one device; serves one client after the other."""

    def __init__(self, device: PciDevice, loop: EventLoop) -> None:
        self.device = device
        self.dma = DmaTable()
        self.irqs = IrqTable(device.msix_vectors)
        self.stats = EndpointStats()
        self.gate = Gate()
        self.negotiated = False
        self._regions = {region.index: region for region in device.regions}
        self._handlers: dict[int, Callable[[Frame], bytes | Reply]] = {
            Command.VERSION: self._version,
            Command.DMA_MAP: self._dma_map,
            Command.DMA_UNMAP: self._dma_unmap,
            Command.DEVICE_GET_INFO: self._device_info,
            Command.DEVICE_GET_REGION_INFO: self._region_info,
            Command.DEVICE_GET_REGION_IO_FDS: self._region_io_fds,
            Command.DEVICE_GET_IRQ_INFO: self._irq_info,
            Command.DEVICE_SET_IRQS: self._set_irqs,
            Command.REGION_READ: self._region_read,
            Command.REGION_WRITE: self._region_write,
            Command.REGION_WRITE_MULTI: self._region_write_multi,
            Command.DEVICE_RESET: self._reset,
        }
        context = Context(loop, self.dma, self.irqs, self.gate)
        context.guard = self._guard
        device.attach(context)

    def handle(self, frame: Frame) -> Reply | None:
        """Carry out one message. None: the client wants no answer. Leaves unused fds in frame."""
        self.stats.messages += 1
        header = frame.header
        try:
            result = self._dispatch(frame)
        except ProtocolError as error:
            return self._refuse(frame, error.errno, str(error))
        except DmaError as error:
            return self._refuse(frame, errno.EFAULT, str(error))
        except Exception as error:  # a bug of the model must not kill the machine
            self._record_fault(error)
            return self._refuse(frame, errno.EIO, f"device fault: {error!r}")
        if not header.wants_reply:
            return None
        if isinstance(result, Reply):
            return Reply(protocol.build_reply(header, result.data), result.fds)
        return Reply(protocol.build_reply(header, result))

    def _dispatch(self, frame: Frame) -> bytes | Reply:
        header = frame.header
        if header.is_reply:
            raise ProtocolError(errno.EINVAL, "a reply to nothing")
        handler = self._handlers.get(header.command)
        if handler is None:
            known = header.command in _UNSUPPORTED
            code = errno.EOPNOTSUPP if known else errno.ENOSYS
            raise ProtocolError(code, f"command {header.command}")
        if self.negotiated is (header.command == Command.VERSION):
            raise ProtocolError(errno.EINVAL, f"command {header.command} out of order")
        return handler(frame)

    def _refuse(self, frame: Frame, errno_: int, why: str) -> Reply | None:
        self.stats.error_replies += 1
        self.stats.last_error = why
        _log.warning("%s", why)
        header = frame.header
        if header.is_reply or not header.wants_reply:
            return None
        return Reply(protocol.build_error(header, errno_))

    def _record_fault(self, error: Exception) -> None:
        self.stats.device_faults += 1
        self.stats.last_device_fault = repr(error)
        _log.error("device fault", exc_info=error)

    def _guard(self, call: Callable[[], None]) -> None:
        """Run a callback of the device that answers no message."""
        try:
            call()
        except Exception as error:  # as in handle
            self._record_fault(error)

    def client_gone(self) -> None:
        """Take memory and interrupts back; the device keeps its state until ``client_came``."""
        self.irqs.clear()
        for mapping in self.dma.clear():
            self._guard(partial(self.device.dma_unmapped, mapping.iova, mapping.size))
        self.negotiated = False

    def client_came(self) -> None:
        """A new machine is powered on."""
        self._guard(self.device.reset)

    def _version(self, frame: Frame) -> bytes:
        reply = protocol.negotiate(protocol.parse_version(frame.payload))
        self.negotiated = True
        return protocol.build_version(reply)

    def _dma_map(self, frame: Frame) -> bytes:
        request = protocol.parse_dma_map(frame.payload)
        if len(frame.fds) > 1:
            raise ProtocolError(errno.EINVAL, f"DMA_MAP: {len(frame.fds)} descriptors")
        fd = frame.fds[0] if frame.fds else None
        self.dma.map(request.iova, request.size, request.flags, fd, request.offset)
        self._guard(partial(self.device.dma_mapped, request.iova, request.size))
        return b""

    def _dma_unmap(self, frame: Frame) -> bytes:
        request = protocol.parse_dma_unmap(frame.payload)
        everything = bool(request.flags & protocol.UNMAP_FLAG_ALL)
        iova, size = (0, ADDRESS_END) if everything else (request.iova, request.size)
        for mapping in self.dma.unmap(iova, size):
            self._guard(partial(self.device.dma_unmapped, mapping.iova, mapping.size))
        return protocol.build_dma_unmap(request)

    def _device_info(self, frame: Frame) -> bytes:
        protocol.check_device_info(frame.payload)
        flags = DeviceFlag.RESET | DeviceFlag.PCI
        return protocol.build_device_info(flags, REGION_COUNT, protocol.IRQ_INDEX_COUNT)

    def _region_info(self, frame: Frame) -> Reply:
        query = protocol.parse_region_query(frame.payload)
        if query.index >= REGION_COUNT:
            raise ProtocolError(errno.EINVAL, f"region {query.index}")
        region = self._regions.get(query.index)
        if region is None:
            return Reply(protocol.build_region_info(RegionInfo(query.index, 0, 0), query.argsz))
        info = RegionInfo(region.index, region.size_bytes, region.flags & ~RegionFlag.MMAP)
        if not region.flags & RegionFlag.MMAP or not isinstance(self.device, MappableRegions):
            return Reply(protocol.build_region_info(info, query.argsz))
        backing = self.device.region_mmap(region.index)
        areas = tuple(MmapArea(offset, size) for offset, size in backing.areas)
        info = RegionInfo(info.index, info.size, region.flags, backing.offset, areas)
        return Reply(protocol.build_region_info(info, query.argsz), (backing.fd,))

    def _region_io_fds(self, frame: Frame) -> bytes:
        query = protocol.parse_io_fds_query(frame.payload)
        if query.index not in self._regions:
            raise ProtocolError(errno.EINVAL, f"region {query.index}")
        return protocol.build_io_fds(query.index)

    def _irq_info(self, frame: Frame) -> bytes:
        index = protocol.parse_irq_query(frame.payload).index
        count = self.irqs.count(index)
        return protocol.build_irq_info(index, self.irqs.info_flags(index), count)

    def _set_irqs(self, frame: Frame) -> bytes:
        self.irqs.set(protocol.parse_irq_set(frame.payload), frame.fds)
        return b""

    def _check_access(self, access: RegionAccess, need: int) -> None:
        region = self._regions.get(access.region)
        if region is None or access.offset + access.count > region.size_bytes:
            where = f"{access.offset:#x}+{access.count:#x} of region {access.region}"
            raise ProtocolError(errno.EINVAL, f"access outside: {where}")
        if not region.flags & need:
            raise ProtocolError(errno.EPERM, f"region {access.region} refuses this access")

    def _region_read(self, frame: Frame) -> bytes:
        access = protocol.parse_region_read(frame.payload)
        self._check_access(access, RegionFlag.READ)
        offset, index, count = access.offset, access.region, access.count
        if index == CONFIG_REGION:
            data = self.device.config_read(offset, count)
        else:
            data = self.device.region_read(index, offset, count)
        if len(data) != count:
            raise RuntimeError(f"device gave {len(data)} bytes of {count} at {offset:#x}")
        return protocol.build_access(RegionAccess(offset, index, count, data))

    def _region_write(self, frame: Frame) -> bytes:
        access = protocol.parse_region_write(frame.payload)
        self._write(access)
        return protocol.build_access(RegionAccess(access.offset, access.region, access.count))

    def _region_write_multi(self, frame: Frame) -> bytes:
        for access in protocol.parse_write_multi(frame.payload):
            self._write(access)
        return b""

    def _write(self, access: RegionAccess) -> None:
        self._check_access(access, RegionFlag.WRITE)
        if access.region == CONFIG_REGION:
            self.device.config_write(access.offset, access.data)
        else:
            self.device.region_write(access.region, access.offset, access.data)

    def _reset(self, _frame: Frame) -> bytes:
        self.device.reset()
        return b""
