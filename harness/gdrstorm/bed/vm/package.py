"""The running gdrstorm package, staged for the guest's Python.

Copies the package directory into the cache under a name made of its contents and compiles it with
the tree's own Python, at host speed: the guest would spend seconds on it at every boot. Never
changes the package itself.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import gdrstorm
from gdrstorm.bed.vm.image import cache_dir
from gdrstorm.bed.vm.qemu import tree_command
from gdrstorm.errors import BrokenError

_KEEP = 4
_KEEP_S = 24 * 3600.0  # a bed that still runs has touched its copy at boot
_SKIP = shutil.ignore_patterns("__pycache__", "*.pyc", ".mypy_cache", ".ruff_cache")


def package_dir() -> Path:
    """Directory of the package that is running."""
    return Path(gdrstorm.__file__).resolve().parent


def package_key(source: Path) -> str:
    """Digest of every file's name and contents."""
    digest = hashlib.sha256()
    for path in sorted(source.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            data = path.read_bytes()
            digest.update(f"{path.relative_to(source)}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:20]


def stage_package(tree: Path, source: Path | None = None) -> Path:
    """Directory with a compiled copy of the package for the tree's Python.

    Made once per contents.
    """
    source = source or package_dir()
    root = cache_dir() / "bed" / "package"
    root.mkdir(parents=True, exist_ok=True)
    staged = root / package_key(source)
    if not staged.is_dir():
        _make(tree, source, staged)
        _prune(root, staged)
    else:
        os.utime(staged)
    return staged / "gdrstorm"


def _make(tree: Path, source: Path, staged: Path) -> None:
    beside = Path(tempfile.mkdtemp(prefix="making-", dir=staged.parent))
    try:
        beside.chmod(0o755)
        shutil.copytree(source, beside / "gdrstorm", ignore=_SKIP)
        _compile(tree, beside)
        try:
            beside.rename(staged)
        except OSError:  # another bed was faster: its copy is the same
            if not staged.is_dir():
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _compile(tree: Path, directory: Path) -> None:
    # Unchecked: the guest would otherwise stat every source over 9p
    argv = [
        *tree_command(tree, "usr/bin/python3"),
        *("-S", "-m", "compileall", "-q", "-s", str(directory), "-p", "/gdrstorm/lib"),
        *("--invalidation-mode", "unchecked-hash", str(directory / "gdrstorm")),
    ]
    environment = {"PYTHONHOME": str(tree / "usr"), "PATH": os.defpath}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BrokenError(
            f"cannot compile gdrstorm for the guest: {(done.stdout + done.stderr).strip()}"
        )


def _prune(root: Path, keep: Path) -> None:
    """Forget copies that are neither recent nor among the last few."""
    others = sorted((p for p in root.iterdir() if p != keep), key=lambda p: -p.stat().st_mtime)
    for path in others[_KEEP:]:
        if time.time() - path.stat().st_mtime > _KEEP_S:
            shutil.rmtree(path, ignore_errors=True)
