"""Witness: devices that vanish or stop to answer without a word, by sysfs against the start inventory.

A function must be missing in two polls before it is called lost (nodes go for a moment when a driver is
reloaded). Configuration space is only read while the function is awake, so that nothing is woken.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gdrstorm.kmsg.witness.common import EventMaker, entries, read_text
from gdrstorm.model.event import Event, EventClass, Severity, Source

_ALL_FF = b"\xff\xff"


class Presence:
    """PCI functions and RDMA devices that were there at the start."""

    def __init__(
        self,
        bdfs: Iterable[str] = (),
        ibdevs: Iterable[str] = (),
        root: Path = Path("/sys"),
        *,
        read_config: bool = True,
    ) -> None:
        self._pci = root / "bus/pci/devices"
        self._ib = root / "class/infiniband"
        self._wanted = (tuple(bdfs), tuple(ibdevs))
        self._read_config = read_config
        self._missing: dict[Path, int] = {}
        self._silent: set[Path] = set()
        self._bdf_of: dict[Path, str | None] = {}
        self._maker = EventMaker(Source.SYSFS)

    def start(self) -> None:
        """Note what is there. OSError when there is nothing to watch."""
        bdfs, ibdevs = self._wanted
        pci = [self._pci / bdf for bdf in bdfs] if bdfs else entries(self._pci)
        rdma = [self._ib / name for name in ibdevs] if ibdevs else entries(self._ib)
        self._bdf_of = {path: path.name for path in pci if path.exists()}
        for path in rdma:
            if path.exists():
                name = (path / "device").resolve().name
                self._bdf_of[path] = name if ":" in name else None
        self._missing = dict.fromkeys(self._bdf_of, 0)
        if not self._bdf_of:
            raise FileNotFoundError(2, f"no device to watch under {self._pci}")

    def poll(self) -> list[Event]:
        """Devices lost, silent or back since the last call."""
        events: list[Event] = []
        for path, misses in list(self._missing.items()):
            there = path.exists()
            self._missing[path] = 0 if there else misses + 1
            if not there and misses == 1:
                events.append(self._lost(path))
            elif there and misses >= 2:
                events.append(self._back(path))
            elif there and self._read_config and path.parent == self._pci:
                events += self._silence(path)
        return events

    def close(self) -> None:
        """Nothing is held."""
        self._missing.clear()

    def _lost(self, path: Path) -> Event:
        return self._maker.make(
            EventClass.DEVICE_LOST,
            Severity.FATAL,
            "device vanished from sysfs",
            device=self._bdf_of[path],
            code="vanished",
            details={"path": str(path)},
        )

    def _back(self, path: Path) -> Event:
        return self._maker.make(
            EventClass.DEVICE_LOST,
            Severity.INFO,
            "device is back in sysfs",
            device=self._bdf_of[path],
            code="back",
            details={"path": str(path)},
        )

    def _silence(self, path: Path) -> list[Event]:
        """Reads of all ones: the function is on the bus for the kernel only."""
        status = read_text(path / "power/runtime_status")
        if status is None or status.strip() not in {"active", "unsupported"}:
            return []
        try:
            with (path / "config").open("rb", buffering=0) as config:
                vendor = config.read(2)
        except OSError:
            return []
        if vendor != _ALL_FF:
            self._silent.discard(path)
            return []
        if path in self._silent:
            return []
        self._silent.add(path)
        return [
            self._maker.make(
                EventClass.DEVICE_LOST,
                Severity.FATAL,
                "device does not answer: configuration reads as all ones",
                device=path.name,
                code="all-ff",
            )
        ]
