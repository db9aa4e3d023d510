"""IOMMU faults: Intel DMAR, AMD-Vi, Arm SMMUv3 and SMMUv2, virtio-iommu.

Sources: drivers/iommu/intel/dmar.c, drivers/iommu/amd/iommu.c, drivers/iommu/arm/arm-smmu-v3,
drivers/iommu/virtio-iommu.c. Codes are as printed: `06` and `0x06` are what the kernel of the day wrote.
"""

# Patterns and the real lines above them stay in one piece, so that they can be searched for.
# ruff: noqa: E501

from __future__ import annotations

import re

from gdrstorm.kmsg.rules import HEX_BDF, Body, Head, Line, Rule, parse_bdf, rule
from gdrstorm.model.event import EventClass, Severity

_AMD_NAMES = (
    "IO_PAGE_FAULT|ILLEGAL_DEV_TABLE_ENTRY|DEV_TAB_HARDWARE_ERROR|DEV_TAB_HARDWARE_ERR|PAGE_TAB_HARDWARE_ERROR|"
    "PAGE_TAB_HARDWARE_ERR|ILLEGAL_COMMAND_ERROR|COMMAND_HARDWARE_ERROR|IOTLB_INV_TIMEOUT|INVALID_DEVICE_REQUEST|"
    "INVALID_PPR_REQUEST|EVENT_COUNTER_ZERO|RMP_HARDWARE_ERROR|RMP_PAGE_FAULT|UNKNOWN"
)
_AMD_DEVICE = re.compile(rf"device=(?:id=)?(?P<bdf>{HEX_BDF})")
_ADDRESS = re.compile(r"\baddress=(0x[0-9a-f]+)")
_FLAGS = re.compile(r"\bflags=(0x[0-9a-f]+)")
_DOMAIN = re.compile(r"\bdomain=(0x[0-9a-f]+)")


def _amd(head: Head, found: re.Match[str], line: Line) -> Head:
    device = _AMD_DEVICE.search(line.text)
    if device:
        head.device = parse_bdf(device["bdf"])
    for name, pattern in (("address", _ADDRESS), ("flags", _FLAGS), ("domain", _DOMAIN)):
        if value := pattern.search(line.text):
            head.details[name] = value[1]
    if "flags" in head.details:
        bits = int(head.details["flags"], 16)
        # AMD IOMMU specification, IO_PAGE_FAULT: PR (present) bit 4, RW bit 5, PE (permission) bit 6
        words = (
            (0x10, "present", "not present"),
            (0x20, "write", "read"),
            (0x40, "permission", "translation"),
        )
        head.details["access"] = ", ".join(yes if bits & bit else no for bit, yes, no in words)
    return head


def _smmu_old(head: Head, found: re.Match[str], line: Line) -> Head:
    head.device = None
    return head


def _keep_client(head: Head, found: re.Match[str], line: Line) -> Head:
    head.device = parse_bdf(found["client"]) if found["client"] else None
    return head


Cls = EventClass.IOMMU
F, E, W = Severity.FATAL, Severity.ERROR, Severity.WARNING

