"""Builds the bed's Debian tree with mmdebstrap: signed packages only, beside its place, renamed at
the end.

Turns the host's apt configuration (mirror, proxies) into a tree with a kernel and a QEMU from
backports and a record of every version. mmdebstrap runs in mount and process namespaces of its own:
whatever interrupts it leaves no mount and no process behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import fcntl
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from gdrstorm.bed.vm import debian, image, initramfs
from gdrstorm.bed.vm.accel import LIMIT_S, prove_kvm
from gdrstorm.bed.vm.qemu import tree_command, tree_environment
from gdrstorm.errors import BrokenError, UnavailableError

Progress = Callable[[str], None]

MIN_KERNEL = (7, 3)
MIN_QEMU = (11, 1)
MIN_FREE_BYTES = 3 << 30
PACKAGES = (
    *("python3", "python3-pyverbs", "python3-typer", "python3-rich", "python3-msgspec"),
    *("python3-cffi-backend", "python3-pyroute2", "python3-jinja2"),
    *("rdma-core", "ibverbs-utils", "ibverbs-providers", "perftest", "rdmacm-utils"),
    *("infiniband-diags", "iproute2", "kmod", "pciutils", "procps", "strace", "zstd"),
    *("gcc", "libc6-dev", "libibverbs-dev", "busybox-static"),
)
UNPACKED_MODULES = (
    *initramfs.ROOT_MODULES,
    *("virtio_iommu", "mlx5_ib", "rdma_rxe", "rdma_ucm", "ib_uverbs", "dummy"),
    *("vfio_iommu_type1", "vfio_pci", "vgem", "aer_inject"),
)
_HOOK = Path(__file__).with_name("build_hook.sh")
_BEAT_S = 4.0
_STOP_GRACE_S = 20.0
_PROBE_S = 60.0
_LOG_TAIL = 8
_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
_DPKG_OPTIONS = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/rdma-core/*",  # pyverbs' own tests
)


def check_host(directory: Path) -> None:
    """UnavailableError naming the first thing that is missing and what to do about it."""
    if platform.machine() != "x86_64":
        raise UnavailableError(f"the bed needs an x86_64 host, this is {platform.machine()}")
    if os.geteuid() != 0:
        raise UnavailableError("building the bed needs root", "try: sudo gdrstorm bed build")
    for program, package in (
        ("mmdebstrap", "mmdebstrap"),
        ("unshare", "util-linux"),
        ("dpkg-deb", "dpkg"),
    ):
        if shutil.which(program) is None:
            raise UnavailableError(f"{program} is not here", f"try: apt-get install {package}")
    if not debian.KEYRING.exists():
        raise UnavailableError(
            f"no {debian.KEYRING}: packages could not be verified",
            "try: apt-get install debian-archive-keyring",
        )
    free = shutil.disk_usage(directory).free
    if free < MIN_FREE_BYTES:
        raise UnavailableError(
            f"{free >> 20} MiB free at {directory}: the bed needs {MIN_FREE_BYTES >> 20} MiB",
            "free some, or set XDG_CACHE_HOME to a larger disk",
        )


def check_mirror(mirror: str, directory: Path) -> None:
    """UnavailableError when the mirror cannot be reached through the host's apt and its proxies."""
    target = directory / "InRelease"
    url = f"{mirror}/dists/{debian.SUITE}/InRelease"
    argv = ["/usr/lib/apt/apt-helper", "download-file", url, str(target)]
    argv[1:1] = ["-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=20"]
    argv[1:1] = ["-o", "APT::Sandbox::User=root"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_PROBE_S, check=False)
        reason = (done.stderr or done.stdout).strip().splitlines()[-1:] if done.returncode else []
    except subprocess.TimeoutExpired:
        reason = [f"no answer within {_PROBE_S:.0f} s"]
    if reason or not target.exists():
        detail = "".join(reason) or "nothing came"
        raise UnavailableError(
            f"cannot fetch {url}: {detail}",
            "check the network and apt's proxy, or name a mirror: gdrstorm bed build --mirror URL",
        )
    target.unlink()


