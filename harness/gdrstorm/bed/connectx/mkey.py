"""Memory keys: what a key allows, and how an address behind it becomes guest addresses.

Translation is pure on the state of the keys; it never touches guest memory. An access that a key
refuses raises Refused, which says whether the driver could repair it (a missing page).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from gdrstorm.bed.connectx.fields import Buffer
from gdrstorm.bed.connectx.layouts import MkcLayout
from gdrstorm.bed.connectx.oracle import RefusalKind
from gdrstorm.bed.connectx.prm import (
    ANY_PD,
    NO_BOUND_QP,
    PAGE_SHIFT,
    Access,
    AccessMode,
    MkeyMask,
)

OCTOWORD_BYTES: Final = 16
MTT_BYTES: Final = 8
KLM_BYTES: Final = 16
MTT_READ: Final = 1
MTT_WRITE: Final = 2
MTT_ADDRESS: Final = ~0xFFF & (1 << 64) - 1
MAX_INDIRECTION: Final = 4
MAX_TRANSLATION_BYTES: Final = 1 << 28
_WRITES: Final = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.ATOMIC


class Refused(Exception):
    """The key does not allow this access. `page_missing`: the driver may map it and retry."""

    def __init__(self, kind: RefusalKind, key: int, address: int, size: int) -> None:
        super().__init__(f"mkey {key:#x} refuses {size} bytes at {address:#x}: {kind.value}")
        self.kind = kind
        self.key = key
        self.address = address
        self.size = size

    @property
    def page_missing(self) -> bool:
        return self.kind is RefusalKind.NOT_PRESENT


@dataclass(frozen=True, slots=True)
class Span:
    """A contiguous guest range."""

    iova: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Accessor:
    """Who asks: the protection domain and number of the QP. ANY_PD skips the PD check."""

    pd: int
    qpn: int
    reserved_lkey: bool = False


class Mkey:
    """One memory key. `translations` holds MTTs or KLMs as the driver wrote them, big-endian."""

    __slots__ = (
        "access",
        "bound_qpn",
        "context",
        "free",
        "index",
        "is_unbounded",
        "length",
        "mode",
        "page_shift",
        "pd",
        "remote_invalidate",
        "start",
        "translation_limit",
        "translations",
        "variant",
    )

    def __init__(self, index: int, context: Buffer, translation_octowords: int) -> None:
        self.index = index
        self.context = bytes(context)
        self.free = bool(MkcLayout.free.get(context))
        self.mode = MkcLayout.access_mode_4_2.get(context) << 2 | MkcLayout.access_mode_1_0.get(
            context
        )
        self.access = access_of(context)
        self.bound_qpn = MkcLayout.qpn.get(context)
        self.variant = MkcLayout.mkey_7_0.get(context)
        self.is_unbounded = bool(MkcLayout.length64.get(context))
        self.pd = MkcLayout.pd.get(context)
        self.start = MkcLayout.start_addr.get(context)
        self.length = MkcLayout.len.get(context)
        self.page_shift = MkcLayout.log_page_size.get(context)
        self.remote_invalidate = bool(MkcLayout.en_rinval.get(context))
        # UMR writes units of 64 bytes, so a table of one MTT has room for eight.
        limit = (translation_octowords * OCTOWORD_BYTES + 63) & ~63
        self.translation_limit = min(limit, MAX_TRANSLATION_BYTES)
        self.translations = bytearray()

    @property
    def key(self) -> int:
        return self.index << 8 | self.variant

    def write_translations(self, offset: int, data: Buffer) -> bool:
        """Store part of the table; False when it does not fit."""
        end = offset + len(data)
        if end > self.translation_limit:
            return False
        if end > len(self.translations):
            self.translations.extend(bytes(end - len(self.translations)))
        self.translations[offset:end] = data
        return True

    def update(self, mask: int, context: Buffer) -> None:
        """Change the fields that a UMR's mask names."""
        if mask & MkeyMask.LENGTH:
            self.length = MkcLayout.len.get(context)
            self.is_unbounded = bool(MkcLayout.length64.get(context))
        if mask & MkeyMask.PAGE_SIZE:
            self.page_shift = MkcLayout.log_page_size.get(context)
        if mask & MkeyMask.START:
            self.start = MkcLayout.start_addr.get(context)
        if mask & MkeyMask.PD:
            self.pd = MkcLayout.pd.get(context)
        if mask & MkeyMask.REMOTE_INVALIDATE:
            self.remote_invalidate = bool(MkcLayout.en_rinval.get(context))
        if mask & MkeyMask.KEY:
            self.variant = MkcLayout.mkey_7_0.get(context)
        if mask & (MkeyMask.QPN | MkeyMask.KEY | MkeyMask.PD):
            self.bound_qpn = MkcLayout.qpn.get(context)
        if mask & _ACCESS_MASK:
            self._update_access(mask, context)
        if mask & MkeyMask.FREE:
            self.free = bool(MkcLayout.free.get(context))

    def _update_access(self, mask: int, context: Buffer) -> None:
        wanted = access_of(context)
        for bit, permission in _MASK_BITS:
            if mask & bit:
                self.access = self.access & ~permission | wanted & permission

    def full_context(self) -> bytearray:
        """The context as QUERY_MKEY shows it."""
        context = bytearray(self.context)
        MkcLayout.free.put(context, self.free)
        MkcLayout.qpn.put(context, self.bound_qpn)
        MkcLayout.mkey_7_0.put(context, self.variant)
        MkcLayout.pd.put(context, self.pd)
        MkcLayout.start_addr.put(context, self.start)
        MkcLayout.len.put(context, self.length)
        MkcLayout.log_page_size.put(context, self.page_shift)
        return context


