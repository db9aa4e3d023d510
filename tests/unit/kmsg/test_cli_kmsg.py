"""`gdrstorm kmsg` as a user calls it: files, standard input, JSON, markers, baselines, following."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
XID = "[  100.000001] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."
FIELDS = {"class", "severity", "device", "code", "title", "count", "first_seq", "lines"}


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "gdrstorm.cli.main", "kmsg", *args]


def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(REPO / "harness")}
    return subprocess.run(
        command(*args),
        input=stdin,
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        check=False,
    )


def test_json_is_one_object_an_event() -> None:
    done = run("-", "--json", stdin=f"{XID}\nusb 1-1: new device\n")
    assert done.returncode == 0, done.stderr
    (event,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert event.keys() >= FIELDS
    assert (event["class"], event["severity"], event["device"], event["code"]) == (
        "xid", "fatal", "0000:9b:00.0", "79",
    )  # fmt: skip
    assert event["lines"] == [XID.partition("] ")[2]]


def test_table_and_clean_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(XID + "\n")
    assert "0000:9b:00.0" in run(str(log)).stdout
    log.write_text("usb 1-1: new device\n")
    done = run(str(log))
    assert (done.returncode, done.stdout) == (0, "no fault found in this log\n")
    assert run(str(log), "--json").stdout == ""


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\xff\xfe\x00garbage\r\n" + XID.encode() + b"\r\n")
    assert json.loads(run(str(log), "--json").stdout)["code"] == "79"


def test_since_marker(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"{XID}\n[  101.0] gdrstorm run 7: begin\n{XID.replace('9b', '9c')}\n")
    (line,) = run(str(log), "--json", "--since", "run 7: begin").stdout.splitlines()
    assert json.loads(line)["device"] == "0000:9c:00.0"


def test_wrong_use(tmp_path: Path) -> None:
    done = run(str(tmp_path / "absent"))
    assert done.returncode == 2
    assert "cannot read" in done.stderr
    assert "ENOENT" in done.stderr


def test_baseline(tmp_path: Path) -> None:
    log, baseline = tmp_path / "log", tmp_path / "baseline"
    log.write_text("eth0: link 5 up\n")
    assert run(str(log), "--record-baseline", str(baseline)).returncode == 0
    log.write_text("eth3: link 9 up\neth3: caught fire\n")
    (line,) = run(str(log), "--json", "--baseline", str(baseline)).stdout.splitlines()
    assert json.loads(line)["lines"] == ["eth3: caught fire"]


def test_follow_tells_at_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("usb 1-1: new device\n")
    env = {**os.environ, "PYTHONPATH": str(REPO / "harness")}
    with subprocess.Popen(
        command(str(log), "--follow", "--json"), stdout=subprocess.PIPE, text=True, env=env
    ) as child:
        try:
            assert child.stdout is not None
            with log.open("a") as out:
                out.write(XID + "\n")
            event = json.loads(child.stdout.readline())
        finally:
            child.terminate()
    assert (event["code"], event["final"]) == ("79", False)


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg cannot be read here")
def test_device_of_this_machine() -> None:
    begin = time.monotonic()
    done = run("--json")
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert json.loads(line).keys() >= FIELDS
    assert time.monotonic() - begin < 60
