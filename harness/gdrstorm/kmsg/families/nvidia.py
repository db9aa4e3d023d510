"""NVIDIA: Xid, NVRM and GSP messages, nvidia-peermem. Sources: open-gpu-kernel-modules (nverror.h, osapi.c,
kernel_gsp.c, nv-dmabuf.c, nvidia-peermem.c) and public logs of closed drivers back to 2012.

Rows marked RECONSTRUCTED come from the format string, the others from real logs.
"""

# Patterns and the real lines above them stay in one piece, so that they can be searched for.
# ruff: noqa: E501

from __future__ import annotations

import re

from gdrstorm.kmsg.rules import Body, Head, Line, Rule, parse_bdf, rule
from gdrstorm.kmsg.titles import normalise_title
from gdrstorm.model.event import EventClass, Severity

_XID_FATAL = frozenset({48, 62, 64, 71, 74, 79, 95, 119, 120, 140})
_XID_WARNING = frozenset({63})
_XID_NVLINK5 = range(144, 151)
_XID_GSP = frozenset({119, 120})

# NVIDIA's Xid catalogue and nverror.h; only words for the title, severity never depends on them.
_XID_NAMES = {
    8: "GPU stopped processing",
    13: "graphics engine exception",
    31: "MMU fault",
    32: "invalid push buffer stream",
    38: "driver firmware error",
    43: "GPU stopped processing",
    44: "fault during context switch",
    45: "preemptive channel removal",
    46: "GPU stopped processing",
    48: "double bit ECC error",
    51: "runlist error",
    56: "display engine error",
    61: "PMU breakpoint",
    62: "PMU halt",
    63: "row remap or page retirement recorded",
    64: "row remap or page retirement failed",
    68: "NVDEC error",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high single bit ECC error rate",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "GSP RPC timeout",
    120: "GSP error",
    121: "C2C link error",
    122: "SPI PMU RPC read failure",
    136: "link training failed",
    137: "NVLink privilege error",
    140: "unrecovered ECC error",
    143: "GPU initialization error",
    144: "NVLink SAW error",
    145: "NVLink RLW error",
    146: "NVLink TLW error",
    147: "NVLink TREX error",
    148: "NVLink NVLPW_CTRL error",
    149: "NVLink NETIR error",
    150: "NVLink MSE error",
    151: "key rotation error",
    154: "GPU recovery action changed",
    155: "NVLink software defined error",
    156: "resource retirement",
    157: "resource retirement failed",
    158: "GPU fatal timeout",
    167: "PCIe fatal timeout",
    171: "uncorrectable DRAM error",
    172: "uncorrectable SRAM error",
}

_WHERE = re.compile(r"(?:PCI:)?([0-9a-fA-F:.]+)")
_PID = re.compile(r"\bpid='?([^',]+)'?")
_NAME = re.compile(r"\bname=([^,]+)")
_ACTION = re.compile(r"changed from .* to 0x[0-9a-f]+ \((?P<action>[^)]*)\)?")
_MMU = re.compile(r"(FAULT_\w+) ACCESS_TYPE_(\w+)")
_RESET_WORDS = re.compile(r"(?i)reset|reboot|FLR")


def _xid_device(where: str) -> str | None:
    """`PCI:0000:9b:00`, `0000:9b:00.0`, and `0001:00` (bus:slot) of drivers before 2012."""
    found = _WHERE.match(where)
    if not found:
        return None
    parts = found[1].split(":")
    if len(parts) == 2 and len(parts[0]) == 4:
        return parse_bdf(f"{parts[0][2:]}:{parts[1]}")
    return parse_bdf(found[1])


def _xid_severity(code: int, rest: str) -> Severity:
    if code in _XID_FATAL:
        return Severity.FATAL
    if code in _XID_NVLINK5:
        if re.search(r"\bFatal\b", rest):
            return Severity.FATAL
        return Severity.WARNING if re.search(r"(?i)\bnon-?fatal\b", rest) else Severity.ERROR
    if code == 154:
        action = _ACTION.search(rest)
        if action and not _RESET_WORDS.search(action["action"]):
            return Severity.WARNING
        return Severity.ERROR
    return Severity.WARNING if code in _XID_WARNING else Severity.ERROR


