"""The `device` option of the GPU exporters, and where a range falls in memory made of chunks.

`0`, `0000:9b:00.0` or `0,mapping=force_pcie,kind=vmm,chunks=2,layout=595` to a record; pure.
"""

from __future__ import annotations

import enum
import re

import msgspec

from gdrstorm.errors import UsageError
from gdrstorm.uapi.nvidia import MAX_HANDLES, generation_of_branch

_BDF = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")


class Mapping(enum.Enum):
    """How an importer is to reach the memory; the value is the driver's number."""

    DEFAULT = 0
    FORCE_PCIE = 1


class Kind(enum.Enum):
    """How CUDA memory is made; RM memory has one kind."""

    MALLOC = "malloc"  # cuMemAlloc
    VMM = "vmm"  # cuMemCreate chunks mapped under one range


class GpuDevice(msgspec.Struct, frozen=True):
    """Which GPU and how to export from it. `bdf` is empty when the ordinal counts.

    `layout` is a driver branch whose structures are to be used whatever the version says; 0: none.
    """

    ordinal: int = 0
    bdf: str = ""
    mapping: Mapping = Mapping.DEFAULT
    kind: Kind = Kind.MALLOC
    chunks: int = 1
    layout: int = 0

    @property
    def selector(self) -> str:
        return self.bdf or str(self.ordinal)


class Part(msgspec.Struct, frozen=True):
    """A piece of a range: the chunk it lies in, its offset there and its size, bytes."""

    chunk: int
    offset: int
    size: int


def parse_gpu_device(text: str | None) -> GpuDevice:
    """The device option as a record; empty or None is ordinal 0. Raises UsageError."""
    selector, *options = (text or "0").split(",")
    ordinal, bdf = _parse_selector(selector.strip())
    seen: dict[str, str] = {}
    for option in options:
        key, separator, value = option.strip().partition("=")
        if not separator or key not in _OPTIONS or key in seen:
            raise UsageError(
                f"cannot use GPU device {text!r}: option {option!r}", f"options: {_usage()}"
            )
        seen[key] = value
    try:
        device = GpuDevice(
            ordinal,
            bdf,
            Mapping[seen.get("mapping", "default").upper()],
            Kind(seen.get("kind", "malloc")),
            int(seen.get("chunks", "1")),
            int(seen.get("layout", "0")),
        )
    except (KeyError, ValueError) as error:
        raise UsageError(f"cannot use GPU device {text!r}: {error}", _usage()) from error
    return _check(device, text)


_OPTIONS = {
    "mapping": "default|force_pcie",
    "kind": "malloc|vmm",
    "chunks": f"1..{MAX_HANDLES}",
    "layout": "driver branch, e.g. 595",
}


def _usage() -> str:
    return ", ".join(f"{key}={values}" for key, values in _OPTIONS.items())


def _parse_selector(text: str) -> tuple[int, str]:
    if text == "" or re.fullmatch(r"\d{1,3}", text):
        return int(text or "0"), ""
    match = _BDF.fullmatch(text.lower())
    if not match:
        raise UsageError(
            f"cannot use GPU device {text!r}",
            "give an ordinal such as 0 or a bdf such as 0000:9b:00.0",
        )
    return 0, f"{int(match[1] or '0', 16):04x}:{match[2]}:{match[3]}.{match[4]}"


def _check(device: GpuDevice, text: str | None) -> GpuDevice:
    if not 1 <= device.chunks <= MAX_HANDLES:
        raise UsageError(f"cannot use GPU device {text!r}: chunks={device.chunks}", _usage())
    if device.layout and generation_of_branch(device.layout) is None:
        raise UsageError(f"cannot use GPU device {text!r}: no layout {device.layout}", _usage())
    return device


def chunk_sizes(size: int, chunks: int, granularity: int) -> tuple[int, ...]:
    """Equal sizes of `chunks` chunks (or fewer) that hold `size` bytes, multiples of granularity.

    The native back ends (exp_rm.c, exp_cuda.c) cut in the same way.
    """
    units = max(1, -(-size // granularity))
    step = -(-units // chunks) * granularity
    return (step,) * -(-max(1, size) // step)


def split_range(sizes: tuple[int, ...], offset: int, size: int) -> tuple[Part, ...]:
    """The parts of [offset, offset + size) in order.

    With one chunk nothing is checked, so that bad input reaches the driver; with several, what
    lies past their end belongs to the last one.
    """
    if len(sizes) == 1:
        return (Part(0, offset, size),)
    parts: list[Part] = []
    start = 0
    for chunk, length in enumerate(sizes):
        is_last = chunk == len(sizes) - 1
        low = max(offset, start)
        high = offset + size if is_last else min(offset + size, start + length)
        if low < high:
            parts.append(Part(chunk, low - start, high - low))
        start += length
    return tuple(parts) or (Part(0, offset, size),)


def format_gpu_device(device: GpuDevice) -> str:
    """The option text that parses to this record."""
    options = {
        "mapping": device.mapping.name.lower(),
        "kind": device.kind.value,
        "chunks": str(device.chunks),
    }
    if device.layout:
        options["layout"] = str(device.layout)
    return ",".join((device.selector, *(f"{key}={value}" for key, value in options.items())))
