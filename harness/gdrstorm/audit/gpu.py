"""GPU memory and BAR1 as counters for the audit: by NVML, and by the driver's RM through a reader.

With a static BAR1 its use follows allocations, not exports; memory that only a dma-buf still holds
is seen by both, though no process is listed for it. Reads only; what cannot be read has its reason.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from gdrstorm.errors import GdrstormError
from gdrstorm.model.audit import Counter, Snapshot

#: What the driver keeps for itself after its first client and gives back in its own time.
SLACK_BYTES = 16 << 20

#: Figures in bytes by name (`memory`, `BAR1`); raises GdrstormError when they cannot be had.
Figures = Callable[[], Mapping[str, int]]


def read_rm(bdf: str, figures: Figures) -> Snapshot:
    """Counters of one GPU from RM; `figures` is stack.exporter.rm_state.read_figures for that GPU."""
    return _snapshot(f"GPU {bdf}", "RM", figures)


def read_nvml(bdf: str, nvml: Any = None) -> Snapshot:
    """Counters of one GPU from NVML; `nvml` is pynvml unless a test brings its own."""
    name = f"GPU {bdf} (NVML)"
    try:
        nvml = nvml or importlib.import_module("pynvml")
    except ImportError:
        return Snapshot(unknown={name: "nvidia-ml-py is not installed"})
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Snapshot(unknown={name: f"nvmlInit: {error}"})
    try:
        handle = nvml.nvmlDeviceGetHandleByPciBusId(bdf.encode())
        values = {
            "memory": int(nvml.nvmlDeviceGetMemoryInfo(handle).used),
            "BAR1": int(nvml.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Used),
        }
    except nvml.NVMLError as error:
        return Snapshot(unknown={name: f"NVML: {error}"})
    finally:
        nvml.nvmlShutdown()
    return _snapshot(f"GPU {bdf}", "NVML", lambda: values)


def _snapshot(gpu: str, witness: str, figures: Figures) -> Snapshot:
    try:
        found = figures()
    except GdrstormError as error:
        return Snapshot(unknown={f"{gpu} ({witness})": str(error)})
    return Snapshot(
        tuple(
            Counter(f"{gpu} {name} ({witness})", value, "bytes", SLACK_BYTES)
            for name, value in found.items()
        )
    )
