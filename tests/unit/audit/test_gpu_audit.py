"""GPU counters: values, reasons, and leaks that come out of them."""

from __future__ import annotations

import types

from gdrstorm.audit import gpu
from gdrstorm.errors import UnavailableError
from gdrstorm.model.audit import find_leaks

BDF = "0000:9b:00.0"
GIB = 1 << 30


class FakeNvml:
    class NVMLError(Exception):
        pass

    def __init__(self, used: int = 0, fail: str = "") -> None:
        self.used = used
        self.fail = fail
        self.depth = 0

    def nvmlInit(self) -> None:
        if self.fail == "init":
            raise self.NVMLError("Driver Not Loaded")
        self.depth += 1

    def nvmlShutdown(self) -> None:
        self.depth -= 1

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: bytes) -> str:
        if self.fail == "handle":
            raise self.NVMLError("Not Found")
        return bus_id.decode()

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(used=self.used)

    def nvmlDeviceGetBAR1MemoryInfo(self, handle: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(bar1Used=self.used + 4096)


def test_nvml_counters_show_what_stayed() -> None:
    before, after = gpu.read_nvml(BDF, FakeNvml(GIB)), gpu.read_nvml(BDF, FakeNvml(2 * GIB))
    leaks = find_leaks(before, after)
    assert [leak.name for leak in leaks] == [f"GPU {BDF} memory (NVML)", f"GPU {BDF} BAR1 (NVML)"]
    assert leaks[0].after - leaks[0].before == GIB
    assert find_leaks(before, gpu.read_nvml(BDF, FakeNvml(GIB + gpu.SLACK_BYTES))) == ()


def test_reasons_instead_of_zero() -> None:
    for fail, words in (("init", "nvmlInit: Driver Not Loaded"), ("handle", "NVML: Not Found")):
        nvml = FakeNvml(fail=fail)
        snapshot = gpu.read_nvml(BDF, nvml)
        assert snapshot.counters == ()
        assert snapshot.unknown == {f"GPU {BDF} (NVML)": words}
        assert nvml.depth == 0


def test_rm_counters_and_their_reason() -> None:
    snapshot = gpu.read_rm(BDF, lambda: {"memory": 5, "BAR1": 7})
    assert [(c.name, c.value, c.unit) for c in snapshot.counters] == [
        (f"GPU {BDF} memory (RM)", 5, "bytes"),
        (f"GPU {BDF} BAR1 (RM)", 7, "bytes"),
    ]

    def refuse() -> dict[str, int]:
        raise UnavailableError("no NVIDIA driver is loaded")

    assert gpu.read_rm(BDF, refuse).unknown == {f"GPU {BDF} (RM)": "no NVIDIA driver is loaded"}
