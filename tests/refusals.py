"""Calls that must be refused."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def all_raise(error: Any, calls: Iterable[Callable[[], object]], match: str | None = None) -> None:
    """Fail unless each of the calls raises an error, whose text matches."""
    refuses(operator.call, calls, error, match)


def each_raises(*cases: tuple[Any, str | None, Callable[[], object]]) -> None:
    """Fail unless each call raises its own error, whose text matches."""
    for error, match, call in cases:
        with pytest.raises(error, match=match):
            call()


def refuses(
    call: Callable[[Any], object], values: Iterable[Any], error: Any, match: str | None = None
) -> None:
    """Fail unless a call raises an error for each of these values."""
    for value in values:
        with pytest.raises(error, match=match):
            call(value)
