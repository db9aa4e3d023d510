"""Reliable and unreliable transport between two functions, without a kernel."""

from __future__ import annotations

import struct

import pytest
from connectx_guest import (
    ALL_ACCESS,
    SIGNALED,
    Guest,
    GuestCq,
    GuestQp,
    atomic,
    datagram,
    inline,
    pair,
    remote,
    sge,
)

from gdrstorm.bed.connectx.prm import CqeOp, Event, Op, QpState, QpType, Syndrome, WqeOp
from gdrstorm.bed.connectx.requester import PIECE_BYTES

PATTERN = bytes(range(256)) * 40


def test_write_reaches_the_other_function_and_completes() -> None:
    a, qa, b, _ = pair()
    source, lkey = a.make_mr(10240)
    target, rkey = b.make_mr(10240)
    a.put(source, PATTERN)
    index = a.send(qa, WqeOp.WRITE, remote(target + 3, rkey), sge(source, lkey, 10237))
    (cqe,) = a.poll_all(qa.send_cq)
    assert (cqe.opcode, cqe.counter, cqe.user_index) == (CqeOp.REQUESTER, index, 0x55)
    assert b.get(target + 3, 10237) == PATTERN[:10237]


def test_trace_names_commands_and_requests_when_it_is_on() -> None:
    a, qa, b, _ = pair()
    target, rkey = b.make_mr(4096)
    a.send(qa, WqeOp.WRITE, remote(target, rkey), inline(b"unseen"))
    assert a.oracle.trace_lines() == ()
    a.oracle.tracing = True
    a.send(qa, WqeOp.WRITE, remote(target, rkey), inline(b"seen"))
    a.command(Op.NOP, bytes(16))
    first, second = a.oracle.trace_lines()
    assert f"op 0x8 4 bytes to {target:#x} key {rkey:#x}" in first.what
    assert second.what.startswith("NOP")


def test_unsignaled_requests_complete_silently() -> None:
    a, qa, b, _ = pair()
    source, lkey = a.make_mr(4096)
    target, rkey = b.make_mr(4096)
    for _ in range(5):
        a.post(qa, WqeOp.WRITE, remote(target, rkey), sge(source, lkey, 8), flags=0)
    a.post(qa, WqeOp.WRITE, remote(target, rkey), sge(source, lkey, 8))
    a.ring(qa)
    assert len(a.poll_all(qa.send_cq)) == 1


def test_read_gathers_and_scatters() -> None:
    a, qa, b, _ = pair()
    target, lkey = a.make_mr(4096)
    source, rkey = b.make_mr(4096)
    b.put(source, PATTERN[:300])
    a.send(
        qa, WqeOp.READ, remote(source, rkey), sge(target, lkey, 100), sge(target + 1000, lkey, 200)
    )
    (cqe,) = a.poll_all(qa.send_cq)
    assert (cqe.send_opcode, cqe.byte_count) == (WqeOp.READ, 300)
    assert a.get(target, 100) + a.get(target + 1000, 200) == PATTERN[:300]


@pytest.mark.parametrize(
    ("op", "args", "before", "after"),
    [
        (WqeOp.FETCH_ADD, atomic(5), 37, 42),
        (WqeOp.FETCH_ADD, atomic(2**64 - 1), 0, 2**64 - 1),
        (WqeOp.COMPARE_SWAP, atomic(9, 37), 37, 9),
        (WqeOp.COMPARE_SWAP, atomic(9, 36), 37, 37),
    ],
)
def test_atomics_change_memory_and_give_back_the_old_value(
    op: WqeOp, args: bytes, before: int, after: int
) -> None:
    a, qa, b, _ = pair()
    result, lkey = a.make_mr(4096)
    target, rkey = b.make_mr(4096)
    b.put(target, before.to_bytes(8, "little"))
    a.send(qa, op, remote(target, rkey), args, sge(result, lkey, 8))
    assert a.poll_all(qa.send_cq)[0].opcode == CqeOp.REQUESTER
    assert int.from_bytes(a.get(result, 8), "little") == before
    assert int.from_bytes(b.get(target, 8), "little") == after


