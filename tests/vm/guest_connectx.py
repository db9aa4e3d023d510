"""Runs inside the guest for test_connectx.py: rdma-core's own tests, tools, and the life of a function.

python3 guest_connectx.py pyverbs DEVICE SECONDS MODULE...   a JSON row a test; the limit is each module's
python3 guest_connectx.py loopback TOOL [OPTION...]   server and client on one function
python3 guest_connectx.py rping COUNT                 between two functions, in two network namespaces
python3 guest_connectx.py life ACT [COUNT]            an act on the first function, then a data check, COUNT times
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

DOCUMENTS = Path("/usr/share/doc/rdma-core/tests")
HCA = "mlx5_0"
BDF = "0000:01:00.0"
DEVICE = Path("/sys/bus/pci/devices") / BDF
DRIVER = Path("/sys/bus/pci/drivers/mlx5_core")
NAMESPACE = "second"
ADDRESSES = ("10.77.0.1", "10.77.0.2")
WAIT_S = 60.0
TOOL_S = 60
ATTEMPTS = 5
BEGUN = "begun"


class Row(msgspec.Struct, frozen=True):
    """How one test ended: pass, skip, fail or hang; why, and how long it took. `begun` stays inside."""

    name: str
    outcome: str
    reason: str
    seconds: float


class Recorder(unittest.TestResult):
    """Writes a line when a test starts and a row when it ends."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._at = 0.0
        self._ended = ("pass", "")

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._at = time.monotonic()
        self._ended = ("pass", "")
        self._write(Row(_name(test), BEGUN, "", 0))

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self._write(Row(_name(test), *self._ended, time.monotonic() - self._at))

    def _write(self, row: Row) -> None:
        os.write(self._fd, msgspec.json.encode(row) + b"\n")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._ended = ("skip", reason)

    def addError(self, test: object, error: object) -> None:
        super().addError(test, error)  # type: ignore[arg-type]
        self._ended = ("fail", self.errors[-1][1])
        if not isinstance(test, unittest.TestCase):
            self._write(Row(str(test), *self._ended, 0))

    def addFailure(self, test: unittest.TestCase, error: object) -> None:
        super().addFailure(test, error)  # type: ignore[arg-type]
        self._ended = ("fail", self.failures[-1][1])

    def addSubTest(self, test: object, subtest: object, error: object) -> None:
        if error is not None:
            self._ended = ("fail", f"{subtest}: {error}")


def _name(test: unittest.TestCase) -> str:
    return test.id().removeprefix("tests.")


def unpack(directory: Path) -> None:
    """As a package named `tests`; its own __init__ imports every module, which takes a while here."""
    package = directory / "tests"
    package.mkdir()
    for source in DOCUMENTS.iterdir():
        raw = source.read_bytes()
        name = source.name.removesuffix(".gz")
        (package / name).write_bytes(gzip.decompress(raw) if source.suffix == ".gz" else raw)
    (package / "__init__.py").write_bytes(b"")
    sys.path[:0] = [str(package), str(directory)]


def run_module(module: str, fd: int) -> None:
    """In a process of its own: what a test breaks, or leaves behind, goes with it."""
    os.setsid()
    suite = unittest.defaultTestLoader.loadTestsFromName(f"tests.test_{module}")
    suite.run(Recorder(fd))


