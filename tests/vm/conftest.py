"""One bed for all tests that only use it; tests that end a bed boot their own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gdrstorm.bed.vm import Bed, BedOptions, find_image


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a bed (or root) the tests here are skipped, each with the reason."""
    reason = None
    if os.geteuid() != 0:
        reason = "the VM bed's tree is root's: run as root"
    elif find_image() is None:
        reason = "no bed: gdrstorm bed build"
    if reason:
        for item in items:
            if "vm" in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """A virtual ConnectX with RoCE, rxe0 and one 64 MiB BAR on vfio-pci; boots once."""
    options = BedOptions(hca=1, rxe=True, bars=(64 << 20,), aer=True, edu=True)
    with Bed(options, run_dir=tmp_path_factory.mktemp("bed")) as made:
        yield made
