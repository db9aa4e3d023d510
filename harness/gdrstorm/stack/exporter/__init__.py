"""Exporters: owners of memory that becomes a dma-buf descriptor. One Protocol, one file a back end.

The Protocol is the control path (one call at a time, errors raised); a storm takes `binding()` and lets the native
engine make the same calls without the GIL. Nobody outside stack/ asks which back end it has.
"""

from __future__ import annotations

from typing import Protocol, Self

from gdrstorm.engine import ExporterBinding
from gdrstorm.model.stack import StackPart, Support


class Memory(Protocol):
    """Memory of an exporter; `close` gives it back and may be called twice. Closing keeps exported buffers valid."""

    size_bytes: int

    def close(self) -> None: ...


class DmaBuf(Protocol):
    """A dma-buf descriptor owned by this object; `close` closes it and may be called twice."""

    fd: int
    size_bytes: int

    def close(self) -> None: ...


class Exporter(Protocol):
    """One opened exporter. Use as a context manager; leaving closes what it opened itself."""

    name: str

    @classmethod
    def probe(cls, device: str | None = None) -> Support:
        """Whether it can work here, without opening anything that stays open or changes state."""
        ...

    @classmethod
    def open(cls, device: str | None = None) -> Self:
        """Open it; `device` is a bdf, an ordinal or a heap name. Raises UnavailableError or CallError."""
        ...

    def describe(self) -> StackPart: ...

    def alloc(self, size_bytes: int) -> Memory:
        """Memory of that size (multiple of the page size). Raises CallError with the errno."""
        ...

    def export(self, memory: Memory, offset_bytes: int, size_bytes: int) -> DmaBuf:
        """Export a range as a new descriptor, O_CLOEXEC. Raises CallError with the errno."""
        ...

    def binding(self) -> ExporterBinding:
        """What the native engine needs to make these calls itself; valid while this exporter is open."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...
