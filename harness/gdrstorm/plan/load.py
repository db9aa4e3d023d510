"""Scenario files (TOML) to Scenario records: all errors of a file at once, each with its line and what is allowed.

Format: docs/SCENARIOS.md. The tables below are the format; a key that is not in them is an error. Reads files,
touches nothing else.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdrstorm import units
from gdrstorm.errors import UsageError
from gdrstorm.model import scenario as m
from gdrstorm.model.event import EventClass
from gdrstorm.model.op import RELEASE_OPS, Op, Order, Share
from gdrstorm.plan import fields as f
from gdrstorm.plan.toml_lines import LineMap
from gdrstorm.plan.toml_lines import Path as KeyPath

_PAGE = 4096

MEMORY = {
    "size": f.Field(f.size(1)),
    "size_min": f.Field(f.size(1)),
    "size_max": f.Field(f.size(1)),
    "size_step": f.Field(f.size(1)),
    "offset_max": f.Field(f.size()),
    "length": f.Field(f.size()),
    "share": f.Field(f.choice(Share)),
}
GROUP = {
    "name": f.Field(f.name),
    "processes": f.Field(f.integer(1, 64)),
    "threads": f.Field(f.integer(1, 256)),
    "cycle": f.Field(f.list_of(f.operation, low=1, high=32)),
    "depth": f.Field(f.integer(1, 65536)),
    "order": f.Field(f.choice(Order)),
    "pacing": f.Field(f.duration()),
    "delay": f.Field(f.duration()),
    "access": f.Field(f.access),
    "rereg_access": f.Field(f.access),
    "one_cpu": f.Field(f.boolean),
    "memory": f.Field(lambda value: value),
}
PHASE = {
    **GROUP,
    "do": f.Field(f.choice(m.Do)),
    "duration": f.Field(f.duration(1_000_000)),
    "count": f.Field(f.integer(1, 1 << 40)),
    "table": f.Field(f.text),
    "verify": f.Field(f.boolean),
    "group": f.Field(lambda value: value),
}
NEEDS = {
    "exporters": f.Field(f.list_of(f.text)),
    "importers": f.Field(f.list_of(f.text)),
    "drivers": f.Field(f.list_of(f.text)),
    "predicates": f.Field(f.list_of(f.text)),
    "root": f.Field(f.boolean),
    "gpu": f.Field(f.boolean),
}
BED = {
    "hca": f.Field(f.integer(0, 2)),
    "bars": f.Field(f.list_of(f.size_text(4096, 16 << 30), high=8)),
    "topology": f.Field(f.word(("pix", "phb", "node", "sys"))),
    "iommu": f.Field(f.word(("none", "intel", "virtio", "amd"))),
    "domain": f.Field(f.word(("identity", "translated"))),
    "rxe": f.Field(f.boolean),
}
ERROR = {
    "op": f.Field(f.operation, required=True),
    "errno": f.Field(f.errno_word, required=True),
    "how": f.Field(f.choice(m.How)),
    "count": f.Field(f.integer(1, 1 << 40)),
}
FAULT = {
    "class": f.Field(f.word(c.value for c in EventClass), required=True),
    "device": f.Field(f.text),
    "code": f.Field(f.text),
    "how": f.Field(f.choice(m.How)),
    "count": f.Field(f.integer(1, 1 << 40)),
}
EXPECT = {
    "operations": f.Field(f.integer(1, 1 << 40)),
    "leaks": f.Field(f.boolean),
    "tail": f.Field(f.duration(0, 600 * 10**9)),
    "error": f.Field(lambda value: value),
    "fault": f.Field(lambda value: value),
}
TOP = {
    "summary": f.Field(f.text, required=True),
    "time_limit": f.Field(f.duration(1_000_000_000), required=True),
    "call_limit": f.Field(f.duration(10_000_000)),
    "seed": f.Field(f.integer(0, (1 << 63) - 1)),
    "exporter": f.Field(f.text),
    "importer": f.Field(f.text),
    "needs": f.Field(lambda value: value),
    "bed": f.Field(lambda value: value),
    "memory": f.Field(lambda value: value),
    "phase": f.Field(lambda value: value, required=True),
    "expect": f.Field(lambda value: value),
}


class ScenarioError(UsageError):
    """A scenario file that cannot be used; `problems` are complete lines `file:line: what`."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


