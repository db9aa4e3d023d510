"""The device option of the GPU exporters and the cutting of ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.errors import UsageError
from gdrstorm.stack.exporter.gpu_device import (
    GpuDevice,
    Kind,
    Mapping,
    chunk_sizes,
    parse_gpu_device,
    split_range,
)


def test_options() -> None:
    assert parse_gpu_device(None) == parse_gpu_device("0") == GpuDevice()
    assert parse_gpu_device("00000000:9B:00.0").bdf == "0000:9b:00.0"
    assert parse_gpu_device("9b:00.0").selector == "0000:9b:00.0"
    assert parse_gpu_device("1, mapping=force_pcie,kind=vmm,chunks=2,layout=595") == GpuDevice(
        1, "", Mapping.FORCE_PCIE, Kind.VMM, 2, 595
    )


@pytest.mark.parametrize(
    "text",
    [
        "gpu0",
        "0,mapping",
        "0,mapping=pcie",
        "0,chunks=0",
        "0,chunks=129",
        "0,chunks=x",
        "0,layout=610",
        "0,size=1",
        "0,kind=vmm,kind=vmm",
        "-1",
        "0000:9b:00.8",
    ],
)
def test_nonsense_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_gpu_device(text)
    assert "cannot use GPU device" in str(caught.value)


@given(st.integers(1, 1 << 34), st.integers(1, 128), st.sampled_from([4096, 65536, 2 << 20]))
def test_chunks_hold_the_size(size: int, chunks: int, granularity: int) -> None:
    sizes = chunk_sizes(size, chunks, granularity)
    assert 1 <= len(sizes) <= chunks
    assert len(set(sizes)) == 1 and sizes[0] % granularity == 0
    assert sum(sizes) >= size
    assert sum(sizes) - sizes[0] < size


@given(st.data(), st.integers(1, 9), st.integers(1, 64))
def test_parts_cover_the_range_once_and_in_order(
    data: st.DataObject, chunks: int, pages: int
) -> None:
    sizes = (pages * 4096,) * chunks
    offset = data.draw(st.integers(0, sum(sizes) - 1))
    size = data.draw(st.integers(1, sum(sizes) - offset))
    parts = split_range(sizes, offset, size)
    covered = [(sum(sizes[: p.chunk]) + p.offset, p.size) for p in parts]
    at = offset
    for start, length in covered:
        assert start == at and length > 0
        at += length
    assert at == offset + size
    assert all(p.offset + p.size <= sizes[p.chunk] for p in parts)


def test_bad_ranges_reach_the_driver() -> None:
    assert split_range((4096,), 8192, 0)[0].offset == 8192
    assert split_range((4096, 4096), 4096, 8192)[0].size == 8192