def _xid(head: Head, found: re.Match[str], line: Line) -> Head:
    rest = found["rest"] or ""
    number = int(found["number"])
    head.code = str(number)
    head.device = _xid_device(found["where"])
    head.severity = _xid_severity(number, rest)
    head.details = {"text": rest.strip()}
    for name, pattern in (("pid", _PID), ("process", _NAME)):
        if value := pattern.search(rest):
            head.details[name] = value[1].strip()
    meaning = _XID_NAMES.get(number)
    if mmu := _MMU.search(rest):
        meaning = f"{meaning or 'MMU fault'}: {mmu[1]} {mmu[2]}"
    if meaning is None:
        words = re.sub(r"^ *(?:pid=[^,]*, *)?(?:name=[^,]*, *)?", "", rest)
        meaning = normalise_title(words) or "unknown"
    head.title = f"Xid {number} {meaning}"
    head.body = Body.GSP if number in _XID_GSP else Body.NONE
    return head


def _sxid(head: Head, found: re.Match[str], line: Line) -> Head:
    """NVSwitch errors: the line says whether it is fatal."""
    rest = (found["rest"] or "").strip()
    head.code = found["number"]
    head.device = _xid_device(found["where"])
    if re.match(r"Fatal\b", rest):
        head.severity = Severity.FATAL
    elif re.match(r"(?i)non-fatal\b", rest):
        head.severity = Severity.WARNING
    head.title = f"SXid {head.code} {normalise_title(rest)}".strip()
    head.details = {"text": rest}
    return head


_HALF_WHERE = re.compile(r"PCI:([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})\)")


def _half_xid(head: Head, found: re.Match[str], line: Line) -> Head:
    where = _HALF_WHERE.search(line.text)
    head.device = parse_bdf(where[1]) if where else None
    return head


def _assertion(head: Head, found: re.Match[str], line: Line) -> Head:
    """The code is the place where printed, else the status name; a check, which is no bug, has it the other way."""
    kind = found["kind"]
    if found["file"] and (kind or not found["status"]):
        head.code = found["file"]
    elif found["status"]:
        head.code = found["status"]
    what = normalise_title(found["what"])
    head.title = f"NVRM {(kind or 'check').lower()} failed: {what}"
    return head


_NVRM_OK = re.compile(
    r"NVRM:? (?:loading |GPU at |GPU Board Serial|(?:GPU \S+: )?GPU serial number|Persistence mode is|"
    r"A GPU crash dump has been|nvidia-bug-report|Open nvidia\.ko is only ready|"
    r"installed in this system|Applied patches|\S*: TLS: |confComputeConstructEngine\w*: CPU does not support|cpuidInfo)|successful|"
    r"Rate limiting|_threadNodeCheckTimeout: Timeout was set to"
)
# A release driver prints RM messages of level error only, but many name no failure: these words tell them from dumps.
_NVRM_COMPLAINTS = (
    r"\bnot\b|n't\b|\bNULL\b|nrecognized|nknown|navailable|already|ismatch|nsupported|nimplemented|issing|llegal|rong\b|xceed|"
    r"garbage|[Ff]ault\b|\b(?:full|FULL)\b|[Nn]o (?:more )?(?:space|memory)|(?i:uncorrect)|too (?:small|large|big|many)|nvlid|"
    r"ncomplete|denied|refus|[Dd]irty|oison|halted|\blost\b|[Ss]tale|(?:over|under)flow|ttempt|xpected|nsufficient|ncompatible|"
    r"onflict|unresponsive|PENDING|timedout"
)
_NVRM_STATUS = re.compile(r"\b(NV_ERR_\w+)")
_NVRM_FUNC = re.compile(
    r"NVRM:? (?:GPU\d+ |GPU \S+: )?(\[?[A-Za-z_]\w+-?\w*\]?)(?:\(\))?(?::| failed)"
)
_NVRM_GPU = re.compile(r"GPU ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): ")


def _nvrm_other(head: Head, found: re.Match[str], line: Line) -> Head | None:
    """Any other NVRM line with a word of failure; banners and notices are not faults."""
    if _NVRM_OK.search(line.text):
        return None
    status = _NVRM_STATUS.search(line.text)
    func = _NVRM_FUNC.search(line.text)
    text = line.text.partition("NVRM")[2].removeprefix(":").strip()
    if gpu := _NVRM_GPU.match(text):
        head.device = parse_bdf(gpu[1])
        text = text[gpu.end() :]
    head.code = status[1] if status else func[1] if func else normalise_title(text)[:60]
    head.title = f"NVRM: {normalise_title(text)}"
    return head