_MASK_BITS: Final = (
    (MkeyMask.LOCAL_READ, Access.LOCAL_READ),
    (MkeyMask.LOCAL_WRITE, Access.LOCAL_WRITE),
    (MkeyMask.REMOTE_READ, Access.REMOTE_READ),
    (MkeyMask.REMOTE_WRITE, Access.REMOTE_WRITE),
    (MkeyMask.ATOMIC, Access.ATOMIC),
)
_ACCESS_MASK: Final = sum(bit for bit, _ in _MASK_BITS)


def access_of(context: Buffer) -> int:
    """The permission bits of an mkc, as Access."""
    return (
        MkcLayout.lr.get(context) * Access.LOCAL_READ
        | MkcLayout.lw.get(context) * Access.LOCAL_WRITE
        | MkcLayout.rr.get(context) * Access.REMOTE_READ
        | MkcLayout.rw.get(context) * Access.REMOTE_WRITE
        | MkcLayout.a.get(context) * Access.ATOMIC
    )


class MkeyTable:
    """All keys of a function."""

    RESERVED_LKEY: Final = 0x8000
    NULL_MKEY: Final = 0x9000
    TERMINATE_LKEY: Final = 0x100
    FIRST_INDEX: Final = 0x200

    def __init__(self) -> None:
        self.keys: dict[int, Mkey] = {}
        self._next = self.FIRST_INDEX

    def create(self, context: Buffer, translation_octowords: int) -> Mkey:
        """A new key with the next free index of 24 bits; reused only after the others."""
        for _ in range(len(self.keys) + 1):
            index = self._next
            self._next = self._next + 1 if self._next < 0xFFFFF0 else self.FIRST_INDEX
            if index not in self.keys:
                break
        key = Mkey(index, context, translation_octowords)
        self.keys[index] = key
        return key

    def translate(
        self, key: int, address: int, size: int, access: int, who: Accessor
    ) -> list[Span]:
        """Guest ranges behind `size` bytes at `address` of `key`. Raises Refused."""
        if who.reserved_lkey and key == self.RESERVED_LKEY:
            return [Span(address, size)] if size else []
        return self._translate(key, address, size, access, who, MAX_INDIRECTION)

    def find(self, key: int, address: int, size: int) -> Mkey:
        """The live key of that number. Raises Refused."""
        mkey = self.keys.get(key >> 8)
        if mkey is None or mkey.variant != key & 0xFF:
            raise Refused(RefusalKind.UNKNOWN, key, address, size)
        if mkey.free:
            raise Refused(RefusalKind.FREE, key, address, size)
        return mkey

    def _translate(
        self, key: int, address: int, size: int, access: int, who: Accessor, depth: int
    ) -> list[Span]:
        mkey = self.find(key, address, size)
        self._check(mkey, address, size, access, who)
        if size == 0:
            return []
        if mkey.mode == AccessMode.PHYSICAL:
            return [Span(address, size)]
        if mkey.mode == AccessMode.MTT:
            return _walk_mtt(mkey, address, size, bool(access & _WRITES))
        if depth == 0:
            raise Refused(RefusalKind.RANGE, key, address, size)
        spans: list[Span] = []
        for entry in _walk_klm(mkey, address, size):
            spans += self._translate(*entry, access, Accessor(ANY_PD, who.qpn), depth - 1)
        return spans

    @staticmethod
    def _check(mkey: Mkey, address: int, size: int, access: int, who: Accessor) -> None:
        if who.pd not in (ANY_PD, mkey.pd):
            raise Refused(RefusalKind.PD, mkey.key, address, size)
        if mkey.bound_qpn not in (NO_BOUND_QP, who.qpn) and who.pd != ANY_PD:
            raise Refused(RefusalKind.BOUND, mkey.key, address, size)
        if access & ~mkey.access and who.pd != ANY_PD:
            raise Refused(RefusalKind.PERMISSION, mkey.key, address, size)
        if mkey.is_unbounded or size == 0:
            return
        if address < mkey.start or address + size > mkey.start + mkey.length:
            raise Refused(RefusalKind.RANGE, mkey.key, address, size)


