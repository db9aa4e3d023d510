"""Which witnesses suit a run: a list of them, not started, for the devices under test. Opens nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gdrstorm.kmsg.witness import Witness
from gdrstorm.kmsg.witness.aer import AerCounters
from gdrstorm.kmsg.witness.hung import HungThreads
from gdrstorm.kmsg.witness.netlink import DevlinkHealth, LinkState, Uevents
from gdrstorm.kmsg.witness.port import PortCounters
from gdrstorm.kmsg.witness.presence import Presence
from gdrstorm.kmsg.witness.pstore import Pstore
from gdrstorm.kmsg.witness.taint import TaintFlags
from gdrstorm.kmsg.witness.tracefs import TraceEvents


def select_witnesses(
    bdfs: Sequence[str] = (),
    ibdevs: Sequence[str] = (),
    netdevs: Sequence[str] = (),
    pids: Callable[[], Iterable[int]] | None = None,
    root: Path = Path("/"),
) -> list[Witness]:
    """All witnesses beside the log, each for the devices named (empty: for all there are).

    A witness that cannot look here says so by OSError from start(): leave it out and record the reason.
    """
    sys = root / "sys"
    found: list[Witness] = [
        AerCounters(bdfs, sys),
        PortCounters(ibdevs, sys),
        Presence(bdfs, ibdevs, sys),
        TaintFlags(root / "proc"),
        TraceEvents(sys / "kernel/tracing"),
        LinkState(netdevs),
        Uevents(bdfs),
        DevlinkHealth(bdfs),
        Pstore(sys / "fs/pstore"),
    ]
    if pids is not None:
        found.append(HungThreads(pids, root=root / "proc"))
    return found
