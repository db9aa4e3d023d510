"""The command interface: slots and mailboxes in guest memory, dispatch and completion.

A slot is 64 bytes; input and output beyond 16 bytes are chains of 512-byte blocks
(struct mlx5_cmd_layout and mlx5_cmd_prot_block). Each command is answered with a status; one that
nobody knows gets BAD_OP. The driver trusts completions blindly, so none is ever made up.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gdrstorm.bed.connectx.fields import Buffer
from gdrstorm.bed.connectx.function import Function
from gdrstorm.bed.connectx.memory import MAILBOX
from gdrstorm.bed.connectx.plant import CommandPlant, Mishap
from gdrstorm.bed.connectx.prm import Delivery, Event, Op, Status
from gdrstorm.bed.vfio_user.device import DmaError

SLOT_BYTES: Final = 64
LOG_SLOTS: Final = 5
LOG_STRIDE: Final = 6
_INLINE_BYTES: Final = 16
_BLOCK_BYTES: Final = 512
_NEXT_OFFSET: Final = 560
_MAX_LENGTH: Final = 1 << 20
_PCI_TRANSPORT: Final = 7
_OUT_OFFSET: Final = 32
_STATUS_OFFSET: Final = 63

Handler = Callable[[Function, bytes], Buffer]


class CommandError(Exception):
    """A command that fails: what the driver reads as status and syndrome."""

    def __init__(self, status: Status, syndrome: int = 0) -> None:
        super().__init__(f"{status.name} syndrome {syndrome:#x}")
        self.status = status
        self.syndrome = syndrome


@dataclass(frozen=True, slots=True)
class _Slot:
    """One command as the driver wrote it."""

    number: int
    address: int
    in_pointer: int
    in_inline: bytes
    in_length: int
    out_pointer: int
    out_length: int


class _BadSlot(Exception):
    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery.name)
        self.delivery = delivery


class CommandInterface:
    """Executes commands of one function."""

    def __init__(self, function: Function, handlers: Mapping[Op, Handler]) -> None:
        self._function = function
        self._handlers = handlers
        self.base = 0

    def doorbell(self, vector: int) -> None:
        """The driver rang for these slots."""
        if not self.base:
            return
        for number in range(1 << LOG_SLOTS):
            if vector >> number & 1:
                self._take(number)

    def _take(self, number: int) -> None:
        function = self._function
        # The driver polls until it has made this queue, and must not hear of polled commands.
        by_event = function.eqs.listener(Event.COMMAND) is not None
        address = self.base + number * SLOT_BYTES
        try:
            slot = self._read_slot(number, address)
            request = self._gather(slot)
        except DmaError:
            return
        except _BadSlot as bad:
            self._finish(number, address, bad.delivery, by_event)
            return
        opcode = int.from_bytes(request[:2], "big")
        plant = function.saboteur.pick_command(function.index, opcode)
        if plant is not None and plant.mishap is Mishap.DROP:
            self._count(opcode)
            return
        if plant is not None and plant.mishap is Mishap.DELAY:
            run = self._later(slot, request, by_event)
            function.ctx.call_later(plant.delay_s, run)
            return
        self._run(slot, request, by_event, plant)

    def _later(self, slot: _Slot, request: bytes, by_event: bool) -> Callable[[], None]:
        return lambda: self._run(slot, request, by_event, None)

    def _run(self, slot: _Slot, request: bytes, by_event: bool, plant: CommandPlant | None) -> None:
        if self._function.is_dead:
            return
        reply = self.execute(request, plant)
        try:
            self._scatter(slot, reply)
        except DmaError:
            return
        except _BadSlot as bad:
            self._finish(slot.number, slot.address, bad.delivery, by_event)
            return
        self._finish(slot.number, slot.address, Delivery.OK, by_event)

    def execute(self, request: bytes, plant: CommandPlant | None = None) -> bytes:
        """The answer to a command, status and syndrome included."""
        opcode = int.from_bytes(request[:2], "big")
        name = self._count(opcode)
        try:
            if plant is not None:
                raise CommandError(plant.status, plant.syndrome)
            handler = self._handlers.get(opcode)  # type: ignore[call-overload]
            if handler is None:
                raise CommandError(Status.BAD_OP)
            reply = bytes(handler(self._function, request))
        except CommandError as error:
            self._function.oracle.command_failures[f"{name}:{error.status.name}"] += 1
            reply = struct.pack(">B3xI8x", error.status, error.syndrome)
        except DmaError:
            reply = struct.pack(">B3xI8x", Status.INTERNAL, 0)
        if self._function.oracle.tracing:
            what = f"{name} in={len(request)} status={reply[0]:#x}"
            self._function.oracle.trace(self._function.now_ns(), self._function.index, what)
        return reply

    def _count(self, opcode: int) -> str:
        name = Op(opcode).name if opcode in _KNOWN else f"{opcode:#x}"
        self._function.oracle.commands[name] += 1
        return name

    # Slots and mailboxes

    def _read_slot(self, number: int, address: int) -> _Slot:
        raw = self._function.memory.read(address, SLOT_BYTES, MAILBOX)
        kind, in_length, in_pointer = struct.unpack_from(">B3xIQ", raw)
        out_pointer, out_length = struct.unpack_from(">QI", raw, 48)
        if kind != _PCI_TRANSPORT:
            raise _BadSlot(Delivery.BAD_DESCRIPTOR)
        if not 8 <= in_length <= _MAX_LENGTH:
            raise _BadSlot(Delivery.BAD_INPUT_LENGTH)
        if out_length > _MAX_LENGTH:
            raise _BadSlot(Delivery.BAD_OUTPUT_LENGTH)
        return _Slot(number, address, in_pointer, raw[16:32], in_length, out_pointer, out_length)

    def _gather(self, slot: _Slot) -> bytes:
        """Inline bytes and the chain of input blocks; a chain is as long as its length says."""
        parts = [slot.in_inline[: slot.in_length]]
        left = slot.in_length - _INLINE_BYTES
        block = slot.in_pointer
        memory = self._function.memory
        while left > 0:
            if not block:
                raise _BadSlot(Delivery.BAD_BLOCK)
            raw = memory.read(block, _NEXT_OFFSET + 8, MAILBOX)
            parts.append(raw[: min(left, _BLOCK_BYTES)])
            left -= _BLOCK_BYTES
            block = int.from_bytes(raw[_NEXT_OFFSET:], "big")
        return b"".join(parts)

    def _scatter(self, slot: _Slot, reply: bytes) -> None:
        memory = self._function.memory
        reply = reply[: slot.out_length].ljust(slot.out_length, b"\0")
        first = reply[:_INLINE_BYTES].ljust(_INLINE_BYTES, b"\0")
        block = slot.out_pointer
        for start in range(_INLINE_BYTES, slot.out_length, _BLOCK_BYTES):
            if not block:
                raise _BadSlot(Delivery.BAD_BLOCK)
            memory.write(block, reply[start : start + _BLOCK_BYTES], MAILBOX)
            block = int.from_bytes(memory.read(block + _NEXT_OFFSET, 8, MAILBOX), "big")
        memory.write(slot.address + _OUT_OFFSET, first, MAILBOX)

    def _finish(self, number: int, address: int, delivery: Delivery, by_event: bool) -> None:
        """Give the slot back; the status byte comes last, as the driver polls it."""
        function = self._function
        try:
            function.memory.write(address + _STATUS_OFFSET, bytes((delivery << 1,)), MAILBOX)
        except DmaError:
            return
        queue = function.eqs.listener(Event.COMMAND) if by_event else None
        if queue is not None:
            function.eqs.post(queue, Event.COMMAND, 0, struct.pack(">I", 1 << number))


_KNOWN: Final = frozenset(Op)
