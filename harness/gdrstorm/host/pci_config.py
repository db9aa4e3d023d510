"""PCI configuration space of one function to facts: port type, ACS, ATS, MPS, resizable BARs.

Pure: bytes come from a `ReadAt`, which may be a captured file or a live one read piece by piece.
Layouts: include/uapi/linux/pci_regs.h. The kernel shows only the first 64 bytes to a process
without CAP_SYS_ADMIN (drivers/pci/pci-sysfs.c), so a short answer is "no permission", never "off".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import msgspec

from gdrstorm.model.inventory import Acs, Probe, Unknown, Why, known, unknown

# offset, length -> bytes; shorter than asked where the space ends or is hidden.
ReadAt = Callable[[int, int], bytes]

ACS_VALID, ACS_BLOCKING, ACS_REDIRECT = 0x01, 0x02, 0x04
ACS_COMPLETION, ACS_FORWARDING, ACS_EGRESS, ACS_DIRECT = 0x08, 0x10, 0x20, 0x40

_STATUS_HAS_LIST = 0x10
_CAP_PCIE = 0x10
_EXT_ACS, _EXT_ATS, _EXT_REBAR = 0x0D, 0x0F, 0x15
_HIDDEN_AFTER = 64
_EXT_START = 0x100
# Capabilities are at least 4 bytes (8 extended): more steps than that is a loop.
_MAX_CAPS = 48
_MAX_EXT_CAPS = 480

_PORT_TYPES = {
    0: "endpoint",
    1: "legacy endpoint",
    4: "root port",
    5: "upstream port",
    6: "downstream port",
    7: "pcie-to-pci bridge",
    8: "pci-to-pcie bridge",
    9: "integrated endpoint",
    10: "event collector",
}


class ConfigFacts(msgspec.Struct, frozen=True):
    port_type: Probe[str]
    acs: Probe[Acs]
    ats: Probe[bool]
    mps: Probe[int]
    resizable: Probe[tuple[tuple[int, tuple[int, ...]], ...]]
    """(BAR index, sizes in bytes) for each resizable BAR."""


def unknown_facts(reason: Unknown) -> ConfigFacts:
    """All of it unknown for one reason."""
    return ConfigFacts(*(Probe(unknown=reason) for _ in range(5)))


def _u16(read_at: ReadAt, offset: int) -> int:
    data = read_at(offset, 2)
    return struct.unpack("<H", data)[0] if len(data) == 2 else 0


def _u32(read_at: ReadAt, offset: int) -> int:
    data = read_at(offset, 4)
    return struct.unpack("<I", data)[0] if len(data) == 4 else 0


def iter_caps(read_at: ReadAt) -> Iterator[tuple[int, int]]:
    """(id, offset) of the capabilities in the first 256 bytes."""
    if not _u16(read_at, 0x06) & _STATUS_HAS_LIST:
        return
    offset = read_at(0x34, 1)[0] & 0xFC
    for _ in range(_MAX_CAPS):
        if offset < 0x40:
            return
        head = read_at(offset, 2)
        if len(head) < 2 or head[0] == 0xFF:
            return
        yield head[0], offset
        offset = head[1] & 0xFC


def iter_ext_caps(read_at: ReadAt) -> Iterator[tuple[int, int]]:
    """(id, offset) of the extended capabilities, which start at 0x100."""
    offset = _EXT_START
    for _ in range(_MAX_EXT_CAPS):
        head = _u32(read_at, offset)
        if head in {0, 0xFFFFFFFF}:
            return
        yield head & 0xFFFF, offset
        offset = head >> 20 & 0xFFC
        if offset < _EXT_START:
            return


def _parse_rebar(read_at: ReadAt, offset: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    count = min(_u32(read_at, offset + 8) >> 5 & 7, 6)
    found = []
    for i in range(count):
        sizes = _u32(read_at, offset + 4 + 8 * i) >> 4
        index = _u32(read_at, offset + 8 + 8 * i) & 7
        found.append((index, tuple(1 << (20 + bit) for bit in range(28) if sizes >> bit & 1)))
    return tuple(found)


def parse_config_space(read_at: ReadAt) -> ConfigFacts:
    """Facts of one function. Costs a read per capability, no more."""
    head = read_at(0, _HIDDEN_AFTER)
    if len(head) < _HIDDEN_AFTER or head[:4] == b"\xff\xff\xff\xff":
        detail = "config space reads as all ones" if head else "config space is empty"
        return unknown_facts(Unknown(Why.UNREADABLE, detail))
    if not read_at(_HIDDEN_AFTER, 4):
        return unknown_facts(Unknown(Why.NO_PERMISSION, "config space beyond 64 bytes needs root"))
    pcie = next((offset for cap, offset in iter_caps(read_at) if cap == _CAP_PCIE), None)
    if pcie is None:
        return ConfigFacts(
            port_type=known("pci"),
            acs=known(Acs(is_present=False)),
            ats=known(False),
            mps=unknown(Why.NO_DEVICE, "no PCIe capability"),
            resizable=known(()),
        )
    # A function whose space ends at 256 bytes has no extended capability for the kernel either.
    ext = dict(reversed(list(iter_ext_caps(read_at))))
    acs, ats, rebar = ext.get(_EXT_ACS), ext.get(_EXT_ATS), ext.get(_EXT_REBAR)
    kind = _u16(read_at, pcie + 2) >> 4 & 15
    return ConfigFacts(
        port_type=known(_PORT_TYPES.get(kind, f"type {kind}")),
        acs=known(
            Acs(is_present=False)
            if acs is None
            else Acs(True, _u16(read_at, acs + 4), _u16(read_at, acs + 6))
        ),
        ats=known(ats is not None and bool(_u16(read_at, ats + 6) & 0x8000)),
        mps=known(128 << (_u16(read_at, pcie + 8) >> 5 & 7)),
        resizable=known(() if rebar is None else _parse_rebar(read_at, rebar)),
    )
