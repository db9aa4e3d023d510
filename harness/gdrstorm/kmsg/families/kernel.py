"""The kernel about itself: BUG, oops, WARNING, sanitizers, lockdep, hung tasks, lock-ups, RCU, memory, modules.

Sources: lib/bug.c, kernel/panic.c, arch/*/kernel/traps.c and dumpstack.c, mm/kasan, mm/kfence, lib/ubsan.c,
kernel/locking/lockdep.c, kernel/hung_task.c, kernel/watchdog.c, kernel/rcu/tree_stall.h, mm/oom_kill.c,
mm/page_alloc.c, lib/refcount.c, lib/list_debug.c, kernel/module, kernel/dma/debug.c.
"""

# Patterns and the real lines above them stay in one piece, so that they can be searched for.
# ruff: noqa: E501

from __future__ import annotations

import re

from gdrstorm.kmsg.rules import Body, Head, Line, Rule, parse_bdf, rule
from gdrstorm.kmsg.titles import normalise_title
from gdrstorm.model.event import EventClass, Severity

_DEVICE = re.compile(r"\b([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\b")


def _no_device(head: Head, found: re.Match[str], line: Line) -> Head:
    head.device = None
    return head


def _place(head: Head, found: re.Match[str], line: Line) -> Head:
    """`drivers/dma-buf/dma-buf.c:1527` is coded `dma-buf.c:1527`; the function names the title."""
    head.device = None
    if path := found.groupdict().get("path"):
        head.code = path.rsplit("/", 1)[-1]
    func = found.groupdict().get("func")
    if func:
        head.details["function"] = func
        head.code = head.code or func
    head.title = f"{head.title} in {func}" if func else f"{head.title} at {head.code}"
    return head


def _lockdep(head: Head, found: re.Match[str], line: Line) -> Head:
    head.device = None
    head.incomplete = "trying to" in found[0]
    return head


def _stack(head: Head, found: re.Match[str], line: Line) -> Head:
    """The function that is to blame comes with RIP or the first frame of the trace."""
    head.device = None
    head.title = normalise_title(head.title)
    return head


def _dma_api(head: Head, found: re.Match[str], line: Line) -> Head:
    device = _DEVICE.search(line.text)
    head.device = parse_bdf(device[1]) if device else None
    what = re.sub(r"^\S+ [0-9a-f:.]+: |\s*\[.*", "", found["what"])
    what = normalise_title(what)
    head.title = f"DMA-API: {what}"
    head.code = what[:80]
    return head


def _other_bug(head: Head, found: re.Match[str], line: Line) -> Head:
    head.device = None
    head.code = (head.code or "BUG").strip()
    head.title = normalise_title(f"BUG: {head.code}")
    return head


K, Wn = EventClass.KERNEL_BUG, EventClass.KERNEL_WARN
F, E, W = Severity.FATAL, Severity.ERROR, Severity.WARNING
T = Body.TRACE
_FUNC = r"(?P<func>[A-Za-z_][\w.]*)"
_SRC = r"(?P<path>[\w./+-]*\w\.[chSs](?:rs)?:\d+)"

