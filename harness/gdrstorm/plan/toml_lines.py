"""TOML text to the line number of every key, for error messages; tomllib itself gives no positions.

Pure and forgiving: it is only used beside tomllib, on text that tomllib has accepted, and a key that it does not
find falls back to the line of the nearest table around it.
"""

from __future__ import annotations

import re

Path = tuple[str | int, ...]

_HEADER = re.compile(r"^\s*(\[\[?)\s*(.+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*="""
)
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_TOKEN = re.compile(r'"""|\'\'\'|"(?:\\.|[^"\\])*"|\'[^\']*\'|#.*|[\[\]{}]')


def _split(dotted: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(dotted)]


class LineMap:
    """Line numbers (from 1) of the keys of one TOML file."""

    def __init__(self, text: str) -> None:
        self._lines: dict[Path, int] = {(): 1}
        self._counts: dict[tuple[str, ...], int] = {}
        self._table: Path = ()
        self._depth = 0
        self._quote = ""
        for number, line in enumerate(text.splitlines(), start=1):
            if not self._depth and not self._quote:
                self._read_head(line, number)
            self._skip_value(line)

    def line(self, path: Path) -> int:
        """Line of the key at `path`, or of the nearest table around it."""
        while path not in self._lines:
            path = path[:-1]
        return self._lines[path]

    def _read_head(self, line: str, number: int) -> None:
        header = _HEADER.match(line)
        if header and not _KEY.match(line):
            self._enter(_split(header[2]), header[1] == "[[", number)
            return
        key = _KEY.match(line)
        if key:
            path = self._table
            for part in _split(key[1]):
                path = (*path, part)
                self._lines.setdefault(path, number)

    def _enter(self, names: list[str], is_array: bool, number: int) -> None:
        """A table header: names that were arrays before stand for their latest element."""
        path: Path = ()
        for depth, name in enumerate(names, start=1):
            key = tuple(names[:depth])
            path = (*path, name)
            self._lines.setdefault(path, number)
            last = depth == len(names)
            if last and is_array:
                self._counts[key] = self._counts.get(key, -1) + 1
                for known in [k for k in self._counts if len(k) > depth and k[:depth] == key]:
                    del self._counts[known]
            if key in self._counts:
                path = (*path, self._counts[key])
                self._lines.setdefault(path, number)
        self._table = path

    def _skip_value(self, line: str) -> None:
        """Follow brackets and multi-line strings, so that what is inside them is not read as keys."""
        if _HEADER.match(line) and not _KEY.match(line) and not self._depth and not self._quote:
            return
        position = 0
        while position < len(line):
            if self._quote:
                end = line.find(self._quote, position)
                if end < 0:
                    return
                position, self._quote = end + 3, ""
                continue
            token = _TOKEN.search(line, position)
            if not token:
                return
            text = token[0]
            position = token.end()
            if text in ('"""', "'''"):
                self._quote = text
            elif text in "[{":
                self._depth += 1
            elif text in "]}":
                self._depth = max(0, self._depth - 1)
