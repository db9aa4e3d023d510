"""The RM structures against what a C compiler made of the headers of 193 published driver tags."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import pytest

from gdrstorm.errors import UnavailableError
from gdrstorm.uapi import nvidia
from gdrstorm.uapi.nvidia_status import status_name, status_value

DATA = Path(__file__).parents[2] / "data" / "nvidia" / "layouts.json"
ROWS: list[dict[str, Any]] = json.loads(DATA.read_text())["generations"]
IDS = [f"{row['tags'][0]}-{row['tags'][-1]}" for row in ROWS]

FIELDS = {
    "nv_ioctl_export_to_dma_buf_fd_t": {
        "fd": "fd",
        "hClient": "h_client",
        "totalObjects": "total_objects",
        "numObjects": "num_objects",
        "index": "index",
        "totalSize": "total_size",
        "handles": "handles",
        "offsets": "offsets",
        "sizes": "sizes",
        "status": "status",
    },
    "NV_MEMORY_ALLOCATION_PARAMS": {
        "owner": "owner",
        "type": "type",
        "flags": "flags",
        "attr": "attr",
        "attr2": "attr2",
        "rangeLo": "range_lo",
        "size": "size",
        "alignment": "alignment",
        "offset": "offset",
        "limit": "limit",
    },
    "NVOS21_PARAMETERS": {"status": "status"},
    "NVOS54_PARAMETERS": {"status": "status"},
    "NV0080_ALLOC_PARAMETERS": {"hClientShare": "h_client_share"},
    "nv_ioctl_card_info_t": {
        "pci_info": "pci_info",
        "gpu_id": "gpu_id",
        "fb_address": "fb_address",
        "minor_number": "minor_number",
    },
    "NV2080_CTRL_BUS_PCI_BAR_INFO": {"barSizeBytes": "size_bytes", "barOffset": "offset"},
    "NV2080_CTRL_FB_GET_STATIC_BAR1_INFO_PARAMS": {
        "staticBar1StartOffset": "start_offset",
        "staticBar1Size": "size",
    },
    "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS": {
        "deviceInstance": "device_instance",
        "subDeviceInstance": "subdevice_instance",
    },
}
CONSTANTS = {
    "NV_DMABUF_EXPORT_MAX_HANDLES": nvidia.MAX_HANDLES,
    "NV2080_CTRL_CMD_FB_GET_INFO_V2": nvidia.CMD_FB_GET_INFO_V2,
    "NV2080_CTRL_CMD_FB_GET_STATIC_BAR1_INFO": nvidia.CMD_FB_GET_STATIC_BAR1_INFO,
    "NV2080_CTRL_CMD_BUS_GET_PCI_BAR_INFO": nvidia.CMD_BUS_GET_PCI_BAR_INFO,
    "NV2080_CTRL_CMD_BUS_GET_INFO_V2": nvidia.CMD_BUS_GET_INFO_V2,
    "NV2080_CTRL_CMD_BUS_GET_C2C_INFO": nvidia.CMD_BUS_GET_C2C_INFO,
    "NV2080_CTRL_CMD_GPU_GET_INFO_V2": nvidia.CMD_GPU_GET_INFO_V2,
    "NV0000_CTRL_CMD_SYSTEM_GET_PRIVILEGED_STATUS": nvidia.CMD_SYSTEM_GET_PRIVILEGED_STATUS,
    "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2": nvidia.CMD_GPU_GET_ID_INFO_V2,
    "NV0000_CTRL_CMD_GPU_GET_ATTACHED_IDS": nvidia.CMD_GPU_GET_ATTACHED_IDS,
    "NV2080_CTRL_FB_INFO_INDEX_BAR1_SIZE": nvidia.FB_BAR1_SIZE,
    "NV2080_CTRL_FB_INFO_INDEX_BAR1_AVAIL_SIZE": nvidia.FB_BAR1_AVAIL_SIZE,
    "NV2080_CTRL_FB_INFO_INDEX_BAR1_MAX_CONTIGUOUS_AVAIL_SIZE": (
        nvidia.FB_BAR1_MAX_CONTIGUOUS_AVAIL_SIZE
    ),
    "NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE": nvidia.FB_HEAP_FREE,
    "NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE": nvidia.FB_HEAP_SIZE,
    "NV2080_CTRL_FB_INFO_INDEX_USABLE_RAM_SIZE": nvidia.FB_USABLE_RAM_SIZE,
    "NV2080_CTRL_FB_INFO_INDEX_COHERENCE_INFO": nvidia.FB_COHERENCE_INFO,
    "NV2080_CTRL_GPU_INFO_INDEX_GPU_SMC_MODE": nvidia.GPU_SMC_MODE,
    "NV2080_CTRL_GPU_INFO_INDEX_GPU_ATS_CAPABILITY": nvidia.GPU_ATS_CAPABILITY,
    "NV2080_CTRL_GPU_INFO_INDEX_GPU_SELF_HOSTED_CAPABILITY": nvidia.GPU_SELF_HOSTED_CAPABILITY,
    "NV2080_CTRL_GPU_INFO_INDEX_DMABUF_CAPABILITY": nvidia.GPU_DMABUF_CAPABILITY,
    "NV2080_CTRL_GPU_INFO_INDEX_COHERENT_GPU_MEMORY_MODE": nvidia.GPU_COHERENT_MEMORY_MODE,
    "NV2080_CTRL_BUS_INFO_INDEX_SYSMEM_CONNECTION_TYPE": nvidia.BUS_SYSMEM_CONNECTION_TYPE,
    "NV_ESC_CARD_INFO": nvidia.NR_CARD_INFO,
    "NV_ESC_REGISTER_FD": nvidia.NR_REGISTER_FD,
    "NV_ESC_CHECK_VERSION_STR": nvidia.NR_CHECK_VERSION_STR,
    "NV_ESC_EXPORT_TO_DMABUF_FD": nvidia.NR_EXPORT_TO_DMABUF_FD,
}


def structs_of(generation: nvidia.Generation) -> dict[str, type[ctypes.Structure] | None]:
    return {
        "nv_ioctl_export_to_dma_buf_fd_t": generation.export,
        "NV_MEMORY_ALLOCATION_PARAMS": generation.memory,
        "NVOS00_PARAMETERS": nvidia.Free,
        "NVOS21_PARAMETERS": generation.alloc,
        "NVOS54_PARAMETERS": nvidia.Control,
        "NV0080_ALLOC_PARAMETERS": nvidia.DeviceParams,
        "NV2080_ALLOC_PARAMETERS": nvidia.SubdeviceParams,
        "nv_ioctl_card_info_t": nvidia.CardInfo,
        "nv_pci_info_t": nvidia.PciInfo,
        "nv_ioctl_rm_api_version_t": nvidia.RmApiVersion,
        "nv_ioctl_register_fd_t": nvidia.RegisterFd,
        "NV2080_CTRL_FB_GET_INFO_V2_PARAMS": generation.fb_info,
        "NV2080_CTRL_FB_INFO": nvidia.InfoEntry,
        "NV2080_CTRL_FB_GET_STATIC_BAR1_INFO_PARAMS": generation.static_bar1,
        "NV2080_CTRL_BUS_GET_PCI_BAR_INFO_PARAMS": nvidia.PciBars,
        "NV2080_CTRL_BUS_PCI_BAR_INFO": nvidia.PciBar,
        "NV2080_CTRL_BUS_GET_INFO_V2_PARAMS": nvidia.BusInfo,
        "NV2080_CTRL_CMD_BUS_GET_C2C_INFO_PARAMS": generation.c2c,
        "NV2080_CTRL_GPU_GET_INFO_V2_PARAMS": generation.gpu_info,
        "NV2080_CTRL_GPU_INFO": nvidia.InfoEntry,
        "NV0000_CTRL_SYSTEM_GET_PRIVILEGED_STATUS_PARAMS": nvidia.PrivilegedStatus,
        "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS": nvidia.GpuIdInfo,
        "NV0000_CTRL_GPU_GET_ATTACHED_IDS_PARAMS": nvidia.AttachedIds,
    }


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_sizes_are_those_of_the_headers(row: dict[str, Any]) -> None:
    for tag in row["tags"]:
        for name, struct in structs_of(nvidia.generation_of(tag)).items():
            seen = None if struct is None else ctypes.sizeof(struct)
            assert seen == row["sizes"].get(name), (tag, name)


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_offsets_are_those_of_the_headers(row: dict[str, Any]) -> None:
    structs = structs_of(nvidia.generation_of(row["tags"][-1]))
    checked = 0
    for path, offset in row["offsets"].items():
        struct_name, field = path.split(".")
        struct = structs.get(struct_name)
        if struct is None or field not in FIELDS.get(struct_name, {}):
            continue
        assert getattr(struct, FIELDS[struct_name][field]).offset == offset, path
        checked += 1
    assert checked >= 28


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_constants_are_those_of_the_headers(row: dict[str, Any]) -> None:
    for name, value in row["constants"].items():
        if name in CONSTANTS:
            assert CONSTANTS[name] == value, name
    assert len(CONSTANTS.keys() & row["constants"].keys()) >= 22


def test_requests_are_those_seen_on_driver_580() -> None:
    seen = {
        0xC90046C8: (nvidia.NR_CARD_INFO, nvidia.CardInfoTable),
        0xC00446C9: (nvidia.NR_REGISTER_FD, nvidia.RegisterFd),
        0xC04846D2: (nvidia.NR_CHECK_VERSION_STR, nvidia.RmApiVersion),
        0xCA3046D9: (nvidia.NR_EXPORT_TO_DMABUF_FD, nvidia.Export),
        0xC0104629: (nvidia.NR_RM_FREE, nvidia.Free),
        0xC020462A: (nvidia.NR_RM_CONTROL, nvidia.Control),
        0xC020462B: (nvidia.NR_RM_ALLOC, nvidia.Alloc),
    }
    for word, (number, struct) in seen.items():
        assert nvidia.request(number, struct) == word


def test_mapping_type_came_with_570() -> None:
    assert not nvidia.generation_of("565.77").has_mapping_type
    assert nvidia.generation_of("570.86.15").has_mapping_type


@pytest.mark.parametrize("version", ["610.43.03", "510.47.03", "585.1", "999.1.2"])
def test_unknown_branch_is_refused_and_named(version: str) -> None:
    with pytest.raises(UnavailableError) as caught:
        nvidia.generation_of(version)
    assert f"driver {version} is of no checked branch (515, 520," in str(caught.value)
    assert "layout=595" in str(caught.value)


@pytest.mark.parametrize("version", ["", "580", "580.x", "NVIDIA UNIX", "58.1", "580.1.2.3"])
def test_nonsense_version_is_refused(version: str) -> None:
    with pytest.raises(UnavailableError, match="not a driver version"):
        nvidia.generation_of(version)


def test_every_branch_has_one_generation() -> None:
    branches = [number for item in nvidia.GENERATIONS for number in item.branches]
    assert branches == sorted(set(branches))


def test_status_names() -> None:
    assert status_name(0x56) == "NV_ERR_NOT_SUPPORTED"
    assert status_name(0x57) == "NV_ERR_OBJECT_NOT_FOUND"
    assert status_name(0xCAFE) == "NV_STATUS 0xcafe"
    assert status_value("NV_ERR_INVALID_ARGUMENT") == 0x1F
    assert status_value("EINVAL") is None
