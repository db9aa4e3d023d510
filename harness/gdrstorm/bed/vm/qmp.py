"""A QMP client over a connected socket: one command at a time, events kept (QEMU docs/interop/qmp-
spec).

Synchronous on purpose: the bed asks QEMU for an injection now and then. Raises QmpError with QEMU's
own words.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from typing import Any

import msgspec

from gdrstorm.errors import BrokenError

_MAX_EVENTS = 1000
_MAX_LINE_BYTES = 16 << 20


class QmpError(BrokenError):
    """QEMU refused a command, or does not answer."""


class Qmp:
    """Owns the socket. Safe to call from several threads."""

    def __init__(self, sock: socket.socket, timeout_s: float = 30.0) -> None:
        sock.settimeout(timeout_s)
        self._socket = sock
        self._reader = sock.makefile("rb")
        self._lock = threading.Lock()
        self._number = 0
        self._ready = False
        self.events: deque[dict[str, Any]] = deque(maxlen=_MAX_EVENTS)

    def command(self, name: str, **arguments: object) -> Any:
        """QEMU's `return` value.

        Underscores in argument names become dashes, as QMP spells them.
        """
        with self._lock:
            if not self._ready:
                self._read(lambda message: "QMP" in message)
                self._call("qmp_capabilities", {})
                self._ready = True
            return self._call(name, {key.replace("_", "-"): v for key, v in arguments.items()})

    def close(self) -> None:
        self._reader.close()
        self._socket.close()

    def _call(self, name: str, arguments: dict[str, object]) -> Any:
        self._number += 1
        number = self._number
        request = {"execute": name, "arguments": arguments, "id": number}
        try:
            self._socket.sendall(msgspec.json.encode(request) + b"\n")
        except OSError as error:
            raise QmpError(f"QMP {name}: {error}") from error
        answer = self._read(lambda message: message.get("id") == number)
        if "error" in answer:
            raise QmpError(f"QMP {name}: {answer['error'].get('desc')}")
        return answer.get("return")

    def _read(self, wanted: Any) -> dict[str, Any]:
        while True:
            try:
                line = self._reader.readline(_MAX_LINE_BYTES)
            except (OSError, ValueError) as error:
                raise QmpError(f"QMP: {error}") from error
            if not line:
                raise QmpError("QMP: QEMU is gone")
            message: dict[str, Any] = msgspec.json.decode(line)
            if wanted(message):
                return message
            if "event" in message:
                self.events.append(message)