SANITIZER_RULES: tuple[Rule, ...] = (
    # BUG: KASAN: use-after-free in mlx5_cmd_set_fte+0x200d/0x24c0 [mlx5_core]
    rule(EventClass.KASAN, F, "KASAN:", r"\bBUG: KASAN: (?P<kind>[\w-]+(?: or [\w-]+)?)(?: in (?P<code>[A-Za-z_][\w.]*))?",
         "KASAN: {kind} in {code}", body=T, refine=_no_device, tag="kasan"),
    # BUG: KFENCE: use-after-free read in test_double_free+0x1dc/0x1fa
    rule(EventClass.KFENCE, F, "KFENCE:", r"BUG: KFENCE: (?P<kind>[\w -]+?)(?: in (?P<code>[A-Za-z_][\w.]*)|$)",
         "KFENCE: {kind} in {code}", body=T, refine=_no_device, tag="kfence"),
    # BUG: KCSAN: data-race in mlx5_ib_dereg_mr / mlx5_ib_reg_user_mr
    rule(EventClass.KCSAN, E, "KCSAN:", r"BUG: KCSAN: (?P<kind>[\w-]+(?:: race)?)(?: in (?P<code>[A-Za-z_][\w.]*))?",
         "KCSAN: {kind} in {code}", body=T, refine=_no_device, tag="kcsan"),
    # BUG: KMSAN: uninit-value in rdma_user_mmap_io+0x1/0x2                             RECONSTRUCTED
    rule(EventClass.KMSAN, F, "KMSAN:", r"BUG: KMSAN: (?P<kind>[\w-]+)(?: in (?P<code>[A-Za-z_][\w.]*))?",
         "KMSAN: {kind} in {code}", body=T, refine=_no_device, tag="kmsan"),
    # UBSAN: array-index-out-of-bounds in drivers/infiniband/core/umem.c:55:12
    rule(EventClass.UBSAN, E, "UBSAN", r"UBSAN: (?P<kind>[\w -]+?) in (?P<path>[\w./+-]+?:\d+)(?::\d+)?",
         "UBSAN: {kind}", body=T, refine=_place, tag="ubsan"),
    # Internal error: UBSAN: array index out of bounds: 00000000f2005512 [#1] PREEMPT SMP      (arm64, trapping)
    rule(EventClass.UBSAN, F, "UBSAN", r"(?:Internal error: |Oops: )UBSAN: (?P<kind>[\w -]+)", "UBSAN: {kind}", body=T,
         refine=_no_device, tag="ubsan"),
    rule(EventClass.UBSAN, E, "UBSAN: ", r"^\s*UBSAN: ", "UBSAN (line cut off)", body=T, half=True, tag="ubsan"),
    # BUG: memory leak      (how fuzzers print an entry of kmemleak's report)
    rule(EventClass.KMEMLEAK, W, "BUG: memory leak", r"\bBUG: memory leak", "kmemleak: memory leak", code="kmemleak", body=T,
         refine=_no_device, tag="kmemleak"),
    # kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)
    rule(EventClass.KMEMLEAK, W, "kmemleak", r"kmemleak: (?P<number>\d+) new suspected memory leaks",
         "kmemleak: suspected memory leaks", code="kmemleak", tag="kmemleak"),
)  # fmt: skip

_LOCKDEP_LINES = (
    r"possible circular locking dependency detected|possible recursive locking detected|inconsistent lock state|"
    r"possible irq lock inversion dependency detected|possible deadlock in \w+|bad unlock balance detected|"
    r"suspicious RCU usage|Invalid wait context|held lock freed|lock held when returning to user space|"
    r"nested lock was not taken|[\w-]+-safe -> [\w-]+-unsafe lock order detected|bad contention detected|"
    r"Nested lock was not taken|circular locking dependency|task exited while holding|trying to register non-static key"
)
LOCKDEP_RULES: tuple[Rule, ...] = (
    # WARNING: possible circular locking dependency detected
    # [ INFO: possible circular locking dependency detected ]       (before 4.11)
    # [ BUG: Invalid wait context ]
    # WARNING: python3/4398 still has locks held!
    # INFO: trying to register non-static key.
    *(
        rule(EventClass.LOCKDEP, E, literal, rf"(?:WARNING|INFO|BUG): (?:\S+/\d+ )?(?P<kind>{_LOCKDEP_LINES}|still has locks held|lock held at task exit time)", "lockdep: {kind}",
             body=T, refine=_lockdep, tag="lockdep")
        for literal in ("WARNING: ", "INFO: ", "BUG: ")
    ),
    # BUG: MAX_LOCKDEP_CHAINS too low!             (lockdep gives up; the kernel is fine)
    rule(EventClass.LOCKDEP, W, "BUG: MAX_", r"\bBUG: (?P<code>MAX_\w+) too low", "lockdep: {code} too low", body=T,
         refine=_no_device, tag="lockdep"),
    # drivers/infiniband/core/rdma_core.c:123 suspicious rcu_dereference_check() usage!
    rule(EventClass.LOCKDEP, E, "suspicious", r"(?P<path>[\w./-]+:\d+) suspicious \w+\(\) usage", "lockdep: suspicious RCU usage",
         body=T, refine=_place, half=True, tag="lockdep"),
    # python3/20557 is trying to acquire lock:           (headline lost)
    rule(EventClass.LOCKDEP, E, "is trying to", r"\S+/\d+ is trying to (?:acquire|release) lock", "lockdep report",
         body=T, refine=_lockdep, half=True, tag="lockdep"),
    #  *** DEADLOCK ***                                  (headline lost)
    rule(EventClass.LOCKDEP, E, "*** DEADLOCK ***", r"\*\*\* DEADLOCK \*\*\*", "lockdep report", code="DEADLOCK",
         body=T, refine=_lockdep, half=True, tag="lockdep"),
)  # fmt: skip

