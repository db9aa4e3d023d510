"""The virtual ConnectX under the kernel's own mlx5 driver: rdma-core's tests, its tools, and a function's life.

One guest with two functions for all, in the order written; at the end the device says what it saw. A suspend
(`freeze`) ends the agent's channel, so test_watch.py has it, as its last test.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from gdrstorm.bed.connectx.control import ControlClient
from gdrstorm.bed.vm import Bed, BedOptions

pytestmark = pytest.mark.vm

ROOT: Final = Path(__file__).parents[2]
GUEST: Final = "/gdrstorm/share/vm/guest_connectx.py"
ENV: Final = {"PYTHONPATH": "/gdrstorm/lib", "PYTHONDONTWRITEBYTECODE": "1"}
# TCG on a busy machine is slow; these only end what would never end.
COMMAND_S: Final = 300.0
MODULE_S: Final = 240
PYVERBS_S: Final = 900.0
RELOADS: Final = 20 if os.environ.get("GDRSTORM_LONG") == "1" else 5
# Two at a time, each on a function of its own, of about the same length.
PYVERBS: Final = {
    "mlx5_0": (
        *("device", "pd", "mr", "cq", "qp", "addr", "odp", "cqex", "cq_events", "srq"),
        *("parent_domain", "shared_pd", "fork"),
    ),
    "mlx5_1": ("qpex", "atomic", "rdmacm"),
}


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    options = BedOptions(hca=2, share=ROOT / "tests", boot_timeout_s=400, hang_s=180)
    with Bed(options, run_dir=tmp_path_factory.mktemp("connectx")) as booted:
        yield booted


@pytest.fixture(scope="module")
def control(bed: Bed) -> Iterator[ControlClient]:
    with ControlClient.connect(bed.control, timeout_s=60) as connected:
        yield connected


def ask(bed: Bed, *arguments: str, timeout_s: float = COMMAND_S) -> list[Any]:
    """The lines that guest_connectx.py said."""
    result = bed.run(["python3", GUEST, *arguments], env=ENV, timeout_s=timeout_s)
    said = result.stdout.decode(errors="replace")
    assert result.status == 0, said + result.stderr.decode(errors="replace")
    return [msgspec.json.decode(line) for line in said.splitlines()]


def test_rdma_core_pyverbs(bed: Bed, control: ControlClient) -> None:
    def run(device: str) -> list[Any]:
        limits = (str(MODULE_S), *PYVERBS[device])
        return ask(bed, "pyverbs", device, *limits, timeout_s=PYVERBS_S)

    with ThreadPoolExecutor() as pool:
        rows = [row for part in pool.map(run, PYVERBS) for row in part]
    counts = Counter(row["outcome"] for row in rows)
    took: Counter[str] = Counter()
    for row in rows:
        took[row["name"].partition(".")[0]] += row["seconds"]
    print(dict(counts), {module: round(seconds, 1) for module, seconds in took.items()})
    for row in rows:
        if row["outcome"] == "skip":
            print(f"skipped: {row['name']}: {row['reason']}")
    bad = [row for row in rows if row["outcome"] not in ("pass", "skip")]
    assert not bad, "\n".join(f"{r['name']}: {r['outcome']}: {r['reason']}" for r in bad)
    assert counts["pass"] > 100, counts
    wanted = {f"test_{name}" for names in PYVERBS.values() for name in names}
    assert {row["name"].partition(".")[0] for row in rows} == wanted
    # They ran on the model, and the parts that matter here were used.
    report = control.oracle().report
    assert report.page_faults > 0 and report.page_fault_errors == 0
    for kind in ("UMR", "SEND", "WRITE", "READ", "FETCH_ADD", "COMPARE_SWAP"):
        assert report.wqes[kind] > 0, report.wqes


@pytest.mark.parametrize(
    ("tool", "options", "kind", "requests"),
    [
        ("ibv_rc_pingpong", ("-g", "1", "-n", "20"), "SEND", 40),
        ("ib_write_bw", ("-x", "1", "-n", "50", "-s", "4096", "-F"), "WRITE", 50),
        ("ib_read_bw", ("-x", "1", "-n", "50", "-s", "4096", "-F"), "READ", 50),
        ("ib_send_bw", ("-x", "1", "-n", "50", "-s", "4096", "-F"), "SEND", 50),
    ],
)
def test_tools_on_one_function(
    bed: Bed,
    control: ControlClient,
    tool: str,
    options: tuple[str, ...],
    kind: str,
    requests: int,
) -> None:
    before = control.oracle().report.wqes
    ask(bed, "loopback", tool, *options)
    after = control.oracle().report.wqes
    assert after[kind] - before.get(kind, 0) >= requests


def test_rping_between_two_functions(bed: Bed) -> None:
    ((server, client),) = ask(bed, "rping", "5")
    for number in range(5):
        assert f"server ping data: rdma-ping-{number}: " in server
        assert f"ping data: rdma-ping-{number}: " in client


@pytest.mark.parametrize(
    ("act", "count"),
    [("reload", RELOADS), ("rebind", 1), ("rescan", 1), ("devlink", 1), ("flr", 1)],
)
def test_life_of_a_function(bed: Bed, act: str, count: int) -> None:
    rows = ask(bed, "life", act, str(count), timeout_s=COMMAND_S + 30 * count)
    print(act, [f"{row['device']} {row['seconds']:.1f} s" for row in rows])
    assert [row["check"]["passed"] for row in rows] == [True] * count, rows


@pytest.mark.skip(
    reason="QEMU 11.1.3 aborts (signal 6) in device_del of a vfio-user-pci device: system/memory.c:2617: "
    "memory_region_del_subregion: Assertion `subregion->container == mr' failed"
)
def test_hot_unplug(bed: Bed) -> None:
    """So far it ends the bed: to be run alone, and with device_add to be completed, when QEMU can."""
    bed.qmp("device_del", id="hca0")
    assert bed.run(["sleep", "10"], timeout_s=COMMAND_S).status == 0


def test_the_device_saw_no_stray_dma(bed: Bed, control: ControlClient) -> None:
    """Last: over all of the above. Only the reset that no driver asked for leaves objects."""
    report = control.oracle().report
    assert report.stray_count == 0, report.stray
    assert report.anomalies == ()
    assert [leak for leak in report.leaks if leak.when != "RESET"] == []
