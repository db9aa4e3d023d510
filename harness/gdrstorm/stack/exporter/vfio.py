"""Exporter `vfio`: ranges of a PCI BAR, exported by vfio-pci (VFIO_DEVICE_FEATURE_DMA_BUF).

`device` is `bdf` or `bdf:barN`; without a bar the largest mappable one is taken. The function must
be bound to vfio-pci already: binding takes it from its driver, which is not this module's to do
(vfio_bind.py has the helper for the bed). Source: include/uapi/linux/vfio.h.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
from pathlib import Path
from typing import Self

import msgspec

from gdrstorm.engine import ExporterBinding
from gdrstorm.errors import CallError, GdrstormError, UnavailableError
from gdrstorm.host.sysfs import read_link_name, read_names
from gdrstorm.model.stack import StackPart, Support
from gdrstorm.stack.descriptor import Descriptor, open_device
from gdrstorm.stack.exporter import Memory
from gdrstorm.stack.identity import is_emulated_pci, read_pci_driver
from gdrstorm.uapi import vfio
from gdrstorm.uapi.ioctl import call

_DEVICE = re.compile(
    r"(?P<bdf>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?::bar(?P<bar>[0-5]))?"
)
_PCI = Path("/sys/bus/pci/devices")
_BARS = 6
_COMMAND_OFFSET = 4  # PCI configuration space: command register, bit 1 is memory enable
_COMMAND_MEMORY = 1 << 1
_GROUP_HINTS = {
    errno.EBUSY: "another process has this VFIO group: it has one owner at a time",
    errno.EACCES: "run as root",
    errno.EPERM: "no interrupt remapping? vfio_iommu_type1.allow_unsafe_interrupts=1 permits it",
}
_EXPORT_HINTS = {
    errno.ENOTTY: "the kernel has no dma-buf export of BARs: needs CONFIG_VFIO_PCI_DMABUF, 6.19",
    errno.EINVAL: "the range must be whole pages inside the BAR",
    errno.ENODEV: "the BAR is revoked: memory enable is off, or the function is being reset",
    errno.EOPNOTSUPP: "this BAR cannot be used for peer-to-peer DMA",
}


class Region(msgspec.Struct, frozen=True):
    """A BAR as VFIO shows it; `offset` is its place in the device descriptor."""

    index: int
    size: int
    offset: int
    is_mappable: bool


class BarMemory:
    """A slice of the BAR. `close` gives it back to the exporter; exported buffers stay valid."""

    def __init__(self, exporter: VfioExporter, offset_bytes: int, size_bytes: int) -> None:
        self._exporter = exporter
        self.offset_bytes = offset_bytes
        self.size_bytes = size_bytes
        self._is_open = True

    def map(self) -> mmap.mmap:
        """A shared, writable CPU mapping of the slice; the caller closes it."""
        return self._exporter.map(self.offset_bytes, self.size_bytes)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._exporter.release(self)


class VfioExporter:
    """One function with one BAR. Owns all descriptors that lead to it."""

    name = "vfio"

    def __init__(self, bdf: str, fds: list[Descriptor], region: Region) -> None:
        self._bdf = bdf
        self._fds = fds
        self._region = region
        self._slices: list[BarMemory] = []

    @classmethod
    def probe(cls, device: str | None = None) -> Support:
        try:
            bdf, _ = parse_device(device or default_device())
            check_bound(bdf)
            path = _device_path(bdf)
        except GdrstormError as error:
            return Support(False, f"{error.message}: {error.hint}" if error.hint else error.message)
        if not os.access(path, os.R_OK | os.W_OK):
            return Support(False, f"no permission for {path}")
        return Support(True)

    @classmethod
    def open(cls, device: str | None = None) -> Self:
        bdf, bar = parse_device(device or default_device())
        check_bound(bdf)
        fds = open_function(bdf)
        try:
            region = choose_region(fds[-1].fd, bdf, bar)
            enable_memory(fds[-1].fd)
        except BaseException:
            _close_all(fds)
            raise
        return cls(bdf, fds, region)

    @property
    def device_fd(self) -> int:
        """The VFIO device descriptor; stays the exporter's."""
        return self._fds[-1].fd

    def describe(self) -> StackPart:
        return StackPart(
            name=self.name,
            device=f"{self._bdf}:bar{self._region.index}",
            bdf=self._bdf,
            driver=read_pci_driver(self._bdf),
            version=os.uname().release,
            emulated=is_emulated_pci(self._bdf),
            details={"memory": "PCI BAR", "bar_bytes": str(self._region.size)},
        )

    def alloc(self, size_bytes: int) -> BarMemory:
        """The first gap of the BAR that is long enough. Raises CallError ENOMEM, EINVAL."""
        act = f"cannot allocate BAR space: {self._bdf} size={size_bytes}"
        if size_bytes <= 0 or size_bytes % mmap.PAGESIZE:
            raise CallError(act, errno.EINVAL, "whole pages only")
        start = 0
        for index, taken in enumerate([*self._slices, None]):
            end = self._region.size if taken is None else taken.offset_bytes
            if end - start >= size_bytes:
                memory = BarMemory(self, start, size_bytes)
                self._slices.insert(index, memory)
                return memory
            start = end if taken is None else taken.offset_bytes + taken.size_bytes
        raise CallError(act, errno.ENOMEM, f"the BAR has {self._region.size} bytes")

    def release(self, memory: BarMemory) -> None:
        """Called by the slice when it is closed."""
        self._slices.remove(memory)

    def export(self, memory: Memory, offset_bytes: int, size_bytes: int) -> Descriptor:
        assert isinstance(memory, BarMemory)
        act = f"cannot export BAR: {self._bdf} offset={offset_bytes} size={size_bytes}"
        if not 0 <= offset_bytes <= memory.size_bytes - size_bytes:
            # The kernel knows the BAR, not our slices of it.
            raise CallError(act, errno.EINVAL, f"the memory has {memory.size_bytes} bytes")
        argument = vfio.VfioFeatureDmaBuf(
            argsz=ctypes.sizeof(vfio.VfioFeatureDmaBuf),
            flags=vfio.FEATURE_GET | vfio.FEATURE_DMA_BUF,
            region_index=self._region.index,
            open_flags=os.O_RDWR | os.O_CLOEXEC,
            nr_ranges=1,
            offset=memory.offset_bytes + offset_bytes,
            length=size_bytes,
        )
        fd = call(act, self.device_fd, vfio.DEVICE_FEATURE, argument, _EXPORT_HINTS)
        return Descriptor(fd, size_bytes)

    def map(self, offset_bytes: int, size_bytes: int) -> mmap.mmap:
        """Map a range of the BAR. Raises CallError."""
        try:
            return mmap.mmap(self.device_fd, size_bytes, offset=self._region.offset + offset_bytes)
        except OSError as error:
            act = f"cannot map BAR: {self._bdf} offset={offset_bytes} size={size_bytes}"
            raise CallError(act, error.errno or 0) from error

    def binding(self) -> ExporterBinding:
        return ExporterBinding(
            backend="vfio",
            fds=(self.device_fd,),
            numbers=(self._region.index, self._region.size),
        )

    def close(self) -> None:
        fds, self._fds = self._fds, [Descriptor(-1)]
        _close_all(fds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def parse_device(device: str) -> tuple[str, int | None]:
    """`bdf[:barN]` to bdf and bar. Raises UnavailableError for anything else."""
    match = _DEVICE.fullmatch(device)
    if not match:
        raise UnavailableError(f"no PCI function: {device!r}", "write dddd:bb:dd.f or …:barN")
    bar = match["bar"]
    return match["bdf"], None if bar is None else int(bar)


def default_device() -> str:
    """The first function that is bound to vfio-pci. Raises UnavailableError."""
    names = read_names(Path("/sys/bus/pci/drivers/vfio-pci")).get(())
    bound = [name for name in names if _DEVICE.fullmatch(name)]
    if not bound:
        raise UnavailableError(
            "no PCI function is bound to vfio-pci",
            "bind one: echo vfio-pci > /sys/bus/pci/devices/<bdf>/driver_override, unbind, probe",
        )
    return bound[0]


def check_bound(bdf: str) -> None:
    """Raises UnavailableError unless vfio-pci has the function. Changes nothing."""
    driver = read_pci_driver(bdf)
    if driver != "vfio-pci":
        raise UnavailableError(
            f"PCI function {bdf} is bound to {driver or 'no driver'}, not to vfio-pci",
            "binding takes it from its driver; do that yourself if nothing else uses it",
        )


def open_function(bdf: str) -> list[Descriptor]:
    """All descriptors that lead to the function, the device's last. Raises CallError."""
    if _cdev_path(bdf) and Path(vfio.IOMMUFD_PATH).exists():
        return _open_cdev(bdf)
    return _open_group(bdf)


def _device_path(bdf: str) -> str:
    cdev = _cdev_path(bdf)
    if cdev and Path(vfio.IOMMUFD_PATH).exists():
        return cdev
    return f"{vfio.GROUP_DIR}/{_read_group(bdf)}"


def _cdev_path(bdf: str) -> str:
    names = read_names(_PCI / bdf / "vfio-dev").get(())
    return f"{vfio.CDEV_DIR}/{names[0]}" if names else ""


def _read_group(bdf: str) -> str:
    group = read_link_name(_PCI / bdf / "iommu_group").get("")
    if not group:
        raise UnavailableError(
            f"PCI function {bdf} is in no IOMMU group", "VFIO needs an IOMMU: intel_iommu=on"
        )
    return group


def _open_cdev(bdf: str) -> list[Descriptor]:
    fds: list[Descriptor] = []
    try:
        fds.append(open_device(vfio.IOMMUFD_PATH, hints=_GROUP_HINTS))
        fds.append(open_device(_cdev_path(bdf), hints=_GROUP_HINTS))
        bind = vfio.VfioDeviceBindIommufd(
            argsz=ctypes.sizeof(vfio.VfioDeviceBindIommufd), iommufd=fds[0].fd
        )
        act = f"cannot bind VFIO device to iommufd: {bdf}"
        call(act, fds[1].fd, vfio.DEVICE_BIND_IOMMUFD, bind, _GROUP_HINTS)
    except BaseException:
        _close_all(fds)
        raise
    return fds


def _open_group(bdf: str) -> list[Descriptor]:
    group = _read_group(bdf)
    fds: list[Descriptor] = []
    try:
        fds.append(open_device(vfio.CONTAINER_PATH, hints=_GROUP_HINTS))
        fds.append(open_device(f"{vfio.GROUP_DIR}/{group}", hints=_GROUP_HINTS))
        container, group_fd = fds[0].fd, fds[1].fd
        _check_group(bdf, group, group_fd)
        act = f"cannot put VFIO group {group} into its container"
        call(act, group_fd, vfio.GROUP_SET_CONTAINER, _Int(container), _GROUP_HINTS)
        act = f"cannot set IOMMU of VFIO group {group}"
        call(act, container, vfio.SET_IOMMU, vfio.TYPE1V2_IOMMU, _GROUP_HINTS)
        name = ctypes.create_string_buffer(bdf.encode())
        act = f"cannot open VFIO device: {bdf}"
        fds.append(Descriptor(call(act, group_fd, vfio.GROUP_GET_DEVICE_FD, name, _GROUP_HINTS)))
    except BaseException:
        _close_all(fds)
        raise
    return fds


class _Int(ctypes.Structure):
    """An int by pointer."""

    _fields_ = [("value", ctypes.c_int)]


def _check_group(bdf: str, group: str, group_fd: int) -> None:
    status = vfio.VfioGroupStatus(argsz=ctypes.sizeof(vfio.VfioGroupStatus))
    call(f"cannot read VFIO group {group}", group_fd, vfio.GROUP_GET_STATUS, status)
    if not status.flags & vfio.GROUP_FLAGS_VIABLE:
        raise UnavailableError(
            f"VFIO group {group} of {bdf} is not viable",
            "every function of the group must be bound to vfio-pci or to no driver",
        )


def choose_region(device_fd: int, bdf: str, bar: int | None) -> Region:
    """The BAR asked for, or the largest mappable one. Raises UnavailableError, CallError."""
    wanted = range(_BARS) if bar is None else (bar,)
    found = [_read_region(device_fd, index) for index in wanted]
    usable = [region for region in found if region.size and region.is_mappable]
    if not usable:
        what = "no BAR" if bar is None else f"BAR {bar}"
        raise UnavailableError(f"{what} of {bdf} can be mapped", "choose a memory BAR: lspci -v")
    return max(usable, key=lambda region: region.size)


def _read_region(device_fd: int, index: int) -> Region:
    info = vfio.VfioRegionInfo(argsz=ctypes.sizeof(vfio.VfioRegionInfo), index=index)
    call(f"cannot read VFIO region {index}", device_fd, vfio.DEVICE_GET_REGION_INFO, info)
    mappable = bool(info.flags & vfio.REGION_INFO_FLAG_MMAP)
    return Region(index, int(info.size), int(info.offset), mappable)


def enable_memory(device_fd: int, enable: bool = True) -> bool:
    """Set or clear PCI memory enable through VFIO's config space; clearing revokes all exports.

    Returns whether it was enabled before. Raises CallError.
    """
    config = _read_region(device_fd, vfio.PCI_CONFIG_REGION_INDEX)
    where = config.offset + _COMMAND_OFFSET
    try:
        command = int.from_bytes(os.pread(device_fd, 2, where), "little")
        wanted = command | _COMMAND_MEMORY if enable else command & ~_COMMAND_MEMORY
        if wanted != command:
            os.pwrite(device_fd, wanted.to_bytes(2, "little"), where)
    except OSError as error:
        raise CallError("cannot write PCI command register", error.errno or 0) from error
    return bool(command & _COMMAND_MEMORY)


def _close_all(fds: list[Descriptor]) -> None:
    """Close in reverse order, every one; the first error is raised at the end."""
    first: CallError | None = None
    for descriptor in reversed(fds):
        try:
            descriptor.close()
        except CallError as error:
            first = first or error
    if first:
        raise first
