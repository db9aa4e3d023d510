"""GPU details from NVML (nvidia-ml-py): names, serials, ECC, MIG mode, BAR1 size.

Asked only on the live machine and never while a GPU sleeps, because attaching wakes it. Each value
that NVML refuses keeps NVML's own reason. Nothing is set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from gdrstorm.model.inventory import Probe, Why, known, unknown

T = TypeVar("T")


class NvmlGpu(msgspec.Struct, frozen=True):
    name: Probe[str]
    uuid: Probe[str]
    serial: Probe[str]
    vbios: Probe[str]
    ecc: Probe[bool]
    mig: Probe[bool]
    bar1_bytes: Probe[int]
    bar1_used_bytes: Probe[int]


def _ask(nvml: Any, what: str, call: Callable[[], T]) -> Probe[T]:
    try:
        return known(call())
    except nvml.NVMLError as error:
        return unknown(Why.UNREADABLE, f"NVML {what}: {error}")


def _read_one(nvml: Any, handle: Any) -> NvmlGpu:
    def text(value: Any) -> str:
        return value.decode() if isinstance(value, bytes) else str(value)

    return NvmlGpu(
        name=_ask(nvml, "name", lambda: text(nvml.nvmlDeviceGetName(handle))),
        uuid=_ask(nvml, "UUID", lambda: text(nvml.nvmlDeviceGetUUID(handle))),
        serial=_ask(nvml, "serial", lambda: text(nvml.nvmlDeviceGetSerial(handle))),
        vbios=_ask(nvml, "VBIOS", lambda: text(nvml.nvmlDeviceGetVbiosVersion(handle))),
        ecc=_ask(nvml, "ECC mode", lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0])),
        mig=_ask(nvml, "MIG mode", lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0])),
        bar1_bytes=_ask(
            nvml, "BAR1", lambda: int(nvml.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Total)
        ),
        bar1_used_bytes=_ask(
            nvml, "BAR1", lambda: int(nvml.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Used)
        ),
    )


def normalise_bdf(text: str) -> str:
    """NVML's `00000000:65:00.0` as the kernel writes it: `0000:65:00.0`."""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def read_nvml() -> Probe[dict[str, NvmlGpu]]:
    """Details by bdf; unknown without the library, the driver or the right to ask."""
    try:
        import pynvml as nvml
    except ImportError:
        return unknown(Why.NO_LIBRARY, "nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return unknown(Why.NO_LIBRARY, f"nvmlInit: {error}")
    try:
        found = {}
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            bus_id = nvml.nvmlDeviceGetPciInfo(handle).busId
            bdf = normalise_bdf(bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id))
            found[bdf] = _read_one(nvml, handle)
        return known(found)
    except nvml.NVMLError as error:
        return unknown(Why.UNREADABLE, f"NVML: {error}")
    finally:
        nvml.nvmlShutdown()
