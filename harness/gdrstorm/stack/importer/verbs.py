"""Importer `verbs`: dma-buf MRs through libibverbs on any provider that has them.

`device` is the name of an RDMA device (mlx5_0); without one the first with a PCI parent is taken,
else the first. Nothing is checked before the library or the kernel sees it.
"""

from __future__ import annotations

import os
from typing import Self

from gdrstorm.engine import ImporterBinding
from gdrstorm.errors import GdrstormError, UnavailableError
from gdrstorm.model.stack import StackPart, Support
from gdrstorm.stack.identity import describe_hca, is_software_hca
from gdrstorm.stack.importer import ACCESS_DEFAULT, Registration
from gdrstorm.stack.importer.libibverbs import Hca, HcaName, Mr, read_devices
from gdrstorm.uapi import rdma_ioctl


class VerbsImporter:
    """One device context with one PD."""

    name = "verbs"
    imports_dmabuf = True

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
    ) -> Mr:
        return self.hca.reg_dmabuf(fd, offset_bytes, length_bytes, iova, access)

    def reregister(self, registration: Registration, access: int) -> None:
        assert isinstance(registration, Mr)
        registration.rereg_access(access)

    def binding(self) -> ImporterBinding:
        return ImporterBinding(backend="verbs", addresses=(self.hca.pd_address,))

    def close(self) -> None:
        self.hca.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def choose_hca(device: str | None) -> HcaName:
    """The device of that name, or the default one. Raises UnavailableError when there is none."""
    found = read_devices()
    if device is not None:
        for hca in found:
            if hca.name == device:
                return hca
    elif found:
        return min(found, key=lambda hca: (is_software_hca(hca.name), hca.name))
    names = ", ".join(hca.name for hca in found) or "none"
    raise UnavailableError(
        f"no RDMA device {device}" if device else "no RDMA device",
        f"there is: {names}; load the driver, or: rdma link add rxe0 type rxe netdev <interface>",
    )


def probe_hca(device: str | None) -> Support:
    """Whether the device exists and its uverbs node may be opened."""
    try:
        hca = choose_hca(device)
    except GdrstormError as error:
        return Support(False, error.message)
    path = f"{rdma_ioctl.DEVICE_DIR}/{hca.uverbs}"
    if not os.access(path, os.R_OK | os.W_OK):
        return Support(False, f"no permission for {path}")
    return Support(True)