def start_module(module: str) -> tuple[int, int]:
    """(process, pipe of its rows)."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            run_module(module, writer)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    return child, reader


def read_lines(pipe: int, limit_s: float) -> Iterator[bytes]:
    """Until nobody writes any more; TimeoutError at the limit."""
    deadline = time.monotonic() + limit_s
    pending = b""
    while True:
        left = max(0.0, deadline - time.monotonic())
        if not select.select([pipe], [], [], left)[0]:
            raise TimeoutError
        data = os.read(pipe, 1 << 16)
        if not data:
            return
        *lines, pending = (pending + data).split(b"\n")
        yield from lines


def rows_of(module: str, limit_s: float) -> Iterator[Row]:
    """Rows as they come; a test that runs at the limit is a hang, a process that dies a failure."""
    child, pipe = start_module(module)
    running = module
    how = ("fail", "its process died")
    try:
        for line in read_lines(pipe, limit_s):
            row = msgspec.json.decode(line, type=Row)
            running = row.name if row.outcome == BEGUN else module
            if row.outcome != BEGUN:
                yield row
    except TimeoutError:
        how = ("hang", f"at the module's limit of {limit_s:g} s")
    finally:
        os.close(pipe)
        # A group, for what the tests start. The leader is not waited for yet, so the group is its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if status != 0:
        yield Row(running, *how, 0)


def pyverbs(device: str, limit_s: str, *modules: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        unpack(Path(directory))
        sys.argv = ["run_tests.py", "--dev", device]
        importlib.import_module("args_parser").parser.parse_args()
        # Imported once here, not in each child.
        importlib.import_module("tests.base")
        for module in modules:
            for row in rows_of(module, float(limit_s)):
                print(msgspec.json.encode(row).decode(), flush=True)


class PairFailedError(Exception):
    """Statuses and output of a server and its client."""


def _pair(server: list[str], client: list[str], listening: Callable[[], bool]) -> list[str]:
    """What server and client said; PairFailedError when one of them failed."""
    with subprocess.Popen(
        ["timeout", str(TOOL_S), *server], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as serving:
        wait_until(listening)
        done = subprocess.run(
            ["timeout", str(TOOL_S), *client], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if done.returncode:
            # It would wait for another client.
            serving.terminate()
        said, _ = serving.communicate()
    texts = [raw.decode(errors="replace") for raw in (said, done.stdout)]
    if done.returncode or serving.returncode:
        head = f"server {serving.returncode}, client {done.returncode}"
        raise PairFailedError("\n".join((head, *texts)))
    return texts


def loopback(tool: str, *options: str) -> None:
    command = [tool, "-d", HCA, *options]
    said = _pair(command, [*command, "127.0.0.1"], _has_listener)
    print(msgspec.json.encode(said).decode())


def _has_listener() -> bool:
    """A TCP socket that listens; nothing else in the bed does (state 0A in proc(5)'s net/tcp)."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in _lines(f"/proc/net/{name}")[1:]]
    return any(row[3] == "0A" for row in rows)


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def rping(count: str) -> None:
    inside = ["ip", "netns", "exec", NAMESPACE]
    setup = (
        f"ip netns add {NAMESPACE}",
        f"ip link set eth1 netns {NAMESPACE}",
        f"ip -n {NAMESPACE} addr add {ADDRESSES[1]}/24 dev eth1",
        f"ip -n {NAMESPACE} link set eth1 up",
        f"ip addr add {ADDRESSES[0]}/24 dev eth0",
        "ip link set eth0 up",
    )
    for command in setup:
        subprocess.run(command.split(), check=True)
    try:
        wait_until(lambda: {_gid(address) for address in ADDRESSES} <= gids())
        base = ["rping", "-v", "-C", count, "-a", ADDRESSES[1]]
        said = _retry(lambda: _pair([*inside, *base, "-s"], [*base, "-c"], _has_cm_listener))
    finally:
        # The device comes back from the namespace by itself.
        subprocess.run(["ip", "netns", "del", NAMESPACE], check=True)
    print(msgspec.json.encode(said).decode())


def _retry(act: Callable[[], list[str]]) -> list[str]:
    """Routes and neighbours take a while to follow a move into a namespace; nothing tells when."""
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(PairFailedError):
            return act()
        time.sleep(1)
    return act()


def _gid(address: str) -> str:
    """An IPv4 address as sysfs shows its GID."""
    a, b, c, d = (int(part) for part in address.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


def gids() -> set[str]:
    """Of all functions."""
    found = set()
    for entry in Path("/sys/class/infiniband").glob("*/ports/1/gids/*"):
        # An entry that is not used cannot be read.
        with contextlib.suppress(OSError):
            found.add(entry.read_text(encoding="utf-8").strip())
    return found


def _is_active(port: Path) -> bool:
    return "ACTIVE" in (port / "state").read_text(encoding="utf-8")


def _has_cm_listener() -> bool:
    command = ["ip", "netns", "exec", NAMESPACE, "rdma", "resource", "show", "cm_id"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    return "state LISTEN" in shown.stdout


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        if time.monotonic() > deadline:
            sys.exit(f"waited {WAIT_S:g} s for {true}")
        time.sleep(0.1)


def wait_for_hca() -> str:
    """The function's RDMA device, once its port is active and a QP can use its link-local address."""
    found: list[str] = []

    def is_there() -> bool:
        for interface in _interfaces():
            subprocess.run(["ip", "link", "set", interface, "up"], check=False)
        found[:] = ready_devices()
        return bool(found)

    wait_until(is_there)
    return found[0]


def ready_devices() -> list[str]:
    """Names of the function's RDMA devices whose port is active, if its interfaces have their addresses."""
    if not all(map(_has_address, _interfaces())):
        return []
    with contextlib.suppress(OSError):  # it came or went between two reads
        return [p.parts[-3] for p in (DEVICE / "infiniband").glob("*/ports/1") if _is_active(p)]
    return []


def _interfaces() -> list[str]:
    return [path.name for path in (DEVICE / "net").glob("*")]


def _has_address(interface: str) -> bool:
    """An IPv6 address past its duplicate detection (flag IFA_F_TENTATIVE, linux/if_addr.h)."""
    rows = [line.split() for line in _lines("/proc/net/if_inet6")]
    return any(row[5] == interface and not int(row[4], 16) & 0x40 for row in rows)


def reload() -> None:
    subprocess.run(["modprobe", "-r", "mlx5_ib", "mlx5_core"], check=True)
    if DRIVER.exists():
        sys.exit("mlx5_core is still there")
    subprocess.run(["modprobe", "mlx5_ib"], check=True)


def rebind() -> None:
    (DRIVER / "unbind").write_text(BDF)
    if (DEVICE / "driver").exists():
        sys.exit("still bound")
    (DRIVER / "bind").write_text(BDF)


def rescan() -> None:
    (DEVICE / "remove").write_text("1")
    if DEVICE.exists():
        sys.exit("not removed")
    Path("/sys/bus/pci/rescan").write_text("1")


def devlink() -> None:
    subprocess.run(["devlink", "dev", "reload", f"pci/{BDF}"], check=True)


def flr() -> None:
    """The driver finds out by its health poll and recovers."""
    (DEVICE / "reset_method").write_text("flr")
    before = _recoveries()
    (DEVICE / "reset").write_text("1")
    wait_until(lambda: _recoveries() > before)


def _recoveries() -> int:
    log = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    return log.count(f"mlx5_core {BDF}: health recovery succeeded")


def verify(device: str) -> object:
    from gdrstorm.stack import registry, tables

    with (
        registry.open_exporter("udmabuf") as source,
        registry.open_importer("verbs", device) as sink,
    ):
        return tables.verify_data(source, sink)


def life(act: str, count: str = "1") -> None:
    acts = {made.__name__: made for made in (reload, rebind, rescan, devlink, flr)}
    for _ in range(int(count)):
        begun = time.monotonic()
        acts[act]()
        device = wait_for_hca()
        took = time.monotonic() - begun
        said = {"device": device, "seconds": took, "check": verify(device)}
        print(msgspec.json.encode(said).decode(), flush=True)


if __name__ == "__main__":
    commands = {made.__name__: made for made in (pyverbs, loopback, rping, life)}
    commands[sys.argv[1]](*sys.argv[2:])
