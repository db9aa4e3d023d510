"""What is said about a stack: whether a back end can work here, and which one it was.

`Support` is the answer of every probe; `StackPart` goes into the journal so that a run names what it ran on.
"""

from __future__ import annotations

import msgspec


class Support(msgspec.Struct, frozen=True):
    """Whether something can be had here; `reason` is empty only when it can."""

    ok: bool
    reason: str = ""


class StackPart(msgspec.Struct, frozen=True):
    """One exporter or importer as it was used: device, kernel driver and version, whether it is emulated."""

    name: str
    device: str = ""
    bdf: str = ""
    driver: str = ""
    version: str = ""
    emulated: bool = False
    details: dict[str, str] = {}