def build_bed(
    progress: Progress, *, rebuild: bool = False, mirror: str | None = None
) -> tuple[image.Image, bool]:
    """The bed's record, and whether it was built now. UnavailableError, BrokenError."""
    found = image.find_image()
    if found is not None and not rebuild:
        return found, False
    root = image.beds_dir()
    root.mkdir(parents=True, exist_ok=True)
    check_host(root)
    with _building(root) as beside:
        sources = debian.read_sources(mirror)
        progress(f"mirror {sources.mirror}")
        check_mirror(sources.mirror, beside)
        made = _build(beside, sources, progress, root / "build.log")
        _install(beside)
    progress(f"trying KVM, at most {LIMIT_S:.0f} s")
    prove_kvm(made)
    return made, True


@contextlib.contextmanager
def _building(root: Path) -> Iterator[Path]:
    """A directory to build in, alone; removed on any way out, and what earlier builds left too."""
    with (root / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UnavailableError("another build of the bed is running", "wait for it") from None
        for left in root.glob(".building-*"):
            shutil.rmtree(left, ignore_errors=True)
        beside = Path(tempfile.mkdtemp(prefix=".building-", dir=root))
        beside.chmod(0o755)
        try:
            yield beside
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def _build(
    beside: Path, sources: debian.Sources, progress: Progress, log_path: Path
) -> image.Image:
    tree = beside / "tree"
    script = _Script(progress)
    _run_mmdebstrap(_mmdebstrap_argv(tree, sources), script, log_path)
    progress("recording versions")
    packages = debian.read_packages(tree)
    if script.kernel is None:
        raise BrokenError(f"the build did not say which kernel it took: see {log_path}")
    made = image.Image(
        schema=image.SCHEMA,
        suite=debian.SUITE,
        built=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        kernel_release=script.kernel,
        kernel_version=script.versions["linux-image-amd64"],
        qemu_version=packages["qemu-system-x86"],
        packages=packages,
        sources=sources.lines,
    )
    _strip(tree)
    _unpack_modules(tree, script.kernel)
    _write_vmlinux(beside, tree, script.kernel, progress)
    _check_qemu(tree)
    (beside / image.RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=2))
    return made


def _mmdebstrap_argv(tree: Path, sources: debian.Sources) -> list[str]:
    argv = ["mmdebstrap", "--mode=root", "--variant=essential", "--format=directory"]
    argv += [f"--aptopt={option}" for option in debian.read_proxy_options()]
    argv += ['--aptopt=Acquire::Retries "3"', '--aptopt=APT::Install-Recommends "false"']
    argv += [f"--dpkgopt={option}" for option in _DPKG_OPTIONS]
    argv += [f"--include={','.join(PACKAGES)}", f'--customize-hook=sh "{_HOOK}" "$1"']
    argv += [debian.SUITE, str(tree), *sources.lines]
    # --kill-child and the death signal: nothing of it outlives this process
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *argv]


