"""Modules and libraries: the loaded one against the file, the signer, what a process really maps."""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import hashlib
import lzma
import struct
from pathlib import Path

import pytest
from host_trees import RELEASE, Tree
from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.host.libraries import find_mapped, parse_maps, parse_version, read_libraries
from gdrstorm.host.modules import (
    decompress_module,
    parse_modinfo,
    parse_modules_dep,
    parse_proc_modules,
    parse_signer,
    read_modules,
)
from gdrstorm.host.zstd import decompress_zstd
from gdrstorm.model.inventory import Why, known


def make_elf(fields: dict[str, str]) -> bytes:
    """A 64-bit ELF with a .modinfo section and a section name table."""
    info = b"".join(f"{k}={v}".encode() + b"\0" for k, v in fields.items())
    names = b"\0.modinfo\0.shstrtab\0"
    info_at, names_at = 64, 64 + len(info)
    table_at = names_at + len(names)
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", head, 0x28, table_at)
    struct.pack_into("<HHH", head, 0x3A, 64, 3, 2)

    def section(name: int, offset: int, size: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, offset, size, 0, 0, 1, 0)

    table = section(0, 0, 0) + section(1, info_at, len(info)) + section(10, names_at, len(names))
    return bytes(head) + info + names + table


def sign(elf: bytes, name: str) -> bytes:
    """Appends a signature whose issuer has the common name, as scripts/sign-file.c lays it out."""
    pkcs7 = b"\x30\x82junk\x06\x03\x55\x04\x03\x0c" + bytes([len(name)]) + name.encode() + b"tail"
    trailer = struct.pack(">BBBBB3xI", 0, 0, 2, 0, 0, len(pkcs7))
    return elf + pkcs7 + trailer + b"~Module signature appended~\n"


FIELDS = {
    "version": "610.57.04",
    "srcversion": "E3EB66762FE230BFDEFB25D",
    "vermagic": f"{RELEASE} SMP",
}


def test_modinfo() -> None:
    assert parse_modinfo(make_elf(FIELDS)) == FIELDS
    with pytest.raises(ValueError, match="not a 64-bit"):
        parse_modinfo(b"MZ")


@given(st.binary(max_size=200))
def test_broken_elf_files_end_in_a_reason(junk: bytes) -> None:
    with contextlib.suppress(ValueError, struct.error, IndexError):
        parse_modinfo(b"\x7fELF\x02\x01" + junk)


def test_signer() -> None:
    elf = make_elf(FIELDS)
    assert parse_signer(elf) == ""
    assert parse_signer(sign(elf, "Debian Secure Boot CA")) == "Debian Secure Boot CA"


def test_packed_modules() -> None:
    elf = make_elf(FIELDS)
    assert decompress_module(elf) == elf
    assert decompress_module(lzma.compress(elf)) == elf
    assert decompress_module(gzip.compress(elf)) == elf
    with pytest.raises(ValueError):
        decompress_module(b"\xfd7zXZ\0broken")


def compress_zstd(data: bytes) -> bytes:
    lib = ctypes.CDLL("libzstd.so.1")
    lib.ZSTD_compress.restype = ctypes.c_size_t
    target = ctypes.create_string_buffer(len(data) + 1024)
    size = lib.ZSTD_compress(
        target, ctypes.c_size_t(len(target)), data, ctypes.c_size_t(len(data)), 3
    )
    return target.raw[:size]


def test_zstd() -> None:
    try:
        packed = compress_zstd(b"module " * 500)
    except OSError:
        pytest.skip("no libzstd.so.1")
    assert decompress_module(packed) == b"module " * 500
    with pytest.raises(ValueError, match="usable size"):
        decompress_zstd(packed, 100)
    with pytest.raises(ValueError, match="broken"):
        decompress_zstd(packed[:-5], 1 << 20)


def test_proc_modules() -> None:
    text = "mlx5_ib 503808 0 - Live 0x0\nmlx5_core 2617344 1 mlx5_ib, Live 0x0\nnvidia 9 41 a,b, Live 0x0 (OE)\n"
    assert parse_proc_modules(text) == {
        "mlx5_ib": (0, ()),
        "mlx5_core": (1, ("mlx5_ib",)),
        "nvidia": (41, ("a", "b")),
    }


