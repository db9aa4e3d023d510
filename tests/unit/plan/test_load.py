"""Scenario files: the shipped ones are good, bad ones name every problem with its line, random ones never crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.errors import UsageError
from gdrstorm.model.op import Op, Order, Share
from gdrstorm.model.scenario import Do, How
from gdrstorm.plan.catalogue import find_scenario, list_names, scenario_dir
from gdrstorm.plan.load import ScenarioError, parse_scenario

GOOD = """\
summary = "do a thing"
time_limit = "1m"

[memory]
size = "1MiB"

[[phase]]
name = "storm"
threads = 2
cycle = ["EXPORT", "REG", "DEREG", "CLOSE"]
duration = "5s"
"""


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text, "x", "x.toml")
    return caught.value.problems


@pytest.mark.parametrize("name", list_names())
def test_shipped_scenarios_are_valid(name: str) -> None:
    scenario = find_scenario(name)
    assert scenario.name == name
    assert scenario.phases
    assert scenario.summary[0].islower(), "completes the sentence `This scenario will ...`"


def test_values_arrive() -> None:
    text = GOOD.replace(
        "threads = 2", 'threads = 2\ndepth = 8\norder = "random"\naccess = ["LOCAL_WRITE"]'
    )
    scenario = parse_scenario(
        text + '[[expect.error]]\nop = "REG"\nerrno = "ENOTSUPP"\nhow = "must"\n', "n", "f"
    )
    group = scenario.phases[0].groups[0]
    assert (group.threads, group.depth, group.order, group.access) == (2, 8, Order.RANDOM, 1)
    assert group.cycle == (Op.EXPORT, Op.REG, Op.DEREG, Op.CLOSE)
    assert group.memory.size_min_bytes == group.memory.size_max_bytes == 1 << 20
    assert scenario.expect.errors[0].how is How.MUST


def test_groups_inherit_memory_and_override_it() -> None:
    text = """\
