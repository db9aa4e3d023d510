"""The PCI function: what the driver reads and writes before and beside commands, and disasters."""

from __future__ import annotations

import struct

import pytest
from connectx_guest import UAR, Guest, GuestQp, inline, pair, remote, sge
from hypothesis import given, settings
from hypothesis import strategies as st

from gdrstorm.bed.connectx.layouts import MkcLayout
from gdrstorm.bed.connectx.plant import (
    CompletionPlant,
    Disaster,
    DisasterPlant,
    HealthPlant,
    Mishap,
    PageFaultPlant,
    StalePlant,
    UmrPlant,
)
from gdrstorm.bed.connectx.prm import (
    CqeOp,
    Event,
    MkeyMask,
    NicState,
    Op,
    PortChange,
    QpType,
    Syndrome,
    UmrFlag,
    WqeOp,
)

HEALTH_COUNTER = 0x1010
EXPRESS_CONTROL = 0x68


def read(guest: Guest, at: int, size: int = 4) -> int:
    return int.from_bytes(guest.device.region_read(0, at, size), "big")


def nic_state(guest: Guest) -> int:
    return read(guest, 0x14) >> 8 & 7


def test_firmware_is_ready_and_versioned() -> None:
    guest = Guest()
    assert (read(guest, 0) & 0xFFFF, read(guest, 0) >> 16) == (26, 35)
    assert read(guest, 4) >> 16 == 5
    assert read(guest, 0x1FC) >> 31 == 0
    assert read(guest, 0x230) not in (0, 0xFFFFFFFF)
    assert (read(guest, 0x14) >> 4 & 0xF, read(guest, 0x14) & 0xF) == (5, 6)


def test_driver_takes_the_interface_by_naming_its_command_queue() -> None:
    guest = Guest()
    assert nic_state(guest) == NicState.DISABLED
    guest.device.region_write(0, 0x14, (0x5000).to_bytes(4, "big"))
    assert nic_state(guest) == NicState.FULL_DRIVER


def test_health_counter_comes_from_the_clock() -> None:
    guest = Guest()
    before = read(guest, HEALTH_COUNTER)
    guest.ctx.time_ns += 1_000_000_000
    assert read(guest, HEALTH_COUNTER) == before + 100
    assert guest.ctx._timers == []


@settings(max_examples=100)
@given(
    writes=st.lists(
        st.tuples(
            st.one_of(st.integers(0, 0x3000), st.integers(UAR, UAR + 0x1FFF)),
            st.binary(min_size=1, max_size=8),
        ),
        max_size=30,
    )
)
def test_any_write_and_read_is_survived(writes: list[tuple[int, bytes]]) -> None:
    guest = Guest()
    qp = guest.make_qp()
    guest.connect(qp, guest, qp)
    for at, data in writes:
        guest.device.region_write(0, at, data)
        assert len(guest.device.region_read(0, at, len(data))) == len(data)
    guest.ctx.pass_time(1)


@settings(max_examples=100, deadline=None)
@given(ring=st.binary(min_size=64 * 16, max_size=64 * 16), producer=st.integers(0, 0xFFFF))
def test_any_ring_is_worked_through(ring: bytes, producer: int) -> None:
    guest = Guest()
    for kind in (QpType.RC, QpType.UD, QpType.REG_UMR, QpType.XRC):
        qp = guest.make_qp(kind, log_sq=4)
        guest.connect(qp, guest, qp)
        guest.put(qp.base + qp.rq_bytes, ring)
        guest.put(qp.record + 4, producer.to_bytes(4, "big"))
        guest.ring(qp)
    guest.ctx.pass_time(60)


def test_function_level_reset_forgets_everything_and_says_what_it_forgot() -> None:
    guest = Guest()
    qp = guest.make_qp()
    guest.connect(qp, guest, qp)
    guest.send(qp, WqeOp.SEND, inline(b"waits for a receive"))
    old = guest.function
    guest.device.config_write(EXPRESS_CONTROL, (0x8000).to_bytes(2, "little"))
    assert guest.function is not old
    assert guest.function.qps == {}
    assert nic_state(guest) == NicState.DISABLED
    assert guest.oracle.snapshot().leaks[0].when == "RESET"
    before = bytes(guest.ctx.memory)
    guest.ctx.pass_time(10)
    assert bytes(guest.ctx.memory) == before


def test_vanished_function_reads_as_ones_and_touches_nothing() -> None:
    a, qa, b, _ = pair(retry_count=1)
    a.saboteur.plant(DisasterPlant(disaster=Disaster.VANISH, function=1))
    assert read(b, 0x230) == 0xFFFFFFFF
    assert b.device.config_read(0, 4) == b"\xff" * 4
    assert read(a, 0x230) != 0xFFFFFFFF
    a.send(qa, WqeOp.SEND, inline(b"x"))
    a.ctx.pass_time(10)
    assert a.poll_all(qa.send_cq)[0].syndrome == Syndrome.RETRY_EXCEEDED
    a.saboteur.plant(DisasterPlant(disaster=Disaster.RETURN, function=1))
    assert b.device.config_read(0, 2) == (0x15B3).to_bytes(2, "little")


