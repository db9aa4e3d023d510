"""Takes out of an Inventory what names a machine, consistently: one input, one token.

Tokens count up in the order of appearance (`mac-1`, `guid-2`), because a hash of so short a value
could be found by trying. Known names are replaced wherever they occur, then everything that looks
like a UUID, MAC, GUID, GID or IP address. Nothing else changes: a redacted inventory answers like
the original.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gdrstorm.model.inventory import Inventory

# Longest form first: a GID contains GUIDs, a UUID contains hex groups.
_PATTERNS = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("uuid", r"(?:GPU-|MIG-)?\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"),
        ("gid", r"\b(?:[0-9a-f]{4}:){7}[0-9a-f]{4}\b"),
        ("guid", r"\b(?:[0-9a-f]{4}:){3}[0-9a-f]{4}\b"),
        ("mac", r"\b[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5,7}\b"),
        ("mac", r"(?<=enx)[0-9a-f]{12}\b"),
        ("ip", r"\b(?:\d{1,3}\.){3}\d{1,3}(?=[:/\s,]|$)"),
    )
)
# Versions look like addresses; these fields hold versions and paths, never addresses.
_KEEP = {"version", "release", "path", "detail", "firmware", "srcversion", "vbios", "gsp_firmware"}
_MIN_NAME = 3


class _Tokens:
    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def token(self, kind: str, value: str) -> str:
        # One MAC is written b8:3f:... and, inside an interface name, b83f...
        key = re.sub(r"[:-]", "", value.lower()) if kind == "mac" else value.lower()
        if key not in self._known:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._known[key] = f"{kind}-{self._counts[kind]}"
        return self._known[key]


def _find_names(inventory: Inventory) -> list[tuple[str, str]]:
    """(kind, text) of everything the inventory itself calls a name or a serial number."""
    names = [("host", inventory.hostname), ("host", inventory.hostname.split(".", 1)[0])]
    names.append(("serial", inventory.machine.serial.get("")))
    names += [("serial", gpu.serial.get("")) for gpu in inventory.gpus]
    generic = {"", "unknown", "localhost", "none", "to be filled by o.e.m.", "not specified"}
    usable = [(k, n) for k, n in names if len(n) >= _MIN_NAME and n.lower() not in generic]
    return sorted(usable, key=lambda pair: -len(pair[1]))


def _redact_text(text: str, tokens: _Tokens, names: list[tuple[str, str]], *, keep: bool) -> str:
    for kind, name in names:
        pattern = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])", re.IGNORECASE)
        if pattern.search(text):
            text = pattern.sub(tokens.token(kind, name), text)
    for kind, pattern in _PATTERNS:
        if kind == "ip" and keep:
            continue
        text = pattern.sub(lambda m, kind=kind: tokens.token(kind, m[0]), text)  # type: ignore[misc]
    return text


def _walk(value: Any, tokens: _Tokens, names: list[tuple[str, str]], field: str) -> Any:
    if isinstance(value, str):
        return _redact_text(value, tokens, names, keep=field in _KEEP)
    if isinstance(value, dict):
        # The value of a Probe belongs to the field that holds the Probe.
        return {k: _walk(v, tokens, names, field if k == "value" else k) for k, v in value.items()}
    if isinstance(value, list):
        return [_walk(v, tokens, names, field) for v in value]
    return value


def redact_inventory(inventory: Inventory) -> Inventory:
    """The same inventory without names; redacting twice changes nothing more."""
    plain = msgspec.json.decode(msgspec.json.encode(inventory))
    names = [] if inventory.is_redacted else _find_names(inventory)
    redacted = _walk(plain, _Tokens(), names, "")
    redacted["is_redacted"] = True
    return msgspec.convert(redacted, Inventory)
