"""The control socket: every request through the client, and lines that are none."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scratch_device import ScratchDevice

from gdrstorm.bed.connectx.control import (
    ControlClient,
    ControlError,
    Controller,
    ControlServer,
    PlantRequest,
    Reply,
    Request,
    Status,
    StatusRequest,
    UnwedgeRequest,
    WedgeRequest,
    decode_plant,
    encode_plant,
)
from gdrstorm.bed.connectx.oracle import Oracle, Refusal, RefusalKind, StrayDma, StrayKind
from gdrstorm.bed.connectx.plant import (
    CommandPlant,
    CompletionPlant,
    Disaster,
    DisasterPlant,
    HealthPlant,
    InstantPlant,
    Mishap,
    PageFaultPlant,
    Plant,
    Saboteur,
    StalePlant,
    UmrPlant,
)
from gdrstorm.bed.connectx.prm import Op, Syndrome
from gdrstorm.bed.vfio_user.loop import EventLoop
from gdrstorm.bed.vfio_user.server import VfioUserServer


class Model:
    """A control server on its own thread, and what it controls."""

    def __init__(self, directory: Path) -> None:
        self.loop = EventLoop()
        self.saboteur = Saboteur()
        self.oracle = Oracle()
        self.struck: list[InstantPlant] = []
        self.saboteur.listen(self.struck.append)
        self.server = VfioUserServer(self.loop)
        self.port = self.server.add_device(directory / "dev.sock", ScratchDevice())
        controller = Controller(self.server, self.saboteur, self.oracle)
        self.path = directory / "control.sock"
        self.control = ControlServer(self.path, self.loop, controller)
        self.thread = threading.Thread(target=self.loop.run)
        self.thread.start()

    def close(self) -> None:
        self.loop.stop()
        self.thread.join()
        self.control.close()
        self.server.close()
        self.loop.close()


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    made = Model(tmp_path)
    yield made
    made.close()


@pytest.fixture
def client(model: Model) -> Iterator[ControlClient]:
    with ControlClient.connect(model.path) as made:
        yield made


PLANTS: list[Plant] = [
    CommandPlant(opcode=Op.CREATE_MKEY, mishap=Mishap.FAIL, syndrome=0x1234),
    UmrPlant(mishap=Mishap.DELAY, delay_s=0.25, nth=3),
    CompletionPlant(syndrome=Syndrome.REMOTE_ACCESS, qpn=77),
    PageFaultPlant(mishap=Mishap.DROP, function=1),
    StalePlant(times=2),
    HealthPlant(syndrome=1, fatal=True),
    DisasterPlant(disaster=Disaster.VANISH),
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: type(plant).__name__)
def test_every_plant_survives_the_wire(client: ControlClient, model: Model, plant: Plant) -> None:
    number = client.plant(plant)
    (report,) = client.counts().plants
    assert (report.number, report.plant) == (number, plant)
    if isinstance(plant, HealthPlant | DisasterPlant):
        assert model.struck == [plant]


def test_there_is_a_kind_for_every_plant() -> None:
    assert {type(plant) for plant in PLANTS} == set(Plant.__args__)


@given(st.sampled_from([kind.value for kind in Mishap]), st.integers(), st.floats(0, 1e6))
def test_plants_decode_to_themselves(mishap: str, nth: int, delay_s: float) -> None:
    plant = UmrPlant(mishap=Mishap(mishap), nth=nth, delay_s=delay_s)
    request = encode_plant(plant)
    line = msgspec.json.encode(request)
    again = msgspec.json.decode(line, type=Request)
    assert isinstance(again, PlantRequest)
    assert decode_plant(again.kind, again.plant) == plant


def test_clear(client: ControlClient, model: Model) -> None:
    first = client.plant(UmrPlant(mishap=Mishap.DROP))
    second = client.plant(StalePlant())
    client.clear(first)
    assert [entry.number for entry in client.counts().plants] == [second]
    client.clear()
    assert client.counts().plants == ()


def test_counts_come_without_records_and_oracle_with_new_ones(
    client: ControlClient, model: Model
) -> None:
    for at_ns in (10, 20):
        model.oracle.stray(
            StrayDma(at_ns, 0, StrayKind.DATA, True, 0x1000, 64, 5, 6, 7, unmapped_ago_ns=99)
        )
        model.oracle.refuse(Refusal(at_ns, 0, RefusalKind.FREE, 1, 2, 3, 4))
    model.oracle.commands["CREATE_MKEY"] += 3
    counts = client.counts().oracle
    assert (counts.stray_count, counts.stray, counts.refused) == (2, (), ())
    assert counts.commands == {"CREATE_MKEY": 3}
    assert counts.refusals == {"free": 2}
    answer = client.oracle(since_ns=10)
    assert [record.at_ns for record in answer.report.stray] == [20]
    assert [record.kind for record in answer.report.refused] == [RefusalKind.FREE]
    assert answer.report.stray_count == 2
    assert client.oracle(answer.at_ns).report.stray == ()
    client.forget()
    assert client.counts().oracle.stray_count == 0


def test_trace(client: ControlClient, model: Model) -> None:
    client.trace(True)
    assert model.oracle.tracing
    for at_ns in (1, 2, 3):
        model.oracle.trace(at_ns, 0, f"line {at_ns}")
    answer = client.trace_lines(1)
    assert answer.on
    assert [line.what for line in answer.lines] == ["line 2", "line 3"]
    client.trace(False)
    assert not client.trace_lines(3).on


def test_status(client: ControlClient, model: Model) -> None:
    status = client.status()
    assert status.pid == os.getpid()
    assert not status.wedged
    (port,) = status.ports
    assert port.path == os.fspath(model.port.path)
    assert (port.connected, port.messages, port.device_faults) == (False, 0, 0)


def test_wedge_and_unwedge(client: ControlClient, model: Model) -> None:
    client.wedge()
    assert client.status().wedged
    assert model.port.endpoint.gate.closed
    client.unwedge()
    client.unwedge()
    assert not client.status().wedged
    assert not model.port.endpoint.gate.closed


def test_wedge_ends_by_itself(client: ControlClient, model: Model) -> None:
    resumed = threading.Event()
    original = model.server.resume

    def resume() -> None:
        original()
        resumed.set()

    model.server.resume = resume  # type: ignore[method-assign]
    client.wedge(0.01)
    assert resumed.wait(10)
    assert not client.status().wedged


def test_an_old_wedge_does_not_end_a_new_one() -> None:
    loop = EventLoop()
    controller = Controller(VfioUserServer(loop), Saboteur(), Oracle())
    controller.handle(WedgeRequest(0.001))
    controller.handle(UnwedgeRequest())
    controller.handle(WedgeRequest())
    loop.turn(10)
    status = controller.handle(StatusRequest())
    assert isinstance(status, Status)
    assert status.wedged
    loop.close()


@pytest.mark.parametrize("duration_s", [0.0, -1.0, 1e9])
def test_wedge_of_no_duration(client: ControlClient, duration_s: float) -> None:
    with pytest.raises(ControlError, match="cannot wedge"):
        client.wedge(duration_s)
    assert not client.status().wedged


def test_quit_ends_the_loop_after_the_reply(client: ControlClient, model: Model) -> None:
    client.quit()
    model.thread.join(10)
    assert not model.thread.is_alive()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"7",
        b"{}",
        b'{"cmd": "destroy"}',
        b'{"cmd": "clear", "nummer": 1}',
        b'{"cmd": "plant", "kind": "umr", "plant": {}}',
        b'{"cmd": "plant", "kind": "umr", "plant": {"mishap": "explode"}}',
        b'{"cmd": "plant", "kind": "rain", "plant": {}}',
        b'{"cmd": "plant", "kind": "command", "plant": {"opcode": -1, "mishap": "drop"}}',
        b"\xff\xfe",
    ],
)
def test_a_bad_line_gets_an_error_and_the_next_one_works(model: Model, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(10)
        raw.connect(os.fspath(model.path))
        raw.sendall(line + b'\n{"cmd": "status"}\n')
        file = raw.makefile("rb")
        bad = msgspec.json.decode(file.readline(), type=Reply)
        assert not bad.ok and bad.error
        assert msgspec.json.decode(file.readline(), type=Reply).ok
    assert model.saboteur.report() == ()


def test_a_line_without_end_is_cut_off(model: Model) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(10)
        raw.connect(os.fspath(model.path))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(1000):
                raw.sendall(b"x" * 4096)
    with ControlClient.connect(model.path) as client:
        client.status()


def test_long_replies_arrive_whole(client: ControlClient, model: Model) -> None:
    client.trace(True)
    for number in range(1, 20001):
        model.oracle.trace(number, 0, "x" * 100)
    assert len(client.trace_lines().lines) == 20000


def test_connect_waits_or_tells(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="is the device model running"):
        ControlClient.connect(tmp_path / "nothing.sock")
    made: list[Model] = []
    starter = threading.Timer(0.05, lambda: made.append(Model(tmp_path)))
    starter.start()
    with ControlClient.connect(tmp_path / "control.sock", wait_s=10) as client:
        client.status()
    starter.join()
    made[0].close()


def test_a_model_that_went_away_is_told(model: Model, client: ControlClient) -> None:
    client.status()
    model.close()
    with pytest.raises(ControlError, match=r"gone|does not answer"):
        client.status()
