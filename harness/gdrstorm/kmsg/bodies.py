"""Which further lines belong to a report, and what they add to it. One absorber a body; no I/O.

An absorber looks at one line that came after the headline and answers NO, YES (part of the report) or END
(part of it, and its last). Absorbers are strict: a headline of another report is never swallowed.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable

from gdrstorm.kmsg import trace
from gdrstorm.kmsg.draft import Draft, Part
from gdrstorm.kmsg.families.pcie import aer_severity, mce_status
from gdrstorm.kmsg.rules import Body, Line, parse_bdf
from gdrstorm.model.event import EventClass, Severity

_AER_HEADLINE = re.compile(r"[Ee]rror (?:message )?received")
# Since 7.x the bit has its agent and layer behind it: `[ 4] DLP | Receiver | Data Link Layer (First)`.
_AER_BIT = re.compile(
    r":\s+\[\s*(?P<bit>\d+)\] (?P<name>[A-Z][\w .-]*?)\s*(?:\| (?P<agent>[A-Z]\w+)\s*\| (?P<layer>[A-Z][\w ]+?)\s*)?"
    r"(?P<first>\(First\))?\s*$"
)
_AER_STATUS = re.compile(r"(?:error status/mask=|aer_status: 0x)(?P<status>[0-9a-f]+)")
_AER_UNCOR_SEVERITY = re.compile(r"aer_uncor_severity: 0x(?P<bits>[0-9a-f]+)")
_AER_DETAIL = re.compile(
    r"PCIe Bus Error|TLP Header|Error of this Agent|AER:|aer_\w+[:=]|link has been reset|link reset at|"
    r"Link Active not set|DPC:? |EDR:|error status/mask"
)
_LAYER = re.compile(r"type=(?P<layer>[^,]*)(?:.*\((?P<agent>[^)]*)\))?")
_HEADER_LOG = re.compile(r"TLP Header:\s*(?P<words>[0-9a-fx ]+)")

# PCIe base specification, AER status registers; names as the kernel prints them (drivers/pci/pcie/aer.c).
_COR_BITS = {
    0: "RxErr", 6: "BadTLP", 7: "BadDLLP", 8: "Rollover", 12: "Timeout", 13: "NonFatalErr", 14: "CorrIntErr",
    15: "HeaderOF",
}  # fmt: skip
_COR_NAMES = frozenset(_COR_BITS.values())
_UNCOR_BITS = {
    4: "DLP", 5: "SDES", 12: "TLP", 13: "FCP", 14: "CmpltTO", 15: "CmpltAbrt", 16: "UnxCmplt", 17: "RxOF",
    18: "MalfTLP", 19: "ECRC", 20: "UnsupReq", 21: "ACSViol", 22: "UncorrIntErr", 23: "BlockedTLP",
    24: "AtomicOpBlocked", 25: "TLPBlockedErr", 26: "PoisonTLPBlocked",
}  # fmt: skip


def bits_of_status(status: int, corrected: bool) -> list[str]:
    """Names of the bits set in an AER status register, lowest first."""
    names = _COR_BITS if corrected else _UNCOR_BITS
    return [names.get(bit, f"bit {bit}") for bit in range(32) if status >> bit & 1]


# Long names of kernels before 4.20 and of the ras:aer_event trace event (include/ras/ras_event.h).
_LONG_NAMES = {
    "Receiver Error": "RxErr", "Bad TLP": "BadTLP", "Bad DLLP": "BadDLLP", "RELAY_NUM Rollover": "Rollover",
    "Replay Timer Timeout": "Timeout", "Advisory Non-Fatal": "NonFatalErr", "Advisory Non-Fatal Error": "NonFatalErr",
    "Corrected Internal Error": "CorrIntErr", "Header Log Overflow": "HeaderOF", "Data Link Protocol": "DLP",
    "Data Link Protocol Error": "DLP", "Surprise Down Error": "SDES", "Poisoned TLP": "TLP",
    "Flow Control Protocol": "FCP",
    "Flow Control Protocol Error": "FCP", "Completion Timeout": "CmpltTO", "Completer Abort": "CmpltAbrt",
    "Unexpected Completion": "UnxCmplt", "Receiver Overflow": "RxOF", "Malformed TLP": "MalfTLP", "ECRC Error": "ECRC",
    "Unsupported Request": "UnsupReq", "Unsupported Request Error": "UnsupReq", "ACS Violation": "ACSViol",
    "Uncorrectable Internal Error": "UncorrIntErr", "MC Blocked TLP": "BlockedTLP",
    "AtomicOp Egress Blocked": "AtomicOpBlocked", "TLP Prefix Blocked Error": "TLPBlockedErr",
    "Poisoned TLP Egress Blocked": "PoisonTLPBlocked",
}  # fmt: skip


def aer_name_of(name: str) -> str:
    """The short name of an AER error bit, whichever way it was written."""
    return _LONG_NAMES.get(name, name)


def _aer_detail(draft: Draft, line: Line) -> None:
    """Layer, agent, status, bits, TLP header and recovery outcome of an AER or DPC report."""
    text = line.text
    if "PCIe Bus Error" in text and (found := _LAYER.search(text)):
        draft.details.setdefault("layer", found["layer"])
        if found["agent"]:
            draft.details.setdefault("agent", found["agent"])
    if found := _AER_STATUS.search(text):
        draft.details.setdefault("status", "0x" + found["status"])
        draft.incomplete = False
    if found := _AER_BIT.search(text):
        draft.incomplete = False
        names = draft.details.get("bits")
        draft.details["bits"] = f"{names} {found['name']}" if names else found["name"]
        if found["first"]:
            draft.details["first"] = found["name"]
        if found["agent"]:
            draft.details.setdefault("agent", found["agent"])
            draft.details.setdefault("layer", found["layer"])
    if found := _HEADER_LOG.search(text):
        draft.details.setdefault("tlp_header", found["words"].strip())
    if "recovery successful" in text or "successfully recovered" in text:
        draft.details["recovery"] = "successful"
    elif "recovery failed" in text or "reset failed" in text:
        draft.details["recovery"] = "failed"


def _victim(draft: Draft, line: Line) -> bool:
    """A device below the port that cannot recover is named on its own prefix."""
    if "AER: can't recover" not in line.text or draft.severity.rank < Severity.ERROR.rank:
        return False
    if line.bdf:
        draft.details.setdefault("victim", line.bdf)
    return True


def _aer(draft: Draft, line: Line) -> Part:
    text = line.text
    if line.bdf not in draft.devices or line.bdf is None:
        return Part.YES if _victim(draft, line) else Part.NO
    if _AER_HEADLINE.search(text) or "containment event" in text:
        return Part.NO
    if "PCIe Bus Error" in text:
        # A second detail block is the next report.
        if draft.details.keys() & {"layer", "status", "bits"}:
            return Part.NO
        # One interrupt, several agents: the block is of the device that it names, not of the announced one.
        draft.device = line.bdf
        if severity := aer_severity(text):
            draft.severity = severity
            draft.title = f"AER {severity.value}"
        if "type=Inaccessible" in text:
            draft.code, draft.incomplete = "Inaccessible", False
            draft.title = f"{draft.title} Inaccessible"
    bit = _AER_BIT.search(text)
    if not bit and not _AER_DETAIL.search(text):
        return Part.NO
    if bit and draft.severity is Severity.ERROR and bit["name"] in _COR_NAMES:
        # aer_status alone does not say of which register it is; the names of the two differ.
        draft.severity = Severity.CORRECTED
    if draft.severity is Severity.ERROR and (found := _AER_UNCOR_SEVERITY.search(text)):
        status = int(draft.details.get("status", "0"), 16)
        if status & int(found["bits"], 16):
            draft.severity = Severity.FATAL
            draft.title = draft.title.replace("AER error", "AER fatal")
    if bit and draft.code is None:
        draft.code = bit["name"]
        draft.title = f"AER {draft.severity.value} {bit['name']}"
    _aer_detail(draft, line)
    return Part.YES


_EDR_DEVICE = re.compile(
    r"EDR: Reported EDR dev: (?P<bdf>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
)


def _dpc(draft: Draft, line: Line) -> Part:
    text = line.text
    if line.bdf not in draft.devices or line.bdf is None:
        return Part.YES if _victim(draft, line) else Part.NO
    if "containment event" in text or _AER_HEADLINE.search(text):
        return Part.NO
    if not _AER_DETAIL.search(text) and not _AER_BIT.search(text) and "pciehp" not in text:
        return Part.NO
    if reported := _EDR_DEVICE.search(text):
        # The port that asks the system to act need not be the one that triggered.
        draft.devices.add(reported["bdf"])
    _aer_detail(draft, line)
    draft.incomplete = draft.weak
    if "PCIe Bus Error" in text and aer_severity(text) is Severity.FATAL:
        draft.raise_severity(Severity.FATAL)
    if draft.details.get("recovery") == "failed":
        draft.raise_severity(Severity.FATAL)
    return Part.YES


_RECORD = re.compile(r"(?:\{(?P<number>\d+)\})?\[Hardware Error\]:(?P<rest>.*)")
_RECORD_SEVERITY = re.compile(
    r"(?P<whole>event severity|type): (?P<word>corrected|recoverable|fatal|info)"
)
_RECORD_DEVICE = re.compile(r"device_id: (?P<bdf>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
_RECORD_SECTION = re.compile(r"section_type: (?P<section>.+)")
_CPER_SEVERITY = {
    "corrected": Severity.CORRECTED,
    "recoverable": Severity.ERROR,
    "fatal": Severity.FATAL,
    "info": Severity.INFO,
}


def record_detail(draft: Draft, rest: str) -> None:
    """One line of a firmware-first record (drivers/firmware/efi/cper.c)."""
    if found := _RECORD_SEVERITY.search(rest):
        # The event's severity counts; a section's only where the line with the event's was lost.
        if found["whole"] == "event severity" or "event_severity" not in draft.details:
            draft.severity = _CPER_SEVERITY[found["word"]]
        if found["whole"] == "event severity":
            draft.details["event_severity"] = found["word"]
        draft.incomplete = False
    if found := _RECORD_SECTION.search(rest):
        section = found["section"].strip()
        draft.details.setdefault("section", section)
        draft.title = f"hardware error record: {section}"
        if "PCIe" in section:
            draft.cls = EventClass.AER
    if (found := _RECORD_DEVICE.search(rest)) and draft.device is None:
        draft.device = parse_bdf(found["bdf"])
        if draft.device:
            draft.devices.add(draft.device)


def _machine_check(draft: Draft, line: Line) -> Part:
    """`Machine check events logged` announces the first record; each further one is a report of its own."""
    check = mce_status(line.text)
    if check is None or draft.code != "MCE" or "status" in draft.details:
        return Part.NO
    draft.details["status"], severity = check
    draft.raise_severity(severity)
    return Part.YES


def _record(draft: Draft, line: Line) -> Part:
    found = _RECORD.search(line.text)
    if not found:
        if "Kernel panic" in line.text and "ardware error" in line.text:
            draft.raise_severity(Severity.FATAL)
            return Part.YES
        belongs = draft.device is not None and line.bdf == draft.device and "aer_" in line.text
        return Part.YES if belongs else Part.NO
    if f"hwerr{found['number'] or ''}" != draft.tag:
        return Part.NO
    if "Hardware error from APEI" in found["rest"]:
        return Part.NO
    if "Machine Check" in found["rest"]:
        return _machine_check(draft, line)
    record_detail(draft, found["rest"])
    return Part.YES


_DMAR_REASON = re.compile(r"DMAR:\s*\[fault reason (?P<code>(?:0x)?[0-9a-f]+)\]\s*(?P<reason>.*)")


def _dmar(draft: Draft, line: Line) -> Part:
    if "handling fault status" in line.text or "DMAR: QI " in line.text:
        return Part.YES
    found = _DMAR_REASON.search(line.text)
    if not found or draft.code is not None or "Request device" in line.text:
        return Part.NO
    draft.code = found["code"]
    draft.title = f"{draft.title.rstrip()} {found['reason'].strip()}".strip()
    draft.details["reason"] = found["reason"].strip()
    draft.incomplete = False
    return Part.YES


_SMMU_MORE = re.compile(
    r"arm-smmu(?:-v3)? [\w.:-]+:\s+(?:0x(?P<word>[0-9a-f]{8} ?[0-9a-f]{8})\s*$|(?:un)?priv |.*fault|GFSR)"
)
_SMMU_HEADLINE = re.compile(r": event|Unexpected global fault|Unhandled context fault")
_SMMU_NAMED = re.compile(
    r": event: (?P<code>[A-Z]\w+)(?: client: (?P<client>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]))?"
)


def _smmu(draft: Draft, line: Line) -> Part:
    if draft.row == 4 and (named := _SMMU_NAMED.search(line.text)):
        # Since 6.15 the raw record is followed by the same in words.
        draft.row += 1
        draft.code = named["code"]
        draft.device = parse_bdf(named["client"] or "")
        draft.title = f"SMMUv3 {draft.code}"
        return Part.YES
    found = _SMMU_MORE.search(line.text)
    if not found or _SMMU_HEADLINE.search(line.text):
        return Part.NO
    if found["word"]:
        # Event record: word 0 bits 63:32 are the StreamID, word 2 the input address (SMMUv3 architecture, 7.3).
        value = int(found["word"].replace(" ", ""), 16)
        if draft.row == 0:
            draft.details["sid"] = f"{value >> 32:#x}"
        elif draft.row == 2:
            draft.details["address"] = f"{value:#x}"
        draft.row += 1
    else:
        draft.details.setdefault("access", line.text.rsplit(":", 1)[-1].strip())
    return Part.YES


_SXID_MORE = re.compile(
    r"SXid \((?P<where>[^)]*)\): (?P<number>\d+), (?:Severity \d|(?P<data>Data \{.*))"
)


def _sxid(draft: Draft, line: Line) -> Part:
    """An SXid is three lines: what, then `Severity 1 Engine instance ...`, then `Data {...}`."""
    found = _SXID_MORE.search(line.text)
    if not found or found["number"] != draft.code:
        return Part.NO
    if parse_bdf(found["where"].removeprefix("PCI:")) != draft.device:
        return Part.NO
    if found["data"]:
        draft.details["data"] = found["data"]
    return Part.YES


_HEALTH_MORE = re.compile(
    r"assert_|synd|[Hh]ealth|fw_ver|hw_id|irisc_index|\btime: |\brfr\b|severity|error_sw_reset|error_state|"
    r"bad device|NIC IFC|PCI slot|PCI interface|crdump|fw_tracer|Fatal error|High temperature|pci_status|reset"
)
_FATAL_RANK, _SYNDROME_RANK, _ISSUE_RANK, _HEADLINE_RANK = 4, 3, 2, 1
_HEALTH_CODES = (
    (_FATAL_RANK, re.compile(r"(?P<code>Fatal error(?: \d+)?) detected")),
    (_FATAL_RANK, re.compile(r"(?P<code>health recovery (?:flow aborted|failed))")),
    (_SYNDROME_RANK, re.compile(r"(?<!ext_)synd (?P<code>0x[0-9a-f]+): (?P<what>.*)")),
    (_ISSUE_RANK, re.compile(r"Health issue observed, (?P<code>[^,]+)")),
    (_HEADLINE_RANK, re.compile(r"device's (?P<code>health compromised)")),
)


def health_rank(code: str | None) -> int:
    """How much a health code says: fatal error over syndrome over its text over headline over bare dump."""
    if code is None or code == "health dump":
        return 0
    if code.startswith(("Fatal error", "health recovery")):
        return _FATAL_RANK
    if code.startswith("0x"):
        return _SYNDROME_RANK
    return _HEADLINE_RANK if code == "health compromised" else _ISSUE_RANK


def _health(draft: Draft, line: Line) -> Part:
    text = line.text
    if draft.device is None or line.bdf != draft.device or not _HEALTH_MORE.search(text):
        return Part.NO
    for rank, pattern in _HEALTH_CODES:
        found = pattern.search(text)
        if not found:
            continue
        if rank in {_FATAL_RANK, _HEADLINE_RANK}:
            draft.severity = Severity.FATAL
        elif draft.severity is Severity.WARNING:
            draft.severity = Severity.ERROR
        if rank > health_rank(draft.code):
            draft.code = found["code"]
            what = found.groupdict().get("what") or found["code"]
            draft.title = f"mlx5 health: {what.strip()}"
            draft.incomplete = False
    if "0xffffffff" in text and "assert_" in text:
        draft.raise_severity(Severity.FATAL)
        draft.details["all_ff"] = "yes"
    return Part.YES


def _command(draft: Draft, line: Line) -> Part:
    """`No done completion`, then what became of the command: recovered or leaked."""
    if draft.row or line.bdf != draft.device or f"{draft.code} " not in line.text:
        return Part.NO
    if "timeout" not in line.text:
        return Part.NO
    draft.row = 1
    return Part.YES


def _eeh(draft: Draft, line: Line) -> Part:
    """What POWER says of one frozen slot: where it is, a stack of its own, how often it failed."""
    text = line.text.lstrip()
    return Part.YES if text.startswith("EEH: ") and "Frozen" not in text else Part.NO


def _restrack(draft: Draft, line: Line) -> Part:
    return Part.YES if line.text.lstrip().startswith("restrack: ") else Part.NO


_HEX_BYTES = re.compile(r"(?P<offset>[0-9a-f]{8}):? (?P<bytes>(?:[0-9a-f]{2} ){15}[0-9a-f]{2})\b")
_HEX_WORDS = re.compile(r"\s*(?P<words>(?:[0-9a-f]{8} ){3}[0-9a-f]{8})\s*$")
_WC_ERROR = re.compile(r"WC error: (?P<number>\d+)(?:, Message: (?P<message>.*))?")
# mlx5 CQE syndrome to verbs work completion status (drivers/infiniband/hw/mlx5/cq.c, ib_verbs.h)
_WC_OF_SYNDROME = {
    0x01: 1, 0x02: 2, 0x04: 4, 0x05: 5, 0x06: 6, 0x10: 7, 0x11: 8, 0x12: 9, 0x13: 10, 0x14: 11, 0x15: 12,
    0x16: 13, 0x22: 16,
}  # fmt: skip


def _cqe_row(draft: Draft, words: bytes) -> None:
    """The fourth row of an error CQE holds vendor syndrome (0x36) and syndrome (0x37)."""
    if draft.row == 3:
        vendor, syndrome = words[6], words[7]
        draft.details["vendor_syndrome"] = f"{vendor:#04x}"
        draft.details["syndrome"] = f"{syndrome:#04x}"
        if draft.code == "error CQE" and syndrome in _WC_OF_SYNDROME:
            draft.code = f"WC {_WC_OF_SYNDROME[syndrome]}"
            draft.incomplete = False
    draft.row += 1


def _cqe(draft: Draft, line: Line) -> Part:
    text = line.text
    if "dump error cqe" in text:
        return Part.NO if draft.row or draft.code == "error CQE" else Part.YES
    if draft.code == "error CQE" and (found := _WC_ERROR.search(text)):
        draft.code = f"WC {found['number']}"
        draft.incomplete = False
        return Part.YES
    if draft.row >= 4:
        return Part.NO
    found = _HEX_BYTES.search(text)
    if found:
        _cqe_row(draft, bytes.fromhex(found["bytes"]))
        return Part.YES
    found = _HEX_WORDS.match(text)
    if found:
        _cqe_row(draft, bytes.fromhex(found["words"]))
        return Part.YES
    return Part.NO


_GSP_NOT = re.compile(
    r"Xid \(|RmInitAdapter|fallen off|GSP-CrashCat Report|\*\* GSP Timeout|NVRM: loading |rm_init_adapter"
)


def _gsp(draft: Draft, line: Line) -> Part:
    """A GSP dump: everything NVRM says next, its own stack dump included."""
    text = line.text
    said = "NVRM" in text or text.lstrip().startswith(("GSP task", "libos"))
    if not said and not trace.is_trace(text):
        return Part.NO
    if _GSP_NOT.search(text):
        return Part.NO
    if not said:
        draft.framed = True
    return Part.YES


_RM_MORE = re.compile(
    r"NVRM:? .*(?:rm_init_adapter failed|module->open\(\) failed|None of the NVIDIA devices|probe routine|"
    r"RmInitAdapter failed|failed to open)"
)


def _rm_init(draft: Draft, line: Line) -> Part:
    text = line.text
    if not _RM_MORE.search(text):
        return Part.NO
    named = re.search(r"GPU ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", text)
    if named and named[1] != draft.device:
        return Part.NO
    if "RmInitAdapter failed" in text:
        return Part.NO
    return Part.YES


_LOST_MORE = re.compile(
    r"NVRM:? (?:\(PCI ID|installed in this system|fallen off|BAR\d|The NVIDIA probe routine|None of the NVIDIA|"
    r"The system BIOS|This is a|GPU serial|A GPU crash dump|nvidia-bug-report|.*is not supported by)"
)


def _nvrm_lost(draft: Draft, line: Line) -> Part:
    text = line.text
    if not _LOST_MORE.search(text):
        return Part.NO
    if "fallen off the bus" in text:
        draft.code, draft.title = "79", "GPU has fallen off the bus"
        draft.severity, draft.weak, draft.incomplete = Severity.FATAL, False, False
    elif "is not supported" in text:
        draft.code, draft.title = "unsupported", "GPU is not supported by this driver"
        draft.weak, draft.incomplete = False, False
    return Part.YES


def _trace(draft: Draft, line: Line) -> Part:
    taken = trace.absorb(draft, line)
    return Part.NO if taken is None else Part.END if taken else Part.YES


def _oom(draft: Draft, line: Line) -> Part:
    if trace.is_oom(line.text):
        draft.incomplete = draft.incomplete and "Kill" not in line.text
        return Part.YES
    return _trace(draft, line)


def _none(draft: Draft, line: Line) -> Part:
    return Part.NO


ABSORBERS: dict[Body, Callable[[Draft, Line], Part]] = {
    Body.NONE: _none,
    Body.AMDVI: _none,
    Body.AER: _aer,
    Body.DPC: _dpc,
    Body.RECORD: _record,
    Body.DMAR: _dmar,
    Body.SMMU: _smmu,
    Body.SXID: _sxid,
    Body.COMMAND: _command,
    Body.EEH: _eeh,
    Body.RESTRACK: _restrack,
    Body.HEALTH: _health,
    Body.CQE: _cqe,
    Body.GSP: _gsp,
    Body.RM_INIT: _rm_init,
    Body.NVRM_LOST: _nvrm_lost,
    Body.TRACE: _trace,
    Body.OOM: _oom,
}

# Bodies whose lines look like ordinary text: while one is open, every line is shown to it.
# A GSP dump becomes one when its own stack dump begins.
GREEDY = frozenset({Body.TRACE, Body.OOM, Body.SMMU, Body.CQE})
# Bodies whose lines all have the prefix of one of their devices (but for the victims of a failed recovery).
KEYED = frozenset({Body.AER, Body.DPC, Body.HEALTH})


def complete(draft: Draft) -> None:
    """No more lines will come: derive what the report did not say in words."""
    if draft.body is Body.AER and draft.code is None and (status := draft.details.get("status")):
        names = bits_of_status(int(status, 16), draft.severity is Severity.CORRECTED)
        draft.code = names[0] if names else None
        draft.title = f"AER {draft.severity.value} {draft.code or ''}".strip()
    if draft.body is Body.DMAR and draft.code is None:
        draft.incomplete = True
    if draft.body in {Body.TRACE, Body.OOM}:
        trace.complete(draft)


def preview(draft: Draft) -> Draft | None:
    """The report as it would be if it ended now; None while its code is still to come."""
    if draft.code is None and not draft.closed:
        known = {"rip", "culprit"} & draft.details.keys() or "status" in draft.details
        if not known:
            return None
    view = copy.copy(draft)
    complete(view)
    return view
