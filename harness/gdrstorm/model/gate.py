"""One row of a gate: a single call with bad (or forbidden) input, and the answer it must get."""

from __future__ import annotations

import msgspec


class GateResult(msgspec.Struct, frozen=True):
    """What one case of a table was answered.

    `path` is the way it took (`libibverbs`, `ioctl`, `rm`, ...); `expected` are the errno or status names that are
    right, `got` is the one seen, `ok` for success. `refused` says that the right answer was a refusal, so that a
    report can say "refused as expected" and never "supported". `skipped` has the reason of a case that was not run.
    """

    table: str
    case: str
    path: str
    expected: tuple[str, ...]
    got: str
    passed: bool
    refused: bool = True
    note: str = ""
    skipped: str = ""
