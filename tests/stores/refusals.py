"""Calls that must be refused."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def all_raise(error: Any, calls: Iterable[Callable[[], object]], match: str | None = None) -> None:
    """Fail unless each of the calls raises an error, whose text matches."""
    refuses(operator.call, calls, error, match)


def refuses(
    call: Callable[[Any], object], values: Iterable[Any], error: Any, match: str | None = None
) -> None:
    """Fail unless a call raises an error for each of these values."""
    for value in values:
        with pytest.raises(error, match=match):
            call(value)