LOCKUP_RULES: tuple[Rule, ...] = (
    # watchdog: BUG: soft lockup - CPU#44 stuck for 26s! [python3:73464]
    # NMI watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [kworker/0:1:51]
    rule(EventClass.LOCKUP, F, "soft lockup", r"BUG: (?P<code>soft lockup)(?: - CPU#(?P<cpu>\d+))?(?: stuck for (?P<time>\d+s))?(?:! \[(?P<process>.*):(?P<pid>\d+)\])?",
         "soft lockup", body=T, refine=_stack, tag="lockup"),
    # watchdog: CPU4: Watchdog detected hard LOCKUP on cpu 3
    # NMI watchdog: Watchdog detected hard LOCKUP on cpu 0
    rule(EventClass.LOCKUP, F, "LOCKUP", r"Watchdog detected hard (?:LOCKUP)(?: on cpu (?P<cpu>\d+))?", "hard lockup",
         code="hard LOCKUP", body=T, refine=_stack, tag="lockup"),
    # BUG: workqueue lockup - pool cpus=1 node=0 flags=0x0 nice=0 stuck for 34s!
    rule(EventClass.LOCKUP, F, "workqueue lockup", r"BUG: (?P<code>workqueue lockup)", "workqueue lockup", body=T,
         refine=_stack, tag="lockup"),
    # INFO: task python3:2157 blocked for more than 120 seconds.
    # INFO: task kworker/0:1:12 blocked in I/O wait for more than 122 seconds.
    rule(EventClass.HUNG_TASK, E, "INFO: task ", r"INFO: task (?P<process>.+):(?P<pid>\d+) (?:blocked\b.*?|can't die) for more than (?P<time>\d+) seconds?",
         "hung task", body=T, refine=_stack, tag="hung"),
    # INFO: task python3:12632 can't die for more than 143 seconds.
    # INFO: task python3:2157 blo      (cut)
    rule(EventClass.HUNG_TASK, E, "INFO: task ", r"INFO: task (?P<process>\S+?):?(?P<pid>\d+)?(?: blo(?!cked on )\w*.*)?$", "hung task (line cut off)",
         body=T, refine=_stack, half=True, tag="hung"),
    # rcu: INFO: rcu_sched detected stalls on CPUs/tasks:
    # rcu: INFO: rcu_preempt self-detected stall on CPU
    # rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 3-... } 21 jiffies s: 1
    rule(EventClass.RCU_STALL, E, "stall", r"INFO: (?P<code>rcu_\w+) (?P<kind>detected stalls|self-detected stall|detected expedited stalls|detected stall)",
         "RCU stall {code}", body=T, refine=_stack, tag="rcu"),
    # rcu: rcu_preempt kthread starved for 5255 jiffies! g1 f0x0 RCU_GP_WAIT_FQS(5) ->state=0x0 ->cpu=1
    rule(EventClass.RCU_STALL, E, "kthread starved", r"(?P<code>rcu_\w+) kthread starved for", "RCU stall {code}", body=T,
         refine=_stack, half=True, tag="rcu-starved"),
)  # fmt: skip

