"""PCI Express: AER of all kernels, DPC and EDR, firmware-first records, machine checks, lost devices.

Sources: drivers/pci/pcie/{aer,dpc,edr,err}.c, drivers/firmware/efi/cper.c, drivers/acpi/apei/ghes.c,
drivers/edac, arch/x86/kernel/cpu/mce. AER's words changed in 4.20 (source instead of id), 6.6 ("Correctable")
6.16 (one-line DPC) and 7.x (agent and layer beside each bit). Rows marked RECONSTRUCTED come from the format string.
"""

# Patterns and the real lines above them stay in one piece, so that they can be searched for.
# ruff: noqa: E501

from __future__ import annotations

import re

from gdrstorm.kmsg.rules import Body, Head, Line, Rule, parse_bdf, rule
from gdrstorm.model.event import EventClass, Severity

_BDF = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_SEVERITY = r"(?P<kind>Corrected|Correctable|Uncorrected|Uncorrectable)(?: \((?P<fatal>Non-Fatal|Fatal)\)?)?"


def aer_severity(text: str) -> Severity | None:
    """Severity in AER's words, None when they were cut off before they said."""
    if "Non-Fatal" in text or "Nonfatal" in text:
        return Severity.ERROR
    if re.search(r"Uncorrect\w* \(Fatal|ERR_FATAL", text):
        return Severity.FATAL
    if re.search(r"Corrected|Correctable", text):
        return Severity.CORRECTED
    return Severity.ERROR if "Uncorrect" in text else None


def _source(found: re.Match[str], line: Line) -> str | None:
    """The device an AER message came from: printed as bdf, or as a requester id on the port's domain."""
    groups = found.groupdict()
    if source := groups.get("source"):
        return parse_bdf(source)
    if (requester := groups.get("requester")) and line.bdf:
        number = int(requester, 16)
        domain = line.bdf.split(":", 1)[0]
        return f"{domain}:{number >> 8:02x}:{(number >> 3) & 31:02x}.{number & 7}"
    return line.bdf


def _aer(head: Head, found: re.Match[str], line: Line) -> Head:
    head.device = _source(found, line)
    severity = aer_severity(found[0])
    head.severity = severity or Severity.ERROR
    head.incomplete = True  # until the error bits were seen
    head.details = {"port": line.bdf} if line.bdf else {}
    for name in ("layer", "agent"):
        if value := found.groupdict().get(name):
            head.details[name] = value
    if head.details.get("layer") == "Inaccessible":
        # The device did not answer: there are no error bits to wait for.
        head.code, head.incomplete = "Inaccessible", False
    head.title = f"AER {head.severity.value} {head.code or ''}".strip()
    return head


def _dpc(head: Head, found: re.Match[str], line: Line) -> Head:
    """Trigger reason: bits 2:1 of the status (PCIe base specification, DPC Status Register)."""
    if found["code"]:
        reason = (int(found["code"], 16) >> 1) & 3
        if reason == 2:
            head.severity = Severity.FATAL
    if "ERR_FATAL" in line.text:
        head.severity = Severity.FATAL
    return head


_MCE_STATUS = re.compile(r"Bank \d+: ([0-9a-f]{16})")


def mce_status(text: str) -> tuple[str, Severity] | None:
    """MCi_STATUS and what it says: bit 61 uncorrected, bit 57 processor context corrupt."""
    found = _MCE_STATUS.search(text)
    if found is None:
        return None
    bits = int(found[1], 16)
    if not bits >> 61 & 1:
        return found[1], Severity.CORRECTED
    return found[1], Severity.FATAL if bits >> 57 & 1 else Severity.ERROR


def _machine_check(head: Head, found: re.Match[str], line: Line) -> Head:
    if check := mce_status(line.text):
        head.details["status"], head.severity = check
    return head


def _record(head: Head, found: re.Match[str], line: Line) -> Head:
    head.tag = f"hwerr{found['number'] or ''}"
    head.device = None
    return head


A, D, P, H = EventClass.AER, EventClass.DPC, EventClass.PCIE, EventClass.HARDWARE
F, E, W, C = Severity.FATAL, Severity.ERROR, Severity.WARNING, Severity.CORRECTED

