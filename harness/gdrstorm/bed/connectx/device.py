"""The PCI function: BAR 0 with initialization segment and doorbells, config space, resets.

A write to BAR 0 is a doorbell, the address of the command queue or the NIC state; a read is the
initialization segment. Everything behind a doorbell is the Function of the moment, which a reset
replaces. Layout of struct mlx5_init_seg from include/linux/mlx5/device.h.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from gdrstorm.bed.connectx.cmd import LOG_SLOTS, LOG_STRIDE, CommandInterface, Handler
from gdrstorm.bed.connectx.commands_core import CORE_HANDLERS
from gdrstorm.bed.connectx.commands_memory import MEMORY_HANDLERS
from gdrstorm.bed.connectx.commands_net import NET_HANDLERS
from gdrstorm.bed.connectx.commands_queue import QUEUE_HANDLERS
from gdrstorm.bed.connectx.commands_steering import STEERING_HANDLERS
from gdrstorm.bed.connectx.fabric import Fabric
from gdrstorm.bed.connectx.function import Function
from gdrstorm.bed.connectx.health import HEALTH_BYTES, Health
from gdrstorm.bed.connectx.options import ConnectXOptions
from gdrstorm.bed.connectx.oracle import Oracle
from gdrstorm.bed.connectx.plant import (
    Disaster,
    DisasterPlant,
    HealthPlant,
    InstantPlant,
    Saboteur,
)
from gdrstorm.bed.connectx.prm import Event, NicState, Op, PortChange
from gdrstorm.bed.connectx.requester import Requester
from gdrstorm.bed.connectx.responder import Responder
from gdrstorm.bed.vfio_user.device import (
    BAR0_REGION,
    CONFIG_REGION,
    DeviceContext,
    Region,
    RegionFlag,
)
from gdrstorm.bed.vfio_user.pci_config import (
    CONFIG_BYTES,
    Bar,
    ConfigEvent,
    Msix,
    PciConfig,
    PciIds,
)

BAR0_BYTES: Final = 32 << 20
MSIX_VECTORS: Final = 64
_MSIX_TABLE: Final = 0x3000
_MSIX_PENDING: Final = 0x3800
_UAR_START: Final = 0x10000
_UAR_MASK: Final = 0xFFF
_VENDOR: Final = 0x15B3
_DEVICE: Final = 0x101F
_CLASS_ETHERNET: Final = 0x020000
_CLASS_INFINIBAND: Final = 0x020700
# 26.35.4506, command interface revision 5
_FIRMWARE: Final = (26, 35, 4506)
_CMDIF_REVISION: Final = 5

_FW_REV: Final = 0x00
_CMDIF_REV: Final = 0x04
_CMDQ_ADDR_H: Final = 0x10
_CMDQ_ADDR_L: Final = 0x14
_CMD_DOORBELL: Final = 0x18
_INITIALIZING: Final = 0x1FC
_HEALTH: Final = 0x200
_TIMER_H: Final = 0x1000
_TIMER_L: Final = 0x1004
_HEALTH_COUNTER: Final = 0x1010
_ISEG_END: Final = 0x2014
_CQ_DOORBELL: Final = 0x20
_EQ_ARM: Final = 0x40
_EQ_UPDATE: Final = 0x48
_SEND_DOORBELL: Final = 0x800
# Firmware is ready (bit 31 is 0) and can be told to reset itself.
_RESET_SUPPORTED: Final = 1 << 30
# What the driver sees of a reset that takes a moment.
_SW_RESET_S: Final = 0.1

HANDLERS: Final[dict[Op, Handler]] = (
    CORE_HANDLERS | QUEUE_HANDLERS | MEMORY_HANDLERS | NET_HANDLERS | STEERING_HANDLERS
)


class ConnectX:
    """One virtual ConnectX-6 Lx; implements the server's PciDevice."""

    def __init__(
        self, options: ConnectXOptions, fabric: Fabric, oracle: Oracle, saboteur: Saboteur
    ) -> None:
        self._options = options
        self._fabric = fabric
        self._oracle = oracle
        self._saboteur = saboteur
        self._ctx: DeviceContext | None = None
        self._function: Function | None = None
        self._commands: CommandInterface | None = None
        self._is_wedged = False
        self._is_gone = False
        self._cmdq_high = 0
        self._cq_doorbell: dict[int, int] = {}
        self._firmware_word = _FIRMWARE[0] | _FIRMWARE[1] << 16
        self._health = Health(_FIRMWARE[0] << 24 | _FIRMWARE[1] << 16 | _FIRMWARE[2])
        self._config = _build_config(options)
        saboteur.listen(self._strike)

    # PciDevice

    @property
    def regions(self) -> Sequence[Region]:
        both = RegionFlag.READ | RegionFlag.WRITE
        return (Region(BAR0_REGION, BAR0_BYTES, both), Region(CONFIG_REGION, CONFIG_BYTES, both))

    @property
    def msix_vectors(self) -> int:
        return MSIX_VECTORS

    @property
    def function(self) -> Function:
        """The incarnation since the last reset."""
        assert self._function is not None
        return self._function

    def attach(self, ctx: DeviceContext) -> None:
        self._ctx = ctx
        self._restart()

    def reset(self) -> None:
        """Function level reset: nothing that the driver made survives."""
        if self._function is not None:
            self._function.record_leaks("RESET", self._function.live_objects())
        self._config.reset()
        self._restart()

    def dma_mapped(self, iova: int, size: int) -> None:
        return

    def dma_unmapped(self, iova: int, size: int) -> None:
        if self._function is not None:
            self._function.memory.note_unmapped(iova, size)

    def config_read(self, offset: int, size: int) -> bytes:
        if self._is_gone:
            return b"\xff" * size
        return self._config.read(offset, size)

    def config_write(self, offset: int, data: bytes) -> None:
        if self._is_gone:
            return
        if self._config.write(offset, data) & ConfigEvent.FLR:
            self.reset()

    def region_read(self, index: int, offset: int, size: int) -> bytes:
        if self._is_gone:
            return b"\xff" * size
        if index != BAR0_REGION or offset >= _ISEG_END:
            return bytes(size)
        first = offset & ~3
        words = range(first, offset + size, 4)
        raw = b"".join(self._iseg_word(at).to_bytes(4, "big") for at in words)
        return raw[offset - first : offset - first + size]

    def region_write(self, index: int, offset: int, data: bytes) -> None:
        if index != BAR0_REGION or self._is_gone:
            return
        if offset >= _UAR_START:
            if not self._is_wedged:
                self._uar_write(offset & _UAR_MASK, offset & ~_UAR_MASK, data)
        elif len(data) % 4 == 0 and offset % 4 == 0:
            for at in range(0, len(data), 4):
                self._iseg_write(offset + at, int.from_bytes(data[at : at + 4], "big"))

    # Life and death

    def _restart(self) -> None:
        assert self._ctx is not None
        if self._function is not None:
            self._function.kill()
        function = Function(self._options, self._ctx, self._fabric, self._oracle, self._saboteur)
        function.requester = Requester(function)
        function.responder = Responder(function)
        self._function = function
        self._commands = CommandInterface(function, HANDLERS)
        self._fabric.join(function)
        self._is_wedged = False
        self._cmdq_high = 0
        self._cq_doorbell.clear()
        self._health = Health(_FIRMWARE[0] << 24 | _FIRMWARE[1] << 16 | _FIRMWARE[2])

    def _strike(self, plant: InstantPlant) -> None:
        """A plant that strikes at once."""
        if plant.function not in (None, self._options.index):
            return
        if isinstance(plant, HealthPlant):
            self._health.report(plant.syndrome, plant.fatal)
        elif isinstance(plant, DisasterPlant):
            self._disaster(plant.disaster)

    def _disaster(self, disaster: Disaster) -> None:
        assert self._ctx is not None
        if disaster is Disaster.WEDGE:
            self._is_wedged = True
            self._health.stop(self._ctx.now_ns())
        elif disaster is Disaster.VANISH:
            self._is_gone = True
            self.function.kill()
        elif disaster is Disaster.RETURN:
            self._health.go_on()
            self._is_wedged = False
            if self._is_gone:
                self._is_gone = False
                self._restart()
        else:
            self._set_port(disaster is Disaster.PORT_UP)

    def _set_port(self, is_up: bool) -> None:
        self.function.port.is_up = is_up
        change = PortChange.ACTIVE if is_up else PortChange.DOWN
        # Port number in the upper half of the ninth byte.
        self.function.eqs.report(Event.PORT_CHANGE, change, bytes(8) + bytes((1 << 4,)))

    def _software_reset(self, asked: Function) -> None:
        """The driver asked through the NIC state: all state goes, the interface is disabled."""
        if self._function is not asked:
            # Another reset came first.
            return
        self.function.record_leaks("SW_RESET", self.function.live_objects())
        self._restart()

    # Initialization segment

    def _iseg_word(self, at: int) -> int:
        assert self._ctx is not None
        if at == _FW_REV:
            return self._firmware_word
        if at == _CMDIF_REV:
            return _CMDIF_REVISION << 16 | _FIRMWARE[2]
        if at == _INITIALIZING:
            return _RESET_SUPPORTED
        if at == _CMDQ_ADDR_L:
            return self._health.nic_state << 8 | LOG_SLOTS << 4 | LOG_STRIDE
        if _HEALTH <= at < _HEALTH + HEALTH_BYTES:
            start = at - _HEALTH
            return int.from_bytes(self._health.buffer()[start : start + 4], "big")
        if at == _HEALTH_COUNTER:
            return self._health.counter(self._ctx.now_ns())
        if at in (_TIMER_H, _TIMER_L):
            now = self._ctx.now_ns()
            return (now >> 32 if at == _TIMER_H else now) & 0xFFFFFFFF
        return 0

    def _iseg_write(self, at: int, value: int) -> None:
        assert self._commands is not None
        if at == _CMDQ_ADDR_H:
            self._cmdq_high = value
        elif at == _CMDQ_ADDR_L:
            self._nic_state_write(NicState(value >> 8 & 7) if value >> 8 & 7 in _NIC else None)
            if value & ~0xFFF:
                self._commands.base = self._cmdq_high << 32 | value & ~0xFFF
        elif at == _CMD_DOORBELL and not self._is_wedged:
            self._commands.doorbell(value)

    def _nic_state_write(self, state: NicState | None) -> None:
        assert self._ctx is not None
        if state is NicState.SW_RESET:
            self._health.nic_state = state
            asked = self.function
            self._ctx.call_later(_SW_RESET_S, lambda: self._software_reset(asked))
        elif state is not None:
            self._health.nic_state = state

    # Doorbells

    def _uar_write(self, offset: int, page: int, data: bytes) -> None:
        function = self.function
        if offset >= _SEND_DOORBELL:
            # The QP number is in the second word; one of four bytes may be all that comes.
            if len(data) >= 8:
                self._ring(function, int.from_bytes(data[4:8], "big") >> 8)
            elif offset & 4 and len(data) == 4:
                self._ring(function, int.from_bytes(data, "big") >> 8)
        elif offset in (_EQ_ARM, _EQ_UPDATE) and len(data) >= 4:
            value = int.from_bytes(data[:4], "big")
            queue = function.eqs.queues.get(value >> 24)
            if queue is not None:
                queue.doorbell(value & 0xFFFFFF, offset == _EQ_ARM)
        elif offset == _CQ_DOORBELL:
            if len(data) >= 8:
                self._arm_cq(function, *struct.unpack_from(">II", data))
            elif len(data) == 4:
                self._cq_doorbell[page] = int.from_bytes(data, "big")
        elif offset == _CQ_DOORBELL + 4 and len(data) == 4 and page in self._cq_doorbell:
            self._arm_cq(function, self._cq_doorbell.pop(page), int.from_bytes(data, "big"))

    @staticmethod
    def _arm_cq(function: Function, value: int, number: int) -> None:
        cq = function.cqs.get(number & 0xFFFFFF)
        if cq is not None:
            cq.arm(value)

    @staticmethod
    def _ring(function: Function, number: int) -> None:
        qp = function.qps.get(number)
        if qp is not None:
            function.requester.doorbell(qp)
            return
        sq = function.sqs.get(number)
        if sq is not None:
            sq.doorbell(function)


_NIC: Final = frozenset(NicState)


def _build_config(options: ConnectXOptions) -> PciConfig:
    kind = _CLASS_ETHERNET if options.is_ethernet else _CLASS_INFINIBAND
    return PciConfig(
        PciIds(_VENDOR, _DEVICE, kind, _VENDOR, 0x0001),
        (Bar(0, BAR0_BYTES),),
        Msix(MSIX_VECTORS, 0, _MSIX_TABLE, 0, _MSIX_PENDING),
        serial_number=options.node_guid,
    )
