"""RDMA and DMA-BUF: mlx5 commands, health and completions, ib_core and uverbs, umem, dma-buf, P2PDMA refusals.

Sources: drivers/net/ethernet/mellanox/mlx5/core/{cmd,health,main,pagealloc}.c, drivers/infiniband/hw/mlx5/
{cq,umr,mr,odp}.c, drivers/infiniband/core, drivers/pci/p2pdma.c. mlx5 prints `function:line:(pid N):` before
errors and dynamic debug alike: the words decide, and debug records never count.
"""

# Patterns and the real lines above them stay in one piece, so that they can be searched for.
# ruff: noqa: E501

from __future__ import annotations

import re

from gdrstorm.kmsg.rules import Body, Head, Line, Rule, rule
from gdrstorm.kmsg.titles import normalise_title
from gdrstorm.model.event import EventClass, Severity

_IBDEV = re.compile(
    r"infiniband ([a-z]\w*): |(?:infiniband |^\s*)((?:mlx5|mlx4|bnxt_re|irdma|rxe|siw|efa|hfi1|ionic|mana)_?\w*)[: ]"
)
_ERRNO = re.compile(r"(?<![\w-])(-\d{1,3})\b(?!\.\d)")
_PLACE = re.compile(r"\b([a-z_]\w+):\d+:\(pid \d+\)")
_FUNCTION = re.compile(r"([a-z_]+_\w+): ")
# "error cqe on cqn" and its syndrome are debugging output of mlx5_ib: a bad completion has its report besides.
_HARMLESS = re.compile(
    r"not advertised|Supported|capab|[Ff]irmware version|is not supported|not supported|recovered|enabled|"
    r"Rate limit|Waiting for FW|timeout abort in|mlx5_pci_vsc_init|"
    r"(?:Requestor|Responder) error cqe on cqn|syndrome 0x[0-9a-f]+, vendor syndrome|"
    r"module verification failed|taints kernel|selftests|status no errors"
)


def ibdev_of(text: str) -> str | None:
    """`mlx5_0` of `infiniband mlx5_0: ...`; which bdf it is, the inventory knows."""
    found = _IBDEV.search(text)
    name = found[1] or found[2] if found else None
    return (
        None
        if name in {"mlx5_core", "mlx5_ib", "mlx4_core", "mlx4_ib", "bnxt_re", "irdma"}
        else name
    )


def _with_ibdev(head: Head, found: re.Match[str], line: Line) -> Head:
    if name := ibdev_of(line.text):
        head.details["ibdev"] = name
    return head


def _command(head: Head, found: re.Match[str], line: Line) -> Head:
    """Commands wait side by side: each has a report of its own."""
    head.tag = f"{head.tag} {head.code}"
    return head


def _health_level(head: Head, found: re.Match[str], line: Line) -> Head:
    level = found["level"] or ""
    if level in {"EMERGENCY", "ALERT", "CRITICAL"}:
        head.severity = Severity.FATAL
    elif level in {"WARNING", "NOTICE", "INFO", "DEBUG"}:
        head.severity = Severity.WARNING
    return head


def _other(head: Head, found: re.Match[str], line: Line) -> Head | None:
    """An mlx5 or ib_core line with a word of failure: the errno is the code, else the function."""
    text = line.text
    if _HARMLESS.search(text):
        return None
    errno_ = _ERRNO.search(text, found.start("what"))
    place = _PLACE.search(text)
    what = normalise_title(found["what"])
    where = place or _FUNCTION.match(found["what"])
    head.code = errno_[1] if errno_ else where[1] if where else what[:60]
    head.title = f"{found['driver']}: {what}"
    head.details = {"text": found["what"].strip()}
    if where:
        head.details["function"] = where[1]
    return _with_ibdev(head, found, line)


def _probe(head: Head, found: re.Match[str], line: Line) -> Head:
    driver = found["driver"]
    if driver.startswith("nvidia"):
        head.cls = EventClass.NVRM
    elif not driver.startswith("mlx5"):
        head.cls = EventClass.RDMA
    return head


