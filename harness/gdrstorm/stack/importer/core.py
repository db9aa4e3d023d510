"""Importer `core`: no driver attaches; what the dma-buf core does for any exporter is called.

As an importer, REG is a duplicate of the descriptor with its size read and a CPU access started,
DEREG ends both. `run_core_checks` calls everything else that a process can do to a dma-buf.
Source: drivers/dma-buf/dma-buf.c and include/uapi/linux/dma-buf.h.
"""

from __future__ import annotations

import errno
import os
from typing import Self

from gdrstorm.engine import ImporterBinding
from gdrstorm.errors import CallError
from gdrstorm.model.stack import StackPart, Support
from gdrstorm.stack.importer import ACCESS_DEFAULT, Registration
from gdrstorm.uapi import dma_buf


class CoreRegistration:
    """A reference of its own to the buffer, inside a CPU access. There are no keys."""

    lkey = 0
    rkey = 0

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            dma_buf.sync(fd, dma_buf.SYNC_RW | dma_buf.SYNC_END)
        finally:
            os.close(fd)


class CoreImporter:
    """There is one; `device` is not used."""

    name = "core"

    @classmethod
    def probe(cls, device: str | None = None) -> Support:
        return Support(True)

    @classmethod
    def open(cls, device: str | None = None) -> Self:
        return cls()

    def describe(self) -> StackPart:
        return StackPart(
            name=self.name,
            driver="dma-buf core",
            version=os.uname().release,
            details={"attaches": "no: no importer driver is exercised"},
        )

    def register(
        self,
        fd: int,
        offset_bytes: int,
        length_bytes: int,
        iova: int = 0,
        access: int = ACCESS_DEFAULT,
    ) -> CoreRegistration:
        """Start a CPU access. Raises CallError: ERANGE when the range is past the end."""
        act = f"cannot take dma-buf: fd={fd} offset={offset_bytes} length={length_bytes}"
        try:
            own = os.dup(fd)
        except OSError as error:
            raise CallError(act, error.errno or 0) from error
        try:
            if dma_buf.read_size(own) < offset_bytes + length_bytes:
                raise CallError(act, errno.ERANGE)
            dma_buf.sync(own, dma_buf.SYNC_RW | dma_buf.SYNC_START)
        except OSError as error:
            os.close(own)
            raise CallError(act, error.errno or 0) from error
        except CallError:
            os.close(own)
            raise
        return CoreRegistration(own)

    def reregister(self, registration: Registration, access: int) -> None:
        """Nothing can be changed: EOPNOTSUPP."""
        raise CallError(f"cannot reregister: access={access:#x}", errno.EOPNOTSUPP)

    def binding(self) -> ImporterBinding:
        return ImporterBinding(backend="core")

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
