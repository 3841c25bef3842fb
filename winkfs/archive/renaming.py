"""Renaming: other names for files that are unpacked, as `--strip-components` and `--transform` of
GNU tar give them.

Names are text, see `names.to_str`. Targets of symbolic links stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from winkfs.names import to_bytes, to_str

Rename = Callable[[bytes], bytes]
"""Returns another name for a file; b"": it is left out."""

CLASSES: Final = {
    "alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z",
    "space": r"\s", "blank": r" \t", "xdigit": "0-9A-Fa-f", "punct": r"!-/:-@\[-`{-~",
}  # fmt: skip
SWAPPED: Final = frozenset("(){}|+?")  # special in extended expressions, after a \ in basic ones
KNOWN: Final = "gix"
_SET: Final = re.compile(r"\[\^?\]?(?:\[:\w+:\]|[^\]])*\]")


def renaming(strip: int, transforms: Iterable[str]) -> Rename | None:
    """Return a function that renames: first the expressions in their order, then without its first
    `strip` parts. None if names stay as they are.

    raises  ValueError for what is no expression of sed
    """
    changes = [transform(text) for text in transforms]
    if not changes and not strip:
        return None

    def rename(name: bytes) -> bytes:
        if changes:
            text = to_str(name)
            for change in changes:
                text = change(text)
            name = to_bytes(text)
        return b"/".join(name.split(b"/")[strip:]) if strip else name

    return rename


def transform(text: str) -> Callable[[str], str]:
    r"""Return the substitution of an expression s/WHAT/BY/FLAGS.

    WHAT is a basic regular expression, with the flag x an extended one. In BY, & is what was found
    and \1 to \9 are its groups. Flags: g all places, i upper case as lower case, N from the N-th.
    raises  ValueError
    """
    if text[:1] != "s" or len(text) < 2 or text[1] in "\\\n":
        raise ValueError(f"{text!r} is no expression as s/WHAT/BY/ of sed")
    parts = _split(text[2:], text[1])
    if len(parts) != 3:
        raise ValueError(f"{text!r} has to have three {text[1]}, as s/WHAT/BY/")
    flags = re.fullmatch(rf"([{KNOWN}]*)(\d*)([{KNOWN}]*)", parts[2])
    if flags is None or flags[2].strip("0") == "" != flags[2]:
        raise ValueError(f"{text!r}: flags are g, i, x and a number, not {parts[2]!r}")
    letters, first = flags[1] + flags[3], int(flags[2] or 1)
    try:
        source = _pattern(parts[0], extended="x" in letters)
        pattern = re.compile(source, re.DOTALL | (re.IGNORECASE if "i" in letters else 0))
        by = _replacement(parts[1], pattern.groups)
    except (re.error, OverflowError) as error:
        raise ValueError(f"{text!r}: {parts[0]!r} is no regular expression: {error}") from None
    every = "g" in letters

    def changed(name: str) -> str:
        done = 0

        def replace(found: re.Match[str]) -> str:
            nonlocal done
            done += 1
            return by(found) if done == first or (every and done > first) else found[0]

        return pattern.sub(replace, name, 0 if every else first)

    return changed


def _split(text: str, mark: str) -> list[str]:
    """Cut at marks that have no backslash before them; \\ and a mark are the mark."""
    parts, at = [""], 0
    while at < len(text):
        if text[at] == "\\" and at + 1 < len(text):
            parts[-1] += mark if text[at + 1] == mark else text[at : at + 2]
            at += 2
            continue
        if text[at] == "[" and len(parts) == 1 and (end := _SET.match(text, at)):
            parts[-1] += end[0]  # a mark in a set is no mark
            at = end.end()
            continue
        if text[at] == mark and len(parts) < 3:
            parts.append("")
        else:
            parts[-1] += text[at]
        at += 1
    return parts


def _pattern(text: str, *, extended: bool) -> str:
    """Return the expression as Python's `re` writes it."""
    found, at, start = "", 0, True
    while at < len(text):
        char = text[at]
        if char == "[":
            part, at = _bracket(text, at)
            found, start = found + part, False
            continue
        escaped = char == "\\" and at + 1 < len(text)
        if escaped:
            at += 1
            char = text[at]
        if char in SWAPPED:
            special = extended != escaped
            found += char if special else "\\" + char
            start = special and char in "(|"
        elif escaped:
            found += _escaped(char)
            start = False
        elif char == "*" and start and not extended:  # nothing to repeat: a star
            found += r"\*"
            start = False
        elif char == "$":
            last = at + 1 == len(text) or extended or text.startswith(("\\)", "\\|"), at + 1)
            found += r"\Z" if last else r"\$"
            start = False
        elif char == "^":
            found += "^" if start or extended else r"\^"
        else:
            found += char if char in ".*" else re.escape(char)
            start = False
        at += 1
    return found


def _escaped(char: str) -> str:
    """Return what a character after a backslash means, if it is not among SWAPPED."""
    if char in "123456789":
        return f"(?:\\{char})"
    if char in "wWsSbB":
        return "\\" + char
    return {"n": "\n", "t": "\t"}.get(char, re.escape(char))


def _bracket(text: str, at: int) -> tuple[str, int]:
    """Return a set such as [^a-z[:digit:]], as Python writes it, and the end of it."""
    begin = at
    at += 1
    found = "["
    if text.startswith("^", at):
        found, at = "[^", at + 1
    first = True
    while at < len(text):
        if text[at] == "]" and not first:
            return found + "]", at + 1
        first = False
        if named := re.compile(r"\[:(\w+):\]").match(text, at):
            if named[1] not in CLASSES:
                raise re.error(f"no class [:{named[1]}:]")
            found, at = found + CLASSES[named[1]], named.end()
            continue
        found += text[at] if text[at] == "-" else re.escape(text[at])
        at += 1
    raise re.error(f"no ] after {text[begin:]}")


def _replacement(text: str, groups: int) -> Callable[[re.Match[str]], str]:
    """Return what takes the place of a match."""
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == "\\" and at + 1 < len(text):
            at += 1
            char = text[at]
            if char.isdigit():
                if int(char) > groups:
                    raise re.error(f"there is no group \\{char}")
                parts.append(int(char))
            elif char.isalpha() and char not in "nt":
                raise re.error(f"\\{char} is not known")
            else:
                parts.append({"n": "\n", "t": "\t"}.get(char, char))
        else:
            parts.append(0 if char == "&" else char)
        at += 1

    def by(found: re.Match[str]) -> str:
        return "".join([(found[part] or "") if isinstance(part, int) else part for part in parts])

    return by
