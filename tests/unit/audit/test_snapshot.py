"""Leak snapshots: parsers on real text and built netlink messages, planted leaks, and what was not seen."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.audit.nldev import parse_attributes, parse_summary
from gdrstorm.audit.snapshot import merge, parse_bufinfo, read_dmabufs, read_rdma, take_settled
from gdrstorm.model.audit import Counter, Snapshot, find_leaks

# /sys/kernel/debug/dma_buf/bufinfo of Linux 7.3 with one udmabuf attached by nobody
BUFINFO = """
Dma-buf Objects:
size    \tflags   \tmode    \tcount   \texp_name\tino     \tname
01048576\t00000002\t00080007\t00000002\tudmabuf\t00000046\t<none>
\tAttached Devices:
Total 0 devices attached


Total 1 objects, 1048576 bytes
"""


def attribute(kind: int, payload: bytes) -> bytes:
    """One netlink attribute, padded to four bytes."""
    data = struct.pack("=HH", 4 + len(payload), kind) + payload
    return data + b"\0" * (-len(data) % 4)


def test_bufinfo_totals() -> None:
    assert parse_bufinfo(BUFINFO) == (1, 1048576)
    assert parse_bufinfo("Dma-buf Objects:\n") is None


def test_bufinfo_that_cannot_be_read_is_unknown_not_zero(tmp_path: Path) -> None:
    missing = read_dmabufs(tmp_path / "none")
    assert not missing.counters
    assert "needs root" in missing.unknown["dma-buf objects"]
    (tmp_path / "odd").write_text("?")
    assert read_dmabufs(tmp_path / "odd").unknown


def test_bufinfo_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert (
        "does not answer" in read_dmabufs(tmp_path / "fifo", limit_s=0.2).unknown["dma-buf objects"]
    )


def test_an_rdma_device_that_is_not_there_is_unknown() -> None:
    snapshot = read_rdma("no_such_device")
    assert not snapshot.counters
    assert snapshot.unknown


@given(
    st.dictionaries(
        st.sampled_from(["pd", "cq", "qp", "mr", "ctx", "srq"]), st.integers(0, 2**64 - 1)
    )
)
def test_resource_summaries_come_back(counts: dict[str, int]) -> None:
    entries = b"".join(
        attribute(
            16 | 0x8000,
            attribute(17, name.encode() + b"\0") + attribute(18, value.to_bytes(8, "little")),
        )
        for name, value in counts.items()
    )
    payload = (
        attribute(1, b"\0\0\0\0") + attribute(2, b"mlx5_0\0") + attribute(15 | 0x8000, entries)
    )
    assert parse_summary(payload) == counts


@given(st.binary(max_size=300))
def test_any_bytes_are_parsed_to_an_end(data: bytes) -> None:
    total = sum(4 + len(value) for _, value in parse_attributes(data))
    assert total <= len(data)


@given(
    st.dictionaries(
        st.text(min_size=1), st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3))
    )
)
def test_leaks_are_exactly_the_counters_that_grew(
    counters: dict[str, tuple[int, int, int]],
) -> None:
    before = Snapshot(tuple(Counter(name, old) for name, (old, _, _) in counters.items()))
    after = Snapshot(
        tuple(Counter(name, new, slack=slack) for name, (_, new, slack) in counters.items())
    )
    assert {leak.name for leak in find_leaks(before, after)} == {
        name for name, (old, new, slack) in counters.items() if new - old > slack
    }


def test_a_counter_unknown_before_is_no_leak_after() -> None:
    after = Snapshot((Counter("x", 3),))
    assert not find_leaks(Snapshot(unknown={"x": "no root"}), after)
    assert find_leaks(Snapshot(), after)[0].before == 0


def test_settling_waits_for_late_frees_but_not_for_ever() -> None:
    values = [3, 2, 1, 0, 0, 0]
    source = lambda: Snapshot((Counter("x", values.pop(0) if len(values) > 1 else values[0]),))  # noqa: E731
    before = Snapshot((Counter("x", 0),))
    assert take_settled([source], before, 5.0).counters[0].value == 0
    stuck = take_settled([lambda: Snapshot((Counter("x", 1),))], before, 0.1)
    assert find_leaks(before, stuck)


def test_merge_keeps_counters_and_reasons() -> None:
    merged = merge([Snapshot((Counter("a", 1),)), Snapshot(unknown={"b": "why"})])
    assert (merged.counters[0].name, merged.unknown) == ("a", {"b": "why"})