def test_send_with_immediate_fills_a_receive() -> None:
    a, qa, b, qb = pair()
    target, lkey = b.make_mr(4096)
    b.post_receive(qb, [(target, lkey, 4), (target + 100, lkey, 96)])
    a.send(qa, WqeOp.SEND_IMM, inline(b"hello world"), imm=0xCAFE)
    (cqe,) = b.poll_all(qb.receive_cq)
    assert (cqe.opcode, cqe.byte_count, cqe.imm) == (CqeOp.RECV_SEND_IMM, 11, 0xCAFE)
    assert b.get(target, 4) + b.get(target + 100, 7) == b"hello world"


def test_write_with_immediate_takes_a_receive_but_writes_remotely() -> None:
    a, qa, b, qb = pair()
    target, rkey = b.make_mr(4096)
    b.post_receive(qb, [])
    a.send(qa, WqeOp.WRITE_IMM, remote(target, rkey), inline(b"data"), imm=7)
    (cqe,) = b.poll_all(qb.receive_cq)
    assert (cqe.opcode, cqe.byte_count, cqe.imm) == (CqeOp.RECV_WRITE_IMM, 4, 7)
    assert b.get(target, 4) == b"data"


def test_send_waits_for_a_receive() -> None:
    a, qa, b, qb = pair(rnr_retry=7)
    target, lkey = b.make_mr(4096)
    a.send(qa, WqeOp.SEND, inline(b"late"))
    a.ctx.pass_time(0.1)
    assert a.poll_all(qa.send_cq) == []
    b.post_receive(qb, [(target, lkey, 64)])
    a.ctx.pass_time(0.01)
    assert len(a.poll_all(qa.send_cq)) == 1
    assert b.get(target, 4) == b"late"


def test_receiver_not_ready_is_given_up_after_its_retries() -> None:
    a, qa, _, _ = pair(rnr_retry=3)
    a.send(qa, WqeOp.SEND, inline(b"x"))
    a.ctx.pass_time(1)
    (cqe,) = a.poll_all(qa.send_cq)
    assert (cqe.syndrome, cqe.vendor) == (Syndrome.RNR_EXCEEDED, 0x87)


def test_a_peer_that_is_not_there_ends_in_retry_exceeded() -> None:
    a, qa, b, qb = pair(retry_count=2, ack_timeout=10)
    b.modify(qb, Op.QP_2RST)
    a.send(qa, WqeOp.SEND, inline(b"x"))
    a.ctx.pass_time(2.5 * 4.096e-6 * 1024)
    assert a.poll_all(qa.send_cq) == []
    a.ctx.pass_time(1)
    (cqe,) = a.poll_all(qa.send_cq)
    assert (cqe.opcode, cqe.syndrome, cqe.vendor) == (
        CqeOp.REQUESTER_ERROR,
        Syndrome.RETRY_EXCEEDED,
        0x81,
    )


def test_bad_remote_key_breaks_both_sides_and_flushes() -> None:
    a, qa, b, qb = pair()
    source, lkey = a.make_mr(4096)
    async_eq = b.make_eq(mask=1 << Event.WQ_ACCESS_ERROR)
    assert async_eq
    b.post_receive(qb, [])
    a.post(qa, WqeOp.WRITE, remote(0x1000, 0xDEAD), sge(source, lkey, 8))
    a.post(qa, WqeOp.SEND, inline(b"never"), flags=0)
    a.ring(qa)
    first, second = a.poll_all(qa.send_cq)
    assert (first.syndrome, first.vendor) == (Syndrome.REMOTE_ACCESS, 0x88)
    assert second.syndrome == Syndrome.FLUSHED
    assert b.function.qps[qb.number].state is QpState.ERROR
    assert [c.syndrome for c in b.poll_all(qb.receive_cq)] == [Syndrome.FLUSHED]
    assert b.events(b.eq_base)[0][0] == Event.WQ_ACCESS_ERROR
    assert b.oracle.refusals["unknown"] == 1


def test_local_protection_error_is_reported_as_on_real_cards() -> None:
    a, qa, b, _ = pair()
    target, rkey = b.make_mr(4096)
    a.send(qa, WqeOp.WRITE, remote(target, rkey), sge(0x1000, 0xBAD00, 8))
    (cqe,) = a.poll_all(qa.send_cq)
    assert (cqe.syndrome, cqe.vendor) == (Syndrome.LOCAL_PROTECTION, 0x51)


