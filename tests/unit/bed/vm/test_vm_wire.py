"""Frames survive any cutting of the byte stream, and garbage is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.bed.vm.guest.wire import (
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    Decoder,
    Frame,
    Kind,
    WireError,
    encode,
)

FRAMES = st.lists(
    st.builds(Frame, st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.binary(max_size=300)),
    max_size=8,
)


@given(FRAMES, st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_any_cutting_gives_the_same_frames(frames: list[Frame], cuts: list[int]) -> None:
    stream = b"".join(encode(*frame) for frame in frames)
    decoder = Decoder()
    got: list[Frame] = []
    offset = turn = 0
    while offset < len(stream):
        step = cuts[turn % len(cuts)]
        got += decoder.feed(stream[offset : offset + step])
        offset, turn = offset + step, turn + 1
    assert got == frames
    assert decoder.pending_bytes == 0


def test_incomplete_frame_is_kept() -> None:
    decoder = Decoder()
    assert decoder.feed(encode(Kind.STDOUT, 1, b"abc")[:-1]) == []
    assert decoder.pending_bytes == HEADER_BYTES + 2


@pytest.mark.parametrize(
    "stream",
    [
        b"\xff" + bytes(HEADER_BYTES - 1),
        bytes([Kind.STDOUT]) + bytes(4) + (MAX_PAYLOAD_BYTES + 1).to_bytes(4, "big"),
        b"[    1.0] Linux version",
    ],
)
def test_garbage_is_refused(stream: bytes) -> None:
    with pytest.raises(WireError):
        Decoder().feed(stream)


def test_oversized_payload_is_refused_when_sent() -> None:
    encode(Kind.STDIN, 1, bytes(MAX_PAYLOAD_BYTES))
    with pytest.raises(ValueError, match="exceeds"):
        encode(Kind.STDIN, 1, bytes(MAX_PAYLOAD_BYTES + 1))
