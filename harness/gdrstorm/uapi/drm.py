"""The few generic DRM calls that import a dma-buf as a GEM handle and let it go again.

Source: include/uapi/drm/drm.h. The same dma-buf imported twice on one file gives the same handle,
and the handle is closed once.
"""

from __future__ import annotations

import ctypes

from gdrstorm.uapi.ioctl import check_layout, iow, iowr

DEVICE_DIR = "/dev/dri"
_BASE = ord("d")


class DrmVersion(ctypes.Structure):
    """struct drm_version; names are copied into buffers of the caller."""

    _fields_ = [
        ("version_major", ctypes.c_int),
        ("version_minor", ctypes.c_int),
        ("version_patchlevel", ctypes.c_int),
        ("name_len", ctypes.c_size_t),
        ("name", ctypes.c_void_p),
        ("date_len", ctypes.c_size_t),
        ("date", ctypes.c_void_p),
        ("desc_len", ctypes.c_size_t),
        ("desc", ctypes.c_void_p),
    ]


class DrmGemClose(ctypes.Structure):
    """struct drm_gem_close."""

    _fields_ = [("handle", ctypes.c_uint32), ("pad", ctypes.c_uint32)]


class DrmPrimeHandle(ctypes.Structure):
    """struct drm_prime_handle."""

    _fields_ = [
        ("handle", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("fd", ctypes.c_int32),
    ]


check_layout(DrmVersion, 64, name_len=16, name=24, date_len=32, desc_len=48, desc=56)
check_layout(DrmGemClose, 8, handle=0, pad=4)
check_layout(DrmPrimeHandle, 12, handle=0, flags=4, fd=8)

IOCTL_VERSION = iowr(_BASE, 0x00, DrmVersion)
IOCTL_GEM_CLOSE = iow(_BASE, 0x09, DrmGemClose)
IOCTL_PRIME_FD_TO_HANDLE = iowr(_BASE, 0x2E, DrmPrimeHandle)
