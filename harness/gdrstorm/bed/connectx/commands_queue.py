"""Commands that make, change and destroy event, completion, send and receive queues and QPs."""

from __future__ import annotations

import struct
from typing import Final

from gdrstorm.bed.connectx.caps import (
    LOG_MAX_CQ_SZ,
    LOG_MAX_EQ_SZ,
    LOG_MAX_QP_SZ,
    LOG_MAX_SRQ_SZ,
    LOG_MAX_WQ_SZ,
)
from gdrstorm.bed.connectx.cmd import CommandError, Handler
from gdrstorm.bed.connectx.cq import CompletionQueue
from gdrstorm.bed.connectx.eq import EventQueue
from gdrstorm.bed.connectx.fields import Field
from gdrstorm.bed.connectx.function import Function
from gdrstorm.bed.connectx.layouts import (
    ArmXrcSrqInLayout,
    CqcLayout,
    CreateCqInLayout,
    CreateCqOutLayout,
    CreateEqInLayout,
    CreateEqOutLayout,
    CreateQpInLayout,
    CreateQpOutLayout,
    CreateRmpInLayout,
    CreateRmpOutLayout,
    CreateRqInLayout,
    CreateRqOutLayout,
    CreateSqInLayout,
    CreateSqOutLayout,
    CreateXrcSrqInLayout,
    CreateXrcSrqOutLayout,
    DestroyCqInLayout,
    DestroyEqInLayout,
    DestroyQpInLayout,
    DestroyRmpInLayout,
    DestroyRqInLayout,
    DestroySqInLayout,
    DestroyXrcSrqInLayout,
    EqcLayout,
    ModifyCqInLayout,
    ModifyRmpInLayout,
    ModifyRqInLayout,
    ModifySqInLayout,
    QpcLayout,
    QueryCqInLayout,
    QueryCqOutLayout,
    QueryEqInLayout,
    QueryEqOutLayout,
    QueryQpInLayout,
    QueryQpOutLayout,
    QueryRmpInLayout,
    QueryRmpOutLayout,
    QueryRqInLayout,
    QueryRqOutLayout,
    QuerySqInLayout,
    QuerySqOutLayout,
    QueryXrcSrqInLayout,
    QueryXrcSrqOutLayout,
    RmpcLayout,
    RqcLayout,
    Rst2initQpInLayout,
    SqcLayout,
    WqLayout,
    XrcSrqcLayout,
)
from gdrstorm.bed.connectx.memory import PagedBuffer, unpack_pages
from gdrstorm.bed.connectx.netdev import EthernetReceive, EthernetSend
from gdrstorm.bed.connectx.prm import (
    CQE_BYTES,
    EQE_BYTES,
    PAGE_SHIFT,
    Event,
    EventSource,
    Op,
    QpState,
    RqType,
    Status,
    WqState,
)
from gdrstorm.bed.connectx.qp import QueuePair, ReceiveRing, SendRing, ring_geometry
from gdrstorm.bed.connectx.srq import SharedReceiveQueue

_RESIZE: Final = 1
_CQ_PERIOD_FIELDS: Final = 3
_CYCLIC: Final = 1
_LOG_SQ_STRIDE: Final = 6
_MAX_LOG_STRIDE: Final = 12
_CQ_OVERRUN: Final = 1


def answer(size: int, field: Field, value: int) -> bytearray:
    """A reply that says one number."""
    reply = bytearray(size)
    field.put(reply, value)
    return reply


def _buffer(
    function: Function, raw: bytes, shift: int, offset: int, size: int, start: int = 0
) -> PagedBuffer:
    """A ring in the pages of a command; `start` skips what another ring uses before it."""
    pages = unpack_pages(raw)
    if len(pages) < PagedBuffer.needed_pages(shift, offset + start, size):
        raise CommandError(Status.BAD_INPUT_LENGTH)
    return PagedBuffer(function.memory, pages, shift, offset + start, size)


def _check_log(value: int, limit: int) -> int:
    if value > limit:
        raise CommandError(Status.BAD_PARAM)
    return value


# Event queues


