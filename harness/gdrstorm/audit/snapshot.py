"""What the stack holds right now, as counters: dma-buf objects and RDMA resources of the kernel.

Sources: debugfs dma_buf/bufinfo (drivers/dma-buf/dma-buf.c: dma_buf_debug_show) and the RDMA netlink family
(include/uapi/rdma/rdma_netlink.h: RDMA_NLDEV_CMD_RES_GET). Reads only; what cannot be read is named with the reason.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gdrstorm.audit.nldev import read_resources
from gdrstorm.model.audit import Counter, Snapshot, find_leaks

Source = Callable[[], Snapshot]

_TOTAL = re.compile(r"^Total (\d+) objects?, (\d+) bytes", re.MULTILINE)


def parse_bufinfo(text: str) -> tuple[int, int] | None:
    """Objects and bytes of the last line of bufinfo, or None when it has none."""
    match = _TOTAL.search(text)
    return (int(match[1]), int(match[2])) if match else None


def read_dmabufs(
    path: Path = Path("/sys/kernel/debug/dma_buf/bufinfo"), limit_s: float = 5.0
) -> Snapshot:
    """All dma-bufs of this kernel, whoever made them.

    The kernel takes every buffer's reservation lock for this file, so a call that hangs with one held would hang the
    reader, too: another process reads it, with a limit.
    """
    name = "dma-buf objects"
    try:
        done = subprocess.run(["cat", str(path)], capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return Snapshot(unknown={name: f"{path} does not answer: a buffer's lock is held"})
    if done.returncode:
        why = f"{path} cannot be read (needs root and debugfs mounted)"
        return Snapshot(unknown={name: why})
    parsed = parse_bufinfo(done.stdout.decode(errors="replace"))
    if parsed is None:
        return Snapshot(unknown={name: f"{path} has no line `Total N objects`"})
    return Snapshot((Counter(name, parsed[0]), Counter("dma-buf memory", parsed[1], "bytes")))


def read_rdma(device: str) -> Snapshot:
    """MRs, PDs, CQs, QPs and contexts that the RDMA core counts on one device."""
    try:
        resources = read_resources(device)
    except OSError as error:
        return Snapshot(unknown={f"{device} resources": error.strerror or str(error)})
    return Snapshot(tuple(Counter(f"{device} {kind}", count) for kind, count in resources.items()))


def merge(parts: Sequence[Snapshot]) -> Snapshot:
    """All counters of several snapshots."""
    counters: tuple[Counter, ...] = ()
    unknown: dict[str, str] = {}
    for part in parts:
        counters += part.counters
        unknown |= part.unknown
    return Snapshot(counters, unknown)


def take(sources: Sequence[Source]) -> Snapshot:
    return merge([source() for source in sources])


def take_settled(sources: Sequence[Source], before: Snapshot, wait_s: float = 2.0) -> Snapshot:
    """A snapshot after the work, repeated until nothing is left over or `wait_s` is gone.

    The kernel frees some things a little later (delayed fput, RCU, work queues); what is still there then is a leak.
    """
    deadline = time.monotonic() + wait_s
    while True:
        now = take(sources)
        if not find_leaks(before, now) or time.monotonic() > deadline:
            return now
        time.sleep(0.05)