class _Script:
    """Follows the output of mmdebstrap: what it does now, which versions it took."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._began = time.monotonic()
        self._said = self._began
        self._step = "starting"
        self.kernel: str | None = None
        self.versions: dict[str, str] = {}
        self.too_old: str | None = None
        self.tail: deque[str] = deque(maxlen=_LOG_TAIL)

    def say(self, text: str) -> None:
        self._said = time.monotonic()
        self._progress(f"[{self._said - self._began:3.0f} s] {text}")

    def beat(self) -> None:
        """Say something when nothing was said for a while."""
        if time.monotonic() - self._said >= _BEAT_S:
            last = self.tail[-1] if self.tail else ""
            detail = "" if last.startswith(("I: ", "BED: ")) else f": {last[:60]}"
            self.say(f"still {self._step}{detail}")

    def line(self, text: str) -> None:
        self.tail.append(text)
        word, _, rest = text.removeprefix("BED: ").partition(" ")
        if text.startswith("I: running --"):
            return
        if text.startswith("I: "):
            self._step = text[3:].rstrip(".")
            self.say(self._step)
        elif not text.startswith("BED: "):
            return
        elif word == "step":
            self._step = rest
            self.say(rest)
        elif word == "kernel":
            self.kernel = rest
        elif word == "version":
            name, _, version = rest.partition(" ")
            self.versions[name] = version
        elif word == "too-old":
            self.too_old = rest


def _run_mmdebstrap(argv: list[str], script: _Script, log_path: Path) -> None:
    libc = ctypes.CDLL(None)
    environment = {
        **os.environ,
        "BED_SUITE": debian.BACKPORTS,
        "BED_MIN_KERNEL": ".".join(map(str, MIN_KERNEL)),
        "BED_MIN_QEMU": ".".join(map(str, MIN_QEMU)),
        "LC_ALL": "C.UTF-8",
    }
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
    )
    done = threading.Event()

    def beat() -> None:
        while not done.wait(1.0):
            script.beat()

    ticker = threading.Thread(target=beat, daemon=True)
    ticker.start()
    try:
        assert process.stdout is not None
        with log_path.open("w") as log:
            for text in process.stdout:
                log.write(text)
                script.line(text.rstrip())
        status = process.wait()
    except BaseException:
        process.kill()
        process.wait(_STOP_GRACE_S)
        raise
    finally:
        done.set()
        ticker.join()
    if status:
        raise _build_error(script, status, log_path)


def _build_error(script: _Script, status: int, log_path: Path) -> UnavailableError | BrokenError:
    if script.too_old:
        package, version, wanted = script.too_old.split(" ")
        return UnavailableError(
            f"{debian.BACKPORTS} has {package} {version}, the bed needs {wanted} or newer",
            "try another mirror: gdrstorm bed build --mirror URL",
        )
    errors = [line for line in script.tail if line.startswith(("E:", "Err:"))]
    text = (errors or list(script.tail) or [f"status {status}"])[0]
    if any(word in text for word in ("Failed to fetch", "Could not", "Unable to connect")):
        return UnavailableError(f"cannot fetch packages: {text}", f"see {log_path}, and try again")
    return BrokenError(f"mmdebstrap failed: {text}", f"see {log_path}")


def _strip(tree: Path) -> None:
    """What the guest never needs; apt's configuration may name proxies."""
    for path in ("var/lib/apt/lists", "var/cache/apt", "etc/apt/apt.conf.d/99mmdebstrap"):
        target = tree / path
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def _unpack_modules(tree: Path, release: str) -> None:
    """Modules that beds load, uncompressed: the guest would spend seconds on it at every boot."""
    directory = tree / "usr/lib/modules" / release
    dependencies = initramfs.parse_modules_dep((directory / "modules.dep").read_text())
    names = [name for name in UNPACKED_MODULES if name in dependencies]
    for path in initramfs.resolve_modules(names, dependencies, frozenset()):
        packed = directory / path
        plain = packed.with_name(packed.name.split(".ko", 1)[0] + ".ko")
        if packed != plain:
            plain.write_bytes(initramfs.read_module(packed))
            packed.unlink()
    _run_depmod(tree, release)


def _run_depmod(tree: Path, release: str) -> None:
    argv = tree_command(tree, "usr/sbin/depmod")
    done = subprocess.run(
        [*argv, "-b", str(tree / "usr"), release], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BrokenError(f"depmod failed: {done.stderr.strip()}")


def _write_vmlinux(beside: Path, tree: Path, release: str, progress: Progress) -> None:
    """The kernel uncompressed, if it boots so: two seconds less at every boot under TCG."""
    progress("unpacking the kernel image")
    payload = debian.parse_bzimage_payload(
        (tree / "usr/lib/modules" / release / "vmlinuz").read_bytes()
    )
    if payload is None:
        return
    done = subprocess.run(
        [*tree_command(tree, "usr/bin/zstd"), "-dc"],
        input=payload,
        capture_output=True,
        check=False,
    )
    if done.returncode == 0 and debian.is_pvh_kernel(done.stdout):
        (beside / image.VMLINUX).write_bytes(done.stdout)


def _check_qemu(tree: Path) -> None:
    """The tree's QEMU must run here."""
    argv = [*tree_command(tree, "usr/bin/qemu-system-x86_64"), "-device", "help"]
    environment = {**os.environ, **tree_environment(tree)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode or "vfio-user-pci" not in done.stdout:
        text = done.stderr.strip() or "it has no vfio-user-pci"
        raise BrokenError(f"the bed's QEMU does not work on this host: {text}")


def _install(beside: Path) -> None:
    """Into its place; an older bed makes room only when nobody uses it."""
    lock = image.open_use_lock(exclusive=True)
    if lock is None:
        raise UnavailableError("a bed is running", "end it, then build again")
    try:
        place = image.bed_dir()
        old = beside.with_name(beside.name + "-old")
        os.sync()
        if place.exists():
            place.rename(old)
        new = beside.with_name(beside.name + "-new")
        beside.rename(new)
        new.rename(place)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        os.close(lock)
