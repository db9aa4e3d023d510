"""One run on this machine: inventory, plan, watch, workers, audits, verdict; all of it into the journal.

Whatever happens in here ends in an end line and a verdict: wrong use is the caller's to show, everything else is a
record. The VM bed calls the same function inside its guest.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType

import msgspec

from gdrstorm import __version__
from gdrstorm.audit import snapshot
from gdrstorm.audit.gpu import read_nvml, read_rm
from gdrstorm.errors import GdrstormError, UnavailableError, UsageError
from gdrstorm.evidence.collect import collect_system, write_manifest
from gdrstorm.evidence.journal import JOURNAL, JournalWriter
from gdrstorm.host import read_inventory
from gdrstorm.kmsg.attribute import RunSpan
from gdrstorm.kmsg.baseline import BaselineFilter
from gdrstorm.model import journal as j
from gdrstorm.model.audit import Counter, Snapshot
from gdrstorm.model.inventory import Inventory
from gdrstorm.model.plan import Plan, StackChoice
from gdrstorm.model.scenario import Scenario
from gdrstorm.model.verdict import Verdict
from gdrstorm.plan.resolve import resolve
from gdrstorm.session.admission import check_predicates
from gdrstorm.session.choose import choose_stack
from gdrstorm.session.guard import Guard
from gdrstorm.session.options import RunOptions
from gdrstorm.session.record import Observer, Recorder
from gdrstorm.session.supervisor import Stopped, Supervisor
from gdrstorm.session.watch import Watch, boot_id
from gdrstorm.session.witnesses import devices_of, make_witnesses
from gdrstorm.stack.exporter.rm_state import RmStateReader, read_figures
from gdrstorm.verdict import judge


def make_run_dir(out: Path | None, run_id: str) -> Path:
    """A new directory for a run: below `out`, or ./runs. Raises UsageError when it cannot be made."""
    path = (out or Path("runs")) / run_id
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise UsageError(
            f"cannot make run directory {path}: {error.strerror}", "give --out DIR"
        ) from None
    return path.resolve()


def run_here(
    scenario: Scenario,
    options: RunOptions,
    run_dir: Path,
    *,
    observers: Sequence[Observer] = (),
    stream_fd: int | None = None,
) -> Verdict:
    """Run a scenario on this machine. Never raises for what happens to the run; UsageError before it begins."""
    guard = Guard(run_dir / JOURNAL)
    try:
        with JournalWriter(run_dir / JOURNAL, stream_fd) as journal:
            recorder = Recorder(journal, observers)
            _record(scenario, options, run_dir, recorder, guard)
            verdict = judge(recorder.lines)
            recorder.write(j.Judged(verdict=verdict), sync=True)
    finally:
        guard.dismiss()
    write_manifest(run_dir)
    return verdict


def _record(
    scenario: Scenario, options: RunOptions, run_dir: Path, recorder: Recorder, guard: Guard
) -> None:
    """Everything from the start line to the end line; whatever goes wrong is in the end line."""
    inventory = read_host()
    recorder.write(_start_line(scenario, options, run_dir, inventory), sync=True)
    recorder.write(j.Machine(inventory=msgspec.Raw(msgspec.json.encode(inventory))))
    try:
        check_predicates(scenario, inventory)
        _run(scenario, options, run_dir, recorder, guard, inventory)
    except UnavailableError as error:
        recorder.write(j.Skipped(reason=str(error)))
        recorder.write(j.End(how="completed"), sync=True)
    except UsageError as error:
        recorder.write(j.End(how="broken", detail=f"wrong use: {error}"), sync=True)
        raise
    except KeyboardInterrupt:
        # outside of the phases, where no handler of ours stands: still an end, not a machine that went away
        recorder.write(j.End(how="interrupted", detail="stopped by SIGINT"), sync=True)
    except Exception as error:
        with suppress(OSError):  # a full disk is what may have gone wrong
            (run_dir / "traceback.txt").write_text(traceback.format_exc())
        known = isinstance(error, GdrstormError)
        detail = str(error) if known else f"{type(error).__name__}: {error}"
        recorder.write(j.End(how="broken", detail=detail), sync=True)


def read_host() -> Inventory:
    """The inventory of this machine; what only the GPU driver knows is asked where there is one."""
    has_driver = Path("/proc/driver/nvidia/version").exists()
    return read_inventory(hash_files=False, gpu_reader=RmStateReader() if has_driver else None)


def _start_line(
    scenario: Scenario, options: RunOptions, run_dir: Path, inventory: Inventory
) -> j.Start:
    in_guest = "gdrstorm.bed=" in inventory.kernel.cmdline.get("")
    return j.Start(
        schema=j.SCHEMA_VERSION,
        run_id=run_dir.name,
        version=__version__,
        argv=options.argv,
        bed="vm" if in_guest else "host",
        platform=inventory.machine.platform.value,
        boot_id=boot_id(),
        scenario=scenario,
    )


def _run(
    scenario: Scenario,
    options: RunOptions,
    run_dir: Path,
    recorder: Recorder,
    guard: Guard,
    inventory: Inventory,
) -> None:
    stack = choose_stack(scenario, options, os.geteuid())
    seed = next((s for s in (options.seed, scenario.seed) if s is not None), secrets.randbits(63))
    plan = resolve(scenario, stack, seed, options.duration_ns)
    recorder.write(j.Planned(plan=plan))
    devices = devices_of(stack, inventory)
    span = RunSpan(
        (),
        tail_ns=plan.tail_ns,
        seed=seed,
        under_test=frozenset(devices.bdfs),
        beside=frozenset(devices.beside),
    )
    workers: list[int] = []
    watch = Watch(
        run_dir.name,
        recorder.write,
        make_witnesses(stack, devices, lambda: workers),
        span=span,
        baseline=BaselineFilter(options.baseline) if options.baseline else None,
    )
    supervisor = Supervisor(plan, recorder.write, watch, guard, workers)
    with _tidy(watch, recorder):
        _exercise(supervisor, plan, recorder, watch, audit_sources(stack, inventory), run_dir)


@contextmanager
def _tidy(watch: Watch, recorder: Recorder) -> Iterator[None]:
    """The watch is opened before and closed after, also when the run breaks; a failing close is recorded."""
    watch.open()
    try:
        yield
    finally:
        try:
            watch.close()
        except Exception as error:
            recorder.write(j.Note(text=f"the watch did not close cleanly: {error!r}"))


def _exercise(
    supervisor: Supervisor,
    plan: Plan,
    recorder: Recorder,
    watch: Watch,
    sources: Sequence[snapshot.Source],
    run_dir: Path,
) -> None:
    watch.mark(f"run begins, seed {plan.seed}")
    before = snapshot.take(sources)
    recorder.write(j.Audit(when="before", snapshot=before))
    how, detail = "completed", ""
    with _signals(supervisor):
        try:
            supervisor.run()
        except Stopped as stopped:
            how, detail = stopped.how, stopped.detail
    watch.operations_ended()
    if how == "skip":
        raise UnavailableError(detail)
    _tail(watch, plan.tail_ns)
    # what a hanging call holds is no leak, and its locks would stop whoever counts
    after = (
        Snapshot(unknown={"everything": "a call hangs"})
        if how == "hung"
        else snapshot.take_settled(sources, before)
    )
    left = [Counter(name, count) for name, count in supervisor.descriptors_left.items()]
    recorder.write(
        j.Audit(when="after", snapshot=Snapshot((*after.counters, *left), after.unknown))
    )
    watch.mark("run ends")
    watch.close()
    if not recorder.is_streamed:
        collect_system(run_dir)
    recorder.write(j.End(how=how, detail=detail), sync=True)


def audit_sources(stack: StackChoice, inventory: Inventory) -> list[snapshot.Source]:
    """What is counted before and after, for a stack; each is cheap and changes nothing."""
    sources: list[snapshot.Source] = []
    if stack.exporter != "fake":
        sources.append(snapshot.read_dmabufs)
    if stack.importer in ("verbs", "uverbs", "host-memory"):
        sources += [partial(snapshot.read_rdma, hca.name) for hca in inventory.hcas]
    if stack.exporter in ("cuda", "rm"):
        for gpu in inventory.gpus:
            sources.append(partial(read_rm, gpu.bdf, partial(read_figures, gpu.bdf)))
            sources.append(partial(read_nvml, gpu.bdf))
    return sources


def _tail(watch: Watch, tail_ns: int) -> None:
    """Keep looking for a while: faults come after the call that made them."""
    deadline = time.monotonic_ns() + tail_ns
    while time.monotonic_ns() < deadline:
        watch.poll()
        time.sleep(0.05)


@contextmanager
def _signals(supervisor: Supervisor) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the run in order; a second one is left to Python."""

    def handle(number: int, frame: FrameType | None) -> None:
        supervisor.interrupted = f"stopped by {signal.Signals(number).name}"
        signal.signal(number, signal.default_int_handler)

    old = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
