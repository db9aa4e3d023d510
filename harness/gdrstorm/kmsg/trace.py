"""Stack traces and the text around them: which lines a kernel report has, and the function to blame. Pure.

Formats: arch/x86/kernel/dumpstack.c, arch/arm64/kernel/{traps,process}.c, lib/dump_stack.c, mm/kasan/report.c,
kernel/locking/lockdep.c, kernel/rcu/tree_stall.h, kernel/hung_task.c, mm/oom_kill.c, mm/debug.c.
"""

# ruff: noqa: E501  (word lists read better in blocks than one a line)

from __future__ import annotations

import re

from gdrstorm.kmsg.draft import Draft
from gdrstorm.kmsg.rules import Line
from gdrstorm.kmsg.titles import normalise_title
from gdrstorm.model.event import EventClass, Severity

_FRAME = re.compile(
    r"\s*(?:<(?:IRQ|NMI|SOFTIRQ|TASK)>\s*)?(?:\[(?:<[0-9a-f]+>|[0-9a-f]{8,16})\]\s*){0,2}(?P<unsure>\? )?\s*"
    r"(?P<func>[A-Za-z_][\w.$]*)\+0x[0-9a-f]+(?:/0x[0-9a-f]+)?(?: \[[\w -]+\])?"
)
_RIP = re.compile(
    r"\s*(?:(?:RIP|EIP|IP): (?:[0-9a-f]{4}:)?(?:\[<[0-9a-f]+>\] *)?(?:\[<[0-9a-f]+>\] )?|pc : |PC is at |epc : |"
    r"EIP is at |NIP \[[0-9a-f]+\] )"
    r"(?:\w*:){0,2}(?P<func>[A-Za-z_][\w.$]*)\+0x"
)
_REGISTERS = (
    r"(?:RIP|IP|NIP|LR|MSR|GPR\d+|CFAR|REGS|RSP|RAX|RBX|RCX|RDX|RSI|RDI|RBP|R\d\d|FS|CS|GS|DS|CR\d|DR\d|PKRU|Code|EIP|EAX|ESI|ESP|PGD|P4D|PUD|pgd|"
    r"Mem abort info|Data abort info|pstate|pc|lr|sp|x\d+|ESR|EC|SET|FnV|FSC|ISV|CM|GCS|user pgtable|swapper pgtable|epc|ra|"
    r"Flags|Control|badaddr)\b"
)
_WORDS = (
    r"CPU: \d|CPU \d+ |Call [Tt]race:|Hardware name:|Workqueue:|Modules linked in:|Unloaded tainted|Tainted:|"
    r"Not tainted|task:|Task |\"echo 0 >|---\[ end|------------\[ cut here|page:|page dumped because|flags: 0x|raw: |head: |"
    r"anon flags|aops:|memcg:|pfn:|page_owner|page last|note: |Fixing recursive|Disabling lock debugging|Sending NMI|"
    r"NMI backtrace|irq event stamp|hardirqs last|softirqs last|Kernel Offset|Rebooting in|Stack:|Showing|Blocked by|"
    r"stack backtrace:|Process |\#PF:|Oops:|Kernel panic - not syncing|Internal error|KASAN: |Dumping ftrace|"
    r"Last Breaking|Last Potential|Trace:|</?(?:TASK|IRQ|NMI|SOFTIRQ|EOI|EOE|\#\w+)>|\[[0-9a-f<>]{10,}\]|"
    r"Read of size|Write of size|Allocated by task|Freed by task|The buggy address|which belongs to|Memory state around|"
    r"Last potentially|The address |This frame has|kfence-\#|allocated by task|freed by task|Use-after-free|"
    r"Out-of-bounds|value changed|Reported by Kernel Concurrency|read(?:-write)? to 0x|write to 0x|race at unknown|"
    r"index -?\d+ is out of range|shift exponent|signed integer overflow|load of |member access|"
    r"INFO: lockdep is turned off|INFO: lock held|other info that|the existing dependency|which lock already|but task is|"
    r"but there are no|and this task|and interrupts could|Possible unsafe|Possible interrupt|\*\*\* DEADLOCK|"
    r"May be due to missing|-> \#\d|lock\(|<Interrupt>|CPU0 +CPU1|----|\d+ locks? held by|no locks held|"
    r"\#\d+: |locks held|rcu_scheduler_active|Chain exists of|to HARDIRQ|\{[\w-]+\} |\.\.\. (?:acquired|key)|"
    r"\S+/\d+ is (?:trying to|freeing|exiting)|[\w./-]+:\d+ suspicious |INFO: (?:Freed|Allocated|Slab|Object) |INFO: task .* blocked on |\[[0-9a-f]{8}\] \*pgd|"
    r"LR is at|PC is at|EIP is at|NIP \[|LR \[|Backtrace:|Instruction dump:|Oops \[\#|\[<[0-9a-f]{8}>\] \(|[0-9a-f]{4}: +[0-9a-f]{8}|"
    r"Faulting instruction|kernel tried to execute|the code is fine but|turning off the locking|you didn't initialize|caller is |"
    r"comm \"|hex dump|backtrace:|unreferenced object|\(detected by|\(t=\d|rcu: |\d+-[.!?D]+:|Tasks blocked|P\d+|"
    r"INFO: NMI handler|Code: |irq \d|handlers:|Disabling IRQ|Object |Redzone|Padding|Bytes b4|Slab 0x|"
    r"list_(?:add|del) corruption|warn_alloc|Mem-Info|Thread overran|Stopper|entry point|in_atomic|preempt_count|"
    r"RCU nest depth|=====|WARNING: (?:kernel )?stack|asm_\w+|Lockdep|\s*\^"
)
_LINE = re.compile(rf"\s*(?:{_REGISTERS} ?[:=]|{_WORDS}|>?[0-9a-f]{{16}}[: ]|[0-9a-f]{{8}} \(|\? )")
_LOCK = re.compile(r"\((?P<lock>[^()]+(?:\([^()]*\))?[^()]*)\)\{[^}]*\}")
_PLACE = re.compile(r"\s*(?P<place>[\w./-]+:\d+) suspicious ")
_END = re.compile(r"\s*---\[ end")
_TAIL = re.compile(
    rf"\s*(?:Kernel panic - not syncing|---\[ end|Kernel Offset|Rebooting in|note: |Fixing recursive|"
    rf"Disabling lock debugging|Dumping ftrace|{_REGISTERS} ?[:=])"
)
_OWN_HEADLINE = re.compile(
    r"(?<!\w)(?<! - )BUG: (?!KASAN: maybe)|INFO: task (?!.* blocked on )|INFO: rcu|hard LOCKUP|invoked oom-killer|Xid \(|AER: "
)
# The line of die() that follows a BUG: `invalid opcode: 0000 [#1] SMP` (x86), `Internal error: Oops - BUG: 0 [#1]` (Arm).
_DIE = re.compile(
    r"\s*(?:(?:Oops: )?[\w -]+: [0-9a-f]{4} \[#\d+\]|Internal error: .*\[#\d+\]|Oops \[#\d+\])"
)
# Since the message of a WARN may follow its headline, these open a report of their own and join it.
_WARN_MESSAGE = re.compile(r"\s*(?:list_(?:add|del) corruption|refcount_t:|ODEBUG:)")
# Frames that wait, lock, warn or switch: the caller is the one to blame.
_PLUMBING = re.compile(
    r"(?:__)?(?:schedule|io_schedule|context_switch|switch_to|cond_resched|preempt_schedule|wait_for_|wait_on_|wait_woken|"
    r"(?:down|up)$|mutex_|__mutex|ww_mutex|rwsem_|down_|up_|rt_mutex|raw_spin|_raw_|__raw_|queued_spin|native_queued|osq_lock|"
    r"synchronize_|rcu_|percpu_|bit_wait|out_of_line_wait|do_wait|schedule_|swait|usleep|msleep|ret_from_|entry_|asm_|"
    r"do_syscall|x64_sys|warn|report_bug|handle_bug|exc_|do_error|do_trap|refcount_|kref_|kobject_put|dump_stack|"
    r"show_|print_|kasan_|check_|__asan|kfence|ubsan|lock_acquire|lockdep|validate_chain|__lock|debug_|"
    r"panic|die|oops|no_context|page_fault|do_user_addr|bad_area|nmi|watchdog|hrtimer|sysvec|apic_timer|__sysvec|"
    r"common_interrupt|irq_exit|do_softirq|wake_up|dma_fence_wait|dma_fence_default_wait)"
)