@pytest.mark.parametrize(
    ("missing", "op"), [(8, WqeOp.WRITE), (4, WqeOp.READ), (16, WqeOp.FETCH_ADD)]
)
def test_remote_permissions_count(missing: int, op: WqeOp) -> None:
    a, qa, b, _ = pair()
    source, lkey = a.make_mr(4096)
    target, rkey = b.make_mr(4096, access=ALL_ACCESS & ~missing)
    args = (atomic(1),) if op is WqeOp.FETCH_ADD else ()
    a.send(qa, op, remote(target, rkey), *args, sge(source, lkey, 8))
    assert a.poll_all(qa.send_cq)[0].syndrome == Syndrome.REMOTE_ACCESS
    assert b.oracle.refusals["permission"] == 1


def test_message_longer_than_the_receive_fails_on_both_sides() -> None:
    a, qa, b, qb = pair()
    target, lkey = b.make_mr(4096)
    b.post_receive(qb, [(target, lkey, 4)])
    a.send(qa, WqeOp.SEND, inline(b"too long"))
    assert a.poll_all(qa.send_cq)[0].syndrome == Syndrome.REMOTE_INVALID_REQUEST
    assert b.poll_all(qb.receive_cq)[0].syndrome == Syndrome.LOCAL_LENGTH
    assert b.get(target, 4) == bytes(4)


def test_receives_posted_to_a_broken_queue_are_flushed() -> None:
    _, _, b, qb = pair()
    b.modify(qb, Op.QP_2ERR)
    b.post_receive(qb, [])
    b.ctx.pass_time(0.01)
    assert [c.syndrome for c in b.poll_all(qb.receive_cq)] == [Syndrome.FLUSHED]


def test_a_reset_stops_the_watch_on_a_broken_queue() -> None:
    _, _, b, qb = pair()
    b.modify(qb, Op.QP_2ERR)
    b.modify(qb, Op.QP_2RST)
    b.ctx.pass_time(1)
    assert b.ctx._timers == []


def test_ring_wraps_many_times() -> None:
    a, qa, b, _ = pair()
    source, lkey = a.make_mr(4096)
    target, rkey = b.make_mr(4096)
    for number in range(300):
        a.put(source, number.to_bytes(2, "big"))
        a.send(qa, WqeOp.WRITE, remote(target, rkey), *[sge(source, lkey, 2)] * 5)
        (cqe,) = a.poll_all(qa.send_cq)
        assert cqe.opcode == CqeOp.REQUESTER
        assert b.get(target, 10) == number.to_bytes(2, "big") * 5


def test_doorbell_beyond_the_ring_breaks_the_queue() -> None:
    a, qa, _, _ = pair()
    qa.sent = 1000
    a.put(qa.record + 4, (1000).to_bytes(4, "big"))
    a.ring(qa)
    assert a.function.qps[qa.number].state is QpState.ERROR
    assert "bad doorbell" in a.oracle.snapshot().anomalies[0].what


def test_loopback_within_one_function() -> None:
    a = Guest()
    first, second = a.make_qp(), a.make_qp()
    a.connect(first, a, second)
    a.connect(second, a, first)
    target, rkey = a.make_mr(4096)
    a.send(first, WqeOp.WRITE, remote(target, rkey), inline(b"self"))
    assert a.get(target, 4) == b"self"


def test_unreliable_datagram_carries_a_header_of_forty_bytes() -> None:
    a = Guest(0)
    b = Guest(1, a.fabric, a.oracle, a.saboteur)
    qa, qb = a.make_qp(QpType.UD), b.make_qp(QpType.UD)
    for guest, qp in ((a, qa), (b, qb)):
        guest.modify(qp, Op.RST2INIT_QP)
        guest.modify(qp, Op.INIT2RTR_QP)
        guest.modify(qp, Op.RTR2RTS_QP)
    target, lkey = b.make_mr(4096)
    b.post_receive(qb, [(target, lkey, 1000)])
    a.send(qa, WqeOp.SEND, datagram(b, qb.number), inline(b"datagram"))
    (cqe,) = b.poll_all(qb.receive_cq)
    assert (cqe.byte_count, cqe.remote_qpn) == (48, qa.number)
    assert b.get(target + 40, 8) == b"datagram"
    assert b.get(target + 24, 16) == b.gid