def _walk_mtt(mkey: Mkey, address: int, size: int, write: bool) -> list[Span]:
    """Merge the pages behind a range; the first entry is the page that holds `start`."""
    shift = mkey.page_shift or PAGE_SHIFT
    page = 1 << shift
    mask = page - 1
    position = (mkey.start & mask) + (address - mkey.start)
    first, last = position >> shift, position + size - 1 >> shift
    table = mkey.translations
    if (last + 1) * MTT_BYTES > len(table):
        raise Refused(RefusalKind.NOT_PRESENT, mkey.key, address, size)
    need = MTT_WRITE if write else MTT_READ
    entries = struct.unpack_from(f">{last - first + 1}Q", table, first * MTT_BYTES)
    spans: list[Span] = []
    inside = position & mask
    run_start, run_size = 0, 0
    done = 0
    for entry in entries:
        if not entry & need:
            raise Refused(RefusalKind.NOT_PRESENT, mkey.key, address + done, size - done)
        base = (entry & MTT_ADDRESS & ~mask) + inside
        length = min(page - inside, size - done)
        if run_size and base == run_start + run_size:
            run_size += length
        else:
            if run_size:
                spans.append(Span(run_start, run_size))
            run_start, run_size = base, length
        done += length
        inside = 0
    spans.append(Span(run_start, run_size))
    return spans


def _walk_klm(mkey: Mkey, address: int, size: int) -> list[tuple[int, int, int]]:
    """(key, address, size) of each entry behind a range of an indirect key."""
    found: list[tuple[int, int, int]] = []
    position = address - mkey.start
    fixed = 1 << mkey.page_shift if mkey.mode == AccessMode.KSM else 0
    count = len(mkey.translations) // KLM_BYTES
    start = 0
    if fixed:
        start, position = divmod(position + (mkey.start & (fixed - 1)), fixed)
    for number in range(start, count):
        length, key, base = struct.unpack_from(">IIQ", mkey.translations, number * KLM_BYTES)
        length = fixed or length
        if position >= length:
            position -= length
            continue
        part = min(length - position, size)
        found.append((key, base + position, part))
        position = 0
        size -= part
        if size == 0:
            return found
    raise Refused(RefusalKind.NOT_PRESENT, mkey.key, address, size)
