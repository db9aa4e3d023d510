"""Rings of completions and events: owner bits, arming, overrun and resize."""

from __future__ import annotations

import struct

from connectx_guest import FakeContext, Guest, pair
from hypothesis import given, settings
from hypothesis import strategies as st

from gdrstorm.bed.connectx.cq import Completion
from gdrstorm.bed.connectx.layouts import CqcLayout, ModifyCqInLayout, QpcLayout
from gdrstorm.bed.connectx.memory import GuestMemory, PagedBuffer
from gdrstorm.bed.connectx.oracle import Oracle
from gdrstorm.bed.connectx.prm import CqeOp, Event, Op, RqType, Status, WqeOp
from gdrstorm.bed.connectx.qp import ring_geometry

UAR = 0x10000


def entry(number: int, solicited: bool = False) -> Completion:
    return Completion(CqeOp.REQUESTER, 5, 6, number, solicited=solicited)


@settings(max_examples=30)
@given(log_size=st.integers(0, 4), chunks=st.lists(st.integers(1, 16), max_size=20))
def test_owner_bit_tells_new_entries_from_old_over_many_wraps(
    log_size: int, chunks: list[int]
) -> None:
    guest = Guest()
    cq = guest.make_cq(log_size)
    posted = seen = 0
    for chunk in chunks:
        for _ in range(min(chunk, 1 << log_size)):
            assert guest.function.cqs[cq.number].post(entry(posted))
            posted += 1
        for cqe in guest.poll_all(cq):
            assert cqe.counter == seen & 0xFFFF
            seen += 1
        assert seen == posted


def test_overrun_is_an_event_and_ends_the_queue() -> None:
    guest = Guest()
    guest.make_eq(mask=1 << Event.CQ_ERROR)
    cq = guest.make_cq(2)
    model = guest.function.cqs[cq.number]
    assert [model.post(entry(i)) for i in range(5)] == [True] * 4 + [False]
    kind, _, data = guest.events(guest.eq_base)[0]
    assert (kind, int.from_bytes(data[:4], "big"), data[11]) == (Event.CQ_ERROR, cq.number, 1)
    assert "overrun" in guest.oracle.snapshot().anomalies[0].what


def test_consumer_index_in_memory_makes_room() -> None:
    guest = Guest()
    cq = guest.make_cq(1)
    for number in range(20):
        assert guest.function.cqs[cq.number].post(entry(number))
        assert guest.poll(cq) is not None


def arm(guest: Guest, number: int, consumer: int, solicited: bool = False) -> None:
    word = struct.pack(">II", (1 << 24 if solicited else 0) | consumer, number)
    guest.device.region_write(0, UAR + 0x20, word)


def arm_eq(guest: Guest, eqn: int, consumer: int) -> None:
    guest.device.region_write(0, UAR + 0x40, (eqn << 24 | consumer).to_bytes(4, "big"))


def test_armed_queue_tells_once() -> None:
    guest = Guest()
    eqn = guest.make_eq(vector=3)
    arm_eq(guest, eqn, 0)
    cq = guest.make_cq(eqn=eqn)
    model = guest.function.cqs[cq.number]
    model.post(entry(0))
    assert guest.ctx.irqs == []
    arm(guest, cq.number, 1)
    model.post(entry(1))
    model.post(entry(2))
    assert guest.ctx.irqs == [3]
    ((kind, _, data),) = guest.events(guest.eq_base)
    assert (kind, int.from_bytes(data[24:28], "big")) == (Event.COMPLETION, cq.number)


def test_arming_with_news_tells_at_once() -> None:
    guest = Guest()
    eqn = guest.make_eq()
    cq = guest.make_cq(eqn=eqn)
    guest.function.cqs[cq.number].post(entry(0))
    arm(guest, cq.number, 0)
    assert len(guest.events(guest.eq_base)) == 1
    assert guest.ctx.irqs == []
    arm_eq(guest, eqn, 0)
    assert guest.ctx.irqs == [0]


def test_solicited_arming_waits_for_a_solicited_entry() -> None:
    guest = Guest()
    cq = guest.make_cq(eqn=guest.make_eq())
    model = guest.function.cqs[cq.number]
    arm(guest, cq.number, 0, solicited=True)
    model.post(entry(0))
    assert guest.events(guest.eq_base) == []
    model.post(entry(1, solicited=True))
    assert len(guest.events(guest.eq_base)) == 1


def test_doorbell_in_two_words() -> None:
    guest = Guest()
    cq = guest.make_cq(eqn=guest.make_eq())
    guest.device.region_write(0, UAR + 0x20, bytes(4))
    guest.device.region_write(0, UAR + 0x24, cq.number.to_bytes(4, "big"))
    guest.function.cqs[cq.number].post(entry(0))
    assert len(guest.events(guest.eq_base)) == 1


def test_full_event_queue_loses_events_but_not_itself() -> None:
    guest = Guest()
    guest.make_eq(mask=1 << Event.PORT_CHANGE, log_size=1)
    report = guest.function.eqs.report
    assert [report(Event.PORT_CHANGE) for _ in range(3)] == [True, True, False]
    assert "overrun" in guest.oracle.snapshot().anomalies[0].what


