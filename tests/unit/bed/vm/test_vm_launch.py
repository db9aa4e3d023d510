"""What the supervisor is told: the model before QEMU, which waits for its sockets."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_vm_build import IMAGE

from gdrstorm.bed.vm import launch
from gdrstorm.bed.vm.options import Accel, BedOptions
from gdrstorm.errors import BrokenError


class Told:
    """Stands in for the supervisor process and reads what it is told."""

    def __init__(self) -> None:
        self.spec: dict[str, Any] = {}
        self.fds: dict[str, int] = {}

    def start(self, fds: dict[str, int], run_dir: Path) -> subprocess.Popen[bytes]:
        self.fds = dict(fds)
        return subprocess.Popen(["true"])


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Told]:
    made = Told()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(launch, "stage_package", lambda tree: Path("/staged/gdrstorm"))
    monkeypatch.setattr(launch, "write_initramfs", lambda image, options, path: path.touch())
    monkeypatch.setattr(launch, "_start_supervisor", made.start)
    with tempfile.TemporaryDirectory(prefix="gdrt-", dir="/tmp") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield made


def sent(options: BedOptions, tmp_path: Path, *, is_temporary: bool = False) -> dict[str, Any]:
    """The spec, read from the far end before it was closed."""
    specs: list[bytes] = []
    encode = launch.msgspec.json.encode

    def keep(value: object) -> bytes:
        specs.append(encode(value))
        return specs[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch.msgspec.json, "encode", keep)
        made = launch.launch(IMAGE, options, Accel.TCG, tmp_path, is_temporary=is_temporary)
    made.supervisor.wait()
    made.sockets.close()
    spec: dict[str, Any] = json.loads(specs[-1])
    assert spec["remove"] == [str(made.workdir)] and made.workdir.is_dir()
    assert (made.control is not None) == bool(options.hca)
    return spec


def test_model_comes_first_and_qemu_waits_for_it(told: Told, tmp_path: Path) -> None:
    model, qemu = sent(BedOptions(hca=2), tmp_path)["processes"]
    assert (model["name"], qemu["name"]) == ("model", "qemu")
    assert [Path(path).name for path in model["wait"]] == ["hca0.sock", "hca1.sock", "control.sock"]
    assert model["fds"] == []
    assert qemu["fds"] == [told.fds[name] for name in ("qmp", "agent", "journal")]
    assert model["argv"][model["argv"].index("--control") + 1] == model["wait"][-1]


def test_no_hca_no_model(told: Told, tmp_path: Path) -> None:
    spec = sent(BedOptions(hca=0), tmp_path)
    assert [process["name"] for process in spec["processes"]] == ["qemu"]
    assert spec["remove_if_orphaned"] == []


def test_temporary_run_directory_goes_with_a_killed_parent(told: Told, tmp_path: Path) -> None:
    spec = sent(BedOptions(hca=0), tmp_path, is_temporary=True)
    assert spec["remove_if_orphaned"] == [str(tmp_path)]


def test_failure_leaves_no_directory(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise BrokenError("no initramfs")

    monkeypatch.setattr(launch, "write_initramfs", fail)
    with pytest.raises(BrokenError):
        launch.launch(IMAGE, BedOptions(hca=0), Accel.TCG, tmp_path, is_temporary=False)
    assert list(Path(tempfile.gettempdir()).iterdir()) == []