def _dmabuf(head: Head, found: re.Match[str], line: Line) -> Head | None:
    if _HARMLESS.search(line.text):
        return None
    errno_ = _ERRNO.search(line.text)
    head.code = errno_[1] if errno_ else normalise_title(found["what"])[:60]
    head.title = f"dma-buf: {normalise_title(found['what'])}"
    return head


M, R, B, P = EventClass.MLX5, EventClass.RDMA, EventClass.DMABUF, EventClass.P2PDMA
F, E, W = Severity.FATAL, Severity.ERROR, Severity.WARNING
_AT = r"(?:\w+:\d+:\(pid \d+\): )?"

MLX5_RULES: tuple[Rule, ...] = (
    # mlx5_cmd_check:810:(pid 923941): create_mkey(0x200) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0x35e6ec)
    # mlx5_core 0000:61:00.0: mlx5_cmd_out_err:835:(pid 5): CREATE_MKEY(0x200) op_mod(0x0) failed, status no resources(0xf), syndrome (0x0), err(-11)
    rule(M, E, "op_mod", r"(?P<command>\w+\(0x[0-9a-f]+\)) op_mod\(0x[0-9a-f]+\) failed(?:, status (?P<status>[^,(]*\(?[^,]*))?(?:, syndrome \((?P<code>0x[0-9a-f]+)\))?",
         "mlx5 command {command} failed: {status}", refine=_with_ibdev, tag="mlx5-cmd"),
    # mlx5_core 0000:61:00.0: wait_func:1132:(pid 141181): CREATE_DCT(0x710) timeout. Will cause a leak of a command resource
    # mlx5_core 0000:08:00.0: cb_timeout_handler:889:(pid 6): cmd[0]: DESTROY_MKEY(0x202) Async, timeout. Will cause a leak ...
    rule(M, E, "(0x", r"(?<!\w)(?P<code>(?:[A-Z0-9][A-Z0-9_]+|unknown command opcode)\(0x[0-9a-f]+\)) (?:canceled on out of queue )?(?P<what>(?:Async, )?timeout|Async, recovered after timeout|recovered after timeout|canceled)",
         "mlx5 command {code} timeout", tag="mlx5-timeout"),
    # mlx5_core 0000:17:00.1: wait_func_handle_exec_timeout:1104:(pid 4321): cmd[3]: 2ERR_QP(0x507) No done completion
    rule(M, E, "No done completion", r"(?<!\w)(?P<code>(?:[A-Z0-9][A-Z0-9_]+|unknown command opcode)\(0x[0-9a-f]+\)) No done completion",
         "mlx5 command {code} timeout", body=Body.COMMAND, refine=_command, tag="mlx5-timeout"),
    # mlx5_core 0000:0d:00.0: poll_health:801:(pid 0): device's health compromised - reached miss count
    rule(M, F, "health compromised", r"device's (?P<code>health compromised)", "mlx5 health compromised",
         body=Body.HEALTH, tag="mlx5-health"),
    # mlx5_core 0000:bb:00.0: poll_health:1083:(pid 0): Fatal error 1 detected
    rule(M, F, "atal error", r"(?P<code>Fatal error(?: \d+)?) detected", "mlx5 {code}", body=Body.HEALTH, tag="mlx5-health"),
    # mlx5_core 0000:61:00.1: mlx5_health_try_recover:381:(pid 1): health recovery flow aborted, PCI reads still not working
    rule(M, F, "health recovery", r"(?P<code>health recovery (?:flow aborted|failed))", "mlx5 {code}",
         body=Body.HEALTH, tag="mlx5-health"),
    # mlx5_core 0000:0d:00.0: print_health_info:431:(pid 0): Health issue observed, firmware internal error, severity(3) ERROR:
    rule(M, E, "Health issue", r"Health issue observed(?:, (?P<code>[^,]+))?(?:, severity\((?P<number>\d+)\) (?P<level>\w+))?",
         "mlx5 health: {code}", body=Body.HEALTH, refine=_health_level, tag="mlx5-health"),
    # mlx5_core 0000:61:00.0: print_health_info:520:(pid 0): synd 0x10: High temperature
    rule(M, E, "synd 0x", r"(?<!ext_)synd (?P<code>0x[0-9a-f]+): (?P<what>.*)", "mlx5 health: {what}",
         body=Body.HEALTH, tag="mlx5-health"),
    # mlx5_core 0001:19:00.0: print_health_info:374:(pid 0): assert_var[0] 0x00000001      (no headline)
    rule(M, E, "assert_", r"\bassert_(?:var\[\d+\]|exit_ptr|callra) 0x", "mlx5 health dump", code="health dump",
         body=Body.HEALTH, half=True, tag="mlx5-health"),
    # mlx5_core 0000:61:00.0: temp_warn:171:(pid 0): High temperature on sensors with bit set 0 8000000000000001
    rule(M, W, "High temperature", r"(?P<code>High temperature) on sensors", "mlx5 high temperature",
         body=Body.HEALTH, tag="mlx5-temp"),
    # mlx5_core 0000:81:00.0: mlx5_pcie_event:299:(pid 268): Detected insufficient power on the PCIe slot (27W).
    rule(M, W, "insufficient power", r"(?P<code>insufficient power) on the PCIe slot", "mlx5 {code}", tag="mlx5-power"),
    # mlx5_core 0000:01:00.0: Port module event[error]: module 0, Cable error, Bus stuck (I2C or data shorted)
    rule(M, W, "Port module event", r"Port module event\[error\]: module \d+, Cable error(?:, (?P<what>.*))?",
         "mlx5 cable error: {what}", code="Cable error", tag="mlx5-cable"),
    # infiniband mlx5_0: mlx5_handle_error_cqe:332:(pid 0): WC error: 4, Message: local protection error
    rule(M, E, "WC error", r"WC error: (?P<number>\d+)(?:, Message: (?P<message>.*))?", "mlx5 completion error: {message}",
         code="WC {number}", body=Body.CQE, refine=_with_ibdev, tag="mlx5-cqe"),
    # infiniband mlx5_0: dump_cqe:272:(pid 0): dump error cqe
    # mlx5_0:dump_cqe:262:(pid 0): dump error cqe
    rule(M, E, "dump error cqe", r"dump error cqe", "mlx5 completion error", code="error CQE", body=Body.CQE,
         refine=_with_ibdev, half=True, tag="mlx5-cqe"),
    # mlx5_core 0000:01:00.0 eth0: Error cqe on cqn 0x408, ci 0x8, sqn 0x4e, opcode 0xd, syndrome 0x2, vendor syndrome 0x68
    rule(M, E, "Error cqe", r"Error cqe on cqn (?P<cqn>0x[0-9a-f]+).*(?:, syndrome (?P<code>0x[0-9a-f]+))(?:, vendor syndrome (?P<vendor>0x[0-9a-f]+))?",
         "mlx5 error CQE syndrome {code}", body=Body.CQE, tag="mlx5-cqe"),
    # infiniband mlx5_0: mlx5r_umr_post_send_wait:308:(pid 5): reg umr failed (6). Trying to recover and resubmit the flushed WQEs, mkey = 5
    rule(M, E, "reg umr failed", r"(?P<code>reg umr failed)(?: \((?P<status>\d+)\))?", "mlx5 UMR failed",
         refine=_with_ibdev, tag="mlx5-umr"),
    # mlx5_core 0000:01:00.0: probe of 0000:01:00.0 failed with error -110
    # mlx5_core 0000:01:00.0: probe with driver mlx5_core failed with error -16
    # nvidia: probe of 0000:01:00.0 failed with error -1
    rule(M, E, "failed with error", r"(?P<driver>mlx[45]_core|mlx[45]_ib|nvidia[-\w]*|irdma|ice|bnxt_\w+|hns3|efa|vfio-pci)\b.*?: probe (?:of (?P<bdf>[0-9a-f:.]+)|with driver \S+) failed with error (?P<code>-?\d+)",
         "probe of {driver} failed", refine=_probe, tag="probe"),
    # mlx5_core 0000:01:00.0 eth0: NETDEV WATCHDOG: CPU: 5: transmit queue 3 timed out 5123 ms
    # NETDEV WATCHDOG: ens1f0 (mlx5_core): transmit queue 4 timed out                                (a WARNING follows)
    rule(M, E, "NETDEV WATCHDOG", r"mlx5_core.*NETDEV WATCHDOG|NETDEV WATCHDOG: \S+ \(mlx5_core\)", "mlx5 transmit queue timed out",
         code="NETDEV WATCHDOG", body=Body.TRACE, awaits=True, tag="netdev"),
    # mlx5_core 0000:01:00.0: Firmware over 120000 MS in pre-initializing state, aborting
    rule(M, F, "irmware over", r"(?P<code>Firmware over) \d+ MS in \S+ state", "mlx5 firmware does not initialize", tag="mlx5-fw"),
    # infiniband mlx5_0: create_mkey_callback:131:(pid 0): async reg mr failed. status -12
    # mlx5_core 0000:01:00.0: give_pages:372:(pid 5): func_id 0x0, npages 1024, err -12      RECONSTRUCTED
    # infiniband mlx5_0: mlx5_ib_page_fault_resume:..: Failed to resolve the page fault on WQ 0x5 err -14      RECONSTRUCTED
    rule(M, E, "mlx5", r"^\s*(?P<driver>mlx5_core|mlx5_ib|infiniband mlx5_(?:bond_)?\d+|mlx5_\d+|mlx5_(?:warn|err|error)|mlx5e?)\b[^(]*?(?::\(pid \d+\))?: (?P<what>.*)",
         "", refine=_other, quiet_debug=True, failing=True, tag="mlx5-other"),
    # infiniband rocep33s0f0: create_mkey_callback:131:(pid 0): async reg mr failed. status -12   (renamed by udev)
    rule(M, E, ":(pid ", r"^\s*(?P<driver>infiniband [a-z]\w*): (?P<what>\w+:\d+:\(pid \d+\): .*)",
         "", refine=_other, quiet_debug=True, failing=True, tag="mlx5-other"),
)  # fmt: skip

