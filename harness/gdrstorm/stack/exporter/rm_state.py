"""What only RM can tell about a GPU: memory, BAR1 and its static window, MIG, links, capabilities.

Read-only controls on an RmClient; every answer is a value or the reason why there is none. The
cheap ones (6 us each) are safe beside a storm; SMC_MODE takes 160 us and belongs outside one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from gdrstorm.errors import CallError, GdrstormError
from gdrstorm.host.nvidia import unknown_state
from gdrstorm.model.inventory import Bar, GpuState, Probe, StaticBar1, Why, known, unknown
from gdrstorm.stack.exporter.gpu_device import parse_gpu_device
from gdrstorm.stack.exporter.rm_client import RmClient, RmIo, RmStatusError
from gdrstorm.uapi import nvidia
from gdrstorm.uapi.nvidia_status import NV_ERR_INSUFFICIENT_PERMISSIONS

T = TypeVar("T")
U = TypeVar("U")

_KIB = 1024
_COHERENCE_FULL = 1


class RmMemoryState(msgspec.Struct, frozen=True):
    """Figures that move while memory is used, bytes. BAR1 follows allocations when it is static."""

    heap_free_bytes: int
    heap_bytes: int
    bar1_bytes: int
    bar1_free_bytes: int
    bar1_max_contiguous_bytes: int

    @property
    def used_bytes(self) -> int:
        return self.heap_bytes - self.heap_free_bytes

    @property
    def bar1_used_bytes(self) -> int:
        return self.bar1_bytes - self.bar1_free_bytes


class RmState(msgspec.Struct, frozen=True):
    """The whole state; capability bits are the driver's numbers made bool."""

    bdf: str
    version: str
    memory: Probe[RmMemoryState]
    static_bar1: Probe[StaticBar1]
    bars: Probe[tuple[Bar, ...]]
    mig: Probe[str]
    coherent: Probe[bool]
    coherent_mode: Probe[int]
    sysmem_link: Probe[str]
    c2c_links: Probe[int]
    dmabuf: Probe[bool]
    ats: Probe[bool]
    self_hosted: Probe[bool]
    privileged: Probe[int]


def read_state(client: RmClient) -> RmState:
    """Everything, with one reason for each thing that could not be read."""
    return RmState(
        bdf=client.card.bdf,
        version=client.version,
        memory=_ask(lambda: read_memory(client)),
        static_bar1=read_static_bar1(client),
        bars=_ask(lambda: _read_bars(client)),
        mig=_ask(lambda: _name(nvidia.SMC_MODE_NAMES, _gpu_info(client, nvidia.GPU_SMC_MODE))),
        coherent=_ask(lambda: _is_coherent(client)),
        coherent_mode=_ask(lambda: _gpu_info(client, nvidia.GPU_COHERENT_MEMORY_MODE)),
        sysmem_link=_ask(lambda: _read_sysmem_link(client)),
        c2c_links=_read_c2c(client),
        dmabuf=_ask(lambda: bool(_gpu_info(client, nvidia.GPU_DMABUF_CAPABILITY))),
        ats=_ask(lambda: bool(_gpu_info(client, nvidia.GPU_ATS_CAPABILITY))),
        self_hosted=_ask(lambda: bool(_gpu_info(client, nvidia.GPU_SELF_HOSTED_CAPABILITY))),
        privileged=_ask(lambda: read_privileged(client)),
    )


def read_memory(client: RmClient) -> RmMemoryState:
    """GPU memory and BAR1 as RM counts them. Raises RmStatusError or CallError."""
    free, total, bar1, bar1_free, contiguous = _info(
        client,
        client.subdevice,
        nvidia.CMD_FB_GET_INFO_V2,
        client.generation.fb_info,
        (
            nvidia.FB_HEAP_FREE,
            nvidia.FB_HEAP_SIZE,
            nvidia.FB_BAR1_SIZE,
            nvidia.FB_BAR1_AVAIL_SIZE,
            nvidia.FB_BAR1_MAX_CONTIGUOUS_AVAIL_SIZE,
        ),
    )
    return RmMemoryState(
        free * _KIB, total * _KIB, bar1 * _KIB, bar1_free * _KIB, contiguous * _KIB
    )


def read_static_bar1(client: RmClient) -> Probe[StaticBar1]:
    """The window of BAR1 that maps video memory for good."""
    struct = client.generation.static_bar1
    if struct is None:
        return unknown(
            Why.NOT_ASKED, f"driver {client.version} has no FB_GET_STATIC_BAR1_INFO (565 and later)"
        )

    def read() -> StaticBar1:
        params = struct()
        client.control(client.subdevice, nvidia.CMD_FB_GET_STATIC_BAR1_INFO, params)
        return StaticBar1(
            is_enabled=bool(params.enabled),
            is_write_combined=bool(getattr(params, "write_combined", 0)),
            start=getattr(params, "start_offset", 0),
            size=params.size,
        )

    return _ask(read)


