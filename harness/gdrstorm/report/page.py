"""A run as one HTML page without any outside file. Records in, text out."""

from __future__ import annotations

import html
from collections.abc import Sequence

import jinja2

from gdrstorm.model import journal as j
from gdrstorm.model.stack import StackPart
from gdrstorm.model.verdict import Verdict, Word
from gdrstorm.report.digest import Digest, make_digest
from gdrstorm.units import format_ns

_TONES = {
    Word.PASS: "good",
    Word.FAIL: "bad",
    Word.LOST: "bad",
    Word.BROKEN: "bad",
    Word.SKIP: "warn",
}
_COLOURS = ("#175cd3", "#067647", "#b54708", "#6938ef", "#c11574", "#0e7090", "#667085")
_WIDTH, _HEIGHT, _MARGIN = 1000.0, 220.0, 76.0


def _part(part: StackPart) -> str:
    facts = [part.name, part.device, part.bdf, part.driver, part.version]
    return " ".join(fact for fact in facts if fact) + (" (emulated)" if part.emulated else "")


def rate_chart(digest: Digest) -> str:
    """Calls a second of each group's busiest operation over the run, as an SVG; empty below two points."""
    if len(digest.progress) < 2:
        return ""
    began = digest.progress[0].time_ns
    series: dict[str, list[tuple[float, float]]] = {}
    for line in digest.progress:
        if line.ops:
            beat = max(line.ops, key=lambda one: one.count)
            name = line.group if line.group == line.phase else f"{line.phase} / {line.group}"
            point = ((line.time_ns - began) / 1e9, float(beat.count))
            series.setdefault(name, []).append(point)
    last = max(point[0] for points in series.values() for point in points) or 1.0
    top = max(point[1] for points in series.values() for point in points) or 1.0
    return _svg(series, last, top)


def _svg(series: dict[str, list[tuple[float, float]]], last: float, top: float) -> str:
    legend = 20 * ((len(series) + 3) // 4)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT + legend:.0f}" font-family="sans-serif" font-size="11">'
    ]
    base = _HEIGHT - 24
    for step in range(5):
        y = base - (base - 12) * step / 4
        parts.append(
            f'<line x1="{_MARGIN}" x2="{_WIDTH - 12}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e7ec"/>'
        )
        parts.append(
            f'<text x="{_MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#667085">{top * step / 4:,.0f}</text>'
        )
    parts.append(f'<text x="{_MARGIN}" y="{base + 16}" fill="#667085">0s</text>')
    parts.append(
        f'<text x="{_WIDTH - 12}" y="{base + 16}" text-anchor="end" fill="#667085">{last:.0f}s</text>'
    )
    for number, (name, points) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(
            f"{_MARGIN + (_WIDTH - 12 - _MARGIN) * x / last:.1f},{base - (base - 12) * y / top:.1f}"
            for x, y in points
        )
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        )
        x, y = _MARGIN + 236 * (number % 4), _HEIGHT + 12 + 20 * (number // 4)
        parts.append(f'<rect x="{x}" y="{y - 8}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16}" y="{y + 1}">{html.escape(name)}</text>')
    return "".join([*parts, "</svg>"])


def render(lines: Sequence[j.Line], verdict: Verdict) -> str:
    """The page."""
    digest = make_digest(lines, verdict)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gdrstorm.report", "."), autoescape=True, trim_blocks=True
    )
    template = environment.get_template("page.html.j2")
    return template.render(
        d=digest,
        name=digest.start.scenario.name if digest.start else "run",
        tone=_TONES[verdict.word],
        part=_part,
        ns=format_ns,
        chart=rate_chart(digest),
    )
