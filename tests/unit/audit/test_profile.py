"""Kernel stacks to the function that threads wait in."""

from __future__ import annotations

import os
from pathlib import Path

from gdrstorm.audit.profile import Sampler, find_place, parse_stack, read_stacks, summarise

# /proc/PID/task/TID/stack of an exporting thread, Linux 6.18, driver 580
BLOCKED = """\
[<0>] os_acquire_rwlock_write+0x35/0x50 [nvidia]
[<0>] _nv049871rm+0x10/0x20 [nvidia]
[<0>] rmapiLockAcquire+0x1a2/0x390 [nvidia]
[<0>] rm_dma_buf_get_client_and_device+0x9a/0x1d0 [nvidia]
[<0>] nv_dma_buf_export+0x1c4/0x7a0 [nvidia]
[<0>] nvidia_unlocked_ioctl+0x21/0x30 [nvidia]
[<0>] __x64_sys_ioctl+0x97/0xd0
"""


def test_stack_is_read_without_offsets_and_modules() -> None:
    stack = parse_stack(BLOCKED)
    assert stack[0] == "os_acquire_rwlock_write"
    assert stack[2] == "rmapiLockAcquire"
    assert parse_stack("") == ()


def test_place_is_past_the_primitives() -> None:
    plain = ("os_acquire_rwlock_write", "rmapiLockAcquire", "rm_dma_buf_get_client_and_device")
    assert find_place(plain) == ("rmapiLockAcquire", "rm_dma_buf_get_client_and_device")
    assert find_place(("schedule", "rwsem_down_read_slowpath")) == ("schedule", "")
    assert find_place(("uverbs_destroy",)) == ("uverbs_destroy", "")


def test_summary_names_the_lock_and_its_share() -> None:
    lock = ("os_acquire_rwlock_write", "rmapiLockAcquire", "rm_dma_buf_undup_mem_handle")
    other = ("down_write", "nvidia_dev_get", "nv_dma_buf_export")
    profile = summarise([lock] * 94 + [other] * 6 + [()] * 50, rounds=10)
    assert profile.taken == 100
    assert profile.summary == (
        "94 % of 100 blocked stacks are in rmapiLockAcquire, "
        "most often from rm_dma_buf_undup_mem_handle"
    )
    assert summarise([], 3).summary == "no blocked stack was seen"


def fake_proc(root: Path, state: str) -> None:
    task = root / "77" / "task" / "78"
    task.mkdir(parents=True)
    (task / "stat").write_text(f"78 (a) b) {state} 1 1")
    (task / "stack").write_text(BLOCKED)


def test_only_sleepers_are_looked_at(tmp_path: Path) -> None:
    fake_proc(tmp_path / "a", "D")
    fake_proc(tmp_path / "b", "R")
    assert next(iter(read_stacks([77, 99], tmp_path / "a")))[2] == "rmapiLockAcquire"
    assert list(read_stacks([77], tmp_path / "b")) == []


def test_sampler_says_why_it_has_nothing() -> None:
    sampler = Sampler()
    profile = sampler.run([os.getpid()], rounds=2, pause_s=0)
    assert profile.rounds in (1, 2)
    if os.geteuid() != 0:
        assert "needs root" in profile.summary
