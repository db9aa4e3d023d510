"""Exporter `cuda`: GPU memory as applications get it, exported by cuMemGetHandleForAddressRange.

Memory by cuMemAlloc, or by cuMemCreate in several chunks under one range (kind=vmm). CUDA rejects
bad ranges itself, before the kernel sees them; exporter rm reaches further. Device option: ordinal
or bdf, mapping=, kind=, chunks= (see gpu_device). Nothing is set on the GPU.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from gdrstorm.engine import ExporterBinding
from gdrstorm.errors import CallError, GdrstormError, UnavailableError
from gdrstorm.model.stack import StackPart, Support
from gdrstorm.stack.descriptor import Descriptor
from gdrstorm.stack.exporter import Memory
from gdrstorm.stack.exporter.cuda_driver import (
    ATTRIBUTES,
    CudaDriver,
    check_library,
    load_driver,
    read_addresses,
    read_loaded_library,
)
from gdrstorm.stack.exporter.gpu_device import (
    GpuDevice,
    Kind,
    Mapping,
    chunk_sizes,
    parse_gpu_device,
)
from gdrstorm.stack.exporter.rm_client import RmIo

# enum CUmemRangeHandleType, CUmemRangeFlags, CUmemAllocationType and so on: cuda.h
_HANDLE_DMA_BUF_FD = 1
_RANGE_FLAGS = {Mapping.DEFAULT: 0, Mapping.FORCE_PCIE: 1}  # DMA_BUF_MAPPING_TYPE_PCIE
_ALLOCATION_PINNED = 1
_LOCATION_DEVICE = 1
_ACCESS_READWRITE = 3
_CTL_PATH = Path("/dev/nvidiactl")


class CudaMemory:
    """Device memory at `address`; `close` gives it back. In a fork's child it does nothing."""

    def __init__(self, address: int, size_bytes: int, release: Callable[[], None]) -> None:
        self.address = address
        self.size_bytes = size_bytes
        self._release: Callable[[], None] | None = release
        self._owner = os.getpid()

    def close(self) -> None:
        release, self._release = self._release, None
        if release is not None and os.getpid() == self._owner:
            release()