@pytest.mark.parametrize("qkey", [0x9999, 0])
def test_datagram_with_a_wrong_key_is_dropped(qkey: int) -> None:
    a = Guest(0)
    qa, qb = a.make_qp(QpType.UD), a.make_qp(QpType.UD)
    for qp in (qa, qb):
        a.modify(qp, Op.RST2INIT_QP)
        a.modify(qp, Op.INIT2RTR_QP)
        a.modify(qp, Op.RTR2RTS_QP)
    target, lkey = a.make_mr(4096)
    a.post_receive(qb, [(target, lkey, 1000)])
    a.send(qa, WqeOp.SEND, datagram(a, qb.number, qkey), inline(b"datagram"))
    assert a.poll_all(qb.receive_cq) == []
    assert len(a.poll_all(qa.send_cq)) == 1


def test_shared_receive_queue_follows_its_list_and_reports_its_limit() -> None:
    a = Guest(0)
    b = Guest(1, a.fabric, a.oracle, a.saboteur)
    srqn, ring, record = b.make_srq()
    qa, qb = a.make_qp(), b.make_qp(srqn=srqn)
    a.connect(qa, b, qb)
    b.connect(qb, a, qa)
    b.make_eq(mask=1 << Event.SRQ_LIMIT)
    target, lkey = b.make_mr(4096)
    # The list goes 0, 5, 1: a driver that frees out of order makes such lists.
    for here, following in ((0, 5), (5, 1)):
        b.put(ring + here * 64, struct.pack(">2xH12x", following))
    for slot in (0, 5, 1):
        entry = struct.pack(">IIQ", 64, lkey, target + slot * 64) + struct.pack(">IIQ", 0, 0x100, 0)
        b.put(ring + slot * 64 + 16, entry)
    b.put(record, (3).to_bytes(4, "big"))
    b.function.srqs[srqn].limit = 2
    for text in (b"one", b"two", b"three"):
        a.send(qa, WqeOp.SEND, inline(text))
    assert [c.counter for c in b.poll_all(qb.receive_cq)] == [0, 5, 1]
    assert b.get(target + 5 * 64, 3) == b"two"
    assert b.events(b.eq_base) == [(Event.SRQ_LIMIT, 0, b.events(b.eq_base)[0][2])]


def test_long_messages_go_in_pieces_between_which_memory_may_vanish() -> None:
    a, qa, b, _ = pair()
    size = 3 * PIECE_BYTES // 2
    source, lkey = a.make_mr(size)
    target, rkey = b.make_mr(size)
    a.put(source, bytes(i * 31 & 0xFF for i in range(size)))
    a.send(qa, WqeOp.WRITE, remote(target, rkey), sge(source, lkey, size))
    assert a.poll_all(qa.send_cq) == []
    a.ctx.pass_time(0.001)
    assert len(a.poll_all(qa.send_cq)) == 1
    assert b.get(target, size) == a.get(source, size)
    a.put(source, bytes(size))
    a.send(qa, WqeOp.READ, remote(target, rkey), sge(source, lkey, size))
    a.ctx.pass_time(0.001)
    assert a.poll_all(qa.send_cq)[0].byte_count == size
    assert b.get(target, size) == a.get(source, size)
    a.send(qa, WqeOp.WRITE, remote(target, rkey), sge(source, lkey, size))
    b.ctx.holes.append((target + PIECE_BYTES, target + size))
    a.ctx.pass_time(0.001)
    assert a.poll_all(qa.send_cq)[0].syndrome == Syndrome.REMOTE_ACCESS
    assert b.oracle.snapshot().stray[0].iova == target + PIECE_BYTES


@pytest.mark.parametrize("by_driver", [True, False])
def test_last_receive_of_a_shared_queue_is_an_event(by_driver: bool) -> None:
    a = Guest(0)
    b = Guest(1, a.fabric, a.oracle, a.saboteur)
    srqn, _, _ = b.make_srq()
    qa, qb = a.make_qp(), b.make_qp(srqn=srqn)
    a.connect(qa, b, qb)
    b.connect(qb, a, qa)
    b.make_eq(mask=1 << Event.LAST_WQE)
    if by_driver:
        b.modify(qb, Op.QP_2ERR)
    else:
        a.send(qa, WqeOp.WRITE, remote(0, 0xBAD), inline(b"x"))
    ((kind, _, data),) = b.events(b.eq_base)
    assert (kind, int.from_bytes(data[24:28], "big")) == (Event.LAST_WQE, qb.number)


