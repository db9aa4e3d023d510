"""Where journal lines go while a run lasts: the journal first, then everyone who watches (live view, tests)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from gdrstorm.errors import BrokenError
from gdrstorm.evidence.journal import JournalWriter
from gdrstorm.model import journal as j

Observer = Callable[[j.Line], None]


class Recorder:
    """Writes lines and keeps those that a verdict is made from; an observer that fails is dropped, the run goes on."""

    def __init__(self, journal: JournalWriter, observers: Sequence[Observer] = ()) -> None:
        self._journal = journal
        self._observers = list(observers)
        self.lines: list[j.Line] = []

    @property
    def is_streamed(self) -> bool:
        """Inside the VM bed only the journal leaves the guest; files beside it are not kept."""
        return self._journal.is_streamed

    def write(self, line: j.Line, sync: bool = False) -> j.Line:
        stamped = self._journal.write(line, sync=sync)
        if not isinstance(stamped, j.Progress | j.Machine):
            self.lines.append(stamped)
        for observer in list(self._observers):
            try:
                observer(stamped)
            except Exception as error:
                self._observers.remove(observer)
                with contextlib.suppress(BrokenError):
                    self._journal.write(
                        j.Note(text=f"an observer failed and was dropped: {error!r}")
                    )
        return stamped
