"""Request codes and layouts against values that a C compiler gave for the kernel's headers."""

from __future__ import annotations

import ctypes
import errno
import os

import pytest

from gdrstorm.errors import CallError
from gdrstorm.stack.importer.libibverbs import IbvContext, IbvDevice, IbvMr, IbvPd
from gdrstorm.uapi import dma_buf, dma_heap, drm, ioctl, rdma_ioctl, udmabuf, vfio


@pytest.mark.parametrize(
    ("name", "found", "expected"),
    [
        ("UDMABUF_CREATE", udmabuf.IOCTL_CREATE, 0x40187542),
        ("DMA_HEAP_IOCTL_ALLOC", dma_heap.IOCTL_ALLOC, 0xC0184800),
        ("DMA_BUF_IOCTL_SYNC", dma_buf.IOCTL_SYNC, 0x40086200),
        ("VFIO_SET_IOMMU", vfio.SET_IOMMU, 0x3B66),
        ("VFIO_GROUP_SET_CONTAINER", vfio.GROUP_SET_CONTAINER, 0x3B68),
        ("VFIO_GROUP_GET_DEVICE_FD", vfio.GROUP_GET_DEVICE_FD, 0x3B6A),
        ("VFIO_DEVICE_GET_REGION_INFO", vfio.DEVICE_GET_REGION_INFO, 0x3B6C),
        ("VFIO_DEVICE_FEATURE", vfio.DEVICE_FEATURE, 0x3B75),
        ("VFIO_DEVICE_BIND_IOMMUFD", vfio.DEVICE_BIND_IOMMUFD, 0x3B76),
        ("RDMA_VERBS_IOCTL", rdma_ioctl.IOCTL, 0xC0181B01),
        ("DRM_IOCTL_VERSION", drm.IOCTL_VERSION, 0xC0406400),
        ("DRM_IOCTL_GEM_CLOSE", drm.IOCTL_GEM_CLOSE, 0x40086409),
        ("DRM_IOCTL_PRIME_FD_TO_HANDLE", drm.IOCTL_PRIME_FD_TO_HANDLE, 0xC00C642E),
    ],
)
def test_request_code(name: str, found: int, expected: int) -> None:
    assert found == expected, name


@pytest.mark.parametrize(
    ("structure", "size", "offsets"),
    [
        (IbvDevice, 664, {"name": 24, "dev_name": 88, "ibdev_path": 408}),
        (IbvContext, 280, {"cmd_fd": 264, "async_fd": 268, "num_comp_vectors": 272}),
        (IbvMr, 48, {"handle": 32, "lkey": 36, "rkey": 40}),
        (IbvPd, 16, {"handle": 8}),
    ],
)
def test_libibverbs_layout(
    structure: type[ctypes.Structure], size: int, offsets: dict[str, int]
) -> None:
    ioctl.check_layout(structure, size, **offsets)


def test_wrong_layout_is_seen() -> None:
    with pytest.raises(AssertionError, match="want 25"):
        ioctl.check_layout(udmabuf.UdmabufCreate, 25)
    with pytest.raises(AssertionError, match=r"UdmabufCreate\.size: offset 16, want 12"):
        ioctl.check_layout(udmabuf.UdmabufCreate, 24, size=12)


def test_error_has_act_errno_and_its_hint() -> None:
    reader, writer = os.pipe()
    try:
        with pytest.raises(CallError) as caught:
            ioctl.call(
                "cannot sync pipe",
                reader,
                dma_buf.IOCTL_SYNC,
                dma_buf.DmaBufSync(0),
                {25: "no ioctl"},
            )
    finally:
        os.close(reader)
        os.close(writer)
    assert caught.value.errno == errno.ENOTTY
    assert str(caught.value) == "cannot sync pipe: ENOTTY (no ioctl)"


def test_sync_of_a_closed_descriptor() -> None:
    with pytest.raises(CallError) as caught:
        dma_buf.sync(999_999, dma_buf.SYNC_START | dma_buf.SYNC_RW)
    assert caught.value.errno == errno.EBADF


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("/dmabuf:", True),
        ("/dmabuf:gdrstorm", True),
        ("dmabuf:x", True),
        ("/memfd:dmabuf: (deleted)", False),
        ("/home/dmabuf:", False),
        ("anon_inode:[vfio-device]", False),
    ],
)
def test_dma_buf_link(link: str, expected: bool) -> None:
    assert dma_buf.parse_link(link) is expected


def test_memfd_is_no_dma_buf_and_a_closed_descriptor_neither() -> None:
    fd = os.memfd_create("dmabuf:", 0)
    assert not dma_buf.is_dma_buf(fd)
    os.close(fd)
    assert not dma_buf.is_dma_buf(fd)
    assert dma_buf.read_exporter(fd) == ""


def test_attributes_wrap_and_carry_their_length() -> None:
    one = rdma_ioctl.attr(3, -1, 8)
    assert (one.attr_id, one.len, one.flags, one.data) == (3, 8, 1, 0xFFFF_FFFF_FFFF_FFFF)
    target = ctypes.c_uint32()
    out = rdma_ioctl.attr_pointer(7, target)
    assert (out.len, out.data) == (4, ctypes.addressof(target))
    assert rdma_ioctl.attr_object(0, 5).len == 0


def test_driver_id_of_what_is_no_uverbs_descriptor() -> None:
    fd = os.memfd_create("x", 0)
    try:
        with pytest.raises(CallError) as caught:
            rdma_ioctl.find_driver_id(fd)
    finally:
        os.close(fd)
    assert caught.value.errno == errno.ENOTTY


def test_pointers_may_be_structures() -> None:
    command = rdma_ioctl.IbUverbsReregMr(mr_handle=5, access_flags=1)
    pointer = rdma_ioctl.attr_pointer(rdma_ioctl.CORE_IN, command)
    assert (pointer.len, pointer.data) == (48, ctypes.addressof(command))
