"""Importer `prime`: a DRM driver attaches the dma-buf and makes a GEM handle of it.

`device` is a DRM node (renderD128, card0 or its path); without one, vgem is looked for, then any
render node. DRM maps whole buffers: offset, length, iova and access are not used. One handle per
buffer and file: importing a buffer twice gives one handle, which is closed with its last user.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Self

from gdrstorm.engine import ImporterBinding
from gdrstorm.errors import CallError, GdrstormError, UnavailableError
from gdrstorm.host.sysfs import read_link_name
from gdrstorm.model.stack import StackPart, Support
from gdrstorm.stack.descriptor import Descriptor, open_device
from gdrstorm.stack.identity import in_bed
from gdrstorm.stack.importer import ACCESS_DEFAULT, Registration
from gdrstorm.uapi import drm
from gdrstorm.uapi.ioctl import call

# Drivers without hardware (drivers/gpu/drm/vgem, vkms and QEMU's functions).
_SOFTWARE_DRIVERS = frozenset({"vgem", "vkms", "bochs-drm", "virtio_gpu", "qxl", "cirrus"})
_IMPORT_HINTS = {
    errno.ENOSYS: "this DRM driver cannot import",
    errno.EOPNOTSUPP: "this DRM driver cannot import",
    524: "the exporter refused the attachment",
}


class PrimeHandle:
    """A GEM handle; keys are 0."""

    lkey = 0
    rkey = 0

    def __init__(self, importer: PrimeImporter, handle: int) -> None:
        self._importer = importer
        self.handle = handle
        self._is_open = True

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._importer.release(self.handle)


class PrimeImporter:
    """One DRM file."""

    name = "prime"

    def __init__(self, node: Descriptor, path: str) -> None:
        self._node = node
        self._path = path
        self._users: dict[int, int] = {}

    @classmethod
    def probe(cls, device: str | None = None) -> Support:
        try:
            path = choose_node(device)
        except GdrstormError as error:
            return Support(False, error.message)
        if not os.access(path, os.R_OK | os.W_OK):
            return Support(False, f"no permission for {path}")
        return Support(True)

    @classmethod
    def open(cls, device: str | None = None) -> Self:
        path = choose_node(device)
        try:
            return cls(open_device(path), path)
        except CallError as error:
            raise UnavailableError(error.message, error.hint) from error

    def describe(self) -> StackPart:
        driver, version = read_version(self._node.fd)
        return StackPart(
            name=self.name,
            device=self._path,
            driver=driver,
            version=version,
            emulated=driver in _SOFTWARE_DRIVERS or in_bed(),
        )

    def register(
        self,
        fd: int,
        offset_bytes: int,
        length_bytes: int,
        iova: int = 0,
        access: int = ACCESS_DEFAULT,
    ) -> PrimeHandle:
        argument = drm.DrmPrimeHandle(0, 0, fd)
        act = f"cannot import dma-buf: {self._path} fd={fd}"
        call(act, self._node.fd, drm.IOCTL_PRIME_FD_TO_HANDLE, argument, _IMPORT_HINTS)
        handle = int(argument.handle)
        self._users[handle] = self._users.get(handle, 0) + 1
        return PrimeHandle(self, handle)

    def release(self, handle: int) -> None:
        """Drop one user of a handle; the last one closes it. Raises CallError."""
        self._users[handle] -= 1
        if self._users[handle] == 0:
            del self._users[handle]
            act = f"cannot close GEM handle: {self._path} handle={handle}"
            call(act, self._node.fd, drm.IOCTL_GEM_CLOSE, drm.DrmGemClose(handle, 0))

    def reregister(self, registration: Registration, access: int) -> None:
        raise CallError(f"cannot reregister: {self._path}", errno.EOPNOTSUPP, "DRM has no REREG")

    def binding(self) -> ImporterBinding:
        return ImporterBinding(backend="prime", fds=(self._node.fd,))

    def close(self) -> None:
        self._node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def choose_node(device: str | None) -> str:
    """Path of the DRM node to use. Raises UnavailableError."""
    if device is not None:
        path = device if device.startswith("/") else f"{drm.DEVICE_DIR}/{device}"
        if not Path(path).exists():
            raise UnavailableError(f"no DRM node {path}", "modprobe vgem gives one")
        return path
    nodes = sorted(Path(drm.DEVICE_DIR).glob("renderD*"))
    nodes += sorted(Path(drm.DEVICE_DIR).glob("card*"))
    if not nodes:
        raise UnavailableError(f"no DRM node in {drm.DEVICE_DIR}", "modprobe vgem gives one")
    vgem = (node for node in nodes if _sysfs_driver(node) == "vgem")
    return str(next(vgem, nodes[0]))


def _sysfs_driver(node: Path) -> str:
    # vgem is no PCI function: its parent is a faux (or platform) device of that name.
    return read_link_name(Path("/sys/class/drm", node.name, "device")).get("")


def read_version(fd: int) -> tuple[str, str]:
    """DRM driver name and version. Raises CallError."""
    name = ctypes.create_string_buffer(64)
    argument = drm.DrmVersion(name_len=len(name), name=ctypes.addressof(name))
    call("cannot read DRM version", fd, drm.IOCTL_VERSION, argument)
    version = (argument.version_major, argument.version_minor, argument.version_patchlevel)
    return name.raw[: argument.name_len].decode(), ".".join(str(part) for part in version)