PCIE_RULES: tuple[Rule, ...] = (
    # pcieport 0000:00:1d.0: AER: Corrected error message received from 0000:00:1d.0
    # pcieport 0000:00:00.0: AER: Uncorrected (Non-Fatal) error received: 0000:00:00.0
    # pcieport 0000:00:1c.0: AER: Multiple Corrected error received: id=00e0
    # pcieport 0000:00:01.0: AER: Correctable error message received from 0000:01:00.0
    # pcieport 0000:00:07.0: AER: Uncorrectable (Fatal) Error message received from 0000:00:07.0
    rule(A, E, "AER: ", rf"AER: (?:Multiple )?{_SEVERITY} [Ee]rror (?:message )?received(?: from|:)? ?(?:(?P<source>{_BDF})|id=(?P<requester>[0-9a-f]{{4}}))?",
         "AER", body=Body.AER, refine=_aer, tag="aer"),
    # pcieport 0000:00:1d.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)
    # pcieport 0000:00:1c.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, id=00e0(Receiver ID)
    rule(A, E, "PCIe Bus Error", r"PCIe Bus Error:(?: severity=(?P<kind>[^,]*))?(?:, type=(?P<layer>[^,]*))?(?:, (?:id=(?P<requester>[0-9a-f]{4}))?\(?(?P<agent>[^)]*)\)?)?",
         "AER", body=Body.AER, refine=_aer, tag="aer"),
    # pcieport 0000:20:03.1: AER: aer_status: 0x00000001, aer_mask: 0x00000000
    rule(A, E, "aer_status", r"aer_status: (?P<status>0x[0-9a-f]+)", "AER", body=Body.AER, refine=_aer, tag="aer"),
    # pcieport 0000:00:1d.0:   device [8086:9d18] error status/mask=00000001/00002000      (headline lost)
    rule(A, E, "error status/mask", r"device \[[0-9a-f:]+\] error status/mask=", "AER",
         body=Body.AER, refine=_aer, half=True, tag="aer"),
    # pcieport 0000:00:1c.0: AER: Corr      (cut)
    rule(A, E, "AER: ", r": AER: (?:Multiple|Corr|Uncor)", "AER (line cut off)",
         body=Body.AER, refine=_aer, half=True, tag="aer"),
    # pcieport 0000:00:1c.5: can't find device of ID00e5                                  (before 4.20)
    rule(A, W, "find device of ID", r"(?:AER: )?can't find device of ID", "AER without details",
         code="no details", body=Body.AER, half=True, tag="aer"),
    # pcieport 0000:00:1c.0: AER: can't find device of ID00e0
    # pcieport 0000:00:1c.0: AER: found no error details for 0000:00:1c.0
    rule(A, W, "AER: ", r"AER: (?:can't find device of ID|found no error details)", "AER without details",
         code="no details", body=Body.AER, half=True, tag="aer"),
    # pcieport 0000:00:00.0: AER: device recovery failed
    # ahci 0000:01:00.0: AER: can't recover (no error_detected callback)
    rule(A, E, "AER: ", r"AER: (?P<what>device recovery failed|can't recover|subordinate device reset failed)",
         "AER {what}", code="recovery failed", body=Body.AER, half=True, tag="aer"),
    # pcieport 0000:00:1b.0: DPC: containment event, status:0x1f01 source:0x0000
    # pcieport 0015:00:00.0: DPC: containment event, status:0x200d, ERR_FATAL received from 0015:01:00.0
    # dpc 0000:00:1b.0:pcie010: DPC containment event, status:0x1f00 source:0x0000
    rule(D, E, "DPC", rf"DPC:? containment event(?:, status: ?(?P<code>0x[0-9a-f]+))?(?:.* received from (?P<culprit>{_BDF}))?",
         "DPC containment event {code}", body=Body.DPC, refine=_dpc, tag="dpc"),
    # pcieport 0000:00:1b.0: DPC: unmasked uncorrectable error detected         (headline lost)
    rule(D, E, "DPC", r"DPC:? (?P<what>unmasked uncorrectable error|ERR_NONFATAL|ERR_FATAL|RP PIO error|software trigger)",
         "DPC {what}", body=Body.DPC, half=True, tag="dpc"),
    # pcieport 0015:00:00.0: EDR: EDR event received
    rule(D, E, "EDR: ", r"EDR: EDR event received", "EDR event", code="EDR", body=Body.DPC, weak=True, tag="dpc"),
    # {359}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 512
    # [Hardware Error]: event severity: fatal
    rule(H, E, "[Hardware Error]", r"(?:\{(?P<number>\d+)\})?\[Hardware Error\]: (?:Hardware error from APEI|event severity|It has been corrected|\s*Error \d+, type|\s*section_type)",
         "hardware error record", code="GHES", body=Body.RECORD, refine=_record, half=True, tag="hwerr"),
    # mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400
    # mce: [Hardware Error]: Machine check events logged
    rule(H, C, "mce: ", r"mce: (?:\[Hardware Error\]: )?(?P<what>CPU \d+: Machine Check|Machine check events logged)",
         "machine check", code="MCE", body=Body.RECORD, refine=_machine_check, tag="hwerr"),
    # [Hardware Error]: Corrected error, no action required.
    rule(H, C, "[Hardware Error]", r"\[Hardware Error\]: Corrected error", "machine check", code="MCE",
         body=Body.RECORD, tag="hwerr"),
    # [Hardware Error]: Uncorrected, software restartable error.
    rule(H, E, "[Hardware Error]", r"\[Hardware Error\]: (?:Uncorrected|Deferred)", "machine check", code="MCE",
         body=Body.RECORD, tag="hwerr"),
    # {1}[Hardware Error]: ...                                                       (headline lost)
    rule(H, E, "[Hardware Error]", r"(?:\{(?P<number>\d+)\})?\[Hardware Error\]:?", "hardware error record", code="GHES",
         body=Body.RECORD, refine=_record, half=True, tag="hwerr"),
    # EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x...)
    rule(H, C, "EDAC", r"EDAC (?P<mc>MC\d+): (?P<times>\d+) (?P<code>CE) ", "EDAC corrected memory error", tag="edac"),
    rule(H, E, "EDAC", r"EDAC (?P<mc>MC\d+): (?P<times>\d+) (?P<code>UE) ", "EDAC uncorrected memory error", tag="edac"),
    # Memory failure: 0x3d7a3c: recovery action for dirty LRU page: Recovered
    rule(H, E, "Memory failure", r"Memory failure: 0x[0-9a-f]+: recovery action for (?P<what>.*)", "memory failure: {what}", code="memory failure",
         tag="hwpoison"),
    # mce: Uncorrected hardware memory error in user-access at 3d7a3c000
    rule(H, E, "mce: Uncorrected", r"mce: Uncorrected hardware memory error", "uncorrected memory error", code="MCE", tag="hwpoison"),
    # NMI: PCI system error (SERR) for reason a1 on CPU 0.
    # Uhhuh. NMI received for unknown reason 3d on CPU 0.
    rule(H, E, "NMI", r"NMI: (?P<code>PCI system error \(SERR\)|IOCK error)|(?P<what>NMI received for unknown reason)",
         "NMI {code}{what}", code="NMI", tag="nmi"),
    # SError Interrupt on CPU3, code 0x00000000be000011 -- SError
    rule(H, F, "SError Interrupt", r"SError Interrupt on CPU", "SError interrupt", code="SError", body=Body.TRACE, tag="serror"),
    # EEH: Frozen PHB#30-PE#0 detected
    rule(P, E, "EEH: ", r"EEH: (?P<what>Frozen P[HE]\S*|.* has failed \d+ times)", "EEH: {what}", code="EEH", body=Body.EEH, tag="eeh"),
    # mlx5_core 0000:c1:00.0: Unable to change power state from D3cold to D0, device inaccessible
    rule(P, E, "device inaccessible", r"[Uu]nable to change power state from \S+ to \S+, device inaccessible",
         "device inaccessible", code="device inaccessible", tag="pcie"),
    # nvidia 0000:01:00.0: can't change power state from D3cold to D0 (config space inaccessible)
    rule(P, E, "config space inaccessible", r"config space inaccessible", "device inaccessible",
         code="device inaccessible", tag="pcie"),
    # vfio-pci 0000:01:00.0: not ready 65535ms after FLR; giving up
    rule(P, E, "giving up", r"not ready \d+ms after (?P<what>[\w ]+); giving up", "not ready after {what}",
         code="not ready", tag="pcie"),
    # vfio-pci 0000:01:00.0: timed out waiting for pending transaction; performing function level reset anyway
    rule(P, W, "pending transaction", r"timed out waiting for pending transaction", "pending transactions at reset",
         code="pending transaction", tag="pcie"),
    # pcieport 0000:97:02.0: pciehp: Slot(4): Failed to check link status
    # pcieport 0000:97:02.0: pciehp: Slot(4): No link
    # pcieport 0000:97:02.0: pciehp: Slot(4): Cannot train link: status 0x1001
    rule(P, E, "pciehp: ", r"pciehp: .*(?P<what>Failed to check link status|Cannot add device|[Ll]ink [Tt]raining [Ee]rror|Cannot train link|No link$)",
         "{what}", code="link", tag="pcie"),
    # pcieport 0000:00:01.0: Data Link Layer Link Active not set in 1000 msec
    # pcieport 0000:00:01.0: retraining failed
    rule(P, E, "ink Active not set", r": (?P<what>Data Link Layer Link Active not set)", "{what}", code="link", tag="pcie"),
    rule(P, E, "retraining failed", r": (?P<what>retraining failed)$", "link {what}", code="link", tag="pcie"),
    # pcieport 0000:97:02.0: pciehp: Slot(4): Power fault
    # pcieport 0000:97:02.0: pciehp: Power fault on slot 4                                 (before 4.20)
    rule(P, E, "pciehp: ", r"pciehp: .*(?P<code>[Pp]ower fault)(?! interrupt received)", "slot power fault", tag="pcie"),
)  # fmt: skip
