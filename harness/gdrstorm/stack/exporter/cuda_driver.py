"""The CUDA driver API by cuda-python 12 or 13: found, called, checked, and named as it is loaded.

A CUresult becomes a CudaError; nothing else is interpreted. The native engine gets the addresses of
the same functions from the same library file, whose path and hash go into the journal.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import re
from pathlib import Path
from typing import Any

import msgspec

from gdrstorm.errors import CallError, UnavailableError
from gdrstorm.model.inventory import Probe, Why, known, unknown

LIBRARY = "libcuda.so.1"
#: A CUresult travels as an errno number from here up; the native engine uses the same.
RESULT_BASE = 0x20000

CUDA_ERROR_INVALID_VALUE = 1
CUDA_ERROR_OUT_OF_MEMORY = 2
CUDA_ERROR_NO_DEVICE = 100
CUDA_ERROR_OPERATING_SYSTEM = 304
CUDA_ERROR_NOT_SUPPORTED = 801

_HINTS = {
    CUDA_ERROR_INVALID_VALUE: "offset and size must be multiples of 4096 inside the allocation",
    CUDA_ERROR_OUT_OF_MEMORY: "GPU memory is used up: nvidia-smi shows by whom",
    CUDA_ERROR_NO_DEVICE: "no GPU is visible: see CUDA_VISIBLE_DEVICES and /dev/nvidia*",
    CUDA_ERROR_OPERATING_SYSTEM: "descriptor limit reached? dma-bufs leak: see ulimit -n",
    CUDA_ERROR_NOT_SUPPORTED: (
        "mapping=force_pcie needs a coherent GPU or the driver's option; with the default mapping "
        "CUDA has no dma-buf for this GPU: exporter rm asks the driver itself"
    ),
}

# enum CUdevice_attribute, cuda.h
ATTRIBUTES = {
    "DMA_BUF_SUPPORTED": 124,
    "GPU_DIRECT_RDMA_SUPPORTED": 116,
    "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED": 110,
    "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": 102,
}
#: Functions of the native back end, in the order of struct cuda_api in native/src/exp_cuda.c.
NATIVE_FUNCTIONS = (
    "cuCtxSetCurrent",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemGetHandleForAddressRange",
    "cuMemGetInfo_v2",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
)


class CudaError(CallError):
    """The driver API refused a call; `result` is the CUresult, `errno` is RESULT_BASE plus it."""

    def __init__(self, act: str, result: int, name: str) -> None:
        super().__init__(act, RESULT_BASE | result, _HINTS.get(result))
        self.message = f"{act}: {name} ({result})"
        self.result = result


class LoadedLibrary(msgspec.Struct, frozen=True):
    """A shared library as this process maps it."""

    path: str
    sha256: str


class CudaDriver:
    """Calls of one cuda-python module; every method raises CudaError."""

    def __init__(self, module: Any, name: str) -> None:
        self.module = module
        self.name = name

    def call(self, act: str, function: str, *arguments: Any) -> Any:
        """Call it; the value, a tuple of values, or None, after the result was found good."""
        found = getattr(self.module, function, None)
        if found is None:
            raise UnavailableError(f"cannot {act}: {self.name} has no {function}")
        result, *values = found(*arguments)
        if int(result) != 0:
            raise CudaError(f"cannot {act}", int(result), getattr(result, "name", "CUresult"))
        return values[0] if len(values) == 1 else tuple(values) or None

    def attribute(self, device: Any, name: str) -> Probe[int]:
        """A device attribute, or why this driver does not know it."""
        try:
            attribute = self.module.CUdevice_attribute(ATTRIBUTES[name])
        except ValueError:
            return unknown(Why.NO_LIBRARY, f"{self.name} has no device attribute {name}")
        try:
            return known(int(self.call(f"read {name}", "cuDeviceGetAttribute", attribute, device)))
        except CudaError as error:
            return unknown(Why.UNREADABLE, error.message)


def load_driver() -> CudaDriver:
    """cuda-python's driver module, under its new or its old name. Raises UnavailableError."""
    reasons = []
    for name, attribute in (("cuda.bindings.driver", ""), ("cuda", "cuda")):
        try:
            module = importlib.import_module(name)
            return CudaDriver(getattr(module, attribute) if attribute else module, name)
        except (ImportError, AttributeError) as error:
            reasons.append(f"{name}: {error}")
    raise UnavailableError(
        f"cannot use exporter cuda: no cuda-python ({'; '.join(reasons)})",
        "pip install 'gdrstorm[cuda]', or use the exporter rm",
    )


def check_library() -> None:
    """Whether libcuda can be loaded at all. Raises UnavailableError with the loader's words."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise UnavailableError(
            f"cannot use exporter cuda: {error}",
            "install the driver's user-space part, or set LD_LIBRARY_PATH to where it is",
        ) from error


def parse_maps(text: str, name: str) -> str:
    """Path of the first mapped file called `name.so...` in /proc/PID/maps, or empty."""
    pattern = re.compile(rf"\s(/\S*/{re.escape(name)}\.so[.\d]*)$", re.MULTILINE)
    match = pattern.search(text)
    return match[1] if match else ""


def read_loaded_library(maps: Path = Path("/proc/self/maps")) -> LoadedLibrary:
    """The libcuda of this process, by path and hash; empty strings where it is not loaded."""
    path = parse_maps(maps.read_text(), "libcuda")
    if not path:
        return LoadedLibrary("", "")
    with Path(path).open("rb") as file:
        return LoadedLibrary(path, hashlib.file_digest(file, "sha256").hexdigest())


def read_addresses(path: str) -> tuple[int, ...]:
    """Addresses of NATIVE_FUNCTIONS in the library at `path`, which is loaded already."""
    library = ctypes.CDLL(path or LIBRARY)
    found = []
    for name in NATIVE_FUNCTIONS:
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise UnavailableError(f"cannot use exporter cuda: {path} has no {name}") from error
        found.append(ctypes.cast(function, ctypes.c_void_p).value or 0)
    return tuple(found)