def _create_eq(function: Function, request: bytes) -> bytearray:
    context = CreateEqInLayout.eq_context_entry.bytes_of(request)
    mask = CreateEqInLayout.event_bitmask.bytes_of(request)
    number = function.eqs.free_number()
    if number is None:
        raise CommandError(Status.LIMIT)
    log_size = _check_log(EqcLayout.log_eq_size.get(context), LOG_MAX_EQ_SZ)
    shift = EqcLayout.log_page_size.get(context) + PAGE_SHIFT
    offset = EqcLayout.page_offset.get(context) << shift >> 6
    pages = request[CreateEqInLayout.pas.byte :]
    buffer = _buffer(function, pages, shift, offset, EQE_BYTES << log_size)
    # Four words of 64 bits; only the first holds events that the model sends.
    events = struct.unpack(">4Q", mask)[0]
    queue = EventQueue(
        number, log_size, EqcLayout.intr.get(context), events, buffer, function.raise_irq
    )
    function.eqs.queues[number] = queue
    return answer(CreateEqOutLayout.SIZE_BYTES, CreateEqOutLayout.eq_number, number)


def _destroy_eq(function: Function, request: bytes) -> bytes:
    if function.eqs.queues.pop(DestroyEqInLayout.eq_number.get(request), None) is None:
        raise CommandError(Status.BAD_RES)
    return bytes(16)


def _query_eq(function: Function, request: bytes) -> bytearray:
    queue = function.eqs.queues.get(QueryEqInLayout.eq_number.get(request))
    if queue is None:
        raise CommandError(Status.BAD_RES)
    reply = bytearray(QueryEqOutLayout.SIZE_BYTES)
    base = QueryEqOutLayout.eq_context_entry.byte
    EqcLayout.log_eq_size.put(reply, queue.log_size, base)
    EqcLayout.intr.put(reply, queue.vector, base)
    EqcLayout.consumer_counter.put(reply, queue.consumer, base)
    EqcLayout.producer_counter.put(reply, queue.producer, base)
    return reply


# Completion queues


def _cq_buffer(function: Function, context: bytes, pages: bytes) -> tuple[int, int, PagedBuffer]:
    log_size = _check_log(CqcLayout.log_cq_size.get(context), LOG_MAX_CQ_SZ)
    entry = CQE_BYTES << min(CqcLayout.cqe_sz.get(context), 1)
    shift = CqcLayout.log_page_size.get(context) + PAGE_SHIFT
    offset = CqcLayout.page_offset.get(context) << shift >> 6
    return log_size, entry, _buffer(function, pages, shift, offset, entry << log_size)


def _create_cq(function: Function, request: bytes) -> bytearray:
    context = CreateCqInLayout.cq_context.bytes_of(request)
    pages = request[CreateCqInLayout.pas.byte :]
    log_size, entry, buffer = _cq_buffer(function, context, pages)
    number = function.cq_numbers.take()
    if number is None:
        raise CommandError(Status.LIMIT)
    function.cqs[number] = CompletionQueue(
        number=number,
        context=bytearray(context),
        log_size=log_size,
        entry_bytes=entry,
        eqn=CqcLayout.c_eqn_or_apu_element.get(context) & 0xFF,
        doorbell_record=CqcLayout.dbr_addr.get(context),
        ignore_overrun=bool(CqcLayout.oi.get(context)),
        buffer=buffer,
        memory=function.memory,
        notify=function.eqs.complete,
        on_overrun=lambda cq: _cq_overrun(function, cq),
        now_ns=function.now_ns,
    )
    return answer(CreateCqOutLayout.SIZE_BYTES, CreateCqOutLayout.cqn, number)


def _cq_overrun(function: Function, cq: CompletionQueue) -> None:
    function.oracle.anomaly(function.now_ns(), function.index, f"CQ {cq.number:#x} overrun")
    data = struct.pack(">I7xB", cq.number, _CQ_OVERRUN)
    function.eqs.report(Event.CQ_ERROR, 0, data)


def _cq(function: Function, number: int) -> CompletionQueue:
    cq = function.cqs.get(number)
    if cq is None:
        raise CommandError(Status.BAD_RES)
    return cq


def _destroy_cq(function: Function, request: bytes) -> bytes:
    number = DestroyCqInLayout.cqn.get(request)
    _cq(function, number)
    users = [q for q in function.qps.values() if number in (q.send_cqn, q.receive_cqn)]
    if users:
        what = f"CQ {number:#x} destroyed while QP {users[0].number:#x} uses it"
        function.oracle.anomaly(function.now_ns(), function.index, what)
        raise CommandError(Status.BAD_RES_STATE)
    del function.cqs[number]
    function.cq_numbers.give(number)
    return bytes(16)


