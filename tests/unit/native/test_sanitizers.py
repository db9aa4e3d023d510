"""The engine's C tests, compiled with ASan, UBSan and TSan."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[3] / "native"


@pytest.mark.parametrize("sanitizer", ["asan", "ubsan", "tsan"])
def test_engine_is_clean(sanitizer: str) -> None:
    done = subprocess.run(
        ["make", "-C", str(NATIVE), sanitizer],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS: 0 failures" in done.stdout
