"""Messages out of any cut of the stream, each with its own descriptors."""

from __future__ import annotations

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.bed.vfio_user import protocol
from gdrstorm.bed.vfio_user.framing import Framer, FramingError


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 2)), min_size=1, max_size=8),
    st.data(),
)
def test_any_cut_gives_the_same_messages(
    messages: list[tuple[bytes, int]], data: st.DataObject
) -> None:
    """A chunk ends where its descriptors' message ends at the latest, as the kernel does it."""
    framer = Framer()
    seen: list[tuple[int, bytes, list[int]]] = []
    expected: list[tuple[int, bytes, list[int]]] = []
    pending = b""
    for number, (payload, count) in enumerate(messages):
        raw = protocol.build_request(number, 9, payload)
        fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
        expected.append((number, payload, fds))
        # With descriptors the kernel may glue earlier data before, and never data behind.
        cut = data.draw(st.integers(1, len(raw)))
        if fds:
            framer.feed(pending + raw[:cut], fds)
            pending = raw[cut:]
        elif data.draw(st.booleans()):
            framer.feed(pending + raw[:cut], [])
            pending = raw[cut:]
        else:
            pending += raw
        seen += [(f.header.message_id, f.payload, f.take_fds()) for f in framer.frames()]
    framer.feed(pending, [])
    seen += [(f.header.message_id, f.payload, f.take_fds()) for f in framer.frames()]
    for _number, _payload, fds in expected:
        for fd in fds:
            os.close(fd)
    assert seen == expected


def test_stopping_in_the_middle_loses_nothing() -> None:
    framer = Framer()
    framer.feed(b"".join(protocol.build_request(n, 9) for n in range(3)), [])
    for frame in framer.frames():
        assert frame.header.message_id == 0
        break
    assert [frame.header.message_id for frame in framer.frames()] == [1, 2]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, errno.EINVAL), (15, errno.EINVAL), (protocol.MAX_MESSAGE_BYTES + 1, errno.EMSGSIZE)],
)
def test_impossible_sizes(size: int, expected: int) -> None:
    framer = Framer()
    framer.feed(protocol.HEADER.pack(3, 9, size, 0, 0), [])
    with pytest.raises(FramingError) as caught:
        list(framer.frames())
    assert caught.value.errno == expected
    assert caught.value.header.message_id == 3


def test_close_closes_what_nobody_took() -> None:
    framer = Framer()
    fd = os.open("/dev/null", os.O_RDONLY)
    framer.feed(b"\0" * 4, [fd])
    framer.close()
    with pytest.raises(OSError):
        os.fstat(fd)
    framer.close()
