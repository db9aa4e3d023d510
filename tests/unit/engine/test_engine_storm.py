"""What a storm does, on the fake back ends: cycles, windows, errors, and that nothing is ever left behind."""

from __future__ import annotations

import os
import threading
import time
from errno import EAGAIN, EMFILE, ENOMEM
from itertools import product
from typing import Any

import pytest
from engine_storms import FULL, NOTHING, Live, Plant, live, program, run, running, until

from gdrstorm.engine import (
    Area,
    ExporterBinding,
    ImporterBinding,
    ThreadState,
    has_exporter,
    has_importer,
    run_storm,
    sequence,
)
from gdrstorm.errors import CallError, UsageError, errno_name
from gdrstorm.model.op import Op, OpSummary, Order, Share

EARLY_CLOSE = (Op.ALLOC, Op.EXPORT, Op.REG, Op.CLOSE, Op.DEREG, Op.FREE)
EARLY_FREE = (Op.ALLOC, Op.EXPORT, Op.REG, Op.FREE, Op.CLOSE, Op.DEREG)
BUSY = (Op.ALLOC, Op.EXPORT, Op.SYNC, Op.REG, Op.REREG, Op.CONTROL, Op.DEREG, Op.CLOSE, Op.FREE)
TWICE = (Op.ALLOC, Op.EXPORT, Op.REG, Op.DEREG, Op.REG, Op.DEREG, Op.CLOSE, Op.FREE)
CYCLES = (FULL, EARLY_CLOSE, EARLY_FREE, BUSY, TWICE)
IMPORTING = {Op.REG, Op.REREG, Op.DEREG}


def result(storm: Any, threads: int = 1, **plants: Plant) -> dict[str, OpSummary]:
    """Run it to its end; the summaries by name."""
    with Area.create(threads) as area:
        area.start()
        run(area, storm, **plants)
        snapshot = area.snapshot(range(threads))
        assert snapshot.outstanding == 0
        assert set(area.states(range(threads))) == {ThreadState.DONE}
        return {s.op: s for s in snapshot.summaries()}


@pytest.mark.parametrize("cycle", CYCLES)
@pytest.mark.parametrize("order", Order)
def test_counts_are_exact(cycle: tuple[Op, ...], order: Order) -> None:
    done = result(program(cycle, depth=4, order=order, count=25), threads=2)
    assert {name: s.count for name, s in done.items()} == {
        op.name: 2 * 25 * cycle.count(op) for op in set(cycle)
    }
    assert all(not s.errors and s.error_latency is None for s in done.values())
    assert live() == NOTHING


FAILING = [(c, op, n) for c in CYCLES for op, n in product(sorted(set(c)), (1, 2, 7))]


@pytest.mark.parametrize(("cycle", "op", "at"), FAILING)
def test_one_failing_call_leaves_nothing(cycle: tuple[Op, ...], op: Op, at: int) -> None:
    plant = Plant(fail_op=op, fail_at=at, errno=ENOMEM)
    side = "importer" if op in IMPORTING else "exporter"
    done = result(program(cycle, depth=3, order=Order.RANDOM), **{side: plant})
    assert done[op.name].errors == {"ENOMEM": 1}
    assert sum(s.count - sum(s.errors.values()) for s in done.values()) > 0
    assert live() == NOTHING


@pytest.mark.parametrize(("cycle", "op"), [(c, op) for c in CYCLES for op in sorted(set(c))])
def test_a_call_that_always_fails(cycle: tuple[Op, ...], op: Op) -> None:
    """What cannot be ended is left, and said to be; everything else is given back."""
    plant = Plant(fail_op=op, fail_every=1, errno=EAGAIN)
    side = "importer" if op in IMPORTING else "exporter"
    with Area.create(1) as area:
        area.start()
        run(area, program(cycle, depth=2), **{side: plant})
        snapshot = area.snapshot(range(1))
    left = live()
    stuck = {Op.FREE: left.memory, Op.DEREG: left.registrations}
    assert snapshot.leaked == stuck.get(op, 0) == (10 if op in stuck else 0)
    assert left.misuses == left.buffers == 0
    assert sum(left) == snapshot.leaked
    (failed,) = (s for s in snapshot.summaries() if s.errors)
    assert failed.op == op.name
    assert failed.errors == {"EAGAIN": failed.count}


