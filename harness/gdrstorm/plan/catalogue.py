"""Names to scenario files: the shipped ones below scenarios/, and any path a user gives."""

from __future__ import annotations

import os
from pathlib import Path

from gdrstorm.errors import UsageError
from gdrstorm.model.scenario import Scenario
from gdrstorm.plan.fields import nearest
from gdrstorm.plan.load import read_scenario


def scenario_dir() -> Path:
    """The directory of shipped scenarios: $GDRSTORM_SCENARIOS, beside the source tree, or inside the package."""
    named = os.environ.get("GDRSTORM_SCENARIOS")
    if named:
        return Path(named)
    package = Path(__file__).resolve().parents[1]
    beside = package.parents[1] / "scenarios"
    return beside if beside.is_dir() else package / "scenarios"


def list_names(directory: Path | None = None) -> list[str]:
    """Names of all scenario files. Raises UsageError when their directory is not there."""
    root = directory or scenario_dir()
    if not root.is_dir():
        raise UsageError(f"no scenarios in {root}: no such directory", "see $GDRSTORM_SCENARIOS")
    return sorted(str(path.relative_to(root).with_suffix("")) for path in root.rglob("*.toml"))


def find_scenario(name: str) -> Scenario:
    """A shipped scenario by name (`storm/deep`), or a file by path. Raises UsageError when there is neither."""
    shipped = scenario_dir() / f"{name}.toml"
    path = Path(name)
    try:
        if shipped.is_file():
            return read_scenario(shipped, name)
        if path.suffix == ".toml" or path.exists():
            return read_scenario(path)
    except OSError as error:  # a name that is too long, a directory that may not be searched
        raise UsageError(
            f"cannot read scenario {name[:80]}: {error.strerror}", "gdrstorm list shows all"
        ) from None
    known = list_names()
    raise UsageError(
        f'no scenario "{name}"{nearest(name, known)}',
        "gdrstorm list shows all; a path to a .toml file works too",
    )
