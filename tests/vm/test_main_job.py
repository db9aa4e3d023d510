"""The main job in the VM bed: shipped scenarios through the unmodified mlx5 driver, and planted failures told apart.

One boot serves all scenarios; a run through the whole command line and a guest that panics have one each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gdrstorm.bed.connectx.control import ControlClient
from gdrstorm.bed.connectx.plant import Mishap, UmrPlant
from gdrstorm.bed.vm import Bed, BedOptions
from gdrstorm.evidence.journal import decode_line
from gdrstorm.model import journal as j
from gdrstorm.model.verdict import Verdict, Word
from gdrstorm.plan.catalogue import find_scenario
from gdrstorm.report.digest import make_digest, operations
from gdrstorm.session.guest import Request, encode_request
from gdrstorm.session.options import RunOptions
from gdrstorm.verdict import judge

pytestmark = pytest.mark.vm

SECONDS = 2


class Guest:
    """A booted bed in which scenarios are run one after the other."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self._lines: list[bytes] = []
        self._runs = 0
        bed.journal(self._lines.append)

    def run(
        self, name: str, call_limit_s: float | None = None, **options: Any
    ) -> tuple[list[j.Line], Verdict]:
        """The journal of a run in the guest, and the verdict on it."""
        self._lines.clear()
        self._runs += 1
        scenario = find_scenario(name)
        if call_limit_s is not None:
            scenario = msgspec.structs.replace(scenario, call_limit_ns=int(call_limit_s * 1e9))
        wanted = RunOptions(duration_ns=SECONDS * 10**9, seed=11, **options)
        request = encode_request(Request(f"run{self._runs}", scenario, wanted))
        done = self.bed.run(
            ["python3", "-m", "gdrstorm.session.guest"], stdin=request, timeout_s=300
        )
        assert self.bed.drain_journal()
        lines = [decode_line(line) for line in self._lines if line.strip()]
        assert isinstance(lines[-1], j.Judged), done.stderr.decode()[-2000:]
        assert judge(lines) == lines[-1].verdict, "the guest and the host judge alike"
        return lines, lines[-1].verdict


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    options = BedOptions(hca=1, rxe=True, bars=(16 << 20,))
    with Bed(options, run_dir=tmp_path_factory.mktemp("bed")) as bed:
        yield Guest(bed)


@pytest.mark.parametrize(
    ("name", "exporter"),
    [
        ("storm/private-buffer", "udmabuf"),
        ("storm/private-buffer", "dmaheap"),
        ("storm/shared-buffer", "udmabuf"),
        ("storm/private-allocation", "udmabuf"),
        ("storm/deep", "udmabuf"),
        ("storm/mixed-sizes", "udmabuf"),
        ("storm/processes", "udmabuf"),
        ("storm/bar-p2p", "vfio"),
    ],
)
def test_a_storm_on_emulated_mlx5_passes(guest: Guest, name: str, exporter: str) -> None:
    lines, verdict = guest.run(name, exporter=exporter, importer="verbs", device="mlx5_0")
    assert verdict.word is Word.PASS, (
        verdict,
        [line for line in lines if isinstance(line, j.Note)],
    )
    digest = make_digest(lines, verdict)
    assert digest.start is not None
    assert (digest.start.platform, digest.start.bed) == ("emulated", "vm")
    assert (digest.importer.driver, digest.importer.emulated) == ("mlx5_core", True)
    done = operations(digest)
    assert done["REG"].count == done["DEREG"].count > 0
    assert not digest.leaks and not digest.not_audited


def test_reregistration(guest: Guest) -> None:
    """On ordinary memory it works; for a dma-buf MR libibverbs refuses it, and the MR lives on and is released."""
    lines, verdict = guest.run(
        "storm/reregister", exporter="udmabuf", importer="host-memory", device="mlx5_0"
    )
    assert verdict.word is Word.PASS, verdict
    assert operations(make_digest(lines, verdict))["REREG"].count > 0
    lines, verdict = guest.run(
        "storm/reregister", exporter="udmabuf", importer="verbs", device="mlx5_0"
    )
    assert verdict.word is Word.FAIL
    done = operations(make_digest(lines, verdict))
    assert done["REREG"].errors == {"EINVAL": done["REREG"].count}
    assert not done["DEREG"].errors and done["DEREG"].count == done["REG"].count