def test_long_message_with_immediate_takes_one_receive_at_its_end() -> None:
    a, qa, b, qb = pair()
    size = 2 * PIECE_BYTES
    source, lkey = a.make_mr(size)
    target, rkey = b.make_mr(size)
    for _ in range(3):
        b.post_receive(qb, [])
    a.send(qa, WqeOp.WRITE_IMM, remote(target, rkey), sge(source, lkey, size), imm=5)
    assert b.poll_all(qb.receive_cq) == []
    a.ctx.pass_time(0.001)
    (cqe,) = b.poll_all(qb.receive_cq)
    assert (cqe.imm, cqe.byte_count) == (5, size)


def test_message_from_a_stranger_is_not_heard() -> None:
    a, qa, b, _ = pair(retry_count=0)
    stranger = a.make_qp()
    target, rkey = b.make_mr(4096)
    peer = b.make_qp()
    b.connect(peer, a, qa)
    a.connect(stranger, b, peer, retry_count=0)
    a.send(stranger, WqeOp.WRITE, remote(target, rkey), inline(b"x"))
    a.ctx.pass_time(1)
    assert a.poll_all(stranger.send_cq)[0].syndrome == Syndrome.RETRY_EXCEEDED
    assert b.get(target, 1) == b"\0"


def xrc_pair() -> tuple[Guest, GuestQp, Guest, GuestQp, GuestCq, tuple[int, int, int]]:
    """A sender, and a target whose SRQ has another protection domain than its QP."""
    a = Guest(0)
    b = Guest(1, a.fabric, a.oracle, a.saboteur)
    qa, qb = a.make_qp(QpType.XRC), b.make_qp(QpType.XRC)
    b.pd = 9
    cq = b.make_cq()
    srq = b.make_xrc_srq(cq, pd=9)
    b.pd = 7
    a.connect(qa, b, qb)
    b.connect(qb, a, qa)
    b.pd = 9
    return a, qa, b, qb, cq, srq


def xrc(srqn: int) -> bytes:
    return struct.pack(">I12x", srqn)


def test_xrc_send_lands_in_the_srq_and_completes_under_its_index() -> None:
    a, qa, b, _, cq, (srqn, ring, record) = xrc_pair()
    target, lkey = b.make_mr(4096)
    entry = struct.pack(">IIQ", 64, lkey, target) + struct.pack(">IIQ", 0, 0x100, 0)
    b.put(ring, struct.pack(">2xH12x", 1) + entry)
    b.put(record, (1).to_bytes(4, "big"))
    a.send(qa, WqeOp.SEND, xrc(srqn), inline(b"across domains"))
    (cqe,) = b.poll_all(cq)
    assert (cqe.opcode, cqe.user_index, cqe.byte_count) == (CqeOp.RECV_SEND, 0x77, 14)
    assert b.get(target, 14) == b"across domains"


def test_xrc_remote_access_counts_the_domain_of_the_srq() -> None:
    a, qa, b, _, _, (srqn, _, _) = xrc_pair()
    target, rkey = b.make_mr(4096)
    a.send(qa, WqeOp.WRITE, xrc(srqn), remote(target, rkey), inline(b"x"))
    assert a.poll_all(qa.send_cq)[0].opcode == CqeOp.REQUESTER
    a.send(qa, WqeOp.WRITE, xrc(0xBAD), remote(target, rkey), inline(b"x"))
    assert a.poll_all(qa.send_cq)[0].syndrome == Syndrome.REMOTE_ACCESS


def test_missing_page_of_a_receive_is_a_fault_of_its_queue() -> None:
    a, qa, b, qb = pair()
    b.make_eq(mask=1 << Event.PAGE_FAULT)
    target, lkey = b.make_mr(4096, present=False)
    b.post_receive(qb, [(target, lkey, 64)])
    a.send(qa, WqeOp.SEND, inline(b"later"))
    ((_, subtype, data),) = b.events(b.eq_base)
    _, wqe, _, token, queue = struct.unpack(">I2xH2xHI8xI", data)
    assert (subtype, wqe, queue) == (0, 0, 2 << 24 | qb.number)
    b.function.mkeys.keys[lkey >> 8].write_translations(0, struct.pack(">Q", target | 3))
    _resume(b, token, error=False)
    assert b.poll_all(qb.receive_cq)[0].byte_count == 5
    assert b.get(target, 5) == b"later"
    assert len(a.poll_all(qa.send_cq)) == 1


