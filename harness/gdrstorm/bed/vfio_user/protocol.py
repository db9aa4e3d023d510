"""vfio-user frames: bytes to typed records and back, without any I/O.

The format comes from QEMU's ``docs/interop/vfio-user.rst`` and, for the structures that it takes
from the kernel, ``include/uapi/linux/vfio.h``. All integers are in host byte order. A parser
raises :class:`ProtocolError` with the errno that belongs into the reply; it never guesses.
"""

from __future__ import annotations

import enum
import errno
import struct
from typing import Final

import msgspec

from gdrstorm.errors import GdrstormError, errno_name


class Command(enum.IntEnum):
    """VFIO_USER_* command numbers."""

    VERSION = 1
    DMA_MAP = 2
    DMA_UNMAP = 3
    DEVICE_GET_INFO = 4
    DEVICE_GET_REGION_INFO = 5
    DEVICE_GET_REGION_IO_FDS = 6
    DEVICE_GET_IRQ_INFO = 7
    DEVICE_SET_IRQS = 8
    REGION_READ = 9
    REGION_WRITE = 10
    DMA_READ = 11
    DMA_WRITE = 12
    DEVICE_RESET = 13
    DIRTY_PAGES = 14
    REGION_WRITE_MULTI = 15
    DEVICE_FEATURE = 16
    MIG_DATA_READ = 17
    MIG_DATA_WRITE = 18


class DeviceFlag(enum.IntFlag):
    """VFIO_DEVICE_FLAGS_*."""

    RESET = 1
    PCI = 2


class DmaFlag(enum.IntEnum):
    """VFIO_DMA_MAP_FLAG_*. Bits of an int: IntFlag's operators are slow."""

    READ = 1
    WRITE = 2


class IrqIndex(enum.IntEnum):
    """VFIO_PCI_*_IRQ_INDEX."""

    INTX = 0
    MSI = 1
    MSIX = 2
    ERR = 3
    REQ = 4


IRQ_INDEX_COUNT: Final = len(IrqIndex)


class IrqInfoFlag(enum.IntFlag):
    """VFIO_IRQ_INFO_*."""

    EVENTFD = 1
    MASKABLE = 2
    AUTOMASKED = 4
    NORESIZE = 8


class IrqSetFlag(enum.IntFlag):
    """VFIO_IRQ_SET_*: one DATA flag and one ACTION flag."""

    DATA_NONE = 1
    DATA_BOOL = 2
    DATA_EVENTFD = 4
    ACTION_MASK = 8
    ACTION_UNMASK = 16
    ACTION_TRIGGER = 32


VERSION_MAJOR: Final = 0
VERSION_MINOR: Final = 0
UNMAP_FLAG_ALL: Final = 2  # VFIO_DMA_UNMAP_FLAG_ALL
SPARSE_MMAP_CAP: Final = 1  # VFIO_REGION_INFO_CAP_SPARSE_MMAP
TYPE_MASK: Final = 0xF
TYPE_REPLY: Final = 0x1
FLAG_NO_REPLY: Final = 0x10
FLAG_ERROR: Final = 0x20

MAX_TRANSFER_BYTES: Final = 1 << 20
MAX_DMA_MAPS: Final = 65535
MAX_MESSAGE_FDS: Final = 16  # what QEMU's channel sends in one message at most
PAGE_SIZES: Final = 4096

HEADER: Final = struct.Struct("=HHIII")
_VERSION: Final = struct.Struct("=HH")
_DMA_MAP: Final = struct.Struct("=IIQQQ")
_DMA_UNMAP: Final = struct.Struct("=IIQQ")
_DEVICE_INFO: Final = struct.Struct("=IIII")
_REGION_INFO: Final = struct.Struct("=IIIIQQ")
_SPARSE_CAP: Final = struct.Struct("=HHIII")
_SPARSE_AREA: Final = struct.Struct("=QQ")
_IO_FDS: Final = struct.Struct("=IIII")
_IRQ_INFO: Final = struct.Struct("=IIII")
_IRQ_SET: Final = struct.Struct("=IIIII")
_ACCESS: Final = struct.Struct("=QII")
_WRITE_COUNT: Final = struct.Struct("=Q")
_WRITE_ONE: Final = struct.Struct("=QII8s")
MAX_MULTI_WRITES: Final = 200  # VFIO_USER_MULTI_MAX

HEADER_BYTES: Final = HEADER.size
# The largest legal message is a region write of MAX_TRANSFER_BYTES.
MAX_MESSAGE_BYTES: Final = HEADER.size + _ACCESS.size + MAX_TRANSFER_BYTES


