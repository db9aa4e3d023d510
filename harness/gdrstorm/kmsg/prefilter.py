"""The fast no: most log lines can be no part of a fault, and a look at their words says so in about a microsecond.

Every row of the tables needs one of these words or substrings in each line it matches, even in one cut off;
tests hold the two together. A line that passes is not a fault yet: the tables decide. Words cost one set
operation for all of them, substrings one search each, so what stands alone in a line is a word.
"""

from __future__ import annotations

_PLAIN = (
    # NVIDIA
    "NVRM SXid GSP nvidia-nvlink [nvidia-drm] nvidia-peermem nvidia_peermem nv_mem nv_peer_mem "
    "nvidia-uvm nvidia-modeset "
    # PCI Express
    "AER DPC EDR EEH SError mce EDAC NMI pciehp inaccessible giving retraining Active TLP transaction transaction; "
    # IOMMU
    "DRHD DMAR dmar AMD-Vi logged arm-smmu arm-smmu-v3 "
    "IO_PAGE_FAULT ILLEGAL_DEV_TABLE_ENTRY DEV_TAB_HARDWARE_ERROR DEV_TAB_HARDWARE_ERR PAGE_TAB_HARDWARE_ERROR "
    "PAGE_TAB_HARDWARE_ERR ILLEGAL_COMMAND_ERROR COMMAND_HARDWARE_ERROR IOTLB_INV_TIMEOUT INVALID_DEVICE_REQUEST "
    "INVALID_PPR_REQUEST EVENT_COUNTER_ZERO RMP_HARDWARE_ERROR RMP_PAGE_FAULT "
    # RDMA, dma-buf
    "ib_core ib_uverbs rdma_ucm rdma_cm iw_cm ib_cm rdma_rxe siw irdma bnxt_re restrack RESTRACK DMA-BUF P2PDMA "
    "bnxt_en mlx4_core mlx4_en mlx4_ib <mlx4_ib> efa erdma hns3 hfi1 qedr vmw_pvrdma "
    "peer-to-peer ACS aer_status insert "
    # the bits of an AER report, where its blanks were lost
    "RxErr BadTLP BadDLLP Rollover NonFatalErr CorrIntErr HeaderOF DLP SDES FCP CmpltTO CmpltAbrt UnxCmplt RxOF "
    "MalfTLP ECRC UnsupReq ACSViol UncorrIntErr BlockedTLP AtomicOpBlocked TLPBlockedErr PoisonTLPBlocked "
    # the kernel about itself
    "BUG WARNING INFO PID Oops panic UBSAN KASAN kmemleak corruption refcount_t ODEBUG DMA-API LOCKUP stall stalls "
    "trying suspicious DEADLOCK starved Unable Internal allocation allocate vmalloc symbol magic suppressed nobody "
    "duplicate unregister_netdevice ref_tracker SLUB PANIC VFS CFI "
    "seriously unchecked swiotlb cma_alloc mask failure can't cut memory:"
)
_WORDS = frozenset(word + mark for word in _PLAIN.split() for mark in ("", ":", ",", ".", "!", ")"))
# A host has up to six NVSwitches, a rack's tray fewer.
_WORDS |= frozenset(f"nvidia-nvswitch{number}:" for number in range(16))


def suspicious(text: str) -> bool:
    """Can this line be part of a fault report?

    Written out, because a loop over a tuple costs three times more. Substrings that share a piece stand behind
    it: most lines have not even that.
    """
    return (
        not _WORDS.isdisjoint(text.split())
        or (("mlx5" in text or "nfiniband" in text or ":(pid " in text) and _mlx5_words(text))
        or (("uverbs" in text or "ib_umem" in text) and _failing_words(text))
        or ("buf" in text and _names_of_dmabuf(text))
        or ("rror" in text and _kinds_of_error(text))
        or ("fault" in text and ("fault from" in text or "fault, " in text))
        or ("[" in text and ("  [" in text or "[#" in text or "DMAR:[" in text or "[ret" in text))
        or ("mod" in text and ("_module" in text or "/modules:" in text or "op_mod" in text))
        or "oom" in text
    )


def _kinds_of_error(text: str) -> bool:
    return (
        "PCIe Bus Error" in text
        or "Error of this Agent" in text
        or "error status" in text
        or "Hardware Error" in text
        or "failed with error" in text
        or "gdrdrv:" in text
    )


def _names_of_dmabuf(text: str) -> bool:
    return "ma_buf" in text or "ma-buf" in text or "ma buf" in text or "dmabuf" in text


def _failing_words(text: str) -> bool:
    """A word of failure, roughly: dynamic debug prints millions of lines with the shape of errors and none of these."""
    return (
        "fail" in text
        or "Fail" in text
        or "rr" in text
        or "ime" in text
        or "nable" in text
        or "n't" in text
        or "annot" in text
        or "iving up" in text
        or "eak" in text
        or "bort" in text
        or "nvalid" in text
        or "nexpected" in text
        or "not " in text
        or "ut of" in text
        or "tuck" in text
        or "bad " in text
        or "closed" in text
        or "Bad " in text
        or "bogus" in text
        or "verflow" in text
        or "xhausted" in text
        or "SIGERR" in text
    )


def _mlx5_words(text: str) -> bool:
    """What mlx5 lines of faults say, besides words of failure."""
    return (
        "ealth" in text
        or "assert_" in text
        or "synd" in text
        or "atal" in text
        or "anceled" in text
        or "completion" in text
        or "temperature" in text
        or "insufficient" in text
        or "Cable" in text
        or "cqe" in text
        or "WATCHDOG" in text
        or "fw_ver" in text
        or "hw_id" in text
        or "irisc" in text
        or "rfr" in text
        or "PCI " in text
        or "reset" in text
        or "irmware over" in text
        or "NIC IFC" in text
        or _failing_words(text)
    )