def _query_cq(function: Function, request: bytes) -> bytearray:
    cq = _cq(function, QueryCqInLayout.cqn.get(request))
    reply = bytearray(QueryCqOutLayout.SIZE_BYTES)
    QueryCqOutLayout.cq_context.put_bytes(reply, bytes(cq.context))
    CqcLayout.producer_counter.put(reply, cq.producer, QueryCqOutLayout.cq_context.byte)
    return reply


def _modify_cq(function: Function, request: bytes) -> bytes:
    cq = _cq(function, ModifyCqInLayout.cqn.get(request))
    context = ModifyCqInLayout.cq_context.bytes_of(request)
    if int.from_bytes(request[6:8], "big") == _RESIZE:
        pages = request[ModifyCqInLayout.pas.byte :]
        log_size, entry, buffer = _cq_buffer(function, context, pages)
        if cq.unread() >= 1 << log_size:
            raise CommandError(Status.BAD_CQ_SIZE)
        cq.resize(log_size, entry, buffer)
        CqcLayout.log_cq_size.put(cq.context, log_size)
        return bytes(16)
    fields = ModifyCqInLayout.modify_field_select_resize_field_select.get(request)
    if fields & _CQ_PERIOD_FIELDS:
        CqcLayout.cq_period.put(cq.context, CqcLayout.cq_period.get(context))
        CqcLayout.cq_max_count.put(cq.context, CqcLayout.cq_max_count.get(context))
    return bytes(16)


# Queue pairs


def _create_qp(function: Function, request: bytes) -> bytearray:
    context = bytearray(CreateQpInLayout.qpc.bytes_of(request))
    pages = request[CreateQpInLayout.pas.byte :]
    _check_log(QpcLayout.log_sq_size.get(context), LOG_MAX_QP_SZ)
    _check_log(QpcLayout.log_rq_size.get(context), LOG_MAX_QP_SZ)
    shift, offset, receive_bytes, stride, send_bytes = ring_geometry(context)
    if QpcLayout.rq_type.get(context) == RqType.SRQ:
        srqn = QpcLayout.srqn_rmpn_xrqn.get(context)
        if srqn not in function.srqs:
            raise CommandError(Status.BAD_RES)
    record = QpcLayout.dbr_addr.get(context)
    receive = send = None
    memory = function.memory
    if receive_bytes:
        ring = _buffer(function, pages, shift, offset, receive_bytes)
        receive = ReceiveRing(ring, stride, record, memory)
    if send_bytes:
        # The send ring follows the receive ring; its doorbell record too.
        ring = _buffer(function, pages, shift, offset, send_bytes, start=receive_bytes)
        send = SendRing(ring, record + 4, memory)
    number = function.queue_numbers.take()
    if number is None:
        raise CommandError(Status.LIMIT)
    function.qps[number] = QueuePair(number, context, send, receive)
    return answer(CreateQpOutLayout.SIZE_BYTES, CreateQpOutLayout.qpn, number)


def _qp(function: Function, number: int) -> QueuePair:
    qp = function.qps.get(number)
    if qp is None:
        raise CommandError(Status.BAD_RES)
    return qp


def _destroy_qp(function: Function, request: bytes) -> bytes:
    qp = _qp(function, DestroyQpInLayout.qpn.get(request))
    qp.cancel()
    del function.qps[qp.number]
    function.queue_numbers.give(qp.number)
    function.fabric.forget_qp(function.index, qp.number)
    return bytes(16)


def _query_qp(function: Function, request: bytes) -> bytearray:
    qp = _qp(function, QueryQpInLayout.qpn.get(request))
    reply = bytearray(QueryQpOutLayout.SIZE_BYTES)
    base = QueryQpOutLayout.qpc.byte
    QueryQpOutLayout.qpc.put_bytes(reply, bytes(qp.context))
    QpcLayout.state.put(reply, qp.state, base)
    if qp.send is not None:
        QpcLayout.hw_sq_wqebb_counter.put(reply, qp.send.consumer, base)
        QpcLayout.sw_sq_wqebb_counter.put(reply, qp.send.producer, base)
    return reply