def test_dependants_of_a_failure_are_skipped() -> None:
    with Area.create(1) as area:
        area.start()
        run(area, program(BUSY, count=1), importer=Plant(fail_op=Op.REG, fail_at=1))
        snapshot = area.snapshot(range(1))
    assert snapshot.skipped == 2
    assert [s.op for s in snapshot.summaries()] == [
        *("ALLOC", "EXPORT", "REG", "CLOSE", "FREE", "SYNC", "CONTROL")
    ]


@pytest.mark.parametrize(
    ("share", "cycle"),
    [
        (Share.NOTHING, (Op.REG, Op.DEREG)),
        (Share.NOTHING, (Op.EXPORT, Op.CLOSE)),
        (Share.NOTHING, (Op.REG,)),
        (Share.ALLOCATION, (Op.EXPORT, Op.REG, Op.DEREG, Op.CLOSE)),
        (Share.ALLOCATION, (Op.REG, Op.DEREG)),
        (Share.BUFFER, (Op.REG, Op.DEREG)),
        (Share.BUFFER, (Op.SYNC,)),
    ],
)
def test_what_the_cycle_does_not_make_comes_from_the_setup(
    share: Share, cycle: tuple[Op, ...]
) -> None:
    done = result(program(cycle, share=share, depth=3), threads=2)
    assert {name: s.count for name, s in done.items()} == {op.name: 20 for op in cycle}
    assert live() == NOTHING


@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize("op", [Op.ALLOC, Op.EXPORT])
def test_failing_setup_is_named_and_leaves_nothing(op: Op, at: int) -> None:
    plant = Plant(fail_op=op, fail_at=at, errno=EMFILE)
    with Area.create(2) as area, pytest.raises(CallError) as caught:
        run(area, program((Op.REG, Op.DEREG), depth=8), exporter=plant)
    assert caught.value.errno == EMFILE
    assert op.name in str(caught.value)
    assert "EMFILE" in str(caught.value)
    assert live() == NOTHING


def test_failing_setup_shows_in_states_and_ends_the_wait() -> None:
    plant = Plant(fail_op=Op.ALLOC, fail_at=1)
    with Area.create(1) as area:
        with pytest.raises(CallError):
            run(area, program((Op.EXPORT, Op.CLOSE)), exporter=plant)
        assert area.states(range(1)) == (ThreadState.FAILED,)
        assert not area.wait_ready(range(1), 1000.0)


@pytest.mark.parametrize(
    ("storm", "words"),
    [
        (program(()), "cycle"),
        (program((Op.DEREG,)), "DEREG"),
        (program((Op.REG, Op.REG)), r"operation 2 .*\(REG\)"),
        (program((Op.REG, Op.CLOSE)), "CLOSE"),
        (program((Op.ALLOC, Op.REG)), "EXPORT"),
        (program((Op.EXPORT, Op.CLOSE), share=Share.BUFFER), "share buffer"),
        (program((Op.ALLOC, Op.FREE), share=Share.ALLOCATION), "share allocation"),
        (program(depth=0), "depth"),
        (program(size_min_bytes=8192, size_max_bytes=4096), "sizes"),
        (program(size_step_bytes=0), "sizes"),
        (program(count=0), "duration and count"),
        (program(count=5, duration_ns=5), "duration and count"),
        (program(count=-1), "out of range"),
    ],
)
def test_what_could_not_work_is_refused(storm: Any, words: str) -> None:
    with Area.create(1) as area, pytest.raises(UsageError, match=words):
        run(area, storm)
    assert live() == NOTHING


def test_unknown_backends_and_slots_are_refused() -> None:
    fake = {"exporter": ExporterBinding("fake"), "importer": ImporterBinding("fake")}
    wrong: list[dict[str, Any]] = [
        {"exporter": ExporterBinding("nobody")},
        {"importer": ImporterBinding("nobody")},
        {"threads": 5},
        {"first_thread": 4},
        {"cpus": (100_000,)},
    ]
    for change in wrong:
        call = {"worker": 0, "first_thread": 0, "threads": 2, "program": program(), **fake}
        with Area.create(4) as area, pytest.raises(UsageError):
            run_storm(area, **(call | change))


