"""The QMP client negotiates once, finds its answer between events, and reports QEMU's words."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from gdrstorm.bed.vm.qmp import Qmp, QmpError


class FakeQemu(threading.Thread):
    """Answers each command by its name; keeps what it was asked."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(daemon=True)
        self._socket = sock
        self.asked: list[dict[str, object]] = []

    def send(self, **message: object) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\r\n")

    def run(self) -> None:
        self.send(QMP={"version": {}, "capabilities": []})
        for line in self._socket.makefile("rb"):
            request = json.loads(line)
            self.asked.append(request)
            self.send(event="RTC_CHANGE", data={})
            if request["execute"] == "bad":
                self.send(
                    id=request["id"], error={"class": "GenericError", "desc": "no such thing"}
                )
            elif request["execute"] == "quit":
                self._socket.shutdown(socket.SHUT_RDWR)
                return
            else:
                self.send(**{"id": request["id"], "return": {"got": request["execute"]}})


@pytest.fixture
def pair() -> Iterator[tuple[Qmp, FakeQemu]]:
    ours, theirs = socket.socketpair()
    qemu = FakeQemu(theirs)
    qemu.start()
    qmp = Qmp(ours, timeout_s=5)
    yield qmp, qemu
    qmp.close()
    qemu.join(5)
    theirs.close()


def test_command_and_negotiation(pair: tuple[Qmp, FakeQemu]) -> None:
    qmp, qemu = pair
    assert qmp.command("device_del", id="hca0") == {"got": "device_del"}
    assert qmp.command("human-monitor-command", command_line="info pci") is not None
    assert [request["execute"] for request in qemu.asked] == [
        "qmp_capabilities",
        "device_del",
        "human-monitor-command",
    ]
    assert qemu.asked[2]["arguments"] == {"command-line": "info pci"}
    assert len(qmp.events) == 3


def test_errors_carry_qemus_words(pair: tuple[Qmp, FakeQemu]) -> None:
    with pytest.raises(QmpError, match="no such thing"):
        pair[0].command("bad")
    assert pair[0].command("next") == {"got": "next"}


def test_gone_qemu(pair: tuple[Qmp, FakeQemu]) -> None:
    with pytest.raises(QmpError, match="gone"):
        pair[0].command("quit")


def test_silent_qemu_is_bounded() -> None:
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(QmpError):
        Qmp(ours, timeout_s=0.05).command("query-status")
