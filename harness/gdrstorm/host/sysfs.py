"""Reads small kernel files and answers a value or the reason why not.

Everything goes through a root directory, so that a captured tree reads like a live machine.
Never writes, never follows a link out of the given root by itself, never raises for a file that is
missing, forbidden or odd.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gdrstorm.model.inventory import Probe, Why, known, unknown

T = TypeVar("T")

# A kernel attribute is one page; a few proc files (config, maps) are longer and read elsewhere.
_MAX_BYTES = 1 << 20


def _reason(error: OSError) -> Why:
    if isinstance(error, PermissionError):
        return Why.NO_PERMISSION
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return Why.NO_FILE
    return Why.UNREADABLE


def _detail(path: Path, error: OSError) -> str:
    # Missing and forbidden speak for themselves; anything else needs its errno text.
    plain = isinstance(error, (PermissionError, FileNotFoundError, NotADirectoryError))
    return str(path) if plain else f"{path}: {error.strerror or error}"


def read_bytes(path: Path, limit: int = _MAX_BYTES) -> Probe[bytes]:
    """Up to `limit` bytes of a file."""
    try:
        with path.open("rb", buffering=0) as file:
            chunks = []
            left = limit
            while left > 0 and (chunk := file.read(left)):
                chunks.append(chunk)
                left -= len(chunk)
    except OSError as error:
        return unknown(_reason(error), _detail(path, error))
    return known(b"".join(chunks))


def read_text(path: Path) -> Probe[str]:
    """A file's text without the blank space around it; odd bytes are replaced."""
    raw = read_bytes(path)
    if raw.value is None:
        return Probe(unknown=raw.unknown)
    return known(raw.value.decode("utf-8", "replace").strip("\n\t \0"))


def read_as(path: Path, convert: Callable[[str], T]) -> Probe[T]:
    """A file's text through `convert`, whose ValueError makes the fact unreadable."""
    text = read_text(path)
    if text.value is None:
        return Probe(unknown=text.unknown)
    try:
        return known(convert(text.value))
    except ValueError:
        return unknown(Why.UNREADABLE, f"{path}: {text.value[:60]!r}")


def read_int(path: Path) -> Probe[int]:
    """A decimal, or 0x hexadecimal, number."""
    return read_as(path, lambda text: int(text, 0) if text[:2] == "0x" else int(text))


def read_hex(path: Path) -> Probe[int]:
    """A hexadecimal number with or without 0x."""
    return read_as(path, lambda text: int(text, 16))


def read_names(path: Path) -> Probe[tuple[str, ...]]:
    """Sorted names in a directory."""
    try:
        return known(tuple(sorted(entry.name for entry in path.iterdir())))
    except OSError as error:
        return unknown(_reason(error), _detail(path, error))


def read_link_name(path: Path) -> Probe[str]:
    """Last part of where a symbolic link points."""
    try:
        return known(path.readlink().name)
    except OSError as error:
        return unknown(_reason(error), _detail(path, error))


def read_value(probe: Probe[str], convert: Callable[[str], T]) -> Probe[T]:
    """`convert` over a text that was read already; ValueError makes it unreadable."""
    if probe.value is None:
        return Probe(unknown=probe.unknown)
    try:
        return known(convert(probe.value))
    except ValueError:
        return unknown(Why.UNREADABLE, repr(probe.value[:60]))