class ProtocolError(GdrstormError):
    """A frame that must be answered with ``errno``."""

    def __init__(self, errno_: int, what: str) -> None:
        super().__init__(f"bad vfio-user message: {what}: {errno_name(errno_)}")
        self.errno = errno_


class Header(msgspec.Struct, frozen=True, gc=False):
    """The 16 bytes before every payload; ``size`` counts them too."""

    message_id: int
    command: int
    size: int
    flags: int
    error: int

    @property
    def is_reply(self) -> bool:
        return self.flags & TYPE_MASK == TYPE_REPLY

    @property
    def wants_reply(self) -> bool:
        return not self.flags & FLAG_NO_REPLY


class Capabilities(msgspec.Struct, frozen=True, omit_defaults=True):
    """Version capabilities; None means the peer did not name it."""

    max_msg_fds: int | None = None
    max_data_xfer_size: int | None = None
    max_dma_maps: int | None = None
    pgsizes: int | None = None
    write_multiple: bool | None = None


class _VersionData(msgspec.Struct, frozen=True, omit_defaults=True):
    capabilities: Capabilities = Capabilities()


class Version(msgspec.Struct, frozen=True):
    """VFIO_USER_VERSION; ``capabilities`` is None when no version data came along."""

    major: int
    minor: int
    capabilities: Capabilities | None


class DmaMap(msgspec.Struct, frozen=True, gc=False):
    flags: int
    offset: int
    iova: int
    size: int


class DmaUnmap(msgspec.Struct, frozen=True, gc=False):
    flags: int
    iova: int
    size: int


class InfoQuery(msgspec.Struct, frozen=True, gc=False):
    """A question about one region or interrupt; ``argsz`` is the room for the answer."""

    argsz: int
    index: int


class IrqSet(msgspec.Struct, frozen=True):
    flags: IrqSetFlag
    index: int
    start: int
    count: int
    data: bytes


class RegionAccess(msgspec.Struct, frozen=True, gc=False):
    """A region read (``data`` empty) or write."""

    offset: int
    region: int
    count: int
    data: bytes = b""


class MmapArea(msgspec.Struct, frozen=True, gc=False):
    """A part of a region that the client may map."""

    offset: int
    size: int


class RegionInfo(msgspec.Struct, frozen=True):
    """``offset`` is the mmap offset of the region in its descriptor, ``areas`` its sparse map."""

    index: int
    size: int
    flags: int
    offset: int = 0
    areas: tuple[MmapArea, ...] = ()


def _need(payload: bytes, size: int, what: str) -> None:
    if len(payload) < size:
        raise ProtocolError(errno.EINVAL, f"{what}: {len(payload)} bytes, need {size}")


def parse_header(data: bytes, offset: int = 0) -> Header:
    return Header(*HEADER.unpack_from(data, offset))


def parse_version(payload: bytes) -> Version:
    _need(payload, _VERSION.size, "VERSION")
    major, minor = _VERSION.unpack_from(payload)
    text = payload[_VERSION.size :]
    if not text:
        return Version(major, minor, None)
    if not text.endswith(b"\0"):
        raise ProtocolError(errno.EINVAL, "VERSION: data not terminated")
    try:
        data = msgspec.json.decode(text[:-1], type=_VersionData)
    except msgspec.DecodeError as error:
        raise ProtocolError(errno.EINVAL, f"VERSION: {error}") from error
    return Version(major, minor, data.capabilities)


def negotiate(request: Version) -> Version:
    """The reply to a proposal: the same major, and of its capabilities what this server does."""
    if request.major != VERSION_MAJOR:
        raise ProtocolError(errno.EINVAL, f"VERSION: major {request.major}, need {VERSION_MAJOR}")
    minor = min(request.minor, VERSION_MINOR)
    theirs = request.capabilities
    if theirs is None:
        return Version(VERSION_MAJOR, minor, None)
    pgsizes = None if theirs.pgsizes is None else theirs.pgsizes & PAGE_SIZES
    if pgsizes == 0:
        raise ProtocolError(errno.EINVAL, f"VERSION: pgsizes {theirs.pgsizes:#x} without 4 KiB")
    ours = Capabilities(
        # Not a minimum: each side says how many it can receive.
        max_msg_fds=None if theirs.max_msg_fds is None else MAX_MESSAGE_FDS,
        max_data_xfer_size=_lower(theirs.max_data_xfer_size, MAX_TRANSFER_BYTES),
        max_dma_maps=_lower(theirs.max_dma_maps, MAX_DMA_MAPS),
        pgsizes=pgsizes,
        write_multiple=theirs.write_multiple,
    )
    return Version(VERSION_MAJOR, minor, ours)


