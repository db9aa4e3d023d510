"""Reports from journal lines: every finding is shown in every form, and what ran emulated is called emulated."""

from __future__ import annotations

import io
import json
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from gdrstorm.model import journal as j
from gdrstorm.model.event import Event, EventClass, Severity
from gdrstorm.model.gate import GateResult
from gdrstorm.model.op import CallInFlight, Latency, OpSummary, ThreadRate
from gdrstorm.model.plan import Plan, StackChoice
from gdrstorm.model.scenario import Phase, Scenario
from gdrstorm.model.stack import StackPart
from gdrstorm.report import junit, page
from gdrstorm.report.advice import advise
from gdrstorm.report.live import View
from gdrstorm.report.text import print_summary, render_svg, summary_json
from gdrstorm.verdict import judge


def lines() -> list[j.Line]:
    event = Event(
        id="e1", cls=EventClass.XID, severity=Severity.FATAL, device="0000:9b:00.0", code="79",
        title="Xid 79 <GPU> has fallen off the bus", lines=("NVRM: Xid ...",), synthetic=True,
    )  # fmt: skip
    call = CallInFlight(
        0, 1, 77, "DEREG", 5, 1, 12_000_000_000, ("mlx5r_umr_post_send_wait+0x1/0x2",)
    )
    return [
        j.Start(
            schema=1, run_id="r1", version="0", argv=("gdrstorm", "run"), bed="vm", platform="emulated", boot_id="",
            scenario=Scenario("storm/x", "do <it>", 10**9, (Phase("p"),)),
        ),
        j.Planned(plan=Plan(StackChoice("udmabuf", "verbs"), 42, (), 1, 1, 1)),
        j.Stack(exporter=StackPart("udmabuf", "/dev/udmabuf"), importer=StackPart("verbs", "mlx5_0", emulated=True)),
        j.Progress(time_ns=1_000_000_000, phase="p", group="g", ops=(j.Beat("REG", 10, 0, 1, 2, 3),)),
        j.Progress(time_ns=2_000_000_000, phase="p", group="g", ops=(j.Beat("REG", 20, 0, 1, 2, 3),)),
        j.Totals(
            phase="p", group="g", elapsed_ns=2_000_000_000,
            ops=(OpSummary("REG", 30, {"ENOTSUPP": 2}, Latency(1, 1, 100, 1, 2000, 30000, 1, 5_000_000)),),
            rates=(ThreadRate(0, 0, 1, 9_000_000), ThreadRate(0, 1, 29, 1)),
        ),
        j.Blocked(phase="p", summary="94 % in the_lock", taken=9, rounds=9, places=(("the_lock", 9, "caller"),)),
        j.Gate(phase="p", results=(GateResult("t", "length 0", "ioctl", ("EINVAL",), "ok", False),)),
        j.Seen(event=event, phase="p"),
        j.Worker(worker=0, phase="p", state="hung", reason="thread 1 is in DEREG", calls=(call,)),
        j.End(time_ns=3_000_000_000, how="hung"),
    ]  # fmt: skip


def text() -> str:
    out = io.StringIO()
    print_summary(lines(), judge(lines()), "/runs/r1", Console(file=out, width=200, soft_wrap=True))
    return out.getvalue()


@pytest.mark.parametrize(
    "words",
    ["EMULATED", "seed 42", "verbs mlx5_0 (emulated)", "ENOTSUPP 2 times: the exporter refused", "length 0",
     "Xid 79 <GPU>", "synthetic", "thread 1 is in DEREG", "mlx5r_umr_post_send_wait", "unfair",
     "the_lock", "FAIL", "/runs/r1"],
)  # fmt: skip
def test_the_text_shows(words: str) -> None:
    assert words in text()


def test_the_json_object_has_the_promised_keys() -> None:
    answer = json.loads(summary_json(lines(), judge(lines()), "/runs/r1"))
    assert {
        "verdict", "reason", "bed", "platform", "exporter", "importer", "device", "driver", "seed", "operations",
        "faults", "leaks", "run_dir",
    } <= answer.keys()  # fmt: skip
    assert answer["operations"]["REG"] == {
        "count": 30, "errors": {"ENOTSUPP": 2}, "p50_ns": 100, "p99_ns": 2000, "p999_ns": 30000, "max_ns": 5_000_000,
    }  # fmt: skip
    assert answer["faults"][0]["class"] == "xid"


def test_the_page_escapes_and_shows_the_findings() -> None:
    html = page.render(lines(), judge(lines()))
    assert "do &lt;it&gt;" in html and "<it>" not in html
    for words in (
        "EMULATED",
        "Xid 79 &lt;GPU&gt;",
        "ENOTSUPP",
        "length 0",
        "<svg",
        "mlx5r_umr_post_send_wait",
    ):
        assert words in html


def test_the_picture_shows_the_verdict_and_asks_nobody_for_fonts() -> None:
    svg = render_svg(lines(), judge(lines()), "/runs/r1")
    ET.fromstring(svg)
    assert "FAIL" in svg and "EMULATED" in svg
    assert "url(http" not in svg


def test_junit_counts_failures() -> None:
    suite = ET.fromstring(junit.render(lines(), judge(lines())))
    assert (suite.get("tests"), suite.get("failures")) == ("2", "2")
    assert suite.find("testcase[@name='verdict']/failure") is not None


def test_reports_of_an_empty_journal_do_not_fail() -> None:
    verdict = judge([])
    assert "BROKEN" in page.render([], verdict)
    assert ET.fromstring(junit.render([], verdict)).get("errors") == "1"
    assert json.loads(summary_json([], verdict, "x"))["scenario"] is None


def test_advice_names_the_next_step() -> None:
    assert "mkeys exhausted" in advise("REREG", "EAGAIN")
    assert advise("REG", "EXDEV") == ""


def test_the_live_view_shows_rates_and_new_kernel_events_once() -> None:
    out = io.StringIO()
    view = View(Console(file=out, width=200), quiet=False)
    for line in [*lines(), lines()[8]]:
        view.take(line)
    plain = out.getvalue()
    assert "REG 10/s" in plain
    assert plain.count("kernel: fatal xid") == 1
    table = io.StringIO()
    Console(file=table, width=200).print(view.render())
    assert "20" in table.getvalue() and "errors" in table.getvalue()