def _modify_qp(function: Function, request: bytes) -> bytes:
    op = Op(int.from_bytes(request[:2], "big"))
    # All modify commands but the two that only name a state have this form.
    qp = _qp(function, Rst2initQpInLayout.qpn.get(request))
    has_context = op not in (Op.QP_2ERR, Op.QP_2RST)
    mask = Rst2initQpInLayout.opt_param_mask.get(request) if has_context else 0
    new = Rst2initQpInLayout.qpc.bytes_of(request) if has_context else bytes(qp.context)
    if len(new) < QpcLayout.SIZE_BYTES:
        raise CommandError(Status.BAD_INPUT_LENGTH)
    if not qp.modify(op, mask, new):
        raise CommandError(Status.BAD_QP_STATE)
    if qp.state is QpState.ERROR:
        function.requester.fail_queue(qp)
    elif op is Op.RTR2RTS_QP:
        function.requester.doorbell(qp)
    return bytes(16)


# Shared receive queues


def _srq_limit(function: Function, number: int) -> None:
    function.queue_event(Event.SRQ_LIMIT, EventSource.RQ, number)


def _create_rmp(function: Function, request: bytes) -> bytearray:
    context = CreateRmpInLayout.ctx.bytes_of(request)
    wq = context[RmpcLayout.wq.byte :]
    log_size = _check_log(WqLayout.log_wq_sz.get(wq), LOG_MAX_SRQ_SZ)
    log_stride = _check_log(WqLayout.log_wq_stride.get(wq), _MAX_LOG_STRIDE)
    shift = WqLayout.log_wq_pg_sz.get(wq) + PAGE_SHIFT
    offset = WqLayout.page_offset.get(wq) << shift >> 6
    pages = request[CreateRmpInLayout.ctx.byte + RmpcLayout.wq.byte + WqLayout.pas.byte :]
    buffer = _buffer(function, pages, shift, offset, 1 << log_size + log_stride)
    number = _take_queue_number(function)
    function.srqs[number] = SharedReceiveQueue(
        number,
        bytearray(context),
        log_size,
        log_stride,
        WqLayout.pd.get(wq),
        WqLayout.dbr_addr.get(wq),
        buffer,
        function.memory,
        lambda n: _srq_limit(function, n),
    )
    return answer(CreateRmpOutLayout.SIZE_BYTES, CreateRmpOutLayout.rmpn, number)


def _create_xrc_srq(function: Function, request: bytes) -> bytearray:
    context = CreateXrcSrqInLayout.xrc_srq_context_entry.bytes_of(request)
    log_size = _check_log(XrcSrqcLayout.log_xrc_srq_size.get(context), LOG_MAX_SRQ_SZ)
    log_stride = XrcSrqcLayout.log_rq_stride.get(context) + 4
    shift = XrcSrqcLayout.log_page_size.get(context) + PAGE_SHIFT
    offset = XrcSrqcLayout.page_offset.get(context) << shift >> 6
    pages = request[CreateXrcSrqInLayout.pas.byte :]
    buffer = _buffer(function, pages, shift, offset, 1 << log_size + log_stride)
    high = XrcSrqcLayout.db_record_addr_h.get(context)
    low = XrcSrqcLayout.db_record_addr_l.get(context)
    number = _take_queue_number(function)
    function.srqs[number] = SharedReceiveQueue(
        number,
        bytearray(context),
        log_size,
        log_stride,
        XrcSrqcLayout.pd.get(context),
        high << 32 | low << 2,
        buffer,
        function.memory,
        lambda n: _srq_limit(function, n),
        cqn=XrcSrqcLayout.cqn.get(context),
        user_index=XrcSrqcLayout.user_index.get(context),
        xrcd=XrcSrqcLayout.xrcd.get(context),
    )
    return answer(CreateXrcSrqOutLayout.SIZE_BYTES, CreateXrcSrqOutLayout.xrc_srqn, number)


def _take_queue_number(function: Function) -> int:
    number = function.queue_numbers.take()
    if number is None:
        raise CommandError(Status.LIMIT)
    return number


def _srq(function: Function, number: int) -> SharedReceiveQueue:
    srq = function.srqs.get(number)
    if srq is None:
        raise CommandError(Status.BAD_RES)
    return srq


def _destroy_srq(source: Field) -> Handler:
    def handler(function: Function, request: bytes) -> bytes:
        srq = _srq(function, source.get(request))
        del function.srqs[srq.number]
        function.queue_numbers.give(srq.number)
        return bytes(16)

    return handler