_OOPS = (
    r"general protection fault|divide[ _]error|invalid opcode|double fault|stack segment|stack-segment|int3|"
    r"alignment check|segment not present|invalid TSS|bounds|coprocessor segment overrun|control protection"
)
BUG_RULES: tuple[Rule, ...] = (
    # list_add corruption. prev->next should be next (ffffffffc0ceb090), but was ffffec604507edc8. (prev=...).
    # list_del corruption, ffff88810a8c1c00->next is LIST_POISON1 (dead000000000100)
    rule(K, F, "list_", r"\b(?P<kind>(?:h?list_(?:add|del)(?:_rcu|_entry)?) (?:corruption|double add))", "list corruption: {kind}",
         code="list corruption", body=T, refine=_no_device, awaits=True, tag="list"),
    # CFI failure at __cgroup_bpf_check_dev_permission+0x1d3/0x200 (target: bpf_prog_0123456789abcdef; expected type: 0x01234567)
    rule(K, F, "CFI failure", r"CFI failure at (?P<code>[A-Za-z_][\w.]*)", "CFI failure in {code}", body=T, refine=_no_device, awaits=True,
         tag="cfi"),
    # kernel BUG at drivers/dma-buf/dma-buf.c:174!
    rule(K, F, "kernel BUG at", r"kernel BUG at ?(?P<path>[\w./+-]+:\d+)?", "kernel BUG", body=T, refine=_place, tag="bug"),
    # BUG: kernel NULL pointer dereference, address: 0000000000000010
    # BUG: unable to handle page fault for address: ffffc90000a00000
    # BUG: unable to handle kernel paging request at ffffc90000a00000
    rule(K, F, "BUG: ", r"\bBUG: (?P<kind>[Kk]ernel NULL pointer dereference|[Uu]nable to handle (?:kernel )?(?:page fault|paging request|NULL pointer dereference|data access|instruction fetch|unknown data access)|stack guard page was hit|TASK stack guard page was hit)",
         "{kind}", body=T, refine=_stack, tag="oops"),
    # Unable to handle kernel NULL pointer dereference at virtual address 0000000000000008        (arm64)
    rule(K, F, "Unable to handle kernel", r"Unable to handle kernel (?P<kind>NULL pointer dereference|paging request|\w+[\w ]*?) at",
         "{kind}", body=T, refine=_stack, tag="oops"),
    # Internal error: Oops: 0000000096000004 [#1] SMP                                              (arm64)
    rule(K, F, "Internal error:", r"Internal error: (?P<kind>[^\[0-9:][^\[0-9]*?)?[:, ]*[0-9a-f]* \[#\d+\]", "{kind}", body=T,
         refine=_stack, tag="oops"),
    # general protection fault, probably for non-canonical address 0x300610d01000000: 0000 [#1] PREEMPT
    # Oops: general protection fault, probably for non-canonical address 0xdffffc0000000001: 0000 [#1] SMP
    *(
        rule(K, F, literal, rf"^\s*(?:Oops: )?(?:segment-related )?(?P<kind>{_OOPS})(?=[,:]| for | maybe )(?!.* ip:)(?:.*: [0-9a-f]{{4}} \[#\d+\]|,.*)", "{kind}",
             body=T, refine=_stack, tag="oops")
        for literal in ("[#", "fault, ")
    ),
    # PANIC: double fault, error_code: 0x0
    rule(K, F, "PANIC", r"^\s*PANIC: (?P<kind>double fault|early exception)", "{kind}", body=T, refine=_stack, tag="oops"),
    # Oops: 0000 [#1] SMP PTI
    # Oops: Oops: 0002 [#1] SMP NOPTI
    # Oops [#1]                                               (RISC-V)
    # Oops: Kernel access of bad area, sig: 11 [#1]           (POWER)
    rule(K, F, "Oops", r"^\s*Oops:? (?:Oops: )?(?P<kind>[\w ,-]*?):? ?(?:sig: \d+ |[0-9a-f]{4,16} )?\[#\d+\]", "Oops {kind}", body=T,
         refine=_stack, half=True, tag="oops"),
    # BUG: Dentry ffff880175978600{i=27,n=lo}  still in use (1) [unmount of proc proc]
    # BUG: Dentry 00000000e6f5a9d6{i=8,n=bus}  still in use (1) [unmount of cgroup cgroup]
    rule(K, F, "BUG: Dentry", r"\bBUG: Dentry \S+", "dentry still in use at unmount", code="Dentry still in use", body=T,
         refine=_no_device, awaits=True, tag="bug"),
    # VFS: Busy inodes after unmount of sda1. Self-destruct in 5 seconds.  Have a nice day...
    # VFS: Close: file count is 0
    rule(K, F, "VFS: ", r"VFS: (?P<code>Busy inodes after unmount|Close: file count is (?:0|zero))", "VFS: {code}", refine=_no_device, tag="vfs"),
    # BUG: Bad page state in process ib_write_bw  pfn:7ebca0
    # BUG: Bad rss-counter state mm:00000000a1b2c3d4 idx:1 val:5
    rule(K, F, "BUG: Bad", r"BUG: (?P<code>Bad [\w-]+(?: (?:state|map|cache))?)(?: in process (?P<process>.*?)\s+pfn)?", "BUG: {code}", body=T,
         refine=_no_device, tag="bug"),
    # BUG kmalloc-64 (Tainted: G    B     ): Poison overwritten
    rule(K, F, "BUG ", r"^\s*BUG (?P<cache>[\w.-]+) \([^)]*\): (?P<code>[\w ]+)", "SLUB: {code}", body=T, refine=_no_device, tag="slub"),
    # BUG: sleeping function called from invalid context at kernel/locking/mutex.c:580
    # BUG: scheduling while atomic: swapper/0/0/0x00000002
    # BUG: spinlock bad magic on CPU#1, kworker/1:1/45
    rule(K, F, "BUG: ", r"(?<! - )\bBUG: (?!KASAN|KFENCE|KCSAN|KMSAN|RESTRACK|soft lock)(?P<code>[A-Za-z][\w .'/()-]*?)(?= (?:at|in|on|for) |[:,!\[{]|$)",
         "", body=T, refine=_other_bug, tag="bug"),
    # Kernel panic - not syncing: Fatal exception
    rule(K, F, "Kernel panic", r"Kernel panic(?: - (?:not syncing)?:? ?(?P<kind>.*))?", "kernel panic: {kind}", code="panic",
         body=T, refine=_stack, tag="panic"),
    # BUG: KASA      (cut)
    rule(K, F, "BUG:", r"\bBUG:", "BUG (line cut off)", code="BUG", body=T, refine=_no_device, half=True, tag="bug"),
)  # fmt: skip

