"""Importer `uverbs`: the same registration by raw ioctl, for input that libibverbs would stop.

libibverbs opens the device (providers need their own data for that); REG_DMABUF_MR and MR_DESTROY
are called on its command descriptor. No storm: the native engine has no such back end.
"""

from __future__ import annotations

import ctypes
from typing import Self

from gdrstorm.engine import ImporterBinding
from gdrstorm.errors import UnavailableError
from gdrstorm.model.stack import StackPart, Support
from gdrstorm.stack.identity import describe_hca
from gdrstorm.stack.importer import ACCESS_DEFAULT, Registration
from gdrstorm.stack.importer.libibverbs import REGISTER_HINTS, REREG_HINTS, Hca
from gdrstorm.stack.importer.verbs import choose_hca, probe_hca
from gdrstorm.uapi import rdma_ioctl
from gdrstorm.uapi.rdma_ioctl import RegDmabufMr, attr, attr_object, attr_pointer


class UverbsMr:
    """A kernel MR handle. `close` destroys it once; `destroy` asks the kernel every time."""

    def __init__(self, hca: Hca, driver_id: int, handle: int, lkey: int, rkey: int) -> None:
        self._hca = hca
        self._driver_id = driver_id
        self._is_open = True
        self.handle = handle
        self.lkey = lkey
        self.rkey = rkey

    def destroy(self) -> None:
        """UVERBS_METHOD_MR_DESTROY without looking at what was done before. Raises CallError."""
        act = f"cannot destroy MR: {self._hca.name} handle={self.handle}"
        rdma_ioctl.method(
            act,
            self._hca.command_fd,
            self._driver_id,
            rdma_ioctl.OBJECT_MR,
            rdma_ioctl.METHOD_MR_DESTROY,
            [attr_object(rdma_ioctl.DESTROY_MR_HANDLE, self.handle)],
        )
        self._is_open = False

    def close(self) -> None:
        if self._is_open:
            self.destroy()


class UverbsImporter:
    """One device context with one PD, spoken to by ioctl."""

    name = "uverbs"
    imports_dmabuf = True

    def __init__(self, hca: Hca) -> None:
        self.hca = hca
        self._driver_id = rdma_ioctl.find_driver_id(hca.command_fd)

    @classmethod
    def probe(cls, device: str | None = None) -> Support:
        return probe_hca(device)

    @classmethod
    def open(cls, device: str | None = None) -> Self:
        hca = Hca.open(choose_hca(device).name)
        try:
            return cls(hca)
        except BaseException:
            hca.close()
            raise

    def describe(self) -> StackPart:
        return describe_hca(self.name, self.hca.name)

    def register(
        self,
        fd: int,
        offset_bytes: int,
        length_bytes: int,
        iova: int = 0,
        access: int = ACCESS_DEFAULT,
    ) -> UverbsMr:
        return self.register_in(
            self.hca.pd_handle, fd, offset_bytes, length_bytes, iova=iova, access=access
        )

    def register_in(
        self,
        pd_handle: int,
        fd: int,
        offset_bytes: int,
        length_bytes: int,
        iova: int = 0,
        access: int = ACCESS_DEFAULT,
    ) -> UverbsMr:
        """`register` with any number as the PD's handle: a PD of another context, or none."""
        lkey, rkey = ctypes.c_uint32(), ctypes.c_uint32()
        attrs = [
            attr_object(RegDmabufMr.HANDLE, 0),
            attr_object(RegDmabufMr.PD_HANDLE, pd_handle),
            attr(RegDmabufMr.OFFSET, offset_bytes, 8),
            attr(RegDmabufMr.LENGTH, length_bytes, 8),
            attr(RegDmabufMr.IOVA, iova, 8),
            attr(RegDmabufMr.FD, fd & 0xFFFF_FFFF, 4),
            attr(RegDmabufMr.ACCESS_FLAGS, access & 0xFFFF_FFFF, 4),
            attr_pointer(RegDmabufMr.RESP_LKEY, lkey),
            attr_pointer(RegDmabufMr.RESP_RKEY, rkey),
        ]
        act = (
            f"cannot register MR by ioctl: {self.hca.name} pd={pd_handle} fd={fd} "
            f"offset={offset_bytes} length={length_bytes} iova={iova:#x} access={access:#x}"
        )
        answer = rdma_ioctl.method(
            act,
            self.hca.command_fd,
            self._driver_id,
            rdma_ioctl.OBJECT_MR,
            rdma_ioctl.METHOD_REG_DMABUF_MR,
            attrs,
            REGISTER_HINTS,
        )
        handle = answer[RegDmabufMr.HANDLE].data & 0xFFFF_FFFF
        return UverbsMr(self.hca, self._driver_id, handle, lkey.value, rkey.value)

    def reregister(self, registration: Registration, access: int) -> None:
        """REREG_MR of the write ABI, change of access only: the kernel's own answer. Raises CallError."""
        assert isinstance(registration, UverbsMr)
        self.reregister_handle(registration.handle, access)

    def reregister_handle(self, handle: int, access: int) -> None:
        """`reregister` of any number as an MR handle. Raises CallError."""
        command = rdma_ioctl.IbUverbsReregMr(
            mr_handle=handle,
            flags=rdma_ioctl.REREG_ACCESS,
            pd_handle=self.hca.pd_handle,
            access_flags=access & 0xFFFF_FFFF,
        )
        answer = rdma_ioctl.IbUverbsReregMrResp()
        rdma_ioctl.method(
            f"cannot reregister MR by ioctl: {self.hca.name} handle={handle} access={access:#x}",
            self.hca.command_fd,
            self._driver_id,
            rdma_ioctl.OBJECT_DEVICE,
            rdma_ioctl.METHOD_INVOKE_WRITE,
            [
                attr_pointer(rdma_ioctl.CORE_IN, command),
                attr_pointer(rdma_ioctl.CORE_OUT, answer),
                attr(rdma_ioctl.WRITE_CMD, rdma_ioctl.CMD_REREG_MR, 8),
            ],
            REREG_HINTS,
        )

    def binding(self) -> ImporterBinding:
        raise UnavailableError("uverbs cannot storm: no such native back end", "use verbs")

    def close(self) -> None:
        self.hca.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