def _query_rmp(function: Function, request: bytes) -> bytearray:
    srq = _srq(function, QueryRmpInLayout.rmpn.get(request))
    reply = bytearray(QueryRmpOutLayout.SIZE_BYTES)
    base = QueryRmpOutLayout.rmp_context.byte
    QueryRmpOutLayout.rmp_context.put_bytes(reply, bytes(srq.context))
    RmpcLayout.state.put(reply, WqState.READY, base)
    WqLayout.lwm.put(reply, srq.limit, base + RmpcLayout.wq.byte)
    return reply


def _query_xrc_srq(function: Function, request: bytes) -> bytearray:
    srq = _srq(function, QueryXrcSrqInLayout.xrc_srqn.get(request))
    reply = bytearray(QueryXrcSrqOutLayout.SIZE_BYTES)
    QueryXrcSrqOutLayout.xrc_srq_context_entry.put_bytes(reply, bytes(srq.context))
    XrcSrqcLayout.lwm.put(reply, srq.limit, QueryXrcSrqOutLayout.xrc_srq_context_entry.byte)
    return reply


def _modify_rmp(function: Function, request: bytes) -> bytes:
    srq = _srq(function, ModifyRmpInLayout.rmpn.get(request))
    srq.limit = WqLayout.lwm.get(request, ModifyRmpInLayout.ctx.byte + RmpcLayout.wq.byte)
    return bytes(16)


def _arm_xrc_srq(function: Function, request: bytes) -> bytes:
    srq = _srq(function, ArmXrcSrqInLayout.xrc_srqn.get(request))
    srq.limit = ArmXrcSrqInLayout.lwm.get(request)
    return bytes(16)


# Ethernet queues


def _create_sq(function: Function, request: bytes) -> bytearray:
    context = CreateSqInLayout.ctx.bytes_of(request)
    wq = context[SqcLayout.wq.byte :]
    log_size = _check_log(WqLayout.log_wq_sz.get(wq), LOG_MAX_WQ_SZ)
    shift = WqLayout.log_wq_pg_sz.get(wq) + PAGE_SHIFT
    offset = WqLayout.page_offset.get(wq) << shift >> 6
    pages = request[CreateSqInLayout.ctx.byte + SqcLayout.wq.byte + WqLayout.pas.byte :]
    buffer = _buffer(function, pages, shift, offset, 1 << log_size + _LOG_SQ_STRIDE)
    ring = SendRing(buffer, WqLayout.dbr_addr.get(wq) + 4, function.memory)
    number = _take_queue_number(function)
    function.sqs[number] = EthernetSend(
        number,
        bytearray(context),
        SqcLayout.cqn.get(context),
        SqcLayout.tis_num_0.get(context),
        ring,
    )
    return answer(CreateSqOutLayout.SIZE_BYTES, CreateSqOutLayout.sqn, number)


def _modify_sq(function: Function, request: bytes) -> bytes:
    sq = function.sqs.get(ModifySqInLayout.sqn.get(request))
    if sq is None:
        raise CommandError(Status.BAD_RES)
    context = ModifySqInLayout.ctx.bytes_of(request)
    state = SqcLayout.state.get(context)
    if state == WqState.RESET:
        sq.ring.reset()
    sq.state = state  # type: ignore[assignment]
    SqcLayout.state.put(sq.context, state)
    return bytes(16)


def _destroy_sq(function: Function, request: bytes) -> bytes:
    number = DestroySqInLayout.sqn.get(request)
    sq = function.sqs.pop(number, None)
    if sq is None:
        raise CommandError(Status.BAD_RES)
    sq.state = WqState.RESET
    function.queue_numbers.give(number)
    return bytes(16)


def _query_sq(function: Function, request: bytes) -> bytearray:
    sq = function.sqs.get(QuerySqInLayout.sqn.get(request))
    if sq is None:
        raise CommandError(Status.BAD_RES)
    reply = bytearray(QuerySqOutLayout.SIZE_BYTES)
    QuerySqOutLayout.sq_context.put_bytes(reply, bytes(sq.context))
    SqcLayout.state.put(reply, sq.state, QuerySqOutLayout.sq_context.byte)
    return reply


