#!/usr/bin/env python3
"""Write harness/gdrstorm/bed/connectx/layouts.py from the kernel's mlx5_ifc.h.

The header describes firmware structures as C structs in which one array element is one bit. This
reads the structs, keeps those fields that the model's sources name (`MkcLayout.free`), and writes
their bit offsets and widths: facts of the interface, no code of the kernel. Run it again after
naming a new field: tools/gen_mlx5_layouts.py path/to/include/linux/mlx5/mlx5_ifc.h
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "harness/gdrstorm/bed/connectx"
TESTS = ROOT / "tests/unit/bed/connectx"
TOKEN = re.compile(r"[A-Za-z_]\w*|0x[0-9A-Fa-f]+|\d+|[{}\[\];*]")
USE = re.compile(r"\b(\w+)Layout\.(\w+)")

HEAD = '''"""Bit offsets and widths of mlx5 firmware structures.

Made by tools/gen_mlx5_layouts.py from include/linux/mlx5/mlx5_ifc.h of Linux {version}.
Do not edit: name a field in the model and run the tool again. Only fields that are used are here.
"""

from __future__ import annotations

from typing import Final

from gdrstorm.bed.connectx.fields import Field, Layout
'''


@dataclass
class Aggregate:
    """One C struct or union: its size in bits and where each named member lies in it."""

    size_bits: int = 0
    members: dict[str, tuple[int, int]] = field(default_factory=dict)


class Parser:
    """A reader for the small part of C that mlx5_ifc.h uses."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
        self._text = text
        self._starts = {
            match[2]: (match[1], match.end())
            for match in re.finditer(r"\b(struct|union)\s+mlx5_ifc_(\w+?)(?:_bits)?\s*\{", text)
        }
        self._tokens: Iterator[str] = iter(())
        self.known: dict[str, Aggregate] = {}

    @property
    def names(self) -> list[str]:
        return list(self._starts)

    def aggregate(self, name: str) -> Aggregate:
        """The aggregate called `name`, read when first asked for: C may define it later."""
        if name not in self.known:
            kind, start = self._starts[name]
            outer, self._tokens = self._tokens, self._scan(start)
            self.known[name] = self._body(kind)
            self._tokens = outer
        return self.known[name]

    def _scan(self, start: int) -> Iterator[str]:
        for match in TOKEN.finditer(self._text, start):
            yield match[0]

    def _body(self, kind: str) -> Aggregate:
        whole = Aggregate()
        offset = 0
        while (token := next(self._tokens)) != "}":
            members, size, name = self._member(token)
            base = 0 if kind == "union" else offset
            if name:
                whole.members[name] = (base, size)
            for inner, (inner_offset, width) in members.items():
                whole.members[f"{name}_{inner}" if name else inner] = (base + inner_offset, width)
            offset += size
            whole.size_bits = max(whole.size_bits, base + size)
        return whole

    def _member(self, token: str) -> tuple[dict[str, tuple[int, int]], int, str]:
        inner = Aggregate(1)
        name = next(self._tokens)
        if token == "DECLARE_FLEX_ARRAY":
            # An array of no known length at the end: only where it starts matters.
            words = [name]
            while words[-1] != ";":
                words.append(next(self._tokens))
            return {}, 0, words[-2]
        nested = False
        if token in ("struct", "union"):
            if name == "{":
                inner = self._body(token)
                nested = True
                name = next(self._tokens)
            else:
                inner = self.aggregate(re.sub(r"^mlx5_ifc_(\w+?)(_bits)?$", r"\1", name))
                name = next(self._tokens)
        elif token not in ("u8", "__be16", "__be32", "__be64"):
            raise SystemExit(f"cannot read member of type {token}")
        else:
            inner = Aggregate({"u8": 1, "__be16": 16, "__be32": 32, "__be64": 64}[token])
        count = 1
        dimensions = []
        anonymous = name == ";"
        token = name if anonymous else next(self._tokens)
        while token == "[":
            size = next(self._tokens)
            dimensions.append(0 if size == "]" else int(size, 0))
            token = next(self._tokens)
            if size != "]":
                token = next(self._tokens)
        for dimension in dimensions:
            count *= dimension
        if token != ";":
            raise SystemExit(f"expected ; after {name}, found {token}")
        members = inner.members if nested else {}
        return members, inner.size_bits * count, "" if anonymous else name


def class_name(struct: str) -> str:
    return "".join(part.capitalize() for part in struct.split("_"))


def used_fields() -> dict[str, set[str]]:
    """Which fields of which layout the model and its tests name."""
    used: dict[str, set[str]] = {}
    for folder in (MODEL, TESTS):
        for path in folder.rglob("*.py"):
            if path.name != "layouts.py":
                for layout, name in USE.findall(path.read_text()):
                    used.setdefault(layout, set()).add(name)
    return used


def render(parser: Parser, used: dict[str, set[str]], version: str) -> str:
    by_class = {class_name(name): name for name in parser.names}
    lines = [HEAD.format(version=version)]
    for layout in sorted(used):
        if layout not in by_class:
            raise SystemExit(f"{layout}Layout: no such struct in the header")
        struct = by_class[layout]
        aggregate = parser.aggregate(struct)
        lines += ["", f"class {layout}Layout(Layout):", f'    """struct mlx5_ifc_{struct}_bits."""']
        lines += ["", f"    SIZE_BYTES: Final = {aggregate.size_bits // 8:#x}"]
        missing = used[layout] - {"SIZE_BYTES"} - set(aggregate.members)
        if missing:
            raise SystemExit(f"{layout}Layout: no field {', '.join(sorted(missing))}")
        for name in sorted(used[layout] - {"SIZE_BYTES"}, key=lambda n: aggregate.members[n]):
            offset, width = aggregate.members[name]
            lines.append(f"    {name}: Final = Field({offset:#x}, {width:#x})")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    header = Path(sys.argv[1])
    version = sys.argv[2] if len(sys.argv) > 2 else "7.3"
    parser = Parser((header.parent / "mlx5_ifc_fpga.h").read_text() + "\n" + header.read_text())
    (MODEL / "layouts.py").write_text(render(parser, used_fields(), version))


if __name__ == "__main__":
    main()
