"""What the driver polls: the health counter and buffer, and the NIC interface state.

The counter is made from the clock when it is read, so that an idle device costs nothing. Layout of
struct health_buffer from include/linux/mlx5/device.h.
"""

from __future__ import annotations

import struct
from typing import Final

from gdrstorm.bed.connectx.prm import NicState

HEALTH_BYTES: Final = 64
_COUNTER_STEP_NS: Final = 10_000_000
_FW_VERSION_OFFSET: Final = 0x30
_RFR: Final = 0x80
_SEVERITY_VALID: Final = 0x08
_CRITICAL: Final = 2
_ERROR: Final = 3


class Health:
    """Health of one function; survives nothing: a reset makes a new one."""

    def __init__(self, firmware: int) -> None:
        self._firmware = firmware
        self.syndrome = 0
        self.is_fatal = False
        # Until a driver names its command queue; so one that did learns of a reset by polling.
        self.nic_state = NicState.DISABLED
        self._stopped_at: int | None = None

    def counter(self, now_ns: int) -> int:
        """The value that has to move for the driver to believe in us."""
        at = now_ns if self._stopped_at is None else self._stopped_at
        return at // _COUNTER_STEP_NS & 0xFFFFFFFF

    def stop(self, now_ns: int) -> None:
        self._stopped_at = now_ns

    def go_on(self) -> None:
        self._stopped_at = None

    def report(self, syndrome: int, is_fatal: bool) -> None:
        self.syndrome = syndrome
        self.is_fatal = is_fatal

    def buffer(self) -> bytes:
        """The 64 bytes of the health buffer."""
        severity = _SEVERITY_VALID | (_CRITICAL if self.is_fatal else _ERROR)
        flags = (_RFR if self.is_fatal else 0) | (severity if self.syndrome else 0)
        raw = bytearray(HEALTH_BYTES)
        struct.pack_into(">I", raw, _FW_VERSION_OFFSET, self._firmware)
        # rfr_severity, three reserved bytes, irisc_index, synd, ext_synd
        struct.pack_into(">B3xBBH", raw, 0x38, flags, 0, self.syndrome, 0)
        return bytes(raw)