def is_trace(text: str) -> bool:
    """Does the line look like part of a stack dump or of the report around one?"""
    return bool(_FRAME.match(text) or _LINE.match(text) or _RIP.match(text))


_OOM = re.compile(
    r"\s*(?:Mem-Info|active_anon|active_file|unevictable|slab_|mapped:|pagetables|free:|Node \d|DMA(?:32)?[ :]|Normal|lowmem_reserve|"
    r"\d+ (?:total )?pagecache|\d+ pages|[\d]+ swap|Swap cache|Free swap|Total swap|\[\s*(?:pid|\d+)\s*\]|Tasks state|oom-kill:|"
    r"(?:Memory cgroup )?[Oo]ut of memory|Memory cgroup|memory: usage|swap: usage|memory\+swap|kmem: usage|oom_reaper|"
    r"Out of memory|[a-z_]+ \d+$|SLUB|\s+cache:|\s+node \d|hugetlb|Purging)"
)


def is_oom(text: str) -> bool:
    """Does the line look like part of an out-of-memory report?"""
    return bool(_OOM.match(text)) and "invoked oom-killer" not in text


def lock_name(text: str) -> str | None:
    """`umem_mutex` of `(&umem_odp->umem_mutex){+.+.}-{4:4}`."""
    found = _LOCK.search(text)
    if not found:
        return None
    name = re.split(r"->|\.", found["lock"])[-1]
    return name.strip("&*() ").split("/")[0].split("#")[0] or None