summary = "x"
time_limit = "1m"
[memory]
size = "1MiB"
share = "allocation"
[[phase]]
duration = "1s"
[[phase.group]]
cycle = ["EXPORT", "CLOSE"]
[[phase.group]]
cycle = ["REG", "DEREG"]
memory = { size_min = "4KiB", size_max = "8KiB", share = "buffer" }
"""
    first, second = parse_scenario(text, "x", "x").phases[0].groups
    assert first.memory.share is Share.ALLOCATION
    assert first.memory.size_max_bytes == 1 << 20
    assert (second.memory.share, second.memory.size_min_bytes, second.memory.size_max_bytes) == (
        Share.BUFFER, 4096, 8192,
    )  # fmt: skip


def test_every_problem_at_once_in_line_order() -> None:
    found = problems(
        'sumary = "x"\ntime_limit = "5"\n[memory]\nsise = 3\n[[phase]]\nthreads = 0\n'
        'cycle = ["EXPROT",\n "REG"]\nduration = "5s"\ncount = 3\n'
    )
    lines = [int(text.split(":")[1]) for text in found]
    assert lines == sorted(lines)
    text = "\n".join(found)
    assert 'x.toml:1: unknown key "sumary" in the file - did you mean "summary"?' in text
    assert "x.toml:2: time_limit not a duration" in text
    assert 'x.toml:4: unknown key "sise" in memory - did you mean "size"?' in text
    assert "x.toml:5: phase[0] needs exactly one of duration and count" in text
    assert len(found) == 7
    assert "x.toml:6: phase[0].threads must be from 1 to 256, is 0" in text
    assert "x.toml:7:" in text and 'did you mean "EXPORT"?' in text


def test_lines_of_array_tables_and_multi_line_values() -> None:
    text = GOOD + '[[phase]]\nname = "b"\ncycle = [\n  "REG", # ]\n  "DEREG",\n]\nduration = "x"\n'
    assert problems(text)[0].startswith("x.toml:18: phase[1].duration not a duration")


@pytest.mark.parametrize(
    ("cycle", "share", "message"),
    [
        ('["EXPORT", "REG", "DEREG"]', "nothing", "EXPORT and CLOSE belong together"),
        ('["DEREG", "REG"]', "nothing", "DEREG comes before REG"),
        ('["REG", "EXPORT", "DEREG", "CLOSE"]', "nothing", "REG comes before EXPORT"),
        ('["EXPORT", "CLOSE"]', "buffer", "belongs to all threads"),
        ('["ALLOC", "FREE"]', "allocation", "belongs to all threads"),
        ('["REREG"]', "nothing", "REREG needs REG before it"),
        ('["EXPORT", "CLOSE", "REG", "DEREG"]', "nothing", "REG comes after the first release"),
    ],
)
def test_impossible_cycles(cycle: str, share: str, message: str) -> None:
    text = GOOD.replace('["EXPORT", "REG", "DEREG", "CLOSE"]', cycle).replace(
        'size = "1MiB"', f'size = "1MiB"\nshare = "{share}"'
    )
    assert any(message in problem for problem in problems(text)), problems(text)


def test_time_limit_must_exceed_the_phases() -> None:
    assert "time_limit 5s is not above the 5s" in problems(GOOD.replace('"1m"', '"5s"'))[0]


def test_gate_takes_a_table_and_nothing_of_a_storm() -> None:
    text = 'summary = "x"\ntime_limit = "1m"\n[[phase]]\ndo = "gate"\ntable = "t"\n'
    assert parse_scenario(text, "x", "x").phases[0].do is Do.GATE
    assert "means nothing in a gate" in problems(text + "threads = 3\n")[0]
    assert 'needs the key "table"' in problems(text.replace('table = "t"', ""))[0]


def test_syntax_errors_have_a_line() -> None:
    assert problems("a = 1\nb = = 2\n")[0].startswith("x.toml:2: not valid TOML")


def test_unknown_names_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean"):
        find_scenario("storm/depe")
    with pytest.raises(UsageError, match="cannot read scenario"):
        find_scenario(str(tmp_path / "none.toml"))
    bad = tmp_path / "bad.toml"
    bad.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        find_scenario(str(bad))
    with pytest.raises(UsageError):
        find_scenario(str(tmp_path))


SHIPPED = [path.read_text() for path in sorted(scenario_dir().rglob("*.toml"))]
VALUES = st.sampled_from(
    ["0", "-1", "true", '""', '"x"', "[]", "[[]]", "{}", "1e999", "nan", '"4KiB"', "[1, 'a']", "{a = 1}", "9" * 30,
     "1979-05-27", '["REG"]', '"REG"', "'''\n'''"]
)  # fmt: skip


@given(st.sampled_from(SHIPPED), st.data())
def test_mutated_files_give_a_scenario_or_problems(text: str, data: st.DataObject) -> None:
    """Lines dropped, doubled, swapped; values replaced; single characters changed."""
    lines = text.splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        what = data.draw(st.sampled_from(["drop", "double", "swap", "value", "char", "key"]))
        line = lines[at]
        if what == "drop" and len(lines) > 1:
            del lines[at]
        elif what == "double":
            lines.insert(at, line)
        elif what == "swap":
            other = data.draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
        elif what == "value" and "=" in line:
            lines[at] = line.split("=")[0] + "= " + data.draw(VALUES)
        elif what == "key" and "=" in line:
            lines[at] = (
                data.draw(st.text("abcdefgs_.[]\"'", max_size=6)) + " =" + line.split("=", 1)[1]
            )
        elif line:
            where = data.draw(st.integers(0, len(line) - 1))
            lines[at] = line[:where] + data.draw(st.characters()) + line[where + 1 :]
    try:
        parse_scenario("\n".join(lines), "x", "x.toml")
    except ScenarioError as error:
        assert error.problems
        assert all(problem.startswith("x.toml:") for problem in error.problems)


@given(st.text(max_size=200))
def test_any_text_gives_problems_not_a_crash(text: str) -> None:
    with pytest.raises(ScenarioError):
        parse_scenario(text, "x", "x.toml")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"storm"', '"' + "s" * 129 + '"', "phase[0].name must be at most 128 printable bytes"),
        ('"storm"', '"a\\u001b[31m"', "phase[0].name must be at most 128 printable bytes"),
        ('"1m"', '"' + "9" * 400 + 's"', "time_limit not a duration"),
        ('"1MiB"', '"' + "9" * 5000 + '"', "memory.size not a size"),
        ("[memory]", '[bed]\nbars = ["x"]\n[memory]', "bed.bars not a size: 'x'"),
        ("[memory]", "[bed]\nbars = [17]\n[memory]", "bed.bars must be from 4KiB to 16GiB"),
        (
            "[memory]",
            '[[expect.fault]]\nclass = "xids"\n[memory]',
            "expect.fault[0].class must be one of xid, nvrm",
        ),
    ],
)
def test_values_that_a_run_could_not_use(old: str, new: str, reason: str) -> None:
    assert any(reason in problem for problem in problems(GOOD.replace(old, new, 1)))


def test_bars_stay_as_they_were_written() -> None:
    text = GOOD.replace("[memory]", '[bed]\nbars = ["16MiB", 4096]\n[memory]')
    assert parse_scenario(text, "x", "x.toml").bed.bars == ("16MiB", "4096")
