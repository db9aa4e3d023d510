"""The bed's options as they come from a command line: text to typed values, only those that were given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gdrstorm.errors import UsageError


def override_bed(
    *,
    hca: int | None = None,
    bars: Sequence[str] = (),
    link_layer: str = "",
    topology: str = "",
    iommu: str = "",
    domain: str = "",
    smp: int | None = None,
    memory: str = "",
    cpu: str = "",
    accel: str = "",
    kernel: Path | None = None,
    modules: Path | None = None,
    append: str = "",
    timeout: float | None = None,
) -> dict[str, Any]:
    """Fields of BedOptions that the user gave. Raises UsageError with every bad one."""
    from gdrstorm.bed.vm import options as o
    from gdrstorm.plan import fields as f
    from gdrstorm.units import parse_size

    given: dict[str, Any] = {}
    problems = []
    for name, text, kind in (
        ("link_layer", link_layer, o.LinkLayer),
        ("topology", topology, o.Topology),
        ("iommu", iommu, o.Iommu),
        ("domain", domain, o.Domain),
        ("accel", accel, o.Accel),
    ):
        if not text:
            continue
        try:
            given[name] = f.choice(kind)(text)
        except ValueError as error:
            problems.append(f"--{name.replace('_', '-')} {error}")
    try:
        if bars:
            given["bars"] = tuple(parse_size(bar) for bar in bars)
        if memory:
            given["memory_bytes"] = parse_size(memory)
    except ValueError as error:
        problems.append(f"--bar/--memory: {error}")
    if problems:
        raise UsageError("\n".join(problems))
    plain = {"hca": hca, "smp": smp, "kernel": kernel, "modules": modules, "timeout_s": timeout}
    given |= {name: value for name, value in plain.items() if value is not None}
    given |= {name: text for name, text in (("cpu", cpu), ("append", append)) if text}
    return given
