"""The verbs of `gdrstorm bed`: options reach the bed, ends become exit codes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import pytest
from test_vm_build import IMAGE
from typer.testing import CliRunner, Result

from gdrstorm.bed import vm
from gdrstorm.bed.vm import BedOptions, CommandResult, GuestPanicError, accel, build, image
from gdrstorm.bed.vm.options import Accel, Domain, Iommu, LinkLayer, Topology
from gdrstorm.cli.bed import app
from gdrstorm.errors import UnavailableError


class FakeBed:
    """Keeps what it was asked; ends as it is told."""

    made: ClassVar[list[FakeBed]] = []
    end: ClassVar[CommandResult | BaseException] = CommandResult(argv=(), status=0)

    def __init__(self, options: BedOptions, *, run_dir: Path | None = None) -> None:
        self.options, self.run_dir = options, run_dir
        FakeBed.made.append(self)

    def __enter__(self) -> FakeBed:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, argv: list[str], **given: Any) -> CommandResult:
        self.argv, self.timeout_s = argv, given["timeout_s"]
        given["on_stdout"](b"out\xff\n")
        given["on_stderr"](b"err\n")
        if isinstance(self.end, BaseException):
            raise self.end
        return self.end


@pytest.fixture(autouse=True)
def fake_bed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(vm, "Bed", FakeBed, raising=False)
    FakeBed.made.clear()
    FakeBed.end = CommandResult(argv=(), status=0)


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_defaults_are_the_records() -> None:
    assert call("exec", "--", "true").exit_code == 0
    assert FakeBed.made[0].options == BedOptions()


def test_every_option_reaches_the_bed(tmp_path: Path) -> None:
    kernel = tmp_path / "bzImage"
    kernel.touch()
    (tmp_path / "modules.dep").touch()
    words = "exec --hca 2 --link-layer infiniband --rxe --bar 64MiB --bar 4K --topology sys"
    words += " --iommu virtio --domain translated --smp 4 --memory 2GiB --cpu max --accel tcg"
    words += f" --kernel {kernel} --modules {tmp_path} --load vgem --load dummy --edu --aer"
    words += f" --share {tmp_path} --run-dir {tmp_path}/run --timeout 5 --append x=1 -- sh -c exit"
    result = call(*words.split())
    assert result.exit_code == 0, result.output
    made = FakeBed.made[0]
    assert made.options == BedOptions(
        hca=2,
        link_layer=LinkLayer.INFINIBAND,
        rxe=True,
        bars=(64 << 20, 4096),
        topology=Topology.SYS,
        iommu=Iommu.VIRTIO,
        domain=Domain.TRANSLATED,
        smp=4,
        memory_bytes=2 << 30,
        cpu="max",
        accel=Accel.TCG,
        kernel=kernel,
        modules=tmp_path,
        load=("vgem", "dummy"),
        append="x=1",
        edu=True,
        aer=True,
        share=tmp_path,
    )
    assert (made.argv, made.timeout_s) == (["sh", "-c", "exit"], 5.0)
    assert made.run_dir == tmp_path / "run"


def test_output_passes_through_unchanged() -> None:
    result = call("exec", "--", "true")
    assert result.stdout_bytes == b"out\xff\n"
    assert result.stderr_bytes == b"err\n"


@pytest.mark.parametrize(
    ("end", "code", "text"),
    [
        (CommandResult(argv=(), status=42), 42, ""),
        (CommandResult(argv=(), status=127, error="cannot start x"), 127, "cannot start x"),
        (GuestPanicError("guest panicked", Path("/r/console.log")), 5, "console: /r/console.log"),
        (UnavailableError("no bed", "try: gdrstorm bed build"), 4, "gdrstorm bed build"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_ends_become_exit_codes(end: Any, code: int, text: str) -> None:
    FakeBed.end = end
    result = call("exec", "--", "x")
    assert result.exit_code == code
    assert text in result.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--bar", "5MiB"], "power of two"),
        (["--bar", "large"], "not a size"),
        (["--memory", "much"], "not a size"),
        (["--hca", "7"], "hca=7"),
        (["--modules", "/lib"], "--kernel too"),
    ],
)
def test_wrong_use_is_2_with_one_line(words: list[str], text: str) -> None:
    result = call("exec", *words, "--", "true")
    assert result.exit_code == 2
    assert text in result.stderr and result.stderr.count("\n") == 1
    assert FakeBed.made == []


def test_info(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("info").exit_code == 4
    monkeypatch.setattr(image, "read_image", lambda: IMAGE)
    proof = accel.KvmProof(works=False, reason="it hung", about=())
    monkeypatch.setattr(accel, "prove_kvm", lambda _: proof)
    text = call("info").output
    assert IMAGE.kernel_release in text and "not used (it hung)" in text
    assert '"qemu_version": "1:11.1.3"' in call("info", "--json").output


def test_build_without_root_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = call("build")
    assert result.exit_code == 4 and "needs root" in result.stderr


@pytest.mark.parametrize(("is_new", "text"), [(True, "bed built"), (False, "bed is there")])
def test_build(monkeypatch: pytest.MonkeyPatch, is_new: bool, text: str) -> None:
    given: dict[str, Any] = {}

    def fake(progress: Any, **options: Any) -> tuple[image.Image, bool]:
        given.update(options)
        progress("step")
        return IMAGE, is_new

    monkeypatch.setattr(build, "build_bed", fake)
    result = call("build", "--rebuild", "--mirror", "http://m/debian")
    assert result.exit_code == 0 and text in result.stdout and "step" in result.stderr
    assert given == {"rebuild": True, "mirror": "http://m/debian"}


def test_shell_needs_a_terminal() -> None:
    result = call("shell")
    assert result.exit_code == 2 and "bed exec" in result.stderr