WARN_RULES: tuple[Rule, ...] = (
    # refcount_t: underflow; use-after-free.
    rule(Wn, E, "refcount_t", r"refcount_t: (?P<kind>[\w ,;-]+)", "refcount_t: {kind}", code="refcount_t", body=T,
         refine=_no_device, awaits=True, tag="refcount"),
    # ODEBUG: free active (active state 0) object: ffff888123 object type: timer_list hint: poll_health+0x0/0x2 [mlx5_core]
    rule(Wn, E, "ODEBUG", r"ODEBUG: (?P<kind>\w+ (?:active|destroyed|not available)).*?(?:object type: (?P<type>\w+))?", "ODEBUG: {kind}",
         code="ODEBUG", body=T, refine=_no_device, awaits=True, tag="odebug"),
    # WARNING: CPU: 2 PID: 2255 at drivers/dma-buf/dma-buf.c:1527 dma_buf_vmap+0x224/0x430
    rule(Wn, W, "WARNING: ", rf"WARNING: CPU: \d+ PID: -?\d+ at (?:{_SRC}(?: |$))?{_FUNC}?", "WARNING", body=T, refine=_place, tag="warn"),
    # WARNING: drivers/dma-buf/dma-buf.c:1527 at dma_buf_vmap+0x224/0x430, CPU#2: python3/2255
    rule(Wn, W, "WARNING: ", rf"WARNING: (?:\[[^\]]*\] )?{_SRC} at (?:{_FUNC}|0x)", "WARNING", body=T, refine=_place, tag="warn"),
    # WARNING: lib/debugobjects.c:615 at 0x0, CPU#1: kworker/1:3/17677
    # WARNING: at drivers/infiniband/core/umem.c:55 ib_umem_release+0x1/0x2()                       (before 3.11)
    rule(Wn, W, "WARNING: ", rf"WARNING: at (?:{_SRC}(?: |$))?{_FUNC}?", "WARNING", body=T, refine=_place, tag="warn"),
    # WARNING: CPU: 2 PI      (cut)
    rule(Wn, W, "WARNING: ", r"WARNING: (?:C(?:P|$)|(?:drivers|kernel|mm|lib|net|fs|arch|include|block|security|crypto)/)", "WARNING (line cut off)",
         body=T, refine=_no_device, half=True, tag="warn"),
    # WARNING: kernel stack regs at ffff8801d100fea8 in python3:16059 has bad 'bp' value ffff8801d100ff28
    rule(Wn, W, "WARNING: kernel stack", r"WARNING: (?P<code>kernel stack) (?:regs|frame pointer)", "WARNING: kernel stack has bad values",
         body=T, refine=_no_device, tag="unwind"),
    # ------------[ cut here ]------------
    rule(Wn, W, "cut here", r"^\s*-+\[ cut here \]-+", "WARNING (report cut off)", body=T, refine=_no_device, weak=True, tag="cut"),
    # irq 16: nobody cared (try booting with the "irqpoll" option)
    rule(Wn, E, "nobody cared", r"irq (?P<irq>\d+): (?P<code>nobody cared)", "irq nobody cared", body=T, refine=_no_device, tag="irq"),
    # sysfs: cannot create duplicate filename '/class/infiniband/mlx5_0'
    rule(Wn, W, "duplicate filename", r"sysfs: (?P<code>cannot create duplicate filename)", "sysfs: {code}", body=T, refine=_no_device, tag="sysfs"),
    # kobject: 'mlx5_0' (00000000a1b2c3d4): tried to add an uninitialized object, something is seriously wrong.
    rule(Wn, E, "seriously wrong", r"kobject.*: (?P<what>tried to .*), something is seriously wrong", "kobject: {what}", code="kobject", body=T,
         refine=_no_device, tag="kobject"),
    # unchecked MSR access error: RDMSR from 0x19c at rIP: 0xffffffff8106b0f8 (native_read_msr+0x8/0x40)
    rule(Wn, W, "unchecked MSR", r"(?P<code>unchecked MSR access error)", "{code}", body=T, refine=_no_device, tag="msr"),
    # unregister_netdevice: waiting for eth0 to become free. Usage count = 2
    rule(Wn, W, "unregister_netdevice", r"(?P<code>unregister_netdevice): waiting for \S+ to become free", "unregister_netdevice waits",
         refine=_no_device, tag="netdev"),
    # ref_tracker: net notrefcnt@ffff88813 has 1/1 users at                                          RECONSTRUCTED
    rule(Wn, E, "ref_tracker", r"(?P<code>ref_tracker): .* has \d+/\d+ users? at", "ref_tracker: reference leak", body=T,
         refine=_no_device, tag="reftracker"),
)  # fmt: skip

