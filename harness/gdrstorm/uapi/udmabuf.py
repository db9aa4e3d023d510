"""Pages of a memfd as a dma-buf.

Source: include/uapi/linux/udmabuf.h. The driver wants F_SEAL_SHRINK set and F_SEAL_WRITE not set,
and page-aligned offset and size; its limits are parameters (drivers/dma-buf/udmabuf.c: list_limit,
size_limit_mb), and exceeding them is EINVAL like any other mistake.
"""

from __future__ import annotations

import ctypes

from gdrstorm.uapi.ioctl import check_layout, iow

DEVICE_PATH = "/dev/udmabuf"
PARAMETERS_PATH = "/sys/module/udmabuf/parameters"
FLAGS_CLOEXEC = 0x01


class UdmabufCreate(ctypes.Structure):
    """struct udmabuf_create."""

    _fields_ = [
        ("memfd", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
    ]


check_layout(UdmabufCreate, 24, memfd=0, flags=4, offset=8, size=16)

IOCTL_CREATE = iow(ord("u"), 0x42, UdmabufCreate)
"""Returns the new descriptor."""
