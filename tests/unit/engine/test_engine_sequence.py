"""The deterministic sequences: against a mirror in Python, and their rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_storms import program
from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.engine import Step, StormProgram, sequence
from gdrstorm.model.op import Order

MASK = 2**64 - 1
KIB = 1024

programs = st.builds(
    lambda seed, depth, order, low, span, offset, length: program(
        seed=seed,
        depth=depth,
        order=order,
        size_min_bytes=4096 * low,
        size_max_bytes=4096 * (low + span),
        size_step_bytes=4096,
        offset_max_bytes=4096 * offset,
        length_bytes=4096 * length,
    ),
    st.integers(0, MASK),
    st.integers(1, 9),
    st.sampled_from(Order),
    st.integers(1, 64),
    st.integers(0, 300),
    st.integers(0, 100),
    st.integers(0, 70),
)


def splitmix(state: int) -> Iterator[int]:
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
        yield z ^ z >> 31


def rotate(x: int, k: int) -> int:
    return (x << k | x >> (64 - k)) & MASK


class Mirror:
    """xoshiro256** as published, and the draws in the order that docs/ENGINE.md gives."""

    def __init__(self, p: StormProgram, thread: int) -> None:
        seeds = splitmix(next(splitmix(p.seed)) ^ thread)
        self.s = [next(seeds) for _ in range(4)]
        self.p = p

    def draw(self) -> int:
        s = self.s
        result = rotate(s[1] * 5 & MASK, 7) * 9 & MASK
        t = s[1] << 17 & MASK
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotate(s[3], 45)
        return result

    def below(self, bound: int) -> int:
        return self.draw() * bound >> 64 if bound > 1 else 0

    def range_(self) -> tuple[int, int, int]:
        p = self.p
        step = p.size_step_bytes
        size = p.size_min_bytes + step * self.below(
            (p.size_max_bytes - p.size_min_bytes) // step + 1
        )
        room = p.length_bytes or step
        limit = min(p.offset_max_bytes, max(size - room, 0))
        offset = step * self.below(limit // step + 1)
        return size, offset, p.length_bytes or size - offset

    def steps(self, count: int) -> list[Step]:
        """The window as it is meant: a list of outstanding slots, the victim taken out of it by the order."""
        window: list[int] = []
        free = list(range(self.p.depth))
        result = []
        for _ in range(count):
            size, offset, length = self.range_()
            random = self.below(self.p.depth)
            slot = free.pop(0)
            window.append(slot)
            victim = None
            if len(window) == self.p.depth:
                index = {Order.FIFO: 0, Order.LIFO: -1, Order.RANDOM: None}[self.p.order]
                victim = random if index is None else window[index]
                window.remove(victim)
                free.append(victim)
            result.append(Step(slot, size, offset, length, victim))
        return result


@given(programs, st.integers(0, 5000))
def test_sequence_is_the_mirror(p: StormProgram, thread: int) -> None:
    assert list(sequence(p, thread, 60)) == Mirror(p, thread).steps(60)


@given(programs)
def test_ranges_stay_inside_the_buffer(p: StormProgram) -> None:
    for step in sequence(p, 0, 50):
        assert p.size_min_bytes <= step.size_bytes <= p.size_max_bytes
        assert step.offset_bytes <= p.offset_max_bytes
        assert step.offset_bytes < step.size_bytes
        if p.length_bytes <= step.size_bytes:
            assert step.offset_bytes + step.length_bytes <= step.size_bytes
        else:
            assert step.offset_bytes == 0


def test_seeds_and_threads_differ() -> None:
    mixed = {"size_max_bytes": 1 << 30, "size_min_bytes": 4096}
    runs = {sequence(program(seed=s, **mixed), t, 20) for s in range(10) for t in range(10)}
    assert len(runs) == 100


def test_known_sequence() -> None:
    """Numbers written down once: a recorded run's seed must mean the same for ever."""
    p = program(
        seed=42,
        depth=3,
        order=Order.RANDOM,
        size_min_bytes=4 * KIB,
        size_max_bytes=1024 * KIB,
        offset_max_bytes=64 * KIB,
    )
    assert [
        (s.slot, s.size_bytes // KIB, s.offset_bytes // KIB, s.victim) for s in sequence(p, 5, 6)
    ] == [
        (0, 292, 24, None),
        (1, 136, 24, None),
        (2, 760, 4, 1),
        (1, 116, 56, 0),
        (0, 248, 48, 2),
        (2, 208, 60, 2),
    ]


@pytest.mark.parametrize("order", Order)
def test_depth_one_releases_what_it_made(order: Order) -> None:
    assert all(s.slot == s.victim == 0 for s in sequence(program(order=order), 3, 10))
