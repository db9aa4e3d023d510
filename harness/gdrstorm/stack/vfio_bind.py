"""Lends a PCI function to vfio-pci and gives it back to the driver it had.

Destructive: the old driver loses the device. Nothing in stack/ calls this; the session does so for
the bed's own stand-in BARs, and for nothing else. Source: Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gdrstorm.errors import CallError, UnavailableError
from gdrstorm.host.sysfs import read_hex, read_names
from gdrstorm.stack.identity import in_bed, read_pci_driver

_BUS = Path("/sys/bus/pci")
# QEMU's ivshmem-plain: docs/specs/ivshmem-spec. The bed uses its BAR 2 in place of a GPU's BAR 1.
STAND_IN_ID = (0x1AF4, 0x1110)


def stand_in_bdfs() -> tuple[str, ...]:
    """The bed's stand-in functions, sorted; empty outside the bed's guest."""
    if not in_bed():
        return ()
    names = read_names(_BUS / "devices").get(())
    return tuple(bdf for bdf in names if _read_id(bdf) == STAND_IN_ID)


def _read_id(bdf: str) -> tuple[int, int]:
    path = _BUS / "devices" / bdf
    return read_hex(path / "vendor").get(0), read_hex(path / "device").get(0)


@contextmanager
def bind_vfio(bdf: str) -> Iterator[None]:
    """Bind to vfio-pci for the time of the context, then restore driver and override.

    Raises:
        UnavailableError: there is no such function, or vfio-pci does not take it.
        CallError: sysfs refused a write.
    """
    path = _BUS / "devices" / bdf
    if not path.exists():
        raise UnavailableError(f"no PCI function {bdf}")
    before = read_pci_driver(bdf)
    if before == "vfio-pci":
        yield
        return
    _load_vfio_pci()
    try:
        _write(path / "driver_override", "vfio-pci")
        _rebind(bdf)
        if read_pci_driver(bdf) != "vfio-pci":
            raise UnavailableError(
                f"vfio-pci did not take {bdf}", "it needs an IOMMU group; see the kernel log"
            )
        yield
    finally:
        # A newline clears the override; the old driver then probes as at boot.
        _write(path / "driver_override", "\n")
        _unbind(bdf)
        if before:
            _write(_BUS / "drivers" / before / "bind", bdf)


def _load_vfio_pci() -> None:
    if (_BUS / "drivers/vfio-pci").exists():
        return
    done = subprocess.run(
        ["modprobe", "vfio-pci"], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise UnavailableError(f"cannot load vfio-pci: {done.stderr.strip()}")


def _rebind(bdf: str) -> None:
    _unbind(bdf)
    _write(_BUS / "drivers_probe", bdf)


def _unbind(bdf: str) -> None:
    driver = read_pci_driver(bdf)
    if driver:
        _write(_BUS / "drivers" / driver / "unbind", bdf)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        act = f"cannot write {text.strip() or 'newline'} to {path}"
        raise CallError(act, error.errno or 0, "root is needed") from error