def test_a_used_slot_is_not_used_again() -> None:
    with Area.create(1) as area:
        area.start()
        run(area, program())
        with pytest.raises(UsageError, match="used already"):
            run(area, program())


def test_backends_are_built_in() -> None:
    assert all(has_exporter(name) for name in ("fake", "udmabuf", "dmaheap", "vfio"))
    assert all(has_importer(name) for name in ("fake", "verbs", "host-memory", "prime"))
    assert not has_exporter("verbs")
    assert not has_importer("udmabuf")


def test_first_errors_have_the_arguments_of_the_sequence() -> None:
    storm = program(
        seed=9,
        depth=5,
        order=Order.RANDOM,
        size_max_bytes=1 << 24,
        offset_max_bytes=1 << 20,
        access=3,
        count=40,
    )
    with Area.create(2) as area:
        area.start()
        run(area, storm, importer=Plant(fail_op=Op.REG, fail_every=17, errno=524))
        errors = area.first_errors(range(2))
    assert [e.errno for e in errors] == ["ENOTSUPP"] * 2
    assert {e.thread for e in errors} == {0, 1}
    for error in errors:
        step = sequence(storm, error.thread, 17)[16]
        assert (error.op, error.slot) == ("REG", step.slot)
        assert (error.offset_bytes, error.length_bytes) == (step.offset_bytes, step.length_bytes)
        assert error.access == 3
        # 16 iterations of three calls, 12 releases of three, then ALLOC, EXPORT and this REG
        assert error.seq == 16 * 3 + 12 * 3 + 3


def test_many_errno_values_overflow_into_other() -> None:
    """17 kinds of failure in one operation of one area: 16 are kept apart, the rest is counted."""
    with Area.create(17) as area:
        area.start()
        for thread in range(17):
            run_storm(
                area,
                worker=0,
                first_thread=thread,
                threads=1,
                program=program((Op.ALLOC, Op.FREE), count=1),
                exporter=ExporterBinding(
                    "fake", numbers=Plant(fail_op=Op.ALLOC, fail_at=1, errno=thread + 1)
                ),
                importer=ImporterBinding("fake"),
            )
        (summary,) = area.snapshot(range(17)).summaries()
    assert summary.errors == {errno_name(n + 1): 1 for n in range(16)} | {"other": 1}


def test_duration_ends_the_storm() -> None:
    done = result(program(duration_ns=20_000_000), threads=2)
    assert done["REG"].count > 2
    assert done["REG"].count == done["FREE"].count


def test_stop_on_error_stops_all_threads() -> None:
    storm = program(count=1 << 60, stop_on_error=True)
    done = result(storm, threads=3, importer=Plant(fail_op=Op.REG, fail_at=1000))
    assert 1 <= done["REG"].errors["EIO"] <= 3
    assert live() == NOTHING


def test_stop_ends_delays_and_pacing_at_once() -> None:
    hour = 3_600_000_000_000
    for storm in (program((Op.DELAY,), delay_ns=hour), program(pacing_ns=hour, count=1 << 60)):
        with Area.create(2) as area, running(area, storm):
            until(lambda: set(area.states(range(2))) == {ThreadState.RUNNING})
    assert live() == NOTHING


def test_stop_before_the_start_line() -> None:
    with Area.create(1) as area:
        area.request_stop()
        run(area, program())
        assert area.states(range(1)) == (ThreadState.DONE,)
        assert area.snapshot(range(1)).summaries() == ()


def test_pacing_and_delay_take_their_time() -> None:
    start = time.monotonic_ns()
    result(program(pacing_ns=2_000_000, count=6))
    assert time.monotonic_ns() - start >= 10_000_000
    done = result(program((Op.DELAY,), delay_ns=3_000_000, count=3))
    assert done["DELAY"].latency.min_ns >= 3_000_000


def test_barrier_keeps_threads_together() -> None:
    """One call between two barriers: a thread read later is at most one call behind one read earlier."""
    storm = program((Op.BARRIER, Op.CONTROL), count=1 << 60)
    with Area.create(3) as area, running(area, storm):
        counts = [0]
        while min(counts) < 300:
            counts = [rate.count for rate in area.thread_rates(range(3))]
            assert counts[1] >= counts[0] - 1
            assert counts[2] >= max(counts) - 1
        area.request_stop()
        until(lambda: set(area.states(range(3))) == {ThreadState.DONE})
        counts = [rate.count for rate in area.thread_rates(range(3))]
        assert max(counts) - min(counts) <= 2


