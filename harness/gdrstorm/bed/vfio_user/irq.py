"""Interrupts of the device: DEVICE_SET_IRQS to eventfds, one for each MSI-X vector.

QEMU hands the eventfds over one by one as the guest unmasks vectors, and takes all back with a
DATA_NONE trigger of count 0. Flags and indices come from ``include/uapi/linux/vfio.h``.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from gdrstorm.bed.vfio_user.framing import close_fds
from gdrstorm.bed.vfio_user.protocol import (
    IRQ_INDEX_COUNT,
    IrqIndex,
    IrqInfoFlag,
    IrqSet,
    IrqSetFlag,
    ProtocolError,
)

_EVENTFD_LINK: Final = "anon_inode:[eventfd]"


def _disables_all(request: IrqSet) -> bool:
    nothing = request.start == 0 and request.count == 0
    flags = IrqSetFlag.DATA_NONE | IrqSetFlag.ACTION_TRIGGER
    return request.index == IrqIndex.MSIX and nothing and request.flags == flags


class IrqTable:
    """The MSI-X vectors; INTx and MSI have none, error and request interrupts do not exist."""

    def __init__(self, vectors: int) -> None:
        self._fds: list[int | None] = [None] * vectors
        self.raised_count = 0

    def count(self, index: int) -> int:
        # QEMU warns of an error interrupt that has no vectors, not of one that is refused.
        if index >= IRQ_INDEX_COUNT or index in (IrqIndex.ERR, IrqIndex.REQ):
            raise ProtocolError(errno.EINVAL, f"interrupt index {index}")
        return len(self._fds) if index == IrqIndex.MSIX else 0

    def info_flags(self, index: int) -> IrqInfoFlag:
        # Without NORESIZE the client may add vectors one at a time.
        return IrqInfoFlag.EVENTFD if index == IrqIndex.MSIX else IrqInfoFlag(0)

    @property
    def armed(self) -> tuple[int, ...]:
        """Vectors with an eventfd."""
        return tuple(number for number, fd in enumerate(self._fds) if fd is not None)

    def raise_irq(self, vector: int) -> None:
        fd = self._fds[vector] if 0 <= vector < len(self._fds) else None
        if fd is None:
            return
        self.raised_count += 1
        try:
            os.eventfd_write(fd, 1)
        except BlockingIOError:
            # The counter is full: the client has the interrupt pending anyway.
            return

    def set(self, request: IrqSet, fds: list[int]) -> None:
        """Carry out a request; takes the descriptors of ``fds`` that it keeps out of the list."""
        if _disables_all(request):
            self.clear()
            return
        end = request.start + request.count
        if request.count == 0 or end > self.count(request.index):
            what = f"interrupts {request.start}..{end} of index {request.index}"
            raise ProtocolError(errno.EINVAL, f"DEVICE_SET_IRQS: {what}")
        if not request.flags & IrqSetFlag.ACTION_TRIGGER:
            raise ProtocolError(errno.ENOTTY, "DEVICE_SET_IRQS: MSI-X has no mask action")
        if request.flags & IrqSetFlag.DATA_EVENTFD:
            self._assign(request, fds)
            return
        for number in range(request.count):
            if request.flags & IrqSetFlag.DATA_NONE or request.data[number]:
                self.raise_irq(request.start + number)

    def _assign(self, request: IrqSet, fds: list[int]) -> None:
        if fds and len(fds) != request.count:
            what = f"{len(fds)} descriptors for {request.count} interrupts"
            raise ProtocolError(errno.EINVAL, f"DEVICE_SET_IRQS: {what}")
        for fd in fds:
            # Anything else could block or fail in the middle of a doorbell.
            if os.fspath(Path(f"/proc/self/fd/{fd}").readlink()) != _EVENTFD_LINK:
                raise ProtocolError(errno.EINVAL, "DEVICE_SET_IRQS: not an eventfd")
        new: list[int | None] = list(fds) if fds else [None] * request.count
        fds.clear()
        old = self._fds[request.start : request.start + request.count]
        self._fds[request.start : request.start + request.count] = new
        close_fds(fd for fd in old if fd is not None)

    def clear(self) -> None:
        """Close all eventfds. Legal twice."""
        old, self._fds = self._fds, [None] * len(self._fds)
        close_fds(fd for fd in old if fd is not None)
