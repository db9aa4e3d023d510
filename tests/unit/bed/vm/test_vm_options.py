"""Options that cannot work are refused, each with a line that names it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gdrstorm.bed.vm.options import BedOptions, Iommu, Topology, check_options
from gdrstorm.errors import UsageError


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (BedOptions(hca=3), "hca=3"),
        (BedOptions(hca=-1), "hca=-1"),
        (BedOptions(bars=(3 << 20,)), "power of two"),
        (BedOptions(bars=(2048,)), "2KiB"),
        (BedOptions(bars=(1 << 20,) * 5), "5 BARs"),
        (BedOptions(bars=(1 << 20,), iommu=Iommu.NONE), "vfio-pci needs"),
        (BedOptions(smp=0), "smp=0"),
        (BedOptions(memory_bytes=1 << 20), "1MiB"),
        (BedOptions(topology=Topology.SYS, smp=1), "an even --smp"),
        (BedOptions(kernel=Path("/nonexistent")), "/nonexistent"),
        (BedOptions(modules=Path("/lib")), "--kernel too"),
        (BedOptions(share=Path("/nonexistent")), "shared directory"),
        (BedOptions(hang_s=1), "hang_s"),
        (BedOptions(timeout_s=0), "timeout_s=0"),
    ],
)
def test_refused(options: BedOptions, text: str) -> None:
    with pytest.raises(UsageError, match=text) as caught:
        check_options(options)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_modules_directory_must_be_installed(tmp_path: Path) -> None:
    kernel = tmp_path / "bzImage"
    kernel.touch()
    options = BedOptions(kernel=kernel, modules=tmp_path)
    with pytest.raises(UsageError, match=r"modules\.dep"):
        check_options(options)
    (tmp_path / "modules.dep").touch()
    check_options(options)


def test_a_comma_cannot_be_shared(tmp_path: Path) -> None:
    path = tmp_path / "a,b"
    path.mkdir()
    with pytest.raises(UsageError, match="comma"):
        check_options(BedOptions(share=path))


def test_defaults_are_the_recommended_bed() -> None:
    options = BedOptions()
    check_options(options)
    assert (options.cpu, options.iommu, options.domain) == ("EPYC", "intel", "identity")


def test_record_is_frozen() -> None:
    with pytest.raises(AttributeError):
        BedOptions().hca = 2  # type: ignore[misc]
    assert msgspec.structs.replace(BedOptions(), hca=2).hca == 2
