"""A PCI Express endpoint's config space: an image with masks for what can be written.

Builds ids, BARs with sizing, power management, MSI-X and PCI Express (version 2, function level
reset) capabilities; answers what a write asked for and leaves the reaction to the device. Offsets
and bits are those of Linux ``include/uapi/linux/pci_regs.h``.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gdrstorm.errors import UsageError

CONFIG_BYTES: Final = 4096
_COMMAND: Final = 0x04
_COMMAND_MEMORY: Final = 0x2
_COMMAND_MASTER: Final = 0x4
_COMMAND_MASK: Final = 0x0546  # memory, bus master, parity, SERR, INTx disable
_STATUS_CAP_LIST: Final = 0x0010
_BAR0: Final = 0x10
_CAP_POINTER: Final = 0x34
_PM_CAP: Final = 0x40
_MSIX_CAP: Final = 0x50
_EXP_CAP: Final = 0x60
_EXP_DEVCTL: Final = _EXP_CAP + 0x08
_DEVCTL_FLR: Final = 0x8000
_EXTENDED_CAPS: Final = 0x100
_SERIAL_CAP_BYTES: Final = 12


class ConfigEvent(enum.IntFlag):
    """What a write to config space asked of the device."""

    NONE = 0
    FLR = 1
    COMMAND = 2
    BAR = 4
    MSIX = 8
    POWER = 16


@dataclass(frozen=True, slots=True)
class PciIds:
    """``class_code`` is 24 bits: base class, subclass, interface."""

    vendor: int
    device: int
    class_code: int
    subsystem_vendor: int = 0
    subsystem_device: int = 0
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Bar:
    """A memory BAR; one of 64 bits takes the next index too. The size is a power of two."""

    index: int
    size_bytes: int
    is_64bit: bool = True
    is_prefetchable: bool = True


@dataclass(frozen=True, slots=True)
class Msix:
    """The MSI-X table and pending bits and where in which BARs they are."""

    vectors: int
    table_bar: int
    table_offset: int
    pending_bar: int
    pending_offset: int


def _check_bars(bars: Sequence[Bar]) -> None:
    used: set[int] = set()
    for bar in bars:
        taken = {bar.index, bar.index + 1} if bar.is_64bit else {bar.index}
        if used & taken or max(taken) > 5:
            raise UsageError(f"PCI BAR {bar.index} does not fit beside the others")
        if bar.size_bytes < 4096 or bar.size_bytes & (bar.size_bytes - 1):
            raise UsageError(f"PCI BAR {bar.index}: size {bar.size_bytes} is no power of two")
        used |= taken


class PciConfig:
    """The config space of one function. Plain memory: reading has no side effect."""

    def __init__(
        self, ids: PciIds, bars: Sequence[Bar], msix: Msix, serial_number: int | None = None
    ) -> None:
        _check_bars(bars)
        self._bars = {bar.index: bar for bar in bars}
        self._image = bytearray(CONFIG_BYTES)
        self._mask = bytearray(CONFIG_BYTES)  # bits that a write changes
        self._clear = bytearray(CONFIG_BYTES)  # bits that writing 1 clears
        self._put_header(ids)
        for bar in bars:
            self._put_bar(bar)
        self._put_power_management()
        self._put_msix(msix)
        self._put_express()
        if serial_number is not None:
            self._put_serial(serial_number)
        self._reset_image = bytes(self._image)

    def _put(self, form: str, offset: int, *values: int) -> None:
        struct.pack_into("<" + form, self._image, offset, *values)

    def _writable(self, form: str, offset: int, *masks: int) -> None:
        struct.pack_into("<" + form, self._mask, offset, *masks)

    def _put_header(self, ids: PciIds) -> None:
        self._put("HHHH", 0, ids.vendor, ids.device, 0, _STATUS_CAP_LIST)
        self._put("I", 8, ids.class_code << 8 | ids.revision)
        self._put("HH", 0x2C, ids.subsystem_vendor, ids.subsystem_device)
        self._put("B", _CAP_POINTER, _PM_CAP)
        self._writable("H", _COMMAND, _COMMAND_MASK)
        self._writable("B", 0x0C, 0xFF)  # cache line size
        self._writable("B", 0x3C, 0xFF)  # interrupt line
        self._clear[0x07] = 0xF9  # status: error bits

    def _put_bar(self, bar: Bar) -> None:
        kind = (4 if bar.is_64bit else 0) | (8 if bar.is_prefetchable else 0)
        offset = _BAR0 + 4 * bar.index
        self._put("I", offset, kind)
        # The low bits that size it cannot be written, so writing ones reads the size back.
        mask = ~(bar.size_bytes - 1) & (1 << 64) - 1
        self._writable("I", offset, mask & 0xFFFFFFFF)
        if bar.is_64bit:
            self._writable("I", offset + 4, mask >> 32)

    def _put_power_management(self) -> None:
        # Version 3, no PME; the state survives D3hot (No_Soft_Reset).
        self._put("BBHHH", _PM_CAP, 0x01, _MSIX_CAP, 0x0003, 0x0008, 0)
        self._writable("H", _PM_CAP + 4, 0x0003)

    def _put_msix(self, msix: Msix) -> None:
        if not 1 <= msix.vectors <= 2048:
            raise UsageError(f"{msix.vectors} MSI-X vectors (1 to 2048)")
        table = msix.table_offset | msix.table_bar
        pending = msix.pending_offset | msix.pending_bar
        self._put("BBHII", _MSIX_CAP, 0x11, _EXP_CAP, msix.vectors - 1, table, pending)
        self._writable("H", _MSIX_CAP + 2, 0xC000)  # enable, mask all

    def _put_express(self) -> None:
        base = _EXP_CAP
        self._put("BBH", base, 0x10, 0, 0x0002)  # version 2, endpoint
        # Payload up to 512, extended tags, role-based errors, function level reset.
        self._put("I", base + 0x04, 0x1000_8022)
        self._put("H", _EXP_DEVCTL, 0x2810)  # relaxed ordering, no snoop, 512-byte reads
        self._writable("H", _EXP_DEVCTL, 0x7FFF)
        self._clear[base + 0x0A] = 0x0F  # device status: errors detected
        self._put("I", base + 0x0C, 0x0000_0083)  # link: 8 GT/s x8
        self._writable("H", base + 0x10, 0x01FB)
        self._put("H", base + 0x12, 0x1083)  # slot clock, 8 GT/s x8
        self._put("I", base + 0x24, 0x0000_0012)  # completion timeout ranges, disable
        self._writable("H", base + 0x28, 0x001F)
        self._put("I", base + 0x2C, 0x0000_000E)  # speeds up to 8 GT/s
        self._put("H", base + 0x30, 0x0003)
        self._writable("H", base + 0x30, 0x000F)

    def _put_serial(self, number: int) -> None:
        # The first extended capability: id 3, version 1, no next.
        self._put("IQ", _EXTENDED_CAPS, 0x0001_0003, number)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._image[offset : offset + size])

    def write(self, offset: int, data: bytes) -> ConfigEvent:
        """Store what may be written and tell what it means. An FLR is not carried out here."""
        before = (self.command, self._image[_MSIX_CAP + 3], self._image[_PM_CAP + 4])
        bars = bytes(self._image[_BAR0 : _BAR0 + 24])
        event = ConfigEvent.NONE
        for where, value in enumerate(data[: max(0, CONFIG_BYTES - offset)], offset):
            if where == _EXP_DEVCTL + 1 and value & _DEVCTL_FLR >> 8:
                event |= ConfigEvent.FLR
            mask = self._mask[where]
            kept = self._image[where] & ~mask & ~(value & self._clear[where])
            self._image[where] = kept | value & mask
        after = (self.command, self._image[_MSIX_CAP + 3], self._image[_PM_CAP + 4])
        for old, new, what in zip(before, after, _CHANGES, strict=True):
            event |= what if old != new else ConfigEvent.NONE
        if bars != self._image[_BAR0 : _BAR0 + 24]:
            event |= ConfigEvent.BAR
        return event

    def reset(self) -> None:
        """Back to power-on values."""
        self._image[:] = self._reset_image

    @property
    def command(self) -> int:
        return int.from_bytes(self._image[_COMMAND : _COMMAND + 2], "little")

    @property
    def memory_enabled(self) -> bool:
        return bool(self.command & _COMMAND_MEMORY)

    @property
    def bus_master_enabled(self) -> bool:
        return bool(self.command & _COMMAND_MASTER)

    @property
    def msix_enabled(self) -> bool:
        return bool(self._image[_MSIX_CAP + 3] & 0x80)

    def bar_address(self, index: int) -> int:
        """The address in a BAR, without its type bits."""
        size = 8 if self._bars[index].is_64bit else 4
        offset = _BAR0 + 4 * index
        return int.from_bytes(self._image[offset : offset + size], "little") & ~0xF


_CHANGES: Final = (ConfigEvent.COMMAND, ConfigEvent.MSIX, ConfigEvent.POWER)
