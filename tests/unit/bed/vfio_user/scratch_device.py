"""A small PCI device for tests: BAR0 stores bytes, a doorbell copies memory and interrupts.

BAR0: 0x0..0xfff scratch; writing 8 bytes at 0x1000 is a doorbell (source, low 32 bits: vector);
MSI-X table at 0x2000, pending bits at 0x3000. `python scratch_device.py SOCKET` serves it.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from gdrstorm.bed.vfio_user.device import (
    BAR0_REGION,
    CONFIG_REGION,
    DeviceContext,
    Region,
    RegionFlag,
    RegionMmap,
)
from gdrstorm.bed.vfio_user.loop import EventLoop
from gdrstorm.bed.vfio_user.pci_config import (
    CONFIG_BYTES,
    Bar,
    ConfigEvent,
    Msix,
    PciConfig,
    PciIds,
)
from gdrstorm.bed.vfio_user.server import VfioUserServer

BAR_BYTES = 0x4000
DOORBELL = 0x1000
FAULT = 0x1100
DOORBELL_FORM = struct.Struct("<QQII")  # source, destination, size, vector
VECTORS = 4
IDS = PciIds(0x1234, 0x9D0B, 0xFF0000, 0x1234, 0x0001)


class ScratchDevice:
    """See the module."""

    def __init__(self, mmap_fd: int | None = None) -> None:
        self.config = PciConfig(
            IDS, [Bar(0, BAR_BYTES)], Msix(VECTORS, 0, 0x2000, 0, 0x3000), serial_number=0x5EED
        )
        self.memory = bytearray(BAR_BYTES)
        self.mmap_fd = mmap_fd
        self.resets = 0
        self.mapped: list[tuple[int, int]] = []
        self.unmapped: list[tuple[int, int]] = []
        self.ctx: DeviceContext

    @property
    def regions(self) -> Sequence[Region]:
        flags = RegionFlag.READ | RegionFlag.WRITE
        bar = flags | RegionFlag.MMAP if self.mmap_fd is not None else flags
        return (
            Region(BAR0_REGION, BAR_BYTES, bar),
            Region(2, 64, RegionFlag.READ),
            Region(CONFIG_REGION, CONFIG_BYTES, flags),
        )

    @property
    def msix_vectors(self) -> int:
        return VECTORS

    def region_mmap(self, index: int) -> RegionMmap:
        assert self.mmap_fd is not None and index == BAR0_REGION
        return RegionMmap(self.mmap_fd, 0, ((0, 0x1000),))

    def attach(self, ctx: DeviceContext) -> None:
        self.ctx = ctx

    def config_read(self, offset: int, size: int) -> bytes:
        return self.config.read(offset, size)

    def config_write(self, offset: int, data: bytes) -> None:
        if ConfigEvent.FLR in self.config.write(offset, data):
            self.reset()

    def region_read(self, index: int, offset: int, size: int) -> bytes:
        assert index == BAR0_REGION
        return bytes(self.memory[offset : offset + size])

    def region_write(self, index: int, offset: int, data: bytes) -> None:
        self.memory[offset : offset + len(data)] = data
        if offset == FAULT:
            raise ZeroDivisionError("a bug of the device")
        if offset == DOORBELL + DOORBELL_FORM.size - 4:
            source, destination, size, vector = DOORBELL_FORM.unpack_from(self.memory, DOORBELL)
            self.ctx.write_dma(destination, self.ctx.read_dma(source, size))
            self.ctx.raise_irq(vector)

    def reset(self) -> None:
        self.resets += 1
        self.config.reset()
        self.memory[:] = bytes(BAR_BYTES)

    def dma_mapped(self, iova: int, size: int) -> None:
        self.mapped.append((iova, size))

    def dma_unmapped(self, iova: int, size: int) -> None:
        self.unmapped.append((iova, size))


def main() -> None:
    loop = EventLoop()
    server = VfioUserServer(loop)
    server.add_device(Path(sys.argv[1]), ScratchDevice())
    # A forgotten server must not outlive its test.
    loop.call_later(120, lambda: os._exit(3))
    loop.run()


if __name__ == "__main__":
    main()
