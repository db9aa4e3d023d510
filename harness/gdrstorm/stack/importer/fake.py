"""Importer `fake`: registrations that are only counted, in this process, with planted failures.

It answers as mlx5 does where that is simple: EBADF for a closed descriptor, EINVAL for one that is no buffer of the
fake exporter and for a range that is empty or leaves the buffer. `device` is the text of the planted failures (see
plant.py).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Self

from gdrstorm.engine import ImporterBinding
from gdrstorm.errors import CallError
from gdrstorm.model.op import Op
from gdrstorm.model.stack import StackPart, Support
from gdrstorm.stack.importer import ACCESS_DEFAULT, Registration
from gdrstorm.stack.plant import BUFFER_NAME, Planter, parse_plants


class FakeRegistration:
    """Holds its own descriptor of the buffer, as an attachment holds the buffer."""

    def __init__(self, fd: int, key: int, planter: Planter) -> None:
        self._fd = fd
        self._planter = planter
        self.lkey = key
        self.rkey = key

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            self._planter.call(Op.DEREG, "cannot deregister fake MR")
        except CallError:
            self._fd = fd  # a DEREG that failed has not ended it
            raise
        os.close(fd)


class FakeImporter:
    """Always there; a device that is no planted failure is wrong use. Keys count up from 1."""

    name = "fake"

    def __init__(self, device: str) -> None:
        self._device = device
        self._planter = Planter(parse_plants(device))
        self._next_key = 1

    @classmethod
    def probe(cls, device: str | None = None) -> Support:
        parse_plants(device or "")  # what cannot be planted is refused before the run
        return Support(True)

    @classmethod
    def open(cls, device: str | None = None) -> Self:
        return cls(device or "")

    def describe(self) -> StackPart:
        return StackPart(name=self.name, device=self._device, driver="fake", emulated=True)

    def register(
        self,
        fd: int,
        offset_bytes: int,
        length_bytes: int,
        iova: int = 0,
        access: int = ACCESS_DEFAULT,
    ) -> FakeRegistration:
        act = f"cannot register fake MR: fd={fd} offset={offset_bytes} length={length_bytes}"
        self._planter.call(Op.REG, act)
        try:
            size = os.fstat(fd).st_size
            if not _is_buffer(fd):
                raise CallError(act, errno.EINVAL)
            if length_bytes <= 0 or not 0 <= offset_bytes <= size - length_bytes:
                raise CallError(act, errno.EINVAL)
            own = os.dup(fd)
        except OSError as error:
            raise CallError(act, error.errno or 0) from error
        key, self._next_key = self._next_key, self._next_key + 1
        return FakeRegistration(own, key, self._planter)

    def reregister(self, registration: Registration, access: int) -> None:
        self._planter.call(Op.REREG, f"cannot reregister fake MR: access={access:#x}")

    def binding(self) -> ImporterBinding:
        return ImporterBinding(backend="fake", numbers=self._planter.plan.numbers())

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _is_buffer(fd: int) -> bool:
    link = str(Path("/proc/self/fd", str(fd)).readlink())
    return link.startswith(f"/memfd:{BUFFER_NAME}")
