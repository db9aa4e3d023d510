"""Title normalisation: one bug has one title, across addresses, PIDs, CPUs, devices and machines."""

from __future__ import annotations


def normalise_title(text: str) -> str:
    """Replace what differs from one occurrence to the next (addresses, PIDs, CPUs, bdfs, times)."""
    raise NotImplementedError
