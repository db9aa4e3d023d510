"""A stand-in for the NVIDIA driver behind RmIo: answers, keeps objects, remembers every call.

It knows the calls that gdrstorm makes, refuses what driver 580 refuses, and counts what is left.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os

from gdrstorm.uapi import nvidia
from gdrstorm.uapi.nvidia_status import (
    NV_ERR_INVALID_ARGUMENT,
    NV_ERR_NO_MEMORY,
    NV_ERR_NOT_SUPPORTED,
    NV_ERR_OBJECT_NOT_FOUND,
    NV_ERR_OPERATING_SYSTEM,
)

CLASS_NAMES = {0x41: "client", 0x80: "device", 0x2080: "subdevice", 0x40: "memory"}
ESCAPES = {
    nvidia.NR_CARD_INFO: "CARD_INFO",
    nvidia.NR_REGISTER_FD: "REGISTER_FD",
    nvidia.NR_RM_ALLOC: "ALLOC",
    nvidia.NR_RM_FREE: "FREE",
    nvidia.NR_RM_CONTROL: "CONTROL",
    nvidia.NR_EXPORT_TO_DMABUF_FD: "EXPORT",
}


class FakeDriver:
    """`fail` maps a call as it stands in `trace` to an errno (int) or a status (`-status`)."""

    def __init__(self, version: str = "580.159.04", bdfs: tuple[str, ...] = ("0000:9b:00.0",)):
        self.version = version
        self.bdfs = bdfs
        self.trace: list[str] = []
        self.objects: dict[int, str] = {}
        self.open_paths: dict[int, str] = {}
        self.open_errors: dict[str, int] = {}
        self.fail: dict[str, int] = {}
        self.memory_kib = 1 << 20
        self.exports: list[tuple[int, ...]] = []
        self._handles = itertools.count(0xC1D00000)

    def read_version(self) -> str:
        return self.version

    def open(self, path: str) -> int:
        self.trace.append(f"open {path}")
        if path in self.open_errors:
            raise OSError(self.open_errors[path], "")
        fd = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self.open_paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        self.trace.append(f"close {self.open_paths.pop(fd)}")
        os.close(fd)

    def ioctl(self, fd: int, request: int, argument: ctypes.Structure | int) -> None:
        assert self.open_paths[fd]
        name = ESCAPES[request & 0xFF]
        on_gpu = self.open_paths[fd] != "/dev/nvidiactl"
        branch = int(self.version.split(".")[0])
        export = (nvidia.generation_of_branch(branch) or nvidia.GENERATIONS[-1]).export
        wanted = nvidia.request(nvidia.NR_EXPORT_TO_DMABUF_FD, export)
        if name == "EXPORT" and (request != wanted or not on_gpu):
            raise OSError(errno.EINVAL, "")
        if isinstance(argument, int):
            raise OSError(errno.EFAULT, "")
        assert request >> 16 & 0x3FFF <= ctypes.sizeof(argument)
        assert on_gpu == (name in ("REGISTER_FD", "EXPORT")), name
        getattr(self, f"_{name.lower()}")(argument)

    def _note(self, call: str, argument: ctypes.Structure | None = None) -> bool:
        self.trace.append(call)
        answer = self.fail.get(call, 0)
        if answer > 0:
            raise OSError(answer, "")
        if argument is not None:
            argument.status = -answer  # type: ignore[attr-defined]
        return answer == 0

    def _card_info(self, table: nvidia.CardInfoTable) -> None:
        self._note("CARD_INFO")
        for index, bdf in enumerate(self.bdfs):
            domain, bus, rest = bdf.split(":")
            slot, function = rest.split(".")
            card = table.cards[index]
            card.valid = 1
            card.minor_number = index
            card.gpu_id = 0x600 + index
            card.pci_info = nvidia.PciInfo(
                int(domain, 16), int(bus, 16), int(slot, 16), int(function), 0x10DE, 0x2335
            )

    def _register_fd(self, argument: nvidia.RegisterFd) -> None:
        self._note("REGISTER_FD")
        assert self.open_paths[argument.ctl_fd] == "/dev/nvidiactl"

    def _alloc(self, argument: nvidia.Alloc) -> None:
        name = CLASS_NAMES[argument.h_class]
        if not self._note(f"ALLOC {name}", argument):
            return
        parent = {"client": None, "device": "client", "subdevice": "device", "memory": "device"}
        if parent[name] is not None:
            assert self.objects[argument.h_parent] == parent[name]
            assert self.objects[argument.h_root] == "client"
        if name == "memory":
            params = ctypes.cast(argument.params, ctypes.POINTER(nvidia.MemoryParams)).contents
            if params.size >> 10 > self.memory_kib:
                argument.status = NV_ERR_NO_MEMORY
                return
            self.memory_kib -= params.size >> 10
            name = f"memory {params.size}"
        argument.h_new = next(self._handles)
        self.objects[argument.h_new] = name

    def _free(self, argument: nvidia.Free) -> None:
        name = self.objects.get(argument.h_old, "nothing")
        if not self._note(f"FREE {name.split()[0]}", argument):
            return
        if name == "nothing":
            argument.status = NV_ERR_OBJECT_NOT_FOUND
            return
        del self.objects[argument.h_old]
        if name.startswith("memory"):
            self.memory_kib += int(name.split()[1]) >> 10
        if name == "client":
            self.objects.clear()

    def _control(self, argument: nvidia.Control) -> None:
        if not self._note(f"CONTROL {argument.cmd:#x}", argument):
            return
        if argument.cmd == nvidia.CMD_FB_GET_INFO_V2:
            params = ctypes.cast(argument.params, ctypes.POINTER(nvidia.FbInfo1028)).contents
            values = {nvidia.FB_HEAP_FREE: self.memory_kib, nvidia.FB_HEAP_SIZE: 1 << 20}
            values |= {nvidia.FB_BAR1_SIZE: 1 << 21, nvidia.FB_BAR1_AVAIL_SIZE: 1 << 20}
            for entry in params.entries[: params.count]:
                entry.data = values.get(entry.index, 0)
        elif argument.cmd == nvidia.CMD_GPU_GET_INFO_V2:
            params = ctypes.cast(argument.params, ctypes.POINTER(nvidia.GpuInfo564)).contents
            answers = {nvidia.GPU_SMC_MODE: 2, nvidia.GPU_DMABUF_CAPABILITY: 1}
            for entry in params.entries[: params.count]:
                entry.data = answers.get(entry.index, 0)
        elif argument.cmd == nvidia.CMD_FB_GET_STATIC_BAR1_INFO:
            bar1 = ctypes.cast(argument.params, ctypes.POINTER(nvidia.StaticBar1)).contents
            bar1.enabled, bar1.write_combined, bar1.start_offset, bar1.size = 1, 1, 1 << 29, 1 << 37

    def _export(self, argument: nvidia.Export) -> None:
        if not self._note("EXPORT", argument):
            return
        argument.status = self._export_status(argument)
        if argument.status == 0:
            parts = range(argument.num_objects)
            self.exports.append(
                (
                    *(argument.handles[i] for i in parts),
                    *(argument.offsets[i] for i in parts),
                    *(argument.sizes[i] for i in parts),
                )
            )
            argument.fd = os.memfd_create("dmabuf", os.MFD_CLOEXEC)
            os.ftruncate(argument.fd, argument.total_size)

    def _export_status(self, argument: nvidia.Export) -> int:
        """The answers of driver 580 in the order it gives them."""
        count = argument.num_objects
        if not argument.total_size or not 0 < count <= min(argument.total_objects, 128):
            return NV_ERR_INVALID_ARGUMENT
        mapping = getattr(argument, "mapping_type", 0)
        if argument.fd < -1 or mapping > 1:
            return NV_ERR_INVALID_ARGUMENT
        if mapping == nvidia.MAPPING_FORCE_PCIE or getattr(argument, "allow_mmap", 0):
            return NV_ERR_NOT_SUPPORTED
        if argument.fd >= 0:
            return NV_ERR_OPERATING_SYSTEM
        for i in range(count):
            words = self.objects.get(argument.handles[i], "").split()
            if words[:1] != ["memory"]:
                return NV_ERR_OBJECT_NOT_FOUND
            offset, size = argument.offsets[i], argument.sizes[i]
            if not size or size % 4096 or offset % 4096 or offset + size > int(words[1]):
                return NV_ERR_INVALID_ARGUMENT
        total = sum(argument.sizes[i] for i in range(count))
        return 0 if total == argument.total_size else NV_ERR_INVALID_ARGUMENT


#: open errors and what users do about them
OPEN_ERRORS = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EIO)
