"""Closing: what is closed where a `with` block ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Open until `close`, which the end of a `with` block calls, also by an exception."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close what is open. Idempotent."""