def test_missing_remote_page_asks_the_driver_and_goes_on() -> None:
    a, qa, b, _ = pair()
    eq = b.make_eq(mask=1 << Event.PAGE_FAULT)
    assert eq
    source, lkey = a.make_mr(4096)
    target, rkey = b.make_mr(8192, present=False)
    a.put(source, PATTERN[:100])
    a.send(qa, WqeOp.WRITE, remote(target + 50, rkey), sge(source, lkey, 100))
    assert a.poll_all(qa.send_cq) == []
    ((kind, subtype, data),) = b.events(b.eq_base)
    committed, key, packet, length, va, token = struct.unpack(">II2xHIQI", data)
    assert (kind, subtype, committed, key) == (Event.PAGE_FAULT, 1, 0, rkey)
    assert (packet, length, va, token >> 24) == (100, 100, target + 50, 2)
    b.function.mkeys.keys[rkey >> 8].write_translations(
        0, struct.pack(">2Q", target | 3, target + 4096 | 3)
    )
    _resume(b, token & 0xFFFFFF, error=False)
    assert a.poll_all(qa.send_cq)[0].opcode == CqeOp.REQUESTER
    assert b.get(target + 50, 100) == PATTERN[:100]


def test_page_that_the_driver_cannot_map_is_a_remote_access_error() -> None:
    a, qa, b, qb = pair()
    b.make_eq(mask=1 << Event.PAGE_FAULT)
    target, rkey = b.make_mr(4096, present=False)
    a.send(qa, WqeOp.WRITE, remote(target, rkey), inline(b"x"))
    _resume(b, 1, error=True)
    assert a.poll_all(qa.send_cq)[0].syndrome == Syndrome.REMOTE_ACCESS
    assert b.function.qps[qb.number].state is QpState.ERROR
    assert b.oracle.page_fault_errors == 1


def test_missing_local_page_is_a_fault_of_the_work_request() -> None:
    a, qa, b, _ = pair()
    a.make_eq(mask=1 << Event.PAGE_FAULT)
    source, lkey = a.make_mr(4096, present=False)
    target, rkey = b.make_mr(4096)
    index = a.send(qa, WqeOp.WRITE, remote(target, rkey), sge(source, lkey, 8))
    ((kind, subtype, data),) = a.events(a.eq_base)
    _, wqe, _, token, queue = struct.unpack(">I2xH2xHI8xI", data)
    assert (kind, subtype, wqe, queue) == (Event.PAGE_FAULT, 0, index, 1 << 24 | qa.number)
    a.function.mkeys.keys[lkey >> 8].write_translations(0, struct.pack(">Q", source | 3))
    _resume(a, token, error=False)
    assert a.poll_all(qa.send_cq)[0].opcode == CqeOp.REQUESTER


def test_a_driver_that_never_maps_the_page_does_not_hang_us() -> None:
    a, qa, b, _ = pair()
    b.make_eq(mask=1 << Event.PAGE_FAULT, log_size=10)
    target, rkey = b.make_mr(4096, present=False)
    a.send(qa, WqeOp.WRITE, remote(target, rkey), inline(b"x"))
    for token in range(1, 600):
        if not len(b.function.faults):
            break
        _resume(b, token, error=False)
    assert a.poll_all(qa.send_cq)[0].syndrome == Syndrome.REMOTE_ACCESS


def test_reset_while_a_page_fault_waits() -> None:
    a, qa, b, _ = pair()
    b.make_eq(mask=1 << Event.PAGE_FAULT)
    target, rkey = b.make_mr(4096, present=False)
    a.send(qa, WqeOp.WRITE, remote(target, rkey), inline(b"x"))
    a.modify(qa, Op.QP_2RST)
    _resume(b, 1, error=False)
    assert a.poll_all(qa.send_cq) == []
    assert b.command(Op.PAGE_FAULT_RESUME, struct.pack(">8xII", 0, 1))[0] != 0


def test_send_and_invalidate_frees_the_key_when_it_allows_that() -> None:
    a, qa, b, qb = pair()
    _, rkey = b.make_mr(4096)
    b.function.mkeys.keys[rkey >> 8].remote_invalidate = True
    b.post_receive(qb, [])
    a.send(qa, WqeOp.SEND_INVALIDATE, imm=rkey, flags=SIGNALED)
    assert b.function.mkeys.keys[rkey >> 8].free
    assert b.poll_all(qb.receive_cq)[0].imm == rkey


def _resume(guest: Guest, token: int, error: bool) -> None:
    guest.succeed(Op.PAGE_FAULT_RESUME, struct.pack(">8xII", error << 31, token))
