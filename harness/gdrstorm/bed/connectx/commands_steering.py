"""Commands on flow tables and what stands behind them: TISs, TIRs and indirection tables."""

from __future__ import annotations

import struct
from typing import Final

from gdrstorm.bed.connectx.cmd import CommandError, Handler
from gdrstorm.bed.connectx.commands_core import accept
from gdrstorm.bed.connectx.commands_queue import answer
from gdrstorm.bed.connectx.function import Function
from gdrstorm.bed.connectx.layouts import (
    CreateFlowGroupInLayout,
    CreateFlowGroupOutLayout,
    CreateFlowTableInLayout,
    CreateFlowTableOutLayout,
    CreateRqtInLayout,
    CreateRqtOutLayout,
    CreateTirInLayout,
    CreateTirOutLayout,
    CreateTisInLayout,
    CreateTisOutLayout,
    DeleteFteInLayout,
    DestroyFlowGroupInLayout,
    DestroyFlowTableInLayout,
    DestroyRqtInLayout,
    DestroyTirInLayout,
    DestroyTisInLayout,
    FlowContextLayout,
    FlowTableContextLayout,
    ModifyFlowTableInLayout,
    ModifyRqtInLayout,
    ModifyTirInLayout,
    RqtcLayout,
    SetFlowTableRootInLayout,
    SetFteInLayout,
    TircLayout,
    TiscLayout,
)
from gdrstorm.bed.connectx.prm import Op, Status
from gdrstorm.bed.connectx.steering import Table, Tir, make_entry, make_group

_NIC_RECEIVE: Final = 0
_FORWARD_ON_MISS: Final = 1
_MAX_DESTINATIONS: Final = 256
_DESTINATION_BYTES: Final = 8


def _take(function: Function, kind: str) -> int:
    number = function.numbers(kind).take()
    if number is None:
        raise CommandError(Status.LIMIT)
    return number


def _give(function: Function, kind: str, number: int) -> None:
    if not function.numbers(kind).give(number):
        raise CommandError(Status.BAD_RES)


def _table(function: Function, number: int) -> Table:
    table = function.steering.tables.get(number)
    if table is None:
        raise CommandError(Status.BAD_RES)
    return table


def _miss(request: bytes, base: int) -> int:
    if FlowTableContextLayout.table_miss_action.get(request, base) != _FORWARD_ON_MISS:
        return 0
    return FlowTableContextLayout.table_miss_id.get(request, base)


def _create_flow_table(function: Function, request: bytes) -> bytearray:
    number = _take(function, "flow_table")
    miss = _miss(request, CreateFlowTableInLayout.flow_table_context.byte)
    function.steering.tables[number] = Table(miss)
    return answer(CreateFlowTableOutLayout.SIZE_BYTES, CreateFlowTableOutLayout.table_id, number)


def _modify_flow_table(function: Function, request: bytes) -> bytes:
    table = _table(function, ModifyFlowTableInLayout.table_id.get(request))
    table.miss = _miss(request, ModifyFlowTableInLayout.flow_table_context.byte)
    return bytes(16)


def _destroy_flow_table(function: Function, request: bytes) -> bytes:
    number = DestroyFlowTableInLayout.table_id.get(request)
    _give(function, "flow_table", number)
    function.steering.tables.pop(number, None)
    return bytes(16)


def _set_root(function: Function, request: bytes) -> bytes:
    if SetFlowTableRootInLayout.table_type.get(request) == _NIC_RECEIVE:
        number = SetFlowTableRootInLayout.table_id.get(request)
        _table(function, number)
        function.steering.root = number
    return bytes(16)


def _create_group(function: Function, request: bytes) -> bytearray:
    table = _table(function, CreateFlowGroupInLayout.table_id.get(request))
    enable = CreateFlowGroupInLayout.match_criteria_enable.get(request)
    criteria = CreateFlowGroupInLayout.match_criteria.bytes_of(request)
    number = _take(function, "flow_group")
    table.groups[number] = make_group(enable, criteria)
    return answer(CreateFlowGroupOutLayout.SIZE_BYTES, CreateFlowGroupOutLayout.group_id, number)


def _destroy_group(function: Function, request: bytes) -> bytes:
    table = _table(function, DestroyFlowGroupInLayout.table_id.get(request))
    number = DestroyFlowGroupInLayout.group_id.get(request)
    _give(function, "flow_group", number)
    table.groups.pop(number, None)
    return bytes(16)


def _set_entry(function: Function, request: bytes) -> bytes:
    table = _table(function, SetFteInLayout.table_id.get(request))
    base = SetFteInLayout.flow_context.byte
    count = FlowContextLayout.destination_list_size.get(request, base)
    if count > _MAX_DESTINATIONS:
        raise CommandError(Status.BAD_PARAM)
    start = base + FlowContextLayout.destination.byte
    table.entries[SetFteInLayout.flow_index.get(request)] = make_entry(
        FlowContextLayout.group_id.get(request, base),
        FlowContextLayout.action.get(request, base),
        FlowContextLayout.match_value.bytes_of(request, base),
        request[start : start + count * _DESTINATION_BYTES],
    )
    return bytes(16)


