"""What stands around every operation: the lock, the errors, the refusal of changes."""

from __future__ import annotations

import errno
import functools
import logging
import os
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from winkmount.awake import AwakeLock
from winkmount.hidden import Hidden
from winkmount.source import Healing, Source

log = logging.getLogger("winkmount")

P = ParamSpec("P")
R = TypeVar("R")


class Guarded(Protocol):
    """What an object with operations has to have."""

    source: Source
    mutex: threading.RLock | AwakeLock
    changed: threading.Event
    version: int
    dirs: dict[str, int]
    hidden: Hidden

    def carry_out(self) -> None: ...


S = TypeVar("S", bound=Guarded)
Operation = Callable[Concatenate[S, P], R]


def refuse(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def operation(method: Operation[S, P, R], *, changes: bool = False) -> Operation[S, P, R]:
    """A callback of libfuse: one at a time, and nothing but an OSError with an errno leaves it.

    The Source may have forgotten the id of a directory, or got over damage: then a call is made
    once more, save in the second case one that changes something and may be half done.
    """

    renames = method.__name__ == "rename"  # may tell what becomes of a hidden file

    @functools.wraps(method)
    def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with self.mutex:
                if self.hidden.waiting is not None and not renames:
                    self.carry_out()
                try:
                    return method(self, *args, **kwargs)
                except OSError as error:
                    if error.errno != errno.ESTALE or not self.dirs:
                        raise
                    self.dirs.clear()
                except Exception as error:
                    healing = isinstance(self.source, Healing) and self.source.heal(error)
                    if changes or not healing:
                        raise
                return method(self, *args, **kwargs)
        except OSError as error:
            if error.errno:
                raise
            log.exception("%s", method.__name__)
        except Exception as error:
            log.error("%s %r: %s", method.__name__, args[:1], error)
            log.debug("%s", method.__name__, exc_info=True)
        raise refuse(errno.EIO)

    return guarded


def waiting(method: Operation[S, P, R]) -> Operation[S, P, R]:
    """A callback of libfuse that takes the lock itself, for it waits for something. Nothing but an
    OSError with an errno leaves it."""

    @functools.wraps(method)
    def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except OSError as error:
            if error.errno:
                raise
            log.exception("%s", method.__name__)
        except Exception:
            log.exception("%s", method.__name__)
        raise refuse(errno.EIO)

    return guarded


def change(method: Operation[S, P, R]) -> Operation[S, P, R]:
    """An operation that changes something: refused on a read-only Source, noted for the sync."""

    @functools.wraps(method)
    def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if not self.source.writable or self.source.failed:
            raise refuse(errno.EROFS)
        if not self.changed.is_set():  # 2 us less
            self.changed.set()
        self.version += 1
        return method(self, *args, **kwargs)

    return operation(guarded, changes=True)
