"""The native GPU back ends without a GPU: exp_rm.c over a stub of ioctl, exp_cuda.c over callbacks."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gdrstorm.engine import Area, ExporterBinding, ImporterBinding, StormProgram, run_storm
from gdrstorm.errors import CallError, UsageError
from gdrstorm.model.op import Op, OpSummary
from gdrstorm.stack.exporter.cuda_driver import NATIVE_FUNCTIONS

ROOT = Path(__file__).resolve().parents[3]
MIB = 1 << 20


@pytest.fixture(scope="module")
def native_rm(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """Runs the stub program; lines of its output."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    target = tmp_path_factory.mktemp("rm") / "native_rm"
    sources = [
        ROOT / "native/src/exp_rm.c",
        ROOT / "native/src/backend.c",
        Path(__file__).parent / "native_rm.c",
    ]
    flags = ["-std=c11", "-D_DEFAULT_SOURCE", "-Dioctl=stub_ioctl"]
    flags += ["-fsanitize=undefined", "-I", str(ROOT / "native/include"), "-I"]
    command = [compiler, *flags, str(ROOT / "native/src"), *map(str, sources), "-o", str(target)]
    subprocess.run(command, check=True)

    def run(
        *, export: int = 2608, status: int = 28, chunks: int = 1, mapping: int = 0,
        size: int = MIB, offset: int = 0, length: int = MIB, fail: int = -1,
    ) -> list[str]:  # fmt: skip
        numbers = (export, 128, status, chunks, mapping, size, offset, length, fail)
        command = [str(target), *map(str, numbers)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert done.stderr == ""
        return done.stdout.splitlines()

    return run


def test_rm_life_as_the_driver_is_asked(native_rm: Callable[..., list[str]]) -> None:
    assert native_rm(offset=4096, length=8192) == [
        "ALLOC fd=5 size=32 root=0xc1 parent=0xd0 new=0x5d000000 class=0x40 "
        "bytes=1048576 attr=0x10000000",
        "alloc 0",
        "fd=6 request=0xca3046d9 EXPORT fd=-1 client=0xc1 total=1 num=1 index=0 size=8192 map=0 "
        "0x5d000000+4096:8192",
        "export 0 fd 77",
        "FREE fd=5 size=16 root=0xc1 parent=0xd0 old=0x5d000000",
        "free 0",
        "CONTROL fd=5 size=32 object=0xc1 cmd=0x135 bytes=1",
        "control 0",
    ]


def test_rm_range_over_chunks(native_rm: Callable[..., list[str]]) -> None:
    """3 chunks of 6 granules: 384 KiB, the range begins in the first and ends in the last."""
    lines = native_rm(chunks=3, offset=4096, length=MIB - 4096)
    assert [line.split()[7] for line in lines[:3]] == ["bytes=393216"] * 3
    assert lines[4].endswith(" 0x5d000000+4096:389120 0x5d000001+0:393216 0x5d000002+0:262144")
    assert "total=3 num=3 index=0 size=1044480" in lines[4]
    assert [line.split()[-1] for line in lines[6:9]] == [
        "old=0x5d000002",
        "old=0x5d000001",
        "old=0x5d000000",
    ]


def test_rm_mapping_and_old_layout(native_rm: Callable[..., list[str]]) -> None:
    assert " map=1 " in native_rm(mapping=1)[2]
    old = native_rm(export=2600, status=24, mapping=1)
    assert old[2].startswith("fd=6 request=0xca2846d9 EXPORT")
    assert " map=-1 0x5d000000+0:1048576" in old[2]
    assert old[3] == "export 0 fd 77"


def test_rm_refusals_carry_their_status(native_rm: Callable[..., list[str]]) -> None:
    assert native_rm(fail=0)[1:] == ["alloc 0x10051"]
    assert native_rm(fail=1)[3] == "export 0x10051 fd -1"
    assert native_rm(fail=2)[5] == "free 0x10051"
    assert native_rm(fail=3)[-1] == "control 0x10051"
    assert native_rm(export=2599) == ["open -22"]


def test_rm_failing_chunk_frees_the_earlier_ones(native_rm: Callable[..., list[str]]) -> None:
    lines = native_rm(chunks=3, fail=2)
    assert [line.split()[0] for line in lines] == ["ALLOC"] * 3 + ["FREE"] * 2 + ["alloc"]
    assert lines[-1] == "alloc 0x10051"


class CallbackCuda:
    """The driver API as C callbacks: what the native back end calls, in its order of addresses."""

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self.mapped: dict[int, int] = {}
        self.handles: set[int] = set()
        self.current = 0
        self.fail: dict[str, int] = {}
        self.ranges: list[tuple[int, int, int, int]] = []
        self.rdma = -1
        self._next = 1 << 40
        u64, p = ctypes.c_uint64, ctypes.c_void_p
        prototypes: dict[str, tuple[Any, ...]] = {
            "cuCtxSetCurrent": (p,),
            "cuMemAlloc_v2": (ctypes.POINTER(u64), u64),
            "cuMemFree_v2": (u64,),
            "cuMemGetHandleForAddressRange": (
                ctypes.POINTER(ctypes.c_int), u64, u64, ctypes.c_int, u64,
            ),
            "cuMemGetInfo_v2": (ctypes.POINTER(u64), ctypes.POINTER(u64)),
            "cuMemAddressReserve": (ctypes.POINTER(u64), u64, u64, u64, u64),
            "cuMemAddressFree": (u64, u64),
            "cuMemCreate": (ctypes.POINTER(u64), u64, p, u64),
            "cuMemRelease": (u64,),
            "cuMemMap": (u64, u64, u64, u64, u64),
            "cuMemUnmap": (u64, u64),
            "cuMemSetAccess": (u64, u64, p, u64),
        }  # fmt: skip
        self._kept = [
            ctypes.CFUNCTYPE(ctypes.c_int, *prototypes[name])(self._wrap(name))
            for name in NATIVE_FUNCTIONS
        ]

    @property
    def addresses(self) -> tuple[int, ...]:
        return tuple(ctypes.cast(f, ctypes.c_void_p).value or 0 for f in self._kept)

    def _wrap(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            if name in self.fail:
                return self.fail[name]
            getattr(self, name)(*arguments)
            return 0

        return call

    def cuCtxSetCurrent(self, context: int) -> None:
        assert context == 0xC0DE
        self.current += 1

    def cuMemAlloc_v2(self, out: Any, size: int) -> None:
        self._next += 1 << 30
        out[0] = self._next
        self.live[self._next] = size

    def cuMemFree_v2(self, address: int) -> None:
        del self.live[address]

    def cuMemGetHandleForAddressRange(
        self, out: Any, address: int, size: int, kind: int, flags: int
    ) -> None:
        self.ranges.append((address, size, kind, flags))
        out[0] = os.memfd_create("dmabuf", os.MFD_CLOEXEC)

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> None:
        free[0], total[0] = 1, 2

    def cuMemAddressReserve(self, out: Any, size: int, *rest: int) -> None:
        self.cuMemAlloc_v2(out, size)

    def cuMemAddressFree(self, address: int, size: int) -> None:
        assert self.live.pop(address) == size
        assert not self.mapped

    def cuMemCreate(self, out: Any, size: int, prop: int, flags: int) -> None:
        words = (ctypes.c_int32 * 8).from_address(prop)
        assert list(words[:4]) == [1, 0, 1, 3]
        self.rdma = words[6] >> 8 & 0xFF
        self._next += 1
        out[0] = self._next
        self.handles.add(self._next)

    def cuMemRelease(self, handle: int) -> None:
        self.handles.remove(handle)

    def cuMemMap(self, address: int, size: int, offset: int, handle: int, flags: int) -> None:
        assert handle in self.handles
        self.mapped[address] = size

    def cuMemUnmap(self, address: int, size: int) -> None:
        parts = sorted(at for at in self.mapped if address <= at < address + size)
        assert sum(self.mapped.pop(at) for at in parts) == size

    def cuMemSetAccess(self, address: int, size: int, access: int, count: int) -> None:
        assert list((ctypes.c_int32 * 3).from_address(access)) == [1, 3, 3]
        assert sum(self.mapped.values()) == size


def storm(
    cuda: CallbackCuda, cycle: tuple[Op, ...], *, flags: int = 0, vmm: int = 0, chunks: int = 1
) -> dict[str, OpSummary]:
    binding = ExporterBinding(
        "cuda", numbers=(3, flags, vmm, chunks, 2 * MIB, 1), addresses=(0xC0DE, *cuda.addresses)
    )
    program = StormProgram(
        cycle=cycle,
        seed=1,
        size_min_bytes=6 * MIB,
        size_max_bytes=6 * MIB,
        offset_max_bytes=8192,
        count=5,
    )
    with Area.create(2) as area:
        area.start()
        run_storm(
            area,
            worker=0,
            first_thread=0,
            threads=2,
            program=program,
            exporter=binding,
            importer=ImporterBinding("core"),
        )
        return {op.op: op for op in area.snapshot(range(2)).summaries()}


@pytest.fixture
def cuda() -> Iterator[CallbackCuda]:
    fake = CallbackCuda()
    yield fake
    assert not fake.live and not fake.mapped and not fake.handles


LIFE = (Op.ALLOC, Op.EXPORT, Op.CONTROL, Op.CLOSE, Op.FREE)


def test_cuda_life_in_a_storm(cuda: CallbackCuda) -> None:
    ops = storm(cuda, LIFE, flags=1)
    assert {name: (op.count, op.errors) for name, op in ops.items()} == {
        op.name: (10, {}) for op in LIFE
    }
    assert cuda.current >= 2, "every thread makes the context current"
    assert {(kind, flags) for _, _, kind, flags in cuda.ranges} == {(1, 1)}
    assert {address & (1 << 30) - 1 for address, *_ in cuda.ranges} <= {0, 4096, 8192}


def test_cuda_vmm_life_in_a_storm(cuda: CallbackCuda) -> None:
    ops = storm(cuda, LIFE, vmm=1, chunks=2)
    assert all(op.count == 10 and not op.errors for op in ops.values())
    assert cuda.rdma == 1


@pytest.mark.parametrize("failing", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_cuda_vmm_failure_leaves_nothing(cuda: CallbackCuda, failing: str) -> None:
    cuda.fail[failing] = 2
    ops = storm(cuda, LIFE, vmm=1, chunks=2)
    assert sum(ops["ALLOC"].errors.values()) == 10
    assert "EXPORT" not in ops


def test_cuda_refusal_is_counted(cuda: CallbackCuda) -> None:
    cuda.fail["cuMemGetHandleForAddressRange"] = 801
    ops = storm(cuda, LIFE)
    assert sum(ops["EXPORT"].errors.values()) == 10
    assert ops["FREE"].count == 10


def test_cuda_without_a_context_fails_the_set_up(cuda: CallbackCuda) -> None:
    cuda.fail["cuCtxSetCurrent"] = 201
    with pytest.raises(CallError, match="open the exporter"):
        storm(cuda, LIFE)


def test_cuda_needs_all_addresses() -> None:
    with (
        Area.create(1) as area,
        pytest.raises((CallError, UsageError)),
    ):
        run_storm(
            area,
            worker=0,
            first_thread=0,
            threads=1,
            program=StormProgram(cycle=LIFE, seed=1, count=1),
            exporter=ExporterBinding("cuda", numbers=(0, 0, 0, 1, 1), addresses=(1, 2)),
            importer=ImporterBinding("core"),
        )
