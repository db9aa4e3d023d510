"""Draws the PCI tree and the pairs of a host as one SVG picture: boxes, links, a matrix of verdicts.

Pure: records in, text out. Every colour comes with a word, so that the picture survives printing.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import msgspec

from gdrstorm.model.admission import Admission, Decision
from gdrstorm.model.inventory import Inventory, PciDevice
from gdrstorm.report.check_table import best_decision, by_pair, label_function
from gdrstorm.report.topo_text import find_interesting, group_children

_BOX_W, _BOX_H, _GAP_X, _GAP_Y, _MARGIN = 132, 40, 14, 34, 24
_CELL_W, _CELL_H, _LABEL_W = 84, 26, 130
_FILL = {Decision.ADMIT: "#2e7d32", Decision.REJECT: "#b71c1c", Decision.UNKNOWN: "#f9a825"}
_WORD = {Decision.ADMIT: "ok", Decision.REJECT: "no", Decision.UNKNOWN: "?"}
_INK = {Decision.ADMIT: "#ffffff", Decision.REJECT: "#ffffff", Decision.UNKNOWN: "#000000"}


class _Place(msgspec.Struct):
    x: float
    y: float


def _layout(
    name: str, children: dict[str, list[PciDevice]], depth: int, left: float, out: dict[str, _Place]
) -> float:
    """Places a subtree with its left edge at `left`; returns the width it took."""
    mine = children.get(name, [])
    width = 0.0
    for device in mine:
        if width:
            width += _GAP_X
        width += _layout(device.bdf, children, depth + 1, left + width, out)
    width = max(width, float(_BOX_W))
    out[name] = _Place(left + width / 2 - _BOX_W / 2, _MARGIN + depth * (_BOX_H + _GAP_Y))
    return width


def _box(place: _Place, lines: Sequence[str], fill: str) -> str:
    rows = [
        f'<rect x="{place.x:.0f}" y="{place.y:.0f}" width="{_BOX_W}" height="{_BOX_H}" rx="5" '
        f'fill="{fill}" stroke="#37474f"/>'
    ]
    for i, line in enumerate(lines[:2]):
        y = place.y + 16 + 15 * i
        rows.append(
            f'<text x="{place.x + _BOX_W / 2:.0f}" y="{y:.0f}" text-anchor="middle">'
            f"{escape(line[:22])}</text>"
        )
    return "".join(rows)


def _line(upper: _Place, lower: _Place) -> str:
    x1, y1 = upper.x + _BOX_W / 2, upper.y + _BOX_H
    x2, y2 = lower.x + _BOX_W / 2, lower.y
    return f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke="#607d8b"/>'


def _device_box(inventory: Inventory, device: PciDevice, place: _Place) -> str:
    name = label_function(inventory, device.bdf)
    if name != device.bdf:
        is_gpu = any(g.bdf == device.bdf for g in inventory.gpus)
        return _box(place, (name, device.bdf), "#c8e6c9" if is_gpu else "#bbdefb")
    acs = device.acs.value
    redirects = bool(acs and acs.control & 0x2C)
    note = "ACS redirects" if redirects else ("ACS unknown" if device.acs.unknown else "")
    kind = (
        device.port_type.get("bridge")
        if device.is_bridge
        else f"{device.vendor:04x}:{device.device:04x}"
    )
    return _box(place, (device.bdf, note or kind), "#ffccbc" if redirects else "#eceff1")


def _matrix(
    inventory: Inventory, admissions: Sequence[Admission], top: float
) -> tuple[str, float, float]:
    """SVG of the verdict matrix with its upper edge at `top`; also its width and height."""
    pairs = by_pair(admissions)
    importers = list(dict.fromkeys(importer for _, importer in pairs))
    exporters = list(dict.fromkeys(exporter for exporter, _ in pairs))
    parts: list[str] = []
    for column, importer in enumerate(importers):
        x = _MARGIN + _LABEL_W + column * _CELL_W + _CELL_W / 2
        label = escape(label_function(inventory, importer))
        parts.append(f'<text x="{x:.0f}" y="{top + 16:.0f}" text-anchor="middle">{label}</text>')
    for row, exporter in enumerate(exporters):
        y = top + _CELL_H * (row + 1)
        label = escape(label_function(inventory, exporter))
        parts.append(f'<text x="{_MARGIN}" y="{y + 17:.0f}">{label}</text>')
        for column, importer in enumerate(importers):
            mine = pairs.get((exporter, importer), [])
            x = _MARGIN + _LABEL_W + column * _CELL_W
            parts.append(_cell(mine, x, y))
    width = 2 * _MARGIN + _LABEL_W + len(importers) * _CELL_W
    return "".join(parts), float(width), float(_CELL_H * (len(exporters) + 1))


def _cell(admissions: Sequence[Admission], x: float, y: float) -> str:
    decision = best_decision(admissions)
    path = admissions[0].path if admissions else None
    relation = path.relation.value.value if path and path.relation.value else "?"
    title = escape("; ".join(f"{a.request.policy}: {a.decision.value}" for a in admissions))
    return (
        f"<g><title>{title}</title>"
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{_CELL_W - 2}" height="{_CELL_H - 2}" '
        f'fill="{_FILL[decision]}"/>'
        f'<text x="{x + _CELL_W / 2 - 1:.0f}" y="{y + 16:.0f}" text-anchor="middle" '
        f'fill="{_INK[decision]}">{relation} {_WORD[decision]}</text></g>'
    )


def render_svg(inventory: Inventory, admissions: Sequence[Admission]) -> str:
    """The whole picture."""
    extra = {bdf for a in admissions for bdf in (a.exporter, a.importer) if bdf}
    shown = find_interesting(inventory, extra)
    children = group_children(inventory, shown)
    by_bdf = {d.bdf: d for d in inventory.pci.value or ()}
    places: dict[str, _Place] = {}
    left = float(_MARGIN)
    for root in sorted({by_bdf[bdf].root_bus for bdf in shown}):
        left += _layout(root, children, 0, left, places) + 2 * _GAP_X
    parts: list[str] = []
    for name, place in places.items():
        device = by_bdf.get(name)
        parts.extend(_line(place, places[child.bdf]) for child in children.get(name, []))
        if device is None:
            node = next((d.numa_node.get(-1) for d in by_bdf.values() if d.root_bus == name), -1)
            text = f"NUMA node {node}" if node >= 0 else "host bridge"
            parts.append(_box(place, (f"root bus {name}", text), "#fff9c4"))
        else:
            parts.append(_device_box(inventory, device, place))
    bottom = max((p.y for p in places.values()), default=0.0) + _BOX_H + 2 * _GAP_Y
    matrix, matrix_width, matrix_height = _matrix(inventory, admissions, bottom)
    width = max(left + _MARGIN, matrix_width, 480.0)
    height = bottom + matrix_height + 3 * _MARGIN
    machine = inventory.machine
    note = escape(
        f"{inventory.hostname}: {machine.platform.value}, kernel {inventory.kernel.release}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{"".join(parts)}{matrix}'
        f'<text x="{_MARGIN}" y="{height - _MARGIN / 2:.0f}">{note}</text></svg>\n'
    )
