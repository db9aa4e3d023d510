"""A client of the NVIDIA resource manager: descriptors and RM objects, owned and freed in order.

root, device, subdevice and memory are made and ended by ioctls on /dev/nvidiactl, a dma-buf by one
on /dev/nvidiaN. An ioctl answers twice: errno when the kernel refused the call itself, NV_STATUS in
the structure otherwise. All I/O goes through an RmIo, so that tests can record and answer it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from gdrstorm.errors import CallError, UnavailableError, errno_name
from gdrstorm.stack.exporter.gpu_device import GpuDevice, Mapping
from gdrstorm.uapi import nvidia
from gdrstorm.uapi.nvidia_status import (
    NV_ERR_INVALID_OBJECT_HANDLE,
    NV_ERR_NO_MEMORY,
    NV_ERR_NOT_SUPPORTED,
    NV_ERR_OPERATING_SYSTEM,
    NV_OK,
    code_of_status,
    status_name,
)

CTL_PATH = "/dev/nvidiactl"
VERSION_PATHS = ("/sys/module/nvidia/version", "/proc/driver/nvidia/version")
#: What status holds before a call: still there afterwards, the kernel never wrote it.
STATUS_UNTOUCHED = 0xCAFE
_U64 = (1 << 64) - 1

_HINTS = {
    NV_ERR_NOT_SUPPORTED: "this GPU does not export with this mapping type; try mapping=default",
    NV_ERR_NO_MEMORY: "GPU memory is used up: nvidia-smi shows by whom",
    NV_ERR_OPERATING_SYSTEM: "descriptor limit reached? see ulimit -n",
    NV_ERR_INVALID_OBJECT_HANDLE: "the RM client is gone",
}


class RmStatusError(CallError):
    """The resource manager refused a call; `errno` is the status as code_of_status."""

    def __init__(self, act: str, status: int) -> None:
        super().__init__(act, code_of_status(status), _HINTS.get(status))
        self.message = f"{act}: {status_name(status)} ({status:#x})"
        self.status = status


class RmIo(Protocol):
    """The four things that touch the system. open and ioctl raise OSError."""

    def read_version(self) -> str: ...

    def open(self, path: str) -> int: ...

    def ioctl(self, fd: int, request: int, argument: ctypes.Structure | int) -> None: ...

    def close(self, fd: int) -> None: ...


class SystemIo:
    """The real one."""

    def read_version(self) -> str:
        """Driver version, or empty when no driver is loaded."""
        for path in VERSION_PATHS:
            try:
                return parse_version_file(Path(path).read_text())
            except OSError:
                continue
        return ""

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def ioctl(self, fd: int, request: int, argument: ctypes.Structure | int) -> None:
        fcntl.ioctl(fd, request, argument)

    def close(self, fd: int) -> None:
        os.close(fd)


class RmCard(msgspec.Struct, frozen=True):
    """One GPU as CARD_INFO lists it."""

    bdf: str
    minor: int
    gpu_id: int
    vendor_id: int
    device_id: int


class RmMemory:
    """Video memory: one RM object a chunk. `close` frees them, last first; twice is legal."""

    def __init__(self, client: RmClient, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.handles: list[int] = []
        self.chunk_sizes: list[int] = []
        self._client = client

    def close(self) -> None:
        while self.handles:
            self._client.free(self._client.device, self.handles.pop())


class ExportPart(msgspec.Struct, frozen=True):
    """A range of one memory object."""

    handle: int
    offset: int
    size: int


class ExportInput(msgspec.Struct, frozen=True):
    """One export ioctl as it is to be sent; -1 in a count or total means: what the parts say."""

    parts: tuple[ExportPart, ...]
    mapping: int = Mapping.DEFAULT.value
    allow_mmap: int = 0
    fd: int = -1
    total_objects: int = -1
    num_objects: int = -1
    total_size: int = -1


class ExportAnswer(msgspec.Struct, frozen=True):
    """What came back: errno 0 with a status, or an errno. `fd` is -1 unless one was made."""

    errno: int
    status: int
    fd: int

    @property
    def name(self) -> str:
        return errno_name(self.errno) if self.errno else status_name(self.status)


class RmClient:
    """One RM client on one GPU. `client`, `device` and `subdevice` are handles."""

    def __init__(self, io: RmIo, generation: nvidia.Generation, version: str) -> None:
        self.io = io
        self.generation = generation
        self.version = version
        self.ctl_fd = -1
        self.dev_fd = -1
        self.client = 0
        self.device = 0
        self.subdevice = 0
        self.card = RmCard("", -1, 0, 0, 0)
        self.cleanup_errors: list[str] = []
        self._owner = os.getpid()

    @classmethod
    def open(cls, device: GpuDevice, io: RmIo | None = None) -> RmClient:
        """Open driver, client, GPU. Raises UnavailableError or CallError, leaving nothing open."""
        client = cls._prepare(device, io or SystemIo())
        try:
            client._open(device)
        except BaseException:
            client.close()
            raise
        return client

    @classmethod
    def check(cls, device: GpuDevice, io: RmIo | None = None) -> RmCard:
        """What open needs, as far as it can be seen without making a client. Raises as open."""
        client = cls._prepare(device, io or SystemIo())
        client.ctl_fd = _open_node(client.io, CTL_PATH)
        try:
            return find_card(client.read_cards(), device)
        finally:
            client.close()

    @classmethod
    def _prepare(cls, device: GpuDevice, io: RmIo) -> RmClient:
        version = io.read_version()
        if not version:
            raise UnavailableError(
                f"cannot use exporter rm: no NVIDIA driver is loaded ({VERSION_PATHS[0]}: ENOENT)",
                "load the nvidia module, or choose another exporter: gdrstorm check",
            )
        named = nvidia.generation_of_branch(device.layout) if device.layout else None
        return cls(io, named or nvidia.generation_of(version), version)

    def _open(self, device: GpuDevice) -> None:
        self.ctl_fd = _open_node(self.io, CTL_PATH)
        self.card = find_card(self.read_cards(), device)
        self.dev_fd = _open_node(self.io, f"/dev/nvidia{self.card.minor}")
        self._ioctl(
            "register descriptor",
            self.dev_fd,
            nvidia.NR_REGISTER_FD,
            nvidia.RegisterFd(self.ctl_fd),
        )
        self.client = self._alloc("client", 0, nvidia.NV01_ROOT_CLIENT, None)
        ids = nvidia.GpuIdInfo(gpu_id=self.card.gpu_id)
        self.control(self.client, nvidia.CMD_GPU_GET_ID_INFO_V2, ids)
        params = nvidia.DeviceParams(device_id=ids.device_instance, h_client_share=self.client)
        self.device = self._alloc("device", self.client, nvidia.NV01_DEVICE_0, params)
        sub = nvidia.SubdeviceParams(ids.subdevice_instance)
        self.subdevice = self._alloc("subdevice", self.device, nvidia.NV20_SUBDEVICE_0, sub)

    def read_cards(self) -> tuple[RmCard, ...]:
        """All GPUs of the driver, sorted by bdf."""
        table = nvidia.CardInfoTable()
        self._ioctl("read cards", self.ctl_fd, nvidia.NR_CARD_INFO, table)
        return tuple(sorted((_card(c) for c in table.cards if c.valid), key=lambda c: c.bdf))

    def control(self, handle: int, cmd: int, params: ctypes.Structure) -> None:
        """One RM control; `params` is filled in place. Raises RmStatusError or CallError."""
        argument = nvidia.Control(
            h_client=self.client,
            h_object=handle,
            cmd=cmd,
            params=ctypes.addressof(params),
            params_size=ctypes.sizeof(params),
            status=STATUS_UNTOUCHED,
        )
        act = f"control {cmd:#x}"
        self._ioctl(act, self.ctl_fd, nvidia.NR_RM_CONTROL, argument)
        self._check(act, argument.status)

    def alloc(self, size_bytes: int, sizes: Sequence[int] = ()) -> RmMemory:
        """Contiguous video memory of each size (one chunk of size_bytes when none is named)."""
        memory = RmMemory(self, size_bytes)
        try:
            for size in sizes or (size_bytes,):
                params = self.generation.memory(
                    owner=self.client,
                    flags=nvidia.VIDMEM_FLAGS,
                    attr=nvidia.VIDMEM_ATTR_CONTIGUOUS,
                    attr2=nvidia.VIDMEM_ATTR2,
                    size=size,
                    alignment=nvidia.VIDMEM_ALIGNMENT,
                )
                memory.handles.append(
                    self._alloc(
                        f"memory size={size}", self.device, nvidia.NV01_MEMORY_LOCAL_USER, params
                    )
                )
                memory.chunk_sizes.append(size)
        except BaseException:
            self._discard(memory)
            raise
        return memory

    def _discard(self, memory: RmMemory) -> None:
        """Free what a failed alloc had; errors are kept, so that the first one is raised."""
        while memory.handles:
            try:
                memory.close()
            except CallError as error:
                self.cleanup_errors.append(str(error))

    def export(self, what: ExportInput) -> ExportAnswer:
        """Send one export as it is; nothing is checked, nothing is raised for a refusal."""
        struct = self.generation.export
        argument = self.fill_export(struct, what)
        word = nvidia.request(nvidia.NR_EXPORT_TO_DMABUF_FD, struct)
        return self.send_export(self.dev_fd, word, argument)

    def fill_export(self, struct: type[ctypes.Structure], what: ExportInput) -> ctypes.Structure:
        """The structure of an export; sizes and offsets are cut to 64 bits."""
        total = sum(part.size for part in what.parts)
        argument = struct(
            fd=what.fd,
            h_client=self.client,
            total_objects=len(what.parts) if what.total_objects < 0 else what.total_objects,
            num_objects=len(what.parts) if what.num_objects < 0 else what.num_objects,
            total_size=(total if what.total_size < 0 else what.total_size) & _U64,
            status=STATUS_UNTOUCHED,
        )
        for index, part in enumerate(what.parts):
            argument.handles[index] = part.handle
            argument.offsets[index] = part.offset & _U64
            argument.sizes[index] = part.size & _U64
        if self.generation.has_mapping_type:
            argument.mapping_type = what.mapping
            argument.allow_mmap = what.allow_mmap
        return argument

    def send_export(self, fd: int, word: int, argument: ctypes.Structure) -> ExportAnswer:
        """The ioctl itself, for callers that choose descriptor, request word or structure."""
        asked = argument.fd
        try:
            self.io.ioctl(fd, word, argument)
        except OSError as error:
            return ExportAnswer(error.errno or errno.EIO, argument.status, -1)
        made = argument.fd
        return ExportAnswer(0, argument.status, made if made != asked else -1)

    def free(self, parent: int, handle: int) -> None:
        """End one object. After close, and in a fork's child, this does nothing: RM did or will."""
        if self.client == 0 or handle == 0 or os.getpid() != self._owner:
            return
        argument = nvidia.Free(self.client, parent, handle, STATUS_UNTOUCHED)
        self._ioctl("free object", self.ctl_fd, nvidia.NR_RM_FREE, argument)
        self._check(f"free object {handle:#x}", argument.status)

    def close(self) -> None:
        """End subdevice, device and client, then close both descriptors. Twice is legal."""
        for parent, handle in (
            (self.device, self.subdevice),
            (self.client, self.device),
            (0, self.client),
        ):
            try:
                self.free(parent, handle)
            except CallError as error:
                self.cleanup_errors.append(str(error))
        self.client = self.device = self.subdevice = 0
        for fd in (self.dev_fd, self.ctl_fd):
            if fd >= 0:
                self.io.close(fd)
        self.dev_fd = self.ctl_fd = -1

    def _alloc(self, what: str, parent: int, cls: int, params: ctypes.Structure | None) -> int:
        argument = self.generation.alloc(
            h_root=self.client,
            h_parent=parent,
            h_class=cls,
            params=ctypes.addressof(params) if params is not None else 0,
            status=STATUS_UNTOUCHED,
        )
        self._ioctl(f"allocate {what}", self.ctl_fd, nvidia.NR_RM_ALLOC, argument)
        self._check(f"allocate {what}", argument.status)
        handle: int = argument.h_new
        return handle

    def _ioctl(self, act: str, fd: int, number: int, argument: ctypes.Structure) -> None:
        try:
            self.io.ioctl(fd, nvidia.request(number, type(argument)), argument)
        except OSError as error:
            value = error.errno or errno.EIO
            hint = (
                f"driver {self.version} does not have the layout of branch "
                f"{self.generation.branches[-1]}"
                if value == errno.EINVAL
                else None
            )
            raise CallError(f"cannot {act}: {self.card.bdf or CTL_PATH}", value, hint) from error

    def _check(self, act: str, status: int) -> None:
        if status != NV_OK:
            raise RmStatusError(f"cannot {act}: {self.card.bdf or CTL_PATH}", status)


