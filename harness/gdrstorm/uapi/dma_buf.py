"""What any process can do to a dma-buf descriptor: bracket CPU access, name it, know it as one.

Source: include/uapi/linux/dma-buf.h; the kind of a descriptor from drivers/dma-buf/dma-buf.c
(a dma-buf is a file of the pseudo file system `dmabuf`, so its link reads `/dmabuf:` or `dmabuf:`).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from gdrstorm.uapi.ioctl import call, check_layout, iow

_BASE = ord("b")

SYNC_READ = 1 << 0
SYNC_WRITE = 2 << 0
SYNC_RW = SYNC_READ | SYNC_WRITE
SYNC_START = 0 << 2
SYNC_END = 1 << 2


class DmaBufSync(ctypes.Structure):
    """struct dma_buf_sync."""

    _fields_ = [("flags", ctypes.c_uint64)]


check_layout(DmaBufSync, 8, flags=0)

IOCTL_SYNC = iow(_BASE, 0, DmaBufSync)


def sync(fd: int, flags: int) -> None:
    """DMA_BUF_IOCTL_SYNC. Raises CallError: ENOTTY when `fd` is no dma-buf, EINVAL on bad flags."""
    call(f"cannot sync dma-buf: fd={fd} flags={flags:#x}", fd, IOCTL_SYNC, DmaBufSync(flags))


def is_dma_buf(fd: int) -> bool:
    """Whether the descriptor is a dma-buf, by its link in /proc; False for a closed one."""
    try:
        return parse_link(str(Path("/proc/self/fd", str(fd)).readlink()))
    except FileNotFoundError:
        return False


def parse_link(link: str) -> bool:
    """Whether a /proc/PID/fd link is that of a dma-buf (`/dmabuf:name`, name may be empty)."""
    return link.startswith(("/dmabuf:", "dmabuf:"))


def read_size(fd: int) -> int:
    """Size in bytes (lseek to the end works on a dma-buf). Raises OSError."""
    size = os.lseek(fd, 0, os.SEEK_END)
    os.lseek(fd, 0, os.SEEK_SET)
    return size


def read_exporter(fd: int) -> str:
    """`exp_name` of fdinfo, the exporter's own name; empty where the kernel does not say."""
    try:
        text = Path(f"/proc/self/fdinfo/{fd}").read_text()
    except FileNotFoundError:
        return ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == "exp_name":
            return value.strip()
    return ""