@dataclass
class _Context:
    """Collects the problems of one file while it is read."""

    file: str
    lines: LineMap
    problems: list[tuple[int, str]] = field(default_factory=list)

    def problem(self, path: KeyPath, message: str) -> None:
        line = self.lines.line(path)
        self.problems.append((line, f"{self.file}:{line}: {message}"))

    def table(self, raw: Any, path: KeyPath, spec: dict[str, f.Field]) -> dict[str, Any]:
        """The valid values of one table; every unknown, missing or bad key becomes a problem."""
        where = _dotted(path)
        if not isinstance(raw, dict):
            self.problem(path, f"{where} must be a table [{where}]")
            return {}
        values: dict[str, Any] = {}
        for key, value in raw.items():
            if key not in spec:
                self.problem(
                    (*path, key),
                    f'unknown key "{key}" in {where}{f.nearest(key, spec)} (allowed: {", ".join(spec)})',
                )
                continue
            try:
                values[key] = spec[key].parse(value)
            except ValueError as error:
                self.problem((*path, key), f"{_dotted((*path, key))} {error}")
        for key, one in spec.items():
            if one.required and key not in raw:
                self.problem(path, f'{where} needs the key "{key}"')
        return values

    def tables(self, raw: Any, path: KeyPath) -> list[tuple[KeyPath, Any]]:
        if not isinstance(raw, list):
            self.problem(path, f"{_dotted(path)} must be an array of tables [[{_dotted(path)}]]")
            return []
        return [((*path, index), item) for index, item in enumerate(raw)]


def _dotted(path: KeyPath) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the file"


def _memory(ctx: _Context, raw: Any, path: KeyPath, base: dict[str, Any]) -> dict[str, Any]:
    """Memory settings of `raw` over those of the level above, as plain values."""
    own = ctx.table(raw, path, MEMORY) if raw is not None else {}
    if "size" in own and ("size_min" in own or "size_max" in own):
        ctx.problem(
            (*path, "size"), f"{_dotted(path)}: give size, or size_min and size_max, not both"
        )
    if "size" in own:
        base = {k: v for k, v in base.items() if k not in ("size_min", "size_max")}
        own = {**own, "size_min": own["size"], "size_max": own["size"]}
        del own["size"]
    merged = {**base, **own}
    low, high = merged.get("size_min", 1 << 20), merged.get("size_max", 1 << 20)
    if low > high:
        ctx.problem(
            (*path, "size_min"), f"{_dotted(path)}: size_min {low} is above size_max {high}"
        )
    return merged


def _memory_record(values: dict[str, Any]) -> m.Memory:
    low = values.get("size_min", values.get("size_max", 1 << 20))
    high = values.get("size_max", low)
    return m.Memory(
        size_min_bytes=low,
        size_max_bytes=high,
        size_step_bytes=values.get("size_step", _PAGE),
        offset_max_bytes=values.get("offset_max", 0),
        length_bytes=values.get("length", 0),
        share=values.get("share", Share.NOTHING),
    )


def _check_cycle(cycle: tuple[Op, ...], share: Share) -> list[str]:
    """What is wrong with a cycle: every op needs what it works on, and each release follows its acquire."""
    wrong = []
    if share is Share.BUFFER and {Op.EXPORT, Op.CLOSE, Op.ALLOC, Op.FREE} & set(cycle):
        wrong.append(
            "with share = buffer the buffer belongs to all threads: only REG, REREG, DEREG, SYNC, DELAY, BARRIER"
        )
    if share is Share.ALLOCATION and {Op.ALLOC, Op.FREE} & set(cycle):
        wrong.append("with share = allocation the memory belongs to all threads: no ALLOC or FREE")
    for first, last in ((Op.ALLOC, Op.FREE), (Op.EXPORT, Op.CLOSE), (Op.REG, Op.DEREG)):
        if cycle.count(first) > 1 or cycle.count(last) > 1:
            wrong.append(f"{first.name} and {last.name} at most once in a cycle")
        elif (first in cycle) != (last in cycle):
            wrong.append(f"{first.name} and {last.name} belong together: one is missing")
        elif first in cycle and cycle.index(first) > cycle.index(last):
            wrong.append(f"{last.name} comes before {first.name}")
    for earlier, later in ((Op.ALLOC, Op.EXPORT), (Op.EXPORT, Op.REG), (Op.REG, Op.REREG)):
        if earlier in cycle and later in cycle and cycle.index(earlier) > cycle.index(later):
            wrong.append(f"{later.name} comes before {earlier.name}")
    if Op.REREG in cycle and Op.REG not in cycle:
        wrong.append("REREG needs REG before it")
    first_release = next((i for i, op in enumerate(cycle) if op in RELEASE_OPS), len(cycle))
    acquires = (Op.ALLOC, Op.EXPORT, Op.REG, Op.REREG)
    wrong += [
        f"{op.name} comes after the first release ({cycle[first_release].name})"
        for op in cycle[first_release:]
        if op in acquires
    ]
    return wrong


