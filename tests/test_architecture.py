"""The levels of the package, held as data, checked against every import that is written anywhere in it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "harness" / "gdrstorm"

#: module -> level; a module may import levels below its own, never one of the same level.
LEVELS = {
    "errors": 0,
    "units": 0,
    "model": 1,
    "uapi": 1,
    "host": 2,
    "engine": 2,
    "kmsg": 2,
    "policy": 3,
    "plan": 3,
    "stack": 3,
    "audit": 4,
    "verdict": 4,
    "evidence": 4,
    "report": 4,
    "bed": 4,
    "session": 5,
    "cli": 6,
}
#: highest level a module may import, where that is less than everything below it.
CEILING = {"policy": 1, "plan": 1, "verdict": 1, "report": 1, "audit": 2, "evidence": 2, "bed": 2}
#: modules that must stay pure: nothing that does I/O may be imported.
PURE = {"policy", "verdict", "model", "units"}
IMPURE = {"os", "subprocess", "socket", "ctypes", "fcntl", "mmap", "pyroute2", "shutil", "select"}


def modules() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py"))


def owner(path: Path) -> str:
    """Top module of a file: `stack` for stack/exporter/fake.py."""
    relative = path.relative_to(ROOT).with_suffix("")
    return relative.parts[0]


def imports(path: Path) -> set[str]:
    """Dotted names that a file imports, at the top or inside functions; type-checking blocks included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down_the_levels(path: Path) -> None:
    me = owner(path)
    if me in ("__init__", "__main__"):
        return
    assert me in LEVELS, f"{me} has no level: add it to LEVELS and docs/ARCHITECTURE.md"
    for name in sorted(imports(path)):
        parts = name.split(".")
        if parts[0] != "gdrstorm" or len(parts) < 2:
            continue
        other = parts[1]
        if other in (me, "__version__"):
            continue
        assert other in LEVELS, f"{path}: imports unknown module {other}"
        limit = CEILING.get(me, LEVELS[me] - 1)
        assert LEVELS[other] <= limit, f"{me} (level {LEVELS[me]}) must not import {other}"


@pytest.mark.parametrize("path", [p for p in modules() if owner(p) in PURE], ids=str)
def test_pure_modules_do_no_io(path: Path) -> None:
    tops = {name.split(".")[0] for name in imports(path)}
    assert not tops & IMPURE


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_engine_imports_the_native_module(path: Path) -> None:
    if owner(path) != "engine":
        assert not any("_native" in name for name in imports(path))


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_stay_short(path: Path) -> None:
    if path.name == "layouts.py":
        return  # generated
    assert len(path.read_text().splitlines()) <= 600


def test_no_import_cycle() -> None:
    """Cycles between files of one module, over imports at the top of files."""
    graph: dict[str, set[str]] = {}
    names = {
        ".".join(("gdrstorm", *p.relative_to(ROOT).with_suffix("").parts)): p for p in modules()
    }
    names = {n.removesuffix(".__init__"): p for n, p in names.items()}
    for name, path in names.items():
        tree = ast.parse(path.read_text())
        edges: set[str] = set()
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    target = full if full in names else node.module
                    if target in names and target != name:
                        edges.add(target)
        graph[name] = edges
    done: set[str] = set()

    def visit(node: str, trail: tuple[str, ...]) -> None:
        assert node not in trail, "import cycle: " + " -> ".join(
            (*trail[trail.index(node) :], node)
        )
        if node in done:
            return
        for other in sorted(graph[node]):
            visit(other, (*trail, node))
        done.add(node)

    for node in sorted(graph):
        visit(node, ())
