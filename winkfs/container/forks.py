"""Forks: what is open is told when it finds itself in a forked child."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """What cannot go on in a child as it is: other threads held its lock, and are no more."""

    def after_fork(self) -> None: ...


_told: weakref.WeakSet[Forked] = weakref.WeakSet()


def tell(handle: Forked) -> None:
    """Call `after_fork` of this one in each child, as long as anybody has it."""
    _told.add(handle)


def _after_fork() -> None:
    for handle in list(_told):
        handle.after_fork()


os.register_at_fork(after_in_child=_after_fork)