def _peermem(head: Head, found: re.Match[str], line: Line) -> Head:
    if "detected invalid context" in found["what"]:
        head.severity = Severity.WARNING
    head.title = f"nvidia-peermem {found['func']}: {normalise_title(found['what'])}"
    head.details = {"text": found["what"].strip()}
    return head


_GPU = rf"GPU (?P<bdf>{r'[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}[.][0-7]'})"
X, N = EventClass.XID, EventClass.NVRM
F, E, W = Severity.FATAL, Severity.ERROR, Severity.WARNING

XID_RULES: tuple[Rule, ...] = (
    # NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC ...
    # NVRM: Xid (0001:00): 13, 0005 00000000 00008297 00001698 3f800000 00000100
    # NVRM: Xid (PCI:0000:31:00 GPU-I:01): 43, pid=1234, name=python3, Ch 00000008      RECONSTRUCTED
    rule(X, E, "Xid", r"NVRM: Xid \((?P<where>[^)]*)\): (?P<number>\d+)(?:,(?P<rest>.*))?", "Xid",
         refine=_xid, tag="xid"),
    # nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 34 egress non-posted PRIV error
    rule(X, E, "SXid", r"SXid \((?P<where>[^)]*)\): (?P<number>\d+)(?:,(?P<rest>.*))?", "SXid",
         body=Body.SXID, refine=_sxid, tag="sxid"),
    # NVRM: Xid (PCI:0000:9      (cut)
    rule(X, E, "Xid", r"NVRM: Xid(?: |$)", "Xid (line cut off)", refine=_half_xid, half=True, tag="xid"),
)  # fmt: skip