def test_wedged_function_stands_still_but_can_be_read() -> None:
    guest = Guest()
    qp = guest.make_qp()
    guest.connect(qp, guest, qp)
    guest.saboteur.plant(DisasterPlant(disaster=Disaster.WEDGE))
    before = read(guest, HEALTH_COUNTER)
    guest.ctx.time_ns += 5_000_000_000
    guest.send(qp, WqeOp.NOP)
    assert read(guest, HEALTH_COUNTER) == before
    assert guest.poll_all(qp.send_cq) == []
    guest.saboteur.plant(DisasterPlant(disaster=Disaster.RETURN))
    guest.ring(qp)
    assert len(guest.poll_all(qp.send_cq)) == 1
    assert read(guest, HEALTH_COUNTER) == before + 500


def test_health_syndrome_and_recovery_by_software_reset() -> None:
    guest = Guest()
    guest.make_qp()
    guest.saboteur.plant(HealthPlant(syndrome=0x10, fatal=True))
    assert guest.device.region_read(0, 0x23D, 1) == b"\x10"
    assert guest.device.region_read(0, 0x238, 1)[0] & 0x80
    assert read(guest, 0x1FC) >> 30 == 1
    guest.device.region_write(0, 0x14, (NicState.SW_RESET << 8).to_bytes(4, "big"))
    assert nic_state(guest) == NicState.SW_RESET
    guest.ctx.pass_time(1)
    assert nic_state(guest) == NicState.DISABLED
    assert guest.device.region_read(0, 0x23D, 1) == b"\0"
    assert guest.function.qps == {}
    assert guest.oracle.snapshot().leaks[0].when == "SW_RESET"


def test_software_reset_that_another_reset_overtook_does_nothing() -> None:
    guest = Guest()
    guest.device.region_write(0, 0x14, (NicState.SW_RESET << 8).to_bytes(4, "big"))
    guest.device.reset()
    fresh = guest.function
    guest.ctx.pass_time(1)
    assert guest.function is fresh


def test_port_goes_down_and_up_with_an_event() -> None:
    a, qa, b, _ = pair(retry_count=7, ack_timeout=10)
    b.make_eq(mask=1 << Event.PORT_CHANGE)
    target, rkey = b.make_mr(4096)
    a.saboteur.plant(DisasterPlant(disaster=Disaster.PORT_DOWN, function=1))
    a.send(qa, WqeOp.WRITE, remote(target, rkey), inline(b"x"))
    assert a.poll_all(qa.send_cq) == []
    a.saboteur.plant(DisasterPlant(disaster=Disaster.PORT_UP, function=1))
    a.ctx.pass_time(1)
    assert a.poll_all(qa.send_cq)[0].opcode == CqeOp.REQUESTER
    events = [(kind, subtype, data[8]) for kind, subtype, data in b.events(b.eq_base)]
    assert events == [
        (Event.PORT_CHANGE, PortChange.DOWN, 0x10),
        (Event.PORT_CHANGE, PortChange.ACTIVE, 0x10),
    ]


def test_planted_completion_error_breaks_the_queue() -> None:
    a, qa, b, _ = pair()
    target, rkey = b.make_mr(4096)
    a.saboteur.plant(
        CompletionPlant(syndrome=Syndrome.REMOTE_OPERATION, vendor_syndrome=0x77, nth=2)
    )
    for _ in range(3):
        a.send(qa, WqeOp.WRITE, remote(target, rkey), inline(b"x"))
    first, second, third = a.poll_all(qa.send_cq)
    assert first.opcode == CqeOp.REQUESTER
    assert (second.syndrome, second.vendor) == (Syndrome.REMOTE_OPERATION, 0x77)
    assert third.syndrome == Syndrome.FLUSHED


# Registration


