"""A run as JUnit XML for continuous integration: one case a phase, gate row and check, plus the run itself."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from gdrstorm.model import journal as j
from gdrstorm.model.verdict import Verdict, Word
from gdrstorm.report.digest import make_digest


def render(lines: Sequence[j.Line], verdict: Verdict) -> str:
    """The XML document."""
    digest = make_digest(lines, verdict)
    name = digest.start.scenario.name if digest.start else "run"
    suite = ET.Element("testsuite", name=f"gdrstorm.{name}")
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}

    def case(
        title: str, seconds: float = 0.0, kind: str = "", message: str = "", body: str = ""
    ) -> None:
        element = ET.SubElement(
            suite, "testcase", classname=name, name=title, time=f"{seconds:.3f}"
        )
        counts["tests"] += 1
        if kind:
            ET.SubElement(element, kind, message=message).text = body
            counts[{"failure": "failures", "error": "errors", "skipped": "skipped"}[kind]] += 1

    for gate in digest.gates:
        for row in gate.results:
            title = f"{row.table}: {row.case} ({row.path})"
            if row.skipped:
                case(title, kind="skipped", message=row.skipped)
            elif row.passed:
                case(title)
            else:
                case(
                    title,
                    kind="failure",
                    message=f"answered {row.got}, expected {' or '.join(row.expected)}",
                )
    for check in digest.checks:
        case(check.name, kind="" if check.passed else "failure", message=check.detail)
    kinds = {
        Word.FAIL: "failure",
        Word.BROKEN: "error",
        Word.LOST: "error",
        Word.SKIP: "skipped",
        Word.PASS: "",
    }
    case(
        "verdict",
        digest.elapsed_ns / 1e9,
        kinds[verdict.word],
        f"{verdict.word.value}: {verdict.reason}",
        "\n".join(verdict.findings),
    )
    for key, value in counts.items():
        suite.set(key, str(value))
    suite.set("time", f"{digest.elapsed_ns / 1e9:.3f}")
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
