"""The GPU exporters on a real GPU: gates, figures, storms, clean-up after SIGKILL. `make test-gpu`.

Plain allocations of at most 2 GiB, bounded loops, no settings. A test skips only because there is no
driver or no cuda-python here, with the probe's own reason.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdrstorm.audit import gpu, snapshot
from gdrstorm.engine import Area, StormProgram, run_storm
from gdrstorm.kmsg.witness.nvml import NvmlWitness
from gdrstorm.model.audit import find_leaks
from gdrstorm.model.gate import GateResult
from gdrstorm.model.op import Op
from gdrstorm.stack import registry, tables
from gdrstorm.stack.exporter import Exporter
from gdrstorm.stack.exporter.rm import RmExporter
from gdrstorm.stack.exporter.rm_state import (
    RmMemoryState,
    RmState,
    read_figures,
    read_memory,
    read_state,
)
from gdrstorm.stack.importer import Importer
from gdrstorm.stack.importer.core import CoreImporter

pytestmark = pytest.mark.hardware
MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]
DEVICES = {
    "rm": "0",
    "rm-chunks": "0,chunks=3",
    "cuda": "0",
    "cuda-vmm": "0,kind=vmm,chunks=2",
}


@pytest.fixture(params=DEVICES, scope="module")
def exporter(request: pytest.FixtureRequest) -> Iterator[Exporter]:
    name = request.param.split("-")[0]
    support = registry.probe_exporter(name, DEVICES[request.param])
    if not support.ok:
        pytest.skip(support.reason)
    with registry.open_exporter(name, DEVICES[request.param]) as opened:
        yield opened


@pytest.fixture(scope="module")
def importer() -> Iterator[Importer]:
    with CoreImporter.open() as opened:
        yield opened


@pytest.fixture(scope="module")
def rm() -> Iterator[RmExporter]:
    support = RmExporter.probe()
    if not support.ok:
        pytest.skip(support.reason)
    with RmExporter.open() as opened:
        yield opened


def check(results: tuple[GateResult, ...]) -> None:
    for result in results:
        print(result.case, "|", result.got, result.note, result.skipped)
    wrong = [(r.case, r.got, r.note) for r in results if not r.passed and not r.skipped]
    assert not wrong


def test_state(rm: RmExporter) -> None:
    state: RmState = read_state(rm.client)
    print(state)
    assert state.bdf == rm.bdf
    unread = [name for name in state.__struct_fields__ if "unknown (" in str(getattr(state, name))]
    assert unread == []
    assert state.memory.value is not None
    assert 0 < state.memory.value.heap_free_bytes <= state.memory.value.heap_bytes
    bars = state.bars.value or ()
    assert state.memory.value.bar1_bytes == bars[1].size
    nvml = pytest.importorskip("pynvml")
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByPciBusId(rm.bdf.encode())
    assert nvml.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Total == state.memory.value.bar1_bytes
    nvml.nvmlShutdown()


@pytest.mark.parametrize(
    "table", ["core-checks", "force-pcie-default-off", "gpu-free-before-close"]
)
def test_gate(exporter: Exporter, importer: Importer, table: str) -> None:
    check(tables.run_gate(table, exporter, importer))


def test_exporter_killed(exporter: Exporter, importer: Importer) -> None:
    check(tables.run_gate("exporter-killed-after-passing", exporter, importer))


def test_rm_bad_input(rm: RmExporter, importer: Importer) -> None:
    check(tables.run_gate("rm-bad-input", rm, importer))


def settled(rm: RmExporter, before: RmMemoryState, slack: int) -> RmMemoryState:
    deadline = time.monotonic() + 5
    while True:
        now = read_memory(rm.client)
        if now.used_bytes - before.used_bytes <= slack or time.monotonic() > deadline:
            return now
        time.sleep(0.02)


def test_storm_of_one_thread(exporter: Exporter, importer: Importer, rm: RmExporter) -> None:
    before = read_memory(rm.client)
    cycle = (Op.ALLOC, Op.EXPORT, Op.CONTROL, Op.SYNC, Op.REG, Op.DEREG, Op.CLOSE, Op.FREE)
    program = StormProgram(
        cycle=cycle,
        seed=7,
        size_min_bytes=64 << 10,
        size_max_bytes=8 * MIB,
        size_step_bytes=64 << 10,
        offset_max_bytes=32 << 10,
        count=200,
    )
    with Area.create(1) as area:
        area.start()
        run_storm(
            area,
            worker=0,
            first_thread=0,
            threads=1,
            program=program,
            exporter=exporter.binding(),
            importer=importer.binding(),
        )
        summaries = area.snapshot(range(1)).summaries()
        errors = area.first_errors(range(1))
    assert errors == ()
    assert {op.op: op.count for op in summaries} == dict.fromkeys((o.name for o in cycle), 200)
    assert settled(rm, before, 0).used_bytes <= before.used_bytes + 64 * MIB


_WORKER = """
import sys
from gdrstorm.audit import gpu, snapshot
from gdrstorm.engine import Area, StormProgram, run_storm
from gdrstorm.model.op import Op
from gdrstorm.stack import registry
name, device, fd = sys.argv[1], sys.argv[2], int(sys.argv[3])
program = StormProgram(cycle=(Op.ALLOC, Op.EXPORT, Op.CLOSE, Op.FREE), seed=1, depth=8,
    size_min_bytes=16 << 20, size_max_bytes=16 << 20, duration_ns=20_000_000_000)
with Area.attach(fd) as area, registry.open_exporter(name, device) as exporter:
    with registry.open_importer("core") as importer:
        run_storm(area, worker=0, first_thread=0, threads=2, program=program,
            exporter=exporter.binding(), importer=importer.binding())
"""


@pytest.mark.parametrize("name", ["rm", "cuda"])
def test_killed_storm_gives_everything_back(rm: RmExporter, name: str) -> None:
    if not registry.probe_exporter(name).ok:
        pytest.skip(registry.probe_exporter(name).reason)
    before = read_memory(rm.client)
    with Area.create(2) as area:
        worker = subprocess.Popen(
            [sys.executable, "-c", _WORKER, name, "0", str(area.fd)],
            pass_fds=(area.fd,),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert area.wait_ready(range(2), 60)
        area.start()
        time.sleep(0.3)
        during = read_memory(rm.client)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    assert during.used_bytes - before.used_bytes >= 128 * MIB
    after = settled(rm, before, 0)
    print(before, during, after, sep="\n")
    assert after.used_bytes == before.used_bytes
    assert after.bar1_used_bytes == before.bar1_used_bytes


def test_audit_sees_memory_and_its_return(rm: RmExporter) -> None:
    """By RM and by NVML, held by a dma-buf alone, for which no process is listed."""
    sources = [lambda: gpu.read_nvml(rm.bdf), lambda: gpu.read_rm(rm.bdf, figures)]

    def figures() -> dict[str, int]:
        return read_figures(rm.bdf)

    before = snapshot.take(sources)
    assert before.unknown == {}
    memory = rm.alloc(256 * MIB)
    buffer = rm.export(memory, 0, 256 * MIB)
    memory.close()
    held = find_leaks(before, snapshot.take(sources))
    print(*held, sep="\n")
    assert {leak.after - leak.before for leak in held} == {256 * MIB}
    assert len(held) == 4
    buffer.close()
    assert find_leaks(before, snapshot.take(sources)) == ()


def test_nvml_witness_looks_and_sees_no_xid(rm: RmExporter) -> None:
    witness = NvmlWitness(rm.bdf)
    witness.start()
    try:
        rm.alloc(MIB).close()
        assert witness.poll() == []
    finally:
        witness.close()
