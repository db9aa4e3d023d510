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
_BY_LITERAL = tuple(_ROWS.items())


def match(line: Line) -> tuple[Rule, Head] | None:
    """The first row, in order, that knows the line as a headline."""
    text = line.text
    found = [rows for literal, rows in _BY_LITERAL if literal in text]
    if not found:
        return None
    candidates = found[0] if len(found) == 1 else sorted(chain(*found), key=_order_of)
    for _, row in candidates:
        head = row.match(line)
        if head is not None:
            return row, head
    return None


def _order_of(candidate: tuple[int, Rule]) -> int:
    return candidate[0]
