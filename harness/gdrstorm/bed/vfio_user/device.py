"""The contract between a PCI device model and the vfio-user server that carries it.

The server gives the device a :class:`DeviceContext`; the device answers as a :class:`PciDevice`.
Everything runs on the server's one thread, so a device needs no locks and must never block.
Region indices and flags are those of Linux ``include/uapi/linux/vfio.h``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from gdrstorm.errors import GdrstormError

BAR0_REGION: Final = 0
BAR1_REGION: Final = 1
BAR2_REGION: Final = 2
BAR3_REGION: Final = 3
BAR4_REGION: Final = 4
BAR5_REGION: Final = 5
ROM_REGION: Final = 6
CONFIG_REGION: Final = 7
VGA_REGION: Final = 8
REGION_COUNT: Final = 9


class RegionFlag(enum.IntEnum):
    """VFIO_REGION_INFO_FLAG_* of ``vfio.h``. Bits of an int: IntFlag's operators are slow."""

    READ = 1
    WRITE = 2
    MMAP = 4
    CAPS = 8


@dataclass(frozen=True, slots=True)
class Region:
    """One region of the device; ``index`` is a ``*_REGION`` constant, CONFIG is 7."""

    index: int
    size_bytes: int
    flags: int = RegionFlag.READ | RegionFlag.WRITE


class DmaError(GdrstormError):
    """The device touched guest memory that is not mapped, or is mapped without a descriptor."""

    def __init__(self, iova: int, size: int, why: str = "no mapping") -> None:
        super().__init__(f"cannot reach guest memory: iova={iova:#x} size={size:#x}: {why}")
        self.iova = iova
        self.size = size
        self.why = why


class Timer(Protocol):
    """A pending :meth:`DeviceContext.call_later`; cancelling twice, or after it ran, is legal."""

    def cancel(self) -> None: ...


class DeviceContext(Protocol):
    """What the server offers to its device, from ``attach`` on.

    Guest memory is reachable only while a client is connected and has mapped it; mappings and
    interrupts vanish when the client goes, timers stay until they are cancelled or fire.
    """

    def read_dma(self, iova: int, size: int) -> bytes:
        """Read guest memory; the range may cross mappings. Raises DmaError."""
        ...

    def write_dma(self, iova: int, data: bytes | bytearray | memoryview) -> None:
        """Write guest memory; the range may cross mappings. Raises DmaError before any byte."""
        ...

    def dma_view(self, iova: int, size: int) -> memoryview | None:
        """Give a direct view when one mapping holds the whole range, else None.

        Never keep it beyond the callback it was taken in: the guest may unmap the range.
        The view is read-only when the mapping is.
        """
        ...

    def raise_irq(self, vector: int) -> None:
        """Signal an MSI-X vector; ignored when the guest has not set it up."""
        ...

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> Timer:
        """Run ``fn`` on the server's thread after ``delay_s`` seconds.

        0 means the next turn of the loop; anything else is rounded up to a millisecond.
        """
        ...

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC in nanoseconds."""
        ...


@dataclass(frozen=True, slots=True)
class RegionMmap:
    """Backing of a region that the client maps: ``fd`` stays the device's, ``offset`` is in it.

    ``areas`` are (offset, size) of the parts that may be mapped; empty means the whole region.
    """

    fd: int
    offset: int = 0
    areas: tuple[tuple[int, int], ...] = ()


@runtime_checkable
class MappableRegions(Protocol):
    """Ability of a device: regions flagged MMAP that the client reaches without messages."""

    def region_mmap(self, index: int) -> RegionMmap: ...


class PciDevice(Protocol):
    """One PCI function. The server checks bounds and region flags before it calls."""

    @property
    def regions(self) -> Sequence[Region]:
        """All regions of nonzero size, CONFIG_REGION among them."""
        ...

    @property
    def msix_vectors(self) -> int:
        """Number of MSI-X vectors, as the MSI-X capability in config space says."""
        ...

    def attach(self, ctx: DeviceContext) -> None:
        """Called once, before any other call."""
        ...

    def config_read(self, offset: int, size: int) -> bytes: ...

    def config_write(self, offset: int, data: bytes) -> None: ...

    def region_read(self, index: int, offset: int, size: int) -> bytes:
        """Answer exactly ``size`` bytes of a region other than CONFIG_REGION."""
        ...

    def region_write(self, index: int, offset: int, data: bytes) -> None: ...

    def reset(self) -> None:
        """Function reset: by VFIO_USER_DEVICE_RESET, or when a new client connects."""
        ...

    def dma_mapped(self, iova: int, size: int) -> None:
        """The guest made ``[iova, iova + size)`` reachable."""
        ...

    def dma_unmapped(self, iova: int, size: int) -> None:
        """The guest took ``[iova, iova + size)`` away; it is already unreachable."""
        ...