MEMORY_RULES: tuple[Rule, ...] = (
    # stress invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
    rule(EventClass.OOM, E, "oom-killer", r"(?P<process>\S.*?) invoked oom-killer", "OOM killer", code="oom-kill", body=Body.OOM,
         refine=_no_device, tag="oom"),
    # Memory cgroup out of memory: Killed process 1234 (stress) total-vm:...
    # Out of memory: Killed process 1234 (python3) total-vm:...
    rule(EventClass.OOM, E, "ut of memory: Kill", r"(?:Memory cgroup out|Out) of memory: Kill(?:ed)? process (?P<pid>\d+) \((?P<process>[^)]*)\)?",
         "OOM killer", code="oom-kill", body=Body.OOM, refine=_no_device, tag="oom"),
    # oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/test      (headline lost)
    rule(EventClass.OOM, E, "oom-kill:", r"oom-kill:constraint=(?P<constraint>\w+)", "OOM killer", code="oom-kill", body=Body.OOM,
         refine=_no_device, half=True, tag="oom"),
    # swapper/21: page allocation failure: order:0, mode:0x20
    # warn_alloc: 3 callbacks / python3: page allocation stalls for 10000ms, order:4
    rule(EventClass.OOM, W, "page allocation", r"(?P<process>\S.*?): page allocation (?:failure|stalls)[^,]*?(?:: |, )(?P<code>order:\d+)", "page allocation failure {code}",
         body=T, refine=_no_device, tag="alloc"),
    rule(EventClass.OOM, W, "page allocation", r"page allocation (?:failure|stalls)", "page allocation failure", body=T,
         refine=_no_device, half=True, tag="alloc"),
    # vmap allocation for size 4198400 failed: use vmalloc=<size> to increase size
    # python3: vmalloc error: size 4096, page order 0, failed to allocate pages, mode:0xcc2(GFP_KERNEL|__GFP_HIGHMEM)
    rule(EventClass.OOM, W, "vma", r"(?:vmap (?P<code>allocation) for size \d+ failed|(?P<what>vmalloc error: ))", "vmalloc failure",
         code="vmalloc", body=T, refine=_no_device, tag="alloc"),
    # vmalloc: allocation failure: 4294967296 bytes                                                    (before 5.12)
    rule(EventClass.OOM, W, "vmalloc: ", r"vmalloc: allocation failure", "vmalloc failure", code="vmalloc", body=T, refine=_no_device, tag="alloc"),
    # cma: cma_alloc: reserved: alloc failed, req-size: 4096 pages, ret: -12
    rule(EventClass.OOM, W, "cma_alloc", r"cma: (?:\w+: )?cma_alloc: .*alloc failed|cma_alloc: alloc failed", "contiguous memory not available", code="cma",
         refine=_no_device, tag="alloc"),
    # SLUB: Unable to allocate memory on node -1, gfp=0xcc0(GFP_KERNEL)
    rule(EventClass.OOM, W, "SLUB: Unable", r"SLUB: Unable to allocate memory", "SLUB allocation failure", code="SLUB", body=Body.OOM,
         refine=_no_device, tag="alloc"),
)  # fmt: skip

