"""Translation through memory keys against a slow model, and UMR on their fields."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.bed.connectx.layouts import MkcLayout
from gdrstorm.bed.connectx.mkey import Accessor, Mkey, MkeyTable, Refused, Span
from gdrstorm.bed.connectx.oracle import RefusalKind
from gdrstorm.bed.connectx.prm import Access, AccessMode, MkeyMask, UmrFlag
from gdrstorm.bed.connectx.umr import UmrVerdict, apply_umr, check_umr
from gdrstorm.bed.connectx.wqe import UmrArgs

WHO = Accessor(pd=3, qpn=9)


def context(
    start: int = 0,
    length: int = 1 << 20,
    mode: AccessMode = AccessMode.MTT,
    shift: int = 12,
    access: int = 31,
    pd: int = 3,
    qpn: int = 0xFFFFFF,
    free: bool = False,
) -> bytearray:
    raw = bytearray(MkcLayout.SIZE_BYTES)
    fields = (MkcLayout.lr, MkcLayout.lw, MkcLayout.rr, MkcLayout.rw, MkcLayout.a)
    for bit, field in enumerate(fields):
        field.put(raw, access >> bit & 1)
    MkcLayout.access_mode_1_0.put(raw, mode)
    MkcLayout.start_addr.put(raw, start)
    MkcLayout.len.put(raw, length)
    MkcLayout.log_page_size.put(raw, shift)
    MkcLayout.pd.put(raw, pd)
    MkcLayout.qpn.put(raw, qpn)
    MkcLayout.mkey_7_0.put(raw, 0x11)
    MkcLayout.free.put(raw, free)
    return raw


def mtts(*pages: int, bits: int = 3) -> bytes:
    return b"".join(struct.pack(">Q", page | bits) for page in pages)


def make(table: MkeyTable, entries: bytes, **fields: int) -> Mkey:
    mkey = table.create(context(**fields), 4096)  # type: ignore[arg-type]
    assert mkey.write_translations(0, entries)
    return mkey


@given(
    start=st.integers(0, 2**40),
    pages=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    shift=st.sampled_from([12, 13, 16]),
    data=st.data(),
)
def test_translation_is_that_of_a_byte_by_byte_walk(
    start: int, pages: list[int], shift: int, data: st.DataObject
) -> None:
    page = 1 << shift
    length = len(pages) * page - (start & page - 1)
    table = MkeyTable()
    mkey = make(table, mtts(*(p * page for p in pages)), start=start, length=length, shift=shift)
    offset = data.draw(st.integers(0, length - 1))
    size = data.draw(st.integers(1, length - offset))
    spans = table.translate(mkey.key, start + offset, size, Access.LOCAL_READ, WHO)

    def slow(position: int) -> int:
        place = (start & page - 1) + position
        return pages[place >> shift] * page + (place & page - 1)

    assert sum(s.size_bytes for s in spans) == size
    walked = 0
    for span in spans:
        assert span.iova == slow(offset + walked)
        assert span.iova + span.size_bytes - 1 == slow(offset + walked + span.size_bytes - 1)
        walked += span.size_bytes


def test_neighbouring_pages_are_one_span() -> None:
    table = MkeyTable()
    mkey = make(table, mtts(0x1000, 0x2000, 0x8000))
    assert table.translate(mkey.key, 0x800, 0x2000, Access.LOCAL_READ, WHO) == [
        Span(0x1800, 0x1800),
        Span(0x8000, 0x800),
    ]


@pytest.mark.parametrize(
    ("fields", "address", "size", "access", "kind"),
    [
        ({"pd": 4}, 0, 1, Access.LOCAL_READ, RefusalKind.PD),
        ({"free": True}, 0, 1, Access.LOCAL_READ, RefusalKind.FREE),
        ({"access": 1}, 0, 1, Access.REMOTE_READ, RefusalKind.PERMISSION),
        ({"length": 100}, 0, 101, Access.LOCAL_READ, RefusalKind.RANGE),
        ({"start": 50, "length": 100}, 49, 1, Access.LOCAL_READ, RefusalKind.RANGE),
        ({"qpn": 8}, 0, 1, Access.LOCAL_READ, RefusalKind.BOUND),
        ({}, 0x2000, 1, Access.LOCAL_READ, RefusalKind.NOT_PRESENT),
    ],
)
def test_refusals(
    fields: dict[str, int], address: int, size: int, access: Access, kind: RefusalKind
) -> None:
    table = MkeyTable()
    mkey = make(table, mtts(0x1000, 0x2000), **fields)
    with pytest.raises(Refused) as refused:
        table.translate(mkey.key, address, size, access, WHO)
    assert refused.value.kind is kind
    assert refused.value.page_missing == (kind is RefusalKind.NOT_PRESENT)


def test_read_only_pages_refuse_writes_only() -> None:
    table = MkeyTable()
    mkey = make(table, mtts(0x1000, bits=1))
    assert table.translate(mkey.key, 0, 8, Access.LOCAL_READ, WHO)
    with pytest.raises(Refused) as refused:
        table.translate(mkey.key, 0, 8, Access.LOCAL_WRITE, WHO)
    assert refused.value.page_missing


def test_an_old_variant_of_a_key_is_unknown() -> None:
    table = MkeyTable()
    mkey = make(table, mtts(0x1000))
    with pytest.raises(Refused) as refused:
        table.translate(mkey.key ^ 1, 0, 8, Access.LOCAL_READ, WHO)
    assert refused.value.kind is RefusalKind.UNKNOWN


def test_window_points_into_another_key() -> None:
    table = MkeyTable()
    region = make(table, mtts(0x9000, 0x4000))
    window = table.create(context(start=0x100, length=0x1000, mode=AccessMode.KLM), 4)
    window.write_translations(0, struct.pack(">IIQ", 0x1000, region.key, 0x800))
    spans = table.translate(window.key, 0x100, 0x1000, Access.REMOTE_WRITE, WHO)
    assert spans == [Span(0x9800, 0x800), Span(0x4000, 0x800)]
    region.free = True
    with pytest.raises(Refused):
        table.translate(window.key, 0x100, 8, Access.REMOTE_WRITE, WHO)


def test_keys_that_point_at_each_other_end() -> None:
    table = MkeyTable()
    keys = [table.create(context(mode=AccessMode.KLM), 4) for _ in range(2)]
    for key, other in (keys, keys[::-1]):
        key.write_translations(0, struct.pack(">IIQ", 0x1000, other.key, 0))
    with pytest.raises(Refused):
        table.translate(keys[0].key, 0, 8, Access.LOCAL_READ, WHO)


def test_numbers_are_not_reused_at_once() -> None:
    table = MkeyTable()
    first = table.create(context(), 0)
    del table.keys[first.index]
    assert table.create(context(), 0).index != first.index


# UMR


def args(
    flags: int = 0, mask: int = 0, offset: int = 0, table: bytes = b"", **fields: int
) -> UmrArgs:
    return UmrArgs(flags, mask, offset, len(table), bytes(context(**fields)), b"")  # type: ignore[arg-type]


def test_umr_checks_whether_the_key_is_free() -> None:
    table = MkeyTable()
    live, idle = make(table, mtts(0)), make(table, mtts(0), free=True)
    assert check_umr(live, args(UmrFlag.FAIL_IF_NOT_FREE)) is UmrVerdict.NOT_FREE
    assert check_umr(idle, args(UmrFlag.FAIL_IF_FREE)) is UmrVerdict.IS_FREE
    assert check_umr(idle, args(UmrFlag.FAIL_IF_NOT_FREE)) is UmrVerdict.OK


def test_umr_table_of_one_page_fills_a_unit_of_64_bytes() -> None:
    mkey = Mkey(1, context(), 1)
    assert check_umr(mkey, args(table=bytes(64))) is UmrVerdict.OK
    assert check_umr(mkey, args(offset=64, table=bytes(64))) is UmrVerdict.TABLE_TOO_LONG


@given(mask=st.integers(0, 2**48 - 1))
def test_umr_changes_only_what_its_mask_names(mask: int) -> None:
    mkey = Mkey(1, context(start=1, length=2, shift=12, access=0, pd=5), 4)
    fresh = args(mask=mask, start=100, length=200, shift=20, access=31, pd=6, free=1)
    apply_umr(mkey, fresh, b"")
    assert mkey.start == (100 if mask & MkeyMask.START else 1)
    assert mkey.length == (200 if mask & MkeyMask.LENGTH else 2)
    assert mkey.page_shift == (20 if mask & MkeyMask.PAGE_SIZE else 12)
    assert mkey.pd == (6 if mask & MkeyMask.PD else 5)
    assert bool(mkey.access & Access.ATOMIC) == bool(mask & MkeyMask.ATOMIC)
    assert bool(mkey.access & Access.REMOTE_READ) == bool(mask & MkeyMask.REMOTE_READ)
    assert mkey.free == bool(mask & MkeyMask.FREE)


def test_umr_says_which_pages_it_took_away() -> None:
    mkey = Mkey(1, context(), 64)
    apply_umr(mkey, args(), mtts(0x7000, 0x8000))
    freed = apply_umr(mkey, args(mask=MkeyMask.FREE, free=1), b"")
    assert freed is not None
    assert freed.pages == (0x7000,)
    mkey.free = False
    zapped = apply_umr(mkey, args(), bytes(64))
    assert zapped is not None
    assert apply_umr(mkey, args(), bytes(64)) is None
