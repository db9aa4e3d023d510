"""The fault tables, one file a family, in the order in which a line is tried. Data and pure functions only."""

from __future__ import annotations

from itertools import chain

from gdrstorm.kmsg.families import iommu, kernel, nvidia, pcie, rdma
from gdrstorm.kmsg.rules import Head, Line, Rule

# Specific families before general ones: RESTRACK before BUG, lockdep before WARNING, NVRM before dma-buf.
RULES: tuple[Rule, ...] = (
    *nvidia.XID_RULES,
    *rdma.RDMA_RULES[:2],
    *kernel.SANITIZER_RULES,
    *kernel.LOCKUP_RULES,
    *kernel.LOCKDEP_RULES,
    *kernel.BUG_RULES,
    *kernel.WARN_RULES,
    *kernel.DMA_API_RULES,
    *pcie.PCIE_RULES,
    *iommu.IOMMU_RULES,
    *nvidia.NVRM_RULES,
    *nvidia.PEERMEM_RULES,
    *rdma.P2PDMA_RULES,
    *rdma.MLX5_RULES,
    *rdma.RDMA_RULES[2:],
    *kernel.MEMORY_RULES,
    *kernel.MODULE_RULES,
    *rdma.DMABUF_RULES,
)

_ROWS: dict[str, list[tuple[int, Rule]]] = {}
for _order, _row in enumerate(RULES):
    _ROWS.setdefault(_row.literal, []).append((_order, _row))
# By the first characters of their literals: one walk over a line finds all literals in it, where asking for each
# of some hundred costs several times as much.
_PREFIX = 3
_BY_PREFIX: dict[str, list[tuple[str, list[tuple[int, Rule]]]]] = {}
for _literal, _rows in _ROWS.items():
    _BY_PREFIX.setdefault(_literal[:_PREFIX], []).append((_literal, _rows))
_SHORT = tuple(item for item in _ROWS.items() if len(item[0]) < _PREFIX)


def match(line: Line) -> tuple[Rule, Head] | None:
    """The first row, in order, that knows the line as a headline."""
    text = line.text
    found = _find_literals(text)
    if not found:
        return None
    rows = list(found.values())
    candidates = rows[0] if len(rows) == 1 else sorted(chain(*rows), key=_order_of)
    for _, row in candidates:
        head = row.match(line)
        if head is not None:
            return row, head
    return None


def _find_literals(text: str) -> dict[str, list[tuple[int, Rule]]]:
    """Rows by literal, of all literals that the text has."""
    found = {literal: rows for literal, rows in _SHORT if literal in text}
    for start in range(len(text) - _PREFIX + 1):
        near = _BY_PREFIX.get(text[start : start + _PREFIX])
        if near:
            found |= {literal: rows for literal, rows in near if text.startswith(literal, start)}
    return found


def _order_of(candidate: tuple[int, Rule]) -> int:
    return candidate[0]