class CudaExporter:
    """The primary context of one GPU, retained and current in this thread."""

    name = "cuda"

    def __init__(self, driver: CudaDriver, device: GpuDevice) -> None:
        self._driver = driver
        self.rm_io: RmIo | None = None
        self.device = device
        self._retained = False
        self._owner = os.getpid()
        driver.call("start CUDA", "cuInit", 0)
        if device.bdf:
            self._gpu = driver.call(
                f"find GPU {device.bdf}", "cuDeviceGetByPCIBusId", device.bdf.encode()
            )
        else:
            self._gpu = driver.call(f"find GPU {device.ordinal}", "cuDeviceGet", device.ordinal)
        self.bdf = _bdf(driver.call("read the bdf", "cuDeviceGetPCIBusId", 32, self._gpu))
        self._context = driver.call(f"open GPU {self.bdf}", "cuDevicePrimaryCtxRetain", self._gpu)
        self._retained = True
        try:
            driver.call("make the context current", "cuCtxSetCurrent", self._context)
            self._granularity = self._read_granularity() if device.kind is Kind.VMM else 1
        except BaseException:
            self.close()
            raise

    @classmethod
    def probe(cls, device: str | None = None) -> Support:
        """cuda-python, libcuda and the device node; CUDA itself is not started."""
        try:
            parse_gpu_device(device)
            load_driver()
            check_library()
        except GdrstormError as error:
            return Support(False, str(error))
        if not os.access(_CTL_PATH, os.R_OK | os.W_OK):
            why = "no permission for" if _CTL_PATH.exists() else "no"
            return Support(False, f"cannot use exporter cuda: {why} {_CTL_PATH}")
        return Support(True)

    @classmethod
    def open(cls, device: str | None = None, driver: CudaDriver | None = None) -> Self:
        parsed = parse_gpu_device(device)
        try:
            return cls(driver or load_driver(), parsed)
        except CallError as error:
            raise UnavailableError(error.message, error.hint) from error

    def describe(self) -> StackPart:
        driver, library = self._driver, read_loaded_library()
        version = driver.call("read the driver's version", "cuDriverGetVersion")
        details = {
            "memory": f"GPU memory, {self.device.kind.value}",
            "mapping": self.device.mapping.name.lower(),
            "chunks": str(self.device.chunks),
            "binding": f"{driver.name} {read_package_version()}",
            "libcuda": library.path or "not loaded",
            "libcuda sha256": library.sha256 or "unknown",
        }
        for name in ATTRIBUTES:
            details[name] = str(driver.attribute(self._gpu, name))
        return StackPart(
            name=self.name,
            device=str(int(self._gpu)),
            bdf=self.bdf,
            driver="libcuda",
            version=f"{version // 1000}.{version % 1000 // 10}",
            details=details,
        )

    def alloc(self, size_bytes: int) -> CudaMemory:
        if self.device.kind is Kind.VMM:
            return self._alloc_vmm(size_bytes)
        address = int(self._driver.call(f"allocate {size_bytes} bytes", "cuMemAlloc", size_bytes))
        return CudaMemory(address, size_bytes, lambda: self._free(address))

    def export(self, memory: Memory, offset_bytes: int, size_bytes: int) -> Descriptor:
        return self.export_mapped(memory, offset_bytes, size_bytes, self.device.mapping)

    def export_mapped(
        self, memory: Memory, offset_bytes: int, size_bytes: int, mapping: Mapping
    ) -> Descriptor:
        """Export with another mapping type than the device option's. Raises as export."""
        assert isinstance(memory, CudaMemory)
        handle = self._driver.call(
            f"export: {self.bdf} offset={offset_bytes} size={size_bytes} "
            f"mapping={mapping.name.lower()}",
            "cuMemGetHandleForAddressRange",
            memory.address + offset_bytes,
            size_bytes,
            self._driver.module.CUmemRangeHandleType(_HANDLE_DMA_BUF_FD),
            _RANGE_FLAGS[mapping],
        )
        return Descriptor(int(handle), size_bytes)

    def binding(self) -> ExporterBinding:
        """Numbers and addresses as native/src/exp_cuda.c lists them."""
        rdma = self._driver.attribute(self._gpu, "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED")
        return ExporterBinding(
            backend="cuda",
            numbers=(
                int(self._gpu),
                _RANGE_FLAGS[self.device.mapping],
                int(self.device.kind is Kind.VMM),
                self.device.chunks,
                self._granularity,
                rdma.get(0),
            ),
            addresses=(int(self._context), *read_addresses(read_loaded_library().path)),
        )

    def close(self) -> None:
        if self._retained and os.getpid() == self._owner:
            self._retained = False
            self._driver.call("close the GPU", "cuDevicePrimaryCtxRelease", self._gpu)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _free(self, address: int) -> None:
        self._driver.call(f"free memory at {address:#x}", "cuMemFree", address)

    def _property(self) -> Any:
        module = self._driver.module
        wanted = module.CUmemAllocationProp()
        wanted.type = module.CUmemAllocationType(_ALLOCATION_PINNED)
        wanted.location.type = module.CUmemLocationType(_LOCATION_DEVICE)
        wanted.location.id = int(self._gpu)
        rdma = self._driver.attribute(self._gpu, "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED")
        wanted.allocFlags.gpuDirectRDMACapable = rdma.get(0)
        return wanted

    def _read_granularity(self) -> int:
        flag = self._driver.module.CUmemAllocationGranularity_flags(0)
        return int(
            self._driver.call(
                "read the granularity", "cuMemGetAllocationGranularity", self._property(), flag
            )
        )

    def _alloc_vmm(self, size_bytes: int) -> CudaMemory:
        """Chunks mapped one after the other; their handles are given up, the mapping keeps them."""
        call = self._driver.call
        sizes = chunk_sizes(size_bytes, self.device.chunks, self._granularity)
        total = sum(sizes)
        base = int(call("reserve a range", "cuMemAddressReserve", total, 0, 0, 0))
        undo = contextlib.ExitStack()
        undo.callback(call, "free the range", "cuMemAddressFree", base, total)
        try:
            for index, size in enumerate(sizes):
                self._map_chunk(base + index * size, size, undo)
            access = self._driver.module.CUmemAccessDesc()
            access.location.type = self._driver.module.CUmemLocationType(_LOCATION_DEVICE)
            access.location.id = int(self._gpu)
            access.flags = self._driver.module.CUmemAccess_flags(_ACCESS_READWRITE)
            call("set access", "cuMemSetAccess", base, total, [access], 1)
        except BaseException:
            undo.close()
            raise
        return CudaMemory(base, size_bytes, undo.close)

    def _map_chunk(self, address: int, size: int, undo: contextlib.ExitStack) -> None:
        call = self._driver.call
        handle = call(f"create a chunk of {size} bytes", "cuMemCreate", size, self._property(), 0)
        try:
            call("map a chunk", "cuMemMap", address, size, 0, handle, 0)
            undo.callback(call, "unmap a chunk", "cuMemUnmap", address, size)
        finally:
            call("release a chunk", "cuMemRelease", handle)


def _bdf(bus_id: bytes | str) -> str:
    text = bus_id.decode() if isinstance(bus_id, bytes) else bus_id
    return parse_gpu_device(text.partition("\0")[0].lower()).bdf


def read_package_version() -> str:
    """Version of the installed cuda-python, whatever it is called; `unknown` when nobody says."""
    for package in ("cuda-bindings", "cuda-python"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return "unknown"
