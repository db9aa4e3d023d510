"""The command line with bad input and bad surroundings: one clear line and an exit code, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gdrstorm.cli import main as command_line
from gdrstorm.evidence.journal import read_journal
from gdrstorm.verdict import judge

GOOD = (
    'summary = "x"\ntime_limit = "60s"\n[[phase]]\nname = "storm"\ncount = 20\n'
    'cycle = ["EXPORT", "REG", "DEREG", "CLOSE"]\n[memory]\nsize = "64KiB"\n[expect]\ntail = "0s"\n'
)
GDRSTORM = (sys.executable, "-m", "gdrstorm")


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.toml"
    path.write_text(GOOD)
    return path


def call(*words: str | bytes, cwd: Path, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [*GDRSTORM, *words],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "XDG_CACHE_HOME": str(cwd / "none"), "TMPDIR": str(cwd), **environment},
        timeout=60,
    )
    return done.returncode, done.stdout.decode(errors="replace")


def fake(scenario: Path, *more: str) -> list[str]:
    return [
        "run",
        "--bed",
        "host",
        "--exporter",
        "fake",
        "--importer",
        "fake",
        *more,
        str(scenario),
    ]


def refused(result: tuple[int, str], reason: str, tmp_path: Path) -> None:
    """Exit code 2 with the reason, no crash, and no run was begun."""
    code, text = result
    assert (code, "Traceback" in text) == (2, False), text
    assert reason in text
    assert not (tmp_path / "runs").exists()
    assert not list(tmp_path.glob("gdrstorm-crash-*"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--smp", "0"), "smp=0"),
        (("--memory", "1"), "at least 512MiB"),
        (("--bar", "3"), "power of two"),
        (("--kernel", "/nonexistent"), "not a file"),
        (("--timeout", "nan"), "timeout_s=nan"),
        (("--duration", "9" * 400 + "s"), "not a duration"),
        (("--baseline", "/nonexistent"), "cannot read baseline /nonexistent: No such file"),
    ],
)
def test_bad_options_of_a_bed_run_are_refused_before_anything_is_made(
    tmp_path: Path, good: Path, options: tuple[str, ...], reason: str
) -> None:
    refused(call("run", "--bed", "vm", *options, str(good), cwd=tmp_path), reason, tmp_path)


@pytest.mark.parametrize("name", ["a" * 5000, "a" * 300 + ".toml"])
def test_a_scenario_name_that_is_too_long(tmp_path: Path, name: str) -> None:
    refused(call("run", name, cwd=tmp_path), "File name too long", tmp_path)


def test_an_unknown_gate_table_is_refused_before_the_run(tmp_path: Path, good: Path) -> None:
    good.write_text(
        'summary = "x"\ntime_limit = "9s"\n[[phase]]\ndo = "gate"\ntable = "bad-inpt"\n'
    )
    refused(call(*fake(good), cwd=tmp_path), 'did you mean "bad-input"?', tmp_path)


@pytest.mark.parametrize("device", ["reg=EINVAL/0", "reg=NOPE/1", f"reg=EINVAL/{10**20}"])
def test_a_bad_planted_failure_is_wrong_use_and_its_journal_says_so(
    tmp_path: Path, good: Path, device: str
) -> None:
    code, text = call(*fake(good, "--device", device), cwd=tmp_path)
    assert (code, "Traceback" in text) == (2, False), text
    assert repr(device) in text
    (run,) = (tmp_path / "runs").iterdir()
    verdict = judge(read_journal(run))
    assert (verdict.word.value, "wrong use" in verdict.reason) == ("BROKEN", True)


def test_a_scenario_file_whose_name_is_no_text(tmp_path: Path, good: Path) -> None:
    path = os.fsencode(good.with_name("x")) + b"\xff\n.toml"
    os.rename(good, path)  # noqa: PTH104 - a name of bytes
    code, text = call(*fake(good)[:-1], path, cwd=tmp_path)
    assert (code, "PASS  x__: " in text) == (0, True), text


def test_a_path_that_is_too_long_for_judge(tmp_path: Path) -> None:
    refused(call("judge", "a" * 5000, cwd=tmp_path), "File name too long", tmp_path)


def test_bad_baselines_of_kmsg(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\x90\xff")
    for options, reason in (
        (("--baseline", "binary"), "cannot read baseline binary: not UTF-8"),
        (("--baseline", "none"), "cannot read baseline none: No such file"),
        (("--record-baseline", "none/x"), "cannot write baseline none/x: No such file"),
    ):
        refused(call("kmsg", *options, os.devnull, cwd=tmp_path), reason, tmp_path)


def test_a_log_without_the_marker_is_not_called_clean(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("[1.0] a\n[2.0] begin x\n[3.0] NVRM: Xid (PCI:0000:01:00): 79\n")
    refused(call("kmsg", "--since", "no such", "log", cwd=tmp_path), "marker not found", tmp_path)
    code, text = call("kmsg", "--since", "begin x", "log", cwd=tmp_path)
    assert (code, "xid" in text) == (0, True)
    code, text = call("kmsg", "--since", "Xid", "log", cwd=tmp_path)
    assert (code, text) == (0, "no fault found in this log\n")


@pytest.mark.parametrize("verb", [("list",), ("list", "--json"), ("judge", "run")])
def test_output_that_cannot_be_written_is_neither_pass_nor_fail(
    tmp_path: Path, verb: tuple[str, ...]
) -> None:
    (tmp_path / "run").touch()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*GDRSTORM, *verb], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, timeout=60
        )
    assert done.returncode == 3
    assert done.stderr == b"gdrstorm: cannot write the output: No space left on device\n"
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    done = subprocess.run(
        [*GDRSTORM, *verb], cwd=tmp_path, stdout=write_fd, stderr=subprocess.PIPE, timeout=60
    )
    os.close(write_fd)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(("device", "code"), [("", 0), ("reg=EINVAL/2", 1)])
def test_a_run_whose_reader_went_away_goes_on_and_keeps_its_exit_code(
    tmp_path: Path, good: Path, device: str, code: int
) -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    done = subprocess.run(
        [*GDRSTORM, *fake(good, "--device", device)],
        cwd=tmp_path,
        stdout=write_fd,
        stderr=write_fd,
        timeout=60,
    )
    os.close(write_fd)
    assert done.returncode == code
    (run,) = (tmp_path / "runs").iterdir()
    assert judge(read_journal(run)).word.exit_code == code


def test_a_run_with_closed_standard_descriptors(tmp_path: Path, good: Path) -> None:
    """The journal must not get the number of one of them, and the run ends as any other."""
    line = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *GDRSTORM, *fake(good)]
    assert subprocess.run(line, cwd=tmp_path, timeout=60).returncode == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert judge(read_journal(run)).word.value == "PASS"


def test_a_crash_is_broken_with_its_traceback_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(**_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(command_line, "app", crash)
    monkeypatch.setattr(command_line.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    said = capsys.readouterr().err
    assert ended.value.code == 3
    assert said.startswith("gdrstorm: the harness failed: ZeroDivisionError: planted (")
    (report,) = tmp_path.glob("gdrstorm-crash-*.txt")
    assert str(report) in said
    assert "def crash" not in said and "ZeroDivisionError: planted" in report.read_text()


def test_a_run_on_a_full_disk_says_so_and_puts_everything_back(tmp_path: Path, good: Path) -> None:
    """A file size limit stands for the full disk: the start line fits, what comes later does not."""
    setting = Path("/proc/sys/kernel/printk_devkmsg")
    before = setting.read_text()
    line = ["bash", "-c", 'ulimit -f 2; exec "$@"', "bash", *GDRSTORM, *fake(good)]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
    assert "cannot write journal" in done.stderr and "File too large" in done.stderr
    assert setting.read_text() == before
    (run,) = (tmp_path / "runs").iterdir()
    assert judge(read_journal(run)).word.value != "PASS"


def test_names_that_the_terminal_cannot_write(tmp_path: Path, good: Path) -> None:
    path = good.rename(good.with_name("名.toml"))
    code, text = call(*fake(path), cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert (code, "PASS  \\u540d: " in text) == (0, True), text


def test_a_run_directory_whose_name_is_no_text(tmp_path: Path, good: Path) -> None:
    out = b"out\xff"
    assert call(*fake(good)[:-1], "--json", "--out", out, str(good), cwd=tmp_path)[0] == 0
    (run,) = os.listdir(os.fsencode(tmp_path) + b"/" + out)  # noqa: PTH208 - a name of bytes
    for verb in ("judge", "report"):
        code, text = call(verb, "--json", out + b"/" + run, cwd=tmp_path)
        assert (code, "out\\\\udcff" in text) == (0, True), text


def test_a_bed_that_may_not_be_read_is_not_there(tmp_path: Path) -> None:
    code, text = call("bed", "info", cwd=tmp_path, XDG_CACHE_HOME=os.devnull)
    assert (code, "cannot read /dev/null/gdrstorm" in text) == (4, True), text


def test_a_directory_of_scenarios_that_is_not_there(tmp_path: Path) -> None:
    refused(call("list", cwd=tmp_path, GDRSTORM_SCENARIOS="/none"), "no scenarios in", tmp_path)


def test_json_that_is_too_deep(tmp_path: Path) -> None:
    (tmp_path / "deep").write_text('{"a":' * 100_000 + "\n\n")
    refused(call("judge", "deep", cwd=tmp_path), "cannot read deep line 1", tmp_path)
    refused(call("check", "--from", "deep", cwd=tmp_path), "cannot read inventory", tmp_path)


def test_numbers_in_a_log_that_no_kernel_wrote(tmp_path: Path) -> None:
    many = "9" * 5000
    lines = [f"6,{many},1,-;BUG: a", f"6,1,{many},-;BUG: b", f"[{many}.1] BUG: c"]
    lines += [f"Jan 1 00:00:00 h kernel: message repeated {many} times: [ BUG: d]", "[1.0] BUG: e"]
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    code, text = call("kmsg", "--json", "log", cwd=tmp_path)
    assert (code, "kernel_bug" in text) == (0, True), text[:500]