def parse_version_file(text: str) -> str:
    """Version in /sys/module/nvidia/version (bare) or /proc/driver/nvidia/version (a sentence)."""
    for word in text.split():
        try:
            nvidia.parse_version(word)
        except ValueError:
            continue
        return word
    return text.strip().splitlines()[0] if text.strip() else ""


def find_card(cards: Sequence[RmCard], device: GpuDevice) -> RmCard:
    """The card that the device option names. Raises UnavailableError."""
    for ordinal, card in enumerate(cards):
        if card.bdf == device.bdf or (not device.bdf and ordinal == device.ordinal):
            return card
    here = ", ".join(card.bdf for card in cards) or "none"
    raise UnavailableError(f"no GPU {device.selector}", f"GPUs of the driver: {here}")


def _card(info: nvidia.CardInfo) -> RmCard:
    pci = info.pci_info
    return RmCard(
        bdf=f"{pci.domain:04x}:{pci.bus:02x}:{pci.slot:02x}.{pci.function}",
        minor=info.minor_number,
        gpu_id=info.gpu_id,
        vendor_id=pci.vendor_id,
        device_id=pci.device_id,
    )


def _open_node(io: RmIo, path: str) -> int:
    try:
        return io.open(path)
    except OSError as error:
        hint = {
            errno.ENOENT: "make the node: nvidia-modprobe -c 0 -u; in a container, pass the GPU in",
            errno.EACCES: "run as root, or as a user who may open the node (NVreg_DeviceFileMode)",
            errno.EPERM: "the container's device rules forbid it; pass the GPU in",
            errno.EIO: "the GPU did not start: see the kernel log for NVRM and Xid lines",
        }.get(error.errno or 0)
        name = errno_name(error.errno or errno.EIO)
        raise UnavailableError(f"cannot open {path}: {name}", hint) from error
