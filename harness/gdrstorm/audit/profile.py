"""Where blocked threads sleep: sampled kernel stacks of workers, counted by function.

/proc/PID/task/TID/stack to `94 % of 802 blocked stacks in rmapiLockAcquire`. The summary is pure; the
reader needs root, takes a thread only while it sleeps, and never stops or touches it.
Source of the format: fs/proc/base.c, proc_pid_stack.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

Stack = tuple[str, ...]

_FRAME = re.compile(r"^\[<[0-9a-fx]*>\] ([^\s+]+)", re.MULTILINE)
#: Functions that every sleeper is in; the first frame below them says what it waits for.
_GENERIC = re.compile(
    r"^(__)?(schedule|down|rwsem|mutex_lock|wait_for|do_wait|futex|hrtimer|nanosleep|"
    r"do_nanosleep|io_schedule|os_acquire|os_cond|_?portSync|clock_nanosleep|ep_poll|do_epoll)"
)


class Place(msgspec.Struct, frozen=True):
    """A function in which stacks stood, and how many; `caller` is who called it most."""

    function: str
    count: int
    caller: str = ""


class Profile(msgspec.Struct, frozen=True):
    """`taken` stacks of sleeping threads in `rounds` looks; places by frequency, the lock first."""

    taken: int
    rounds: int
    places: tuple[Place, ...]
    why_empty: str = ""

    @property
    def summary(self) -> str:
        """One line for a report: the commonest place and its share."""
        if not self.places:
            return self.why_empty or "no blocked stack was seen"
        first = self.places[0]
        share = round(100 * first.count / self.taken)
        called = f", most often from {first.caller}" if first.caller else ""
        return f"{share} % of {self.taken} blocked stacks are in {first.function}{called}"


def parse_stack(text: str) -> Stack:
    """Function names of one /proc stack, innermost first; without offsets and module names."""
    return tuple(_FRAME.findall(text))


def find_place(stack: Stack) -> tuple[str, str]:
    """The function that a stack waits in and its caller, past the scheduler's and lock primitives."""
    for index, function in enumerate(stack):
        if not _GENERIC.match(function):
            caller = stack[index + 1] if index + 1 < len(stack) else ""
            return function, caller
    return (stack[0], "") if stack else ("", "")


def summarise(stacks: Iterable[Stack], rounds: int, limit: int = 10) -> Profile:
    """Counts by function; pure. Empty stacks (running threads) do not count."""
    places: Counter[str] = Counter()
    callers: dict[str, Counter[str]] = {}
    for stack in stacks:
        if not stack:
            continue
        function, caller = find_place(stack)
        places[function] += 1
        callers.setdefault(function, Counter())[caller] += 1
    return Profile(
        taken=places.total(),
        rounds=rounds,
        places=tuple(
            Place(function, count, callers[function].most_common(1)[0][0])
            for function, count in places.most_common(limit)
        ),
    )


def read_stacks(pids: Sequence[int], proc: Path = Path("/proc")) -> Iterator[Stack]:
    """Stacks of the sleeping threads of these processes, once. OSError: EACCES without root."""
    for pid in pids:
        try:
            threads = sorted((proc / str(pid) / "task").iterdir())
        except FileNotFoundError:
            continue
        for thread in threads:
            try:
                state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
                if state in ("S", "D"):
                    yield parse_stack((thread / "stack").read_text())
            except (FileNotFoundError, ProcessLookupError):
                continue  # the thread ended meanwhile


class Sampler:
    """Collects stacks between other work: `look` is one round, `profile` the sum so far.

    A storm is not slowed by more than its own reads: the caller decides how often. `ignore` holds
    functions whose stacks are not of the storm (the worker's main thread, waiting for its end).
    """

    def __init__(self, ignore: Sequence[str] = ("futex_wait",), limit: int = 20000) -> None:
        self._ignore = frozenset(ignore)
        self._limit = limit
        self._stacks: list[Stack] = []
        self._rounds = 0
        self._why = ""

    def look(self, pids: Sequence[int]) -> None:
        """One round; a refusal is kept as the reason and not tried again."""
        if self._why or len(self._stacks) >= self._limit:
            return
        self._rounds += 1
        try:
            for stack in read_stacks(pids):
                if not self._ignore & set(stack):
                    self._stacks.append(stack)
        except OSError as error:
            self._why = f"kernel stacks cannot be read: {error.strerror} (needs root)"

    def run(self, pids: Sequence[int], rounds: int, pause_s: float) -> Profile:
        """Bounded rounds with pauses, then the profile."""
        for _ in range(rounds):
            self.look(pids)
            time.sleep(pause_s)
        return self.profile()

    def profile(self) -> Profile:
        profile = summarise(self._stacks, self._rounds)
        return msgspec.structs.replace(profile, why_empty=self._why)
