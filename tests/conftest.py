"""Shared test settings: hypothesis profiles and the switch for tests that need real hardware."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Hardware tests run only when asked for by name: `make test-gpu` sets GDRSTORM_HARDWARE=1."""
    if os.environ.get("GDRSTORM_HARDWARE") == "1":
        return
    skip = pytest.mark.skip(reason="needs real hardware: make test-gpu")
    for item in items:
        if "hardware" in item.keywords:
            item.add_marker(skip)