def _create_rq(function: Function, request: bytes) -> bytearray:
    context = CreateRqInLayout.ctx.bytes_of(request)
    wq = context[RqcLayout.wq.byte :]
    log_size = _check_log(WqLayout.log_wq_sz.get(wq), LOG_MAX_WQ_SZ)
    log_stride = _check_log(WqLayout.log_wq_stride.get(wq), _MAX_LOG_STRIDE)
    shift = WqLayout.log_wq_pg_sz.get(wq) + PAGE_SHIFT
    offset = WqLayout.page_offset.get(wq) << shift >> 6
    pages = request[CreateRqInLayout.ctx.byte + RqcLayout.wq.byte + WqLayout.pas.byte :]
    buffer = _buffer(function, pages, shift, offset, 1 << log_size + log_stride)
    ring = ReceiveRing(buffer, 1 << log_stride, WqLayout.dbr_addr.get(wq), function.memory)
    is_linked = WqLayout.wq_type.get(wq) != _CYCLIC
    number = _take_queue_number(function)
    function.rqs[number] = EthernetReceive(
        number, bytearray(context), RqcLayout.cqn.get(context), ring, is_linked
    )
    return answer(CreateRqOutLayout.SIZE_BYTES, CreateRqOutLayout.rqn, number)


def _modify_rq(function: Function, request: bytes) -> bytes:
    rq = function.rqs.get(ModifyRqInLayout.rqn.get(request))
    if rq is None:
        raise CommandError(Status.BAD_RES)
    state = RqcLayout.state.get(request, ModifyRqInLayout.ctx.byte)
    if state == WqState.RESET:
        rq.ring.reset()
    rq.state = state  # type: ignore[assignment]
    RqcLayout.state.put(rq.context, state)
    return bytes(16)


def _destroy_rq(function: Function, request: bytes) -> bytes:
    number = DestroyRqInLayout.rqn.get(request)
    if function.rqs.pop(number, None) is None:
        raise CommandError(Status.BAD_RES)
    function.queue_numbers.give(number)
    return bytes(16)


def _query_rq(function: Function, request: bytes) -> bytearray:
    rq = function.rqs.get(QueryRqInLayout.rqn.get(request))
    if rq is None:
        raise CommandError(Status.BAD_RES)
    reply = bytearray(QueryRqOutLayout.SIZE_BYTES)
    QueryRqOutLayout.rq_context.put_bytes(reply, bytes(rq.context))
    RqcLayout.state.put(reply, rq.state, QueryRqOutLayout.rq_context.byte)
    return reply


QUEUE_HANDLERS: Final[dict[Op, Handler]] = {
    Op.CREATE_EQ: _create_eq,
    Op.DESTROY_EQ: _destroy_eq,
    Op.QUERY_EQ: _query_eq,
    Op.CREATE_CQ: _create_cq,
    Op.DESTROY_CQ: _destroy_cq,
    Op.QUERY_CQ: _query_cq,
    Op.MODIFY_CQ: _modify_cq,
    Op.CREATE_QP: _create_qp,
    Op.DESTROY_QP: _destroy_qp,
    Op.QUERY_QP: _query_qp,
    Op.RST2INIT_QP: _modify_qp,
    Op.INIT2INIT_QP: _modify_qp,
    Op.INIT2RTR_QP: _modify_qp,
    Op.RTR2RTS_QP: _modify_qp,
    Op.RTS2RTS_QP: _modify_qp,
    Op.SQERR2RTS_QP: _modify_qp,
    Op.SQD_RTS_QP: _modify_qp,
    Op.QP_2ERR: _modify_qp,
    Op.QP_2RST: _modify_qp,
    Op.CREATE_RMP: _create_rmp,
    Op.MODIFY_RMP: _modify_rmp,
    Op.DESTROY_RMP: _destroy_srq(DestroyRmpInLayout.rmpn),
    Op.QUERY_RMP: _query_rmp,
    Op.CREATE_XRC_SRQ: _create_xrc_srq,
    Op.DESTROY_XRC_SRQ: _destroy_srq(DestroyXrcSrqInLayout.xrc_srqn),
    Op.QUERY_XRC_SRQ: _query_xrc_srq,
    Op.ARM_XRC_SRQ: _arm_xrc_srq,
    Op.CREATE_SQ: _create_sq,
    Op.MODIFY_SQ: _modify_sq,
    Op.DESTROY_SQ: _destroy_sq,
    Op.QUERY_SQ: _query_sq,
    Op.CREATE_RQ: _create_rq,
    Op.MODIFY_RQ: _modify_rq,
    Op.DESTROY_RQ: _destroy_rq,
    Op.QUERY_RQ: _query_rq,
}
