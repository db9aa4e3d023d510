"""Whole runs on the fake back ends, through the command line: each planted failure gets its own verdict."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gdrstorm.engine import Area
from gdrstorm.evidence.journal import read_journal
from gdrstorm.model import journal as j
from gdrstorm.model.plan import StackChoice
from gdrstorm.plan.catalogue import find_scenario
from gdrstorm.plan.resolve import resolve
from gdrstorm.session import run as session_run
from gdrstorm.session import wire, worker
from gdrstorm.session.options import RunOptions, Where
from gdrstorm.verdict import judge

SETTING = Path("/proc/sys/kernel/printk_devkmsg")
CAN_READ_LOG = os.access("/dev/kmsg", os.R_OK | os.W_OK) and os.geteuid() == 0

MARK = f"GDRSTORM_TEST_RUN={os.getpid()}"
os.environ["GDRSTORM_TEST_RUN"] = str(os.getpid())

needs_log = pytest.mark.skipif(
    not CAN_READ_LOG, reason="needs a readable and writable /dev/kmsg (root)"
)


def scenario(
    tmp_path: Path,
    *,
    cycle: str = '["EXPORT", "REG", "DEREG", "CLOSE"]',
    extra: str = "",
    **phase: str,
) -> str:
    keys = {"threads": "2", "count": "200", "cycle": cycle, **phase}
    body = "\n".join(f"{key} = {value}" for key, value in keys.items())
    path = tmp_path / "planted.toml"
    path.write_text(
        f'summary = "x"\ntime_limit = "60s"\ncall_limit = "2s"\n[[phase]]\nname = "storm"\n{body}\n'
        f'[memory]\nsize = "64KiB"\n[expect]\ntail = "200ms"\n{extra}\n'
    )
    return str(path)


def command(tmp_path: Path, *arguments: str, exporter: str = "fake") -> list[str]:
    return [
        *(
            sys.executable,
            "-m",
            "gdrstorm",
            "run",
            "--bed",
            "host",
            "--json",
            "--out",
            str(tmp_path / "runs"),
        ),
        *("--exporter", exporter, "--importer", "fake", "--seed", "7", *arguments),
    ]


def run(tmp_path: Path, *arguments: str, exporter: str = "fake") -> dict[str, Any]:
    done = subprocess.run(
        command(tmp_path, *arguments, exporter=exporter),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    codes = {"PASS": 0, "FAIL": 1, "BROKEN": 3, "SKIP": 4, "LOST": 5}
    assert done.returncode == codes[answer["verdict"]]
    return answer


def children_of_runs() -> list[str]:
    """Processes that this test process started, told by a mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if MARK.encode() in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def test_a_clean_run_passes_with_every_number(tmp_path: Path) -> None:
    answer = run(tmp_path, scenario(tmp_path))
    assert answer["verdict"] == "PASS", answer["reason"]
    assert answer["platform"] == "emulated"
    assert (answer["bed"], answer["exporter"], answer["importer"], answer["seed"]) == (
        "host",
        "fake",
        "fake",
        7,
    )
    assert {name: op["count"] for name, op in answer["operations"].items()} == dict.fromkeys(
        ("EXPORT", "REG", "DEREG", "CLOSE"), 400
    )
    for op in answer["operations"].values():
        assert 0 < op["p50_ns"] <= op["p99_ns"] <= op["p999_ns"] <= op["max_ns"]
    lines = read_journal(Path(answer["run_dir"]))
    assert [type(line) for line in lines[:3]] == [j.Start, j.Machine, j.Planned]
    assert judge(lines).word.value == "PASS"


def test_processes_and_groups_share_one_start(tmp_path: Path) -> None:
    answer = run(tmp_path, scenario(tmp_path, processes="3"))
    assert answer["verdict"] == "PASS", answer["reason"]
    assert answer["operations"]["REG"]["count"] == 3 * 2 * 200


def test_an_unexpected_errno_fails_with_its_name(tmp_path: Path) -> None:
    answer = run(tmp_path, scenario(tmp_path), "--device", "reg=ENOTSUPP/10")
    assert answer["verdict"] == "FAIL"
    assert "REG failed with ENOTSUPP" in answer["reason"]
    assert answer["operations"]["REG"]["errors"] == {"ENOTSUPP": 40}


