"""Commands on memory keys, and the driver's answer to page faults."""

from __future__ import annotations

import struct
from typing import Final

from gdrstorm.bed.connectx.cmd import CommandError, Handler
from gdrstorm.bed.connectx.commands_queue import answer
from gdrstorm.bed.connectx.function import Function
from gdrstorm.bed.connectx.layouts import (
    CreateMkeyInLayout,
    CreateMkeyOutLayout,
    DestroyMkeyInLayout,
    MkcLayout,
    PageFaultResumeInLayout,
    QueryMkeyInLayout,
    QueryMkeyOutLayout,
    TransPageFaultInfoLayout,
)
from gdrstorm.bed.connectx.mkey import MTT_BYTES, MTT_READ, MTT_WRITE, OCTOWORD_BYTES, Mkey
from gdrstorm.bed.connectx.prm import AccessMode, Op, Status

_MAX_KEYS: Final = 1 << 20


def _create_mkey(function: Function, request: bytes) -> bytearray:
    context = CreateMkeyInLayout.memory_key_mkey_entry.bytes_of(request)
    if len(context) < MkcLayout.SIZE_BYTES:
        raise CommandError(Status.BAD_INPUT_LENGTH)
    if len(function.mkeys.keys) >= _MAX_KEYS:
        raise CommandError(Status.LIMIT)
    actual = CreateMkeyInLayout.translations_octword_actual_size.get(request) * OCTOWORD_BYTES
    table = request[CreateMkeyInLayout.klm_pas_mtt.byte :][:actual]
    size = max(MkcLayout.translations_octword_size.get(context), (len(table) + 15) // 16)
    mkey = function.mkeys.create(context, size)
    if table and not CreateMkeyInLayout.pg_access.get(request):
        table = _mark_present(table, mkey)
    if table and not mkey.write_translations(0, table):
        del function.mkeys.keys[mkey.index]
        raise CommandError(Status.BAD_PARAM)
    return answer(CreateMkeyOutLayout.SIZE_BYTES, CreateMkeyOutLayout.mkey_index, mkey.index)


def _mark_present(table: bytes, mkey: Mkey) -> bytes:
    """Without pg_access the low bits of an MTT say nothing: every page that is given is there."""
    if mkey.mode != AccessMode.MTT:
        return table
    entries = struct.unpack(f">{len(table) // MTT_BYTES}Q", table[: len(table) // 8 * 8])
    present = MTT_READ | MTT_WRITE
    return struct.pack(f">{len(entries)}Q", *(e | present if e else 0 for e in entries))


def _mkey(function: Function, index: int) -> Mkey:
    mkey = function.mkeys.keys.get(index)
    if mkey is None:
        raise CommandError(Status.BAD_RES)
    return mkey


def _destroy_mkey(function: Function, request: bytes) -> bytes:
    mkey = _mkey(function, DestroyMkeyInLayout.mkey_index.get(request))
    del function.mkeys.keys[mkey.index]
    return bytes(16)


def _query_mkey(function: Function, request: bytes) -> bytearray:
    mkey = _mkey(function, QueryMkeyInLayout.mkey_index.get(request))
    reply = bytearray(QueryMkeyOutLayout.SIZE_BYTES)
    QueryMkeyOutLayout.memory_key_mkey_entry.put_bytes(reply, bytes(mkey.full_context()))
    base = QueryMkeyOutLayout.bsf0_klm0_pas_mtt0_1.byte
    return reply[:base] + mkey.translations.ljust(len(reply) - base, b"\0")


def _page_fault_resume(function: Function, request: bytes) -> bytes:
    base = PageFaultResumeInLayout.page_fault_info.byte
    token = TransPageFaultInfoLayout.fault_token.get(request, base)
    error = bool(TransPageFaultInfoLayout.error.get(request, base))
    if not function.faults.resume(token, error):
        raise CommandError(Status.BAD_PARAM)
    return bytes(16)


MEMORY_HANDLERS: Final[dict[Op, Handler]] = {
    Op.CREATE_MKEY: _create_mkey,
    Op.DESTROY_MKEY: _destroy_mkey,
    Op.QUERY_MKEY: _query_mkey,
    Op.PAGE_FAULT_RESUME: _page_fault_resume,
}
