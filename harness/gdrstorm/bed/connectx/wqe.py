"""Send and receive work requests: bytes of a ring to records. Pure; never touches memory.

Formats from include/linux/mlx5/qp.h (control, address, atomic, datagram, UMR and data segments).
A WQE that cannot be read raises BadWqe, which the QP turns into a local operation error.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gdrstorm.bed.connectx.prm import SEGMENT_BYTES, QpType, WqeOp

_CQ_UPDATE: Final = 0x08
_SOLICITED: Final = 0x02
_INLINE: Final = 0x80000000
_INLINE_MASK: Final = 0x3FF
_EXTENDED_AV: Final = 0x80000000
_TWO_GIB: Final = 1 << 31
_UMR_CTRL_BYTES: Final = 48
_MKEY_SEGMENT_BYTES: Final = 64
CTRL_BYTES: Final = 16
MAX_SEGMENTS: Final = 63


class BadWqe(Exception):
    """The work request makes no sense."""


@dataclass(frozen=True, slots=True)
class Ctrl:
    """Control segment. `imm` is immediate data, the key to invalidate or the key of a UMR."""

    opcode: int
    index: int
    qpn: int
    segments: int
    flags: int
    imm: int

    @property
    def signaled(self) -> bool:
        return bool(self.flags & _CQ_UPDATE)

    @property
    def solicited(self) -> bool:
        return bool(self.flags & _SOLICITED)


@dataclass(frozen=True, slots=True)
class Sge:
    """A data segment: a piece of registered memory."""

    size_bytes: int
    key: int
    address: int


@dataclass(frozen=True, slots=True)
class Remote:
    address: int
    key: int


@dataclass(frozen=True, slots=True)
class AtomicArgs:
    """Operands as numbers; for fetch-and-add `compare` is unused."""

    swap_add: int
    compare: int


@dataclass(frozen=True, slots=True)
class AddressVector:
    """Where a datagram goes: link-local and global addresses as the driver filled them."""

    qkey: int
    qpn: int
    service_level: int
    lid: int
    has_grh: bool
    mac: bytes
    traffic_class: int
    hop_limit: int
    gid_index: int
    flow_label: int
    gid: bytes


@dataclass(frozen=True, slots=True)
class UmrArgs:
    """UMR control and mkey segments; offset and size of the table part in bytes."""

    flags: int
    mkey_mask: int
    table_offset: int
    table_bytes: int
    mkey_context: bytes
    inline_table: bytes


@dataclass(frozen=True, slots=True)
class SendWqe:
    ctrl: Ctrl
    data: tuple[Sge | bytes, ...]
    remote: Remote | None = None
    atomic: AtomicArgs | None = None
    address: AddressVector | None = None
    xrc_srqn: int = 0
    umr: UmrArgs | None = None

    @property
    def size_bytes(self) -> int:
        return sum(len(d) if isinstance(d, bytes) else d.size_bytes for d in self.data)


def parse_ctrl(raw: bytes) -> Ctrl:
    """The first 16 bytes of a send WQE. Raises BadWqe when it has no size."""
    if len(raw) < CTRL_BYTES:
        raise BadWqe("WQE is shorter than its control segment")
    first, second, flags, imm = struct.unpack_from(">IIII", raw)
    segments = second & 0x3F
    if segments == 0:
        raise BadWqe("WQE without segments")
    return Ctrl(first & 0xFF, first >> 8 & 0xFFFF, second >> 8, segments, flags & 0xFF, imm)


def parse_send(raw: bytes, qp_type: int) -> SendWqe:
    """A whole send WQE of a QP of that type. Raises BadWqe."""
    ctrl = parse_ctrl(raw)
    end = ctrl.segments * SEGMENT_BYTES
    if end > len(raw):
        raise BadWqe("WQE is longer than its ring")
    if ctrl.opcode == WqeOp.NOP:
        return SendWqe(ctrl, ())
    if ctrl.opcode == WqeOp.UMR:
        umr, data = _parse_umr(raw, end)
        return SendWqe(ctrl, data, umr=umr)
    at = CTRL_BYTES
    xrc_srqn = 0
    address = None
    if qp_type == QpType.XRC:
        _need(at + 16, end)
        xrc_srqn = int.from_bytes(raw[at : at + 4], "big") & 0xFFFFFF
        at += 16
    elif qp_type in (QpType.UD, QpType.QP1, QpType.QP0):
        address, at = _parse_av(raw, at, end)
    remote = None
    atomic = None
    if ctrl.opcode in _REMOTE_OPS:
        _need(at + 16, end)
        remote = Remote(*struct.unpack_from(">QI", raw, at))
        at += 16
    if ctrl.opcode in _ATOMIC_OPS:
        _need(at + 16, end)
        atomic = AtomicArgs(*struct.unpack_from(">QQ", raw, at))
        at += 16
    return SendWqe(ctrl, _parse_data(raw, at, end), remote, atomic, address, xrc_srqn)


_REMOTE_OPS: Final = frozenset(
    {WqeOp.WRITE, WqeOp.WRITE_IMM, WqeOp.READ, WqeOp.COMPARE_SWAP, WqeOp.FETCH_ADD}
)
_ATOMIC_OPS: Final = frozenset({WqeOp.COMPARE_SWAP, WqeOp.FETCH_ADD})


def _need(at: int, end: int) -> None:
    if at > end:
        raise BadWqe("WQE ends inside a segment")


def _parse_av(raw: bytes, at: int, end: int) -> tuple[AddressVector, int]:
    """A datagram segment: 16 bytes, or 48 with a global address."""
    _need(at + 16, end)
    qkey, _, dqp, rate_sl, _, lid = struct.unpack_from(">IIIBBH", raw, at)
    size = 48 if dqp & _EXTENDED_AV else 16
    _need(at + size, end)
    mac, tclass, hops, grh, gid = b"", 0, 0, 0, bytes(16)
    if size == 48:
        mac = raw[at + 20 : at + 26]
        tclass, hops, grh = struct.unpack_from(">BBI", raw, at + 26)
        gid = raw[at + 32 : at + 48]
    vector = AddressVector(
        qkey=qkey,
        qpn=dqp & 0xFFFFFF,
        service_level=rate_sl & 0xF,
        lid=lid,
        has_grh=bool(grh & 1 << 30),
        mac=mac,
        traffic_class=tclass,
        hop_limit=hops,
        gid_index=grh >> 20 & 0xFF,
        flow_label=grh & 0xFFFFF,
        gid=gid,
    )
    return vector, at + size


def _parse_data(raw: bytes, at: int, end: int) -> tuple[Sge | bytes, ...]:
    """Data segments, inline or by key; at most 63, as a WQE has no more segments."""
    data: list[Sge | bytes] = []
    while at + SEGMENT_BYTES <= end:
        count, key, address = struct.unpack_from(">IIQ", raw, at)
        if count & _INLINE:
            size = count & _INLINE_MASK
            _need(at + 4 + size, end)
            data.append(raw[at + 4 : at + 4 + size])
            at += (4 + size + SEGMENT_BYTES - 1) & ~(SEGMENT_BYTES - 1)
        else:
            # A zero length means 2 GiB.
            data.append(Sge(count or _TWO_GIB, key, address))
            at += SEGMENT_BYTES
    return tuple(data)


def _parse_umr(raw: bytes, end: int) -> tuple[UmrArgs, tuple[Sge | bytes, ...]]:
    at = CTRL_BYTES
    _need(at + _UMR_CTRL_BYTES + _MKEY_SEGMENT_BYTES, end)
    flags = raw[at]
    octowords, low, mask, high = struct.unpack_from(">HHQI", raw, at + 4)
    context = raw[at + _UMR_CTRL_BYTES : at + _UMR_CTRL_BYTES + _MKEY_SEGMENT_BYTES]
    at += _UMR_CTRL_BYTES + _MKEY_SEGMENT_BYTES
    offset = (high << 16 | low) * SEGMENT_BYTES if flags & 0x10 else 0
    size = octowords * SEGMENT_BYTES
    inline = b""
    data: tuple[Sge | bytes, ...] = ()
    if flags & 0x80:
        # Inline KLMs of a memory window fill a basic block; only what the WQE holds counts.
        inline = raw[at : min(at + size, end)]
    else:
        data = _parse_data(raw, at, end)
    return UmrArgs(flags, mask, offset, size, context, inline), data


def window(data: tuple[Sge | bytes, ...], start: int, size: int) -> Iterator[Sge | bytes]:
    """The parts of a data list that hold `size` bytes from `start`."""
    for piece in data:
        length = len(piece) if isinstance(piece, bytes) else piece.size_bytes
        if start >= length:
            start -= length
            continue
        take = min(length - start, size)
        if isinstance(piece, bytes):
            yield piece[start : start + take]
        else:
            yield Sge(take, piece.key, piece.address + start)
        size -= take
        start = 0
        if size == 0:
            return


def parse_receive(raw: bytes, terminate_lkey: int) -> tuple[Sge, ...]:
    """Scatter list of a receive WQE, up to the terminating entry."""
    sges = []
    for at in range(0, len(raw) - SEGMENT_BYTES + 1, SEGMENT_BYTES):
        count, key, address = struct.unpack_from(">IIQ", raw, at)
        if count == 0 and key == terminate_lkey:
            break
        sges.append(Sge(count & 0x7FFFFFFF or _TWO_GIB, key, address))
    return tuple(sges)