RDMA_RULES: tuple[Rule, ...] = (
    # infiniband mlx5_0: BUG: RESTRACK detected leak of resources
    # restrack: Kernel PD object allocated by mlx5_ib is not freed
    rule(R, E, "RESTRACK", r"BUG: (?P<code>RESTRACK) detected leak", "RESTRACK detected leak of resources",
         body=Body.RESTRACK, refine=_with_ibdev, tag="restrack"),
    rule(R, E, "restrack:", r"restrack: .*is not freed", "RESTRACK detected leak of resources", code="RESTRACK",
         tag="restrack"),
    # infiniband rxe0: ib_query_port failed (-5)                                         RECONSTRUCTED
    rule(R, E, "nfiniband", r"^\s*(?P<driver>infiniband \S+): (?P<what>.*)", "", refine=_other,
         quiet_debug=True, failing=True, tag="rdma-other"),
    # mlx4_core 0000:05:00.0: Internal error detected:                                   (buf[..] lines follow)
    rule(R, F, "mlx4_", r"mlx4_\w+[ :].*(?P<code>Internal error detected)", "mlx4 internal error", tag="mlx4"),
    # mlx4_core 0000:03:00.0: command SET_PORT (0xc) failed: in_param=0x6098b5000, in_mod=0x1, op_mod=0x0, fw status = 0x40
    # mlx4_core 0000:03:00.0: command 0x31 timed out (go bit not cleared)
    rule(R, E, "mlx4_core", r"mlx4_core .*\bcommand (?P<code>\w+)(?: \(0x[0-9a-f]+\))? (?P<what>failed|timed out)", "mlx4 command {code} {what}",
         tag="mlx4"),
    # bnxt_en 0000:12:00.0: QPLIB: bnxt_re_is_fw_stalled: FW STALL Detected. cmdq[0xe]=0x3 waited (103641 > 100000) msec active 1
    # bnxt_en 0000:19:00.0: QPLIB: cmdq[0x41d]=0x3 timedout (20000)msec
    # bnxt_en 0000:19:00.0: QPLIB: cmdq[0x4b9]=0x15 status 0x5
    rule(R, E, "QPLIB: ", r"QPLIB: .*?(?P<code>FW STALL|(?<=\d )timedout|(?<=[0-9a-f] )send failed|(?<=[0-9a-f] )status 0x[0-9a-f]+)", "bnxt_re command: {code}",
         tag="bnxt"),
    # bnxt_en 0000:12:00.0 bnxt_re0: Failed to modify HW QP
    rule(R, E, "bnxt_re", r"^\s*(?P<driver>bnxt_en) \S+ bnxt_re\d*: (?P<what>.*)", "", refine=_other, quiet_debug=True,
         failing=True, tag="rdma-other"),
    # hns3 0000:7d:00.0 hns_0: Sanity check sq size failed
    # hns3 0000:7d:00.0: Invalid request local work queue 0x9 error.
    rule(R, E, "hns3 ", r"^\s*(?P<driver>hns3) [0-9a-f:.]+(?: hns_\d+: |: (?=.*(?:hns_roce|work queue|RoCE)))(?P<what>.*)", "", refine=_other,
         quiet_debug=True, failing=True, tag="rdma-other"),
    # ib_core: Failed to modify MR / rdma_rxe: unable to ...                             RECONSTRUCTED
    # _ib_cache_gid_del: can't delete gid fe80:0000:0000:0000:020a:f7ff:fee3:6e32 error=-22
    # mlx4_core 0000:01:00.0: Failed to map MCG context memory, aborting
    # <mlx4_ib> create_pv_sqp: Couldn't create special QP (-16)
    # efa 0000:00:06.0: Wait for completion (polling) timeout
    # rdma_rxe: rxe-pd pool destroyed with unfree'd elem
    rule(R, E, ": ", r"^\s*(?P<driver><?(?:ib_core|ib_uverbs|rdma_ucm|rdma_cm|iw_cm|ib_cm|rdma_rxe|siw|irdma|bnxt_re|uverbs\d*|ib_umem\w*|_?ib_cache_gid\w*|mlx4_core|mlx4_ib|efa|hns_roce\w*|erdma|hfi1|qedr|vmw_pvrdma)\b>?)(?: [0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?: \S+)?|[^:]*):? (?P<what>.*)",
         "", refine=_other, quiet_debug=True, failing=True, tag="rdma-other"),
)  # fmt: skip

