"""Witnesses beside the kernel log: each a source of events that disturbs nothing. One Protocol, one file a witness."""

from __future__ import annotations

from typing import Protocol

from gdrstorm.model.event import Event


class Witness(Protocol):
    """Something that can see faults. `start` raises OSError with the reason when it cannot look here."""

    def start(self) -> None:
        """Begin: what is there already is never reported."""
        ...

    def poll(self) -> list[Event]:
        """Events since the last call, without waiting."""
        ...

    def close(self) -> None:
        """Let go; twice is legal."""
        ...
