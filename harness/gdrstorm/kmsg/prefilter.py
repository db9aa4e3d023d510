"""The fast no: most log lines can be no part of a fault, and plain substrings say so in about two microseconds.

Every row of the tables needs at least one of these substrings in each line it matches; a test holds the two
together. A line that passes is not a fault yet: the tables decide.
"""

from __future__ import annotations


def suspicious(text: str) -> bool:
    """Can this line be part of a fault report? Written out, because a loop over a tuple costs three times more."""
    return (
        # NVIDIA
        "NVRM" in text
        or "SXid" in text
        or (
            "nv" in text
            and (
                "peermem" in text or "nv_mem" in text or "nv_peer_mem" in text or "nvidia-" in text
            )
        )
        or "GSP" in text
        # PCI Express
        or "AER: " in text
        or "PCIe Bus" in text
        or "  [" in text
        or "error status" in text
        or "TLP Header" in text
        or "of this Agent" in text
        or "DPC" in text
        or "EDR: " in text
        or "EEH: " in text
        or "SError" in text
        or "Hardware Error" in text
        or "mce: " in text
        or "EDAC" in text
        or "NMI" in text
        or "inaccessible" in text
        or "giving up" in text
        or "pciehp: " in text
        or "pending transaction" in text
        # IOMMU
        or "DMAR:" in text
        or "DRHD" in text
        or "AMD-Vi" in text
        or "Event logged" in text
        or "smmu" in text
        or "address=0x" in text
        or "fault from" in text
        # mlx5, RDMA, dma-buf
        or (("mlx5" in text or "nfiniband" in text or ":(pid " in text) and _mlx5_words(text))
        or "op_mod" in text
        or (
            ("rdma" in text or "ib_" in text or "uverbs" in text or "siw" in text)
            and _failing_words(text)
        )
        or "ma_buf" in text
        or "ma-buf" in text
        or "ma buf" in text
        or "MA-BUF" in text
        or "dmabuf" in text
        or "insert pages" in text
        or "P2PDMA" in text
        or "peer-to-peer" in text
        or "ACS redirect" in text
        or "restrack" in text
        # the kernel about itself
        or "BUG" in text
        or "WARNING" in text
        or "INFO: " in text
        or "Oops" in text
        or "panic" in text
        or "fault, " in text
        or "[#" in text
        or "UBSAN" in text
        or "KASAN" in text
        or "kmemleak" in text
        or "corruption" in text
        or "refcount_t" in text
        or "ODEBUG" in text
        or "DMA-API" in text
        or "cut here" in text
        or "LOCKUP" in text
        or "stall" in text
        or "trying to" in text
        or "suspicious" in text
        or "DEADLOCK" in text
        or "starved" in text
        or "Unable to" in text
        or "Internal error" in text
        or "oom" in text
        or "f memory" in text
        or "allocation" in text
        or "allocate mem" in text
        or "vmalloc" in text
        or "symbol" in text
        or "version magic" in text
        or "this_module" in text
        or "/modules:" in text
        or "suppressed" in text
        or "nobody cared" in text
        or "duplicate" in text
        or "failed with error" in text
        or "unregister_netdevice" in text
        or "ref_tracker" in text
    )


def _failing_words(text: str) -> bool:
    """A word of failure, roughly: dynamic debug prints millions of lines with the shape of errors and none of these."""
    return (
        "ail" in text
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
