"""The guest gets a copy of the package that is named by its contents."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gdrstorm.bed.vm import package


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(package, "_compile", lambda tree, directory: None)
    root = tmp_path / "gdrstorm"
    (root / "engine/__pycache__").mkdir(parents=True)
    (root / "__init__.py").write_text("x = 1\n")
    (root / "engine/_native.abi3.so").write_bytes(b"\x7fELF")
    (root / "engine/__pycache__/a.cpython-311.pyc").write_bytes(b"old")
    return root


def test_copy_has_the_native_module_and_no_bytecode_of_the_host(source: Path) -> None:
    staged = package.stage_package(Path("/tree"), source)
    assert staged.name == "gdrstorm"
    assert (staged / "engine/_native.abi3.so").read_bytes() == b"\x7fELF"
    assert not list(staged.rglob("*.pyc"))


def test_same_contents_same_copy(source: Path) -> None:
    first = package.stage_package(Path("/tree"), source)
    (source / "engine/__pycache__/b.cpython-311.pyc").touch()
    assert package.stage_package(Path("/tree"), source) == first
    (source / "__init__.py").write_text("x = 2\n")
    second = package.stage_package(Path("/tree"), source)
    assert second != first
    assert (first / "__init__.py").read_text() == "x = 1\n"


def test_a_renamed_file_is_other_contents(source: Path) -> None:
    before = package.package_key(source)
    (source / "__init__.py").rename(source / "other.py")
    assert package.package_key(source) != before


def test_failed_copy_leaves_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(tree: Path, directory: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(package, "_compile", fail)
    with pytest.raises(KeyboardInterrupt):
        package.stage_package(Path("/tree"), source)
    assert not list((package.cache_dir() / "bed/package").iterdir())


def test_old_copies_go_recent_ones_stay(source: Path) -> None:
    root = package.cache_dir() / "bed/package"
    old = []
    for number in range(package._KEEP + 2):
        path = root / f"old{number}"
        path.mkdir(parents=True)
        age = time.time() - package._KEEP_S * (2 if number else 0) - number
        os.utime(path, (age, age))
        old.append(path)
    kept = package.stage_package(Path("/tree"), source).parent
    left = set(root.iterdir())
    assert kept in left and old[0] in left
    assert old[-1] not in left
    assert len(left) == package._KEEP + 1
