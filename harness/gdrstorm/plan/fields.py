"""Values of scenario files, one parser a kind: a TOML value in, a typed value out, ValueError with what is allowed.

Nothing here knows files or lines; plan.load puts those around the message.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gdrstorm import units
from gdrstorm.errors import errno_value
from gdrstorm.model.op import Op

Parser = Callable[[Any], Any]

#: longest name of a phase or group; a line of the kernel log has room for it and more
_NAME_BYTES = 128

# include/uapi/rdma/ib_user_ioctl_verbs.h: enum ib_uverbs_access_flags
ACCESS_FLAGS = {
    "LOCAL_WRITE": 1,
    "REMOTE_WRITE": 2,
    "REMOTE_READ": 4,
    "REMOTE_ATOMIC": 8,
    "MW_BIND": 16,
    "ZERO_BASED": 32,
    "ON_DEMAND": 64,
    "RELAXED_ORDERING": 1 << 20,
}


@dataclass(frozen=True)
class Field:
    """One allowed key of a table."""

    parse: Parser
    required: bool = False


def nearest(word: str, allowed: Iterable[str]) -> str:
    """` - did you mean "x"?` for the closest allowed word, else nothing."""
    lower = {a.lower(): a for a in allowed}
    close = difflib.get_close_matches(str(word).lower(), list(lower), n=1, cutoff=0.6)
    return f' - did you mean "{lower[close[0]]}"?' if close else ""


def _kind(value: object) -> str:
    names = {bool: "a boolean", int: "an integer", float: "a number", str: "a string"}
    names |= {list: "an array", dict: "a table"}
    return names.get(type(value), type(value).__name__)


def text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be a string that is not empty, is {_kind(value)}")
    return value.strip()


def name(value: Any) -> str:
    """A name of a phase or group: it goes into kernel log markers and onto terminals."""
    found = text(value)
    if len(found.encode("utf-8", "replace")) > _NAME_BYTES or not found.isprintable():
        raise ValueError(f"must be at most {_NAME_BYTES} printable bytes, is {found[:80]!r}")
    return found


def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, is {_kind(value)}")
    return value


def integer(low: int, high: int) -> Parser:
    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be an integer from {low} to {high}, is {_kind(value)}")
        if not low <= value <= high:
            raise ValueError(f"must be from {low} to {high}, is {value}")
        return value

    return parse


def size(low: int = 0, high: int = 1 << 44) -> Parser:
    """Bytes, from an integer or a text as `64KiB`."""

    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(f'must be a size as 4096, "64KiB" or "1GiB", is {_kind(value)}')
        number = units.parse_size(value) if isinstance(value, str) else value
        if not low <= number <= high:
            raise ValueError(
                f"must be from {units.format_size(low)} to {units.format_size(high)}, is {number}"
            )
        return number

    return parse


def size_text(low: int, high: int) -> Parser:
    """A size as it was written, once it is known to be one."""
    check = size(low, high)

    def parse(value: Any) -> str:
        check(value)
        return str(value)

    return parse


def duration(low_ns: int = 0, high_ns: int = 30 * 86_400 * 10**9) -> Parser:
    """Nanoseconds, from a text as `20ms`."""

    def parse(value: Any) -> int:
        if not isinstance(value, str):
            raise ValueError(f'must be a duration as "500us", "20ms" or "5s", is {_kind(value)}')
        number = units.parse_duration(value)
        if not low_ns <= number <= high_ns:
            raise ValueError(
                f"must be from {units.format_ns(low_ns)} to {units.format_ns(high_ns)}, is {value}"
            )
        return number

    return parse


def word(allowed: Iterable[str]) -> Parser:
    words = tuple(allowed)

    def parse(value: Any) -> str:
        if value not in words:
            raise ValueError(
                f"must be one of {', '.join(words)}, is {value!r}{nearest(str(value), words)}"
            )
        return str(value)

    return parse


def choice(kind: type[enum.Enum]) -> Parser:
    parse_word = word(str(member.value) for member in kind)
    return lambda value: kind(parse_word(value))


def operation(value: Any) -> Op:
    return Op[word(op.name for op in Op)(value)]


def errno_word(value: Any) -> str:
    name = text(value)
    if errno_value(name) is None:
        names = "an errno name as EINVAL or ENOTSUPP, or a status as NV_STATUS 0x56 or CUDA 801"
        raise ValueError(f"must be {names}, is {name!r}")
    return name


def list_of(parse_item: Parser, low: int = 0, high: int = 1000) -> Parser:
    """An array; a single value stands for an array of one."""

    def parse(value: Any) -> tuple[Any, ...]:
        items = value if isinstance(value, list) else [value]
        if not low <= len(items) <= high:
            raise ValueError(f"must have from {low} to {high} items, has {len(items)}")
        return tuple(parse_item(item) for item in items)

    return parse


def access(value: Any) -> int:
    """Access flags by name, or a number for bits that have none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int(integer(0, (1 << 32) - 1)(value))
    flags = 0
    for name in list_of(word(ACCESS_FLAGS))(value):
        flags |= ACCESS_FLAGS[name]
    return flags