def test_barrier_does_not_wait_for_those_who_ended() -> None:
    """Threads that fail to meet again (their storm is over) must not hang the others."""
    done = result(program((Op.BARRIER,), count=500), threads=4)
    assert done["BARRIER"].count == 2000


def test_a_hung_call_is_seen_with_its_thread() -> None:
    plant = Plant(hang_op=Op.REG, hang_at=3, hang_ns=400_000_000)
    with Area.create(1) as area, running(area, program(), importer=plant):
        (call,) = until(lambda: area.in_flight(range(1), 100_000_000))
        assert (call.op, call.thread, call.worker, call.seq) == ("REG", 0, 0, 15)
        assert call.elapsed_ns >= 100_000_000
        assert call.since_ns + call.elapsed_ns <= time.monotonic_ns()
        assert f"{call.tid}" in os.listdir("/proc/self/task")  # noqa: PTH208
        assert area.snapshot(range(1)).outstanding == 1
    with Area.create(1) as area:
        assert area.in_flight(range(1)) == ()


def test_threads_are_pinned() -> None:
    cpu = min(os.sched_getaffinity(0))
    plant = Plant(hang_op=Op.CONTROL, hang_at=1, hang_ns=400_000_000)
    storm = program((Op.CONTROL,), count=1)
    with Area.create(2) as area, running(area, storm, exporter=plant, cpus=(cpu,)):
        calls = until(lambda: area.in_flight(range(2)))
        assert all(os.sched_getaffinity(call.tid) == {cpu} for call in calls)


def test_rereg_alternates_between_the_two_accesses() -> None:
    cycle = (Op.REG, Op.REREG, Op.REREG, Op.REREG, Op.DEREG)
    storm = program(cycle, access=7, rereg_access=1, count=1)
    seen = []
    for at in (1, 2, 3):
        with Area.create(1) as area:
            area.start()
            run(area, storm, importer=Plant(fail_op=Op.REREG, fail_at=at))
            (error,) = area.first_errors(range(1))
            seen.append(error.access)
    assert seen == [1, 7, 1]


def test_memfds_are_made_and_closed() -> None:
    """udmabuf's ALLOC and FREE are real memfds; nothing stays open, whatever the order."""
    before = len(list(os.scandir("/proc/self/fd")))
    with Area.create(2) as area:
        area.start()
        run_storm(
            area,
            worker=0,
            first_thread=0,
            threads=2,
            program=program((Op.ALLOC, Op.FREE), depth=16, order=Order.RANDOM, count=200),
            exporter=ExporterBinding("udmabuf"),
            importer=ImporterBinding("fake"),
        )
        alloc, free = area.snapshot(range(2)).summaries()
    assert (alloc.count, alloc.errors, free.count, free.errors) == (400, {}, 400, {})
    assert len(list(os.scandir("/proc/self/fd"))) == before


def test_real_errors_come_through() -> None:
    """EXPORT on a descriptor that is no /dev/udmabuf: the kernel's own errno."""
    with Area.create(1) as area, open(os.devnull) as null:  # noqa: PTH123
        area.start()
        run_storm(
            area,
            worker=0,
            first_thread=0,
            threads=1,
            program=program(),
            exporter=ExporterBinding("udmabuf", fds=(null.fileno(),)),
            importer=ImporterBinding("fake"),
        )
        by_op = {s.op: s for s in area.snapshot(range(1)).summaries()}
    assert by_op["EXPORT"].errors == {"ENOTTY": 10}
    assert by_op["FREE"].errors == {}
    assert live() == Live(0, 0, 0, 0)


def test_threads_that_end_at_their_deadline_leave_the_barrier() -> None:
    """Deadlines are met one thread after the other; who ended first must not keep the rest waiting."""
    storm = program((Op.CONTROL, Op.BARRIER), duration_ns=20_000_000)
    for _ in range(3):
        with Area.create(3) as area, running(area, storm):
            until(lambda: set(area.states(range(3))) == {ThreadState.DONE})


