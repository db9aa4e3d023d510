"""The live view of a run: journal lines in, a table that redraws itself, or plain lines where there is no terminal.

It sees nothing but journal lines, so a run on this machine and one inside the VM bed look the same.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gdrstorm.model import journal as j
from gdrstorm.model.plan import Plan
from gdrstorm.units import format_ns

_PLAIN_EVERY_S = 4.0


class _LiveConsole(Console):
    def on_broken_pipe(self) -> None:
        """Nobody looks any more; rich would end the process here, in the middle of the run."""
        self.quiet = True


class View:
    """Takes journal lines; `render` gives the picture of this moment."""

    def __init__(self, console: Console, quiet: bool) -> None:
        self._console = console
        self._quiet = quiet
        self._plain = not console.is_terminal
        self._last_plain = 0.0
        self._plan: Plan | None = None
        self._phase = ""
        self._phase_began = time.monotonic()
        self._beats: dict[str, tuple[j.Beat, ...]] = {}
        self._counts: dict[str, int] = {}
        self._errors: dict[str, int] = {}
        self._events: dict[str, str] = {}
        self._status = "starting"

    def say(self, text: str) -> None:
        """A status line: shown at once, replaced by the next one."""
        self._status = text
        if self._plain and not self._quiet:
            self._console.print(Text(text))

    def take(self, line: j.Line) -> None:
        """One journal line."""
        match line:
            case j.Planned(plan=plan):
                self._plan = plan
            case j.Intent(what=what):
                self._phase = what.removeprefix("phase ")
                self._phase_began = time.monotonic()
                self.say(f"{what}: opening devices, lining up the workers")
            case j.Progress():
                self._progress(line)
            case j.Seen(event=event, before_run=False):
                new = event.id not in self._events
                self._events[event.id] = (
                    f"{event.severity.value} {event.cls.value} {event.device or ''} {event.title}"
                )
                if new and self._plain and not self._quiet:
                    self._console.print(Text(f"kernel: {self._events[event.id]}"))
            case j.Worker(state=state, reason=reason) if state in (
                "hung",
                "crashed",
                "killed",
                "failed",
            ):
                self.say(f"worker {line.worker} {state}: {reason}")
            case j.End():
                self._status = "judging"
            case _:
                pass

    def _progress(self, line: j.Progress) -> None:
        self._beats[line.group] = line.ops
        for beat in line.ops:
            self._counts[beat.op] = self._counts.get(beat.op, 0) + beat.count
            self._errors[beat.op] = self._errors.get(beat.op, 0) + beat.failed
        self._status = f"phase {line.phase}"
        if (
            self._plain
            and not self._quiet
            and time.monotonic() - self._last_plain >= _PLAIN_EVERY_S
        ):
            self._last_plain = time.monotonic()
            words = ", ".join(
                f"{beat.op} {beat.count}/s p99 {format_ns(beat.p99_ns)}"
                for beat in line.ops
                if beat.count
            )
            failed = sum(self._errors.values())
            self._console.print(
                Text(f"{line.phase}/{line.group}: {words}; errors {failed}{self._left()}")
            )

    def _left(self) -> str:
        if self._plan is None:
            return ""
        phase = next((p for p in self._plan.phases if p.name == self._phase), None)
        if phase is None or not phase.duration_ns:
            return ""
        left = phase.duration_ns / 1e9 - (time.monotonic() - self._phase_began)
        return f"; {max(0, left):.0f}s left"

    def render(self) -> RenderableType:
        parts: list[RenderableType] = [Text(f"{self._status}{self._left()}", style="bold")]
        if self._beats:
            table = Table(box=None, header_style="dim", pad_edge=False)
            table.add_column("group")
            table.add_column("operation")
            for column in ("per second", "p50", "p99", "max", "total", "errors"):
                table.add_column(column, justify="right")
            for group, beats in self._beats.items():
                for beat in beats:
                    times = (beat.p50_ns, beat.p99_ns, beat.max_ns)
                    errors = self._errors[beat.op]
                    table.add_row(
                        group,
                        beat.op,
                        f"{beat.count:,}",
                        *(format_ns(value) if value else "-" for value in times),
                        f"{self._counts[beat.op]:,}",
                        f"[red]{errors:,}[/]" if errors else "0",
                    )
            parts.append(table)
        parts += [Text(f"kernel: {text}", style="red") for text in list(self._events.values())[-5:]]
        return Group(*parts)

    def __rich__(self) -> RenderableType:
        return self.render()


@contextmanager
def live_view(quiet: bool = False) -> Iterator[View]:
    """A view on stderr while a run lasts; nothing at all when `quiet`."""
    console = _LiveConsole(
        file=sys.stderr, highlight=False, quiet=quiet, soft_wrap=not sys.stderr.isatty()
    )
    view = View(console, quiet)
    if quiet or not console.is_terminal:
        yield view
        return
    with Live(view, console=console, refresh_per_second=4, transient=True):
        yield view
