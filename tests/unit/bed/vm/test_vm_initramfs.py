"""The cpio archive is what cpio itself reads, and modules come in loading order."""

from __future__ import annotations

import gzip
import lzma
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.bed.vm import initramfs
from gdrstorm.bed.vm.initramfs import Entry
from gdrstorm.errors import UsageError

MODULES_DEP = """\
kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz
kernel/net/9p/9pnet_virtio.ko.xz: kernel/net/9p/9pnet.ko.xz
kernel/net/9p/9pnet.ko.xz:
kernel/fs/netfs/netfs.ko.xz:
kernel/fs/overlayfs/overlay.ko:
kernel/drivers/iommu/virtio-iommu.ko.xz:
"""


def parse_archive(data: bytes) -> list[Entry]:
    """A reader written from the format's description, to check the writer."""
    entries = []
    offset = 0
    while True:
        assert data[offset : offset + 6] == b"070701"
        fields = [int(data[offset + 6 + 8 * n : offset + 14 + 8 * n], 16) for n in range(13)]
        mode, size, name_bytes = fields[1], fields[6], fields[11]
        name = data[offset + 110 : offset + 110 + name_bytes - 1].decode()
        start = (offset + 110 + name_bytes + 3) // 4 * 4
        if name == "TRAILER!!!":
            return entries
        entries.append(Entry(name, mode, data[start : start + size]))
        offset = (start + size + 3) // 4 * 4


NAMES = st.text("abcdefghij/._-", min_size=1, max_size=20)


@given(
    st.lists(st.builds(Entry, NAMES, st.integers(0, 0xFFFF), st.binary(max_size=50)), max_size=6)
)
def test_archive_reads_back(entries: list[Entry]) -> None:
    archive = initramfs.cpio_archive(entries)
    assert len(archive) % 4 == 0
    assert parse_archive(archive) == entries


def test_dependencies_come_first_and_once() -> None:
    dependencies = initramfs.parse_modules_dep(MODULES_DEP)
    files = initramfs.resolve_modules(("9pnet_virtio", "9p", "overlay"), dependencies, frozenset())
    assert [initramfs.module_name(path) for path in files] == [
        "9pnet",
        "9pnet_virtio",
        "netfs",
        "9p",
        "overlay",
    ]


def test_dash_and_underscore_are_one_name() -> None:
    dependencies = initramfs.parse_modules_dep(MODULES_DEP)
    assert initramfs.resolve_modules(["virtio_iommu"], dependencies, frozenset())


def test_built_in_needs_no_file_and_missing_is_refused() -> None:
    assert initramfs.resolve_modules(["9p"], {}, frozenset({"9p"})) == []
    with pytest.raises(UsageError, match="no 9p"):
        initramfs.resolve_modules(["9p"], {}, frozenset())


@pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".xz", lzma.compress), (".gz", gzip.compress)]
)
def test_packed_modules_are_unpacked(tmp_path: Path, suffix: str, pack) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / f"a.ko{suffix}"
    path.write_bytes(pack(b"\x7fELF module"))
    assert initramfs.read_module(path) == b"\x7fELF module"


def test_whole_archive_for_a_modules_directory(tmp_path: Path) -> None:
    (tmp_path / "kernel/fs").mkdir(parents=True)
    (tmp_path / "kernel/fs/overlay.ko").write_bytes(b"overlay code")
    (tmp_path / "modules.dep").write_text("kernel/fs/overlay.ko:\n")
    (tmp_path / "modules.builtin").write_text("kernel/fs/9p/9p.ko\nkernel/net/9p/9pnet_virtio.ko\n")
    busybox = tmp_path / "busybox"
    busybox.write_bytes(b"busybox code")
    modules = initramfs.read_modules(tmp_path, initramfs.ROOT_MODULES)
    archive = {e.name: e for e in parse_archive(initramfs.build_initramfs(busybox, modules))}
    assert archive["modules/order"].data == b"overlay.ko\n"
    assert archive["modules/overlay.ko"].data == b"overlay code"
    assert archive["init"].data.startswith(b"#!/bin/busybox sh\n")
    assert stat.S_ISREG(archive["init"].mode) and archive["init"].mode & 0o111
    assert stat.S_ISDIR(archive["bin"].mode)


def test_a_driver_is_loaded_beside_the_boot_without_what_the_root_loads(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("shared", "overlay", "mlx5_core"):
        (tmp_path / f"a/{name}.ko").write_bytes(name.encode())
    dependencies = "a/shared.ko:\na/overlay.ko: a/shared.ko\na/mlx5_core.ko: a/shared.ko\n"
    (tmp_path / "modules.dep").write_text(dependencies)
    (tmp_path / "busybox").write_bytes(b"busybox code")
    root = initramfs.read_modules(tmp_path, ["overlay"])
    driver = initramfs.read_modules(tmp_path, initramfs.HCA_MODULES, required=False)
    data = initramfs.build_initramfs(tmp_path / "busybox", root, driver)
    archive = {e.name: e for e in parse_archive(data)}
    assert archive["modules/order"].data == b"shared.ko\noverlay.ko\n"
    assert archive["modules/background"].data == b"mlx5_core.ko\n"
    assert archive["modules/mlx5_core.ko"].data == b"mlx5_core"
    assert [e.name for e in parse_archive(data)].count("modules/shared.ko") == 1


def test_a_driver_that_the_kernel_lacks_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "modules.dep").write_text("")
    assert initramfs.read_modules(tmp_path, initramfs.HCA_MODULES, required=False) == []


def test_no_modules_directory_means_built_in() -> None:
    assert initramfs.read_modules(None, initramfs.ROOT_MODULES) == []


@pytest.mark.parametrize("script", ["guest/init.sh", "guest/stage2.sh", "build_hook.sh"])
def test_scripts_are_valid_shell(script: str) -> None:
    path = Path(initramfs.__file__).parent / script
    subprocess.run(["sh", "-n", str(path)], check=True)
