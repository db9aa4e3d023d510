"""User-mode memory registration: a WQE that changes a memory key.

Registering, revoking and re-registering memory, binding windows and invalidating keys are all this
one WQE. Here is what it does to the key; the send queue fetches its table and completes it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gdrstorm.bed.connectx.fields import Buffer
from gdrstorm.bed.connectx.layouts import MkcLayout
from gdrstorm.bed.connectx.mkey import MTT_ADDRESS, MTT_BYTES, Mkey
from gdrstorm.bed.connectx.prm import AccessMode, MkeyMask, UmrFlag
from gdrstorm.bed.connectx.wqe import UmrArgs


class UmrVerdict(enum.Enum):
    """Why a UMR failed, or that it did not."""

    OK = "ok"
    IS_FREE = "the mkey is free"
    NOT_FREE = "the mkey is not free"
    TABLE_TOO_LONG = "the translations do not fit the mkey"


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Translations that the driver took away: guest pages that must not be touched any more."""

    key: int
    pages: tuple[int, ...]


def check_umr(mkey: Mkey, args: UmrArgs) -> UmrVerdict:
    """Whether the key is in the state that the WQE demands."""
    if args.flags & UmrFlag.FAIL_IF_FREE and mkey.free:
        return UmrVerdict.IS_FREE
    if args.flags & UmrFlag.FAIL_IF_NOT_FREE and not mkey.free:
        return UmrVerdict.NOT_FREE
    if args.table_offset + args.table_bytes > mkey.translation_limit:
        return UmrVerdict.TABLE_TOO_LONG
    return UmrVerdict.OK


def apply_umr(mkey: Mkey, args: UmrArgs, table: Buffer) -> Withdrawn | None:
    """Change the key (already checked); gives the translations that this took away."""
    withdrawn = _withdrawn(mkey, args, table)
    if len(table):
        mkey.write_translations(args.table_offset, table)
    mkey.update(args.mkey_mask, args.mkey_context)
    return withdrawn


def _withdrawn(mkey: Mkey, args: UmrArgs, table: Buffer) -> Withdrawn | None:
    freed = args.mkey_mask & MkeyMask.FREE and MkcLayout.free.get(args.mkey_context)
    zapped = len(table) >= MTT_BYTES and not any(table[:MTT_BYTES])
    if mkey.mode != AccessMode.MTT or mkey.free or not (freed or zapped):
        return None
    first = mkey.translations[:MTT_BYTES]
    page = int.from_bytes(first, "big")
    if not page & ~MTT_ADDRESS & 3:
        return None
    return Withdrawn(mkey.key, (page & MTT_ADDRESS,))