def test_event_owner_bit_flips_when_the_ring_wraps() -> None:
    guest = Guest()
    eqn = guest.make_eq(mask=1 << Event.PORT_CHANGE, log_size=1)
    owners = []
    for number in range(6):
        guest.function.eqs.report(Event.PORT_CHANGE)
        owners.append(guest.get(guest.eq_base + number % 2 * 64, 64)[63])
        guest.device.region_write(0, UAR + 0x48, (eqn << 24 | number + 1).to_bytes(4, "big"))
    assert owners == [0, 0, 1, 1, 0, 0]


def test_resize_ends_the_old_ring_and_goes_on_in_the_new() -> None:
    guest = Guest()
    cq = guest.make_cq(2)
    model = guest.function.cqs[cq.number]
    for number in range(3):
        model.post(entry(number))
    base = guest.alloc(64 << 3)
    request = bytearray(ModifyCqInLayout.SIZE_BYTES)
    request[6:8] = (1).to_bytes(2, "big")
    ModifyCqInLayout.cqn.put(request, cq.number)
    CqcLayout.log_cq_size.put(request, 3, ModifyCqInLayout.cq_context.byte)
    guest.succeed(Op.MODIFY_CQ, request + struct.pack(">Q", base))
    assert [c.opcode for c in guest.poll_all(cq)] == [0, 0, 0, CqeOp.RESIZE]
    model.post(entry(77))
    raw = guest.get(base + 4 * 64, 64)
    assert (int.from_bytes(raw[60:62], "big"), raw[63] & 1) == (77, 0)


def test_geometry_of_a_queue_pair_counts_offsets_in_parts_of_its_pages() -> None:
    context = bytearray(QpcLayout.SIZE_BYTES)
    QpcLayout.log_page_size.put(context, 2)
    QpcLayout.page_offset.put(context, 3)
    QpcLayout.log_rq_size.put(context, 4)
    QpcLayout.log_rq_stride.put(context, 2)
    QpcLayout.log_sq_size.put(context, 5)
    assert ring_geometry(context) == (14, 3 * 256, 64 << 4, 64, 64 << 5)
    QpcLayout.rq_type.put(context, RqType.NONE)
    QpcLayout.no_sq.put(context, 1)
    assert ring_geometry(context)[2::2] == (0, 0)


def test_a_ring_too_small_for_what_is_unread_is_refused() -> None:
    guest = Guest()
    cq = guest.make_cq(3)
    for number in range(5):
        guest.function.cqs[cq.number].post(entry(number))
    request = bytearray(ModifyCqInLayout.SIZE_BYTES)
    request[6:8] = (1).to_bytes(2, "big")
    ModifyCqInLayout.cqn.put(request, cq.number)
    CqcLayout.log_cq_size.put(request, 2, ModifyCqInLayout.cq_context.byte)
    page = struct.pack(">Q", guest.alloc(4096))
    assert guest.command(Op.MODIFY_CQ, request + page)[0] == Status.BAD_CQ_SIZE
    guest.poll_all(cq)
    guest.succeed(Op.MODIFY_CQ, request + page)


def test_large_entries_are_found_in_their_second_half() -> None:
    guest = Guest()
    cq = guest.make_cq(2)
    model = guest.function.cqs[cq.number]
    model.entry_bytes = 128
    model._buffer.size_bytes = 512
    model.post(entry(9))
    assert int.from_bytes(guest.get(cq.base + 64 + 60, 2), "big") == 9


def test_a_queue_in_unmapped_memory_is_recorded_as_stray() -> None:
    a, qa, _, _ = pair()
    a.ctx.holes.append((qa.send_cq.base, qa.send_cq.base + 4096))
    a.device.dma_unmapped(qa.send_cq.base, 4096)
    a.ctx.time_ns += 5000
    a.send(qa, WqeOp.NOP)
    (stray,) = a.oracle.snapshot().stray
    assert (stray.iova, stray.write, stray.unmapped_ago_ns) == (qa.send_cq.base, True, 5000)


@given(
    shift=st.sampled_from([12, 13]),
    offset=st.integers(0, 63),
    size=st.integers(1, 5),
    position=st.integers(0, 40000),
    length=st.integers(1, 300),
)
def test_paged_ring_reads_what_it_wrote(
    shift: int, offset: int, size: int, position: int, length: int
) -> None:
    memory = GuestMemory(FakeContext(), Oracle(), 0)
    start = offset << shift >> 6
    ring_bytes = size << 12
    count = PagedBuffer.needed_pages(shift, start, ring_bytes)
    # Pages backwards, so that neighbours in the ring are none in memory.
    pages = tuple((i + 1) << shift for i in reversed(range(count)))
    ring = PagedBuffer(memory, pages, shift, start, ring_bytes)
    data = bytes(i * 7 & 0xFF for i in range(length))
    ring.write(position, data)
    assert ring.read(position, length) == data