def test_modules_dep() -> None:
    text = "kernel/drivers/net/mlx5_core.ko.xz: a b\nupdates/dkms/nvidia-drm.ko.zst: updates/dkms/nvidia.ko.zst\n"
    assert parse_modules_dep(text) == {
        "mlx5_core": "kernel/drivers/net/mlx5_core.ko.xz",
        "nvidia_drm": "updates/dkms/nvidia-drm.ko.zst",
    }


def make_modules(root: Path, loaded: str) -> bytes:
    tree = Tree(root)
    tree.machine()
    file = lzma.compress(sign(make_elf(FIELDS), "key"))
    tree.write(
        "proc/modules",
        "nvidia 9437184 41 nvidia_uvm, Live 0x0\nloop 1 0 - Live 0x0\nnvidia_uvm 1 0 - Live 0x0\n",
    )
    tree.write("sys/module/nvidia/srcversion", loaded)
    tree.write("sys/module/nvidia/version", "610.57.04")
    tree.write("sys/module/nvidia/holders/nvidia_uvm/x", "")
    tree.write(f"lib/modules/{RELEASE}/modules.dep", "updates/nvidia.ko.xz:\n")
    tree.write(f"lib/modules/{RELEASE}/updates/nvidia.ko.xz", file)
    return file


@pytest.mark.parametrize(("loaded", "stale"), [(FIELDS["srcversion"], False), ("0" * 23, True)])
def test_loaded_against_the_file_on_disk(tmp_path: Path, loaded: str, stale: bool) -> None:
    file = make_modules(tmp_path, loaded)
    found = {m.name: m for m in read_modules(tmp_path, RELEASE, hash_files=True).get(())}
    nvidia = found["nvidia"]
    assert nvidia.is_stale is stale
    assert nvidia.sha256 == known(hashlib.sha256(file).hexdigest())
    assert (nvidia.signer, nvidia.vermagic) == (known("key"), known(f"{RELEASE} SMP"))
    assert (nvidia.refcount, nvidia.holders) == (known(41), known(("nvidia_uvm",)))
    assert found["loop"].path.unknown and found["loop"].path.unknown.why is Why.NOT_ASKED
    assert found["nvidia_uvm"].path.unknown and found["nvidia_uvm"].path.unknown.why is Why.NO_FILE


def test_hashes_are_a_choice(tmp_path: Path) -> None:
    make_modules(tmp_path, "x")
    found = {m.name: m for m in read_modules(tmp_path, RELEASE, hash_files=False).get(())}
    assert found["nvidia"].sha256.unknown and found["nvidia"].file_srcversion.is_known


def test_maps() -> None:
    text = (
        "7f00-7f01 r--p 00000000 08:01 12 /usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0\n"
        "7f01-7f02 r-xp 00000000 08:01 12 /usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0\n"
        "7f02-7f03 rw-p 00000000 00:00 0 \n7f03-7f04 r--p 00000000 08:01 13 /opt/a b/libcuda.so.580.159.04\n"
    )
    paths = parse_maps(text)
    assert paths == (
        "/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0",
        "/opt/a b/libcuda.so.580.159.04",
    )
    assert find_mapped(paths, "libcuda.so.1") == "/opt/a b/libcuda.so.580.159.04"
    assert find_mapped(paths, "libmlx5.so.1") is None
    assert parse_version(paths[1]) == "580.159.04"


def test_libraries_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    import gdrstorm.host.libraries as libraries

    monkeypatch.setattr(libraries, "SONAMES", ("libc.so.6", "libsurely-not-here.so.1"))
    libc, missing = read_libraries(hash_files=True)
    path = Path(libc.path.get(""))
    assert path.name.startswith("libc.so") and len(libc.sha256.get("")) == 64
    assert missing.path.unknown and missing.path.unknown.why is Why.NO_LIBRARY