IOMMU_RULES: tuple[Rule, ...] = (
    # DMAR: [DMA Read NO_PASID] Request device [00:02.0] fault addr 0x7cd80000 [fault reason 0x01] Present bit ...
    # DMAR: [DMA Read] Request device [06:00.0] PASID ffffffff fault addr 1a5e12000 [fault reason 06] PTE Read ...
    # DMAR:[DMA Write] Request device [02:00.0] fault addr ffff000        (next line: DMAR:[fault reason 02] ...)
    # DMAR: [INTR-REMAP] Request device [f0:1f.7] fault index 0x0 [fault reason 0x25] Blocked a compatibility ...
    rule(Cls, E, "DMAR:", rf"DMAR:\s*\[(?P<access>DMA \w+|INTR-REMAP)[^\]]*\] Request device \[?(?P<bdf>{HEX_BDF})?\]?(?: (?:PASID \w+ )?fault (?:addr|index) (?P<address>(?:0x)?[0-9a-f]+))?(?:.*\[fault reason (?P<code>(?:0x)?[0-9a-f]+)\] ?(?P<reason>.*))?",
         "DMAR {access} fault: {reason}", body=Body.DMAR, tag="dmar"),
    # DMAR: DRHD: handling fault status reg 402
    rule(Cls, E, "DRHD", r"(?:DMAR|dmar): DRHD: handling fault status reg", "DMAR fault (details lost)", code="fault status",
         body=Body.DMAR, weak=True, tag="dmar"),
    # DMAR: VT-d detected Invalidation Time-out Error: ITE_SID ...
    # DMAR: VT-d detected Invalidation Queue Error: Reason f
    rule(Cls, E, "Invalidation", r"DMAR: VT-d detected (?P<code>Invalidation [\w-]+ Error)", "DMAR {code}",
         body=Body.DMAR, tag="dmar-qi"),
    # DMAR: ERROR: DMA PTE for vPFN 0x7fe00 already set (to 7fe00002 not 12a8a6003)
    rule(Cls, E, "DMAR:", r"DMAR: ERROR: (?P<what>.*)", "DMAR {what}", code="ERROR", tag="dmar-error"),
    # DMAR: Page request without PASID: 0000...      RECONSTRUCTED
    rule(Cls, E, "age request", r"(?:DMAR|IOMMU): .*(?P<code>[Pp]age request)", "DMAR page request refused", tag="prq"),
    # DMAR: [DMA Re      (cut)
    rule(Cls, E, "DMAR:", r"DMAR:\s*\[(?:DMA |INTR-REMAP)", "DMAR fault (line cut off)", body=Body.DMAR,
         half=True, tag="dmar"),
    # nvidia 0000:81:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x001c address=0xd0826240 flags=0x0020]
    # INVALID_DEVICE_REQUEST device=00:00.1 address=0x000000fdf8000020 flags=0x0a00]       (old: split over lines)
    # AMD-Vi: Event logged [IOTLB_INV_TIMEOUT device=0000:01:00.0 address=0x1003e3d80]
    rule(Cls, E, "_", rf"(?:Event logged \[|^\s*)(?P<code>{_AMD_NAMES})\b(?= ?(?:device|domain|address|pasid|vmg_tag|event)|$)",
         "AMD-Vi {code}", body=Body.AMDVI, refine=_amd, tag="amdvi"),
    # AMD-Vi: Event logged [                    (old: the event follows on the next line)
    rule(Cls, E, "Event logged", r"Event logged \[?", "AMD-Vi event (details lost)", body=Body.AMDVI, weak=True,
         tag="amdvi"),
    # AMD-Vi: Completion-Wait loop timed out
    rule(Cls, E, "AMD-Vi", r"AMD-Vi: (?P<code>Completion-Wait loop timed out|.*[Ee]vent (?:log|buffer) overflow|IOMMU Event log restarting)",
         "AMD-Vi {code}", tag="amdvi-engine"),
    # arm-smmu-v3 arm-smmu-v3.2.auto: event: F_TRANSLATION client: 0000:01:00.0 sid: 0x100 ssid: 0x0 iova: 0x.. ipa: 0x0
    rule(Cls, E, "event: ", rf"arm-smmu-v3 [\w.:-]+: event: (?P<code>[A-Z_0-9]+)(?: client: (?P<client>{HEX_BDF})?)?(?:.* sid: (?P<sid>0x[0-9a-f]+))?(?:.*\biova: (?P<address>0x[0-9a-f]+))?",
         "SMMUv3 {code}", body=Body.SMMU, refine=_keep_client, tag="smmu"),
    # arm-smmu-v3 arm-smmu-v3.2.auto: event 0x10 received:
    rule(Cls, E, "smmu", r"arm-smmu-v3 [\w.:-]+: event (?P<code>0x[0-9a-f]+)", "SMMUv3 event {code}",
         body=Body.SMMU, refine=_smmu_old, tag="smmu"),
    # arm-smmu-v3 arm-smmu-v3.0.auto: CMD_SYNC timeout at 0x0000000f [hwprod 0x00000010, hwcons 0x0000000e]
    # arm-smmu-v3 arm-smmu-v3.0.auto: unexpected global error reported (0x00000001), this could be serious
    rule(Cls, E, "smmu", r"arm-smmu-v3 [\w.:-]+: (?P<code>CMD_SYNC timeout|unexpected global error|CMDQ (?:error|timeout)|EVTQ overflow|PRIQ overflow|(?:event|command|PRI) queue write aborted|device has entered Service Failure Mode)",
         "SMMUv3 {code}", body=Body.SMMU, tag="smmu-engine"),
    # arm-smmu 5000000.iommu: Unhandled context fault: fsr=0x402, iova=0x78a00000, fsynr=0x360021, cb=7
    rule(Cls, E, "smmu", r"arm-smmu [\w.:-]+: (?P<code>Unhandled context fault|Unexpected global fault)(?:.*iova=(?P<address>0x[0-9a-f]+))?",
         "SMMUv2 {code}", body=Body.SMMU, tag="smmu2"),
    # virtio_iommu virtio1: page fault from EP 8 at 0xfffff000 [RW]
    rule(Cls, E, "fault from EP", r"(?P<code>page|domain|unknown) fault from EP (?P<endpoint>\d+)(?: PASID \d+)?(?: at (?P<address>0x[0-9a-f]+))?(?: \[(?P<access>[^\]]*)\]?)?",
         "virtio-iommu {code} fault", tag="viommu"),
    rule(Cls, E, "fault from", r"virtio_iommu \S+: \w+ fault", "virtio-iommu fault (line cut off)", half=True, tag="viommu"),
)  # fmt: skip
