"""Commands: fuzzed ones never crash the model, and what the driver relies on."""

from __future__ import annotations

import struct

import pytest
from connectx_guest import MEMORY_BYTES, Guest, inline
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gdrstorm.bed.connectx.caps import build_caps
from gdrstorm.bed.connectx.cmd import SLOT_BYTES
from gdrstorm.bed.connectx.device import HANDLERS
from gdrstorm.bed.connectx.layouts import (
    AllocPdOutLayout,
    AllocQCounterOutLayout,
    CmdHcaCapLayout,
    DeallocQCounterInLayout,
    HcaVportContextLayout,
    ManagePagesInLayout,
    ManagePagesOutLayout,
    ModifyHcaVportContextInLayout,
    QueryHcaCapOutLayout,
    QueryHcaVportContextOutLayout,
    SetHcaCapInLayout,
)
from gdrstorm.bed.connectx.options import ConnectXOptions, LinkLayer
from gdrstorm.bed.connectx.plant import CommandPlant, Mishap
from gdrstorm.bed.connectx.prm import CapGroup, Delivery, Event, Op, Status, WqeOp

SLOTS = 0x80000
MAILBOX_IN = 0x90000
MAILBOX_OUT = 0xA0000


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.sampled_from([*Op, 0, 0x10E, 0xFFFF]), st.binary(max_size=700)), max_size=6
    )
)
def test_fuzzed_commands_are_always_answered(requests: list[tuple[int, bytes]]) -> None:
    guest = Guest()
    for op, body in requests:
        reply = guest.command(op, body.ljust(8, b"\0"))
        assert len(reply) >= 12
        assert reply[0] in set(Status)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    op=st.sampled_from([o for o in Op if o.name.startswith(("CREATE", "MODIFY"))]), data=st.data()
)
def test_fuzzed_creations_with_full_contexts(op: Op, data: st.DataObject) -> None:
    guest = Guest()
    body = data.draw(st.binary(min_size=0x120, max_size=0x400))
    assert guest.command(op, body)[0] in set(Status)


def test_unknown_command_is_a_bad_operation() -> None:
    assert Guest().command(0x10E, bytes(16))[0] == Status.BAD_OP


def test_every_known_command_has_a_handler() -> None:
    assert set(Op) == set(HANDLERS)


def test_numbers_of_plain_objects() -> None:
    guest = Guest()
    first = AllocPdOutLayout.pd.get(guest.succeed(Op.ALLOC_PD, bytes(16)))
    second = AllocPdOutLayout.pd.get(guest.succeed(Op.ALLOC_PD, bytes(16)))
    assert first != second
    request = struct.pack(">8xI4x", first)
    guest.succeed(Op.DEALLOC_PD, request)
    assert guest.command(Op.DEALLOC_PD, request)[0] == Status.BAD_RES
    third = AllocPdOutLayout.pd.get(guest.succeed(Op.ALLOC_PD, bytes(16)))
    guest.succeed(Op.DEALLOC_PD, struct.pack(">8xI4x", third))
    fourth = AllocPdOutLayout.pd.get(guest.succeed(Op.ALLOC_PD, bytes(16)))
    assert len({first, second, third, fourth}) == 4


def test_port_capabilities_change_by_mask() -> None:
    guest = Guest(options=ConnectXOptions(link_layer=LinkLayer.INFINIBAND))
    request = bytearray(ModifyHcaVportContextInLayout.SIZE_BYTES)
    base = ModifyHcaVportContextInLayout.hca_vport_context.byte
    for mask, value in ((0xF0, 0xFF), (0x0F, 0x03)):
        HcaVportContextLayout.cap_mask1_field_select.put(request, mask, base)
        HcaVportContextLayout.cap_mask1.put(request, value, base)
        guest.succeed(Op.MODIFY_HCA_VPORT_CONTEXT, request)
    reply = guest.succeed(Op.QUERY_HCA_VPORT_CONTEXT, bytes(16))
    base = QueryHcaVportContextOutLayout.hca_vport_context.byte
    assert HcaVportContextLayout.cap_mask1.get(reply, base) == 0xF3


