"""Planted failures: text to plan, and which call is hit."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdrstorm.errors import CallError, UsageError
from gdrstorm.model.op import Op
from gdrstorm.stack import plant, registry
from gdrstorm.stack.plant import Planter, PlantPlan, parse_plants


def test_text_to_plan() -> None:
    assert parse_plants("") == PlantPlan()
    assert parse_plants("reg=EINVAL/10, dereg=hang@100, delay_ns=500, hang_ns=7") == PlantPlan(
        delay_ns=500,
        fail_op=Op.REG,
        fail_every=10,
        errno=22,
        hang_op=Op.DEREG,
        hang_at=100,
        hang_ns=7,
    )
    assert parse_plants("any=ENOTSUPP@3") == PlantPlan(errno=524, fail_at=3)


def test_numbers_are_in_the_order_of_the_native_fakes() -> None:
    plan = parse_plants("delay_ns=1,close=EIO/2,reg=hang@3,hang_ns=4")
    assert plan.numbers() == (1, Op.CLOSE, 2, errno.EIO, 0, Op.REG, 3, 4)


@pytest.mark.parametrize(
    "text",
    [
        "reg",
        "reg=EINVAL",
        "reg=EINVAL/0",
        "reg=EINVAL/x",
        "nothing=EIO/1",
        "reg=ENOSUCH/1",
        "reg=hang/3",
        "reg=EIO/1,dereg=EIO/2",
        "reg=hang@1,reg=hang@2",
        "delay_ns=-1",
        "reg=EIO@1/2",
        "REG=EIO/1",
    ],
)
def test_bad_text_is_named(text: str) -> None:
    with pytest.raises(UsageError):
        parse_plants(text)


@given(st.text(alphabet="regdhan=/@,_s0123456789EIO ", max_size=40))
def test_any_text_gives_a_plan_or_a_usage_error(text: str) -> None:
    try:
        plan = parse_plants(text)
    except UsageError:
        return
    assert all(number >= 0 for number in plan.numbers())


def test_which_calls_fail() -> None:
    planter = Planter(parse_plants("reg=EIO/3"))
    failed = []
    for number in range(1, 10):
        planter.call(Op.DEREG, "never")
        try:
            planter.call(Op.REG, "cannot register")
        except CallError as error:
            assert str(error) == "cannot register: EIO (planted)"
            failed.append(number)
    assert failed == [3, 6, 9]


def test_once_and_any() -> None:
    planter = Planter(parse_plants("any=EAGAIN@2"))
    planter.call(Op.REG, "x")
    with pytest.raises(CallError):
        planter.call(Op.CLOSE, "x")
    planter.call(Op.CLOSE, "x")


def test_a_hang_sleeps_for_its_time_and_else_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if seconds >= 60 and len(slept) > 3:
            raise TimeoutError

    monkeypatch.setattr(plant.time, "sleep", sleep)
    Planter(parse_plants("reg=hang@1,hang_ns=2000000000")).call(Op.REG, "x")
    assert slept[-1] == pytest.approx(2.0)
    slept.clear()
    with pytest.raises(TimeoutError):
        Planter(parse_plants("reg=hang@1")).call(Op.REG, "x")


def test_a_failed_dereg_has_not_ended_the_registration() -> None:
    with (
        registry.open_exporter("fake") as exporter,
        registry.open_importer("fake", "dereg=EBUSY@1") as importer,
    ):
        memory = exporter.alloc(4096)
        buffer = exporter.export(memory, 0, 4096)
        registration = importer.register(buffer.fd, 0, 4096)
        with pytest.raises(CallError):
            registration.close()
        registration.close()
        registration.close()
        assert importer.binding().numbers == (0, Op.DEREG, 0, errno.EBUSY, 1, 0, 0, 0)
        buffer.close()
        memory.close()
