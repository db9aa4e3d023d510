"""A run inside the VM bed: boots it, has the guest do the run, and writes the guest's journal lines into ours.

The host adds what only it can see: how the bed ended, the guest's console, the device model's own view. A guest that
panics, hangs or vanishes is LOST, with everything that it had written until then.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import msgspec

from gdrstorm import __version__
from gdrstorm.bed.vm import Bed, BedFailure, BedOptions, RunningCommand, find_image
from gdrstorm.errors import GdrstormError, LostError, UnavailableError
from gdrstorm.evidence.collect import write_manifest
from gdrstorm.evidence.journal import JOURNAL, JournalWriter, decode_line
from gdrstorm.kmsg.faults import classify
from gdrstorm.kmsg.record import parse_lines
from gdrstorm.model import journal as j
from gdrstorm.model.event import Severity
from gdrstorm.model.scenario import Scenario
from gdrstorm.model.verdict import Verdict
from gdrstorm.session.guard import Guard
from gdrstorm.session.guest import Request, encode_request
from gdrstorm.session.model_view import arm_plants, record_model_view
from gdrstorm.session.options import RunOptions
from gdrstorm.session.record import Observer, Recorder
from gdrstorm.verdict import judge

#: what the guest may take beyond the scenario's own time limit: start-up, audits, release of what is outstanding
_EXTRA_NS = 300 * 10**9


class _Forwarder:
    """Guest lines into our journal; keeps back the guest's own end and verdict, ours come later."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lock = threading.Lock()
        self.end: j.End | None = None
        self.bad: list[str] = []

    def write(self, line: j.Line, sync: bool = False) -> None:
        with self._lock:
            self._recorder.write(line, sync=sync)

    def take(self, data: bytes) -> None:
        """One line as the guest wrote it; called from the bed's reader thread."""
        if not data.strip():
            return
        try:
            line = decode_line(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self.bad.append(f"{error}: {data[:80]!r}")
            return
        match line:
            case j.Start() | j.Judged():
                pass
            case j.End():
                self.end = line
            case _:
                self.write(line)


def run_in_vm(
    scenario: Scenario,
    options: RunOptions,
    bed_options: BedOptions,
    run_dir: Path,
    observers: Sequence[Observer],
    say: Callable[[str], None],
    cannot: str = "",
) -> Verdict:
    """Run a scenario in the bed. Never raises for what happens to the run."""
    with JournalWriter(run_dir / JOURNAL) as journal:
        recorder = Recorder(journal, observers)
        recorder.write(
            j.Start(
                schema=j.SCHEMA_VERSION,
                run_id=run_dir.name,
                version=__version__,
                argv=options.argv,
                bed="vm",
                platform="emulated",
                boot_id="",
                scenario=scenario,
            ),
            sync=True,
        )
        forwarder = _Forwarder(recorder)
        guard = Guard(run_dir / JOURNAL)
        try:
            if cannot:
                raise UnavailableError(cannot)
            if find_image() is None:
                raise UnavailableError(
                    "the VM bed is not built", "build it once: gdrstorm bed build"
                )
            _run(scenario, options, bed_options, run_dir, forwarder, say)
        except UnavailableError as error:
            forwarder.write(j.Skipped(reason=str(error)))
            forwarder.write(j.End(how="completed"))
        except Exception as error:
            _note_failure(error, run_dir, forwarder)
        finally:
            guard.dismiss()
        verdict = judge(recorder.lines)
        recorder.write(j.Judged(verdict=verdict), sync=True)
    write_manifest(run_dir)
    return verdict


def _run(
    scenario: Scenario,
    options: RunOptions,
    bed_options: BedOptions,
    run_dir: Path,
    forwarder: _Forwarder,
    say: Callable[[str], None],
) -> None:
    say("booting the VM bed (emulated)")
    with _term_is_interrupt(), Bed(bed_options, run_dir=run_dir) as bed:
        guest = ", ".join(f"{key} {value}" for key, value in bed.guest.items())
        forwarder.write(
            j.BedFact(
                what="boot", detail=f"{bed.accel.value}, booted in {bed.boot_s:.1f}s: {guest}"
            )
        )
        say(f"booted in {bed.boot_s:.1f}s under {bed.accel.value}; starting {scenario.name}")
        if bed_options.hca:
            arm_plants(bed.control, options.plants, forwarder.write)
        bed.journal(forwarder.take)
        request = Request(run_dir.name, scenario, options)
        with (run_dir / "guest-output.txt").open("wb") as output:
            command = bed.start_command(["python3", "-m", "gdrstorm.session.guest"])
            command.write_stdin(encode_request(request))
            command.write_stdin(b"")
            status = _wait(command, _limit_s(scenario, options), output.write)
        bed.drain_journal()
        doubt = record_model_view(bed.control, forwarder.write) if bed_options.hca else ""
    _write_end(forwarder, status, doubt)


def _limit_s(scenario: Scenario, options: RunOptions) -> float:
    longer = (options.duration_ns or 0) * len(scenario.phases)
    return (scenario.time_limit_ns + longer + _EXTRA_NS) / 1e9


def _wait(command: RunningCommand, limit_s: float, take: Callable[[bytes], object]) -> int:
    """The guest command's status. Ctrl-C is passed on once; the run in the guest ends in order then."""

    def keep(data: bytes) -> None:
        take(data)

    deadline = time.monotonic() + limit_s
    try:
        return command.wait(limit_s, keep, keep).status
    except KeyboardInterrupt:
        command.signal(signal.SIGINT)
        return command.wait(max(30.0, min(60.0, deadline - time.monotonic())), keep, keep).status


def _write_end(forwarder: _Forwarder, status: int, doubt: str) -> None:
    for bad in forwarder.bad[:5]:
        forwarder.write(j.Note(text=f"a journal line of the guest could not be read: {bad}"))
    if doubt:
        forwarder.write(j.End(how="broken", detail=doubt), sync=True)
    elif forwarder.end is not None:
        forwarder.write(j.End(how=forwarder.end.how, detail=forwarder.end.detail), sync=True)
    else:
        detail = f"the run in the guest ended with status {status} and without an end line, see guest-output.txt"
        forwarder.write(j.End(how="broken", detail=detail), sync=True)


def _note_failure(error: Exception, run_dir: Path, forwarder: _Forwarder) -> None:
    """The bed ended before the run did: what its console says, and whether the guest or the harness is to blame."""
    if isinstance(error, BedFailure):
        _record_console(error.console_path, forwarder)
    if isinstance(error, LostError):
        forwarder.write(j.BedFact(what="lost", detail=str(error)))
        forwarder.write(j.End(how="lost", detail=str(error)), sync=True)
        return
    if not isinstance(error, GdrstormError):
        import traceback

        (run_dir / "traceback.txt").write_text("".join(traceback.format_exception(error)))
    forwarder.write(j.End(how="broken", detail=f"{type(error).__name__}: {error}"), sync=True)


def _record_console(console: Path, forwarder: _Forwarder) -> None:
    """Faults on the console of a guest that is gone: its own reader cannot tell any more."""
    with contextlib.suppress(OSError):
        text = console.read_bytes().decode("utf-8", "replace")
        for event in classify(parse_lines(text.splitlines())):
            if event.severity.rank >= Severity.ERROR.rank:
                forwarder.write(j.Seen(event=event, origin="console"))


@contextmanager
def _term_is_interrupt() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


__all__ = ["run_in_vm"]