NVRM_RULES: tuple[Rule, ...] = (
    # NVRM: GPU 0000:04:01.0: RmInitAdapter failed! (0x11:0x45:2525)
    # NVRM: RmInitAdapter failed! (0x26:0xffff:1375)
    rule(N, F, "RmInitAdapter", rf"NVRM:? (?:{_GPU}: )?RmInitAdapter failed!?(?: \((?P<code>[^)]*)\)?)?",
         "NVRM RmInitAdapter failed {code}", body=Body.RM_INIT, tag="rminit"),
    # NVRM: GPU 0000:04:01.0: rm_init_adapter failed, device minor number 0
    rule(N, F, "rm_init_adapter", rf"NVRM:? (?:{_GPU}: )?rm_init_adapter failed",
         "NVRM rm_init_adapter failed", code="rm_init_adapter", body=Body.RM_INIT, tag="rminit"),
    # NVRM: GPU at 0000:01:00.0 has fallen off the bus.                                     (drivers to 375)
    # NVRM: GPU 0000:06:00.0: GPU has fallen off the bus.
    rule(N, F, "fallen off", r"NVRM:? (?:GPU (?:at )?(?:PCI:)?(?P<bdf>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)(?::| has) )?(?:.* )?fallen off the bus", "GPU has fallen off the bus",
         code="79", body=Body.NVRM_LOST, tag="lost"),
    # NVRM: The NVIDIA GPU 0000:b3:00.0
    #   NVRM: (PCI ID: 10de:26b5) installed in this system has
    #   NVRM: fallen off the bus and is not responding to commands.
    rule(N, E, "The NVIDIA GPU", r"NVRM:? The NVIDIA GPU (?P<bdf>[0-9a-f:.]+)", "NVRM: GPU unusable",
         body=Body.NVRM_LOST, weak=True, tag="lost"),
    # NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:
    rule(N, E, "PCI I/O region", r"NVRM:? This PCI I/O region assigned to your NVIDIA device is invalid",
         "NVRM: BAR is invalid", code="BAR", body=Body.NVRM_LOST, tag="bar"),
    # NVRM: kfspPollForResponse_IMPL: FSP command timed out
    rule(N, F, "FSP", r"NVRM:? .*\bFSP\b.*(?:timed out|[Tt]imeout|failed)", "NVRM FSP command timed out",
         code="FSP_TIMEOUT", body=Body.GSP, tag="fsp"),
    # NVRM: GPU0 kgspHealthCheck_TU102: ****************** GSP-CrashCat Report *******************
    rule(N, F, "GSP-CrashCat", r"NVRM:? .*GSP-CrashCat Report", "NVRM GSP-CrashCat report",
         code="GSP_CRASHCAT", body=Body.GSP, tag="gsp"),
    # NVRM: GPU0 _kgspLogXid119: ********************* GSP Timeout **********************
    rule(N, F, "GSP Timeout", r"NVRM:? .*\*\* GSP Timeout \*\*", "NVRM GSP timeout",
         code="GSP_TIMEOUT", body=Body.GSP, weak=True, tag="gsp"),
    # NVRM: GPU0 _kgspProcessRpcEvent: Failed to process received event 0x1004 (RC_TRIGGERED) from GPU0: status=0x21
    rule(N, F, "_kgspProcessRpcEvent", r"NVRM:? .*_kgspProcessRpcEvent: (?:Failed to process|Attempted|Unexpected)",
         "NVRM GSP event not processed", code="GSP_RPC_EVENT", body=Body.GSP, weak=True, tag="gsp"),
    # GSP task watchdog timeout @ pc:0x1b3e756, partition:4#0, task:3
    # GSP task exception: (cause:0x5) @ pc:0x...      RECONSTRUCTED
    rule(N, F, "GSP task", r"GSP task (?:watchdog timeout|timeout|exception)", "NVRM GSP task {what}",
         code="GSP_TASK", body=Body.GSP, tag="gsp"),
    # NVRM: Timeout waiting for RPC from GSP!
    rule(N, F, "GSP", r"NVRM:? .*(?:[Tt]imeout|timed out).*\bGSP\b", "NVRM GSP timeout",
         code="GSP_TIMEOUT", body=Body.GSP, tag="gsp"),
    # NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30). ...
    rule(N, F, "Rate limiting GSP", r"NVRM:? Rate limiting GSP RPC error prints(?: for GPU at PCI:(?P<bdf>[0-9a-f:]+))?",
         "NVRM GSP timeout", code="GSP_TIMEOUT", body=Body.GSP, half=True, tag="gsp"),
    # NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED]
    rule(N, E, "NV_ERR_RESET_REQUIRED", r"NVRM:? .*(?P<kind>Assertion) failed: (?P<what>[^\[@]*)(?:\[(?P<status>NV_ERR_RESET_REQUIRED)\])?(?:.*@ (?P<file>\S+:\d+))?",
         "", refine=_assertion, escalates=X, tag="assert"),
    # NVRM: nvAssertFailedNoLog: Assertion failed: pIOVAS != NULL @ io_vaspace.c:592
    # NVRM: nvAssertOkFailedNoLog: Assertion failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from f() @ mem.c:76
    # NVRM: nvCheckFailedNoLog: Check failed: status == NV_OK @ gpu_user_shared_data.c:503
    # NVRM nvAssertFailedNoLog: Assertion failed: status == NV_OK @ kernel_gsp_ga102.c:235      (drivers 515 to 520)
    *(
        rule(N, E, literal, r"NVRM:? .*(?:(?P<kind>[Aa]ssertion) failed:?|Check failed:) ?(?P<what>[^\[@]*)(?:\[(?P<status>NV_ERR_\w+)\])?(?:.*@ (?P<file>\S+:\d+))?",
             "", refine=_assertion, tag="assert")
        for literal in ("ssertion", "Check failed: ")
    ),
    # NVRM: API mismatch: the client has the version 570.133.20, but
    rule(N, E, "API mismatch", r"NVRM:? API mismatch", "NVRM API mismatch between library and kernel module",
         code="API mismatch", tag="api"),
    # NVRM: The NVIDIA probe routine failed for 1 device(s).
    rule(N, E, "NVIDIA", r"NVRM:? (?:The NVIDIA probe routine (?P<what>failed|was not called)|None of the NVIDIA devices were|No NVIDIA (?:GPU found|devices probed|PCI devices found))",
         "NVRM probe routine {what}", code="probe", body=Body.RM_INIT, tag="probe"),
    # NVRM: GPU is lost, skipping nvidia_ioctl      RECONSTRUCTED
    rule(N, F, "GPU is lost", r"NVRM:? .*GPU is lost", "GPU is lost", code="GPU is lost", tag="gone"),
    # NVRM: dma-buf attach failed: PCI topology not supported for dma-buf      RECONSTRUCTED
    rule(N, E, "dma-buf attach failed", r"NVRM:? (?P<code>dma-buf attach failed): (?P<reason>.*)",
         "NVRM dma-buf attach failed: {reason}", tag="dmabuf"),
    # NVRM: rpcRmApiControl_GSP: GspRmControl failed: hClient=0xc1d00069; ... status=0x00000062
    # NVRM: GPU 0000:01:00.0: request_irq() failed (-22)
    # NVRM: failed to get dma-buf file descriptor      RECONSTRUCTED
    rule(N, E, "NVRM", r"NVRM(?::| \w+:)", "", refine=_nvrm_other, failing=True, tag="nvrm"),
    # NVRM: Attempting to remove device 0000:01:00.0 with non-zero usage count!
    # NVRM: GPU0 kgspRpcPmuHalted: Received signal from GSP that PMU has halted.      RECONSTRUCTED
    rule(N, E, "NVRM", r"NVRM:.*(?:NV_ERR_|mismatch|non-zero usage count|is not supported|bugcheck|has halted)",
         "", refine=_nvrm_other, tag="nvrm"),
    # NVRM: GPU0 kern_gmmu_handle: Physical MMU fault      RECONSTRUCTED
    # NVRM: GPU0 kgspDumpGspLogs_IMPL: =============== GSP-RM unresponsive ==================      RECONSTRUCTED
    rule(N, W, "NVRM", rf"NVRM:? (?:GPU\d+ |GPU \S+: )?_?[a-z]\w*[A-Z_]\w*: .*(?:{_NVRM_COMPLAINTS})", "", refine=_nvrm_other, tag="nvrm"),
    # nvidia-modeset: ERROR: GPU:0: Failed detecting connected display devices
    rule(N, E, "nvidia-modeset", r"nvidia-modeset: ERROR: (?P<what>.*)", "nvidia-modeset: {what}",
         code="modeset", tag="modeset"),
    # nvidia-nvswitch0: nvswitch_poll_sublink_state: timeout occurred while polling sublink      RECONSTRUCTED
    # nvidia-nvlink: Failed to initialize link 3      RECONSTRUCTED
    rule(N, E, "nvidia-nv", r"(?P<code>nvidia-nvswitch|nvidia-nvlink)\d*: (?P<what>.*)", "{code}: {what}", failing=True, tag="nvlink"),
    # [drm:nv_drm_load [nvidia_drm]] *ERROR* [nvidia-drm] [GPU ID 0x00000100] Failed to allocate NvKmsKapiDevice
    rule(N, E, "[nvidia-drm]", r"\[nvidia-drm\] .*(?P<what>[Ff]ailed .*)", "nvidia-drm: {what}", code="nvidia-drm", tag="drm"),
    # nvidia-uvm: uvm_pmm_gpu.c:3176 devmem_alloc_pagemap[pid:92821] request_free_mem_region() err -34
    # nvidia-uvm: uvm_gpu.c:1234 nvidia_uvm_foo[pid:1] RM call failed ... status 0x...      RECONSTRUCTED
    rule(N, E, "nvidia-uvm", r"nvidia-uvm: .*(?P<what>ERROR|[Aa]ssert|[Ff]atal|failed|\berr -\d+)", "nvidia-uvm: {what}",
         code="uvm", tag="uvm"),
)  # fmt: skip

PEERMEM_RULES: tuple[Rule, ...] = (
    # gdrdrv:__gdrdrv_pin_buffer:nvidia_p2p_get_pages(va=fffd39e00000 len=65544 p2p_token=0 va_space=0 callback=ffffc080a8de0230) failed [ret = -22]
    # gdrdrv:gdrdrv_remap_gpu_mem:error -22,  in remap_pfn_range()
    rule(EventClass.RDMA, E, "gdrdrv:", r"gdrdrv:(?:(?P<func>\w+):)?(?:(?P<call>\w+)\(.*\) failed \[ret = (?P<ret>-\d+)\]|error (?P<err>-\d+)\b)",
         "gdrdrv {func} failed", code="{ret}{err}", tag="gdrdrv"),
    # nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing
    # nv_mem nv_get_p2p_free_callback:155 nv_get_p2p_free_callback -- invalid dma_mapping
    rule(EventClass.RDMA, E, "nv",
         r"(?:nvidia[-_]peermem|nv_mem|nv_peer_mem):? (?P<code>(?P<func>\w+):\d+) (?!TRACE)(?P<what>(?:ERROR|error|.* -- |.*fail|.*invalid).*)",
         "", refine=_peermem, tag="peermem"),
)  # fmt: skip
