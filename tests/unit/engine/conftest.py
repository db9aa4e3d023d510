"""Builds the native module when it is missing, and keeps the fake back ends' counts apart."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MODULE = ROOT / "harness" / "gdrstorm" / "engine" / "_native.abi3.so"


@pytest.fixture(scope="session", autouse=True)
def native_module() -> None:
    if not MODULE.exists():
        subprocess.run([sys.executable, str(ROOT / "native" / "cffi_build.py")], check=True)


@pytest.fixture(autouse=True)
def fake_counts(native_module: None) -> Iterator[None]:
    from gdrstorm.engine.native import load

    load().lib.gs_fake_reset()
    yield
    load().lib.gs_fake_reset()
