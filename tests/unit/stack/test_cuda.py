"""The CUDA exporter against a stand-in for cuda-python: order, ownership, errors by number."""

from __future__ import annotations

import os
import sys
import types
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from gdrstorm.errors import UnavailableError
from gdrstorm.stack.exporter.cuda import CudaExporter
from gdrstorm.stack.exporter.cuda_driver import (
    CudaDriver,
    CudaError,
    load_driver,
    parse_maps,
    read_loaded_library,
)

MIB = 1 << 20


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_NOT_SUPPORTED = 801


class FakeCuda:
    """cuda.bindings.driver as far as the exporter uses it; counts what lives."""

    CUdevice_attribute = CUmemRangeHandleType = CUmemAllocationType = staticmethod(int)
    CUmemLocationType = CUmemAccess_flags = CUmemAllocationGranularity_flags = staticmethod(int)

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fail: dict[str, Result] = {}
        self.live: dict[int, int] = {}
        self.mapped: dict[int, int] = {}
        self.handles: set[int] = set()
        self.retained = 0
        self.flags: list[int] = []
        self._next = 0x7F0000000000

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            if name in self.fail:
                return (self.fail[name], None)
            value = getattr(self, f"do_{name}")(*arguments)
            return (Result.CUDA_SUCCESS,) if value is None else (Result.CUDA_SUCCESS, value)

        return call

    def CUmemAllocationProp(self) -> Any:
        return types.SimpleNamespace(
            location=types.SimpleNamespace(), allocFlags=types.SimpleNamespace()
        )

    CUmemAccessDesc = CUmemAllocationProp

    def do_cuInit(self, flags: int) -> None: ...

    def do_cuDeviceGet(self, ordinal: int) -> int:
        return ordinal

    def do_cuDeviceGetByPCIBusId(self, bus_id: bytes) -> int:
        assert bus_id == b"0000:9b:00.0"
        return 0

    def do_cuDeviceGetPCIBusId(self, size: int, device: int) -> bytes:
        return b"0000:9B:00.0\0".ljust(size)  # cuda-python pads with spaces

    def do_cuDevicePrimaryCtxRetain(self, device: int) -> int:
        self.retained += 1
        return 0xC0DE

    def do_cuDevicePrimaryCtxRelease(self, device: int) -> None:
        self.retained -= 1

    def do_cuCtxSetCurrent(self, context: int) -> None:
        assert context == 0xC0DE

    def do_cuDeviceGetAttribute(self, attribute: int, device: int) -> int:
        return 1

    def do_cuDriverGetVersion(self) -> int:
        return 13000

    def do_cuMemAlloc(self, size: int) -> int:
        self._next += 1 << 30
        self.live[self._next] = size
        return self._next

    def do_cuMemFree(self, address: int) -> None:
        del self.live[address]

    def do_cuMemGetHandleForAddressRange(
        self, address: int, size: int, kind: int, flags: int
    ) -> int:
        assert kind == 1
        self.flags.append(flags)
        return os.memfd_create("dmabuf")

    def do_cuMemGetAllocationGranularity(self, prop: Any, flag: int) -> int:
        return 2 * MIB

    def do_cuMemAddressReserve(self, size: int, alignment: int, at: int, flags: int) -> int:
        return self.do_cuMemAlloc(size)

    def do_cuMemAddressFree(self, address: int, size: int) -> None:
        assert self.live.pop(address) == size
        assert not self.mapped

    def do_cuMemCreate(self, size: int, prop: Any, flags: int) -> int:
        assert (prop.type, prop.location.type, prop.location.id) == (1, 1, 0)
        self._next += 1
        self.handles.add(self._next)
        return self._next

    def do_cuMemRelease(self, handle: int) -> None:
        self.handles.remove(handle)

    def do_cuMemMap(self, address: int, size: int, offset: int, handle: int, flags: int) -> None:
        assert handle in self.handles
        self.mapped[address] = size

    def do_cuMemUnmap(self, address: int, size: int) -> None:
        assert self.mapped.pop(address) == size

    def do_cuMemSetAccess(self, address: int, size: int, access: Any, count: int) -> None:
        assert sum(self.mapped.values()) == size


def open_with(fake: FakeCuda, device: str | None = None) -> CudaExporter:
    return CudaExporter.open(device, CudaDriver(fake, "fake cuda"))


