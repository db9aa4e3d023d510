"""Page faults: the device asks the driver to map a page and waits for PAGE_FAULT_RESUME.

A dynamic dma-buf MR starts and, after a revoke, stays without pages; this is the only way it ever
gets them back. Event formats from include/linux/mlx5/device.h (mlx5_eqe_page_fault).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gdrstorm.bed.connectx.eq import EventQueues
from gdrstorm.bed.connectx.oracle import Oracle
from gdrstorm.bed.connectx.plant import Mishap, Saboteur
from gdrstorm.bed.connectx.prm import Event, PageFaultType
from gdrstorm.bed.vfio_user.device import DeviceContext

_SUBTYPE_WQE: Final = 0
_SUBTYPE_RDMA: Final = 1
_TOKEN_MASK: Final = 0xFFFFFF
_MAX_PACKET: Final = 0xFFFF


@dataclass(slots=True)
class PageFault:
    """One fault that waits. `resolve` is called once, with True when the driver gave up."""

    token: int
    resolve: Callable[[bool], None] | None = None

    def then(self, resolve: Callable[[bool], None]) -> None:
        self.resolve = resolve


class PageFaults:
    """Faults of one function that the driver has not answered yet."""

    def __init__(
        self,
        ctx: DeviceContext,
        eqs: EventQueues,
        oracle: Oracle,
        saboteur: Saboteur,
        function: int,
    ) -> None:
        self._ctx = ctx
        self._eqs = eqs
        self._oracle = oracle
        self._saboteur = saboteur
        self._function = function
        self._waiting: dict[int, PageFault] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._waiting)

    def ask_remote(self, key: int, address: int, size: int) -> PageFault | None:
        """A responder met a missing page; None when the driver cannot be asked."""
        token = self._token()
        kind = PageFaultType.RESPONDER << 24 | token
        data = struct.pack(
            ">IIHHIQI", 0, key, 0, min(size, _MAX_PACKET), size & 0xFFFFFFFF, address, kind
        )
        return self._ask(token, _SUBTYPE_RDMA, data)

    def ask_local(self, kind: PageFaultType, queue: int, wqe_index: int) -> PageFault | None:
        """A queue's own scatter/gather list met a missing page."""
        token = self._token()
        data = struct.pack(">IHHHHI8xI", 0, 0, wqe_index, 0, _MAX_PACKET, token, kind << 24 | queue)
        return self._ask(token, _SUBTYPE_WQE, data)

    def _token(self) -> int:
        while self._next in self._waiting:
            self._next = self._next + 1 & _TOKEN_MASK
        token = self._next
        self._next = self._next + 1 & _TOKEN_MASK or 1
        return token

    def _ask(self, token: int, subtype: int, data: bytes) -> PageFault | None:
        if self._eqs.listener(Event.PAGE_FAULT) is None:
            return None
        self._oracle.page_faults += 1
        plant = self._saboteur.pick_page_fault(self._function)
        if plant is not None and plant.mishap is Mishap.FAIL:
            self._oracle.page_fault_errors += 1
            return None
        fault = PageFault(token)
        self._waiting[token] = fault
        if plant is None:
            self._report(subtype, data)
        elif plant.mishap is Mishap.DELAY:
            self._ctx.call_later(plant.delay_s, lambda: self._report(subtype, data))
        return fault

    def _report(self, subtype: int, data: bytes) -> None:
        self._eqs.report(Event.PAGE_FAULT, subtype, data)

    def resume(self, token: int, error: bool) -> bool:
        """The driver answered; False for a token that nobody waits for."""
        fault = self._waiting.pop(token, None)
        if fault is None:
            return False
        if error:
            self._oracle.page_fault_errors += 1
        if fault.resolve is not None:
            fault.resolve(error)
        return True

    def clear(self) -> None:
        self._waiting.clear()
