"""The uverbs ioctl ABI: a header and a list of attributes, and the MR methods on dma-bufs.

Sources: include/uapi/rdma/rdma_user_ioctl_cmds.h (header and attribute),
include/uapi/rdma/ib_user_ioctl_cmds.h (objects, methods, attribute numbers),
include/uapi/rdma/ib_user_ioctl_verbs.h (access flags).
Values of up to 8 bytes travel inside the attribute, longer ones and all outputs by pointer.
"""

from __future__ import annotations

import ctypes
import enum
import errno
from collections.abc import Sequence

from gdrstorm.errors import CallError
from gdrstorm.uapi.ioctl import call, check_layout, iowr

DEVICE_DIR = "/dev/infiniband"
_MAGIC = 0x1B
ATTR_F_MANDATORY = 1 << 0

OBJECT_DEVICE = 0
OBJECT_PD = 1
OBJECT_MR = 7
METHOD_INVOKE_WRITE = 0
METHOD_INFO_HANDLES = 1
METHOD_MR_DESTROY = 1
METHOD_QUERY_MR = 3
METHOD_REG_DMABUF_MR = 4


class RegDmabufMr(enum.IntEnum):
    """enum uverbs_attrs_reg_dmabuf_mr_cmd_attr_ids."""

    HANDLE = 0
    PD_HANDLE = 1
    OFFSET = 2
    LENGTH = 3
    IOVA = 4
    FD = 5
    ACCESS_FLAGS = 6
    RESP_LKEY = 7
    RESP_RKEY = 8


DESTROY_MR_HANDLE = 0
# INVOKE_WRITE: a command of the older write ABI (ib_user_verbs.h) by ioctl.
CORE_IN = 0
CORE_OUT = 1
WRITE_CMD = 2
CMD_REREG_MR = 11
REREG_ACCESS = 1 << 2
INFO_OBJECT_ID = 0
INFO_HANDLES_LIST = 2
# enum rdma_driver_id (ib_user_ioctl_verbs.h) has 22 of them in Linux 7.3.
_DRIVER_IDS = 64


class Access(enum.IntFlag):
    """enum ib_uverbs_access_flags; bits 20 to 29 are optional: unknown ones are ignored."""

    LOCAL_WRITE = 1 << 0
    REMOTE_WRITE = 1 << 1
    REMOTE_READ = 1 << 2
    REMOTE_ATOMIC = 1 << 3
    MW_BIND = 1 << 4
    ZERO_BASED = 1 << 5
    ON_DEMAND = 1 << 6
    HUGETLB = 1 << 7
    FLUSH_GLOBAL = 1 << 8
    FLUSH_PERSISTENT = 1 << 9
    RELAXED_ORDERING = 1 << 20


class IbUverbsReregMr(ctypes.Structure):
    """struct ib_uverbs_rereg_mr (ib_user_verbs.h)."""

    _fields_ = [
        ("response", ctypes.c_uint64),
        ("mr_handle", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("start", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("hca_va", ctypes.c_uint64),
        ("pd_handle", ctypes.c_uint32),
        ("access_flags", ctypes.c_uint32),
    ]


class IbUverbsReregMrResp(ctypes.Structure):
    """struct ib_uverbs_rereg_mr_resp."""

    _fields_ = [("lkey", ctypes.c_uint32), ("rkey", ctypes.c_uint32)]


class IbUverbsAttr(ctypes.Structure):
    """struct ib_uverbs_attr; `data` is the union of value, pointer and descriptor."""

    _fields_ = [
        ("attr_id", ctypes.c_uint16),
        ("len", ctypes.c_uint16),
        ("flags", ctypes.c_uint16),
        ("attr_data", ctypes.c_uint16),
        ("data", ctypes.c_uint64),
    ]


class IbUverbsIoctlHdr(ctypes.Structure):
    """struct ib_uverbs_ioctl_hdr without its attributes; `length` counts them in."""

    _fields_ = [
        ("length", ctypes.c_uint16),
        ("object_id", ctypes.c_uint16),
        ("method_id", ctypes.c_uint16),
        ("num_attrs", ctypes.c_uint16),
        ("reserved1", ctypes.c_uint64),
        ("driver_id", ctypes.c_uint32),
        ("reserved2", ctypes.c_uint32),
    ]


check_layout(IbUverbsReregMr, 48, mr_handle=8, flags=12, start=16, hca_va=32, access_flags=44)
check_layout(IbUverbsReregMrResp, 8, lkey=0, rkey=4)
check_layout(IbUverbsAttr, 16, attr_id=0, len=2, flags=4, attr_data=6, data=8)
check_layout(IbUverbsIoctlHdr, 24, length=0, object_id=2, method_id=4, num_attrs=6, driver_id=16)

IOCTL = iowr(_MAGIC, 1, IbUverbsIoctlHdr)


def attr(attr_id: int, value: int, length: int) -> IbUverbsAttr:
    """A mandatory input that fits into the attribute; negative values wrap to 64 bits."""
    return IbUverbsAttr(attr_id, length, ATTR_F_MANDATORY, 0, value & 0xFFFF_FFFF_FFFF_FFFF)


def attr_object(attr_id: int, handle: int) -> IbUverbsAttr:
    """An object handle (length 0 by the ABI); for a new object the kernel writes the handle."""
    return attr(attr_id, handle, 0)


def attr_pointer(attr_id: int, target: ctypes.c_uint32 | ctypes.Structure) -> IbUverbsAttr:
    """An output, or an input longer than 8 bytes; `target` must outlive the call."""
    return attr(attr_id, ctypes.addressof(target), ctypes.sizeof(target))


def find_driver_id(fd: int) -> int:
    """The kernel driver's number (enum rdma_driver_id) of a uverbs descriptor, found by asking.

    Before all else every method refuses a wrong number with EINVAL, so a harmless one is tried with
    each; what else it answers does not matter. Raises CallError when no number is right.
    """
    act = f"cannot find driver id: fd={fd}"
    handles = ctypes.c_uint32()
    attrs = [attr(INFO_OBJECT_ID, OBJECT_PD, 8), attr_pointer(INFO_HANDLES_LIST, handles)]
    for driver_id in range(_DRIVER_IDS):
        try:
            method(act, fd, driver_id, OBJECT_DEVICE, METHOD_INFO_HANDLES, attrs)
        except CallError as error:
            if error.errno == errno.EINVAL:
                continue
            if error.errno in (errno.EBADF, errno.ENOTTY):
                raise
        return driver_id
    raise CallError(act, errno.EINVAL, "this kernel's drivers have higher numbers?")


def method(
    act: str,
    fd: int,
    driver_id: int,
    object_id: int,
    method_id: int,
    attrs: Sequence[IbUverbsAttr],
    hints: dict[int, str] | None = None,
) -> list[IbUverbsAttr]:
    """One method call on a uverbs descriptor; the attributes as the kernel left them.

    Raises:
        CallError: the errno of the method; EPROTONOSUPPORT when the kernel has no such method.
    """
    count = len(attrs)
    head = ctypes.sizeof(IbUverbsIoctlHdr)
    size = head + count * ctypes.sizeof(IbUverbsAttr)
    buffer = ctypes.create_string_buffer(size)
    header = IbUverbsIoctlHdr.from_buffer(buffer)
    header.length, header.num_attrs = size, count
    header.object_id, header.method_id, header.driver_id = object_id, method_id, driver_id
    array = (IbUverbsAttr * count).from_buffer(buffer, head)
    for index, attribute in enumerate(attrs):
        array[index] = attribute
    call(act, fd, IOCTL, buffer, hints)
    return list(array)
