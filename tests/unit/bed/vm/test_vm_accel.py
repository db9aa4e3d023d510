"""KVM is used only after a boot proved it; the proof is remembered and made anew when its subject changes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from test_vm_build import IMAGE

from gdrstorm.bed.vm import accel
from gdrstorm.bed.vm.options import Accel
from gdrstorm.errors import UnavailableError


@pytest.fixture
def boots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Boots that were tried; each says that KVM works."""
    tried: list[str] = []

    def boot(image: object) -> tuple[bool, str]:
        tried.append("boot")
        return True, "the guest reached its init"

    device = tmp_path / "kvm"
    device.touch()
    monkeypatch.setattr(accel, "KVM", device)
    monkeypatch.setattr(accel, "_boot_under_kvm", boot)
    monkeypatch.setattr(accel, "beds_dir", lambda: tmp_path)
    return tried


def test_proof_is_made_once(boots: list[str]) -> None:
    assert accel.choose_accel(IMAGE, Accel.AUTO) is Accel.KVM
    assert accel.choose_accel(IMAGE, Accel.KVM) is Accel.KVM
    assert boots == ["boot"]


def test_new_kernel_or_qemu_is_proven_anew(boots: list[str]) -> None:
    accel.prove_kvm(IMAGE)
    accel.prove_kvm(msgspec.structs.replace(IMAGE, kernel_version="7.4"))
    accel.prove_kvm(msgspec.structs.replace(IMAGE, qemu_version="12"))
    assert len(boots) == 3


def test_unreadable_record_is_made_anew(boots: list[str], tmp_path: Path) -> None:
    accel.prove_kvm(IMAGE)
    (tmp_path / "kvm.json").write_text("{")
    assert accel.prove_kvm(IMAGE).works
    assert len(boots) == 2


def test_tcg_needs_no_proof(boots: list[str]) -> None:
    assert accel.choose_accel(IMAGE, Accel.TCG) is Accel.TCG
    assert boots == []


def test_no_device_means_no_boot(boots: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accel, "KVM", Path("/nonexistent/kvm"))
    assert accel.choose_accel(IMAGE, Accel.AUTO) is Accel.TCG
    with pytest.raises(UnavailableError, match="no /nonexistent/kvm"):
        accel.choose_accel(IMAGE, Accel.KVM)
    assert boots == []


def test_failed_proof_is_remembered_with_its_reason(
    boots: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accel, "_boot_under_kvm", lambda _: (False, "it hung"))
    assert accel.choose_accel(IMAGE, Accel.AUTO) is Accel.TCG
    monkeypatch.setattr(accel, "_boot_under_kvm", lambda _: (True, ""))
    with pytest.raises(UnavailableError, match="it hung"):
        accel.choose_accel(IMAGE, Accel.KVM)


@pytest.mark.parametrize(
    ("script", "works", "reason"),
    [
        ("echo 'gdrstorm: this accelerator works'", True, "reached"),
        ("echo 'KVM internal error' >&2; echo 'EAX=0' >&2; exit 1", False, "KVM internal error"),
        ("exit 3", False, "status 3"),
        ("sleep 60", False, "did not reach its init"),
    ],
)
def test_what_a_boot_proves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, works: bool, reason: str
) -> None:
    busybox = tmp_path / "usr/bin/busybox"
    busybox.parent.mkdir(parents=True)
    busybox.touch()
    monkeypatch.setattr(accel, "tree_dir", lambda: tmp_path)
    monkeypatch.setattr(accel, "LIMIT_S", 1.0 if "sleep" in script else 60.0)
    monkeypatch.setattr(accel.qemu, "proof_argv", lambda *_: ["sh", "-c", script])
    proof = accel._boot_under_kvm(IMAGE)
    assert proof[0] is works and reason in proof[1]
