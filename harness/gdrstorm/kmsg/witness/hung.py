"""Witness: threads of ours that sit in an uninterruptible call and do not move, with their kernel stacks.

Faster than the kernel's own hung task detector (120 s): a thread in state D whose context switches did not
change for the threshold is reported once, and again only after it moved. Reads /proc only; the stack needs root.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from gdrstorm.kmsg.trace import culprit_of
from gdrstorm.kmsg.witness.common import EventMaker, entries, monotonic_ns, read_text
from gdrstorm.model.event import Event, EventClass, Severity, Source

_SWITCHES = re.compile(r"^(?:non)?voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)
_STATE = re.compile(r"^State:\s*(\w)", re.MULTILINE)
_NAME = re.compile(r"^Name:\s*(.*)", re.MULTILINE)
_MAX_THREADS = 4096


@dataclass(slots=True)
class _Wait:
    """One thread that was seen in state D."""

    switches: int
    since_ns: int
    told: bool = False


class HungThreads:
    """Threads of the processes that `pids` names when asked."""

    def __init__(
        self,
        pids: Callable[[], Iterable[int]],
        threshold_ns: int = 10_000_000_000,
        root: Path = Path("/proc"),
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._pids = pids
        self._threshold_ns = threshold_ns
        self._root = root
        self._clock = clock
        self._waits: dict[tuple[int, int], _Wait] = {}
        self._maker = EventMaker(Source.HUNG_THREAD)

    def start(self) -> None:
        """OSError when there is no /proc to look at."""
        if not self._root.is_dir():
            raise FileNotFoundError(2, f"no {self._root}")

    def poll(self) -> list[Event]:
        """Threads that reached the threshold."""
        events: list[Event] = []
        seen: set[tuple[int, int]] = set()
        for pid in self._pids():
            for task in entries(self._root / str(pid) / "task")[:_MAX_THREADS]:
                if not task.name.isdigit():
                    continue
                key = (pid, int(task.name))
                if (event := self._look(key, task)) is not None:
                    events.append(event)
                seen.add(key)
        for gone in self._waits.keys() - seen:
            del self._waits[gone]
        return events

    def close(self) -> None:
        """Nothing is held."""
        self._waits.clear()

    def _look(self, key: tuple[int, int], task: Path) -> Event | None:
        status = read_text(task / "status") or ""
        state = _STATE.search(status)
        if state is None or state[1] != "D":
            self._waits.pop(key, None)
            return None
        switches = sum(int(number) for number in _SWITCHES.findall(status))
        now = self._clock()
        wait = self._waits.get(key)
        if wait is None or wait.switches != switches:
            self._waits[key] = _Wait(switches, now)
            return None
        if wait.told or now - wait.since_ns < self._threshold_ns:
            return None
        wait.told = True
        return self._event(key, task, status, now - wait.since_ns)

    def _event(self, key: tuple[int, int], task: Path, status: str, waited_ns: int) -> Event:
        stack = (read_text(task / "stack") or "").splitlines()
        wchan = (read_text(task / "wchan") or "").strip()
        culprit = culprit_of(stack) or (wchan if wchan not in {"", "0"} else None)
        name = _NAME.search(status)
        return self._maker.make(
            EventClass.HUNG_TASK,
            Severity.ERROR,
            f"hung thread in {culprit or 'an unknown call'}",
            code=culprit,
            lines=tuple(stack),
            details={
                "pid": str(key[0]),
                "tid": str(key[1]),
                "process": name[1] if name else "",
                "waited_s": f"{waited_ns / 1e9:.0f}",
            },
        )
