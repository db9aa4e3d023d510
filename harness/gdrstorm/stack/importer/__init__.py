"""Importers: drivers that attach a dma-buf and map it. One Protocol, one file a back end.

As with exporters: this is the control path, `binding()` is the way to a storm. The length and offset rules are the
driver's; nothing is checked or rounded here, so that bad input reaches the kernel.
"""

from __future__ import annotations

from typing import Protocol, Self

from gdrstorm.engine import ImporterBinding
from gdrstorm.model.stack import StackPart, Support

# include/uapi/rdma/ib_user_ioctl_verbs.h: enum ib_uverbs_access_flags
ACCESS_LOCAL_WRITE = 1
ACCESS_REMOTE_WRITE = 2
ACCESS_REMOTE_READ = 4
ACCESS_REMOTE_ATOMIC = 8
ACCESS_DEFAULT = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ


class Registration(Protocol):
    """One registration (an MR, a DRM handle); `close` ends it, twice is legal. Keys are 0 where there are none."""

    lkey: int
    rkey: int

    def close(self) -> None: ...


class Importer(Protocol):
    """One opened importer on one device. Use as a context manager; registrations close before it."""

    name: str

    @classmethod
    def probe(cls, device: str | None = None) -> Support: ...

    @classmethod
    def open(cls, device: str | None = None) -> Self: ...

    def describe(self) -> StackPart: ...

    def register(
        self,
        fd: int,
        offset_bytes: int,
        length_bytes: int,
        iova: int = 0,
        access: int = ACCESS_DEFAULT,
    ) -> Registration:
        """Attach the dma-buf `fd` and register the range. Raises CallError with the errno, never asserts."""
        ...

    def reregister(self, registration: Registration, access: int) -> None: ...

    def binding(self) -> ImporterBinding: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...
