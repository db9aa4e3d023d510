"""What a user asks of one run, as one record; the command line and the guest both make it."""

from __future__ import annotations

import enum

import msgspec


class Where(enum.Enum):
    """The bed a run stands on; auto takes the host when it has what the scenario needs, else the VM bed."""

    AUTO = "auto"
    HOST = "host"
    VM = "vm"


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Empty and None leave the choice to the scenario, then to what is found."""

    where: Where = Where.AUTO
    exporter: str = ""
    exporter_device: str = ""
    importer: str = ""
    device: str = ""
    seed: int | None = None
    duration_ns: int | None = None
    baseline: frozenset[str] = frozenset()
    plants: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
