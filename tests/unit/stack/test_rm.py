"""The RM exporter against a stand-in driver: order of calls, ownership, every refusal's message."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from rm_driver import FakeDriver
from rm_trace import ReplayIo, run_life

from gdrstorm.errors import CallError, UnavailableError, UsageError
from gdrstorm.stack.exporter.rm import RmExporter, read_module_flavour
from gdrstorm.stack.exporter.rm_client import RmStatusError, parse_version_file
from gdrstorm.stack.exporter.rm_state import RmStateReader, read_memory, read_state

OPENING = [
    "open /dev/nvidiactl",
    "CARD_INFO",
    "open /dev/nvidia0",
    "REGISTER_FD",
    "ALLOC client",
    "CONTROL 0x205",
    "ALLOC device",
    "ALLOC subdevice",
]
CLOSING = [
    "FREE subdevice",
    "FREE device",
    "FREE client",
    "close /dev/nvidia0",
    "close /dev/nvidiactl",
]
MIB = 1 << 20


def test_whole_life_in_the_order_of_driver_580() -> None:
    driver = FakeDriver()
    with RmExporter.open("0", driver) as exporter:
        memory = exporter.alloc(2 * MIB)
        buffer = exporter.export(memory, 4096, MIB)
        assert driver.exports == [(memory.handles[0], 4096, MIB)]
        memory.close()
        memory.close()
        buffer.close()
    exporter.close()
    assert driver.trace == [*OPENING, "ALLOC memory", "EXPORT", "FREE memory", *CLOSING]
    assert not driver.objects
    assert not driver.open_paths


def test_memory_left_behind_goes_with_the_client() -> None:
    driver = FakeDriver()
    with RmExporter.open(None, driver) as exporter:
        memory = exporter.alloc(MIB)
    memory.close()
    assert "FREE memory" not in driver.trace
    assert not driver.objects


@pytest.mark.parametrize("failing", OPENING[2:])
def test_a_failing_open_leaves_nothing_open(failing: str) -> None:
    driver = FakeDriver()
    if failing.startswith("open"):
        driver.open_errors[failing.removeprefix("open ")] = errno.EIO
    else:
        driver.fail[failing] = errno.EINVAL
    with pytest.raises((CallError, UnavailableError)):
        RmExporter.open("0", driver)
    assert not driver.open_paths
    assert not driver.objects


def test_failing_clean_up_is_recorded_and_goes_on() -> None:
    driver = FakeDriver()
    exporter = RmExporter.open("0", driver)
    driver.fail["FREE subdevice"] = -0x57
    exporter.close()
    assert driver.trace[-5:] == CLOSING
    assert exporter.client.cleanup_errors == [
        "cannot free object 0xc1d00002: 0000:9b:00.0: NV_ERR_OBJECT_NOT_FOUND (0x57)"
    ]


def test_several_chunks_are_one_buffer_in_order() -> None:
    driver = FakeDriver()
    with RmExporter.open("0,chunks=2", driver) as exporter:
        memory = exporter.alloc(2 * MIB)
        first, second = memory.handles
        exporter.export(memory, MIB // 2, MIB).close()
        assert driver.exports == [(first, second, MIB // 2, 0, MIB // 2, MIB // 2)]
        memory.close()
        assert driver.trace[-2:] == ["FREE memory", "FREE memory"]
        assert second not in driver.objects


def test_failing_second_chunk_frees_the_first() -> None:
    driver = FakeDriver()
    driver.memory_kib = 1024
    with RmExporter.open("0,chunks=2", driver) as exporter:
        with pytest.raises(RmStatusError, match="NV_ERR_NO_MEMORY"):
            exporter.alloc(2 * MIB)
        assert driver.memory_kib == 1024


def test_force_pcie_is_refused_by_status() -> None:
    driver = FakeDriver()
    with (
        RmExporter.open("0,mapping=force_pcie", driver) as exporter,
        pytest.raises(RmStatusError) as caught,
    ):
        exporter.export(exporter.alloc(MIB), 0, MIB)
    assert caught.value.status == 0x56
    assert caught.value.errno == 0x10056
    assert "mapping=force_pcie: NV_ERR_NOT_SUPPORTED (0x56) (this GPU does not" in str(caught.value)


def test_an_errno_is_not_a_status() -> None:
    driver = FakeDriver()
    with RmExporter.open("0", driver) as exporter:
        memory = exporter.alloc(MIB)
        driver.fail["EXPORT"] = errno.EFAULT
        with pytest.raises(CallError, match="EFAULT") as caught:
            exporter.export(memory, 0, MIB)
    assert caught.value.errno == errno.EFAULT


def test_gpus_are_chosen_by_bdf_order() -> None:
    driver = FakeDriver(bdfs=("0000:9b:00.0", "0000:1b:00.0"))
    with RmExporter.open("0", driver) as exporter:
        assert exporter.describe().bdf == "0000:1b:00.0"
        assert exporter.describe().device == "/dev/nvidia1"
    with RmExporter.open("9B:00.0", driver) as exporter:
        assert exporter.describe().device == "/dev/nvidia0"


def test_no_such_gpu_names_those_there() -> None:
    driver = FakeDriver()
    with pytest.raises(UnavailableError, match=r"no GPU 3 \(GPUs of the driver: 0000:9b:00.0\)"):
        RmExporter.open("3", driver)
    assert not driver.open_paths


def test_no_driver() -> None:
    support = RmExporter.probe(None, FakeDriver(version=""))
    assert not support.ok
    assert "no NVIDIA driver is loaded (/sys/module/nvidia/version: ENOENT)" in support.reason
    with pytest.raises(UnavailableError):
        RmExporter.open(None, FakeDriver(version=""))


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("/dev/nvidiactl", errno.ENOENT, "ENOENT (make the node: nvidia-modprobe"),
        ("/dev/nvidiactl", errno.EACCES, "EACCES (run as root"),
        ("/dev/nvidiactl", errno.EPERM, "EPERM (the container's device rules"),
    ],
)
def test_no_node_and_no_permission(path: str, error: int, words: str) -> None:
    driver = FakeDriver()
    driver.open_errors[path] = error
    support = RmExporter.probe(None, driver)
    assert support.reason.startswith(f"cannot open {path}: {words}")


def test_gpu_node_missing() -> None:
    driver = FakeDriver()
    driver.open_errors["/dev/nvidia0"] = errno.ENOENT
    with pytest.raises(UnavailableError, match="cannot open /dev/nvidia0: ENOENT"):
        RmExporter.open(None, driver)


def test_unknown_version_is_refused_before_any_call() -> None:
    driver = FakeDriver(version="610.43.03")
    assert "driver 610.43.03 is of no checked branch" in RmExporter.probe(None, driver).reason
    assert driver.trace == []
    with RmExporter.open("0,layout=595", driver) as exporter:
        assert exporter.describe().details["layout"] == "595"


def test_wrong_layout_says_so() -> None:
    driver = FakeDriver()
    driver.fail["ALLOC client"] = errno.EINVAL
    with pytest.raises(
        CallError, match=r"driver 580\.159\.04 does not have the layout of branch 595"
    ):
        RmExporter.open(None, driver)


def test_probe_leaves_nothing_open() -> None:
    driver = FakeDriver()
    assert RmExporter.probe("0000:9b:00.0", driver).ok
    assert driver.trace == ["open /dev/nvidiactl", "CARD_INFO", "close /dev/nvidiactl"]
    assert not RmExporter.probe("bogus", driver).ok


def test_binding_has_what_the_native_side_reads() -> None:
    driver = FakeDriver()
    with RmExporter.open("0,mapping=force_pcie,chunks=3", driver) as exporter:
        binding = exporter.binding()
        assert [driver.open_paths[fd] for fd in binding.fds] == ["/dev/nvidiactl", "/dev/nvidia0"]
        client = exporter.client
        assert binding.numbers == (client.client, client.device, 1, 3, 2608, 128, 28)


def test_old_generation_has_no_mapping_type() -> None:
    driver = FakeDriver(version="560.35.03")
    exporter = RmExporter.open(None, driver)
    assert exporter.binding().numbers[4:] == (2600, 128, 28)
    exporter.close()


def test_child_of_a_fork_ends_nothing() -> None:
    driver = FakeDriver()
    exporter = RmExporter.open(None, driver)
    memory = exporter.alloc(MIB)
    pid = os.fork()
    if pid == 0:
        memory.close()
        os._exit(0 if memory.handles == [] and len(driver.objects) == 4 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    exporter.close()


def test_state_is_read_and_reasons_are_kept() -> None:
    driver = FakeDriver()
    driver.fail["CONTROL 0x2080182b"] = -0x56
    with RmExporter.open(None, driver) as exporter:
        state = read_state(exporter.client)
        memory = exporter.alloc(MIB)
        after = read_memory(exporter.client)
        memory.close()
    assert state.mig.value == "disabled"
    assert state.dmabuf.value is True
    assert state.coherent.value is False
    assert state.static_bar1.value is not None and state.static_bar1.value.start == 1 << 29
    assert "NV_ERR_NOT_SUPPORTED (0x56)" in str(state.c2c_links)
    assert state.memory.value is not None
    assert after.used_bytes - state.memory.value.used_bytes == MIB


def test_state_reader_answers_without_a_driver() -> None:
    state = RmStateReader(FakeDriver(version="")).read_gpu_state("0000:9b:00.0")
    assert "no NVIDIA driver" in str(state.mig)
    denied = FakeDriver()
    denied.open_errors["/dev/nvidiactl"] = errno.EACCES
    assert str(RmStateReader(denied).read_gpu_state("0000:9b:00.0").mig).startswith(
        "unknown (no permission: cannot open /dev/nvidiactl: EACCES"
    )


def test_state_reader_fills_the_inventory() -> None:
    driver = FakeDriver()
    state = RmStateReader(driver).read_gpu_state("0000:9b:00.0")
    assert state.bar1_bytes.value == 1 << 31
    assert state.mig.value is False
    assert not driver.open_paths


def test_version_files() -> None:
    assert parse_version_file("580.159.04\n") == "580.159.04"
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
    assert parse_version_file(text) == "580.159.04"
    assert parse_version_file("") == ""
    assert parse_version_file("something else\n") == "something else"


def test_module_flavour(tmp_path: Path) -> None:
    assert read_module_flavour("/nonexistent").startswith("unknown (/nonexistent:")
    file = tmp_path / "version"
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04\n")
    assert read_module_flavour(str(file)) == "open"
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05\n")
    assert read_module_flavour(str(file)) == "proprietary"


def test_bad_device_option() -> None:
    with pytest.raises(UsageError):
        RmExporter.open("0,mapping=fast", FakeDriver())


def test_calls_are_those_recorded_on_a_gpu() -> None:
    """Byte for byte what driver 580.159.04 was asked on an H200, in the same order."""
    path = Path(__file__).parents[2] / "data" / "nvidia" / "trace-580.159.04.json"
    replay = ReplayIo(json.loads(path.read_text()))
    run_life(RmExporter.open("0", replay))
    assert replay.calls == []
    assert not replay.paths
