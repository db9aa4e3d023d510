"""A PCI function in user space, and its BARs as dma-bufs.

Source: include/uapi/linux/vfio.h of Linux 7.x; VFIO_DEVICE_FEATURE_DMA_BUF is there since 6.19
(CONFIG_VFIO_PCI_DMABUF). Both ways to a device: container and group (/dev/vfio/N), and the
character device bound to an iommufd (/dev/vfio/devices/vfioN), include/uapi/linux/iommufd.h.
"""

from __future__ import annotations

import ctypes

from gdrstorm.uapi.ioctl import check_layout, io

CONTAINER_PATH = "/dev/vfio/vfio"
GROUP_DIR = "/dev/vfio"
CDEV_DIR = "/dev/vfio/devices"
IOMMUFD_PATH = "/dev/iommu"

_TYPE = ord(";")
_BASE = 100

API_VERSION = 0
TYPE1V2_IOMMU = 3
GROUP_FLAGS_VIABLE = 1 << 0
REGION_INFO_FLAG_MMAP = 1 << 2

GET_API_VERSION = io(_TYPE, _BASE + 0)
CHECK_EXTENSION = io(_TYPE, _BASE + 1)
SET_IOMMU = io(_TYPE, _BASE + 2)
GROUP_GET_STATUS = io(_TYPE, _BASE + 3)
GROUP_SET_CONTAINER = io(_TYPE, _BASE + 4)
GROUP_GET_DEVICE_FD = io(_TYPE, _BASE + 6)
DEVICE_GET_INFO = io(_TYPE, _BASE + 7)
DEVICE_GET_REGION_INFO = io(_TYPE, _BASE + 8)
DEVICE_FEATURE = io(_TYPE, _BASE + 17)
DEVICE_BIND_IOMMUFD = io(_TYPE, _BASE + 18)

FEATURE_GET = 1 << 16
FEATURE_SET = 1 << 17
FEATURE_PROBE = 1 << 18
FEATURE_DMA_BUF = 11

PCI_CONFIG_REGION_INDEX = 7


class VfioGroupStatus(ctypes.Structure):
    """struct vfio_group_status."""

    _fields_ = [("argsz", ctypes.c_uint32), ("flags", ctypes.c_uint32)]


class VfioDeviceInfo(ctypes.Structure):
    """struct vfio_device_info."""

    _fields_ = [
        ("argsz", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("num_regions", ctypes.c_uint32),
        ("num_irqs", ctypes.c_uint32),
        ("cap_offset", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
    ]


class VfioRegionInfo(ctypes.Structure):
    """struct vfio_region_info; `offset` is where the region starts in the device descriptor."""

    _fields_ = [
        ("argsz", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("index", ctypes.c_uint32),
        ("cap_offset", ctypes.c_uint32),
        ("size", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
    ]


class VfioDeviceBindIommufd(ctypes.Structure):
    """struct vfio_device_bind_iommufd."""

    _fields_ = [
        ("argsz", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("iommufd", ctypes.c_int32),
        ("out_devid", ctypes.c_uint32),
    ]


class VfioDeviceFeature(ctypes.Structure):
    """struct vfio_device_feature without its data."""

    _fields_ = [("argsz", ctypes.c_uint32), ("flags", ctypes.c_uint32)]


class VfioFeatureDmaBuf(ctypes.Structure):
    """struct vfio_device_feature, vfio_device_feature_dma_buf and one vfio_region_dma_range."""

    _fields_ = [
        ("argsz", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("region_index", ctypes.c_uint32),
        ("open_flags", ctypes.c_uint32),
        ("dma_buf_flags", ctypes.c_uint32),
        ("nr_ranges", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
    ]


check_layout(VfioGroupStatus, 8, argsz=0, flags=4)
check_layout(VfioDeviceInfo, 24, num_regions=8, num_irqs=12, cap_offset=16)
check_layout(VfioRegionInfo, 32, index=8, cap_offset=12, size=16, offset=24)
check_layout(VfioDeviceBindIommufd, 16, iommufd=8, out_devid=12)
check_layout(VfioDeviceFeature, 8, argsz=0, flags=4)
check_layout(
    VfioFeatureDmaBuf, 40, region_index=8, open_flags=12, dma_buf_flags=16, offset=24, length=32
)
