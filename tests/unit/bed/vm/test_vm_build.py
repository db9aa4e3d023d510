"""The build says at once what is missing, leaves nothing half done, and keeps what is there."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from gdrstorm.bed.vm import build, debian, image
from gdrstorm.errors import BrokenError, UnavailableError

IMAGE = image.Image(
    schema=image.SCHEMA,
    suite="trixie",
    built="2026-01-01T00:00:00+00:00",
    kernel_release="7.3.4+deb13-amd64",
    kernel_version="7.3.4-1",
    qemu_version="1:11.1.3",
    packages={"rdma-core": "56.1-1"},
    sources=("deb x",),
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, on a host where nothing is missing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(build.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(build.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 40))
    monkeypatch.setattr(debian, "KEYRING", tmp_path / "keyring")
    (tmp_path / "keyring").touch()
    monkeypatch.setattr(build, "check_mirror", lambda mirror, directory: None)
    monkeypatch.setattr(build, "prove_kvm", lambda made: None)
    return image.beds_dir()


def place_bed(root: Path) -> None:
    (root / image.NAME).mkdir(parents=True)
    (root / image.NAME / image.RECORD).write_bytes(msgspec.json.encode(IMAGE))


def fake_build(make: Callable[[Path], None]) -> Callable[..., image.Image]:
    def run(beside: Path, *_: object) -> image.Image:
        make(beside)
        (beside / image.RECORD).write_bytes(msgspec.json.encode(IMAGE))
        return IMAGE

    return run


@pytest.mark.parametrize(
    ("attribute", "value", "text"),
    [
        ("geteuid", lambda: 1000, "needs root"),
        ("machine", lambda: "aarch64", "aarch64"),
        (
            "which",
            lambda name: None if name == "mmdebstrap" else name,
            "apt-get install mmdebstrap",
        ),
        ("disk_usage", lambda _: SimpleNamespace(free=5 << 20), "5 MiB free"),
    ],
)
def test_missing_things_are_named(
    cache: Path, monkeypatch: pytest.MonkeyPatch, attribute: str, value: object, text: str
) -> None:
    owner = {"geteuid": os, "machine": build.platform}.get(attribute, build.shutil)
    monkeypatch.setattr(owner, attribute, value)
    with pytest.raises(UnavailableError, match=text) as caught:
        build.build_bed(lambda _: None)
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)


def test_missing_keyring(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "KEYRING", cache / "none")
    with pytest.raises(UnavailableError, match="debian-archive-keyring"):
        build.build_bed(lambda _: None)


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        (
            lambda argv, **_: SimpleNamespace(returncode=100, stderr="E: no route", stdout=""),
            "no route",
        ),
        (
            lambda argv, **_: (_ for _ in ()).throw(subprocess.TimeoutExpired(argv, 1)),
            "no answer within",
        ),
    ],
)
def test_unreachable_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: object, text: str
) -> None:
    monkeypatch.setattr(build.subprocess, "run", behaviour)
    with pytest.raises(UnavailableError, match=text) as caught:
        build.check_mirror("http://mirror.example/debian", tmp_path)
    assert "--mirror" in str(caught.value)


def test_second_call_says_it_is_there(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place_bed(cache)
    monkeypatch.setattr(build, "_build", None)
    assert build.build_bed(lambda _: None) == (IMAGE, False)


def test_build_is_moved_into_its_place(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_build", fake_build(lambda beside: (beside / "tree").mkdir()))
    assert build.build_bed(lambda _: None) == (IMAGE, True)
    assert image.find_image() == IMAGE
    assert not list(cache.glob(".building-*"))


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, BrokenError("no")])
def test_interruption_leaves_the_old_bed_and_nothing_else(
    cache: Path, monkeypatch: pytest.MonkeyPatch, interruption: BaseException
) -> None:
    place_bed(cache)

    def fail(beside: Path, *_: object) -> None:
        (beside / "tree").mkdir()
        raise interruption

    monkeypatch.setattr(build, "_build", fail)
    with pytest.raises((KeyboardInterrupt, BrokenError)):
        build.build_bed(lambda _: None, rebuild=True)
    assert image.find_image() == IMAGE
    assert not list(cache.glob(".building-*"))


def test_leftovers_of_a_killed_build_are_removed(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / ".building-dead/tree").mkdir(parents=True)
    monkeypatch.setattr(build, "_build", fake_build(lambda beside: None))
    build.build_bed(lambda _: None)
    assert not list(cache.glob(".building-*"))


def test_rebuild_replaces(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place_bed(cache)
    (cache / image.NAME / "old").touch()
    monkeypatch.setattr(build, "_build", fake_build(lambda beside: (beside / "new").touch()))
    build.build_bed(lambda _: None, rebuild=True)
    assert sorted(path.name for path in (cache / image.NAME).iterdir()) == [image.RECORD, "new"]


def test_rebuild_waits_for_nobody_but_refuses(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place_bed(cache)
    monkeypatch.setattr(build, "_build", fake_build(lambda beside: None))
    lock = image.open_use_lock(exclusive=False)
    assert lock is not None
    try:
        with pytest.raises(UnavailableError, match="a bed is running"):
            build.build_bed(lambda _: None, rebuild=True)
    finally:
        os.close(lock)
    assert image.find_image() == IMAGE
    assert not list(cache.glob(".building-*"))


def run_script(script: build._Script, code: str, tmp_path: Path) -> None:
    build._run_mmdebstrap([sys.executable, "-c", textwrap.dedent(code)], script, tmp_path / "log")


def test_output_becomes_steps_and_versions(tmp_path: Path) -> None:
    said: list[str] = []
    script = build._Script(said.append)
    code = """
        print("I: running apt-get update...")
        print("Unpacking a (1)")
        print("BED: version linux-image-amd64 7.3.4-1")
        print("BED: kernel 7.3.4+deb13-amd64")
        print("BED: step installing QEMU")
    """
    run_script(script, code, tmp_path)
    assert [line.split("] ")[1] for line in said] == ["running apt-get update", "installing QEMU"]
    assert script.kernel == "7.3.4+deb13-amd64"
    assert script.versions == {"linux-image-amd64": "7.3.4-1"}
    assert "Unpacking a" in (tmp_path / "log").read_text()


def test_silence_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    script = build._Script(said.append)
    script.line("I: extracting archives...")
    script.beat()
    assert len(said) == 1
    now = time.monotonic()
    monkeypatch.setattr(build.time, "monotonic", lambda: now + build._BEAT_S + 1)
    script.line("Unpacking libc6")
    script.beat()
    assert said[1].endswith("still extracting archives: Unpacking libc6")


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (
            "print('BED: too-old qemu-system-x86 1:9.0 11.1'); raise SystemExit(1)",
            UnavailableError,
            "qemu-system-x86 1:9.0, the bed needs 11.1",
        ),
        (
            "print('E: Failed to fetch http://m/x'); print('after'); raise SystemExit(1)",
            UnavailableError,
            "cannot fetch packages",
        ),
        ("print('E: disk quota'); raise SystemExit(1)", BrokenError, "mmdebstrap failed: E: disk"),
        ("raise SystemExit(3)", BrokenError, "status 3"),
    ],
)
def test_failures_are_one_clear_line(
    tmp_path: Path, code: str, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text) as caught:
        run_script(build._Script(lambda _: None), code, tmp_path)
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


def test_oldest_versions_reach_the_hook(tmp_path: Path) -> None:
    script = build._Script(lambda _: None)
    code = """
        import os
        print("BED: kernel", os.environ["BED_MIN_KERNEL"], os.environ["BED_MIN_QEMU"])
    """
    run_script(script, code, tmp_path)
    assert script.kernel == "7.3 11.1"


def test_mmdebstrap_runs_in_namespaces_of_its_own() -> None:
    sources = debian.make_sources("http://a.example/debian", None)
    argv = build._mmdebstrap_argv(Path("/x/tree"), sources)
    before = argv[: argv.index("mmdebstrap")]
    assert {"unshare", "--mount", "--pid", "--fork", "--kill-child"} <= set(before)
    assert not any("allow-unauthenticated" in word.lower() for word in argv)
