"""Scenario and choices to Plan. Pure: the same input gives the same plan on any machine."""

from __future__ import annotations

from gdrstorm.model.plan import PhasePlan, Plan, StackChoice, WorkerPlan
from gdrstorm.model.scenario import Do, Phase, Scenario


def resolve(
    scenario: Scenario, stack: StackChoice, seed: int, duration_ns: int | None = None
) -> Plan:
    """The plan of a scenario on a stack.

    `duration_ns` replaces the duration of every storm phase that has one; with it the time limit grows as needed.
    """
    phases = []
    worker = 0
    for phase in scenario.phases:
        length = duration_ns if duration_ns and phase.duration_ns else phase.duration_ns
        planned = _phase(phase, stack, seed, length, worker)
        worker += len(planned.workers)
        phases.append(planned)
    extra = sum(p.duration_ns for p in phases) - sum(p.duration_ns for p in scenario.phases)
    return Plan(
        stack=stack,
        seed=seed,
        phases=tuple(phases),
        time_limit_ns=scenario.time_limit_ns + max(0, extra),
        call_limit_ns=scenario.call_limit_ns,
        tail_ns=scenario.expect.tail_ns,
    )


def _phase(phase: Phase, stack: StackChoice, seed: int, length_ns: int, worker: int) -> PhasePlan:
    if phase.do is Do.GATE:
        gate = WorkerPlan(worker, phase.name, phase.do, stack, seed, table=phase.table)
        return PhasePlan(phase.name, phase.do, 0, (gate,))
    workers: list[WorkerPlan] = []
    thread = 0
    for group in phase.groups:
        for _ in range(group.processes):
            workers.append(
                WorkerPlan(
                    worker=worker + len(workers),
                    phase=phase.name,
                    do=phase.do,
                    stack=stack,
                    seed=seed,
                    first_thread=thread,
                    threads=group.threads,
                    group=group,
                    duration_ns=length_ns,
                    count=phase.count,
                    verify=phase.verify,
                )
            )
            thread += group.threads
    return PhasePlan(phase.name, phase.do, thread, tuple(workers), length_ns, phase.count)
