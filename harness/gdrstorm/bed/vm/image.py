"""Where beds live in the user's cache, and the record of the one that was built.

Reads `bed.json` beside the tree; builds nothing (see build.py). The tree is Debian's, the record
says which kernel and QEMU it got.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec

from gdrstorm.errors import BrokenError, UnavailableError

NAME = "debian13"
RECORD = "bed.json"
VMLINUX = "vmlinux"
SCHEMA = 1


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """What `bed build` made."""

    schema: int
    suite: str
    built: str  # ISO 8601, UTC
    kernel_release: str
    kernel_version: str  # Debian's
    qemu_version: str
    packages: dict[str, str]  # every package of the tree and its version
    sources: tuple[str, ...]


def cache_dir() -> Path:
    """gdrstorm's directory in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "gdrstorm"


def beds_dir() -> Path:
    return cache_dir() / "bed"


def bed_dir() -> Path:
    """The directory of the built bed: `tree/` and its record."""
    return beds_dir() / NAME


def tree_dir() -> Path:
    return bed_dir() / "tree"


def kernel_path(image: Image) -> Path:
    """The uncompressed kernel where the build could make one: it boots faster."""
    plain = bed_dir() / VMLINUX
    return plain if plain.exists() else modules_path(image) / "vmlinuz"


def modules_path(image: Image) -> Path:
    return tree_dir() / "usr/lib/modules" / image.kernel_release


def find_image() -> Image | None:
    """The record of the built bed, None when there is none.

    UnavailableError when it may not be read, BrokenError when it is none.
    """
    path = bed_dir() / RECORD
    try:
        image = msgspec.json.decode(path.read_bytes(), type=Image)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnavailableError(
            f"cannot read {path}: {error.strerror}", "is it the bed of another user?"
        ) from None
    except msgspec.DecodeError as error:
        raise BrokenError(
            f"cannot read {path}: {error}", "try: gdrstorm bed build --rebuild"
        ) from None
    return image if image.schema == SCHEMA else None


def read_image() -> Image:
    """The built bed. UnavailableError when there is none."""
    image = find_image()
    if image is None:
        raise UnavailableError(f"no bed at {bed_dir()}", "try: gdrstorm bed build")
    return image


def open_use_lock(*, exclusive: bool) -> int | None:
    """Descriptor of the lock that running beds share and a rebuild needs alone.

    None when it is taken.
    """
    beds_dir().mkdir(parents=True, exist_ok=True)
    fd = os.open(beds_dir() / f"{NAME}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