def test_the_same_errno_expected_passes(tmp_path: Path) -> None:
    extra = '[[expect.error]]\nop = "REG"\nerrno = "ENOTSUPP"\nhow = "must"\n'
    assert (
        run(tmp_path, scenario(tmp_path, extra=extra), "--device", "reg=ENOTSUPP/10")["verdict"]
        == "PASS"
    )
    assert run(tmp_path, scenario(tmp_path, extra=extra))["verdict"] == "FAIL"


def test_a_failing_close_fails(tmp_path: Path) -> None:
    answer = run(tmp_path, scenario(tmp_path), exporter="fake:close=EIO@50")
    assert answer["verdict"] == "FAIL"
    assert "CLOSE failed with EIO" in answer["reason"]


def test_a_leaked_descriptor_is_counted_by_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A storm that leaves two memfds and a socket behind: the buffers are told, the socket is none of ours."""
    kept: list[int] = []

    def leaky_storm(*_: object, **__: object) -> None:
        kept.extend((os.memfd_create("leak"), os.memfd_create("leak")))
        kept.extend(end.detach() for end in socket.socketpair())

    monkeypatch.setattr(worker, "run_storm", leaky_storm)
    plan = resolve(find_scenario("storm/private-buffer"), StackChoice("fake", "fake"), seed=1)
    area = Area.create(4)
    ours, theirs = wire.make_pair()
    wire.send(ours, wire.Job(plan.phases[0].workers[0], area.fd))
    try:
        assert worker.work(theirs) == 0
        replies = [wire.receive_reply(ours), wire.receive_reply(ours)]
    finally:
        for fd in kept:
            os.close(fd)
        area.close()
        ours.close()
        theirs.close()
    assert isinstance(replies[1], wire.StormDone)
    assert sum(replies[1].descriptors_left.values()) == 2
    assert all("memfd" in kind for kind in replies[1].descriptors_left)


def test_a_hung_call_is_found_and_named(tmp_path: Path) -> None:
    answer = run(tmp_path, scenario(tmp_path), "--device", "dereg=hang@100")
    assert answer["verdict"] == "FAIL"
    assert "in DEREG for" in answer["reason"]
    assert not children_of_runs()


def test_a_killed_worker_is_broken_and_named(tmp_path: Path) -> None:
    path = scenario(tmp_path, count="1000000000", threads="1")
    process = subprocess.Popen(
        command(tmp_path, path, "--device", "delay_ns=1000"), stdout=subprocess.PIPE, text=True
    )
    worker = wait_for_worker(tmp_path)
    if os.geteuid() == 0:
        here = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, worker) == here, (
            "a storm runs at the user's priority"
        )
        assert os.getpriority(os.PRIO_PROCESS, process.pid) < here, "its supervisor before it"
    os.kill(worker, signal.SIGKILL)
    answer = json.loads(process.communicate(timeout=60)[0])
    assert answer["verdict"] == "BROKEN"
    assert "SIGKILL" in answer["reason"]


def test_a_crashed_worker_is_broken_and_named(tmp_path: Path) -> None:
    path = scenario(tmp_path, count="1000000000", threads="1")
    process = subprocess.Popen(
        command(tmp_path, path, "--device", "delay_ns=1000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    os.kill(wait_for_worker(tmp_path), signal.SIGSEGV)
    answer = json.loads(process.communicate(timeout=60)[0])
    assert (answer["verdict"], "SIGSEGV" in answer["reason"]) == ("BROKEN", True)


def test_interrupt_ends_in_order(tmp_path: Path) -> None:
    path = scenario(tmp_path, count="1000000000", threads="1")
    process = subprocess.Popen(
        command(tmp_path, path, "--device", "delay_ns=1000"), stdout=subprocess.PIPE, text=True
    )
    wait_for_worker(tmp_path)
    process.send_signal(signal.SIGINT)
    answer = json.loads(process.communicate(timeout=60)[0])
    assert answer["verdict"] == "BROKEN"
    assert "interrupted" in answer["reason"]
    assert answer["operations"]["REG"]["count"] > 0
    assert not children_of_runs()


def wait_for_worker(tmp_path: Path) -> int:
    """The pid of the first worker, once its storm has begun."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for path in (tmp_path / "runs").glob("*/journal.jsonl"):
            text = path.read_text()
            if '"type":"p"' in text:
                lines = [line for line in read_journal(path) if isinstance(line, j.Worker)]
                return lines[0].pid
        time.sleep(0.05)
    raise AssertionError("no worker came up")