def test_counter_sets_are_reused_within_a_byte() -> None:
    guest = Guest()
    for _ in range(300):
        number = AllocQCounterOutLayout.counter_set_id.get(
            guest.succeed(Op.ALLOC_Q_COUNTER, bytes(16))
        )
        request = bytearray(DeallocQCounterInLayout.SIZE_BYTES)
        DeallocQCounterInLayout.counter_set_id.put(request, number)
        guest.succeed(Op.DEALLOC_Q_COUNTER, request)


def test_pages_come_back_exactly_as_given() -> None:
    guest = Guest()
    pages = [0x5000, 0x9000, 0x3000]
    give = bytearray(ManagePagesInLayout.SIZE_BYTES)
    give[6:8] = (1).to_bytes(2, "big")
    ManagePagesInLayout.input_num_entries.put(give, 3)
    guest.succeed(Op.MANAGE_PAGES, give + struct.pack(">3Q", *pages))
    take = bytearray(ManagePagesInLayout.SIZE_BYTES)
    take[6:8] = (2).to_bytes(2, "big")
    ManagePagesInLayout.input_num_entries.put(take, 10)
    reply = guest.succeed(Op.MANAGE_PAGES, take)
    assert ManagePagesOutLayout.output_num_entries.get(reply) == 3
    assert sorted(struct.unpack(">3Q", reply[16:40])) == sorted(pages)


def test_leaks_are_counted_at_teardown() -> None:
    guest = Guest()
    guest.make_qp()
    guest.make_mr(4096)
    guest.succeed(Op.ALLOC_PD, bytes(16))
    guest.succeed(Op.TEARDOWN_HCA, bytes(16))
    (leak,) = guest.oracle.snapshot().leaks
    assert leak.when == "TEARDOWN_HCA"
    assert leak.objects == {"qp": 1, "cq": 2, "mkey": 1, "pd": 1}


def test_clean_teardown_leaks_nothing() -> None:
    guest = Guest()
    guest.succeed(Op.TEARDOWN_HCA, bytes(16))
    guest.succeed(Op.DISABLE_HCA, bytes(16))
    assert guest.oracle.snapshot().leaks == ()


@pytest.mark.parametrize("layer", list(LinkLayer))
def test_capabilities_are_what_was_set(layer: LinkLayer) -> None:
    guest = Guest(options=ConnectXOptions(link_layer=layer))
    caps = bytearray(build_caps(guest.device._options)[CapGroup.GENERAL])
    CmdHcaCapLayout.log_max_qp.put(caps, 11)
    guest.succeed(Op.SET_HCA_CAP, bytes(SetHcaCapInLayout.capability.byte) + caps)
    for current, wanted in ((1, 11), (0, 17)):
        reply = guest.succeed(Op.QUERY_HCA_CAP, struct.pack(">HHHH8x", 0, 0, 0, current))
        base = QueryHcaCapOutLayout.capability.byte
        assert CmdHcaCapLayout.log_max_qp.get(reply, base) == wanted


def test_capability_group_that_is_not_there() -> None:
    guest = Guest(options=ConnectXOptions(link_layer=LinkLayer.INFINIBAND))
    request = struct.pack(">HHHH8x", 0, 0, 0, CapGroup.ROCE << 1)
    assert guest.command(Op.QUERY_HCA_CAP, request)[0] == Status.BAD_PARAM


# Slots


def start(guest: Guest) -> None:
    guest.device.region_write(0, 0x10, bytes(4))
    guest.device.region_write(0, 0x14, SLOTS.to_bytes(4, "big"))


