"""Whether KVM can run this kernel, proven by booting it once and remembered; TCG otherwise.

/dev/kvm that opens and creates vCPUs proves nothing: under a paravirtual hypervisor QEMU then dies
or hangs. The proof is the bed's own kernel reaching its init within a short limit; it is made anew
when kernel, QEMU or host change.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import signal
import subprocess
import tempfile
from pathlib import Path

import msgspec

from gdrstorm.bed.vm import initramfs, qemu
from gdrstorm.bed.vm.image import Image, beds_dir, kernel_path, tree_dir
from gdrstorm.bed.vm.options import Accel
from gdrstorm.errors import UnavailableError

KVM = Path("/dev/kvm")
LIMIT_S = 20.0
_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
_RECORD = "kvm.json"
_PROOF = b"gdrstorm: this accelerator works"


class KvmProof(msgspec.Struct, frozen=True, kw_only=True):
    """What the boot under KVM showed, and on what."""

    works: bool
    reason: str
    about: tuple[str, ...]  # host kernel, host CPU, guest kernel, QEMU


def choose_accel(image: Image, wanted: Accel) -> Accel:
    """KVM or TCG. UnavailableError when KVM was asked for and does not work."""
    if wanted is Accel.TCG:
        return Accel.TCG
    proof = prove_kvm(image)
    if proof.works:
        return Accel.KVM
    if wanted is Accel.KVM:
        raise UnavailableError(f"KVM does not work here: {proof.reason}", "try: --accel tcg")
    return Accel.TCG


def prove_kvm(image: Image) -> KvmProof:
    """The remembered proof, or a new one (a boot of some seconds, at most LIMIT_S)."""
    about = (platform.release(), read_cpu_model(), image.kernel_version, image.qemu_version)
    if not os.access(KVM, os.R_OK | os.W_OK):
        reason = f"cannot open {KVM}" if KVM.exists() else f"no {KVM}"
        return KvmProof(works=False, reason=reason, about=about)
    path = beds_dir() / _RECORD
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one proof for all beds that start now
        found = read_proof(path)
        if found is not None and found.about == about:
            return found
        works, reason = _boot_under_kvm(image)
        proof = KvmProof(works=works, reason=reason, about=about)
        beside = path.with_suffix(".new")
        beside.write_bytes(msgspec.json.encode(proof))
        beside.replace(path)
    return proof


def read_proof(path: Path) -> KvmProof | None:
    """A remembered proof; None when there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=KvmProof)
    except (OSError, msgspec.DecodeError):
        return None


def read_cpu_model() -> str:
    """The host CPU's name in /proc/cpuinfo."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return "unknown"


def _boot_under_kvm(image: Image) -> tuple[bool, str]:
    libc = ctypes.CDLL(None)
    with tempfile.TemporaryDirectory(prefix="gdrstorm-kvm-") as directory:
        path = Path(directory) / "initramfs"
        path.write_bytes(initramfs.build_initramfs(tree_dir() / "usr/bin/busybox", []))
        argv = qemu.proof_argv(tree_dir(), kernel_path(image), path)
        try:
            done = subprocess.run(
                argv,
                env={**os.environ, **qemu.tree_environment(tree_dir())},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=LIMIT_S,
                check=False,
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
            )
        except subprocess.TimeoutExpired:
            return False, f"the guest did not reach its init within {LIMIT_S:.0f} s"
    if _PROOF in done.stdout:
        return True, "the guest reached its init"
    words = done.stderr.decode(errors="replace").strip().splitlines()
    return False, words[0] if words else f"QEMU ended with status {done.returncode}"
