"""NVIDIA's files: flavour, parameters in both generations, GPUs; NVML's names for the same things."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from host_trees import CLOSED_DRIVER, OPEN_DRIVER, Tree
from machines import closed_driver, desktop, gb206, h100, nothing

from gdrstorm.host import read_inventory
from gdrstorm.host.nvidia import parse_dwords, parse_params, parse_version
from gdrstorm.host.nvml import normalise_bdf, read_nvml
from gdrstorm.model.inventory import GpuState, NvidiaParam, StaticBar1, Why, known


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (OPEN_DRIVER, ("open", "610.57.04")),
        (CLOSED_DRIVER, ("proprietary", "535.104.05")),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.159.04  Release Build  (dvs)\n",
            ("open", "580.159.04"),
        ),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82  Wed Oct 1\n",
            ("proprietary", "470.82"),
        ),
    ],
)
def test_flavour_and_version(text: str, want: tuple[str, str]) -> None:
    assert parse_version(text) == want


def test_a_version_that_is_none() -> None:
    with pytest.raises(ValueError):
        parse_version("GCC version: 12.2.0")


def test_parameters() -> None:
    text = 'EnableDmaBufP2P: 1\nRegistryDwords: "RmX=0x11; B=2"\nTemporaryFilePath: ""\nnonsense\n'
    source = "/proc/driver/nvidia/params"
    assert parse_params(text, source) == (
        NvidiaParam("EnableDmaBufP2P", "1", source),
        NvidiaParam("RegistryDwords", "RmX=0x11; B=2", source),
        NvidiaParam("RmX", "0x11", f"{source} RegistryDwords"),
        NvidiaParam("B", "2", f"{source} RegistryDwords"),
        NvidiaParam("TemporaryFilePath", "", source),
    )
    assert parse_dwords("") == ()


def test_module_parameters_in_sysfs_count_too(tmp_path: Path) -> None:
    root = gb206(tmp_path)
    Tree(root).write("sys/module/nvidia/parameters/NVreg_GrdmaPciTopoCheckOverride", "1")
    params = {p.name: p for p in read_inventory(root).nvidia.params.get(())}
    assert params["ExperimentalDmaBufP2P"].value == "1"
    assert params["GrdmaPciTopoCheckOverride"].source.startswith("/sys/module")


def test_gpus(tmp_path: Path) -> None:
    there = read_inventory(h100(tmp_path))
    assert there.nvidia.flavour == known("open") and there.nvidia.peermem == known(False)
    assert [g.index for g in there.gpus] == list(range(8))
    first = there.gpus[0]
    assert (first.name, first.minor) == (known("NVIDIA H100 80GB HBM3"), known(0))
    assert first.gsp_firmware == known("610.57.04")
    assert first.state.static_bar1.unknown and first.state.static_bar1.unknown.why is Why.NOT_ASKED


def test_what_the_driver_has_not_asked_yet_is_unknown(tmp_path: Path) -> None:
    root = desktop(tmp_path)
    path = root / "proc/driver/nvidia/gpus/0000:01:00.0/information"
    path.write_text(path.read_text().replace("96.00.99.00.01", "??.??.??.??.??"))
    vbios = read_inventory(root).gpus[0].vbios
    assert vbios.unknown and vbios.unknown.why is Why.UNREADABLE


def test_closed_driver(tmp_path: Path) -> None:
    there = read_inventory(closed_driver(tmp_path))
    assert there.nvidia.flavour == known("proprietary")


def test_a_reader_tells_the_drivers_own_state(tmp_path: Path) -> None:
    state = GpuState(
        known(StaticBar1(True, True, 0x20000000, 1 << 34)),
        known(1 << 34),
        known(False),
        known(False),
        known(True),
    )
    asked = []
    reader = SimpleNamespace(read_gpu_state=lambda bdf: asked.append(bdf) or state)
    there = read_inventory(gb206(tmp_path), gpu_reader=reader)
    assert asked == ["0000:41:00.0", "0000:42:00.0"]
    assert all(g.state == state for g in there.gpus)


def test_no_driver(tmp_path: Path) -> None:
    nvidia = read_inventory(nothing(tmp_path)).nvidia
    for probe in (nvidia.flavour, nvidia.version, nvidia.params, nvidia.peermem):
        assert probe.unknown and probe.unknown.why is Why.NO_FILE


def test_bdfs_of_nvml() -> None:
    assert normalise_bdf("00000000:3B:00.0") == "0000:3b:00.0"
    assert normalise_bdf("0000000A:01:00.0") == "000a:01:00.0"


class FakeNvml:
    """The calls that are made, on one GPU that has no ECC and no MIG."""

    class NVMLError(Exception):
        pass

    def __init__(self, fail: str = "") -> None:
        self.fail, self.closed = fail, 0

    def __getattr__(self, name: str):
        values = {
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "h",
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:41:00.0"),
            "nvmlDeviceGetName": "GPU",
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetSerial": "123",
            "nvmlDeviceGetVbiosVersion": b"96.0",
            "nvmlDeviceGetBAR1MemoryInfo": SimpleNamespace(bar1Total=1 << 34, bar1Used=5),
        }

        def call(*_args: object) -> object:
            if name in {self.fail, "nvmlDeviceGetEccMode", "nvmlDeviceGetMigMode"}:
                raise self.NVMLError("Not Supported")
            if name == "nvmlShutdown":
                self.closed += 1
            return values.get(name)

        return call


def test_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml()
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake)
    gpu = read_nvml().get({})["0000:41:00.0"]
    assert (gpu.vbios, gpu.bar1_bytes, gpu.bar1_used_bytes) == (
        known("96.0"),
        known(1 << 34),
        known(5),
    )
    assert gpu.ecc.unknown and "Not Supported" in gpu.ecc.unknown.detail
    assert fake.closed == 1


def test_nvml_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", FakeNvml("nvmlInit"))
    answer = read_nvml()
    assert answer.unknown and answer.unknown.why is Why.NO_LIBRARY