def submit(guest: Guest, slot: int, request: bytes, out_length: int, kind: int = 7) -> None:
    at = SLOTS + slot * SLOT_BYTES
    rest = request[16:]
    blocks = [rest[i : i + 512] for i in range(0, len(rest), 512)]
    for number, block in enumerate(blocks):
        here = MAILBOX_IN + number * 1024
        following = here + 1024 if number + 1 < len(blocks) else 0
        guest.put(here, block.ljust(560, b"\0") + following.to_bytes(8, "big"))
    out_blocks = max(0, out_length - 16 + 511) // 512
    for number in range(out_blocks):
        here = MAILBOX_OUT + number * 1024
        following = here + 1024 if number + 1 < out_blocks else 0
        guest.put(here + 560, following.to_bytes(8, "big"))
    head = struct.pack(">B3xIQ", kind, len(request), MAILBOX_IN if blocks else 0)
    tail = struct.pack(">QIBBBB", MAILBOX_OUT if out_blocks else 0, out_length, 0, 0, 0, 1)
    guest.put(at, head + request[:16].ljust(16, b"\0") + bytes(16) + tail)
    guest.device.region_write(0, 0x18, (1 << slot).to_bytes(4, "big"))


def status(guest: Guest, slot: int) -> int:
    return guest.get(SLOTS + slot * SLOT_BYTES + 63, 1)[0]


def test_slot_with_long_output_through_mailboxes() -> None:
    guest = Guest()
    start(guest)
    request = struct.pack(">HHHH8x", Op.QUERY_HCA_CAP, 0, 0, 1)
    submit(guest, 3, request, QueryHcaCapOutLayout.SIZE_BYTES)
    assert status(guest, 3) == 0
    caps = b"".join(guest.get(MAILBOX_OUT + i * 1024, 512) for i in range(8))
    assert caps == build_caps(guest.device._options)[CapGroup.GENERAL][: len(caps)]


def test_slot_with_long_input_through_mailboxes() -> None:
    guest = Guest()
    start(guest)
    pages = tuple(0x1000 * i for i in range(1, 151))
    request = struct.pack(">HHHHII", Op.MANAGE_PAGES, 0, 0, 1, 0, 150) + struct.pack(
        ">150Q", *pages
    )
    submit(guest, 31, request, 16)
    assert status(guest, 31) == 0
    assert guest.function.pages == set(pages)


@pytest.mark.parametrize(
    ("kind", "request_bytes", "out_length", "delivery"),
    [
        (6, bytes(16), 16, Delivery.BAD_DESCRIPTOR),
        (7, bytes(4), 16, Delivery.BAD_INPUT_LENGTH),
        (7, bytes(16), 1 << 30, Delivery.BAD_OUTPUT_LENGTH),
    ],
)
def test_bad_slots_are_given_back(
    kind: int, request_bytes: bytes, out_length: int, delivery: Delivery
) -> None:
    guest = Guest()
    start(guest)
    at = SLOTS
    head = struct.pack(">B3xIQ", kind, len(request_bytes), 0)
    guest.put(at, head + bytes(32) + struct.pack(">QI3xB", 0, out_length, 1))
    guest.device.region_write(0, 0x18, (1).to_bytes(4, "big"))
    assert status(guest, 0) == delivery << 1


def test_chain_that_ends_early_is_a_bad_block() -> None:
    guest = Guest()
    start(guest)
    head = struct.pack(">B3xIQ", 7, 2000, MAILBOX_IN)
    guest.put(SLOTS, head + bytes(32) + struct.pack(">QI3xB", 0, 16, 1))
    guest.device.region_write(0, 0x18, (1).to_bytes(4, "big"))
    assert status(guest, 0) == Delivery.BAD_BLOCK << 1


def test_slot_outside_memory_is_recorded() -> None:
    guest = Guest()
    guest.device.region_write(0, 0x14, (MEMORY_BYTES).to_bytes(4, "big"))
    guest.device.region_write(0, 0x18, (1).to_bytes(4, "big"))
    assert guest.oracle.snapshot().stray[0].kind.value == "mailbox"


def test_completion_event_only_for_commands_after_the_queue_was_made() -> None:
    guest = Guest()
    start(guest)
    submit(guest, 0, struct.pack(">H14x", Op.NOP), 16)
    guest.make_eq(mask=1 << Event.COMMAND)
    assert guest.events(guest.eq_base) == []
    submit(guest, 5, struct.pack(">H14x", Op.NOP), 16)
    ((kind, _, data),) = guest.events(guest.eq_base)
    assert (kind, int.from_bytes(data[:4], "big")) == (Event.COMMAND, 1 << 5)


# A driver that comes back without a reset


