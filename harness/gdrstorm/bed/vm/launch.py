"""Starts the processes of one bed: prepares its directory, opens the sockets, hands everything to
the supervisor.

Returns connected sockets and never waits for the guest. All processes but the supervisor are the
supervisor's children; closing its socket ends them.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gdrstorm.bed.vm import initramfs, qemu
from gdrstorm.bed.vm.image import Image, kernel_path, modules_path, tree_dir
from gdrstorm.bed.vm.options import Accel, BedOptions, Iommu
from gdrstorm.bed.vm.package import package_dir, stage_package
from gdrstorm.bed.vm.tsc import measure_tsc_khz
from gdrstorm.bed.vm.workdir import make_workdir

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_MODEL_WAIT_S = 20.0


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process for the supervisor.

    `wait` are paths that must appear before the next is started.
    """

    name: str
    argv: list[str]
    env: dict[str, str]
    log: str
    fds: list[int] = []
    wait: list[str] = []


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """All that the supervisor is told."""

    directory: str
    remove: list[str]
    remove_if_orphaned: list[str]  # when the parent was killed and nobody asks for the logs
    processes: list[Process]
    wait_s: float = _MODEL_WAIT_S


class Sockets(msgspec.Struct, frozen=True, kw_only=True):
    """Our ends."""

    supervisor: socket.socket
    qmp: socket.socket
    agent: socket.socket
    journal: socket.socket

    def close(self) -> None:
        for name in self.__struct_fields__:
            getattr(self, name).close()


class Launched(msgspec.Struct, frozen=True, kw_only=True):
    """A bed whose processes are being started."""

    workdir: Path
    sockets: Sockets
    supervisor: subprocess.Popen[bytes]
    control: Path | None


def console_log(run_dir: Path) -> Path:
    return run_dir / "console.log"


def write_initramfs(image: Image, options: BedOptions, path: Path) -> None:
    """The initramfs for the bed's kernel, or for the user's."""
    directory = options.modules if options.kernel else modules_path(image)
    names = list(initramfs.ROOT_MODULES)
    if options.iommu is Iommu.VIRTIO:
        names.insert(0, "virtio_iommu")  # before the devices that stand behind it
    modules = initramfs.read_modules(directory, names)
    drivers = initramfs.HCA_MODULES if options.hca else ()
    background = initramfs.read_modules(directory, drivers, required=False)
    busybox = tree_dir() / "usr/bin/busybox"
    path.write_bytes(initramfs.build_initramfs(busybox, modules, background))


def launch(
    image: Image, options: BedOptions, accel: Accel, run_dir: Path, *, is_temporary: bool
) -> Launched:
    """Start everything. A temporary run directory goes when this process is killed."""
    package = stage_package(tree_dir())
    workdir = make_workdir()
    sockets_made: list[socket.socket] = []
    try:
        write_initramfs(image, options, workdir / "initramfs")
        pairs = {name: socket.socketpair() for name in Sockets.__struct_fields__}
        sockets_made += [end for pair in pairs.values() for end in pair]
        theirs = {name: pair[1].fileno() for name, pair in pairs.items()}
        spec = Spec(
            directory=str(workdir),
            remove=[str(workdir)],
            remove_if_orphaned=[str(run_dir)] if is_temporary else [],
            processes=list(_processes(image, options, accel, workdir, run_dir, package, theirs)),
        )
        supervisor = _start_supervisor(theirs, run_dir)
        sockets = Sockets(**{name: pair[0] for name, pair in pairs.items()})
        sockets.supervisor.sendall(msgspec.json.encode(spec) + b"\n")
    except BaseException:
        for end in sockets_made:
            end.close()
        shutil.rmtree(workdir, ignore_errors=True)
        raise
    for pair in pairs.values():
        pair[1].close()
    control = _control(workdir) if options.hca else None
    return Launched(workdir=workdir, sockets=sockets, supervisor=supervisor, control=control)


def _control(workdir: Path) -> Path:
    return workdir / "control.sock"


def _processes(
    image: Image,
    options: BedOptions,
    accel: Accel,
    workdir: Path,
    run_dir: Path,
    package: Path,
    fds: dict[str, int],
) -> Iterator[Process]:
    """The device model, where there are HCAs to serve, then QEMU."""
    hcas = tuple(workdir / f"hca{number}.sock" for number in range(options.hca))
    files = qemu.Files(
        tree=tree_dir(),
        kernel=(options.kernel or kernel_path(image)).absolute(),
        initramfs=workdir / "initramfs",
        package=package,
        console_log=console_log(run_dir),
        hca_sockets=hcas,
        tsc_khz=measure_tsc_khz() if accel is Accel.TCG else None,
    )
    if hcas:
        yield _model(options, hcas, _control(workdir), run_dir)
    yield _qemu(options, files, accel, fds, run_dir)


def _model(options: BedOptions, hcas: tuple[Path, ...], control: Path, run_dir: Path) -> Process:
    path = [str(package_dir().parent), os.environ.get("PYTHONPATH", "")]
    return Process(
        name="model",
        argv=qemu.model_argv(sys.executable, hcas, control, options.link_layer),
        env={"PYTHONPATH": os.pathsep.join(filter(None, path)), "PYTHONUNBUFFERED": "1"},
        log=str(run_dir / "model.log"),
        wait=[str(p) for p in (*hcas, control)],
    )


def _qemu(
    options: BedOptions, files: qemu.Files, accel: Accel, fds: dict[str, int], run_dir: Path
) -> Process:
    names = ("qmp", "agent", "journal")
    channels = qemu.Channels(**{name: fds[name] for name in names})
    return Process(
        name="qemu",
        argv=qemu.qemu_argv(options, files, channels, accel),
        env=qemu.tree_environment(files.tree),
        log=str(run_dir / "qemu.log"),
        fds=[fds[name] for name in names],
    )


def _start_supervisor(fds: dict[str, int], run_dir: Path) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-I", "-S", str(_SUPERVISOR), str(fds["supervisor"]), str(os.getpid())]
    with (run_dir / "supervisor.log").open("ab") as log:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=tuple(fds.values()),
            start_new_session=True,  # Ctrl-C is for us: we end the bed in order
        )
