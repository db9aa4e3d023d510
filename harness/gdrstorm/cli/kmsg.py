"""`gdrstorm kmsg`: kernel log in, events out. The classifier by itself, for anyone with a log.

Turns a file, standard input or /dev/kmsg into a table or into one JSON object an event. It judges nothing: what
the events mean for a run is the verdict's business.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gdrstorm.errors import UnavailableError, UsageError, errno_name

if TYPE_CHECKING:
    from gdrstorm.kmsg.record import Gap, Record
    from gdrstorm.model.event import Event

_DEVICE = Path("/dev/kmsg")
_TICK_S = 0.5
_TAIL_WAIT_S = 0.2


def kmsg(
    file: Annotated[
        str | None,
        typer.Argument(
            help="A log in any usual format, or - for standard input.", show_default="/dev/kmsg"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object an event.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on as the log grows; begin at its end.")
    ] = False,
    since: Annotated[
        str | None, typer.Option(metavar="MARKER", help="Only what came after this text.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Also report every kernel line not in this baseline.")
    ] = None,
    record_baseline: Annotated[
        Path | None, typer.Option(help="Write the lines of this log as a baseline, and stop.")
    ] = None,
) -> None:
    """Find the faults in a kernel log."""
    from gdrstorm.kmsg.baseline import BaselineFilter, read_baseline, write_baseline
    from gdrstorm.kmsg.baseline import record_baseline as shapes_of
    from gdrstorm.kmsg.record import Record

    source = _records(file, follow, since)
    if record_baseline is not None:
        records = (item for item in source if isinstance(item, Record))
        write_baseline(record_baseline, shapes_of(records))
        return
    allowed = BaselineFilter(read_baseline(baseline)) if baseline is not None else None
    printer = _Printer(as_json, follow)
    try:
        if follow:
            _follow(source, allowed, printer)
        else:
            _classify(source, allowed, printer)
    except KeyboardInterrupt:
        printer.end()
    except BrokenPipeError:
        # The reader of the pipe has what it wanted.
        sys.stderr.close()


def _records(file: str | None, follow: bool, since: str | None) -> Iterator[Record | Gap | None]:
    """Records of the source; None: nothing has come for a moment (only while following)."""
    if file is None or Path(file) == _DEVICE:
        return _device_records(Path(file or _DEVICE), follow, since)
    return _text_records(file, follow, since)


def _device_records(path: Path, follow: bool, since: str | None) -> Iterator[Record | Gap | None]:
    from gdrstorm.kmsg.reader import KmsgReader

    try:
        reader = KmsgReader(path, from_start=not follow, since=since)
    except OSError as error:
        raise UnavailableError(
            f"cannot read {path}: {errno_name(error.errno or 0)}", "run as root, or name a file"
        ) from error
    with reader:
        while True:
            records = reader.read_records()
            yield from records
            if records:
                continue
            if not follow:
                break
            if not select.select([reader], [], [], _TICK_S)[0]:
                yield None
        if not reader.marker_found:
            raise UsageError(f"marker not found in {path}: {since!r}", "is it older than the log?")


def _text_records(file: str, follow: bool, since: str | None) -> Iterator[Record | Gap | None]:
    from gdrstorm.kmsg.record import parse_lines

    try:
        # newline: a lone carriage return of a console is no end of line
        stream = open(  # noqa: SIM115
            0 if file == "-" else file,
            encoding="utf-8",
            errors="replace",
            newline="\n",
            closefd=file != "-",
        )
    except OSError as error:
        raise UsageError(f"cannot read {file}: {errno_name(error.errno or 0)}") from error
    with stream:
        growing = follow and file != "-"
        records = parse_lines(_tail(stream) if growing else stream)
        # A log without the marker was not looked at: that is no clean log.
        if since and not any(since in record.text for record in records):
            raise UsageError(f"marker not found in {file}: {since!r}", "is it another log?")
        yield from records


def _tail(stream: Iterator[str]) -> Iterator[str]:
    """Whole lines of a file, and those that are appended to it, for ever."""
    half = ""
    while True:
        for piece in stream:
            half += piece
            if half.endswith("\n"):
                yield half
                half = ""
        time.sleep(_TAIL_WAIT_S)


def _classify(source: Iterator[Record | Gap | None], allowed: object, printer: _Printer) -> None:
    from gdrstorm.kmsg.faults import Classifier

    classifier = Classifier(window_ns=None, window_records=None)
    events: list[Event] = []
    for record in source:
        if record is not None:
            events += classifier.feed(record) + _unseen(allowed, record)
    events += classifier.flush()
    for event in sorted(events, key=lambda event: event.first_seq):
        printer.show(event)
    printer.end()


def _follow(source: Iterator[Record | Gap | None], allowed: object, printer: _Printer) -> None:
    """Show each event when it begins and again when it is complete."""
    from gdrstorm.kmsg.faults import Classifier

    classifier = Classifier()
    try:
        for record in source:
            if record is None:
                events = classifier.tick(time.clock_gettime_ns(time.CLOCK_MONOTONIC))
            else:
                events = classifier.feed(record) + _unseen(allowed, record)
            for event in classifier.started():
                printer.show(event, final=False)
            for event in events:
                printer.show(event)
    finally:
        for event in classifier.flush():
            printer.show(event)


def _unseen(allowed: object, record: Record | Gap) -> list[Event]:
    from gdrstorm.kmsg.baseline import BaselineFilter
    from gdrstorm.kmsg.record import Record

    if not isinstance(allowed, BaselineFilter) or not isinstance(record, Record):
        return []
    event = allowed.check(record)
    return [event] if event else []


class _Printer:
    """Events as JSON lines or as rows of a table; counts what it showed."""

    def __init__(self, as_json: bool, follow: bool) -> None:
        self._json = as_json
        self._follow = follow
        self._shown = 0

    def show(self, event: Event, *, final: bool = True) -> None:
        """Print one event; while following, JSON says whether it is final."""
        if self._json:
            import msgspec

            fields = msgspec.to_builtins(event)
            if self._follow:
                fields["final"] = final
            print(msgspec.json.encode(fields).decode(), flush=self._follow)
        elif final:
            if not self._shown:
                print(
                    f"{'time':>14}  {'severity':9} {'class':11} {'device':12} {'code':24} {'count':>6}  title"
                )
            print(_row(event), flush=self._follow)
        self._shown += final

    def end(self) -> None:
        """Say that nothing was found, rather than nothing."""
        if not self._json and not self._shown:
            print("no fault found in this log")


def _row(event: Event) -> str:
    when = f"{event.time_ns / 1e9:14.6f}" if event.time_ns else f"{'-':>14}"
    marks = [
        word
        for word, on in (("incomplete", event.incomplete), ("synthetic", event.synthetic))
        if on
    ]
    note = f" [{', '.join(marks)}]" if marks else ""
    return (
        f"{when}  {event.severity.value:9} {event.cls.value:11} {event.device or '-':12} "
        f"{event.code or '-':24} {event.count:6}  {event.title}{note}"
    )
