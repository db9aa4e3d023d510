"""Gates and data checks by name, for the session: which function answers for a table, and who can verify data.

A table is a function (exporter, importer) -> results. Tables are imported when they are asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import cast

import msgspec

from gdrstorm.errors import UsageError
from gdrstorm.model.gate import GateResult
from gdrstorm.stack.exporter import Exporter
from gdrstorm.stack.importer import Importer

Table = Callable[[Exporter, Importer], tuple[GateResult, ...]]

_TABLES: Mapping[str, str] = {
    "no-dmabuf": "gdrstorm.stack.gate:run_no_dmabuf",
    "bad-input": "gdrstorm.stack.gate:run_bad_input",
    "core-checks": "gdrstorm.stack.gpu_gate:run_core_gate",
    "force-pcie-default-off": "gdrstorm.stack.gpu_gate:run_force_pcie",
    "rm-bad-input": "gdrstorm.stack.gpu_gate:run_rm_bad_input",
    "gpu-free-before-close": "gdrstorm.stack.gpu_gate:run_free_before_close",
    "exporter-killed-after-passing": "gdrstorm.stack.gpu_gate:run_exporter_killed",
}


class DataCheck(msgspec.Struct, frozen=True):
    """One comparison of bytes: what was compared and how it ended."""

    name: str
    passed: bool
    detail: str


def table_names() -> tuple[str, ...]:
    return tuple(_TABLES)


def run_gate(table: str, exporter: Exporter, importer: Importer) -> tuple[GateResult, ...]:
    """All rows of a table on an opened stack. Raises UsageError for an unknown name."""
    if table not in _TABLES:
        raise UsageError(f"no such gate table: {table!r}", f"there are: {', '.join(_TABLES)}")
    module, _, attribute = _TABLES[table].partition(":")
    run = cast(Table, getattr(importlib.import_module(module), attribute))
    return run(exporter, importer)


def verify_data(exporter: Exporter, importer: Importer) -> DataCheck:
    """RDMA WRITE and READ into a registered buffer, compared byte by byte with guard bytes around it."""
    module = importlib.import_module("gdrstorm.stack.verify")
    return cast(DataCheck, module.verify_data(exporter, importer))