P2PDMA_RULES: tuple[Rule, ...] = (
    # mlx5_core 0000:41:00.0: cannot be used for peer-to-peer DMA as the client and provider (0000:c1:00.0) do not share an upstream bridge or whitelisted host bridge
    # mlx5_core 0000:41:00.0: ACS redirect is set between the client and provider (0000:c1:00.0)
    rule(P, W, "peer-to-peer DMA", r"(?P<code>cannot be used for peer-to-peer DMA)(?:.*provider \((?P<provider>[0-9a-f:.]+)\))?",
         "P2PDMA refused: no common upstream bridge", tag="p2pdma"),
    rule(P, W, "ACS redirect", r"(?P<code>ACS redirect) is set between the client and provider(?: \((?P<provider>[0-9a-f:.]+)\))?",
         "P2PDMA refused: ACS redirect", tag="p2pdma"),
    # pci 0000:00:00.0: Host bridge not in P2PDMA whitelist: 8086:2020
    rule(P, W, "P2PDMA", r"(?P<code>[Hh]ost bridge not in P2PDMA whitelist)(?:: (?P<bridge>\S+))?", "P2PDMA refused: {code}",
         tag="p2pdma"),
)  # fmt: skip

DMABUF_RULES: tuple[Rule, ...] = (
    # vfio-pci 0000:01:00.0: dma_buf export failed -22      RECONSTRUCTED
    # DMA-BUF: attach failed -524      RECONSTRUCTED
    # dmabuf: cannot map attachment -12      RECONSTRUCTED
    # amdxdna 0000:c5:00.1: [drm] ERROR amdxdna_insert_pages: Failed to mmap dma buf -22
    *(
        rule(B, E, literal, r"^(?:.*: )?(?P<what>.*(?:(?i:dma[-_ ]buf)|dma_?buf).*)", "", refine=_dmabuf,
             quiet_debug=True, failing=True, tag="dmabuf")
        for literal in ("ma_buf", "ma-buf", "ma buf", "MA-BUF", "dmabuf")
    ),
    # amdxdna 0000:c5:00.1: [drm] ERROR amdxdna_gem_obj_mmap: Failed insert pages, ret -22
    rule(B, E, "Failed insert pages", r"(?P<what>Failed insert pages.*)", "", refine=_dmabuf, tag="dmabuf"),
)  # fmt: skip
