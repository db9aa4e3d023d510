"""Collectors give up on a file that blocks, and the manifest notices every change."""

from __future__ import annotations

import os
from pathlib import Path

from gdrstorm.evidence.collect import check_manifest, collect_file, collect_system, write_manifest


def test_a_file_is_copied_under_its_path(tmp_path: Path) -> None:
    source = tmp_path / "a" / "b"
    source.parent.mkdir()
    source.write_text("hello")
    got = collect_file(source, tmp_path / "system")
    assert got.problem == ""
    assert (tmp_path / "system" / got.name).read_text() == "hello"


def test_a_file_that_blocks_is_given_up(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    got = collect_file(fifo, tmp_path / "system", limit_s=0.3)
    assert got.problem == "no answer within 0.3s"


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (got,) = collect_system(tmp_path, [tmp_path])
    assert "IsADirectoryError" in got.problem
    assert collect_system(tmp_path, [tmp_path / "none"]) == ()


def test_the_manifest_notices_changes(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text("x")
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "y").write_text("y")
    assert len(write_manifest(tmp_path)) == 2
    assert check_manifest(tmp_path) == ()
    (tmp_path / "journal.jsonl").write_text("z")
    (tmp_path / "system" / "y").unlink()
    assert check_manifest(tmp_path) == ("journal.jsonl was changed", "system/y is missing")
