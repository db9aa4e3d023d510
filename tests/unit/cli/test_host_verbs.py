"""check, topo and inventory as a user calls them, for machines that are not here."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from gdrstorm.cli.check import check
from gdrstorm.cli.inventory import inventory
from gdrstorm.cli.topo import topo
from gdrstorm.errors import UsageError
from gdrstorm.host import read_inventory
from gdrstorm.model.admission import CheckResult
from gdrstorm.model.inventory import (
    GpuState,
    StaticBar1,
    VerbsState,
    decode_inventory,
    encode_inventory,
    known,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "data" / "host"))
import machines

WANTS = """
summary = "want what the predicates say"
time_limit = "1m"
[needs]
predicates = {predicates}
[memory]
size = "64KiB"
[[phase]]
name = "storm"
duration = "1s"
cycle = ["EXPORT", "REG", "DEREG", "CLOSE"]
"""

app = typer.Typer(pretty_exceptions_enable=False)
for verb in (check, topo, inventory):
    app.command(verb.__name__)(verb)


class Reader:
    """A GPU as the change needs it."""

    def read_gpu_state(self, bdf: str) -> GpuState:
        static = StaticBar1(True, True, 0x20000000, 0x3DFE00000)
        return GpuState(known(static), known(16 << 30), known(False), known(False), known(True))


@pytest.fixture
def host(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """host.json of the machine named by the parameter, with devices that answered."""
    root = tmp_path / "root"
    root.mkdir()
    there = read_inventory(machines.MACHINES[request.param](root), gpu_reader=Reader())
    answers = VerbsState(known(True), known(True), known(1), known(1), known("/usr/lib/libmlx5.so"))
    hcas = tuple(msgspec.structs.replace(h, verbs=answers) for h in there.hcas)
    path = tmp_path / "host.json"
    path.write_bytes(encode_inventory(msgspec.structs.replace(there, hcas=hcas)))
    return str(path)


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(args), catch_exceptions=True)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def machine(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("host", [name], indirect=True)


@machine("gb206")
def test_ready(host: str) -> None:
    code, text = run("check", "--from", host)
    assert code == 0
    assert "READY: 4 of 4 pairs admitted (hardware)" in text
    assert "NODE ok" in text and "ExperimentalDmaBufP2P=1" in text


@pytest.mark.parametrize(
    ("host", "predicate", "remedy"),
    [
        ("gb206_off", "option-on", "NVreg_ExperimentalDmaBufP2P=1"),
        ("gb206_translated", "importer-identity-domain", "iommu=pt"),
        ("gb206_no_iommu", "importer-identity-domain", "enable the IOMMU in firmware"),
        ("closed_driver", "driver-open", "install the open kernel modules"),
    ],
    indirect=["host"],
)
def test_not_ready_says_what_to_do(host: str, predicate: str, remedy: str) -> None:
    code, text = run("check", "--from", host, "--policy", "nvidia-dmabuf-p2p", "--json")
    assert code == 4
    result = msgspec.json.decode(text, type=CheckResult)
    assert not result.is_ready and len(result.admissions) == 4
    for admission in result.admissions:
        found = {f.predicate: f for f in admission.reasons}
        assert remedy in found[predicate].remedy


@machine("one_switch_acs")
def test_acs_names_the_ports_and_the_risk(host: str) -> None:
    code, text = run("check", "--from", host, "--policy", "nvidia-dmabuf-p2p", "--json")
    (admission,) = msgspec.json.decode(text, type=CheckResult).admissions
    distance = next(f for f in admission.findings if f.predicate == "p2pdma-distance")
    assert code == 4
    assert "pci=disable_acs_redir=0000:02:00.0;0000:02:01.0" in distance.remedy
    assert "risk" in distance.remedy


@machine("nothing")
def test_a_host_with_nothing_gets_an_answer(host: str) -> None:
    code, text = run("check", "--from", host)
    assert code == 4
    assert "NOT READY: there is no GPU" in text and "no NVIDIA GPU" in text
    code, text = run("topo", "--from", host)
    assert code == 0 and "PCI: unknown" in text
    assert run("inventory", "--from", host)[0] == 0


@machine("gpu_alone")
def test_a_gpu_alone_is_asked_for_what_it_decides(host: str, tmp_path: Path) -> None:
    code, text = run("check", "--from", host, "--policy", "nvidia-dmabuf-p2p", "--json")
    (admission,) = msgspec.json.decode(text, type=CheckResult).admissions
    found = {f.predicate: f.answer.value for f in admission.findings}
    assert code == 4 and admission.decision.value == "reject"
    assert (found["option-on"], found["static-bar1"], found["mig-off"]) == ("no", "ok", "ok")
    assert {found[n] for n in ("p2pdma-distance", "importer-dma-mask", "importer-dmabuf-mr")} == {
        "unknown"
    }
    assert "no RDMA device on PCI" in run("check", "--from", host)[1]
    assert run("topo", "--from", host, "--svg", str(tmp_path / "t.svg"))[0] == 0


@machine("h100")
def test_one_pair(host: str) -> None:
    code, text = run("check", "--from", host, "--gpu", "gpu3", "--hca", "mlx5_4", "--json")
    result = msgspec.json.decode(text, type=CheckResult)
    assert {(a.exporter, a.importer) for a in result.admissions} == {
        ("0000:43:00.0", "0000:44:00.0")
    }
    # The stock driver refuses FORCE_PCIE; its default mapping works below one switch.
    assert code == 0 and [p for _, _, p in result.ready_pairs] == ["nvidia-dmabuf-default"]


@machine("gb206")
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--gpu", "7"], "no such GPU: 7"),
        (["--hca", "mlx5_9"], "no such hca: mlx5_9"),
        (["--policy", "hope"], "no such policy: hope"),
        (["--explain", "hope"], "no such predicate: hope"),
        (["--scenario", "storm/none-such"], "none-such"),
    ],
)
def test_wrong_use_is_one_line(host: str, args: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        run("check", "--from", host, *args)
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        run("check", "--from", str(tmp_path / "none.json"))


@machine("gb206_off")
def test_a_scenario_is_refused_with_the_words_of_the_predicate(host: str, tmp_path: Path) -> None:
    path = tmp_path / "wants.toml"
    path.write_text(WANTS.format(predicates='["option-on", "p2pdma-distance"]'))
    code, text = run("check", "--from", host, "--scenario", str(path), "--json")
    result = msgspec.json.decode(text, type=CheckResult)
    assert code == 4
    assert [f.answer.value for f in result.needs] == ["no", "ok"]
    assert "option-on: no (ExperimentalDmaBufP2P=0)" in result.reason


@machine("gb206")
def test_a_need_that_nobody_can_answer_is_not_met(host: str, tmp_path: Path) -> None:
    """The pairs are ready; the scenario wants what only a BAR exporter is asked."""
    path = tmp_path / "wants.toml"
    path.write_text(WANTS.format(predicates='["option-on", "exporter-iommu-group"]'))
    code, text = run("check", "--from", host, "--scenario", str(path), "--json")
    result = msgspec.json.decode(text, type=CheckResult)
    assert result.ready_pairs and not result.is_ready and code == 4
    assert [f.answer.value for f in result.needs] == ["ok", "unknown"]
    path.write_text(WANTS.format(predicates='["option-on"]'))
    assert run("check", "--from", host, "--scenario", str(path))[0] == 0


def test_explain() -> None:
    code, text = run("check", "--explain", "importer-identity-domain")
    assert code == 0
    assert "no domain at all" in text and "Source: " in text


@machine("two_switches")
def test_topo_draws_tree_paths_and_picture(host: str, tmp_path: Path) -> None:
    picture = tmp_path / "topo.svg"
    code, text = run("topo", "--from", host, "--paths", "--svg", str(picture))
    assert code == 0
    assert "└─ 0000:06:00.0  mlx5_0" in text and "[0000:01:00.0]" in text and "PXB" in text
    tree = ET.fromstring(picture.read_text())
    words = [t.text for t in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert {"GPU0", "mlx5_0", "PXB ok", "0000:05:00.0"} <= set(words)
    boxes = {r.get("fill") for r in tree.iter("{http://www.w3.org/2000/svg}rect")}
    assert "#2e7d32" in boxes


@pytest.mark.parametrize(
    ("host", "word", "fill"),
    [
        ("gb206_off", "NODE ?", "#f9a825"),
        ("desktop", "PHB ?", "#f9a825"),
        ("one_switch", "PIX ok", "#2e7d32"),
    ],
    indirect=["host"],
)
def test_the_picture_has_a_word_for_every_colour(
    host: str, word: str, fill: str, tmp_path: Path
) -> None:
    picture = tmp_path / "topo.svg"
    run("topo", "--from", host, "--svg", str(picture))
    text = picture.read_text()
    assert word in text and fill in text


@machine("gb206")
def test_topo_says_when_it_cannot_write(host: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write"):
        run("topo", "--from", host, "--svg", str(tmp_path / "no" / "dir.svg"))


@machine("gb206")
def test_inventory_round_trip_and_redaction(host: str) -> None:
    code, plain = run("inventory", "--from", host, "--json")
    assert code == 0 and decode_inventory(plain.encode()) == decode_inventory(
        Path(host).read_bytes()
    )
    code, hidden = run("inventory", "--from", host, "--json", "--redact")
    assert "gpu-node-17" in plain and "gpu-node-17" not in hidden
    assert json.loads(hidden)["is_redacted"] is True


@machine("big")
def test_no_verdict_is_cut_off_in_a_wide_matrix(host: str) -> None:
    _, text = run("check", "--from", host, "--policy", "nvidia-dmabuf-p2p")
    cells = [c for line in text.splitlines() if line.startswith("│ GPU") for c in line.split("│")]
    assert sum(c.strip().endswith(" ok") for c in cells) == 8 * 16
    assert "…" not in text