def umr(
    flags: int, mask: int, table_bytes: int = 0, free: bool = False, length: int = 4096
) -> bytes:
    context = bytearray(MkcLayout.SIZE_BYTES)
    MkcLayout.free.put(context, free)
    MkcLayout.len.put(context, length)
    control = struct.pack(">B3xHHQ32x", flags, table_bytes // 16, 0, mask)
    return control + bytes(context)


def revoke(guest: Guest, qp: GuestQp, key: int) -> None:
    mask = MkeyMask.FREE
    guest.send(qp, WqeOp.UMR, umr(UmrFlag.INLINE, mask, free=True), imm=key)


def registrar(guest: Guest) -> GuestQp:
    qp = guest.make_qp(QpType.REG_UMR)
    guest.modify(qp, Op.RST2INIT_QP)
    guest.modify(qp, Op.INIT2RTR_QP)
    guest.modify(qp, Op.RTR2RTS_QP)
    return qp


def test_registration_by_work_request() -> None:
    guest = Guest()
    qp = registrar(guest)
    base, key = guest.make_mr(8192, present=False)
    table, lkey = guest.make_mr(4096)
    guest.put(table, struct.pack(">2Q", base | 3, base + 4096 | 3))
    guest.send(qp, WqeOp.UMR, umr(UmrFlag.FAIL_IF_FREE, 0, 64), sge(table, lkey, 64), imm=key)
    (cqe,) = guest.poll_all(qp.send_cq)
    assert (cqe.opcode, cqe.send_opcode) == (CqeOp.REQUESTER, WqeOp.UMR)
    assert guest.function.mkeys.keys[key >> 8].translations[:8] == struct.pack(">Q", base | 3)
    revoke(guest, qp, key)
    assert guest.function.mkeys.keys[key >> 8].free


def test_registration_of_a_free_key_that_must_not_be_free_fails() -> None:
    guest = Guest()
    qp = registrar(guest)
    _, key = guest.make_mr(4096)
    guest.send(qp, WqeOp.UMR, umr(UmrFlag.FAIL_IF_NOT_FREE | UmrFlag.INLINE, 0), imm=key)
    assert guest.poll_all(qp.send_cq)[0].syndrome == Syndrome.MW_BIND
    assert "not free" in guest.oracle.snapshot().anomalies[0].what


@pytest.mark.parametrize("mishap", list(Mishap))
def test_planted_registration_mishaps(mishap: Mishap) -> None:
    guest = Guest()
    qp = registrar(guest)
    _, key = guest.make_mr(4096)
    guest.saboteur.plant(UmrPlant(mishap=mishap, delay_s=0.5, times=2))
    revoke(guest, qp, key)
    at_once = guest.poll_all(qp.send_cq)
    guest.ctx.pass_time(1)
    later = guest.poll_all(qp.send_cq)
    if mishap is Mishap.FAIL:
        assert at_once[0].syndrome == Syndrome.MW_BIND
    elif mishap is Mishap.DELAY:
        assert (at_once, len(later)) == ([], 1)
    else:
        assert at_once == later == []
    assert guest.function.mkeys.keys[key >> 8].free == (mishap is not Mishap.FAIL)


def test_stale_writes_are_made_and_marked_as_planted() -> None:
    guest = Guest()
    qp = registrar(guest)
    base, key = guest.make_mr(4096)
    guest.saboteur.plant(StalePlant(delay_s=0.01, size_bytes=10))
    revoke(guest, qp, key)
    assert guest.get(base, 10) == bytes(10)
    guest.ctx.pass_time(0.1)
    assert any(guest.get(base, 10))
    assert not any(guest.get(base + 10, 100))
    _, key = guest.make_mr(4096)
    guest.saboteur.plant(StalePlant(delay_s=0.01))
    base = guest._free - 4096
    revoke(guest, qp, key)
    guest.ctx.holes.append((base, base + 4096))
    guest.device.dma_unmapped(base, 4096)
    guest.ctx.pass_time(0.1)
    (stray,) = guest.oracle.snapshot().stray
    assert (stray.planted, stray.mkey, stray.write) == (True, key, True)
    assert stray.unmapped_ago_ns is not None
    assert stray.unmapped_ago_ns > 0


def test_data_access_to_memory_that_was_unmapped_without_a_revoke() -> None:
    a, qa, b, _ = pair()
    target, rkey = b.make_mr(4096)
    b.ctx.holes.append((target, target + 4096))
    index = a.send(qa, WqeOp.WRITE, remote(target, rkey), inline(b"late"))
    assert a.poll_all(qa.send_cq)[0].syndrome == Syndrome.REMOTE_ACCESS
    (stray,) = b.oracle.snapshot().stray
    assert (stray.function, stray.mkey, stray.wqe_index) == (1, rkey, index)
    assert (stray.kind.value, stray.unmapped_ago_ns) == ("data", None)


@pytest.mark.parametrize("mishap", list(Mishap))
def test_planted_page_fault_mishaps(mishap: Mishap) -> None:
    a, qa, b, _ = pair()
    b.make_eq(mask=1 << Event.PAGE_FAULT)
    target, rkey = b.make_mr(4096, present=False)
    a.saboteur.plant(PageFaultPlant(mishap=mishap, delay_s=0.5))
    a.send(qa, WqeOp.WRITE, remote(target, rkey), inline(b"x"))
    before = len(b.events(b.eq_base))
    b.ctx.pass_time(1)
    after = len(b.events(b.eq_base))
    failed = a.poll_all(qa.send_cq)
    if mishap is Mishap.FAIL:
        assert failed[0].syndrome == Syndrome.REMOTE_ACCESS
    else:
        assert failed == []
        assert (before, after) == (0, int(mishap is Mishap.DELAY))
