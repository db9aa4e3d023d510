"""The shared contract on every back end that this machine has; the fakes are always there.

The real ones are also run inside the VM bed (tests/vm/test_stack.py).
"""

from __future__ import annotations

import os

import contract
import pytest

from gdrstorm.errors import CallError
from gdrstorm.stack import registry

# CUDA and the RM are tested with their own hardware suite.
EXPORTERS = tuple(name for name in registry.exporter_names() if name not in ("cuda", "rm"))
IMPORTERS = tuple(name for name in registry.importer_names() if name != "core")


@pytest.mark.parametrize("name", EXPORTERS)
@pytest.mark.parametrize("check", contract.EXPORTER_CHECKS, ids=lambda check: check.__name__)
def test_exporter(name: str, check: contract.ExporterCheck) -> None:
    support = registry.probe_exporter(name)
    if not support.ok:
        pytest.skip(support.reason)
    check(name)


@pytest.mark.parametrize("name", IMPORTERS)
@pytest.mark.parametrize("check", contract.IMPORTER_CHECKS, ids=lambda check: check.__name__)
def test_importer(name: str, check: contract.ImporterCheck) -> None:
    support = registry.probe_importer(name)
    if not support.ok:
        pytest.skip(support.reason)
    exporter = "fake" if name == "fake" else "udmabuf"
    exporter_support = registry.probe_exporter(exporter)
    if not exporter_support.ok:
        pytest.skip(exporter_support.reason)
    check(name, exporter)


def test_the_contract_sees_a_descriptor_left_open() -> None:
    with pytest.raises(AssertionError, match="left open"), contract.nothing_left():
        fd = os.memfd_create("left", 0)
    os.close(fd)


def test_the_contract_sees_what_is_not_refused() -> None:
    with pytest.raises(AssertionError, match="not refused"), contract.refused(22):
        pass
    with pytest.raises(AssertionError, match="expected"), contract.refused(22):
        raise CallError("x", 9)
