"""Witness: what the kernel kept over a crash, from /sys/fs/pstore to events. Reads, never deletes.

At the start of a run `read_pstore` tells what a crash before it left; while it runs only new files count.
Parts of one dump are numbered backwards: Part1 is its end (fs/pstore/platform.c).
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from gdrstorm.kmsg.faults import classify
from gdrstorm.kmsg.record import parse_lines
from gdrstorm.kmsg.witness.common import entries, read_text
from gdrstorm.model.event import Event, Source

_PART = re.compile(r"(?P<reason>\w+)#(?P<number>\d+) Part ?(?P<part>\d+)")


def order_dumps(files: dict[str, str]) -> list[str]:
    """Texts of the dump files in the order in which they were logged."""

    def key(item: tuple[str, str]) -> tuple[int, int, str]:
        head = _PART.match(item[1])
        return (int(head["number"]), -int(head["part"]), item[0]) if head else (0, 0, item[0])

    return [text for _, text in sorted(files.items(), key=key)]


def read_pstore(
    root: Path = Path("/sys/fs/pstore"), known: frozenset[str] = frozenset()
) -> list[Event]:
    """Events of all dumps but those in `known`."""
    files = {
        path.name: text
        for path in entries(root)
        if path.name.startswith(("dmesg-", "console-"))
        and path.name not in known
        and (text := read_text(path)) is not None
    }
    lines = [line for text in order_dumps(files) for line in text.splitlines()]
    return [
        msgspec.structs.replace(event, id=f"pstore-{event.first_seq}", source=Source.PSTORE)
        for event in classify(parse_lines(lines))
    ]


class Pstore:
    """Dumps that appear while it looks."""

    def __init__(self, root: Path = Path("/sys/fs/pstore")) -> None:
        self._root = root
        self._known: frozenset[str] = frozenset()

    def start(self) -> None:
        """Note what is there. OSError when there is no pstore."""
        self._known = frozenset(path.name for path in self._root.iterdir())

    def poll(self) -> list[Event]:
        """Events of new dumps."""
        names = frozenset(path.name for path in entries(self._root))
        if names <= self._known:
            return []
        events = read_pstore(self._root, self._known)
        self._known |= names
        return events

    def close(self) -> None:
        """Nothing is held."""
