"""Config space as lspci and a driver read it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.bed.vfio_user.pci_config import Bar, ConfigEvent, Msix, PciConfig, PciIds
from gdrstorm.errors import UsageError

IDS = PciIds(0x15B3, 0x101F, 0x020000, 0x15B3, 0x0001, revision=3)
MSIX = Msix(64, 0, 0x3000, 0, 0x3800)


@pytest.fixture
def config() -> PciConfig:
    return PciConfig(IDS, [Bar(0, 32 << 20), Bar(2, 4096, False, False)], MSIX, 0x1122334455667788)


def word(config: PciConfig, offset: int) -> int:
    return int.from_bytes(config.read(offset, 2), "little")


def dword(config: PciConfig, offset: int) -> int:
    return int.from_bytes(config.read(offset, 4), "little")


def capability(config: PciConfig, wanted: int) -> int:
    """Walk the list as a driver does."""
    assert word(config, 6) & 0x10
    offset = config.read(0x34, 1)[0]
    for _ in range(48):
        if not offset:
            break
        kind, following = config.read(offset, 2)
        if kind == wanted:
            return offset
        offset = following
    raise AssertionError(f"no capability {wanted:#x}")


def test_header(config: PciConfig) -> None:
    assert struct.unpack("<HH", config.read(0, 4)) == (0x15B3, 0x101F)
    assert dword(config, 8) == 0x02000003
    assert dword(config, 0x2C) == 0x000115B3
    assert config.read(0x0E, 1) == b"\0"


def test_bars_answer_their_size(config: PciConfig) -> None:
    assert config.write(0x10, b"\xff" * 8) == ConfigEvent.BAR
    assert config.read(0x10, 8) == struct.pack("<Q", (1 << 64) - (32 << 20) | 0xC)
    config.write(0x10, struct.pack("<Q", 0x7_1234_5678))
    assert config.bar_address(0) == 0x7_1200_0000
    assert dword(config, 0x10) & 0xF == 0xC
    config.write(0x18, b"\xff" * 4)
    assert dword(config, 0x18) == 0xFFFFF000
    assert config.write(0x1C, b"\xff" * 4) == ConfigEvent.NONE
    assert dword(config, 0x1C) == 0


def test_command(config: PciConfig) -> None:
    assert not config.memory_enabled
    assert config.write(4, b"\xff\xff") == ConfigEvent.COMMAND
    assert word(config, 4) == 0x0546
    assert config.memory_enabled and config.bus_master_enabled
    assert config.write(4, b"\xff\xff") == ConfigEvent.NONE


def test_msix(config: PciConfig) -> None:
    offset = capability(config, 0x11)
    assert word(config, offset + 2) == 63
    assert (dword(config, offset + 4), dword(config, offset + 8)) == (0x3000, 0x3800)
    assert config.write(offset + 2, b"\xff\xff") == ConfigEvent.MSIX
    assert config.msix_enabled
    assert word(config, offset + 2) == 0xC000 | 63


def test_flr_is_offered_reported_and_reads_back_as_zero(config: PciConfig) -> None:
    express = capability(config, 0x10)
    assert word(config, express + 2) & 0xF == 2
    assert word(config, express + 2) >> 4 & 0xF == 0
    assert dword(config, express + 4) & 1 << 28
    control = word(config, express + 8)
    config.write(4, b"\x06\0")
    event = config.write(express + 8, struct.pack("<H", control | 0x8000))
    assert event == ConfigEvent.FLR
    assert word(config, express + 8) == control
    # Writing the other byte is none.
    assert config.write(express + 8, b"\x80") == ConfigEvent.NONE
    config.reset()
    assert not config.memory_enabled


def test_power_state(config: PciConfig) -> None:
    offset = capability(config, 0x01)
    assert config.write(offset + 4, b"\x03\0") == ConfigEvent.POWER
    assert word(config, offset + 4) == 0x0003 | 0x0008
    assert config.write(offset + 4, b"\x00\0") == ConfigEvent.POWER


def test_serial_number_is_the_first_extended_capability(config: PciConfig) -> None:
    assert config.read(0x100, 12) == struct.pack("<IQ", 0x0001_0003, 0x1122334455667788)
    assert PciConfig(IDS, [], MSIX).read(0x100, 4) == bytes(4)


@given(st.integers(0, 5000), st.binary(max_size=64))
def test_nothing_but_writable_bits_change(offset: int, data: bytes) -> None:
    config = PciConfig(IDS, [Bar(0, 1 << 20)], MSIX)
    fresh = config.read(0, 4096)
    config.write(offset, data)
    assert len(config.read(0, 4096)) == 4096
    assert config.read(0, 4) == fresh[:4]
    assert config.read(8, 4) == fresh[8:12]
    config.reset()
    assert config.read(0, 4096) == fresh


@pytest.mark.parametrize(
    "bars",
    [
        [Bar(0, 4096), Bar(1, 4096)],
        [Bar(5, 4096)],
        [Bar(0, 5000)],
        [Bar(0, 16)],
        [Bar(6, 4096, False)],
    ],
)
def test_impossible_bars(bars: list[Bar]) -> None:
    with pytest.raises(UsageError):
        PciConfig(IDS, bars, MSIX)


def test_impossible_vector_count() -> None:
    with pytest.raises(UsageError):
        PciConfig(IDS, [], Msix(0, 0, 0, 0, 0))
