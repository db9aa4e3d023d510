"""Xid events from NVML, with NVML played by the test."""

from __future__ import annotations

import types
from typing import Any

import pytest

from gdrstorm.kmsg.witness.nvml import NvmlWitness, parse_bus_id
from gdrstorm.model.event import EventClass, Severity, Source


class FakeNvml:
    nvmlEventTypeXidCriticalError = 8
    NVML_ERROR_TIMEOUT = 10
    NVML_ERROR_GPU_IS_LOST = 15

    class NVMLError(Exception):
        def __init__(self, value: int, text: str = "") -> None:
            super().__init__(text)
            self.value = value

    def __init__(self, queue: list[int] | None = None, fail: str = "") -> None:
        self.queue = queue or []
        self.fail = fail
        self.end = self.NVML_ERROR_TIMEOUT
        self.depth = 0
        self.registered: list[tuple[str, int]] = []

    def nvmlInit(self) -> None:
        if self.fail == "init":
            raise self.NVMLError(9, "Driver Not Loaded")
        self.depth += 1

    def nvmlShutdown(self) -> None:
        self.depth -= 1

    def nvmlEventSetCreate(self) -> str:
        return "set"

    def nvmlEventSetFree(self, events: str) -> None:
        assert events == "set"

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu{index}"

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: bytes) -> str:
        return "gpu0"

    def nvmlDeviceRegisterEvents(self, handle: str, types_: int, events: str) -> None:
        if self.fail == "register":
            raise self.NVMLError(3, "Not Supported")
        self.registered.append((handle, types_))

    def nvmlDeviceGetPciInfo(self, handle: str) -> Any:
        return types.SimpleNamespace(busId=b"00000000:9B:00.0")

    def nvmlEventSetWait_v2(self, events: str, timeout: int) -> Any:
        assert timeout == 0
        if not self.queue:
            raise self.NVMLError(self.end)
        return types.SimpleNamespace(device="gpu0", eventType=8, eventData=self.queue.pop(0))


def test_xids_become_events_and_a_killed_process_is_no_fault() -> None:
    witness = NvmlWitness(nvml=FakeNvml([119, 45]))
    witness.start()
    fault, notice = witness.poll()
    assert (fault.cls, fault.device, fault.code) == (EventClass.XID, "0000:9b:00.0", "119")
    assert fault.severity is Severity.ERROR and fault.is_fault
    assert fault.source is Source.NVML
    assert not notice.is_fault
    assert fault.id != notice.id
    assert witness.poll() == []


def test_lost_gpu_is_told_once() -> None:
    nvml = FakeNvml()
    nvml.end = nvml.NVML_ERROR_GPU_IS_LOST
    witness = NvmlWitness("0000:9b:00.0", nvml)
    witness.start()
    assert [event.code for event in witness.poll()] == ["79"]
    assert witness.poll() == []


def test_only_xid_is_asked_for_on_every_gpu() -> None:
    nvml = FakeNvml()
    witness = NvmlWitness(nvml=nvml)
    witness.start()
    assert nvml.registered == [("gpu0", 8), ("gpu1", 8)]
    witness.close()
    witness.close()
    assert nvml.depth == 0
    assert witness.poll() == []


@pytest.mark.parametrize(
    ("fail", "words"), [("init", "nvmlInit: Driver Not Loaded"), ("register", "Not Supported")]
)
def test_refusal_has_its_reason_and_leaves_nothing(fail: str, words: str) -> None:
    nvml = FakeNvml(fail=fail)
    with pytest.raises(OSError, match=words):
        NvmlWitness(nvml=nvml).start()
    assert nvml.depth == 0


def test_a_flood_is_taken_in_batches() -> None:
    witness = NvmlWitness(nvml=FakeNvml([31] * 100))
    witness.start()
    assert [len(witness.poll()) for _ in range(3)] == [64, 36, 0]


def test_bus_id() -> None:
    assert parse_bus_id("00000001:9B:00.0") == "0001:9b:00.0"
