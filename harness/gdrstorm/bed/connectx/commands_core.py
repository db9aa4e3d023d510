"""Commands that bring a function up and down, and objects that are nothing but a number."""

from __future__ import annotations

import struct
from typing import Final

from gdrstorm.bed.connectx.caps import CAP_BYTES, build_caps
from gdrstorm.bed.connectx.cmd import CommandError, Handler
from gdrstorm.bed.connectx.fields import Field
from gdrstorm.bed.connectx.function import Function
from gdrstorm.bed.connectx.layouts import (
    AllocPdOutLayout,
    AllocQCounterOutLayout,
    AllocTransportDomainOutLayout,
    AllocUarOutLayout,
    AllocXrcdOutLayout,
    AtomicCapsLayout,
    DeallocPdInLayout,
    DeallocQCounterInLayout,
    DeallocTransportDomainInLayout,
    DeallocUarInLayout,
    DeallocXrcdInLayout,
    ManagePagesInLayout,
    ManagePagesOutLayout,
    QueryAdapterOutLayout,
    QueryAdapterParamBlockLayout,
    QueryHcaCapOutLayout,
    QueryIssiOutLayout,
    QueryPagesOutLayout,
    QuerySpecialContextsOutLayout,
    SetHcaCapInLayout,
)
from gdrstorm.bed.connectx.prm import CapGroup, Op, Status

BOOT_PAGES: Final = 16
INIT_PAGES: Final = 64
_PAGES_BOOT: Final = 1
_PAGES_INIT: Final = 2
_GIVE: Final = 1
_TAKE: Final = 2
_MAX_PAGES: Final = 1 << 16
_CURRENT: Final = 1
_PSID: Final = b"GDRSTORM0000001"
_NVIDIA_OUI: Final = 0x2C9


def op_mod(request: bytes) -> int:
    return int.from_bytes(request[6:8], "big")


def accept(function: Function, request: bytes) -> bytes:
    """Success without an effect."""
    return bytes(16)


def _enable_hca(function: Function, request: bytes) -> bytes:
    """Start anew. What a driver that gave up without a reset left behind is a leak, and goes.

    A command EQ of the past above all: it would take the completions of the new driver's commands.
    """
    leftovers = function.live_objects()
    if function.pages:
        leftovers["page"] = len(function.pages)
    function.record_leaks("ENABLE_HCA", leftovers)
    function.forget_objects()
    return bytes(16)


def _teardown_hca(function: Function, request: bytes) -> bytes:
    function.record_leaks("TEARDOWN_HCA", function.live_objects())
    return bytes(16)


def _disable_hca(function: Function, request: bytes) -> bytes:
    if function.pages:
        function.record_leaks("DISABLE_HCA", {"page": len(function.pages)})
    function.pages.clear()
    return bytes(16)


def _query_issi(function: Function, request: bytes) -> bytearray:
    reply = bytearray(QueryIssiOutLayout.SIZE_BYTES)
    QueryIssiOutLayout.supported_issi_dw0.put(reply, 1 << 1)
    return reply


def _query_pages(function: Function, request: bytes) -> bytearray:
    wanted = {_PAGES_BOOT: BOOT_PAGES, _PAGES_INIT: INIT_PAGES}.get(op_mod(request), 0)
    reply = bytearray(QueryPagesOutLayout.SIZE_BYTES)
    QueryPagesOutLayout.num_pages.put(reply, wanted)
    return reply


def _manage_pages(function: Function, request: bytes) -> bytes | bytearray:
    action = op_mod(request)
    count = ManagePagesInLayout.input_num_entries.get(request)
    if action == _GIVE:
        raw = request[ManagePagesInLayout.pas.byte :]
        if count > _MAX_PAGES or len(raw) < count * 8:
            raise CommandError(Status.BAD_PARAM)
        function.pages.update(struct.unpack_from(f">{count}Q", raw))
        return bytes(16)
    if action != _TAKE:
        return bytes(16)
    taken = [function.pages.pop() for _ in range(min(count, len(function.pages), _MAX_PAGES))]
    reply = bytearray(ManagePagesOutLayout.SIZE_BYTES)
    ManagePagesOutLayout.output_num_entries.put(reply, len(taken))
    return reply + struct.pack(f">{len(taken)}Q", *taken)


def _cap_group(request: bytes) -> CapGroup:
    try:
        return CapGroup(op_mod(request) >> 1)
    except ValueError as error:
        raise CommandError(Status.BAD_PARAM) from error


def _query_hca_cap(function: Function, request: bytes) -> bytearray:
    group = _cap_group(request)
    store = function.current_caps if op_mod(request) & _CURRENT else build_caps(function.options)
    if group not in store:
        raise CommandError(Status.BAD_PARAM)
    reply = bytearray(QueryHcaCapOutLayout.SIZE_BYTES)
    QueryHcaCapOutLayout.capability.put_bytes(reply, store[group])
    return reply


