"""Work requests: any bytes parse or are refused, and what was built is what is read."""

from __future__ import annotations

import struct

import pytest
from connectx_guest import inline, remote, sge
from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.bed.connectx.prm import QpType, WqeOp
from gdrstorm.bed.connectx.wqe import (
    BadWqe,
    SendWqe,
    Sge,
    parse_ctrl,
    parse_receive,
    parse_send,
    window,
)


def build(op: int, *segments: bytes, flags: int = 0, imm: int = 0) -> bytes:
    body = b"".join(segments)
    count = 1 + len(body) // 16
    return struct.pack(">IIII", 0x1234 << 8 | op, 0x77 << 8 | count, flags, imm) + body


@given(raw=st.binary(max_size=1100), kind=st.sampled_from(list(QpType)))
def test_any_bytes_are_a_request_or_refused(raw: bytes, kind: QpType) -> None:
    try:
        wqe = parse_send(raw, kind)
    except BadWqe:
        return
    assert isinstance(wqe, SendWqe)
    assert len(wqe.data) <= 63


@given(
    raw=st.binary(min_size=16, max_size=1024),
    op=st.sampled_from(list(WqeOp)),
    kind=st.sampled_from(list(QpType)),
)
def test_any_request_of_a_known_operation(raw: bytes, op: WqeOp, kind: QpType) -> None:
    count = max(1, min(63, len(raw) // 16))
    raw = raw[:3] + bytes((op,)) + raw[4:7] + bytes((count,)) + raw[8:]
    try:
        parse_send(raw, kind)
    except BadWqe:
        return


def test_control_segment() -> None:
    ctrl = parse_ctrl(build(WqeOp.SEND_IMM, flags=0x0A, imm=99))
    assert (ctrl.opcode, ctrl.index, ctrl.qpn, ctrl.imm) == (WqeOp.SEND_IMM, 0x1234, 0x77, 99)
    assert ctrl.signaled
    assert ctrl.solicited
    assert not parse_ctrl(build(WqeOp.SEND)).signaled


@given(
    pieces=st.lists(
        st.one_of(
            st.binary(min_size=1, max_size=60),
            st.builds(
                Sge, st.integers(1, 2**31 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
            ),
        ),
        max_size=10,
    ),
    where=st.integers(0, 2**64 - 1),
)
def test_data_segments_come_back_in_order(pieces: list[bytes | Sge], where: int) -> None:
    segments = [
        inline(p) if isinstance(p, bytes) else sge(p.address, p.key, p.size_bytes) for p in pieces
    ]
    wqe = parse_send(build(WqeOp.WRITE, remote(where, 5), *segments), QpType.RC)
    assert list(wqe.data) == pieces
    assert wqe.remote is not None
    assert (wqe.remote.address, wqe.remote.key) == (where, 5)


@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    step=st.integers(1, 25),
)
def test_windows_cover_a_list_once_and_in_order(sizes: list[int], step: int) -> None:
    data = tuple(Sge(size, 1, 1000 * n) for n, size in enumerate(sizes))
    every = [piece.address + i for piece in data for i in range(piece.size_bytes)]
    seen = []
    for start in range(0, len(every), step):
        for piece in window(data, start, min(step, len(every) - start)):
            assert isinstance(piece, Sge)
            seen += [piece.address + i for i in range(piece.size_bytes)]
    assert seen == every


def test_zero_length_means_two_gigabytes() -> None:
    wqe = parse_send(build(WqeOp.SEND, sge(0, 1, 0)), QpType.RC)
    assert wqe.size_bytes == 1 << 31


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        bytes(16),
        build(WqeOp.WRITE),
        build(WqeOp.UMR, bytes(32)),
        build(WqeOp.COMPARE_SWAP, bytes(16)),
        struct.pack(">IIII", WqeOp.SEND, 63, 0, 0),
        build(WqeOp.SEND, struct.pack(">I12x", 0x80000000 | 100)),
    ],
)
def test_short_requests_are_refused(raw: bytes) -> None:
    with pytest.raises(BadWqe):
        parse_send(raw, QpType.RC)


def test_receive_list_ends_at_the_terminating_key() -> None:
    raw = sge(1, 2, 3) + struct.pack(">IIQ", 0, 0x100, 0) + sge(4, 5, 6)
    assert parse_receive(raw, 0x100) == (Sge(3, 2, 1),)
