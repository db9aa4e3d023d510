"""Frames between the netdevs of two functions."""

from __future__ import annotations

import struct

from connectx_guest import Guest, GuestCq

from gdrstorm.bed.connectx.layouts import (
    CreateFlowGroupInLayout,
    CreateFlowGroupOutLayout,
    CreateFlowTableInLayout,
    CreateFlowTableOutLayout,
    CreateRqInLayout,
    CreateRqOutLayout,
    CreateSqInLayout,
    CreateSqOutLayout,
    CreateTirInLayout,
    CreateTirOutLayout,
    CreateTisInLayout,
    CreateTisOutLayout,
    FlowContextLayout,
    FlowTableContextLayout,
    FteMatchSetLyr24Layout,
    ModifyFlowTableInLayout,
    ModifyRqInLayout,
    ModifySqInLayout,
    RqcLayout,
    SetFlowTableRootInLayout,
    SetFteInLayout,
    SqcLayout,
    TircLayout,
    TiscLayout,
    WqLayout,
)
from gdrstorm.bed.connectx.prm import CqeOp, Op, WqeOp, WqState

LOG_SIZE = 3
PAYLOAD = bytes(range(200))


class Netdev:
    """One send and one receive queue of a guest, as mlx5e makes them."""

    def __init__(self, guest: Guest, domain: int = 1) -> None:
        self.guest = guest
        self.send_cq, self.receive_cq = guest.make_cq(), guest.make_cq()
        self.key_base, self.key = guest.make_mr(16384)
        self.record = guest.alloc(8)
        self.tisn = self._make_tis(domain)
        self.send_base, self.sqn = self._make(
            Op.CREATE_SQ, CreateSqInLayout.ctx.byte, SqcLayout.wq.byte, self.send_cq, 6
        )
        self.receive_base, self.rqn = self._make(
            Op.CREATE_RQ, CreateRqInLayout.ctx.byte, RqcLayout.wq.byte, self.receive_cq, 5
        )
        self.sent = self.posted = 0
        self._ready()
        self.tirn = self._make_tir(domain)

    def _make_tis(self, domain: int) -> int:
        request = bytearray(CreateTisInLayout.SIZE_BYTES)
        TiscLayout.transport_domain.put(request, domain, CreateTisInLayout.ctx.byte)
        reply = self.guest.succeed(Op.CREATE_TIS, request)
        return CreateTisOutLayout.tisn.get(reply)

    def _make_tir(self, domain: int) -> int:
        request = bytearray(CreateTirInLayout.SIZE_BYTES)
        TircLayout.transport_domain.put(request, domain, CreateTirInLayout.ctx.byte)
        TircLayout.inline_rqn.put(request, self.rqn, CreateTirInLayout.ctx.byte)
        reply = self.guest.succeed(Op.CREATE_TIR, request)
        return CreateTirOutLayout.tirn.get(reply)

    def steer(self, mask: bytes = b"", value: bytes = b"", root: bool = True) -> int:
        """A table with one entry that sends matching frames here."""
        reply = self.guest.succeed(Op.CREATE_FLOW_TABLE, bytes(CreateFlowTableInLayout.SIZE_BYTES))
        table = CreateFlowTableOutLayout.table_id.get(reply)
        group = bytearray(CreateFlowGroupInLayout.SIZE_BYTES)
        CreateFlowGroupInLayout.table_id.put(group, table)
        CreateFlowGroupInLayout.match_criteria_enable.put(group, int(bool(mask)))
        CreateFlowGroupInLayout.match_criteria.put_bytes(group, mask)
        reply = self.guest.succeed(Op.CREATE_FLOW_GROUP, group)
        entry = bytearray(SetFteInLayout.SIZE_BYTES)
        SetFteInLayout.table_id.put(entry, table)
        base = SetFteInLayout.flow_context.byte
        FlowContextLayout.group_id.put(entry, CreateFlowGroupOutLayout.group_id.get(reply), base)
        FlowContextLayout.action.put(entry, 4, base)
        FlowContextLayout.match_value.put_bytes(entry, value, base)
        FlowContextLayout.destination_list_size.put(entry, 1, base)
        destination = struct.pack(">BBHI", 2, 0, self.tirn, 0)
        self.guest.succeed(Op.SET_FLOW_TABLE_ENTRY, entry + destination)
        if root:
            self.set_root(table)
        return table

    def set_root(self, table: int) -> None:
        request = bytearray(SetFlowTableRootInLayout.SIZE_BYTES)
        SetFlowTableRootInLayout.table_id.put(request, table)
        self.guest.succeed(Op.SET_FLOW_TABLE_ROOT, request)

    def _make(self, op: Op, context: int, wq: int, cq: GuestCq, log_stride: int) -> tuple[int, int]:
        base = self.guest.alloc(4096)
        at = context + wq
        request = bytearray(at + WqLayout.pas.byte)
        layout = SqcLayout if op is Op.CREATE_SQ else RqcLayout
        layout.cqn.put(request, cq.number, context)
        if op is Op.CREATE_SQ:
            SqcLayout.tis_num_0.put(request, self.tisn, context)
        WqLayout.wq_type.put(request, 1, at)
        WqLayout.log_wq_sz.put(request, LOG_SIZE, at)
        WqLayout.log_wq_stride.put(request, log_stride, at)
        WqLayout.dbr_addr.put(request, self.record, at)
        reply = self.guest.succeed(op, request + struct.pack(">Q", base))
        field = CreateSqOutLayout.sqn if op is Op.CREATE_SQ else CreateRqOutLayout.rqn
        return base, field.get(reply)

    def _ready(self) -> None:
        request = bytearray(ModifySqInLayout.SIZE_BYTES)
        ModifySqInLayout.sqn.put(request, self.sqn)
        SqcLayout.state.put(request, WqState.READY, ModifySqInLayout.ctx.byte)
        self.guest.succeed(Op.MODIFY_SQ, request)
        request = bytearray(ModifyRqInLayout.SIZE_BYTES)
        ModifyRqInLayout.rqn.put(request, self.rqn)
        RqcLayout.state.put(request, WqState.READY, ModifyRqInLayout.ctx.byte)
        self.guest.succeed(Op.MODIFY_RQ, request)

    def post_buffer(self, size: int = 2048) -> int:
        at = self.key_base + 2048 * (self.posted % 4)
        self.guest.put(
            self.receive_base + self.posted % 8 * 32,
            struct.pack(">IIQ", size, self.key, at) + struct.pack(">IIQ", 0, 0x100, 0),
        )
        self.posted += 1
        self.guest.put(self.record, self.posted.to_bytes(4, "big"))
        return at

    def transmit(self, frame: bytes, inline: int = 18) -> None:
        """Headers inline, the rest by a data segment."""
        at = self.key_base + 12288
        self.guest.put(at, frame[inline:])
        eth = struct.pack(">12xH", inline) + frame[:inline]
        eth = eth.ljust(16 + (max(0, inline - 2) + 15) // 16 * 16, b"\0")
        data = struct.pack(">IIQ", len(frame) - inline, self.key, at)
        body = eth + data
        count = 1 + len(body) // 16
        word = struct.pack(">II", self.sent << 8 | WqeOp.SEND, self.sqn << 8 | count)
        raw = (word + struct.pack(">II", 8, 0) + body).ljust(64, b"\0")
        self.guest.put(self.send_base + self.sent % 8 * 64, raw)
        self.sent += (len(raw) + 63) // 64
        self.guest.put(self.record + 4, self.sent.to_bytes(4, "big"))
        self.guest.device.region_write(0, 0x10800, word)


def two() -> tuple[Netdev, Netdev]:
    a = Guest(0)
    pair = Netdev(a), Netdev(Guest(1, a.fabric, a.oracle, a.saboteur))
    for netdev in pair:
        netdev.steer()
    return pair


def frame(target: bytes, source: Guest) -> bytes:
    return target + source.function.port.mac + b"\x08\x00" + PAYLOAD


def test_frame_reaches_its_mac_and_completes_on_both_sides() -> None:
    a, b = two()
    at = b.post_buffer()
    sent = frame(b.guest.function.port.mac, a.guest)
    for inline in (18, 2, 40):
        a.transmit(sent, inline)
        (cqe,) = b.guest.poll_all(b.receive_cq)
        assert (cqe.opcode, cqe.byte_count) == (CqeOp.RECV_SEND, len(sent))
        assert b.guest.get(at, len(sent)) == sent
        assert len(a.guest.poll_all(a.send_cq)) == 1
        at = b.post_buffer()


def test_broadcast_reaches_the_others_and_nobody_else_does() -> None:
    a, b = two()
    a.post_buffer()
    b.post_buffer()
    a.transmit(frame(b"\xff" * 6, a.guest))
    assert len(b.guest.poll_all(b.receive_cq)) == 1
    assert a.guest.poll_all(a.receive_cq) == []
    a.transmit(frame(b"\x02\x99\x99\x99\x99\x99", a.guest))
    assert b.guest.poll_all(b.receive_cq) == []


def test_frame_without_a_buffer_is_dropped_but_completes() -> None:
    a, b = two()
    a.transmit(frame(b.guest.function.port.mac, a.guest))
    assert len(a.guest.poll_all(a.send_cq)) == 1
    b.post_buffer(size=16)
    a.transmit(frame(b.guest.function.port.mac, a.guest))
    assert b.guest.poll_all(b.receive_cq) == []


def test_frame_from_memory_that_is_not_registered_breaks_the_queue() -> None:
    a, b = two()
    b.post_buffer()
    a.key = 0xBAD00
    a.transmit(frame(b.guest.function.port.mac, a.guest))
    (cqe,) = a.guest.poll_all(a.send_cq)
    assert cqe.opcode == CqeOp.REQUESTER_ERROR
    a.transmit(frame(b.guest.function.port.mac, a.guest))
    assert a.guest.poll_all(a.send_cq) == []


def test_raw_loopback_reaches_another_transport_domain_of_the_same_function() -> None:
    guest = Guest()
    sender, receiver = Netdev(guest, domain=1), Netdev(guest, domain=2)
    sender.steer()
    sender.post_buffer()
    receiver.post_buffer()
    sender.transmit(frame(b"\x24\x8a\x07\xa5\x28\xc8", guest))
    assert guest.poll_all(sender.receive_cq) == []
    receiver.steer()
    sender.transmit(frame(b"\x24\x8a\x07\xa5\x28\xc8", guest))
    assert len(guest.poll_all(receiver.receive_cq)) == 1


def test_tables_match_headers_and_misses_go_on() -> None:
    a, b = two()
    other = Netdev(b.guest)
    mask, value = bytearray(64), bytearray(64)
    FteMatchSetLyr24Layout.ethertype.put(mask, 0xFFFF)
    FteMatchSetLyr24Layout.ethertype.put(value, 0x88B5)
    first, rest = b.steer(bytes(mask), bytes(value), root=False), other.steer(root=False)
    request = bytearray(ModifyFlowTableInLayout.SIZE_BYTES)
    ModifyFlowTableInLayout.table_id.put(request, first)
    base = ModifyFlowTableInLayout.flow_table_context.byte
    FlowTableContextLayout.table_miss_action.put(request, 1, base)
    FlowTableContextLayout.table_miss_id.put(request, rest, base)
    b.guest.succeed(Op.MODIFY_FLOW_TABLE, request)
    b.set_root(first)
    b.post_buffer()
    other.post_buffer()
    target = b.guest.function.port.mac
    a.transmit(target + target + b"\x88\xb5" + PAYLOAD)
    a.transmit(target + target + b"\x08\x00" + PAYLOAD)
    assert len(b.guest.poll_all(b.receive_cq)) == 1
    assert len(b.guest.poll_all(other.receive_cq)) == 1


def test_tables_that_miss_into_each_other_end() -> None:
    a, b = two()
    table = b.steer(bytes((0xFF,)), bytes((0x55,)), root=False)
    request = bytearray(ModifyFlowTableInLayout.SIZE_BYTES)
    ModifyFlowTableInLayout.table_id.put(request, table)
    base = ModifyFlowTableInLayout.flow_table_context.byte
    FlowTableContextLayout.table_miss_action.put(request, 1, base)
    FlowTableContextLayout.table_miss_id.put(request, table, base)
    b.guest.succeed(Op.MODIFY_FLOW_TABLE, request)
    b.set_root(table)
    a.transmit(frame(b.guest.function.port.mac, a.guest))
    assert len(a.guest.poll_all(a.send_cq)) == 1