def test_host_memory_is_the_control(guest: Guest) -> None:
    lines, verdict = guest.run(
        "storm/private-buffer", exporter="udmabuf", importer="host-memory", device="mlx5_0"
    )
    assert verdict.word is Word.PASS, verdict
    assert operations(make_digest(lines, verdict))["REG"].count > 0


def test_rxe_refuses_dmabufs(guest: Guest) -> None:
    lines, verdict = guest.run(
        "gate/no-dmabuf", exporter="udmabuf", importer="verbs", device="rxe0"
    )
    assert verdict.word is Word.PASS, verdict
    assert "refused as expected" in verdict.reason
    assert any(
        r.got == "EOPNOTSUPP" for line in lines if isinstance(line, j.Gate) for r in line.results
    )


def test_mlx5_does_not_refuse_dmabufs(guest: Guest) -> None:
    _, verdict = guest.run("gate/no-dmabuf", exporter="udmabuf", importer="verbs", device="mlx5_0")
    assert verdict.word is Word.FAIL


def test_bad_input_is_refused_case_by_case(guest: Guest) -> None:
    lines, verdict = guest.run(
        "gate/bad-input", exporter="udmabuf", importer="verbs", device="mlx5_0"
    )
    assert verdict.word is Word.PASS, verdict
    rows = [
        row for line in lines if isinstance(line, j.Gate) for row in line.results if not row.skipped
    ]
    assert len(rows) >= 15
    assert {row.path for row in rows} >= {"libibverbs", "ioctl"}


def test_a_dropped_umr_completion_is_a_hung_call(guest: Guest) -> None:
    """Last in this boot: the lost completion leaves the driver waiting for good."""
    with ControlClient.connect(guest.bed.control) as control:
        control.plant(UmrPlant(mishap=Mishap.DROP, nth=50))
    lines, verdict = guest.run(
        "storm/private-buffer",
        exporter="udmabuf",
        importer="verbs",
        device="mlx5_0",
        call_limit_s=5.0,
    )
    assert verdict.word is Word.FAIL, verdict
    assert "hangs" in verdict.reason and (
        "in REG for" in verdict.reason or "in DEREG for" in verdict.reason
    )
    stacks = [
        frame
        for line in lines
        if isinstance(line, j.Worker)
        for call in line.calls
        for frame in call.stack
    ]
    assert any("umr" in frame for frame in stacks), stacks


def cli(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "gdrstorm", "run", "--json", "--out", str(tmp_path), *arguments],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_the_command_line_ends_in_pass_on_emulated_mlx5(tmp_path: Path) -> None:
    status, answer = cli(
        tmp_path, "storm/private-buffer", "--bed", "vm", "--duration", "3s", "--seed", "5"
    )
    assert (status, answer["verdict"]) == (0, "PASS"), answer["reason"]
    assert (answer["bed"], answer["platform"], answer["driver"], answer["seed"]) == (
        "vm",
        "emulated",
        "mlx5_core",
        5,
    )
    assert answer["operations"]["REG"]["count"] > 0
    assert answer["checks"] and all(check["passed"] for check in answer["checks"])
    run_dir = Path(answer["run_dir"])
    assert (run_dir / "console.log").stat().st_size > 0
    again = subprocess.run(
        [sys.executable, "-m", "gdrstorm", "judge", str(run_dir)], capture_output=True, text=True
    )
    assert again.returncode == 0 and again.stdout.startswith("PASS")


def test_a_guest_that_panics_is_lost_with_its_evidence(tmp_path: Path) -> None:
    status, answer = cli(
        tmp_path, "storm/private-buffer", "--bed", "vm", "--duration", "20s",
        "--append", "panic_on_warn=1", "--plant", 'umr {"mishap": "fail", "nth": 40}',
    )  # fmt: skip
    assert (status, answer["verdict"]) == (5, "LOST"), answer["reason"]
    assert "panic" in answer["reason"]
    assert "phase storm" in answer["reason"], "the suspect is named"
    assert any(fault["origin"] == "console" for fault in answer["faults"])
