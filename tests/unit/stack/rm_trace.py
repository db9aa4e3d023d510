"""A trace of RM calls: recorded on a GPU, replayed without one.

    PYTHONPATH=harness python tests/unit/stack/rm_trace.py tests/data/nvidia/trace.json

Each ioctl is kept with its structure and the block its pointer names, before and after. A replay
demands the same calls with the same bytes in the same order and answers as the driver did.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

from gdrstorm.stack.exporter.rm import RmExporter
from gdrstorm.stack.exporter.rm_client import SystemIo
from gdrstorm.stack.exporter.rm_state import read_state
from gdrstorm.uapi import nvidia

MIB = 1 << 20
#: fields that differ from run to run: addresses and descriptor numbers
_VARIABLE = {"params", "ctl_fd", "fd"}


def run_life(exporter: RmExporter) -> None:
    """What is recorded: state, memory, an export, a refused one, and everything given back."""
    with exporter:
        read_state(exporter.client)
        memory = exporter.alloc(2 * MIB)
        exporter.export(memory, 4096, MIB).close()
        memory.close()


def _masked(argument: ctypes.Structure) -> bytes:
    data = bytearray(argument)
    for name in _VARIABLE:
        field = getattr(type(argument), name, None)
        if field is not None:
            data[field.offset : field.offset + field.size] = bytes(field.size)
    return bytes(data)


def _block(argument: ctypes.Structure, generation: nvidia.Generation) -> tuple[int, int]:
    """Address and size of the parameters a call points to; size 0 when there are none."""
    if isinstance(argument, nvidia.Control):
        return argument.params, argument.params_size
    if isinstance(argument, generation.alloc):
        sizes = {0x80: 56, 0x2080: 4, 0x40: ctypes.sizeof(generation.memory)}
        return argument.params, sizes.get(argument.h_class, 0)
    return 0, 0


def _hex(data: bytes) -> str:
    """Hexadecimal without trailing zeros; the length is known from the call."""
    return data.rstrip(b"\0").hex()


class RecordingIo(SystemIo):
    """SystemIo that remembers."""

    def __init__(self) -> None:
        self.version = self.read_version()
        self.generation = nvidia.generation_of(self.version)
        self.calls: list[dict[str, Any]] = []
        self.paths: dict[int, str] = {}

    def open(self, path: str) -> int:
        fd = super().open(path)
        self.paths[fd] = path
        self.calls.append({"open": path})
        return fd

    def close(self, fd: int) -> None:
        super().close(fd)
        self.calls.append({"close": self.paths.pop(fd)})

    def ioctl(self, fd: int, request: int, argument: ctypes.Structure | int) -> None:
        assert isinstance(argument, ctypes.Structure)
        at, size = _block(argument, self.generation)
        call = {"path": self.paths[fd], "request": hex(request), "in": _hex(_masked(argument))}
        if size:
            call["params"] = _hex(ctypes.string_at(at, size))
        super().ioctl(fd, request, argument)
        call["out"] = _hex(_masked(argument))
        if size:
            call["params out"] = _hex(ctypes.string_at(at, size))
        self.calls.append(call)


class ReplayIo:
    """RmIo that answers from a trace; any deviation is an assertion."""

    def __init__(self, trace: dict[str, Any]) -> None:
        self.version: str = trace["version"]
        self.generation = nvidia.generation_of(self.version)
        self.calls: list[dict[str, Any]] = list(trace["calls"])
        self.paths: dict[int, str] = {}

    def read_version(self) -> str:
        return self.version

    def open(self, path: str) -> int:
        assert self.calls.pop(0) == {"open": path}
        fd = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self.paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        os.close(fd)
        assert self.calls.pop(0) == {"close": self.paths.pop(fd)}

    def ioctl(self, fd: int, request: int, argument: ctypes.Structure | int) -> None:
        assert isinstance(argument, ctypes.Structure)
        call = self.calls.pop(0)
        at, size = _block(argument, self.generation)
        assert (call["path"], call["request"]) == (self.paths[fd], hex(request))
        assert call["in"] == _hex(_masked(argument))
        assert call.get("params", "") == (_hex(ctypes.string_at(at, size)) if size else "")
        if size:
            block = bytes.fromhex(call["params out"]).ljust(size, b"\0")
            ctypes.memmove(at, block, size)
        kept = {name: getattr(argument, name) for name in _VARIABLE if hasattr(argument, name)}
        whole = bytes.fromhex(call["out"]).ljust(ctypes.sizeof(argument), b"\0")
        ctypes.memmove(ctypes.addressof(argument), whole, ctypes.sizeof(argument))
        for name, value in kept.items():
            setattr(argument, name, value)
        if isinstance(argument, self.generation.export) and argument.status == 0:
            argument.fd = os.memfd_create("dmabuf", os.MFD_CLOEXEC)


def main(target: str) -> None:
    io = RecordingIo()
    run_life(RmExporter.open("0", io))
    trace = {"version": io.version, "kernel": os.uname().release, "calls": io.calls}
    Path(target).write_text(json.dumps(trace, indent=0) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
