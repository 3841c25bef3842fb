"""Wrong arguments for every public method of a handle, one at a time and several together.

    for call in one_wrong(handle, good, skip): attempt(call)

A call either works or raises one clear error: ValueError, TypeError or a WinkError (KeyError of a
mapping's [] is one, too). What it returns is used up to a few items, for generators run late.
"""

from __future__ import annotations

import inspect
import io
import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

from winkfs import WinkError

SECONDS: Final = 20.0  # that a call may take: a hang, on a busy machine
ITEMS: Final = 20  # of what a call returns

_parameters: dict[tuple[type, str], dict[str, inspect.Parameter]] = {}


class Hostile:
    """Whose every conversion fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __len__(self) -> int:
        return -1

    def __hash__(self) -> int:
        raise TypeError("no hash")


VALUES: Final[list[Any]] = [
    None, True, False, 0, 1, -1, 255, 256, 1 << 31, (1 << 63) - 1, 1 << 63, -(1 << 63) - 1, 1 << 64,
    10**5000, 0.5, 1.0, -0.0, 1e30, math.nan, math.inf, -math.inf, Decimal("1.5"), 2j,
    "", "x", "a\0b", "\udc80", "\ud800", "/", "..", "x" * 70_000, "1_000", "*[", "a = 1 and",
    b"", b"x", b"a\0b", b"\xff", b"x" * 70_000, bytearray(b"1"), memoryview(b"abcd")[::2],
    memoryview(np.zeros(4, np.int64)), np.int64(5), np.float64(1.5), np.arange(3), np.bool_(True),
    [], (), {}, set(), [1], [None], [("a",)], [("a", b"", 1, 2, 3)], [("a", 5)], [(5, b"a")],
    [("f", b"x", math.nan)], [("f", b"x", None, {"no": 1})], [("f", b"x", 1e300)], [["f", b"x"]],
    {"a": 1}, {1: 2}, {"": "int64"}, {b"user.a": 5}, {b"": b"x"}, {b"a" * 70_000: b""},
    {"n": "int64"}, range(3), Path("x"), object(), Hostile(), type, len, ..., datetime(1, 1, 1),
    io.BytesIO(b"x"), io.StringIO("x"), io.BytesIO, iter([]), iter([1]),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    given: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.method}({', '.join(f'{name}={_text(v)}' for name, v in self.given.items())})"


def _text(value: Any) -> str:
    try:
        return repr(value)[:80]
    except Exception:
        return f"a {type(value).__name__}"


def methods(handle: Any, skip: Sequence[str]) -> list[str]:
    """The public methods, and the operators of a mapping."""
    names = [name for name in dir(type(handle)) if not name.startswith("_")]
    names += [
        n for n in ("__getitem__", "__contains__", "__len__", "__iter__") if hasattr(handle, n)
    ]
    return [n for n in names if n not in skip and callable(getattr(type(handle), n, None))]


def parameters(handle: Any, method: str) -> dict[str, inspect.Parameter]:
    key = type(handle), method
    if key not in _parameters:
        found = inspect.signature(getattr(handle, method)).parameters
        _parameters[key] = {
            name: p for name, p in found.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        }
    return _parameters[key]


def base_call(handle: Any, method: str, good: Mapping[str, Any]) -> dict[str, Any]:
    """Good values of the parameters that must be given. A callable makes a new value."""
    return {
        name: good[name]() if callable(good[name]) else good[name]
        for name, p in parameters(handle, method).items()
        if p.default is p.empty
    }


def one_wrong(
    handle: Any, good: Mapping[str, Any], skip: Sequence[str], step: int = 1
) -> Iterator[Call]:
    """Each parameter of each method with each value, the others as they should be; or with one
    value in `step`, others than the parameter before."""
    number = 0
    for method in methods(handle, skip):
        yield Call(method, base_call(handle, method, good))
        for name in parameters(handle, method):
            number += 1
            for value in VALUES[number % step :: step]:
                yield Call(method, base_call(handle, method, good) | {name: value})


def some_wrong(
    handle: Any, good: Mapping[str, Any], skip: Sequence[str]
) -> st.SearchStrategy[Call]:
    """A method with any of its parameters, each with a good or another value."""
    wrong = (
        st.integers(0, len(VALUES) - 1).map(VALUES.__getitem__)
        | st.integers()
        | st.floats()
        | st.text()
        | st.binary()
    )

    @st.composite
    def calls(draw: st.DrawFn) -> Call:
        method = draw(st.sampled_from(methods(handle, skip)))
        given = base_call(handle, method, good)
        names = list(parameters(handle, method))
        for name in draw(st.lists(st.sampled_from(names), unique=True)) if names else []:
            given[name] = draw(wrong)
        return Call(method, given)

    return calls()


def attempt(handle: Any, call: Call) -> Exception | None:
    """Make a call -> the clear error that it has raised. Fails on any other, and on a hang."""
    began, positional = time.monotonic(), {}
    given = dict(call.given)
    for name, p in parameters(handle, call.method).items():
        if p.kind is p.POSITIONAL_ONLY and name in given:
            positional[name] = given.pop(name)
    try:
        found = getattr(handle, call.method)(*positional.values(), **given)
        if isinstance(found, Iterator):
            list(itertools.islice(found, ITEMS))
    except (ValueError, TypeError, WinkError, DeprecationWarning) as error:
        found = error  # numpy 2.0 warns of its bool as a number, later ones raise TypeError
    except Exception as error:
        raise AssertionError(f"{call}: {type(error).__name__}: {error}") from error
    assert time.monotonic() - began < SECONDS, call
    if isinstance(found, Exception):
        assert str(found).strip() and "\n" not in str(found).strip(), call
        return found
    if isinstance(found, io.IOBase):
        found.close()
    return None