def give_page(guest: Guest) -> None:
    request = bytearray(ManagePagesInLayout.SIZE_BYTES)
    request[6:8] = (1).to_bytes(2, "big")
    ManagePagesInLayout.input_num_entries.put(request, 1)
    guest.succeed(Op.MANAGE_PAGES, request + struct.pack(">Q", 0x5000))


def test_enable_after_a_clean_end_finds_no_leftovers() -> None:
    guest = Guest()
    start(guest)
    submit(guest, 0, struct.pack(">H14x", Op.ENABLE_HCA), 16)
    assert status(guest, 0) == 0
    assert guest.oracle.snapshot().leaks == ()


def test_enable_drops_what_an_earlier_driver_left_and_counts_it() -> None:
    guest = Guest()
    start(guest)
    guest.make_eq(mask=1 << Event.COMMAND)
    qp = guest.make_qp()
    guest.connect(qp, guest, qp)
    # Waits for a receive: it has a timer.
    guest.send(qp, WqeOp.SEND, inline(b"x"))
    guest.function.fabric.attach(guest.gid, guest.index, qp.number)
    guest.make_mr(4096)
    guest.succeed(Op.ALLOC_PD, bytes(16))
    give_page(guest)
    submit(guest, 0, struct.pack(">H14x", Op.ENABLE_HCA), 16)
    assert status(guest, 0) == 0
    (leak,) = guest.oracle.snapshot().leaks
    assert leak.when == "ENABLE_HCA"
    assert leak.objects == {"eq": 1, "qp": 1, "cq": 2, "mkey": 1, "pd": 1, "page": 1}
    assert guest.function.live_objects() == {}
    assert guest.function.fabric._groups == {guest.gid: set()}
    assert not any(timer.run for _, _, timer in guest.ctx._timers)
    before = bytes(guest.ctx.memory)
    guest.ctx.pass_time(10)
    assert bytes(guest.ctx.memory) == before


def test_commands_after_enable_are_told_to_the_new_event_queue_alone() -> None:
    guest = Guest()
    start(guest)
    guest.make_eq(mask=1 << Event.COMMAND)
    old = guest.eq_base
    submit(guest, 0, struct.pack(">H14x", Op.ENABLE_HCA), 16)
    assert guest.events(old) == []
    guest.make_eq(mask=1 << Event.COMMAND)
    submit(guest, 5, struct.pack(">H14x", Op.NOP), 16)
    ((_, _, data),) = guest.events(guest.eq_base)
    assert int.from_bytes(data[:4], "big") == 1 << 5
    assert guest.events(old) == []


# Plants


def test_nth_command_fails_with_status_and_syndrome() -> None:
    guest = Guest()
    guest.saboteur.plant(
        CommandPlant(
            opcode=Op.ALLOC_PD, mishap=Mishap.FAIL, nth=2, status=Status.LIMIT, syndrome=0xABC
        )
    )
    start(guest)
    results = []
    for _ in range(3):
        submit(guest, 0, struct.pack(">H14x", Op.ALLOC_PD), 16)
        out = guest.get(SLOTS + 32, 16)
        results.append((out[0], int.from_bytes(out[4:8], "big")))
    assert results[1] == (Status.LIMIT, 0xABC)
    assert [r[0] for r in results] == [0, Status.LIMIT, 0]


def test_command_that_is_never_answered_and_one_that_is_late() -> None:
    guest = Guest()
    start(guest)
    guest.saboteur.plant(CommandPlant(opcode=Op.NOP, mishap=Mishap.DROP))
    guest.saboteur.plant(CommandPlant(opcode=Op.ALLOC_PD, mishap=Mishap.DELAY, delay_s=0.5))
    submit(guest, 0, struct.pack(">H14x", Op.NOP), 16)
    submit(guest, 1, struct.pack(">H14x", Op.ALLOC_PD), 16)
    guest.ctx.pass_time(0.4)
    assert (status(guest, 0), status(guest, 1)) == (1, 1)
    guest.ctx.pass_time(10)
    assert (status(guest, 0), status(guest, 1)) == (1, 0)
    assert guest.oracle.commands["NOP"] == 1