def test_whole_life() -> None:
    fake = FakeCuda()
    with open_with(fake, "9b:00.0") as exporter:
        assert exporter.bdf == "0000:9b:00.0"
        memory = exporter.alloc(2 * MIB)
        exporter.export(memory, 4096, MIB).close()
        memory.close()
        memory.close()
    exporter.close()
    assert fake.flags == [0]
    assert fake.retained == 0
    assert not fake.live


def test_force_pcie_asks_for_it_and_the_refusal_has_its_number() -> None:
    fake = FakeCuda()
    with open_with(fake, "0,mapping=force_pcie") as exporter:
        memory = exporter.alloc(MIB)
        exporter.export(memory, 0, MIB).close()
        assert fake.flags == [1]
        fake.fail["cuMemGetHandleForAddressRange"] = Result.CUDA_ERROR_NOT_SUPPORTED
        with pytest.raises(CudaError) as caught:
            exporter.export(memory, 0, MIB)
    assert caught.value.result == 801
    assert caught.value.errno == 0x20000 | 801
    assert "mapping=force_pcie: CUDA_ERROR_NOT_SUPPORTED (801) (mapping=force_pcie needs" in str(
        caught.value
    )


def test_vmm_chunks_lie_under_one_range() -> None:
    fake = FakeCuda()
    with open_with(fake, "0,kind=vmm,chunks=2") as exporter:
        memory = exporter.alloc(8 * MIB)
        assert list(fake.mapped.values()) == [4 * MIB, 4 * MIB]
        assert max(fake.mapped) - min(fake.mapped) == 4 * MIB
        assert not fake.handles, "the mapping alone keeps the chunks"
        memory.close()
    assert not fake.mapped and not fake.live


@pytest.mark.parametrize("failing", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_failing_vmm_leaves_nothing(failing: str) -> None:
    fake = FakeCuda()
    with open_with(fake, "0,kind=vmm,chunks=2") as exporter:
        fake.fail[failing] = Result.CUDA_ERROR_OUT_OF_MEMORY
        with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
            exporter.alloc(8 * MIB)
    assert not fake.mapped and not fake.live and not fake.handles


@pytest.mark.parametrize("failing", ["cuCtxSetCurrent", "cuMemGetAllocationGranularity"])
def test_failing_open_releases_the_context(failing: str) -> None:
    fake = FakeCuda()
    fake.fail[failing] = Result.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(UnavailableError):
        open_with(fake, "0,kind=vmm")
    assert fake.retained == 0


def test_no_gpu_says_what_to_look_at() -> None:
    fake = FakeCuda()
    fake.fail["cuInit"] = Result.CUDA_ERROR_NO_DEVICE
    with pytest.raises(UnavailableError, match=r"start CUDA: CUDA_ERROR_NO_DEVICE \(100\)"):
        open_with(fake)


def test_description_names_library_and_capabilities() -> None:
    fake = FakeCuda()
    with open_with(fake) as exporter:
        fake.fail["cuDeviceGetAttribute"] = Result.CUDA_ERROR_INVALID_VALUE
        part = exporter.describe()
    assert part.version == "13.0"
    assert part.details["libcuda"] == "not loaded"
    assert part.details["DMA_BUF_SUPPORTED"].startswith("unknown (unreadable: cannot read DMA_BUF")


def test_child_of_a_fork_frees_nothing() -> None:
    fake = FakeCuda()
    exporter = open_with(fake)
    memory = exporter.alloc(MIB)
    pid = os.fork()
    if pid == 0:
        memory.close()
        exporter.close()
        os._exit(len(fake.live) - 1 + fake.retained - 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    memory.close()
    exporter.close()


def test_no_cuda_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(UnavailableError, match=r"no cuda-python \(cuda.bindings.driver: "):
        load_driver()
    support = CudaExporter.probe()
    assert not support.ok and "pip install 'gdrstorm[cuda]'" in support.reason


def test_old_name_of_cuda_python(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("cuda")
    package.cuda = FakeCuda()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda", package)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    assert load_driver().name == "cuda"


def test_loaded_library_is_named_by_path_and_hash(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.580.1"
    library.write_bytes(b"")
    maps = tmp_path / "maps"
    maps.write_text(
        f"7f00-7f01 r-xp 00000000 08:01 12      {library}\n7f02-7f03 rw-p 0 0:0 0 [heap]\n"
    )
    loaded = read_loaded_library(maps)
    assert loaded.path == str(library)
    assert loaded.sha256.startswith("e3b0c44298fc1c14")
    assert parse_maps("7f00 r-xp 0 08:01 12 /usr/lib/libcudart.so.13\n", "libcuda") == ""