def _lower(theirs: int | None, ours: int) -> int | None:
    if theirs is not None and theirs < 1:
        raise ProtocolError(errno.EINVAL, f"VERSION: limit {theirs} is not positive")
    return None if theirs is None else min(theirs, ours)


def build_version(version: Version) -> bytes:
    head = _VERSION.pack(version.major, version.minor)
    if version.capabilities is None:
        return head
    return head + msgspec.json.encode(_VersionData(version.capabilities)) + b"\0"


def parse_dma_map(payload: bytes) -> DmaMap:
    _need(payload, _DMA_MAP.size, "DMA_MAP")
    _argsz, flags, offset, iova, size = _DMA_MAP.unpack_from(payload)
    return DmaMap(flags, offset, iova, size)


def build_dma_map(request: DmaMap) -> bytes:
    return _DMA_MAP.pack(_DMA_MAP.size, request.flags, request.offset, request.iova, request.size)


def parse_dma_unmap(payload: bytes) -> DmaUnmap:
    _need(payload, _DMA_UNMAP.size, "DMA_UNMAP")
    _argsz, flags, iova, size = _DMA_UNMAP.unpack_from(payload)
    return DmaUnmap(flags, iova, size)


def build_dma_unmap(request: DmaUnmap) -> bytes:
    return _DMA_UNMAP.pack(_DMA_UNMAP.size, request.flags, request.iova, request.size)


def build_device_info(flags: int, region_count: int, irq_count: int) -> bytes:
    return _DEVICE_INFO.pack(_DEVICE_INFO.size, flags, region_count, irq_count)


def check_device_info(payload: bytes) -> None:
    _need(payload, _DEVICE_INFO.size, "DEVICE_GET_INFO")
    if _DEVICE_INFO.unpack_from(payload)[0] < _DEVICE_INFO.size:
        raise ProtocolError(errno.EINVAL, "DEVICE_GET_INFO: argsz below 16")


def parse_region_query(payload: bytes) -> InfoQuery:
    _need(payload, _REGION_INFO.size, "DEVICE_GET_REGION_INFO")
    argsz, _flags, index, _cap, _size, _offset = _REGION_INFO.unpack_from(payload)
    if argsz < _REGION_INFO.size:
        raise ProtocolError(errno.EINVAL, f"DEVICE_GET_REGION_INFO: argsz {argsz} below 32")
    return InfoQuery(argsz, index)


def build_region_info(info: RegionInfo, argsz: int) -> bytes:
    """The reply; capabilities are left out when ``argsz`` has no room, then argsz says how much."""
    caps = _sparse_cap(info.areas) if info.areas else b""
    needed = _REGION_INFO.size + len(caps)
    # QEMU refuses CAPS without an offset, even where it is about to ask again with more room.
    cap_offset = _REGION_INFO.size if caps else 0
    flags = info.flags | (8 if caps else 0)  # VFIO_REGION_INFO_FLAG_CAPS
    head = _REGION_INFO.pack(needed, flags, info.index, cap_offset, info.size, info.offset)
    return head + caps if needed <= argsz else head


def _sparse_cap(areas: tuple[MmapArea, ...]) -> bytes:
    head = _SPARSE_CAP.pack(SPARSE_MMAP_CAP, 1, 0, len(areas), 0)
    return head + b"".join(_SPARSE_AREA.pack(area.offset, area.size) for area in areas)


def parse_region_info(payload: bytes) -> RegionInfo:
    """The client's view of :func:`build_region_info`, sparse areas included."""
    _need(payload, _REGION_INFO.size, "DEVICE_GET_REGION_INFO reply")
    _argsz, flags, index, cap_offset, size, offset = _REGION_INFO.unpack_from(payload)
    areas: list[MmapArea] = []
    if cap_offset and len(payload) > cap_offset:
        _id, _version, _next, count, _pad = _SPARSE_CAP.unpack_from(payload, cap_offset)
        first = cap_offset + _SPARSE_CAP.size
        for number in range(count):
            where = first + number * _SPARSE_AREA.size
            areas.append(MmapArea(*_SPARSE_AREA.unpack_from(payload, where)))
    return RegionInfo(index, size, flags, offset, tuple(areas))


def parse_io_fds_query(payload: bytes) -> InfoQuery:
    _need(payload, _IO_FDS.size, "DEVICE_GET_REGION_IO_FDS")
    argsz, flags, index, _count = _IO_FDS.unpack_from(payload)
    if flags or argsz < _IO_FDS.size:
        raise ProtocolError(errno.EINVAL, "DEVICE_GET_REGION_IO_FDS: flags or argsz")
    return InfoQuery(argsz, index)


def build_io_fds(index: int) -> bytes:
    """No sub-region of any region is served by a descriptor: the count is 0."""
    return _IO_FDS.pack(_IO_FDS.size, 0, index, 0)


