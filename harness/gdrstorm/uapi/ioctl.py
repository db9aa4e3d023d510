"""Numbers and calls of ioctl(2): request codes are computed, errors become CallError.

Source: include/uapi/asm-generic/ioctl.h. The layout is that of x86, arm64 and riscv; powerpc, mips
and sparc put other bits into the direction field and are not supported.
"""

from __future__ import annotations

import ctypes
import fcntl

from gdrstorm.errors import CallError

_NONE, _WRITE, _READ = 0, 1, 2


def io(type_: int, number: int) -> int:
    """_IO(type, nr)."""
    return _code(_NONE, type_, number, 0)


def iow(type_: int, number: int, argument: type[ctypes.Structure]) -> int:
    """_IOW(type, nr, argument): the kernel reads the argument."""
    return _code(_WRITE, type_, number, ctypes.sizeof(argument))


def iowr(type_: int, number: int, argument: type[ctypes.Structure]) -> int:
    """_IOWR(type, nr, argument): the kernel reads and writes the argument."""
    return _code(_READ | _WRITE, type_, number, ctypes.sizeof(argument))


def _code(direction: int, type_: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | type_ << 8 | number


def call(
    act: str,
    fd: int,
    request: int,
    argument: ctypes.Structure | ctypes.Array[ctypes.c_char] | int = 0,
    hints: dict[int, str] | None = None,
) -> int:
    """One ioctl, EINTR not retried by us (Python does); returns what the call returned.

    Raises:
        CallError: with `act`, the errno, and the hint that `hints` has for it.
    """
    try:
        return fcntl.ioctl(fd, request, argument)
    except OSError as error:
        value = error.errno or 0
        raise CallError(act, value, (hints or {}).get(value)) from error


def check_layout(structure: type[ctypes.Structure], size: int, /, **offsets: int) -> None:
    """Assert at import what the header promises: sizeof and offsetof.

    Raises:
        AssertionError: the mirror does not have the kernel's layout on this machine.
    """
    if ctypes.sizeof(structure) != size:
        raise AssertionError(f"{structure.__name__}: {ctypes.sizeof(structure)} bytes, want {size}")
    for name, offset in offsets.items():
        found = getattr(structure, name).offset
        if found != offset:
            raise AssertionError(f"{structure.__name__}.{name}: offset {found}, want {offset}")
