"""The initramfs of the bed: busybox, /init and the few modules that the root file system needs.

Turns a modules directory (modules.dep, modules.builtin) and a busybox into a cpio archive in the
"newc" format (Documentation/driver-api/early-userspace/buffer-format.rst). The writer and the
resolver are pure.
"""

from __future__ import annotations

import gzip
import lzma
import stat
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from gdrstorm.errors import UnavailableError, UsageError

ROOT_MODULES = ("9pnet_virtio", "9p", "overlay")
# Loaded beside the rest of the boot: under TCG the kernel takes over two seconds for it.
HCA_MODULES = ("mlx5_core",)
_INIT = Path(__file__).parent / "guest" / "init.sh"
_ALIGN = 4


class Entry(NamedTuple):
    """One file of an archive; `mode` includes the file type."""

    name: str
    mode: int
    data: bytes = b""


def cpio_archive(entries: Iterable[Entry]) -> bytes:
    """A newc archive with its trailer.

    Owner root, no times: the same entries give the same bytes.
    """
    out = bytearray()
    number = 0
    for number, entry in enumerate([*entries, Entry("TRAILER!!!", 0)], start=1):
        name = entry.name.encode() + b"\0"
        fields = (number, entry.mode, 0, 0, 1, 0, len(entry.data), 0, 0, 0, 0, len(name), 0)
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + name
        out += bytes(-len(out) % _ALIGN)
        out += entry.data
        out += bytes(-len(out) % _ALIGN)
    return bytes(out)


def module_name(path: str) -> str:
    """`kernel/fs/9p/9p.ko.xz` to `9p`; dashes are underscores, as in /proc/modules."""
    return path.rsplit("/", 1)[-1].split(".ko", 1)[0].replace("-", "_")


def parse_modules_dep(text: str) -> dict[str, tuple[str, ...]]:
    """modules.dep: module name to its files in loading order (dependencies first, itself last)."""
    result = {}
    for line in text.splitlines():
        path, colon, needs = line.partition(":")
        if colon:
            result[module_name(path)] = (*reversed(needs.split()), path)
    return result


def resolve_modules(
    names: Iterable[str], dependencies: Mapping[str, tuple[str, ...]], builtin: frozenset[str]
) -> list[str]:
    """Files to load, in order, each once.

    UsageError when a module is neither there nor built in.
    """
    files: list[str] = []
    for name in names:
        if name not in dependencies and name not in builtin:
            raise UsageError(
                f"kernel has no {name}, neither as a module nor built in",
                "the bed's root needs NET_9P_VIRTIO, 9P_FS and OVERLAY_FS",
            )
        files += [path for path in dependencies.get(name, ()) if path not in files]
    return files


def read_module(path: Path) -> bytes:
    """One module, uncompressed: busybox's insmod takes nothing else."""
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        try:
            return subprocess.run(
                ["zstd", "-dc"], input=data, capture_output=True, check=True
            ).stdout
        except FileNotFoundError:
            raise UnavailableError(f"cannot unpack {path}", "apt-get install zstd") from None
    return data


def read_modules(
    directory: Path | None, names: Iterable[str], *, required: bool = True
) -> list[tuple[str, bytes]]:
    """(file name, contents) in loading order from DIR of lib/modules/RELEASE.

    None without a directory. What is not required is left out where the kernel lacks it.
    """
    if directory is None:
        return []
    dependencies = parse_modules_dep((directory / "modules.dep").read_text())
    builtin_path = directory / "modules.builtin"
    builtin_text = builtin_path.read_text() if builtin_path.exists() else ""
    builtin = frozenset(module_name(line) for line in builtin_text.splitlines())
    if not required:
        names = [name for name in names if name in dependencies]
    files = resolve_modules(names, dependencies, builtin)
    return [(module_name(path) + ".ko", read_module(directory / path)) for path in files]


def build_initramfs(
    busybox: Path,
    modules: Iterable[tuple[str, bytes]],
    background: Iterable[tuple[str, bytes]] = (),
) -> bytes:
    """The whole archive; /init waits for `modules` and for none of `background`."""
    directory, executable = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o755
    first = dict(modules)
    rest = {name: data for name, data in background if name not in first}
    return cpio_archive(
        [
            *(Entry(name, directory) for name in ("bin", "dev", "modules", "proc", "sys")),
            Entry("bin/busybox", executable, busybox.read_bytes()),
            Entry("init", executable, _INIT.read_bytes()),
            _order("modules/order", first),
            _order("modules/background", rest),
            *(
                Entry(f"modules/{name}", stat.S_IFREG | 0o644, data)
                for name, data in (first | rest).items()
            ),
        ]
    )


def _order(name: str, modules: Iterable[str]) -> Entry:
    """A file with a module's name a line, in loading order."""
    return Entry(name, stat.S_IFREG | 0o644, "".join(f"{one}\n" for one in modules).encode())
