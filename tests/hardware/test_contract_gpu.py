"""The contract that all back ends share, on GPU memory: exporters cuda and rm, importer core."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gdrstorm.stack import registry
from gdrstorm.stack.exporter.cuda_driver import CUDA_ERROR_INVALID_VALUE, RESULT_BASE
from gdrstorm.uapi.nvidia_status import NV_ERR_INVALID_ARGUMENT, code_of_status

pytestmark = pytest.mark.hardware


def load_contract() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "unit" / "stack" / "contract.py"
    spec = importlib.util.spec_from_file_location("gpu_contract", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_contract"] = module
    spec.loader.exec_module(module)
    return module


contract: Any = load_contract()
#: core needs neither descriptor nor address, so its binding has none
IMPORTER_CHECKS = [c for c in contract.IMPORTER_CHECKS if c.__name__ != "check_importer_binding"]


@pytest.fixture(params=["rm", "cuda"])
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    support = registry.probe_exporter(request.param)
    if not support.ok:
        pytest.skip(support.reason)
    # CUDA hands out parts of larger blocks and checks a range against the block, not the allocation
    monkeypatch.setattr(contract, "SIZE", 8 << 20)
    # these exporters keep the driver's own word instead of an errno
    invalid = (code_of_status(NV_ERR_INVALID_ARGUMENT), RESULT_BASE | CUDA_ERROR_INVALID_VALUE)
    refused = contract.refused
    monkeypatch.setattr(contract, "refused", lambda *errnos: refused(*errnos, *invalid))
    return str(request.param)


@pytest.mark.parametrize("check", contract.EXPORTER_CHECKS, ids=lambda check: check.__name__)
def test_exporter(name: str, check: Any) -> None:
    check(name)


@pytest.mark.parametrize("check", IMPORTER_CHECKS, ids=lambda check: check.__name__)
def test_importer_core(name: str, check: Any) -> None:
    check("core", name)
