"""Loaded modules against their files on disk: version, srcversion, hash, signer, vermagic, holders.

The loaded side comes from /proc/modules and /sys/module, the file side from the .modinfo section of
the ELF file that modules.dep names (xz, gz and zst are unpacked). A file that differs from what is
loaded is the classic way to test yesterday's driver.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import re
import struct
import zlib
from pathlib import Path

import msgspec

from gdrstorm.host.sysfs import read_bytes, read_names, read_text
from gdrstorm.host.zstd import decompress_zstd
from gdrstorm.model.inventory import Module, Probe, Unknown, Why, known, unknown

# Whose files matter for this path; of the other modules only the loaded side is read.
_RELEVANT = re.compile(
    r"nvidia\w*|nvidia-\w+|nv_peer_mem|gdrdrv|mlx5\w*|mlx_compat|ib_\w+|rdma_\w+|irdma|bnxt_re|efa|"
    r"vfio\w*|iommufd|udmabuf|virtio_iommu|vgem"
)
_MAX_MODULE_BYTES = 256 << 20
_SIGNATURE_MARK = b"~Module signature appended~\n"
# ASN.1 OID 2.5.4.3 (commonName) with its tag, as it appears in a PKCS#7 issuer.
_COMMON_NAME = b"\x06\x03\x55\x04\x03"


class FileInfo(msgspec.Struct, frozen=True):
    """What the file on disk says."""

    path: Probe[str]
    srcversion: Probe[str]
    sha256: Probe[str]
    signer: Probe[str]
    vermagic: Probe[str]


def parse_proc_modules(text: str) -> dict[str, tuple[int, tuple[str, ...]]]:
    """(reference count, users) by module name."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 4 and words[2].lstrip("-").isdigit():
            users = tuple(sorted(u for u in words[3].split(",") if u not in {"", "-"}))
            found[words[0]] = (int(words[2]), users)
    return found


def parse_modules_dep(text: str) -> dict[str, str]:
    """Relative file by module name, dashes as underscores, of a modules.dep."""
    found = {}
    for line in text.splitlines():
        path, colon, _ = line.partition(":")
        if colon:
            name = path.rsplit("/", 1)[-1].split(".ko", 1)[0]
            found[name.replace("-", "_")] = path
    return found


def parse_modinfo(elf: bytes) -> dict[str, str]:
    """Fields of the .modinfo section of a 64-bit little-endian ELF. ValueError when it has none."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * entry) for i in range(count)]
    strings = headers[names_at][4]
    for name, _kind, _flags, _addr, offset, size in headers:
        if elf[strings + name : strings + name + 9] == b".modinfo\0":
            pairs = elf[offset : offset + size].split(b"\0")
            return dict(p.decode("utf-8", "replace").split("=", 1) for p in pairs if b"=" in p)
    raise ValueError("no .modinfo section")


def parse_signer(data: bytes) -> str:
    """Common name in the appended PKCS#7 signature; empty when the file is not signed."""
    if not data.endswith(_SIGNATURE_MARK):
        return ""
    end = len(data) - len(_SIGNATURE_MARK) - 12
    (length,) = struct.unpack_from(">I", data, end + 8)
    signature = data[max(end - length, 0) : end]
    at = signature.find(_COMMON_NAME)
    if at < 0:
        return "unnamed"
    start = at + len(_COMMON_NAME) + 2
    return signature[start : start + signature[start - 1]].decode("utf-8", "replace")


def decompress_module(data: bytes) -> bytes:
    """The ELF bytes of a module file. ValueError when the packing is broken or not known here."""
    try:
        if data[:6] == b"\xfd7zXZ\0":
            return lzma.decompress(data)
        if data[:2] == b"\x1f\x8b":
            return gzip.decompress(data)
    except (lzma.LZMAError, OSError, EOFError, zlib.error) as error:
        raise ValueError(str(error)) from error
    if data[:4] == b"\x28\xb5\x2f\xfd":
        return decompress_zstd(data, _MAX_MODULE_BYTES)
    return data


def unknown_file(reason: Unknown) -> FileInfo:
    return FileInfo(*(Probe(unknown=reason) for _ in range(5)))


def read_file_info(root: Path, relative: str, hash_file: bool) -> FileInfo:
    """The file at `relative` below `root`; the hash is of the file as it lies there."""
    path = "/" + relative
    data = read_bytes(root / relative, _MAX_MODULE_BYTES)
    if data.value is None:
        return unknown_file(data.unknown or Unknown(Why.NO_FILE, path))
    digest = (
        known(hashlib.sha256(data.value).hexdigest())
        if hash_file
        else Probe[str](unknown=Unknown(Why.NOT_ASKED, "hashes were not asked for"))
    )
    try:
        elf = decompress_module(data.value)
        fields = parse_modinfo(elf)
    except (ValueError, struct.error, IndexError) as error:
        no: Probe[str] = unknown(Why.UNREADABLE, f"{path}: {error}")
        return FileInfo(known(path), no, digest, no, no)

    def field(name: str) -> Probe[str]:
        value = fields.get(name)
        return unknown(Why.NO_FILE, f"{name} in {path}") if value is None else known(value)

    signer = known(parse_signer(elf))
    return FileInfo(known(path), field("srcversion"), digest, signer, field("vermagic"))


def _find_file(root: Path, release: str, name: str, dep: dict[str, str]) -> str | None:
    """Path relative to root; /lib/modules may be merged into /usr."""
    relative = dep.get(name)
    if relative is None:
        return None
    if relative.startswith("/"):
        return relative.lstrip("/")
    folders = (f"lib/modules/{release}", f"usr/lib/modules/{release}")
    return next(
        (f"{folder}/{relative}" for folder in folders if (root / folder / relative).exists()),
        f"{folders[0]}/{relative}",
    )


def read_modules(root: Path, release: str, *, hash_files: bool) -> Probe[tuple[Module, ...]]:
    """Every loaded module, sorted by name."""
    table = read_text(root / "proc/modules")
    if table.value is None:
        return Probe(unknown=table.unknown)
    loaded = parse_proc_modules(table.value)
    dep = parse_modules_dep(
        read_text(root / "lib/modules" / release / "modules.dep").value
        or read_text(root / "usr/lib/modules" / release / "modules.dep").get("")
    )
    return known(
        tuple(
            _read_module(
                root, name, loaded[name][0], _file_of(root, release, name, dep, hash_files)
            )
            for name in sorted(loaded)
        )
    )


def _file_of(root: Path, release: str, name: str, dep: dict[str, str], hash_it: bool) -> FileInfo:
    if not _RELEVANT.fullmatch(name):
        return unknown_file(Unknown(Why.NOT_ASKED, "not on this path"))
    relative = _find_file(root, release, name, dep)
    if relative is None:
        return unknown_file(Unknown(Why.NO_FILE, f"{name} in /lib/modules/{release}/modules.dep"))
    return read_file_info(root, relative, hash_it)


def _read_module(root: Path, name: str, refcount: int, file: FileInfo) -> Module:
    folder = root / "sys/module" / name
    return Module(
        name=name,
        version=read_text(folder / "version"),
        srcversion=read_text(folder / "srcversion"),
        path=file.path,
        file_srcversion=file.srcversion,
        sha256=file.sha256,
        signer=file.signer,
        vermagic=file.vermagic,
        refcount=known(refcount),
        holders=read_names(folder / "holders"),
    )
