"""Allocations of a DMA-BUF heap.

Source: include/uapi/linux/dma-heap.h. One device node a heap under /dev/dma_heap.
"""

from __future__ import annotations

import ctypes

from gdrstorm.uapi.ioctl import check_layout, iowr

DEVICE_DIR = "/dev/dma_heap"


class DmaHeapAllocationData(ctypes.Structure):
    """struct dma_heap_allocation_data; the kernel fills `fd`."""

    _fields_ = [
        ("len", ctypes.c_uint64),
        ("fd", ctypes.c_uint32),
        ("fd_flags", ctypes.c_uint32),
        ("heap_flags", ctypes.c_uint64),
    ]


check_layout(DmaHeapAllocationData, 24, len=0, fd=8, fd_flags=12, heap_flags=16)

IOCTL_ALLOC = iowr(ord("H"), 0x0, DmaHeapAllocationData)