def _group(
    ctx: _Context,
    values: dict[str, Any],
    path: KeyPath,
    base_memory: dict[str, Any],
    name: str,
    has_cycle: bool,
) -> m.Group | None:
    memory = _memory_record(_memory(ctx, values.get("memory"), (*path, "memory"), base_memory))
    cycle: tuple[Op, ...] = values.get("cycle", ())
    if not cycle:
        if not has_cycle:
            ctx.problem(
                path,
                f'{_dotted(path)} needs the key "cycle", as ["EXPORT", "REG", "DEREG", "CLOSE"]',
            )
        return None
    for wrong in _check_cycle(cycle, memory.share):
        ctx.problem((*path, "cycle"), f"{_dotted(path)}.cycle: {wrong}")
    return m.Group(
        name=values.get("name", name),
        cycle=cycle,
        memory=memory,
        processes=values.get("processes", 1),
        threads=values.get("threads", 1),
        depth=values.get("depth", 1),
        order=values.get("order", Order.FIFO),
        pacing_ns=values.get("pacing", 0),
        delay_ns=values.get("delay", 0),
        access=values.get("access", 7),
        rereg_access=values.get("rereg_access", 1),
        one_cpu=values.get("one_cpu", False),
    )


def _gate_phase(ctx: _Context, values: dict[str, Any], path: KeyPath, name: str) -> m.Phase:
    for key in sorted(
        set(values) & (set(GROUP) | {"group", "duration", "count"}) - {"name", "memory"}
    ):
        ctx.problem(
            (*path, key), f"{_dotted(path)}.{key} means nothing in a gate (do = gate takes table)"
        )
    if "table" not in values:
        ctx.problem(path, f'{_dotted(path)} with do = gate needs the key "table"')
    return m.Phase(name=name, do=m.Do.GATE, table=values.get("table", ""))


def _phase(ctx: _Context, raw: Any, path: KeyPath, base_memory: dict[str, Any]) -> m.Phase | None:
    values = ctx.table(raw, path, PHASE)
    name = values.get("name", f"phase{path[-1]}")
    if values.get("do") is m.Do.GATE:
        return _gate_phase(ctx, values, path, name)
    if "table" in values:
        ctx.problem((*path, "table"), f"{_dotted(path)}.table belongs to do = gate")
    given = raw if isinstance(raw, dict) else {}
    if ("duration" in given) == ("count" in given):
        ctx.problem(path, f"{_dotted(path)} needs exactly one of duration and count")
    memory = _memory(ctx, values.get("memory"), (*path, "memory"), base_memory)
    groups: list[m.Group | None] = []
    if "group" in values:
        for key in sorted(set(values) & set(GROUP) - {"name", "memory"}):
            ctx.problem(
                (*path, key), f"{_dotted(path)}.{key} belongs into its [[phase.group]] tables"
            )
        for group_path, item in ctx.tables(values["group"], (*path, "group")):
            own = ctx.table(item, group_path, GROUP)
            has_cycle = isinstance(item, dict) and "cycle" in item
            groups.append(_group(ctx, own, group_path, memory, f"group{group_path[-1]}", has_cycle))
    else:
        own = {**values, "memory": None, "name": name}
        groups.append(_group(ctx, own, path, memory, name, "cycle" in given))
    return m.Phase(
        name=name,
        groups=tuple(group for group in groups if group),
        duration_ns=values.get("duration", 0),
        count=values.get("count", 0),
        verify=values.get("verify", False),
    )