def _frame(draft: Draft, text: str) -> None:
    """The first sure frame that does more than wait or warn is the culprit."""
    if not _FRAME.match(text):
        return
    draft.framed = True
    if "culprit" not in draft.details and (name := culprit_of([text])):
        draft.details["culprit"] = name


def culprit_of(stack: list[str]) -> str | None:
    """The first function of a stack dump (log or /proc/PID/stack) that does more than wait or warn."""
    for line in stack:
        found = _FRAME.match(line)
        if found and not found["unsure"]:
            name = normalise_title(found["func"])
            if not _PLUMBING.match(name.lstrip("_")) and not _PLUMBING.match(name):
                return name
    return None


def absorb(draft: Draft, line: Line) -> bool | None:
    """Part of this report? None: no; False: yes; True: its last line."""
    caller = line.record.caller
    if caller and draft.caller and caller != draft.caller:
        return None
    text = line.text
    if draft.ended and not _TAIL.match(text):
        return None
    if draft.tag in {"bug", "list"} and not draft.framed and _DIE.match(text):
        if "oops" in draft.details:
            return None
        draft.details["oops"] = normalise_title(text.partition("[#")[0])
        return False
    # Asked first: while a trace is open, most other lines end here.
    if not is_trace(text):
        return None
    if _OWN_HEADLINE.search(text):
        return None
    if "WARNING:" in text or "kernel BUG at" in text or "UBSAN:" in text:
        return None
    if draft.tag == "warn" and not draft.framed and _WARN_MESSAGE.match(text):
        return None
    if text.startswith("refcount_t:") or (line.bdf and not _FRAME.match(text)):
        return None
    if (
        "[#" in text
        and ("Oops" in text or _DIE.match(text))
        and draft.cls not in {EventClass.KERNEL_BUG, EventClass.KASAN}
    ):
        return None
    if (found := _RIP.match(text)) and not draft.ended:
        draft.details.setdefault("rip", normalise_title(found["func"]))
        draft.framed = True
    else:
        _frame(draft, text)
    if draft.cls is EventClass.LOCKDEP and "suspicious" in text and (place := _PLACE.match(text)):
        # Which locks were held matters less here than where they were missed.
        draft.code = place["place"].rsplit("/", 1)[-1]
    if draft.cls is EventClass.LOCKDEP and draft.code is None and (lock := lock_name(text)):
        draft.code = lock
    if "Kernel panic" in text:
        draft.details["panic"] = text.partition("syncing: ")[2].strip() or "yes"
        draft.raise_severity(Severity.FATAL)
    if _END.match(text):
        draft.incomplete = draft.awaits
        return True
    closing = draft.cls in {EventClass.KASAN, EventClass.KFENCE} and text.startswith("=====")
    return draft.framed and closing


_WANTS_FRAMES = frozenset(
    {
        EventClass.KASAN, EventClass.KFENCE, EventClass.KERNEL_BUG, EventClass.KERNEL_WARN, EventClass.HUNG_TASK,
        EventClass.LOCKUP, EventClass.LOCKDEP, EventClass.RCU_STALL, EventClass.UBSAN, EventClass.KCSAN,
    }
)  # fmt: skip


def complete(draft: Draft) -> None:
    """Name the function to blame, and say when the trace never came."""
    culprit = draft.details.get("culprit")
    rip = draft.details.get("rip")
    if draft.tag == "oops":
        draft.code = rip or culprit or draft.code or draft.details.get("kind", "oops")
        draft.title = f"{draft.details.get('kind', draft.title)} in {draft.code}"
        draft.incomplete = draft.incomplete and rip is None
    elif draft.cls is EventClass.HUNG_TASK:
        draft.code = culprit or draft.code
        draft.title = f"hung task in {draft.code}" if draft.code else draft.title
    elif draft.cls is EventClass.LOCKUP:
        if rip or culprit:
            draft.title = f"{draft.code} in {culprit or rip}"
    elif draft.cls is EventClass.LOCKDEP:
        draft.code = draft.code or draft.details.get("kind") or "lockdep"
        if draft.code not in draft.title:
            draft.title = f"{draft.title} on {draft.code}"
    elif draft.tag == "warn" and "function" not in draft.details and (rip or culprit):
        draft.title = f"WARNING in {rip or culprit}"
    elif draft.tag == "refcount" and culprit:
        draft.title = f"{draft.title} in {culprit}"
    if draft.cls in _WANTS_FRAMES and not draft.framed:
        draft.incomplete = True
