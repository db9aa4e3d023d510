"""Mirrors come from the host's apt, versions from dpkg, and a kernel image is taken apart."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from gdrstorm.bed.vm import debian
from gdrstorm.errors import UsageError

ONE_LINE = """\
# deb http://old.example/debian bullseye main
deb [arch=amd64 signed-by=/k.gpg] https://mirror.example/debian/ bookworm main contrib
deb-src https://mirror.example/debian bookworm main
deb https://other.example/node nodistro main
"""
DEB822 = """\
Types: deb deb-src
# a comment
URIs: http://mirror.example/debian
Suites: trixie trixie-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: trixie-security
Components: main

Types: deb
URIs: http://off.example/debian
Suites: sid
Enabled: no
"""


def test_one_line_sources() -> None:
    assert list(debian.parse_one_line(ONE_LINE)) == [
        "https://mirror.example/debian/",
        "https://other.example/node",
    ]


def test_deb822_sources() -> None:
    assert list(debian.parse_deb822(DEB822)) == [
        "http://mirror.example/debian",
        "http://mirror.example/debian-security",
    ]


@pytest.mark.parametrize(
    ("uris", "expected"),
    [
        ([], (debian.DEFAULT_MIRROR, debian.DEFAULT_SECURITY)),
        (["http://a.example/ubuntu"], (debian.DEFAULT_MIRROR, debian.DEFAULT_SECURITY)),
        (["http://a.example/debian/"], ("http://a.example/debian", None)),
        (
            ["http://a.example/debian-security", "http://a.example/debian"],
            ("http://a.example/debian", "http://a.example/debian-security"),
        ),
        (["cdrom:[Debian]/debian", "file:/srv/debian"], ("file:/srv/debian", None)),
    ],
)
def test_mirror_choice(uris: list[str], expected: tuple[str, str | None]) -> None:
    assert debian.choose_mirrors(uris) == expected


def test_every_line_is_verified_with_debians_keyring() -> None:
    sources = debian.make_sources("http://a.example/debian", "http://a.example/debian-security")
    assert len(sources.lines) == 3
    assert all(f"[signed-by={debian.KEYRING}]" in line for line in sources.lines)
    assert not any("trusted" in line for line in sources.lines)


def test_hosts_apt_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("deb http://old.example/ubuntu noble main\n")
    (tmp_path / "sources.list.d/debian.sources").write_text(DEB822)
    (tmp_path / "sources.list.d/off.list.disabled").write_text("deb http://x.example/debian a b\n")
    monkeypatch.setattr(debian, "_APT", tmp_path)
    assert debian.read_sources().mirror == "http://mirror.example/debian"
    assert debian.read_sources("https://b.example/debian/").mirror == "https://b.example/debian"


@pytest.mark.parametrize("mirror", ["ftp://x/debian", "x", "http://a b/debian"])
def test_bad_mirror(mirror: str) -> None:
    with pytest.raises(UsageError, match="mirror"):
        debian.read_sources(mirror)


def test_status_lists_only_what_is_installed() -> None:
    text = (
        "Package: a\nStatus: install ok installed\nVersion: 1:2.3-4\nDescription: x\n Package: no\n\n"
        "Package: b\nStatus: deinstall ok config-files\nVersion: 1\n\n"
    )
    assert debian.parse_status(text) == {"a": "1:2.3-4"}


def bzimage(payload: bytes, magic: bytes = b"HdrS") -> bytes:
    """A boot sector, one setup sector and a payload with its size appended, as the kernel makes it."""
    head = bytearray(2 * 512)
    head[0x1F1] = 1
    head[0x202:0x206] = magic
    body = payload + struct.pack("<I", 99)
    struct.pack_into("<II", head, 0x248, 16, len(body))
    return bytes(head) + bytes(16) + body + b"rest"


def test_payload_of_a_bzimage() -> None:
    zstd = b"\x28\xb5\x2f\xfd compressed"
    assert debian.parse_bzimage_payload(bzimage(zstd)) == zstd
    assert debian.parse_bzimage_payload(bzimage(b"\x1f\x8b gzip")) is None
    assert debian.parse_bzimage_payload(bzimage(zstd, b"nope")) is None
    assert debian.parse_bzimage_payload(b"MZ") is None


def elf(kind: int, name: bytes = b"Xen\0") -> bytes:
    """A 64-bit ELF with one note segment of two notes."""
    note = struct.pack("<III", 4, 5, 6) + b"GNU\0" + b"12345\0\0\0"
    note += struct.pack("<III", len(name), 8, kind) + name + bytes(8)
    head = bytearray(64)
    head[:5] = b"\x7fELF\x02"
    struct.pack_into("<Q", head, 32, 64)
    struct.pack_into("<HH", head, 54, 56, 1)
    segment = struct.pack("<IIQQQQQQ", 4, 0, 120, 0, 0, len(note), len(note), 4)
    return bytes(head) + segment + note


def test_pvh_kernel_is_known_by_its_note() -> None:
    assert debian.is_pvh_kernel(elf(18))
    assert not debian.is_pvh_kernel(elf(6))
    assert not debian.is_pvh_kernel(elf(18, b"GNU\0"))
    assert not debian.is_pvh_kernel(b"MZ" + bytes(200))
