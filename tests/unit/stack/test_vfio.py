"""What of the VFIO exporter needs no VFIO: its device text, BAR slices, and giving a function back."""

from __future__ import annotations

import errno
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.errors import CallError, UnavailableError
from gdrstorm.stack import vfio_bind
from gdrstorm.stack.descriptor import Descriptor
from gdrstorm.stack.exporter import vfio

PAGE = 4096
BDF = "0000:02:00.0"


def exporter(pages: int) -> vfio.VfioExporter:
    return vfio.VfioExporter(BDF, [Descriptor(-1)], vfio.Region(2, pages * PAGE, 1 << 41, True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [(BDF, (BDF, None)), (f"{BDF}:bar2", (BDF, 2)), ("10000:e1:1f.7:bar0", ("10000:e1:1f.7", 0))],
)
def test_device_text(text: str, expected: tuple[str, int | None]) -> None:
    assert vfio.parse_device(text) == expected


@pytest.mark.parametrize(
    "text", ["", "02:00.0", f"{BDF}:bar6", f"{BDF}:2", f"{BDF} ", "0000:02:00.8", "../x"]
)
def test_bad_device_text(text: str) -> None:
    with pytest.raises(UnavailableError, match="no PCI function"):
        vfio.parse_device(text)


@given(st.lists(st.tuples(st.integers(1, 8), st.booleans()), max_size=60))
def test_slices_never_overlap_and_all_space_comes_back(steps: list[tuple[int, bool]]) -> None:
    bar = exporter(32)
    held: list[vfio.BarMemory] = []
    for pages, free in steps:
        if free and held:
            held.pop(pages % len(held)).close()
            continue
        try:
            held.append(bar.alloc(pages * PAGE))
        except CallError as error:
            assert error.errno == errno.ENOMEM
        used = sorted((m.offset_bytes, m.offset_bytes + m.size_bytes) for m in held)
        assert all(end <= start for (_, end), (start, _) in pairwise(used))
        assert not used or used[-1][1] <= 32 * PAGE
    for memory in held:
        memory.close()
        memory.close()
    assert bar.alloc(32 * PAGE).offset_bytes == 0


@pytest.mark.parametrize("size", [0, -PAGE, 1, PAGE + 1])
def test_slices_are_whole_pages(size: int) -> None:
    with pytest.raises(CallError, match="EINVAL"):
        exporter(4).alloc(size)


@pytest.mark.parametrize(("offset", "size"), [(0, 3 * PAGE), (2 * PAGE, PAGE), (-PAGE, PAGE)])
def test_an_export_stays_inside_its_slice(offset: int, size: int) -> None:
    bar = exporter(8)
    with pytest.raises(CallError, match="EINVAL"):
        bar.export(bar.alloc(2 * PAGE), offset, size)


def test_the_binding_names_region_and_size() -> None:
    assert exporter(8).binding().numbers == (2, 8 * PAGE)


class FakeBus:
    """/sys/bus/pci in a folder: writes to it do what the kernel does."""

    def __init__(self, root: Path, driver: str) -> None:
        self.root = root
        self.writes: list[str] = []
        self.override = ""
        self.takes = True
        for name in ("vfio-pci", "ivshmem"):
            (root / "drivers" / name).mkdir(parents=True)
        (root / "devices" / BDF).mkdir(parents=True)
        self._bind(driver)

    def _bind(self, driver: str) -> None:
        link = self.root / "devices" / BDF / "driver"
        link.unlink(missing_ok=True)
        if driver:
            link.symlink_to(self.root / "drivers" / driver)

    def driver(self, bdf: str) -> str:
        link = self.root / "devices" / bdf / "driver"
        return link.readlink().name if link.is_symlink() else ""

    def write(self, path: Path, text: str) -> None:
        self.writes.append(f"{path.relative_to(self.root)} {text.strip()}".strip())
        if path.name == "driver_override":
            self.override = text.strip()
        elif path.name == "unbind":
            self._bind("")
        elif path.name == "drivers_probe" and self.takes:
            self._bind(self.override)
        elif path.name == "bind":
            self._bind(path.parent.name)


def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str) -> FakeBus:
    fake = FakeBus(tmp_path, driver)
    monkeypatch.setattr(vfio_bind, "_BUS", tmp_path)
    monkeypatch.setattr(vfio_bind, "_write", fake.write)
    monkeypatch.setattr(vfio_bind, "read_pci_driver", fake.driver)
    return fake


@pytest.mark.parametrize("before", ["ivshmem", ""])
def test_a_function_goes_back_to_what_had_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    fake = bus(tmp_path, monkeypatch, before)
    with pytest.raises(KeyError), vfio_bind.bind_vfio(BDF):
        assert fake.driver(BDF) == "vfio-pci"
        raise KeyError
    assert fake.driver(BDF) == before
    assert fake.override == ""


def test_a_function_that_is_bound_already_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = bus(tmp_path, monkeypatch, "vfio-pci")
    with vfio_bind.bind_vfio(BDF):
        pass
    assert fake.writes == [] and fake.driver(BDF) == "vfio-pci"


def test_a_function_that_vfio_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = bus(tmp_path, monkeypatch, "ivshmem")
    fake.takes = False
    with pytest.raises(UnavailableError, match="did not take"), vfio_bind.bind_vfio(BDF):
        pass
    assert fake.driver(BDF) == "ivshmem" and fake.override == ""


def test_no_such_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bus(tmp_path, monkeypatch, "")
    with (
        pytest.raises(UnavailableError, match="no PCI function"),
        vfio_bind.bind_vfio("0000:09:00.0"),
    ):
        pass


def test_stand_ins_are_only_looked_for_in_the_bed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vfio_bind, "in_bed", lambda: False)
    assert vfio_bind.stand_in_bdfs() == ()
