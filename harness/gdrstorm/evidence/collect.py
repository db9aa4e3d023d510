"""Files of the system that belong into a run directory, each read with a time limit; and the manifest over all of it.

A file of procfs, sysfs or debugfs may block for ever when the kernel is in trouble: it is read in a process of its own
that is left behind after the limit. What could not be had is listed with the reason.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gdrstorm.errors import BrokenError

MANIFEST = "manifest.json"
#: what helps to read a run later: what was loaded, mapped, interrupted, exported
SYSTEM_FILES = (
    Path("/proc/version"),
    Path("/proc/cmdline"),
    Path("/proc/modules"),
    Path("/proc/interrupts"),
    Path("/proc/meminfo"),
    Path("/proc/iomem"),
    Path("/sys/kernel/debug/dma_buf/bufinfo"),
    Path("/sys/module/udmabuf/parameters/list_limit"),
    Path("/proc/driver/nvidia/version"),
    Path("/proc/driver/nvidia/params"),
)
_READ = "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read(1 << 22))"


class Collected(msgspec.Struct, frozen=True):
    """One file: its name below system/, or why it is not there."""

    source: str
    name: str = ""
    problem: str = ""


class ManifestEntry(msgspec.Struct, frozen=True):
    name: str
    size_bytes: int
    sha256: str


def collect_file(source: Path, directory: Path, limit_s: float = 3.0) -> Collected:
    """Copy one file into `directory`. Never raises; a file that does not answer is given up after `limit_s`."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _READ, str(source)],
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Collected(str(source), problem=f"no answer within {limit_s:g}s")
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        return Collected(str(source), problem=words[-1] if words else f"status {done.returncode}")
    name = str(source).strip("/").replace("/", "-")
    directory.mkdir(exist_ok=True)
    (directory / name).write_bytes(done.stdout)
    return Collected(str(source), name)


def collect_system(run_dir: Path, sources: Sequence[Path] = SYSTEM_FILES) -> tuple[Collected, ...]:
    """All system files that exist, below `run_dir`/system."""
    directory = run_dir / "system"
    return tuple(collect_file(source, directory) for source in sources if source.exists())


def write_manifest(run_dir: Path) -> tuple[ManifestEntry, ...]:
    """Names, sizes and SHA-256 of every file of a run directory, into manifest.json. Raises BrokenError."""
    entries = tuple(
        ManifestEntry(str(path.relative_to(run_dir)), path.stat().st_size, _digest(path))
        for path in sorted(run_dir.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    )
    data = msgspec.json.format(msgspec.json.encode(entries), indent=1)
    try:
        (run_dir / MANIFEST).write_bytes(data + b"\n")
    except OSError as error:
        raise BrokenError(f"cannot write {run_dir / MANIFEST}: {error.strerror}") from None
    return entries


def check_manifest(run_dir: Path) -> tuple[str, ...]:
    """What differs from the manifest, a line each; nothing when all is as it was written."""
    entries = msgspec.json.decode((run_dir / MANIFEST).read_bytes(), type=tuple[ManifestEntry, ...])
    wrong = []
    for entry in entries:
        path = run_dir / entry.name
        if not path.is_file():
            wrong.append(f"{entry.name} is missing")
        elif _digest(path) != entry.sha256:
            wrong.append(f"{entry.name} was changed")
    return tuple(wrong)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
