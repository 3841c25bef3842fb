"""Patterns: what a search looks for, and the texts that each line has which a pattern matches.

A pattern is a regular expression of Python over bytes, matched with each line by itself. Of most
patterns texts are known that each match has: these are searched, and only lines that have them are
matched.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

import numpy as np

from winkformats import native
from winkformats.arrays import Int64
from winkfs.names import to_str

MOST_LITERALS: Final = 8  # that are searched, or that a line has to have
LINE: Final = b"\n"
Spans = Iterator[tuple[int, int]]


class Pattern:
    """One pattern.

    literals  each line that it matches has all texts of one of them, the longest is the first;
              empty: not known. In lower case if `folded`
    sure      each line that has them matches
    raises    ValueError for one that is not valid
    """

    def __init__(self, text: bytes, *, fixed: bool, ignore_case: bool, word: bool) -> None:
        source = re.escape(text) if fixed else text
        flags = re.IGNORECASE if ignore_case else 0
        plain = _compiled(source, flags)
        self.folded = bool(plain.flags & re.IGNORECASE)
        parsed = _parsed(source, flags)
        exact = _exact(parsed)
        literals = [(text,) for text in exact] if exact and all(exact) else _literals(parsed)
        if self.folded:
            literals = [tuple(text.lower() for text in texts) for texts in literals]
        known = not any(LINE in text for texts in literals for text in texts)
        self.literals = list(dict.fromkeys(literals)) if known else []
        self.sure = not word and bool(exact) and bool(self.literals)
        self.line = _compiled(b"(?<!\\w)(?:%b)(?!\\w)" % source, flags) if word else plain
        # Finds the first line of several that may match; None: any may.
        self._finder = _compiled(source, flags | re.MULTILINE) if _is_local(parsed) else None

    def lines(self, content: bytes, folded: bytes) -> Spans:
        """Yield start and end of the lines that match. `folded`: the content in lower case."""
        at, size, text = 0, len(content), folded if self.folded else content
        literal = self.literals[0][0] if len(self.literals) == 1 else b""
        while at < size:
            if literal:
                hit = text.find(literal, at)
            elif self._finder is not None:
                found = self._finder.search(content, at)
                hit = -1 if found is None else found.start()
            else:
                hit = at
            if hit < 0:
                return
            start = content.rfind(LINE, at, hit) + 1 or at
            if start >= size:
                return
            end = content.find(LINE, hit)
            end = size if end < 0 else end
            if self.sure or self.line.search(content[start:end]):
                yield start, end
            at = end + 1

    def lines_in(self, data: memoryview) -> Int64:
        """Return start and end of the lines that match, int64[n, 2], by the compiled path.

        data  contents, each with a line feed at its end; literals are known
        """
        assert native.code is not None
        found = [native.code.lines(data, texts, self.folded) for texts in self.literals]
        lines = united([np.frombuffer(each, np.int64).reshape(-1, 2) for each in found])
        if self.sure:
            return lines
        match = self.line.search
        return lines[[match(data[start:end]) is not None for start, end in lines.tolist()]]


def united(found: list[Int64]) -> Int64:
    """Return the lines of several searches, each once, in order."""
    if len(found) == 1:
        return found[0]
    lines = np.concatenate(found)
    once: Int64 = lines[np.unique(lines[:, 0], return_index=True)[1]]
    return once


def _compiled(source: bytes, flags: int) -> re.Pattern[bytes]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # of [[:digit:]]
            return re.compile(source, flags)
    except re.error as error:
        raise ValueError(f"pattern {to_str(source)}: {error}") from None
    except FutureWarning:
        what = "[[:digit:]] and the like are not known: write [0-9]"
        raise ValueError(f"pattern {to_str(source)}: {what}") from None
    except (RecursionError, OverflowError):
        raise ValueError(f"pattern {to_str(source[:80])}: it is too large") from None


def _parsed(source: bytes, flags: int) -> Any:
    """Return a pattern as the `re` module parses it; empty if this version has no such parser."""
    try:
        return import_module("re._parser").parse(source, flags)
    except ImportError:
        return [("ASSERT", None)]


def _ops(parsed: Any) -> Iterator[tuple[str, Any]]:
    """Yield the operations of a parsed pattern and of all its parts."""
    for op, argument in parsed:
        yield str(op), argument
        for part in _parts(argument):
            yield from _ops(part)


def _parts(argument: Any) -> Iterator[Any]:
    if hasattr(argument, "getwidth"):
        yield argument
    elif isinstance(argument, list | tuple):
        for each in argument:
            yield from _parts(each)


def _exact(parsed: Any) -> list[bytes]:
    """Return the few texts that a pattern matches, no others; empty: there are others."""
    found = [b""]
    for op, argument in parsed:
        kind, ends = str(op), list[bytes]()
        if kind == "LITERAL":
            ends = [bytes([argument])]
        elif kind == "IN" and all(str(each) == "LITERAL" for each, _ in argument):
            ends = [bytes([byte]) for _, byte in argument]
        elif kind == "SUBPATTERN" and not argument[1] | argument[2]:
            ends = _exact(argument[3])
        elif kind == "BRANCH":
            parts = [_exact(part) for part in argument[1]]
            ends = [text for part in parts for text in part] if all(parts) else []
        if not 0 < len(found) * len(ends) <= MOST_LITERALS:
            return []
        found = [text + end for text in found for end in ends]
    return found


def _literals(parsed: Any) -> list[tuple[bytes, ...]]:
    """Return texts, of which each match has all of one tuple, the longest first; empty: unknown."""
    choices, texts, run = list[list[tuple[bytes, ...]]](), set[bytes](), bytearray()
    for op, argument in parsed:
        kind, inner = str(op), list[tuple[bytes, ...]]()
        if kind == "LITERAL":
            run.append(argument)
            continue
        texts.add(bytes(run))
        run.clear()
        if kind == "SUBPATTERN" and not argument[1] & re.IGNORECASE:
            inner = _literals(argument[3])
        elif kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and argument[0]:
            inner = _literals(argument[2])
        elif kind == "BRANCH":
            parts = [_literals(part) for part in argument[1]]
            inner = [each for part in parts for each in part] if all(parts) else []
        if len(inner) == 1:
            texts.update(inner[0])
        elif 0 < len(inner) <= MOST_LITERALS:
            choices.append(inner)
    texts.add(bytes(run))
    if every := sorted(texts - {b""}, key=lambda text: (-len(text), text)):
        choices.append([tuple(every[:MOST_LITERALS])])
    return max(choices, key=lambda each: (min(len(of[0]) for of in each), -len(each)), default=[])


def _is_local(parsed: Any) -> bool:
    """Return whether what a pattern matches in a line, it may match among other lines as well."""
    odd = ("ASSERT", "ASSERT_NOT", "ATOMIC_GROUP", "POSSESSIVE_REPEAT")
    ends = ("AT_BEGINNING_STRING", "AT_END_STRING")
    return not any(op in odd or str(argument) in ends for op, argument in _ops(parsed))
