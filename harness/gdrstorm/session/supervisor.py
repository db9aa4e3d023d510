"""The supervisor: drives the workers of one phase after the other and writes down what happens.

It never touches the device under test. Everything that it knows of a running storm comes from the shared area, so a
worker that hangs in the kernel, crashes or is killed is seen, named and survived.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from gdrstorm.audit.profile import Profile, Sampler
from gdrstorm.engine import Area, AreaSnapshot
from gdrstorm.kmsg.attribute import Call
from gdrstorm.model import journal as j
from gdrstorm.model.op import CallInFlight, OpSummary
from gdrstorm.model.plan import PhasePlan, Plan, WorkerPlan
from gdrstorm.model.scenario import Do
from gdrstorm.session import wire
from gdrstorm.session.children import Child, spawn
from gdrstorm.session.guard import Guard
from gdrstorm.session.process import attentive, kernel_stack, thread_state
from gdrstorm.session.watch import Watch

Write = Callable[..., j.Line]

_TICK_S = 0.1
_BEAT_NS = 1_000_000_000
#: how often blocked workers' kernel stacks are sampled
_LOOK_NS = 250_000_000
#: how long back ends may take to open and threads to line up; a bed under TCG needs a good part of it
_OPEN_LIMIT_NS = 120_000_000_000
#: what a storm may take beyond its duration to release what is outstanding, on top of the call limit
_RELEASE_NS = 30_000_000_000
#: how many call limits a call may take whose thread is runnable; a livelock is a hang, too
_RUNNABLE_PATIENCE = 4


class Stopped(Exception):
    """The run ends here; `how` and `detail` are those of the journal's end line."""

    def __init__(self, how: str, detail: str) -> None:
        super().__init__(detail)
        self.how = how
        self.detail = detail


