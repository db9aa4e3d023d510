"""The GPU gates against a stand-in driver that behaves like 580, and against ones that do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from rm_driver import FakeDriver

from gdrstorm.errors import CallError, UnavailableError
from gdrstorm.model.gate import GateResult
from gdrstorm.stack import gpu_gate
from gdrstorm.stack.exporter.rm import RmExporter
from gdrstorm.stack.exporter.udmabuf import UdmabufExporter
from gdrstorm.stack.gpu_child import PassingChild
from gdrstorm.stack.gpu_rows import ROWS
from gdrstorm.stack.importer.core import CoreImporter
from gdrstorm.uapi import nvidia


class Careless(FakeDriver):
    """Answers one export that should be refused, and keeps what is freed for `held`."""

    allowed_mapping = 9
    leak = False

    def _export_status(self, argument: nvidia.Export) -> int:
        if argument.mapping_type == self.allowed_mapping:
            return 0
        return super()._export_status(argument)

    def _free(self, argument: nvidia.Free) -> None:
        before = self.memory_kib
        super()._free(argument)
        if self.leak:
            self.memory_kib = before


def failed(results: tuple[GateResult, ...]) -> dict[str, str]:
    return {result.case: result.got for result in results if not result.passed}


def run(gate: str, driver: FakeDriver, device: str = "0") -> tuple[GateResult, ...]:
    with RmExporter.open(device, driver) as exporter, CoreImporter.open() as importer:
        results: tuple[GateResult, ...] = getattr(gpu_gate, gate)(exporter, importer)
    assert not driver.open_paths
    assert not driver.objects
    return results


def test_bad_input_is_refused_as_driver_580_does() -> None:
    results = run("run_rm_bad_input", FakeDriver())
    assert failed(results) == {}
    assert len(results) == len(ROWS) + 2
    refused = [result for result in results if result.refused]
    assert len(refused) == 33, "figures and working rows are no refusals"
    assert not next(r for r in results if r.case == "128 parts").refused


def test_a_refusal_that_does_not_come_fails_its_row() -> None:
    driver = Careless()
    driver.allowed_mapping = 2
    assert failed(run("run_rm_bad_input", driver)) == {"mapping type 2": "ok"}


def test_old_drivers_skip_rows_of_the_mapping_type() -> None:
    results = run("run_rm_bad_input", FakeDriver(version="560.35.03"))
    skipped = [result for result in results if result.skipped]
    assert len(skipped) == 5
    assert skipped[0].skipped == "driver 560.35.03 has no mapping type (570 and later)"
    assert failed(tuple(r for r in results if not r.skipped)) == {}


def test_force_pcie_is_refused_for_nothing() -> None:
    results = run("run_force_pcie", FakeDriver())
    assert failed(results) == {}
    again = next(r for r in results if r.case == "FORCE_PCIE 1000 times")
    assert again.got == "NV_ERR_NOT_SUPPORTED" and again.refused
    assert next(r for r in results if r.case == "default mapping, the control").got == "ok"


def test_force_pcie_that_works_fails_the_gate() -> None:
    driver = Careless()
    driver.allowed_mapping = 1
    assert failed(run("run_force_pcie", driver)) == {
        "FORCE_PCIE": "ok",
        "FORCE_PCIE, a page inside": "ok",
        "FORCE_PCIE 1000 times": "ok",
    }


def test_force_pcie_gate_is_not_for_a_driver_with_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = tmp_path / "params"
    params.write_text("ResmanDebugLevel: 4294967295\nExperimentalDmaBufP2P: 1\n")
    assert gpu_gate.read_option(params) == "1"
    monkeypatch.setattr(gpu_gate, "_PARAMS", params)
    with pytest.raises(UnavailableError, match="NVreg_ExperimentalDmaBufP2P"):
        run("run_force_pcie", FakeDriver())
    assert gpu_gate.read_option(tmp_path / "none") == ""


def test_memory_that_does_not_come_back_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_gate, "_SETTLE_S", 0.0)
    driver = Careless()
    driver.memory_kib = 8 << 20
    driver.leak = True
    results = run("run_free_before_close", driver)
    # the stand-in's memfd is no dma-buf, and its buffers hold nothing
    assert failed(results) == {
        "registered after the free": "ENOTTY",
        "last descriptor closed": "+1024 MiB",
        "closed, then freed": "+1024 MiB",
    }


def test_figures_are_not_called_refusals() -> None:
    driver = FakeDriver()
    driver.memory_kib = 8 << 20
    assert not any(r.refused for r in run("run_free_before_close", driver))
    assert sum(r.refused for r in run("run_force_pcie", FakeDriver())) == 3


def test_memory_that_goes_too_early_is_seen() -> None:
    driver = FakeDriver()
    driver.memory_kib = 8 << 20
    assert failed(run("run_free_before_close", driver)) == {
        "freed, descriptors open": "as before",
        "registered after the free": "ENOTTY",
        "one page still exported: its chunk": "as before",
    }


def test_gates_name_the_exporter_they_need() -> None:
    exporter = object.__new__(UdmabufExporter)
    for gate in (gpu_gate.run_force_pcie, gpu_gate.run_free_before_close):
        with pytest.raises(UnavailableError, match="needs a GPU exporter"):
            gate(exporter, CoreImporter())
    with pytest.raises(UnavailableError, match="made for exporter rm"):
        gpu_gate.run_rm_bad_input(exporter, CoreImporter())


def test_failing_child_is_named() -> None:
    with pytest.raises(CallError, match="no such exporter: 'nonesuch'"):
        PassingChild("nonesuch", "0", 4096, 1, 1)
