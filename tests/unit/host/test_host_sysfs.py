"""Small files: a value, or the reason why there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gdrstorm.host.sysfs import (
    read_bytes,
    read_hex,
    read_int,
    read_link_name,
    read_names,
    read_text,
)
from gdrstorm.model.inventory import Why, known


def test_values(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("42\n")
    (tmp_path / "b").write_text("0x1af4\n")
    (tmp_path / "c").write_bytes(b"bad \xff byte\0\n")
    (tmp_path / "l").symlink_to("../drivers/mlx5_core")
    assert read_int(tmp_path / "a") == known(42)
    assert read_int(tmp_path / "b") == known(0x1AF4)
    assert read_hex(tmp_path / "a") == known(0x42)
    assert read_text(tmp_path / "c") == known("bad \ufffd byte")
    assert read_link_name(tmp_path / "l") == known("mlx5_core")
    assert read_names(tmp_path) == known(("a", "b", "c", "l"))
    assert read_bytes(tmp_path / "b", 3) == known(b"0x1")


def test_reasons(tmp_path: Path) -> None:
    (tmp_path / "word").write_text("perhaps\n")
    (tmp_path / "folder").mkdir()
    cases = {
        Why.NO_FILE: [
            read_text(tmp_path / "none"),
            read_names(tmp_path / "word"),
            read_link_name(tmp_path / "none"),
        ],
        Why.UNREADABLE: [
            read_int(tmp_path / "word"),
            read_text(tmp_path / "folder"),
            read_link_name(tmp_path / "word"),
        ],
    }
    for why, probes in cases.items():
        for probe in probes:
            assert probe.value is None and probe.unknown and probe.unknown.why is why
            assert str(tmp_path) in probe.unknown.detail


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_forbidden(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("1")
    (tmp_path / "secret").chmod(0)
    probe = read_text(tmp_path / "secret")
    assert probe.unknown and probe.unknown.why is Why.NO_PERMISSION


def test_forbidden_by_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*_args: object, **_more: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", deny)
    probe = read_text(tmp_path / "secret")
    assert probe.unknown and probe.unknown.why is Why.NO_PERMISSION
