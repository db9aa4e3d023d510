"""Debian's side of the build: where packages come from, what a tree holds, what a kernel image is.

Parses apt sources (one-line and deb822), dpkg's status file and the bzImage header
(Documentation/arch/x86/boot.rst). Reads the host's apt configuration; never changes it.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gdrstorm.errors import UsageError

SUITE = "trixie"
BACKPORTS = "trixie-backports"
DEFAULT_MIRROR = "http://deb.debian.org/debian"
DEFAULT_SECURITY = "http://deb.debian.org/debian-security"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

_APT = Path("/etc/apt")
_PROXY = re.compile(r'Acquire::(?:https?|ftp)::(?:Proxy|CaInfo|Verify-|Timeout)\S* "[^"]+";')
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_PT_NOTE = 4
_XEN_ELFNOTE_PHYS32_ENTRY = 18  # include/xen/interface/elfnote.h


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """The mirror and the lines for apt."""

    mirror: str
    lines: tuple[str, ...]


def parse_one_line(text: str) -> Iterator[str]:
    """URIs of the `deb` lines of a sources.list."""
    for line in text.splitlines():
        words = re.sub(r"\[[^]]*\]", "", line.split("#", 1)[0]).split()
        if len(words) >= 3 and words[0] == "deb":
            yield words[1]


def parse_deb822(text: str) -> Iterator[str]:
    """URIs of the enabled stanzas with `Types: deb` of a .sources file."""
    for stanza in re.split(r"\n\s*\n", text):
        fields = {}
        for line in stanza.splitlines():
            name, colon, value = line.partition(":")
            if colon and not line.startswith(("#", " ", "\t")):
                fields[name.strip().lower()] = value.split()
        if "deb" in fields.get("types", []) and fields.get("enabled") != ["no"]:
            yield from fields.get("uris", [])


def choose_mirrors(uris: list[str]) -> tuple[str, str | None]:
    """(archive, security) that a host with these URIs should use.

    Debian's own when it names none.
    """
    clean = [uri.rstrip("/") for uri in uris if uri.startswith(("http://", "https://", "file:"))]
    archive = next((uri for uri in clean if uri.endswith("/debian")), None)
    security = next((uri for uri in clean if uri.endswith("/debian-security")), None)
    if archive is None:
        return DEFAULT_MIRROR, DEFAULT_SECURITY
    return archive, security


def make_sources(archive: str, security: str | None) -> Sources:
    """Lines for apt, all verified with Debian's keyring."""
    signed = f"deb [signed-by={KEYRING}]"
    lines = [f"{signed} {archive} {SUITE} main", f"{signed} {archive} {BACKPORTS} main"]
    if security:
        lines.append(f"{signed} {security} {SUITE}-security main")
    return Sources(mirror=archive, lines=tuple(lines))


def read_sources(mirror: str | None = None) -> Sources:
    """Sources from the host's apt configuration, or from the mirror that was named."""
    if mirror is not None:
        if not re.match(r"(https?://|file:/)\S+$", mirror):
            raise UsageError(f"mirror {mirror!r} is no http, https or file URL")
        return make_sources(mirror.rstrip("/"), None)
    uris: list[str] = []
    for path in [_APT / "sources.list", *sorted((_APT / "sources.list.d").glob("*"))]:
        if path.suffix in (".list", ".sources") and path.is_file():
            text = path.read_text(errors="replace")
            uris += parse_deb822(text) if path.suffix == ".sources" else parse_one_line(text)
    return make_sources(*choose_mirrors(uris))


def read_proxy_options() -> list[str]:
    """The host's apt options that say how to reach a mirror.

    The environment's proxies need none.
    """
    try:
        done = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return [line for line in done.stdout.splitlines() if _PROXY.match(line)]


def parse_status(text: str) -> dict[str, str]:
    """dpkg's status file: installed packages to versions."""
    packages = {}
    for stanza in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version): (.*)$", stanza, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            packages[fields["Package"]] = fields["Version"]
    return packages


def read_packages(tree: Path) -> dict[str, str]:
    return parse_status((tree / "var/lib/dpkg/status").read_text())


def parse_bzimage_payload(data: bytes) -> bytes | None:
    """The compressed kernel inside a bzImage when it is zstd's, else None."""
    if len(data) < 0x250 or data[0x202:0x206] != b"HdrS":
        return None
    setup_sectors = data[0x1F1] or 4
    offset, length = struct.unpack_from("<II", data, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    # the last four bytes are the unpacked size, which is no part of the zstd stream
    payload = data[start : start + length - 4]
    return payload if payload.startswith(_ZSTD_MAGIC) else None


def is_pvh_kernel(elf: bytes) -> bool:
    """Whether an ELF kernel has the entry point that QEMU's -kernel jumps to (the PVH note)."""
    if elf[:5] != b"\x7fELF\x02":
        return False
    (table,) = struct.unpack_from("<Q", elf, 32)
    entry_bytes, count = struct.unpack_from("<HH", elf, 54)
    for number in range(count):
        kind, _, offset, _, _, size = struct.unpack_from(
            "<IIQQQQ", elf, table + number * entry_bytes
        )
        if kind == _PT_NOTE and _has_note(elf[offset : offset + size]):
            return True
    return False


def _has_note(notes: bytes) -> bool:
    offset = 0
    while offset + 12 <= len(notes):
        name_bytes, data_bytes, kind = struct.unpack_from("<III", notes, offset)
        name = notes[offset + 12 : offset + 12 + name_bytes].rstrip(b"\0")
        if name == b"Xen" and kind == _XEN_ELFNOTE_PHYS32_ENTRY:
            return True
        offset += 12 + (name_bytes + 3) // 4 * 4 + (data_bytes + 3) // 4 * 4
    return False
