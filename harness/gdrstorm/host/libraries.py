"""The shared libraries a process here would really use: libcuda, libibverbs, the mlx5 provider.

Loads each one the way a program would (dlopen by soname, which initialises no device) and reads
from /proc/self/maps which file that was; inside a container this is what counts, not the package.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from gdrstorm.model.inventory import Library, Probe, Unknown, Why, known, unknown

SONAMES = ("libcuda.so.1", "libnvidia-ml.so.1", "libibverbs.so.1", "libmlx5.so.1")


def parse_maps(text: str) -> tuple[str, ...]:
    """Files mapped into a process, in order and once each, of /proc/PID/maps."""
    seen = dict.fromkeys(line.split(maxsplit=5)[5] for line in text.splitlines() if "/" in line)
    return tuple(path for path in seen if path.startswith("/"))


def find_mapped(paths: Sequence[str], soname: str) -> str | None:
    """The mapped file that serves `soname` (libcuda.so.1 is served by libcuda.so.580.159.04)."""
    stem = soname.split(".so", 1)[0] + ".so"
    return next((p for p in paths if Path(p).name.startswith(stem)), None)


def parse_version(path: str) -> str:
    """Version in the file name. ValueError when the name carries none."""
    match = re.search(r"\.so\.([\d.]+)$", path)
    if not match:
        raise ValueError(path)
    return match[1]


def _hash(path: str) -> Probe[str]:
    try:
        with Path(path).open("rb") as file:
            return known(hashlib.file_digest(file, "sha256").hexdigest())
    except OSError as error:
        return unknown(Why.UNREADABLE, f"{path}: {error.strerror}")


def _read_one(soname: str, hash_it: bool) -> Library:
    try:
        ctypes.CDLL(soname)
    except OSError as error:
        no: Probe[str] = unknown(Why.NO_LIBRARY, str(error))
        return Library(soname, no, no, no)
    mapped = parse_maps(Path("/proc/self/maps").read_text("utf-8", "replace"))
    path = find_mapped(mapped, soname)
    if path is None:
        no = unknown(Why.UNREADABLE, f"{soname} is loaded but not in /proc/self/maps")
        return Library(soname, no, no, no)
    real = os.path.realpath(path)
    try:
        version: Probe[str] = known(parse_version(real))
    except ValueError:
        version = unknown(Why.UNREADABLE, f"no version in {real}")
    digest: Probe[str] = (
        _hash(real)
        if hash_it
        else Probe(unknown=Unknown(Why.NOT_ASKED, "hashes were not asked for"))
    )
    return Library(soname, known(path), version, digest)


def read_libraries(*, hash_files: bool) -> tuple[Library, ...]:
    """One record a soname, in the order of SONAMES; missing ones say so."""
    return tuple(_read_one(soname, hash_files) for soname in SONAMES)