def _expect(ctx: _Context, raw: Any) -> m.Expect:
    values = ctx.table(raw, ("expect",), EXPECT) if raw is not None else {}
    errors, faults = [], []
    for path, item in ctx.tables(values.get("error", []), ("expect", "error")):
        one = ctx.table(item, path, ERROR)
        if "op" in one and "errno" in one:
            errors.append(
                m.ExpectedError(
                    one["op"], one["errno"], one.get("how", m.How.MAY), one.get("count", 1)
                )
            )
    for path, item in ctx.tables(values.get("fault", []), ("expect", "fault")):
        one = ctx.table(item, path, FAULT)
        if "class" in one:
            faults.append(
                m.ExpectedFault(
                    one["class"],
                    one.get("device", ""),
                    one.get("code", ""),
                    one.get("how", m.How.MUST),
                    one.get("count", 1),
                )
            )
    defaults = m.Expect()
    return m.Expect(
        operations=values.get("operations", defaults.operations),
        errors=tuple(errors),
        faults=tuple(faults),
        leaks=values.get("leaks", defaults.leaks),
        tail_ns=values.get("tail", defaults.tail_ns),
    )


def _check_whole(ctx: _Context, phases: list[m.Phase], time_limit_ns: int) -> None:
    total = sum(phase.duration_ns for phase in phases)
    if time_limit_ns and total >= time_limit_ns:
        ctx.problem(
            ("time_limit",),
            f"time_limit {units.format_ns(time_limit_ns)} is not above the {units.format_ns(total)} of all phases",
        )
    seen: set[str] = set()
    for index, phase in enumerate(phases):
        if phase.name in seen:
            ctx.problem(("phase", index), f'two phases are called "{phase.name}"')
        seen.add(phase.name)
        names = [group.name for group in phase.groups]
        if len(set(names)) != len(names):
            ctx.problem(("phase", index), f'two groups of phase "{phase.name}" have one name')


def parse_scenario(text: str, name: str, file: str) -> m.Scenario:
    """The scenario of one TOML text. Raises ScenarioError with every problem, in line order."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = getattr(error, "lineno", None) or _line_of(str(error), text)
        raise ScenarioError([f"{file}:{line}: not valid TOML: {error}"]) from None
    except (ValueError, RecursionError) as error:
        raise ScenarioError([f"{file}:1: not valid TOML: {error}"]) from None
    ctx = _Context(file, LineMap(text))
    top = ctx.table(raw, (), TOP)
    base_memory = _memory(ctx, top.get("memory"), ("memory",), {})
    phases = [
        _phase(ctx, item, path, base_memory)
        for path, item in ctx.tables(top.get("phase", []), ("phase",))
    ]
    if "phase" in raw and not phases and isinstance(raw["phase"], list):
        ctx.problem(("phase",), "at least one [[phase]] is needed")
    needs = ctx.table(top.get("needs", {}), ("needs",), NEEDS)
    bed = ctx.table(top.get("bed", {}), ("bed",), BED)
    expect = _expect(ctx, top.get("expect"))
    good = [phase for phase in phases if phase]
    _check_whole(ctx, good, top.get("time_limit", 0))
    if ctx.problems:
        raise ScenarioError([text for _, text in sorted(ctx.problems)])
    return m.Scenario(
        name=name,
        summary=top["summary"],
        time_limit_ns=top["time_limit"],
        phases=tuple(good),
        needs=m.Needs(**needs),
        bed=m.ScenarioBed(**bed),
        expect=expect,
        seed=top.get("seed"),
        call_limit_ns=top.get("call_limit", 10_000_000_000),
        exporter=top.get("exporter", ""),
        importer=top.get("importer", ""),
    )


def _line_of(message: str, text: str) -> int:
    """tomllib writes `(at line 3, column 5)` or `(at end of document)`."""
    if "at line " in message:
        return int(message.split("at line ")[1].split(",")[0])
    return max(1, len(text.splitlines()))


def read_scenario(path: Path, name: str | None = None) -> m.Scenario:
    """Read and validate one file. Raises UsageError when it cannot be read, ScenarioError when it is wrong."""
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot read scenario {path}: {error.strerror}", "gdrstorm list shows the shipped ones"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"cannot read scenario {path}: not UTF-8 at byte {error.start}",
            "scenario files are TOML",
        ) from None
    return parse_scenario(text, name or _name_of(path), str(path))


def _name_of(path: Path) -> str:
    """The name of a user's file, with a `_` for what no terminal, journal or directory should get."""
    return "".join(c if c.isprintable() else "_" for c in path.stem)[:128]
