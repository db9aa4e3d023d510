"""The NVIDIA RM ioctls that lead to a dma-buf, as ctypes structures for each driver generation.

Sources: nv-ioctl.h, nv-ioctl-numbers.h, nvos.h, class/cl0080.h, class/cl2080.h, ctrl/ctrl0000 and
ctrl/ctrl2080 of the open kernel modules, tags 515.43.04 to 595.45.04 (x86-64). The driver compares
structure sizes exactly, so a version that is not in the table is refused and never guessed.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any

from gdrstorm.errors import UnavailableError
from gdrstorm.uapi.ioctl import check_layout, iowr

U8, U16, U32, U64, I32 = (
    ctypes.c_uint8,
    ctypes.c_uint16,
    ctypes.c_uint32,
    ctypes.c_uint64,
    ctypes.c_int32,
)

# nv-ioctl-numbers.h, nv_escape.h: the number inside an ioctl request of magic 'F'
NR_RM_FREE = 0x29
NR_RM_CONTROL = 0x2A
NR_RM_ALLOC = 0x2B
NR_CARD_INFO = 200
NR_REGISTER_FD = 201
NR_CHECK_VERSION_STR = 210
NR_EXPORT_TO_DMABUF_FD = 217

# Classes
NV01_ROOT_CLIENT = 0x41
NV01_DEVICE_0 = 0x80
NV20_SUBDEVICE_0 = 0x2080
NV01_MEMORY_LOCAL_USER = 0x40

# Controls
CMD_SYSTEM_GET_PRIVILEGED_STATUS = 0x135
CMD_GPU_GET_ATTACHED_IDS = 0x201
CMD_GPU_GET_ID_INFO_V2 = 0x205
CMD_GPU_GET_INFO_V2 = 0x20800102
CMD_FB_GET_INFO_V2 = 0x20801303
CMD_FB_GET_STATIC_BAR1_INFO = 0x20801354
CMD_BUS_GET_PCI_BAR_INFO = 0x20801803
CMD_BUS_GET_INFO_V2 = 0x20801823
CMD_BUS_GET_C2C_INFO = 0x2080182B

# NV2080_CTRL_FB_INFO_INDEX_*; sizes are KiB
FB_BAR1_SIZE = 0x05
FB_HEAP_SIZE = 0x09
FB_HEAP_FREE = 0x16
FB_BAR1_AVAIL_SIZE = 0x1D
FB_BAR1_MAX_CONTIGUOUS_AVAIL_SIZE = 0x1F
FB_USABLE_RAM_SIZE = 0x20
FB_COHERENCE_INFO = 0x3A

# NV2080_CTRL_GPU_INFO_INDEX_*
GPU_SMC_MODE = 0x2A
GPU_ATS_CAPABILITY = 0x30
GPU_SELF_HOSTED_CAPABILITY = 0x3B
GPU_DMABUF_CAPABILITY = 0x3D
GPU_COHERENT_MEMORY_MODE = 0x44
SMC_MODE_NAMES = {
    0: "unsupported",
    1: "enabled",
    2: "disabled",
    3: "enable pending",
    4: "disable pending",
}

# NV2080_CTRL_BUS_INFO_INDEX_*
BUS_SYSMEM_CONNECTION_TYPE = 0x33
SYSMEM_CONNECTION_NAMES = {0: "pcie", 1: "nvlink", 2: "c2c"}

# NV01_MEMORY_LOCAL_USER as libcuda allocates it: flags NVOS32_ALLOC_FLAGS_*, attr contiguous
VIDMEM_FLAGS = 0x18101
VIDMEM_ATTR_CONTIGUOUS = 2 << 27
VIDMEM_ATTR2 = 5
VIDMEM_ALIGNMENT = 65536

MAX_HANDLES = 128
MAPPING_DEFAULT = 0
MAPPING_FORCE_PCIE = 1
VERSION_CMD_QUERY = ord("2")
MAX_CARDS = 32
GPU_ID_INVALID = 0xFFFFFFFF


class PciInfo(ctypes.Structure):
    _fields_ = [
        ("domain", U32),
        ("bus", U8),
        ("slot", U8),
        ("function", U8),
        ("vendor_id", U16),
        ("device_id", U16),
    ]


class CardInfo(ctypes.Structure):
    _fields_ = [
        ("valid", U8),
        ("pci_info", PciInfo),
        ("gpu_id", U32),
        ("interrupt_line", U16),
        ("reg_address", U64),
        ("reg_size", U64),
        ("fb_address", U64),
        ("fb_size", U64),
        ("minor_number", U32),
        ("dev_name", U8 * 10),
    ]


class CardInfoTable(ctypes.Structure):
    _fields_ = [("cards", CardInfo * MAX_CARDS)]


class RmApiVersion(ctypes.Structure):
    _fields_ = [("cmd", U32), ("reply", U32), ("version_string", ctypes.c_char * 64)]


class RegisterFd(ctypes.Structure):
    _fields_ = [("ctl_fd", ctypes.c_int)]


class Free(ctypes.Structure):
    """NVOS00_PARAMETERS."""

    _fields_ = [("h_root", U32), ("h_parent", U32), ("h_old", U32), ("status", U32)]


class AllocOld(ctypes.Structure):
    """NVOS21_PARAMETERS up to 530."""

    _fields_ = [
        ("h_root", U32),
        ("h_parent", U32),
        ("h_new", U32),
        ("h_class", U32),
        ("params", U64),
        ("status", U32),
    ]


class Alloc(ctypes.Structure):
    """NVOS21_PARAMETERS from 535; params_size 0 means: the size of the class."""

    _fields_ = [
        ("h_root", U32),
        ("h_parent", U32),
        ("h_new", U32),
        ("h_class", U32),
        ("params", U64),
        ("params_size", U32),
        ("status", U32),
    ]


class Control(ctypes.Structure):
    """NVOS54_PARAMETERS."""

    _fields_ = [
        ("h_client", U32),
        ("h_object", U32),
        ("cmd", U32),
        ("flags", U32),
        ("params", U64),
        ("params_size", U32),
        ("status", U32),
    ]


class DeviceParams(ctypes.Structure):
    """NV0080_ALLOC_PARAMETERS."""

    _fields_ = [
        ("device_id", U32),
        ("h_client_share", U32),
        ("h_target_client", U32),
        ("h_target_device", U32),
        ("flags", U32),
        ("va_space_size", U64),
        ("va_start_internal", U64),
        ("va_limit_internal", U64),
        ("va_mode", U32),
    ]


class SubdeviceParams(ctypes.Structure):
    """NV2080_ALLOC_PARAMETERS."""

    _fields_ = [("subdevice_id", U32)]


_MEMORY_FIELDS: list[tuple[str, Any]] = [
    ("owner", U32),
    ("type", U32),
    ("flags", U32),
    ("width", U32),
    ("height", U32),
    ("pitch", I32),
    ("attr", U32),
    ("attr2", U32),
    ("format", U32),
    ("compr_covg", U32),
    ("zcull_covg", U32),
    ("range_lo", U64),
    ("range_hi", U64),
    ("size", U64),
    ("alignment", U64),
    ("offset", U64),
    ("limit", U64),
    ("address", U64),
    ("ctag_offset", U32),
    ("h_va_space", U32),
    ("internal_flags", U32),
    ("tag", U32),
]


class MemoryParamsOld(ctypes.Structure):
    """NV_MEMORY_ALLOCATION_PARAMS up to 535."""

    _fields_ = _MEMORY_FIELDS


class MemoryParams(ctypes.Structure):
    """NV_MEMORY_ALLOCATION_PARAMS from 545."""

    _fields_ = [*_MEMORY_FIELDS, ("numa_node", I32)]


_EXPORT_HEAD: list[tuple[str, Any]] = [
    ("fd", ctypes.c_int),
    ("h_client", U32),
    ("total_objects", U32),
    ("num_objects", U32),
    ("index", U32),
    ("total_size", U64),
]
_EXPORT_TAIL: list[tuple[str, Any]] = [
    ("handles", U32 * MAX_HANDLES),
    ("offsets", U64 * MAX_HANDLES),
    ("sizes", U64 * MAX_HANDLES),
    ("status", U32),
]


class ExportOld(ctypes.Structure):
    """nv_ioctl_export_to_dma_buf_fd_t up to 565."""

    _fields_ = [*_EXPORT_HEAD, *_EXPORT_TAIL]


class Export(ctypes.Structure):
    """nv_ioctl_export_to_dma_buf_fd_t from 570; `allow_mmap` is padding before 580."""

    _fields_ = [*_EXPORT_HEAD, ("mapping_type", U8), ("allow_mmap", U8), *_EXPORT_TAIL]


class InfoEntry(ctypes.Structure):
    """One {index, data} pair of the GET_INFO_V2 controls."""

    _fields_ = [("index", U32), ("data", U32)]


class StaticBar1(ctypes.Structure):
    """NV2080_CTRL_FB_GET_STATIC_BAR1_INFO_PARAMS from 570."""

    _fields_ = [
        ("enabled", U8),
        ("write_combined", U8),
        ("start_offset", U64),
        ("size", U64),
    ]


class StaticBar1Old(ctypes.Structure):
    """NV2080_CTRL_FB_GET_STATIC_BAR1_INFO_PARAMS of 565: no start."""

    _fields_ = [("enabled", U8), ("size", U64)]


class PciBar(ctypes.Structure):
    _fields_ = [("flags", U32), ("size_mib", U32), ("size_bytes", U64), ("offset", U64)]


class PciBars(ctypes.Structure):
    """NV2080_CTRL_BUS_GET_PCI_BAR_INFO_PARAMS."""

    _fields_ = [("count", U32), ("bars", PciBar * 8)]


class C2cOld(ctypes.Structure):
    """NV2080_CTRL_CMD_BUS_GET_C2C_INFO_PARAMS of 520 and 525."""

    _fields_ = [
        ("link_up", U8),
        ("links", U32),
        ("max_links", U32),
        ("link_mask", U32),
        ("link_mbps", U32),
    ]


class C2c(ctypes.Structure):
    """NV2080_CTRL_CMD_BUS_GET_C2C_INFO_PARAMS from 530."""

    _fields_ = [
        ("link_up", U8),
        ("link_hs", U8),
        ("links", U32),
        ("max_links", U32),
        ("link_mask", U32),
        ("link_mbps", U32),
        ("lane_width", U32),
        ("remote_type", U32),
    ]


class AttachedIds(ctypes.Structure):
    _fields_ = [("gpu_ids", U32 * 32)]


class GpuIdInfo(ctypes.Structure):
    """NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS."""

    _fields_ = [
        ("gpu_id", U32),
        ("gpu_flags", U32),
        ("device_instance", U32),
        ("subdevice_instance", U32),
        ("sli_status", U32),
        ("board_id", U32),
        ("gpu_instance", U32),
        ("numa_id", I32),
    ]


class PrivilegedStatus(ctypes.Structure):
    _fields_ = [("flags", U8)]


def _info_table(name: str, size: int) -> type[ctypes.Structure]:
    """A GET_INFO_V2 parameter block of that many bytes: count, then (size - 4) / 8 pairs."""
    fields = [("count", U32), ("entries", InfoEntry * ((size - 4) // 8))]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


FbInfo436, FbInfo444, FbInfo460, FbInfo1028 = (
    _info_table(f"FbInfo{size}", size) for size in (436, 444, 460, 1028)
)
GpuInfo500, GpuInfo508, GpuInfo516, GpuInfo524, GpuInfo532, GpuInfo564 = (
    _info_table(f"GpuInfo{size}", size) for size in (500, 508, 516, 524, 532, 564)
)
BusInfo = _info_table("BusInfo", 420)


@dataclass(frozen=True)
class Generation:
    """The layouts of some driver branches. None: this generation has no such call."""

    branches: tuple[int, ...]
    alloc: type[ctypes.Structure]
    memory: type[ctypes.Structure]
    export: type[ctypes.Structure]
    fb_info: type[ctypes.Structure]
    gpu_info: type[ctypes.Structure]
    c2c: type[ctypes.Structure] | None
    static_bar1: type[ctypes.Structure] | None

    @property
    def has_mapping_type(self) -> bool:
        """Whether an export can ask for FORCE_PCIE."""
        return self.export is Export


_OLD = (AllocOld, MemoryParamsOld, ExportOld, FbInfo436)
GENERATIONS = (
    Generation((515,), *_OLD, GpuInfo500, None, None),
    Generation((520, 525), *_OLD, GpuInfo500, C2cOld, None),
    Generation((530,), *_OLD, GpuInfo508, C2c, None),
    Generation((535,), Alloc, MemoryParamsOld, ExportOld, FbInfo436, GpuInfo516, C2c, None),
    Generation(
        (545, 550, 555),
        Alloc,
        MemoryParams,
        ExportOld,
        FbInfo444,
        GpuInfo524,
        C2c,
        None,
    ),
    Generation((560,), Alloc, MemoryParams, ExportOld, FbInfo460, GpuInfo524, C2c, None),
    Generation(
        (565,),
        Alloc,
        MemoryParams,
        ExportOld,
        FbInfo460,
        GpuInfo524,
        C2c,
        StaticBar1Old,
    ),
    Generation((570,), Alloc, MemoryParams, Export, FbInfo460, GpuInfo524, C2c, StaticBar1),
    Generation((575,), Alloc, MemoryParams, Export, FbInfo460, GpuInfo532, C2c, StaticBar1),
    Generation(
        (580, 590, 595),
        Alloc,
        MemoryParams,
        Export,
        FbInfo1028,
        GpuInfo564,
        C2c,
        StaticBar1,
    ),
)
NEWEST_BRANCH = GENERATIONS[-1].branches[-1]
OLDEST_BRANCH = GENERATIONS[0].branches[0]


def parse_version(text: str) -> tuple[int, ...]:
    """Numbers of a driver version such as 580.159.04 or 565.77; ValueError for anything else."""
    if not re.fullmatch(r"\d{3,4}(\.\d+){1,2}", text):
        raise ValueError(f"not a driver version: {text!r}")
    return tuple(int(part) for part in text.split("."))


def generation_of_branch(branch: int) -> Generation | None:
    return next((item for item in GENERATIONS if branch in item.branches), None)


def generation_of(version: str) -> Generation:
    """The layouts of a driver version. Raises UnavailableError for one that nobody checked."""
    try:
        branch = parse_version(version)[0]
    except ValueError as error:
        raise UnavailableError(f"cannot choose RM layouts: {error}") from error
    found = generation_of_branch(branch)
    if found is None:
        known = ", ".join(str(number) for item in GENERATIONS for number in item.branches)
        raise UnavailableError(
            f"cannot choose RM layouts: driver {version} is of no checked branch ({known})",
            "compare nv-ioctl.h and nvos.h of its open kernel modules with the nearest branch, "
            f"then say device option layout={NEWEST_BRANCH}, or use the exporter cuda",
        )
    return found


def request(number: int, argument: type[ctypes.Structure]) -> int:
    """The ioctl request word of an escape; NR_EXPORT_TO_DMABUF_FD with Export is 0xca3046d9."""
    return iowr(ord("F"), number, argument)


check_layout(PciInfo, 12, bus=4, vendor_id=8)
check_layout(CardInfo, 72, pci_info=4, gpu_id=16, fb_address=40, minor_number=56)
check_layout(CardInfoTable, 2304)
check_layout(RmApiVersion, 72, version_string=8)
check_layout(RegisterFd, 4)
check_layout(Free, 16, status=12)
check_layout(AllocOld, 32, params=16, status=24)
check_layout(Alloc, 32, params=16, params_size=24, status=28)
check_layout(Control, 32, params=16, params_size=24, status=28)
check_layout(DeviceParams, 56, h_client_share=4, va_space_size=24, va_mode=48)
check_layout(SubdeviceParams, 4)
check_layout(
    MemoryParamsOld,
    120,
    attr=24,
    attr2=28,
    range_lo=48,
    size=64,
    alignment=72,
    limit=88,
)
check_layout(
    MemoryParams,
    128,
    attr=24,
    attr2=28,
    range_lo=48,
    size=64,
    alignment=72,
    numa_node=120,
)
check_layout(ExportOld, 2600, total_size=24, handles=32, offsets=544, sizes=1568, status=2592)
check_layout(
    Export,
    2608,
    total_size=24,
    mapping_type=32,
    handles=36,
    offsets=552,
    sizes=1576,
    status=2600,
)
check_layout(StaticBar1, 24, write_combined=1, start_offset=8, size=16)
check_layout(StaticBar1Old, 16, size=8)
check_layout(PciBar, 24, size_bytes=8, offset=16)
check_layout(PciBars, 200, bars=8)
check_layout(C2cOld, 20, links=4)
check_layout(C2c, 28, link_hs=1, links=4, remote_type=24)
check_layout(AttachedIds, 128)
check_layout(GpuIdInfo, 32, device_instance=8, subdevice_instance=12)
check_layout(PrivilegedStatus, 1)
for _table in (FbInfo436, FbInfo444, FbInfo460, FbInfo1028, BusInfo):
    check_layout(_table, int(re.sub(r"\D", "", _table.__name__) or 420), entries=4)
for _table in (GpuInfo500, GpuInfo508, GpuInfo516, GpuInfo524, GpuInfo532, GpuInfo564):
    check_layout(_table, int(re.sub(r"\D", "", _table.__name__)), entries=4)