def read_privileged(client: RmClient) -> int:
    """The caller's rights as RM sees them: the innocent control call of the bystander."""
    params = nvidia.PrivilegedStatus()
    client.control(client.client, nvidia.CMD_SYSTEM_GET_PRIVILEGED_STATUS, params)
    flags: int = params.flags
    return flags


class RmStateReader:
    """host.GpuStateReader by RM: opens a client for each question and closes it."""

    def __init__(self, io: RmIo | None = None) -> None:
        self._io = io

    def read_gpu_state(self, bdf: str) -> GpuState:
        try:
            client = RmClient.open(parse_gpu_device(bdf), self._io)
        except GdrstormError as error:
            return unknown_state(_why(error), str(error))
        try:
            state = read_state(client)
        finally:
            client.close()
        return GpuState(
            static_bar1=state.static_bar1,
            bar1_bytes=_map(state.memory, lambda memory: memory.bar1_bytes),
            mig=_map(state.mig, lambda mode: mode in ("enabled", "disable pending")),
            coherent=state.coherent,
            dmabuf=state.dmabuf,
        )


def _ask(read: Callable[[], T]) -> Probe[T]:
    try:
        return known(read())
    except RmStatusError as error:
        denied = error.status == NV_ERR_INSUFFICIENT_PERMISSIONS
        return unknown(Why.NO_PERMISSION if denied else Why.UNREADABLE, error.message)
    except CallError as error:
        return unknown(Why.UNREADABLE, error.message)


def _why(error: GdrstormError) -> Why:
    denied = "EACCES" in error.message or "EPERM" in error.message
    return Why.NO_PERMISSION if denied else Why.NO_DEVICE


def _map(probe: Probe[T], change: Callable[[T], U]) -> Probe[U]:
    if probe.value is None:
        return Probe(unknown=probe.unknown)
    return known(change(probe.value))


def _info(
    client: RmClient, handle: int, cmd: int, struct: type[ctypes.Structure], wanted: Sequence[int]
) -> tuple[int, ...]:
    """Values of a GET_INFO_V2 control, in the order asked for."""
    params = struct(count=len(wanted))
    for entry, index in zip(params.entries, wanted, strict=False):
        entry.index = index
    client.control(handle, cmd, params)
    return tuple(entry.data for entry in params.entries[: len(wanted)])


def _gpu_info(client: RmClient, index: int) -> int:
    struct = client.generation.gpu_info
    return _info(client, client.subdevice, nvidia.CMD_GPU_GET_INFO_V2, struct, (index,))[0]


def _is_coherent(client: RmClient) -> bool:
    """Coherent with the CPU: RM says fully coherent, or a coherent memory mode is on."""
    struct = client.generation.fb_info
    answer = _info(
        client, client.subdevice, nvidia.CMD_FB_GET_INFO_V2, struct, (nvidia.FB_COHERENCE_INFO,)
    )
    return answer[0] == _COHERENCE_FULL or bool(_gpu_info(client, nvidia.GPU_COHERENT_MEMORY_MODE))


def _read_sysmem_link(client: RmClient) -> str:
    wanted = (nvidia.BUS_SYSMEM_CONNECTION_TYPE,)
    cmd = nvidia.CMD_BUS_GET_INFO_V2
    return _name(
        nvidia.SYSMEM_CONNECTION_NAMES,
        _info(client, client.subdevice, cmd, nvidia.BusInfo, wanted)[0],
    )


def _read_c2c(client: RmClient) -> Probe[int]:
    struct = client.generation.c2c
    if struct is None:
        return unknown(Why.NOT_ASKED, f"driver {client.version} has no BUS_GET_C2C_INFO")

    def read() -> int:
        params = struct()
        client.control(client.subdevice, nvidia.CMD_BUS_GET_C2C_INFO, params)
        return int(params.links) if params.link_up else 0

    return _ask(read)


def _read_bars(client: RmClient) -> tuple[Bar, ...]:
    params = nvidia.PciBars()
    client.control(client.subdevice, nvidia.CMD_BUS_GET_PCI_BAR_INFO, params)
    return tuple(
        Bar(
            index=index,
            start=bar.offset,
            size=bar.size_bytes,
            is_memory=True,
            is_64bit=bar.offset >> 32 != 0,
            is_prefetchable=False,
        )
        for index, bar in enumerate(params.bars[: params.count])
    )


def _name(names: dict[int, str], value: int) -> str:
    return names.get(value, f"unknown value {value}")


def read_figures(device: str, io: RmIo | None = None) -> dict[str, int]:
    """Bytes of GPU memory and of BAR1 in use, by a client of its own. Raises GdrstormError."""
    client = RmClient.open(parse_gpu_device(device), io)
    try:
        memory = read_memory(client)
    finally:
        client.close()
    return {"memory": memory.used_bytes, "BAR1": memory.bar1_used_bytes}
