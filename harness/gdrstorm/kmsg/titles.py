"""Title normalisation: one bug has one title, across addresses, PIDs, CPUs, devices and machines. Pure.

The bdf is not kept: an event carries its device beside the title, and the same bug on the next card is the
same bug. Codes (Xid numbers, syndromes, fault reasons, status words of up to four hex digits) are kept.
"""

from __future__ import annotations

import re

_DIGIT = re.compile(r"\d")

# Each step: what a text must have for it (so that most cost little), what to replace, and by what.
_Step = tuple[str, re.Pattern[str], str]
_STEPS: tuple[_Step, ...] = tuple(
    (needed, re.compile(pattern), replacement)
    for needed, pattern, replacement in (
        # mlx5 prints function:line:(pid N): the line moves with every version
        (":(pid ", r"\b([a-z_]\w+):\d+:\(pid \d+\)", r"\1"),
        ("-", r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b", "<uuid>"),
        (":", r"\b(?:PCI:)?(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\b", "<bdf>"),
        ("PCI:", r"\bPCI:[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\b", "<bdf>"),
        # symbol+0x12/0x345 is the symbol: offsets move with every build
        ("+0x", r"(\w)\+0x[0-9a-f]+(?:/0x[0-9a-f]+)?", r"\1"),
        (".", r"\b(\w+)\.(?:isra|constprop|part|cold|llvm)(?:\.\d+)*\b", r"\1"),
        ("0x", r"\b0x[0-9a-fA-F_]{5,}\b", "<addr>"),
        ("", r"\b(?=[0-9a-f]*[0-9])(?:[0-9a-f]{16}|[0-9a-f]{12}|[0-9a-f]{8})\b", "<addr>"),
        ("", r"(?i)\b(pid|tgid|tid|uid)([ =:]{1,2})\d+", r"\1\2<n>"),
        ("", r"(?i)\b(cpu)([ #:]{0,2})\d+", r"\1\2<n>"),
        (":", r"(?<=\w):\d+(?= blocked|\]| is trying)", ":<n>"),
        ("", r"\b(mlx5|rxe|siw|irdma|bnxt_re|hfi1|efa)_?\d+\b", r"\1_<n>"),
        ("GPU", r"\bGPU ?\d+\b", "GPU<n>"),
        ("", r"\b\d+(?:\.\d+)?(?= ?(?:s|ms|us|ns|seconds|msecs|jiffies|bytes|kB)\b)", "<n>"),
        ("", r"(?<![\w.<x-])\d{5,}\b", "<n>"),
    )
)
# Most titles have no digit at all: three steps can still change those, by hexadecimal letters or a suffix.
_STEPS_WITHOUT_DIGITS = tuple(step for step in _STEPS if step[0] in {"-", "PCI:", "."})


def normalise_title(text: str) -> str:
    """Replace what differs from one occurrence to the next; applying it twice changes nothing."""
    for needed, pattern, replacement in _STEPS if _DIGIT.search(text) else _STEPS_WITHOUT_DIGITS:
        if needed in text:
            text = pattern.sub(replacement, text)
    return " ".join(text.split())[:200]