def drained_slots(order: Order, depth: int, count: int) -> list[int]:
    """The slots that the end of a storm releases, in order: seen by failing one DEREG after the other."""
    storm = program(depth=depth, order=order, count=count)
    steps = sequence(storm, 0, count)
    before = sum(step.victim is not None for step in steps)
    slots = []
    for at in range(before + 1, count + 1):
        with Area.create(1) as area:
            area.start()
            run(area, storm, importer=Plant(fail_op=Op.DEREG, fail_at=at))
            slots += [error.slot for error in area.first_errors(range(1))]
    return slots


@pytest.mark.parametrize("count", [3, 5, 8])
def test_the_end_releases_in_the_programs_order(count: int) -> None:
    depth = 5
    left = {3: [0, 1, 2], 5: [1, 2, 3, 4], 8: [4, 0, 1, 2]}[count]
    assert drained_slots(Order.FIFO, depth, count) == left
    stack = list(range(min(count, depth - 1)))
    assert drained_slots(Order.LIFO, depth, count) == stack[::-1]
    random = drained_slots(Order.RANDOM, depth, count)
    assert len(random) == len(set(random)) == len(stack)
    assert random == drained_slots(Order.RANDOM, depth, count)


@pytest.mark.parametrize("share", [Share.NOTHING, Share.ALLOCATION])
def test_a_call_that_hangs_before_the_start_is_seen(share: Share) -> None:
    plant = Plant(hang_op=Op.ALLOC, hang_at=1, hang_ns=400_000_000)
    storm = program((Op.EXPORT, Op.CLOSE), share=share)
    with Area.create(1) as area:
        worker = threading.Thread(
            target=run, args=(area, storm), kwargs={"exporter": plant}, daemon=True
        )
        worker.start()
        (call,) = until(lambda: area.in_flight(range(1), 50_000_000))
        assert call.op == "ALLOC"
        assert area.states(range(1)) == (ThreadState.STARTING,)
        assert f"{call.tid}" in os.listdir("/proc/self/task")  # noqa: PTH208
        area.start()
        worker.join(30)
        assert area.states(range(1)) == (ThreadState.DONE,)


def test_a_call_that_hangs_in_the_clean_up_is_seen() -> None:
    """DEREG fails, and its second, uncounted attempt hangs."""
    plant = Plant(fail_op=Op.DEREG, fail_at=1, hang_op=Op.DEREG, hang_at=2, hang_ns=400_000_000)
    with Area.create(1) as area, running(area, program(count=1), importer=plant):
        (call,) = until(lambda: area.in_flight(range(1), 50_000_000))
        assert call.op == "DEREG"
        done = {s.op: s for s in area.snapshot(range(1)).summaries()}
        assert (done["DEREG"].count, done["DEREG"].errors) == (1, {"EIO": 1})
        assert "FREE" in done


@pytest.mark.parametrize("share", Share)
def test_importers_places_are_closed(share: Share) -> None:
    """prime opens its node once a slot; here that is /dev/null, so REG is the kernel's ENOTTY."""
    before = len(list(os.scandir("/proc/self/fd")))
    with Area.create(2) as area, open(os.devnull, "r+") as null:  # noqa: PTH123
        area.start()
        run_storm(
            area,
            worker=0,
            first_thread=0,
            threads=2,
            program=program((Op.REG, Op.DEREG), share=share, depth=3),
            exporter=ExporterBinding("fake"),
            importer=ImporterBinding("prime", fds=(null.fileno(),)),
        )
        (reg,) = area.snapshot(range(2)).summaries()
    assert (reg.op, reg.count, reg.errors) == ("REG", 20, {"ENOTTY": 20})
    assert len(list(os.scandir("/proc/self/fd"))) == before
    assert live() == NOTHING


def test_set_up_memory_that_cannot_be_freed_is_said_to_be_leaked() -> None:
    with Area.create(1) as area:
        area.start()
        plant = Plant(fail_op=Op.FREE, fail_every=1)
        run(area, program((Op.EXPORT, Op.CLOSE), depth=3), exporter=plant)
        assert area.snapshot(range(1)).leaked == live().memory == 3