def _set_hca_cap(function: Function, request: bytes) -> bytes:
    group = _cap_group(request)
    if group not in function.current_caps:
        raise CommandError(Status.BAD_PARAM)
    raw = SetHcaCapInLayout.capability.bytes_of(request)
    if group is CapGroup.ATOMIC:
        # The driver sends only the one field that can be set; the rest stays.
        mode = AtomicCapsLayout.atomic_req_8B_endianness_mode
        current = bytearray(function.current_caps[group])
        mode.put(current, mode.get(raw))
        raw = bytes(current)
    function.current_caps[group] = raw.ljust(CAP_BYTES, b"\0")
    return bytes(16)


def _query_adapter(function: Function, request: bytes) -> bytearray:
    reply = bytearray(QueryAdapterOutLayout.SIZE_BYTES)
    base = QueryAdapterOutLayout.query_adapter_struct.byte
    QueryAdapterParamBlockLayout.ieee_vendor_id.put(reply, _NVIDIA_OUI, base)
    QueryAdapterParamBlockLayout.vsd_contd_psid.put_bytes(reply, _PSID, base)
    return reply


def _query_special_contexts(function: Function, request: bytes) -> bytearray:
    reply = bytearray(QuerySpecialContextsOutLayout.SIZE_BYTES)
    keys = function.mkeys
    QuerySpecialContextsOutLayout.resd_lkey.put(reply, keys.RESERVED_LKEY)
    QuerySpecialContextsOutLayout.null_mkey.put(reply, keys.NULL_MKEY)
    QuerySpecialContextsOutLayout.terminate_scatter_list_mkey.put(reply, keys.TERMINATE_LKEY)
    return reply


def _alloc(kind: str, out: Field, size: int) -> Handler:
    """A command that makes a numbered object of `kind`."""

    def handler(function: Function, request: bytes) -> bytearray:
        number = function.numbers(kind).take()
        if number is None:
            raise CommandError(Status.LIMIT)
        reply = bytearray(size)
        out.put(reply, number)
        return reply

    return handler


def _dealloc(kind: str, source: Field) -> Handler:
    """A command that frees one; freeing what does not exist is the driver's mistake."""

    def handler(function: Function, request: bytes) -> bytes:
        if not function.numbers(kind).give(source.get(request)):
            raise CommandError(Status.BAD_RES)
        return bytes(16)

    return handler


CORE_HANDLERS: Final[dict[Op, Handler]] = {
    Op.ENABLE_HCA: _enable_hca,
    Op.DISABLE_HCA: _disable_hca,
    Op.INIT_HCA: accept,
    Op.TEARDOWN_HCA: _teardown_hca,
    Op.QUERY_ISSI: _query_issi,
    Op.SET_ISSI: accept,
    Op.SET_DRIVER_VERSION: accept,
    Op.QUERY_PAGES: _query_pages,
    Op.MANAGE_PAGES: _manage_pages,
    Op.QUERY_HCA_CAP: _query_hca_cap,
    Op.SET_HCA_CAP: _set_hca_cap,
    Op.QUERY_ADAPTER: _query_adapter,
    Op.QUERY_SPECIAL_CONTEXTS: _query_special_contexts,
    Op.NOP: accept,
    Op.CONFIG_INT_MODERATION: accept,
    Op.ALLOC_UAR: _alloc("uar", AllocUarOutLayout.uar, 16),
    Op.DEALLOC_UAR: _dealloc("uar", DeallocUarInLayout.uar),
    Op.ALLOC_PD: _alloc("pd", AllocPdOutLayout.pd, 16),
    Op.DEALLOC_PD: _dealloc("pd", DeallocPdInLayout.pd),
    Op.ALLOC_XRCD: _alloc("xrcd", AllocXrcdOutLayout.xrcd, 16),
    Op.DEALLOC_XRCD: _dealloc("xrcd", DeallocXrcdInLayout.xrcd),
    Op.ALLOC_TRANSPORT_DOMAIN: _alloc(
        "transport_domain", AllocTransportDomainOutLayout.transport_domain, 16
    ),
    Op.DEALLOC_TRANSPORT_DOMAIN: _dealloc(
        "transport_domain", DeallocTransportDomainInLayout.transport_domain
    ),
    Op.ALLOC_Q_COUNTER: _alloc("q_counter", AllocQCounterOutLayout.counter_set_id, 16),
    Op.DEALLOC_Q_COUNTER: _dealloc("q_counter", DeallocQCounterInLayout.counter_set_id),
    Op.SET_L2_TABLE_ENTRY: accept,
    Op.DELETE_L2_TABLE_ENTRY: accept,
}
