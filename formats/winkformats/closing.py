"""Closing: base of what the end of a `with` block closes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Base of objects that are open until `close`, which the end of a `with` block calls."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close it. Idempotent."""