def _delete_entry(function: Function, request: bytes) -> bytes:
    table = _table(function, DeleteFteInLayout.table_id.get(request))
    if table.entries.pop(DeleteFteInLayout.flow_index.get(request), None) is None:
        raise CommandError(Status.BAD_RES)
    return bytes(16)


def _parse_tir(request: bytes, base: int) -> Tir:
    return Tir(
        TircLayout.transport_domain.get(request, base),
        TircLayout.inline_rqn.get(request, base),
        TircLayout.indirect_table.get(request, base) if _is_indirect(request, base) else 0,
    )


def _is_indirect(request: bytes, base: int) -> bool:
    return bool(TircLayout.disp_type.get(request, base))


def _create_tir(function: Function, request: bytes) -> bytearray:
    number = _take(function, "tir")
    function.steering.tirs[number] = _parse_tir(request, CreateTirInLayout.ctx.byte)
    return answer(CreateTirOutLayout.SIZE_BYTES, CreateTirOutLayout.tirn, number)


def _modify_tir(function: Function, request: bytes) -> bytes:
    """The driver only changes loopback and hashing here, which the model has not."""
    if ModifyTirInLayout.tirn.get(request) not in function.steering.tirs:
        raise CommandError(Status.BAD_RES)
    return bytes(16)


def _destroy_tir(function: Function, request: bytes) -> bytes:
    number = DestroyTirInLayout.tirn.get(request)
    _give(function, "tir", number)
    function.steering.tirs.pop(number, None)
    return bytes(16)


def _create_tis(function: Function, request: bytes) -> bytearray:
    number = _take(function, "tis")
    domain = TiscLayout.transport_domain.get(request, CreateTisInLayout.ctx.byte)
    function.steering.tis_domains[number] = domain
    return answer(CreateTisOutLayout.SIZE_BYTES, CreateTisOutLayout.tisn, number)


def _destroy_tis(function: Function, request: bytes) -> bytes:
    number = DestroyTisInLayout.tisn.get(request)
    _give(function, "tis", number)
    function.steering.tis_domains.pop(number, None)
    return bytes(16)


def _parse_rqt(request: bytes, base: int) -> tuple[int, ...]:
    count = RqtcLayout.rqt_actual_size.get(request, base)
    raw = request[base + RqtcLayout.rq_num.byte :]
    count = min(count, len(raw) // 4)
    return tuple(number & 0xFFFFFF for number in struct.unpack_from(f">{count}I", raw))


def _create_rqt(function: Function, request: bytes) -> bytearray:
    number = _take(function, "rqt")
    base = CreateRqtInLayout.rqt_context.byte
    function.steering.indirection[number] = _parse_rqt(request, base)
    return answer(CreateRqtOutLayout.SIZE_BYTES, CreateRqtOutLayout.rqtn, number)


def _modify_rqt(function: Function, request: bytes) -> bytes:
    number = ModifyRqtInLayout.rqtn.get(request)
    if number not in function.steering.indirection:
        raise CommandError(Status.BAD_RES)
    base = ModifyRqtInLayout.ctx.byte
    function.steering.indirection[number] = _parse_rqt(request, base)
    return bytes(16)


def _destroy_rqt(function: Function, request: bytes) -> bytes:
    number = DestroyRqtInLayout.rqtn.get(request)
    _give(function, "rqt", number)
    function.steering.indirection.pop(number, None)
    return bytes(16)


STEERING_HANDLERS: Final[dict[Op, Handler]] = {
    Op.CREATE_TIS: _create_tis,
    Op.MODIFY_TIS: accept,
    Op.DESTROY_TIS: _destroy_tis,
    Op.CREATE_TIR: _create_tir,
    Op.MODIFY_TIR: _modify_tir,
    Op.DESTROY_TIR: _destroy_tir,
    Op.CREATE_RQT: _create_rqt,
    Op.MODIFY_RQT: _modify_rqt,
    Op.DESTROY_RQT: _destroy_rqt,
    Op.CREATE_FLOW_TABLE: _create_flow_table,
    Op.MODIFY_FLOW_TABLE: _modify_flow_table,
    Op.DESTROY_FLOW_TABLE: _destroy_flow_table,
    Op.SET_FLOW_TABLE_ROOT: _set_root,
    Op.CREATE_FLOW_GROUP: _create_group,
    Op.DESTROY_FLOW_GROUP: _destroy_group,
    Op.SET_FLOW_TABLE_ENTRY: _set_entry,
    Op.DELETE_FLOW_TABLE_ENTRY: _delete_entry,
}