MODULE_RULES: tuple[Rule, ...] = (
    # nv_peer_mem: disagrees about version of symbol nvidia_p2p_get_pages
    rule(EventClass.MODULE, E, "disagrees about version", r"(?P<code>[\w-]+): disagrees about version of symbol (?P<symbol>\S+)",
         "module {code}: symbol version mismatch", refine=_no_device, tag="module"),
    # nv_peer_mem: Unknown symbol ib_register_peer_memory_client (err -22)
    rule(EventClass.MODULE, E, "Unknown symbol", r"(?P<code>[\w-]+): Unknown symbol (?P<symbol>\S+)", "module {code}: unknown symbol",
         refine=_no_device, tag="module"),
    # mlx5_core: version magic '6.8.0-54-generic SMP' should be '6.8.0-55-generic SMP'
    rule(EventClass.MODULE, E, "version magic", r"(?P<code>[\w-]+): version magic '", "module {code}: version magic", refine=_no_device, tag="module"),
    # nvidia_peermem: exports duplicate symbol nvidia_p2p_get_pages (owned by nvidia)
    rule(EventClass.MODULE, E, "exports duplicate symbol", r"(?P<code>[\w-]+): exports duplicate symbol (?P<symbol>\S+)",
         "module {code}: duplicate symbol", refine=_no_device, tag="module"),
    # module ib_core: .gnu.linkonce.this_module section size must match the kernel's built struct module size at run time
    # x86/modules: Skipping invalid relocation target, existing value is nonzero for type 1, loc ..., val ...
    rule(EventClass.MODULE, E, "module", r"(?:module (?P<code>[\w-]+): \.gnu\.linkonce\.this_module section size must match|x86/modules: (?:Skipping invalid|Invalid) relocation)",
         "module does not fit this kernel", refine=_no_device, tag="module"),
)  # fmt: skip

DMA_API_RULES: tuple[Rule, ...] = (
    # mlx5_core 0000:01:00.0: swiotlb buffer is full (sz: 65536 bytes), total 32768 (slots), used 120 (slots)
    rule(EventClass.DMA_API, E, "swiotlb buffer is full", r"(?P<code>swiotlb buffer is full)", "{code}", tag="swiotlb"),
    # mlx5_core 0000:01:00.0: overflow 0x0000000412345678+4096 of DMA mask ffffffff bus mask 0
    rule(EventClass.DMA_API, E, "of DMA mask", r"overflow 0x[0-9a-f]+\+\d+ of (?P<code>DMA mask)", "address beyond the DMA mask", body=T,
         awaits=True, tag="dmamask"),
    # DMA-API: mlx5_core 0000:01:00.0: device driver frees DMA memory with wrong function [device address=0x...] ...
    # DMA-API: exceeded 7 overlapping mappings of cacheline 0x0000000000123456
    # mlx5_core 0000:01:00.0: DMA-API: device driver has pending DMA allocations while released from device [count=1]
    rule(EventClass.DMA_API, E, "DMA-API", r"DMA-API: (?!preallocated|debugging enabled|debugging disabled|dma_debug_entry|\d+ debug)(?P<what>.*(?:driver|exceeded|overlapping|mapping|out of memory|corrupt|poison|error).*)",
         "", body=T, refine=_dma_api, awaits=True, tag="dmaapi"),
)  # fmt: skip
