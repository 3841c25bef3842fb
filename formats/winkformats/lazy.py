"""Attributes that are computed at their first use, without a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):
    """An attribute that a method computes at the first use.

    That of functools takes a lock of the class in Python 3.11: a process that is forked while
    another thread computes one would wait for ever. Here two threads may compute it twice.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, owner: None, kind: type) -> cached_property[T]: ...
    @overload
    def __get__(self, owner: object, kind: type | None = None) -> T: ...
    def __get__(self, owner: object | None, kind: type | None = None) -> cached_property[T] | T:
        if owner is None:
            return self
        value = owner.__dict__[self._name] = self._make(owner)
        return value