class Supervisor:
    """Runs the phases of one plan. `interrupted` is set by signal handlers and ends the run at the next tick.

    `pids` is kept up to date with the workers that live, for witnesses that look at them.
    """

    def __init__(
        self, plan: Plan, write: Write, watch: Watch, guard: Guard, pids: list[int]
    ) -> None:
        self._pids = pids
        self._plan = plan
        self._write = write
        self._watch = watch
        self._guard = guard
        self._children: list[Child] = []
        self._area: Area | None = None
        self._deadline_ns = time.monotonic_ns() + plan.time_limit_ns
        self._stack_written = False
        self._nice = 0
        self._intents = 0
        self._hung: set[int] = set()
        self.exercised = False
        self.interrupted = ""
        self.descriptors_left: dict[str, int] = {}
        watch.calls = self._calls

    def run(self) -> None:
        """All phases. Raises Stopped when the run cannot go on."""
        with attentive() as self._nice:
            for phase in self._plan.phases:
                self._watch.phase = phase.name
                try:
                    self._run_phase(phase)
                finally:
                    self._end_children()
        self._watch.phase = ""

    def _run_phase(self, phase: PhasePlan) -> None:
        with self._intent(f"phase {phase.name}"):
            if phase.do is Do.GATE:
                self._gate(phase)
            else:
                self._storm(phase)
        failed = [child for child in self._children if child.state in ("failed", "crashed")]
        if self._hung:
            raise Stopped("hung", f"a call did not come back in phase {phase.name}")
        if failed:
            raise Stopped("broken", f"worker {failed[0].plan.worker}: {failed[0].reason}")

    @contextmanager
    def _intent(self, what: str) -> Iterator[None]:
        """On disk and in the kernel log before the step; its end afterwards, also when the step raised."""
        self._intents += 1
        name = f"i{self._intents}"
        self._write(
            j.Intent(id=name, what=what, marker_seq=self._watch.mark(f"begin {what}")), sync=True
        )
        yield
        self._write(j.Done(id=name, marker_seq=self._watch.mark(f"end {what}")))

    # -- workers ----------------------------------------------------------------------------------------------

    def _spawn(self, plans: tuple[WorkerPlan, ...], area_fd: int | None) -> None:
        for plan in plans:
            child = spawn(plan, area_fd, self._nice)
            self._guard.tell_worker(child.pid)
            self._children.append(child)
            self._pids.append(child.pid)
            self._write(
                j.Worker(worker=plan.worker, phase=plan.phase, state="started", pid=child.pid)
            )

    def _tick(self, wait_s: float = _TICK_S) -> None:
        """Wait a little, then take messages, ends of processes and kernel events."""
        listening = {child.sock.fileno(): child for child in self._children if not child.is_over}
        descriptors: list[int] = list(listening)
        log = self._watch.fileno()
        if log is not None:
            descriptors.append(log)
        ready, _, _ = select.select(descriptors, [], [], wait_s)
        if log is not None and log in ready:
            time.sleep(
                0.005
            )  # let a burst come together: under a flood one pass takes many records
        for child in listening.values():
            while (reply := child.hear()) is not None:
                self._take(child, reply)
            if child.notice_end():
                self._note_end(child)
        self._watch.poll()
        if self.interrupted:
            raise Stopped("interrupted", self.interrupted)

    def _take(self, child: Child, reply: wire.Reply) -> None:
        phase = child.plan.phase
        match reply:
            case wire.Opened(exporter=exporter, importer=importer):
                if not self._stack_written:
                    self._stack_written = True
                    self._write(j.Stack(exporter=exporter, importer=importer))
            case wire.GateDone(results=results):
                self.exercised = True
                self._write(j.Gate(phase=phase, results=results))
            case wire.CheckDone(name=name, passed=passed, detail=detail):
                self.exercised = True
                self._write(j.Check(phase=phase, name=name, passed=passed, detail=detail))
            case _:
                pass

    def _note_end(self, child: Child) -> None:
        while (reply := child.hear()) is not None:
            self._take(child, reply)
        for kind, count in child.descriptors_left.items():
            name = f"{kind} descriptors of worker {child.plan.worker}"
            self.descriptors_left[name] = self.descriptors_left.get(name, 0) + count
        calls: tuple[CallInFlight, ...] = ()
        if child.state in ("crashed", "killed") and self._area is not None:
            calls = self._area.in_flight(self._slots(child), 0)
            if calls:
                child.reason += f" inside {calls[0].op}"
        self._write(
            j.Worker(
                worker=child.plan.worker,
                phase=child.plan.phase,
                state=child.state,
                pid=child.pid,
                reason=child.reason,
                calls=calls,
            )
        )

    def _calls(self) -> tuple[Call, ...]:
        """Calls in flight right now, for the attribution of events."""
        if self._area is None:
            return ()
        calls = self._area.in_flight(range(self._area.thread_count), 0)
        return tuple(Call(call.worker, call.op, call.since_ns) for call in calls)

    @staticmethod
    def _slots(child: Child) -> range:
        first = child.plan.first_thread
        return range(first, first + child.plan.threads)

    def _end_children(self) -> None:
        """Kill what is left of this phase; a process that cannot die is noted and left to the kernel."""
        for child in self._children:
            if not child.is_over and not child.kill():
                self._write(
                    j.Note(text=f"worker {child.plan.worker} (pid {child.pid}) cannot be killed")
                )
            child.close()
        self._children.clear()
        self._pids.clear()
        if self._area is not None:
            self._area.close()
            self._area = None

    def _refuse(self) -> None:
        """Raise when a worker could not start its work: a skip when nothing was exercised yet."""
        for child in self._children:
            if child.state in ("failed", "crashed", "killed"):
                how = "skip" if child.exit_code == 4 and not self.exercised else "broken"
                raise Stopped(how, child.reason)

    # -- gates ------------------------------------------------------------------------------------------------

    def _gate(self, phase: PhasePlan) -> None:
        self._spawn(phase.workers, None)
        limit = _OPEN_LIMIT_NS + self._plan.call_limit_ns
        while not all(child.is_over for child in self._children):
            self._tick()
            now = time.monotonic_ns()
            for child in self._children:
                if not child.is_over and now - child.heard_ns > limit:
                    self._note_hang(child, self._main_call(child, now - child.heard_ns))
            if self._hung:
                return
            self._check_time()
        self._refuse()

    @staticmethod
    def _main_call(child: Child, elapsed_ns: int) -> tuple[CallInFlight, ...]:
        stack = kernel_stack(child.pid, child.pid)
        since = time.monotonic_ns() - elapsed_ns
        return (
            CallInFlight(
                child.plan.worker,
                0,
                child.pid,
                child.plan.table or "open",
                0,
                since,
                elapsed_ns,
                stack,
            ),
        )

    def _check_time(self) -> None:
        if time.monotonic_ns() > self._deadline_ns:
            raise Stopped(
                "time-limit",
                f"the scenario's time limit of {self._plan.time_limit_ns / 1e9:.0f}s is over",
            )

    # -- storms -----------------------------------------------------------------------------------------------

    def _storm(self, phase: PhasePlan) -> None:
        area = self._area = Area.create(phase.threads)
        self._spawn(phase.workers, area.fd)
        self._line_up(area, phase)
        started_ns = time.monotonic_ns()
        area.start()
        self.exercised = True
        groups = _groups(phase)
        older = {name: area.snapshot(slots) for name, slots in groups.items()}
        sampler = Sampler()
        beat_ns = look_ns = started_ns
        stop_ns = started_ns + phase.duration_ns + self._plan.call_limit_ns + _RELEASE_NS
        try:
            while not all(child.is_over for child in self._children):
                self._tick()
                now = time.monotonic_ns()
                if now - look_ns >= _LOOK_NS:
                    look_ns = now
                    sampler.look(self._pids)
                if now - beat_ns >= _BEAT_NS:
                    beat_ns += _BEAT_NS * ((now - beat_ns) // _BEAT_NS)
                    older = self._beat(area, phase, groups, older)
                if self._find_hangs(area):
                    return
                if phase.duration_ns and now > stop_ns:
                    raise Stopped(
                        "broken",
                        f"phase {phase.name} did not end {_RELEASE_NS // 10**9}s after its duration",
                    )
                self._check_time()
        finally:
            area.request_stop()
            self._drain()
            self._totals(area, phase, groups, time.monotonic_ns() - started_ns)
            self._write(_blocked(phase.name, sampler.profile()))

    def _line_up(self, area: Area, phase: PhasePlan) -> None:
        """Wait until every thread stands at the start line."""
        deadline = time.monotonic_ns() + _OPEN_LIMIT_NS
        while not area.wait_ready(range(phase.threads), 0):
            self._tick(0.02)
            self._refuse()
            self._check_time()
            if time.monotonic_ns() > deadline:
                late = [
                    child for child in self._children if child.state != "opened"
                ] or self._children
                for child in late:
                    self._note_hang(child, self._main_call(child, _OPEN_LIMIT_NS))
                raise Stopped("hung", "a worker did not get ready")

    def _beat(
        self, area: Area, phase: PhasePlan, groups: dict[str, range], older: dict[str, AreaSnapshot]
    ) -> dict[str, AreaSnapshot]:
        """One progress line a group."""
        newer = {}
        for name, slots in groups.items():
            newer[name] = area.snapshot(slots)
            done = newer[name].minus(older[name]).summaries()
            self._write(
                j.Progress(phase=phase.name, group=name, ops=tuple(_short(op) for op in done))
            )
        return newer

    def _find_hangs(self, area: Area) -> bool:
        """Write down workers with a call older than the limit. True when there is one."""
        for child in self._children:
            if child.is_over or child.plan.worker in self._hung:
                continue
            calls = area.in_flight(self._slots(child), self._plan.call_limit_ns)
            calls = tuple(call for call in calls if self._is_stuck(child, call))
            if calls:
                stacked = tuple(
                    msgspec.structs.replace(call, stack=kernel_stack(child.pid, call.tid))
                    for call in calls
                )
                self._note_hang(child, stacked)
        return bool(self._hung)

    def _is_stuck(self, child: Child, call: CallInFlight) -> bool:
        """Old, and no wait of ours. A runnable thread may just get no CPU on a busy machine: it has longer."""
        if call.op in ("DELAY", "BARRIER"):
            return False
        patience = _RUNNABLE_PATIENCE if thread_state(child.pid, call.tid) == "R" else 1
        return call.elapsed_ns >= patience * self._plan.call_limit_ns

    def _note_hang(self, child: Child, calls: tuple[CallInFlight, ...]) -> None:
        self._hung.add(child.plan.worker)
        first = calls[0]
        where = f" in {first.stack[0]}" if first.stack else ""
        state = thread_state(child.pid, first.tid)
        long = f"{first.elapsed_ns / 1e9:.1f}s"
        reason = (
            f"thread {first.thread} is in {first.op} for {long}{where} (state {state or 'gone'})"
        )
        self._write(
            j.Worker(
                worker=child.plan.worker,
                phase=child.plan.phase,
                state="hung",
                pid=child.pid,
                reason=reason,
                calls=calls,
            ),
            sync=True,
        )

    def _drain(self, limit_s: float = 5.0) -> None:
        """Give workers that are not hung a moment to release what they hold."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            waiting = [
                c for c in self._children if not c.is_over and c.plan.worker not in self._hung
            ]
            if not waiting:
                return
            try:
                self._tick()
            except Stopped:
                continue

    def _totals(
        self, area: Area, phase: PhasePlan, groups: dict[str, range], elapsed_ns: int
    ) -> None:
        for name, slots in groups.items():
            snapshot = area.snapshot(slots)
            dead = any(
                c.state in ("killed", "crashed")
                for c in self._children
                if c.plan.first_thread in slots
            )
            self._write(
                j.Totals(
                    phase=phase.name,
                    group=name,
                    elapsed_ns=elapsed_ns,
                    ops=snapshot.summaries(),
                    outstanding=0 if dead or self._hung else snapshot.outstanding,
                    first_errors=area.first_errors(slots)[:64],
                    rates=area.thread_rates(slots),
                )
            )


def _blocked(phase: str, profile: Profile) -> j.Blocked:
    places = tuple((place.function, place.count, place.caller) for place in profile.places)
    return j.Blocked(
        phase=phase,
        summary=profile.summary,
        taken=profile.taken,
        rounds=profile.rounds,
        places=places,
    )


def _groups(phase: PhasePlan) -> dict[str, range]:
    """Thread slots of every group of a phase; a group's workers follow each other."""
    groups: dict[str, range] = {}
    for plan in phase.workers:
        assert plan.group is not None
        known = groups.get(plan.group.name)
        first = known.start if known else plan.first_thread
        groups[plan.group.name] = range(first, plan.first_thread + plan.threads)
    return groups


def _short(op: OpSummary) -> j.Beat:
    failed = sum(op.errors.values())
    return j.Beat(op.op, op.count, failed, op.latency.p50_ns, op.latency.p99_ns, op.latency.max_ns)


__all__ = ["Stopped", "Supervisor"]
