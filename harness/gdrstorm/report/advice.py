"""An error number to its likely cause on this path and what to look at: what a tired engineer wants beside it.

From public reports of people who run GPUDirect RDMA; a likely cause, never a diagnosis.
"""

from __future__ import annotations

_ADVICE = {
    ("REG", "EAGAIN"): (
        "mkeys exhausted (`CREATE_MKEY ... no resources(0xf)` in the log?); killed "
        "processes leave them: reload the driver"
    ),
    ("REG", "ENOMEM"): (
        "memlock limit, number of MRs or BAR1 space: look at ulimit -l and the device's max_mr"
    ),
    ("REG", "EFAULT"): (
        "plain ibv_reg_mr on a GPU pointer needs a peer-memory client; register the dma- "
        "buf instead"
    ),
    ("REG", "ENODEV"): ("the buffer is revoked or the device is going away"),
    ("REG", "EINVAL"): (
        "alignment, offset or access flags, or P2PDMA refused the path: the kernel log "
        "names both devices then"
    ),
    ("REG", "EPROTONOSUPPORT"): (
        "the kernel's verbs module is older than userspace (a container newer than its host?)"
    ),
    ("REG", "EOPNOTSUPP"): ("this provider or kernel has no dma-buf MRs: gdrstorm check"),
    ("REG", "ENOTSUPP"): (
        "the exporter refused to be attached: topology or mapping type (errno 524, libc "
        "has no name for it)"
    ),
    ("REG", "EBADF"): ("the descriptor was closed before"),
    ("DEREG", "EBUSY"): ("something still uses the MR, a memory window perhaps"),
    ("DEREG", "EIO"): (
        "the device is in its error state: look for a health report in the kernel log"
    ),
    ("REG", "EIO"): (
        "the device is in its error state: look for a health report in the kernel log"
    ),
    ("EXPORT", "EMFILE"): (
        "descriptor limit reached: dma-buf descriptors leak, or raise ulimit -n"
    ),
    ("EXPORT", "EINVAL"): (
        "size or alignment; for udmabuf also the limits of /sys/module/udmabuf/parameters"
    ),
    ("EXPORT", "ENOTSUPP"): (
        "the mapping type is not supported, as FORCE_PCIE on a non-coherent GPU without "
        "the driver option"
    ),
    ("EXPORT", "EOPNOTSUPP"): ("the exporter cannot do this here: gdrstorm check"),
    ("EXPORT", "ENOMEM"): ("no memory of that kind left, or the memlock limit"),
    ("EXPORT", "ENODEV"): ("the device is gone or its memory is disabled"),
    ("ALLOC", "ENOMEM"): (
        "no memory of that kind left: smaller sizes, fewer threads or less depth"
    ),
    ("EXPORT", "CUDA 1"): "range not 4 KiB aligned, beyond the allocation, or empty",
    ("EXPORT", "CUDA 304"): "descriptor limit reached: dma-buf descriptors leak",
    ("EXPORT", "CUDA 801"): (
        "mapping type not supported: FORCE_PCIE on a non-coherent GPU without the driver "
        "option, or a GPU class gate in CUDA"
    ),
    ("EXPORT", "NV_STATUS 0x56"): (
        "mapping type not supported: FORCE_PCIE on a non-coherent GPU without the driver option"
    ),
}


def advise(op: str, errno: str) -> str:
    """Likely cause and next step, or empty when there is nothing to say."""
    return _ADVICE.get(("REG" if op == "REREG" else op, errno), "")
