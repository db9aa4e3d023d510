"""The table of gate rm-bad-input: export ioctls that CUDA never sends, and what driver 580 answers.

Measured on an H200 with 580.159.04. Every row names the caller's own client and memory only, attaches
its parts from index 0 and completes the buffer, so that nothing half-made is ever left in the driver.
"""

from __future__ import annotations

import enum

import msgspec

OK = "ok"
REFUSED = ("NV_ERR_INVALID_ARGUMENT",)
NOT_SUPPORTED = ("NV_ERR_NOT_SUPPORTED",)
SYSTEM = ("NV_ERR_OPERATING_SYSTEM",)
#: size of the allocation that all rows export from
SIZE = 1 << 20
PAGE = 4096
_TOP = 1 << 64


class Node(enum.Enum):
    """The descriptor that gets the ioctl."""

    GPU = "nvidiaN"
    CTL = "nvidiactl"


class Fd(enum.Enum):
    """What the `fd` field holds: -1 makes a new dma-buf, anything else names one to add to."""

    NEW = "-1"
    MINUS_TWO = "-2"
    CLOSED = "a closed descriptor"
    NULL = "/dev/null"
    CTL = "nvidiactl"


class BadExport(msgspec.Struct, frozen=True):
    """One row. `parts` are (offset, size) of the one allocation; -1 in a count: what the parts say.

    `extra_bytes` is added to the size in the request word; `is_null` sends no structure at all.
    """

    case: str
    expected: tuple[str, ...] = REFUSED
    parts: tuple[tuple[int, int], ...] = ((0, SIZE),)
    mapping: int = 0
    allow_mmap: int = 0
    total_size: int = -1
    total_objects: int = -1
    num_objects: int = -1
    fd: Fd = Fd.NEW
    node: Node = Node.GPU
    extra_bytes: int = 0
    is_null: bool = False


ROWS: tuple[BadExport, ...] = (
    BadExport("the whole allocation", (OK,)),
    BadExport("one page at offset 4096", (OK,), ((PAGE, PAGE),)),
    BadExport("FORCE_PCIE", NOT_SUPPORTED, mapping=1),
    BadExport("FORCE_PCIE, total size 0", mapping=1, total_size=0),
    BadExport("mapping type 2", mapping=2),
    BadExport("mapping type 255", mapping=255),
    BadExport("allow mmap", NOT_SUPPORTED, allow_mmap=1),
    BadExport("total size 0", total_size=0),
    BadExport("size 0", parts=((0, 0),), total_size=SIZE),
    BadExport("offset at the end", parts=((SIZE, PAGE),)),
    BadExport("offset past the end", parts=((2 * SIZE, PAGE),)),
    BadExport("range past the end", parts=((SIZE - PAGE, 2 * PAGE),)),
    BadExport("size above the allocation", parts=((0, 2 * SIZE),)),
    BadExport("offset 2^64 - 4096", parts=((_TOP - PAGE, PAGE),)),
    BadExport("size 2^64 - 4096", parts=((0, _TOP - PAGE),)),
    BadExport("offset and size wrap around", parts=((_TOP - PAGE, 2 * PAGE),)),
    BadExport("offset 1", parts=((1, PAGE),)),
    BadExport("offset 2048", parts=((2048, PAGE),)),
    BadExport("size 4095", parts=((0, 4095),)),
    BadExport("no objects", num_objects=0),
    BadExport("no objects in total", total_objects=0),
    BadExport("more objects than in total", parts=((0, PAGE), (PAGE, PAGE)), total_objects=1),
    BadExport("129 objects", num_objects=129, total_objects=129),
    BadExport("total size above the sum", total_size=2 * SIZE),
    BadExport("total size below the sum", total_size=PAGE),
    BadExport("descriptor -2", fd=Fd.MINUS_TWO),
    BadExport("a closed descriptor", SYSTEM, fd=Fd.CLOSED),
    BadExport("descriptor of /dev/null", SYSTEM, fd=Fd.NULL),
    BadExport("descriptor of nvidiactl", SYSTEM, fd=Fd.CTL),
    BadExport("two parts of one allocation", (OK,), ((0, PAGE), (PAGE, PAGE))),
    BadExport("the same part twice", (OK,), ((0, PAGE), (0, PAGE))),
    BadExport("128 parts", (OK,), tuple((i * PAGE, PAGE) for i in range(128))),
    BadExport("second part empty", parts=((0, PAGE), (PAGE, 0))),
    BadExport("two parts, total size of one", parts=((0, PAGE), (PAGE, PAGE)), total_size=PAGE),
    BadExport("through nvidiactl", ("EINVAL",), node=Node.CTL),
    BadExport("structure 8 bytes short", ("EINVAL",), extra_bytes=-8),
    BadExport("structure 8 bytes long", ("EINVAL",), extra_bytes=8),
    BadExport("no structure", ("EFAULT",), is_null=True),
)
