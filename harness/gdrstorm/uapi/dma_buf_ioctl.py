"""The rest of include/uapi/linux/dma-buf.h: names and sync files.

EXPORT_SYNC_FILE came with Linux 6.0 (commit 20e10881a043): older kernels answer ENOTTY. A name has
at most 31 bytes (DMA_BUF_NAME_LEN in include/linux/dma-buf.h counts the zero).
"""

from __future__ import annotations

import ctypes
import fcntl

from gdrstorm.uapi.ioctl import check_layout, iow, iowr

_BASE = ord("b")
NAME_MAX = 31


class ExportSyncFile(ctypes.Structure):
    """struct dma_buf_export_sync_file: flags are SYNC_READ, SYNC_WRITE; fd is the answer."""

    _fields_ = [("flags", ctypes.c_uint32), ("fd", ctypes.c_int32)]


class NamePointer(ctypes.Structure):
    """The `const char *` that SET_NAME is said to take."""

    _fields_ = [("address", ctypes.c_uint64)]


check_layout(ExportSyncFile, 8, fd=4)
check_layout(NamePointer, 8)

IOCTL_SET_NAME = iow(_BASE, 1, NamePointer)
IOCTL_EXPORT_SYNC_FILE = iowr(_BASE, 2, ExportSyncFile)


def set_name(fd: int, name: bytes) -> None:
    """DMA_BUF_SET_NAME. Raises OSError: EINVAL when the name is too long."""
    fcntl.ioctl(fd, IOCTL_SET_NAME, name + b"\0")


def export_sync_file(fd: int, flags: int) -> int:
    """A sync file of what is in flight on the buffer, owned by the caller. Raises OSError."""
    argument = ExportSyncFile(flags, -1)
    fcntl.ioctl(fd, IOCTL_EXPORT_SYNC_FILE, argument)
    made: int = argument.fd
    return made
