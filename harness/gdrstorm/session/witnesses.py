"""Which witnesses a run gets beside the kernel log, for the stack it runs on."""

from __future__ import annotations

from gdrstorm.kmsg.witness import Witness
from gdrstorm.model.plan import StackChoice


def make_witnesses(stack: StackChoice) -> list[Witness]:
    """Witnesses for a stack, not started yet."""
    del stack
    return []
