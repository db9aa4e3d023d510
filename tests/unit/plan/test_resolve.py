"""Plans: slots do not overlap, numbers are stable, a given duration replaces timed phases only."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.model.op import Op
from gdrstorm.model.plan import StackChoice
from gdrstorm.model.scenario import Do, Group, Memory, Phase, Scenario
from gdrstorm.plan.resolve import resolve

STACK = StackChoice("fake", "fake")
MEMORY = Memory(4096, 4096)


def group(name: str, processes: int, threads: int) -> Group:
    return Group(name, (Op.REG, Op.DEREG), MEMORY, processes=processes, threads=threads)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7)), min_size=1, max_size=4))
def test_thread_slots_are_a_partition(shape: list[tuple[int, int]]) -> None:
    groups = tuple(group(f"g{i}", p, t) for i, (p, t) in enumerate(shape))
    plan = resolve(Scenario("s", "x", 10**10, (Phase("a", groups=groups, count=1),)), STACK, 7)
    phase = plan.phases[0]
    slots = [
        slot for w in phase.workers for slot in range(w.first_thread, w.first_thread + w.threads)
    ]
    assert slots == list(range(phase.threads))
    assert [w.worker for w in phase.workers] == list(range(len(phase.workers)))
    assert phase.threads == sum(p * t for p, t in shape)


def test_duration_replaces_timed_phases_and_extends_the_limit() -> None:
    phases = (
        Phase("a", groups=(group("g", 1, 1),), duration_ns=10),
        Phase("b", groups=(group("g", 1, 1),), count=5),
        Phase("c", do=Do.GATE, table="t"),
    )
    plan = resolve(Scenario("s", "x", 100, phases), STACK, 1, duration_ns=1000)
    assert [p.duration_ns for p in plan.phases] == [1000, 0, 0]
    assert plan.time_limit_ns == 100 + 990
    assert plan.phases[2].workers[0].table == "t"
    assert [w.worker for p in plan.phases for w in p.workers] == [0, 1, 2]
