"""Exporter `udmabuf`: pages of a sealed memfd, pinned by /dev/udmabuf. Needs no hardware.

The limits of the driver answer EINVAL like a bad argument does, so that errno carries them as a
hint. The memory can be mapped by the CPU, which makes this the exporter of data checks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from pathlib import Path
from typing import Self

from gdrstorm.engine import ExporterBinding
from gdrstorm.errors import CallError, UnavailableError
from gdrstorm.model.stack import StackPart, Support
from gdrstorm.stack.descriptor import Descriptor, open_device
from gdrstorm.stack.exporter import Memory
from gdrstorm.uapi import udmabuf
from gdrstorm.uapi.ioctl import call

_OPEN_HINTS = {
    errno.ENOENT: "the kernel needs CONFIG_UDMABUF; in the VM bed it has it",
    errno.EACCES: "run as root, or join the group that owns the node (kvm)",
}


class UdmabufMemory(Descriptor):
    """A memfd that cannot shrink; `fd` is its descriptor."""

    def map(self) -> mmap.mmap:
        """A shared, writable CPU mapping of all of it; the caller closes it."""
        return mmap.mmap(self.fd, self.size_bytes)


class UdmabufExporter:
    """/dev/udmabuf, open. `device` is not used: there is one per kernel."""

    name = "udmabuf"

    def __init__(self, node: Descriptor) -> None:
        self._node = node

    @classmethod
    def probe(cls, device: str | None = None) -> Support:
        if not Path(udmabuf.DEVICE_PATH).exists():
            return Support(False, f"no {udmabuf.DEVICE_PATH}")
        if not os.access(udmabuf.DEVICE_PATH, os.R_OK | os.W_OK):
            return Support(False, f"no permission for {udmabuf.DEVICE_PATH}")
        return Support(True)

    @classmethod
    def open(cls, device: str | None = None) -> Self:
        try:
            return cls(open_device(udmabuf.DEVICE_PATH, hints=_OPEN_HINTS))
        except CallError as error:
            raise UnavailableError(error.message, error.hint) from error

    def describe(self) -> StackPart:
        return StackPart(
            name=self.name,
            device=udmabuf.DEVICE_PATH,
            driver="udmabuf",
            version=os.uname().release,
            details={"memory": "system RAM (memfd)", **read_limits()},
        )

    def alloc(self, size_bytes: int) -> UdmabufMemory:
        fd = -1
        try:
            fd = os.memfd_create("gdrstorm", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
            os.ftruncate(fd, size_bytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            act = f"cannot allocate memfd: size={size_bytes}"
            raise CallError(act, error.errno or 0) from error
        return UdmabufMemory(fd, size_bytes)

    def export(self, memory: Memory, offset_bytes: int, size_bytes: int) -> Descriptor:
        assert isinstance(memory, UdmabufMemory)
        argument = udmabuf.UdmabufCreate(
            memory.fd & 0xFFFF_FFFF, udmabuf.FLAGS_CLOEXEC, offset_bytes, size_bytes
        )
        act = f"cannot create udmabuf: offset={offset_bytes} size={size_bytes}"
        hints = {errno.EINVAL: _hint_einval(), errno.ENOMEM: "not enough memory to pin"}
        return Descriptor(
            call(act, self._node.fd, udmabuf.IOCTL_CREATE, argument, hints), size_bytes
        )

    def binding(self) -> ExporterBinding:
        return ExporterBinding(backend="udmabuf", fds=(self._node.fd,))

    def close(self) -> None:
        self._node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_limits() -> dict[str, str]:
    """The driver's parameters that can be read: list_limit (items) and size_limit_mb."""
    limits: dict[str, str] = {}
    for name in ("list_limit", "size_limit_mb"):
        with contextlib.suppress(OSError):
            limits[name] = Path(udmabuf.PARAMETERS_PATH, name).read_text().strip()
    return limits


def _hint_einval() -> str:
    limits = read_limits()
    limit = limits.get("size_limit_mb", "unknown")
    return (
        "offset and size must be whole pages inside the memory, and the size at most "
        f"size_limit_mb={limit}: {udmabuf.PARAMETERS_PATH}/size_limit_mb raises it"
    )
