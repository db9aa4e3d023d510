"""The fault tables, one file a family, in the order in which a line is tried. Data and pure functions only."""

from __future__ import annotations

from gdrstorm.kmsg.families import iommu, kernel, nvidia, pcie, rdma
from gdrstorm.kmsg.rules import Rule

# Specific families before general ones: RESTRACK before BUG, lockdep before WARNING, NVRM before dma-buf, modules
# before the drivers that do not load.
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
    *kernel.MODULE_RULES,
    *rdma.P2PDMA_RULES,
    *rdma.MLX5_RULES,
    *rdma.RDMA_RULES[2:],
    *kernel.MEMORY_RULES,
    *rdma.DMABUF_RULES,
)