def parse_irq_query(payload: bytes) -> InfoQuery:
    _need(payload, _IRQ_INFO.size, "DEVICE_GET_IRQ_INFO")
    argsz, _flags, index, _count = _IRQ_INFO.unpack_from(payload)
    if argsz < _IRQ_INFO.size:
        raise ProtocolError(errno.EINVAL, f"DEVICE_GET_IRQ_INFO: argsz {argsz} below 16")
    return InfoQuery(argsz, index)


def build_irq_info(index: int, flags: int, count: int) -> bytes:
    return _IRQ_INFO.pack(_IRQ_INFO.size, flags, index, count)


def parse_irq_set(payload: bytes) -> IrqSet:
    _need(payload, _IRQ_SET.size, "DEVICE_SET_IRQS")
    argsz, flags, index, start, count = _IRQ_SET.unpack_from(payload)
    if argsz < _IRQ_SET.size:
        raise ProtocolError(errno.EINVAL, f"DEVICE_SET_IRQS: argsz {argsz} below 20")
    data = flags & 7
    action = flags & 56
    if flags & ~63 or data not in (1, 2, 4) or action not in (8, 16, 32):
        raise ProtocolError(errno.EINVAL, f"DEVICE_SET_IRQS: flags {flags:#x}")
    body = payload[_IRQ_SET.size :]
    if data == IrqSetFlag.DATA_BOOL and len(body) < count:
        raise ProtocolError(errno.EINVAL, f"DEVICE_SET_IRQS: {len(body)} booleans of {count}")
    return IrqSet(IrqSetFlag(flags), index, start, count, body)


def build_irq_set(request: IrqSet) -> bytes:
    size = _IRQ_SET.size + len(request.data)
    head = _IRQ_SET.pack(size, request.flags, request.index, request.start, request.count)
    return head + request.data


def parse_region_read(payload: bytes) -> RegionAccess:
    _need(payload, _ACCESS.size, "REGION_READ")
    offset, region, count = _ACCESS.unpack_from(payload)
    if count > MAX_TRANSFER_BYTES:
        raise ProtocolError(errno.EINVAL, f"REGION_READ: count {count}")
    return RegionAccess(offset, region, count)


def parse_region_write(payload: bytes) -> RegionAccess:
    _need(payload, _ACCESS.size, "REGION_WRITE")
    offset, region, count = _ACCESS.unpack_from(payload)
    data = payload[_ACCESS.size :]
    if len(data) != count:
        raise ProtocolError(errno.EINVAL, f"REGION_WRITE: count {count} with {len(data)} bytes")
    return RegionAccess(offset, region, count, data)


def build_access(access: RegionAccess) -> bytes:
    """Request or reply of REGION_READ and REGION_WRITE: the triple, then the data if any."""
    return _ACCESS.pack(access.offset, access.region, access.count) + access.data


def parse_write_multi(payload: bytes) -> list[RegionAccess]:
    _need(payload, _WRITE_COUNT.size, "REGION_WRITE_MULTI")
    (count,) = _WRITE_COUNT.unpack_from(payload)
    if count > MAX_MULTI_WRITES:
        raise ProtocolError(errno.EINVAL, f"REGION_WRITE_MULTI: {count} writes")
    _need(payload, _WRITE_COUNT.size + count * _WRITE_ONE.size, "REGION_WRITE_MULTI")
    writes: list[RegionAccess] = []
    for number in range(count):
        where = _WRITE_COUNT.size + number * _WRITE_ONE.size
        offset, region, size, data = _WRITE_ONE.unpack_from(payload, where)
        if size > 8:
            raise ProtocolError(errno.EINVAL, f"REGION_WRITE_MULTI: write of {size} bytes")
        writes.append(RegionAccess(offset, region, size, data[:size]))
    return writes


def build_write_multi(writes: list[RegionAccess]) -> bytes:
    body = [_WRITE_COUNT.pack(len(writes))]
    body += [_WRITE_ONE.pack(one.offset, one.region, one.count, one.data) for one in writes]
    return b"".join(body)


def build_request(message_id: int, command: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return HEADER.pack(message_id, command, HEADER.size + len(payload), flags, 0) + payload


def build_reply(request: Header, payload: bytes = b"") -> bytes:
    size = HEADER.size + len(payload)
    return HEADER.pack(request.message_id, request.command, size, TYPE_REPLY, 0) + payload


def build_error(request: Header, errno_: int) -> bytes:
    """An error reply is the header alone."""
    flags = TYPE_REPLY | FLAG_ERROR
    return HEADER.pack(request.message_id, request.command, HEADER.size, flags, errno_)
