"""Patterns of paths as `pathlib` has them: * and ? do not cross a slash, ** is any depth."""

from __future__ import annotations

import re
from typing import Final

ANY_DEPTH: Final = "**"
CLASS: Final = re.compile(r"\[(!?\]?[^\]]*)\]")
WILD: Final = re.compile(r"[*?\[]")


def expression(parts: list[str]) -> str:
    """Return a regular expression for the paths that the parts of a pattern match."""
    found = ""
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == ANY_DEPTH:
            found += ".*" if last else "(?:[^/]+/)*"
        else:
            found += _part(part) + ("" if last else "/")
    return f"(?s:{found})"


def _part(pattern: str) -> str:
    """Return a regular expression for one part of a pattern."""
    found, at = "", 0
    while at < len(pattern):
        letter = pattern[at]
        inside = CLASS.match(pattern, at) if letter == "[" else None
        if inside:
            chosen = inside[1].replace("\\", "\\\\").replace("[", "\\[").replace("^", "\\^")
            found += f"(?!/)[^{chosen[1:]}]" if chosen[:1] == "!" else f"[{chosen}]"
            at = inside.end()
            continue
        found += {"*": "[^/]*", "?": "[^/]"}.get(letter) or re.escape(letter)
        at += 1
    return found
