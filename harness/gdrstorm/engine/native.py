"""Loads the native module, once and only when it is needed, and checks that both sides mean the same numbers.

Nothing outside engine/ imports this, apart from back ends that need the verbs functions of the ABI (`load`).
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, NamedTuple

from gdrstorm.errors import BrokenError
from gdrstorm.model.op import Op

LAYOUT_VERSION = 2


class Native(NamedTuple):
    """cffi's two objects: `ffi` makes C data, `lib` has the functions of native/include/decl.h."""

    ffi: Any
    lib: Any


def check_agreement(lib: Any) -> None:
    """Raise BrokenError when the module was built from other declarations than this package expects."""
    wrong = [op.name for op in Op if getattr(lib, f"GS_OP_{op.name}", None) != op.value]
    if wrong or max(Op) + 1 != lib.GS_OP_COUNT or lib.GS_LAYOUT_VERSION != LAYOUT_VERSION:
        raise BrokenError(
            f"the native engine is of another version (operations {', '.join(wrong) or 'agree'})",
            "build it again: python native/cffi_build.py",
        )


@cache
def load() -> Native:
    """The native module. Raises BrokenError when it is not built or cannot be loaded here."""
    try:
        module = importlib.import_module("gdrstorm.engine._native")
    except ImportError as error:
        raise BrokenError(
            f"cannot load the native engine: {error}", "build it: python native/cffi_build.py"
        ) from error
    check_agreement(module.lib)
    return Native(module.ffi, module.lib)