@needs_log
def test_a_kernel_warning_during_the_run_fails_it(tmp_path: Path) -> None:
    path = scenario(tmp_path, count="1000000000", threads="1")
    process = subprocess.Popen(
        command(tmp_path, path, "--device", "delay_ns=1000"), stdout=subprocess.PIPE, text=True
    )
    wait_for_worker(tmp_path)
    with Path("/dev/kmsg").open("w") as log:
        log.write("<4>NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, GPU has fallen off the bus.\n")
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    answer = json.loads(process.communicate(timeout=60)[0])
    assert answer["verdict"] == "FAIL"
    assert answer["faults"][0]["class"] == "xid"
    assert answer["faults"][0]["synthetic"]
    assert "synthetic" in answer["reason"]


@needs_log
def test_the_log_setting_is_restored(tmp_path: Path) -> None:
    before = SETTING.read_text()
    run(tmp_path, scenario(tmp_path))
    assert SETTING.read_text() == before


def test_a_supervisor_killed_at_random_moments(tmp_path: Path) -> None:
    """Fifty times: the journal stays readable, the verdict is BROKEN (or the finished one), nothing is left behind."""
    chance = random.Random(20260806)
    path = scenario(tmp_path, count="3000", threads="1")
    setting = SETTING.read_text() if CAN_READ_LOG else ""
    seen = set()
    began = time.monotonic()
    subprocess.run(
        command(tmp_path / "whole", path, "--device", "delay_ns=200000"),
        check=True,
        capture_output=True,
    )
    whole_s = time.monotonic() - began
    for number in range(50):
        out = tmp_path / f"k{number}"
        process = subprocess.Popen(
            command(out, path, "--device", "delay_ns=200000"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(chance.uniform(0.0, whole_s))
        process.kill()
        process.wait()
        wait_until_gone()
        journals = list(out.rglob("journal.jsonl"))
        if not journals or not journals[0].stat().st_size:
            seen.add("nothing")
            continue
        lines = read_journal(journals[0])
        word = judge(lines).word.value
        seen.add(word)
        assert word in ("BROKEN", "PASS"), (number, lines[-3:])
    assert "BROKEN" in seen
    if setting:
        assert SETTING.read_text() == setting


def wait_until_gone() -> None:
    deadline = time.monotonic() + 10
    while children_of_runs():
        assert time.monotonic() < deadline, children_of_runs()
        time.sleep(0.02)


def test_wrong_use_is_one_clear_line_and_exit_2(tmp_path: Path) -> None:
    for arguments in (
        ["storm/depe"],
        [scenario(tmp_path, threads="0")],
        ["storm/deep", "--exporter", "udmabof"],
        ["storm/deep", "--duration", "5 bananas"],
        ["storm/deep", "--bed", "moon"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "gdrstorm", "run", "--out", str(tmp_path / "none"), *arguments],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 2, done
        assert "Traceback" not in done.stderr
        assert done.stderr.startswith("gdrstorm: ")
    assert not (tmp_path / "none").exists()


def test_what_is_not_here_is_a_skip(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gdrstorm", "run", "--bed", "host", "--json", "--out", str(tmp_path),
         "--exporter", "cuda", "--importer", "fake", scenario(tmp_path)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    if answer["verdict"] == "PASS":
        pytest.skip("this machine has a GPU")
    assert (done.returncode, answer["verdict"]) == (4, "SKIP")
    assert "cuda" in answer["reason"]


@pytest.mark.parametrize("when", ["choose_stack", "_tail"])
def test_ctrl_c_outside_of_the_phases_is_an_interrupted_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """While the stack is chosen and in the tail no handler of the run stands: still its own end, never LOST."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = SETTING.read_text() if SETTING.exists() else ""
    monkeypatch.setattr(session_run, when, interrupted)
    options = RunOptions(where=Where.HOST, exporter="fake", importer="fake", seed=7)
    verdict = session_run.run_here(find_scenario(scenario(tmp_path)), options, tmp_path)
    assert (verdict.word.value, "stopped by SIGINT" in verdict.reason) == ("BROKEN", True)
    assert judge(read_journal(tmp_path)) == verdict
    assert (SETTING.read_text() if SETTING.exists() else "") == before
