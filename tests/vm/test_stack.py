"""The stack inside the VM bed, on the kernel's own drivers: contract, data checks, gates.

One guest for all: virtual ConnectX (mlx5), rxe, vgem and a BAR bound to vfio-pci.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gdrstorm.bed.vm import Bed, BedOptions

pytestmark = pytest.mark.vm

ROOT = Path(__file__).parents[2]
SHARE = "/gdrstorm/share"
ENV = {"PYTHONPATH": "/gdrstorm/lib"}
# TCG on a busy machine is slow; these only end what would never end.
COMMAND_S = 240.0


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    options = BedOptions(
        hca=1,
        rxe=True,
        bars=(16 << 20,),
        load=("vgem",),
        share=ROOT / "tests",
        boot_timeout_s=240,
        hang_s=60,
    )
    with Bed(options, run_dir=tmp_path_factory.mktemp("bed")) as booted:
        yield booted


def ask(bed: Bed, *arguments: str) -> Any:
    """What guest_stack.py said."""
    result = bed.run(
        ["python3", f"{SHARE}/vm/guest_stack.py", *arguments], env=ENV, timeout_s=COMMAND_S
    )
    assert result.status == 0, result.stderr.decode(errors="replace")
    return msgspec.json.decode(result.stdout)


def failures(rows: list[dict[str, Any]]) -> list[str]:
    """Rows that ran and were not answered as expected."""
    return [
        f"{row['path']}: {row['case']}: {row['got']}, not {row['expected']}"
        for row in rows
        if not row["skipped"] and not row["passed"]
    ]


@pytest.mark.parametrize(
    ("exporter", "importer"),
    [
        ("udmabuf", "verbs"),
        ("dmaheap", "prime"),
        ("vfio", "uverbs"),
        ("vfio", "verbs"),
        ("udmabuf", "host-memory"),
    ],
)
def test_contract(bed: Bed, exporter: str, importer: str) -> None:
    argv = ["python3", f"{SHARE}/unit/stack/contract.py", exporter, importer]
    result = bed.run(argv, env=ENV, timeout_s=COMMAND_S)
    output = result.stdout.decode(errors="replace")
    assert result.status == 0, output + result.stderr.decode(errors="replace")
    assert "16 checks, 0 failed" in output


@pytest.mark.parametrize("exporter", ["udmabuf", "dmaheap", "vfio"])
def test_data_goes_both_ways(bed: Bed, exporter: str) -> None:
    said = ask(bed, "verify", exporter, "verbs")
    assert said["check"]["passed"], said
    assert said["importer"]["driver"] == "mlx5_core" and said["importer"]["emulated"], said
    assert said["exporter"]["name"] == exporter


def test_data_control_on_ordinary_memory(bed: Bed) -> None:
    assert ask(bed, "verify", "udmabuf", "host-memory")["check"]["passed"]


def test_bad_input_on_mlx5_by_library_and_by_ioctl(bed: Bed) -> None:
    rows = ask(bed, "gate", "bad-input", "udmabuf", "verbs")
    assert failures(rows) == []
    ran = [(row["path"], row["case"]) for row in rows if not row["skipped"]]
    assert len(ran) > 100 and {path for path, _ in ran} == {"libibverbs", "ioctl"}
    assert ("ioctl", "deregistered twice") in ran


def test_bad_input_on_prime(bed: Bed) -> None:
    rows = ask(bed, "gate", "bad-input", "udmabuf", "prime")
    assert failures(rows) == []
    assert sum(not row["skipped"] for row in rows) == 10


def test_rxe_refuses_dma_bufs(bed: Bed) -> None:
    rows = ask(bed, "gate", "no-dmabuf", "udmabuf", "verbs", "rxe0")
    assert failures(rows) == []
    refused = [row["path"] for row in rows if row["refused"] and row["got"] == "EOPNOTSUPP"]
    assert sorted(refused) == ["ioctl", "ioctl", "libibverbs", "libibverbs"]


def test_mlx5_does_not_pass_for_a_driver_without_dma_bufs(bed: Bed) -> None:
    rows = ask(bed, "gate", "no-dmabuf", "udmabuf", "verbs", "mlx5_0")
    assert len(failures(rows)) == 4


def test_a_revoked_bar_moves_no_data(bed: Bed) -> None:
    said = ask(bed, "revoked")
    assert said["before"] == "ok"
    assert "status 10" in said["transfer"] or "status 4" in said["transfer"], said
    assert "ENODEV" in said["register"], said
    assert said["after"] == "ok"
