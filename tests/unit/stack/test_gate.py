"""The gates on fakes: a good importer passes every row it can take, a careless one is found out."""

from __future__ import annotations

import errno

import pytest

from gdrstorm.errors import CallError, UnavailableError
from gdrstorm.stack import gate, registry, tables
from gdrstorm.stack.gate import Call, Case
from gdrstorm.stack.importer.fake import FakeImporter, FakeRegistration
from gdrstorm.stack.importer.host_memory import HostMemoryImporter


class CarelessImporter(FakeImporter):
    """Says yes to everything, as a driver without checks would."""

    def register(
        self, fd: int, offset_bytes: int, length_bytes: int, iova: int = 0, access: int = 7
    ) -> FakeRegistration:
        return FakeRegistration(-1, 1, self._planter)


def test_bad_input_on_fakes_passes_and_says_what_was_not_run() -> None:
    with registry.open_exporter("fake") as exporter, registry.open_importer("fake") as importer:
        results = tables.run_gate("bad-input", exporter, importer)
    ran = [result for result in results if not result.skipped]
    assert len(ran) == 10 and all(result.passed for result in ran), ran
    assert {result.path for result in results} == {"fake"}
    assert not any(result.passed for result in results if result.skipped)
    refused = {result.case for result in ran if result.refused}
    assert "descriptor is closed" in refused and "control: a good registration" not in refused


def test_a_careless_importer_fails_every_refusal() -> None:
    with registry.open_exporter("fake") as exporter:
        results = tables.run_gate("bad-input", exporter, CarelessImporter(""))
    refusals = [result for result in results if result.refused and not result.skipped]
    assert len(refusals) == 5
    assert {(result.got, result.passed) for result in refusals} == {("ok", False)}


def test_a_wrong_errno_fails_its_row() -> None:
    with (
        registry.open_exporter("fake") as exporter,
        registry.open_importer("fake", "reg=ENOMEM/1") as importer,
    ):
        results = tables.run_gate("bad-input", exporter, importer)
    assert {result.got for result in results if not result.skipped} == {"ENOMEM"}
    assert not any(result.passed for result in results)


def test_every_illegal_access_is_in_the_table() -> None:
    accesses = {access for _, access in gate._illegal_accesses()}
    for access in range(16):
        writes_from_afar = bool(access & 0b1010)
        illegal = writes_from_afar and not access & 1
        assert (access in accesses) is illegal, hex(access)
    assert {7 | 1 << bit for bit in (*range(4, 20), 30, 31)} <= accesses
    assert not any(access & 1 and access & ~0xF == 0 for access in accesses)


def test_ranges_are_bad_in_the_way_their_names_say() -> None:
    calls: dict[str, Call] = {}

    class Recorder:
        def register(self, call: Call) -> None:
            calls[case.name] = call

    for case in gate._ranges():
        case.act(Recorder())  # type: ignore[arg-type]
    for name, call in calls.items():
        good = (
            call.length > 0
            and call.offset + call.length <= gate.SIZE
            and call.iova + call.length <= 1 << 64
        )
        aligned = call.offset % 4096 == call.iova % 4096
        expected_good = name in (
            "offset is unaligned, iova alike",
            "offset and iova differ within a page",
        )
        assert good is expected_good, name
        assert aligned is (name != "offset and iova differ within a page"), name


def test_what_a_case_leaves_is_closed_and_a_failing_close_hides_nothing() -> None:
    closed: list[int] = []

    class Stubborn(FakeRegistration):
        def close(self) -> None:
            closed.append(1)
            raise CallError("x", errno.EIO)

    class Importer(FakeImporter):
        def register(
            self, fd: int, offset_bytes: int, length_bytes: int, iova: int = 0, access: int = 7
        ) -> FakeRegistration:
            return Stubborn(-1, 1, self._planter)

    case = Case("x", lambda bench: bench.register(Call()) and None, {"any": ("ok",)})
    with registry.open_exporter("fake") as exporter:
        (result,) = gate.run_cases("t", (case,), exporter, Importer(""))
    assert result.passed and closed == [1]


def test_an_importer_without_dma_bufs_has_nothing_to_refuse() -> None:
    importer = HostMemoryImporter.__new__(HostMemoryImporter)
    importer.hca = None  # type: ignore[assignment]
    with (
        registry.open_exporter("fake") as exporter,
        pytest.raises(UnavailableError, match="takes no dma-bufs"),
    ):
        gate.run_bad_input(exporter, importer)
