"""Importer `host-memory`: ibv_reg_mr on ordinary memory, the control that ignores the dma-buf.

What fails here too is not about dma-bufs. Each registration maps its own anonymous pages, at the
same position within a page as the offset asks for.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Self

from gdrstorm.engine import ImporterBinding
from gdrstorm.model.stack import StackPart, Support
from gdrstorm.stack.identity import describe_hca
from gdrstorm.stack.importer import ACCESS_DEFAULT, Registration
from gdrstorm.stack.importer.libibverbs import Hca
from gdrstorm.stack.importer.verbs import choose_hca, probe_hca


class HostMemoryRegistration:
    """An MR and the memory under it; both end together, the MR first."""

    def __init__(self, hca: Hca, offset: int, length: int, access: int) -> None:
        start = offset % mmap.PAGESIZE
        self._memory = mmap.mmap(-1, max(start + length, 1))
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        try:
            self.mr = hca.reg_memory(address + start, length, access)
        except BaseException:
            self._memory.close()
            raise

    @property
    def lkey(self) -> int:
        return self.mr.lkey

    @property
    def rkey(self) -> int:
        return self.mr.rkey

    def close(self) -> None:
        self.mr.close()
        self._memory.close()


class HostMemoryImporter:
    """One device context with one PD."""

    name = "host-memory"
    imports_dmabuf = False

    def __init__(self, hca: Hca) -> None:
        self.hca = hca

    @classmethod
    def probe(cls, device: str | None = None) -> Support:
        return probe_hca(device)

    @classmethod
    def open(cls, device: str | None = None) -> Self:
        return cls(Hca.open(choose_hca(device).name))

    def describe(self) -> StackPart:
        return describe_hca(self.name, self.hca.name)

    def register(
        self,
        fd: int,
        offset_bytes: int,
        length_bytes: int,
        iova: int = 0,
        access: int = ACCESS_DEFAULT,
    ) -> HostMemoryRegistration:
        return HostMemoryRegistration(self.hca, offset_bytes, length_bytes, access)

    def reregister(self, registration: Registration, access: int) -> None:
        assert isinstance(registration, HostMemoryRegistration)
        registration.mr.rereg_access(access)

    def binding(self) -> ImporterBinding:
        return ImporterBinding(backend="host-memory", addresses=(self.hca.pd_address,))

    def close(self) -> None:
        self.hca.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
