"""Directories of dead beds go, those of live ones stay."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdrstorm.bed.vm import workdir
from gdrstorm.bed.vm.supervisor import lock_directory


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gdrt-", dir="/tmp") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


def test_free_lock_means_dead(place: Path) -> None:
    live, dead = workdir.make_workdir(), workdir.make_workdir()
    lock = lock_directory(str(live))
    os.close(lock_directory(str(dead)))
    assert workdir.remove_stale_workdirs() == [dead]
    assert live.exists() and not dead.exists()
    os.close(lock)
    workdir.make_workdir()
    assert not live.exists()


def test_directory_without_lock_is_spared_while_young(place: Path) -> None:
    young = workdir.make_workdir()
    assert workdir.remove_stale_workdirs() == []
    os.utime(young, (0, 0))
    assert workdir.remove_stale_workdirs() == [young]


def test_links_and_others_are_not_touched(place: Path) -> None:
    target = place / "mine"
    target.mkdir()
    link = place / f"{workdir.PREFIX}link"
    link.symlink_to(target)
    os.utime(target, (0, 0))
    assert workdir.remove_stale_workdirs() == []
    assert target.exists()


def test_long_tmpdir_is_avoided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    made = workdir.make_workdir()
    assert len(str(made / "control.sock")) < 108
    made.rmdir()


def test_a_second_lock_is_refused(place: Path) -> None:
    directory = workdir.make_workdir()
    lock = lock_directory(str(directory))
    with pytest.raises(BlockingIOError):
        lock_directory(str(directory))
    os.close(lock)
