"""What stands around the operations: the lock, error mapping, the read-only check, and syncs.

operation, change, waiting   decorators of the callbacks
Durability                   how what was written becomes durable while others are served
Callers                      who waits for an answer, and is let go if it is killed
"""

from __future__ import annotations

import errno
import functools
import logging
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from winkmount.handles import Hidden, Paths
from winkmount.source import Healing, Source, Steps, Stepwise, error_of, next_step, refuse

LOOK: Final = 0.05  # seconds between two looks at who was sent a signal and waits
MASKS: Final = ("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")  # the first two: pending signals
FATAL: Final = ~sum(
    1 << number - 1
    for number in (
        signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH,
        signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
    )
)  # fmt: skip # signals that end who has no handler for them

log = logging.getLogger("winkmount")

P = ParamSpec("P")
R = TypeVar("R")


class Guarded(Protocol):
    """What an object with operations has to have: see `Operations`."""

    source: Source
    mutex: threading.RLock
    changed: threading.Event
    version: int
    paths: Paths
    hidden: Hidden

    def carry_out(self) -> None: ...

    def note_change(self) -> None: ...


S = TypeVar("S", bound=Guarded)
Operation = Callable[Concatenate[S, P], R]


def operation(method: Operation[S, P, R], *, changes: bool = False) -> Operation[S, P, R]:
    """A callback of libfuse: runs under the lock and raises nothing but an OSError with an errno.

    If the Source has forgotten the id of a directory, or recovers from damage, the call is made
    once more; after damage not one that changes something, since it may be half done.

    changes     see `change`
    """

    renames = method.__name__ == "rename"  # may tell what becomes of a hidden file

    @functools.wraps(method)
    def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with self.mutex:
                if self.hidden.waiting is not None and not renames:
                    self.carry_out()
                try:
                    if changes:
                        if not self.source.writable or self.source.failed:
                            raise refuse(errno.EROFS)
                        self.note_change()
                    return method(self, *args, **kwargs)
                except OSError as error:
                    if error.errno != errno.ESTALE or not self.paths.look_again():
                        raise
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


def change(method: Operation[S, P, R]) -> Operation[S, P, R]:
    """An operation that changes something: refused on a read-only Source, noted for the sync."""
    return operation(method, changes=True)


def waiting(method: Operation[S, P, R]) -> Operation[S, P, R]:
    """A callback of libfuse that waits for something and takes the lock itself. Raises nothing but
    an OSError with an errno."""

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


# --- syncs ---


class Durability:
    """The syncs of one mount, one at a time. From any thread, without the lock.

    mutex    the lock of the mount; it is not held while the disk is waited for
    changed  set: there is something that the next sync has to make durable
    failed   why the last sync did not make everything durable, "": it did
    """

    def __init__(self, source: Source, mutex: AbstractContextManager[bool]) -> None:
        self._source, self._mutex = source, mutex
        self.changed = threading.Event()
        self.failed = ""
        self._one_sync = threading.Lock()  # taken before the mutex

    def sync(self, begin: Callable[[], None], id: int | None) -> None:
        """Make a file durable, None: everything. `begin` is called under the lock. Raises OSError,
        and what the Source raises."""
        try:
            with self._one_sync:
                with self._mutex:
                    begin()
                    self.check_failed()
                    steps = self._steps(id)
                    wait = next(steps, None)
                while wait is not None:
                    error = error_of(wait)
                    with self._mutex:
                        wait = next_step(steps, error)
        except BaseException as error:
            self._note_failure(error)
            raise
        self.failed = ""

    def _steps(self, id: int | None) -> Steps:
        if isinstance(self._source, Stepwise):
            yield from self._source.syncing(id)
        elif id is None:
            self._source.sync()
        else:
            self._source.fsync(id)

    def check_failed(self) -> None:
        """Raise EIO where nothing can be made durable any more."""
        if self._source.failed:
            raise OSError(errno.EIO, self._source.failed)

    def _note_failure(self, error: BaseException) -> None:
        what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if what != self.failed:  # once, not each time that it is tried again
            self.failed = what
            log.error("what was written is not on the disk: %s", what)


# --- who waits ---


class Callers:
    """Who waits for an answer that takes long: those that are killed meanwhile are let go.

    The kernel makes a process wait for an answer once its request was read, also one that was
    killed. It tells of each signal that comes to who waits, of the first alone, and not which one.
    A signal that has a handler ends no call, here as in other file systems.

    waiting  unique number of a request -> the thread that asked; whoever pops it, answers
    reply    says to the kernel: unique, errno, data
    """

    def __init__(self, reply: Callable[[int, int, bytes], None]) -> None:
        self._reply = reply
        self.waiting: dict[int, int] = {}
        self._signalled: set[int] = set()
        self._lock = threading.Lock()  # of `_signalled`, and of whether somebody looks

    def interrupt(self, unique: int) -> None:
        """A signal came to the caller of a request."""
        if unique not in self.waiting:
            return
        with self._lock:
            first = not self._signalled
            self._signalled.add(unique)
        if first:
            threading.Thread(target=self._look, name="winkmount-signals", daemon=True).start()

    def _look(self) -> None:
        """Let those go that were killed, as long as anybody waits who was sent a signal."""
        while True:
            for unique in list(self._signalled):
                killed = is_killed(self.waiting.get(unique, 0))
                if killed and self.waiting.pop(unique, None) is not None:
                    with suppress(OSError):
                        self._reply(unique, errno.EINTR, b"")
            with self._lock:
                self._signalled &= self.waiting.keys()
                if not self._signalled:
                    return
            time.sleep(LOOK)


def is_killed(thread: int) -> bool:
    """Whether a signal has come that ends the thread. 0: one that is not known here."""
    if not thread:
        return False
    try:
        lines = Path(f"/proc/{thread}/status").read_text().splitlines()
    except OSError:
        return True
    masks = {name: int(value, 16) for name, _, value in map(_partition, lines) if name in MASKS}
    pending, shared, *handled = (masks.get(name, 0) for name in MASKS)
    for mask in handled:
        pending, shared = pending & ~mask, shared & ~mask
    return (pending | shared) & FATAL != 0


def _partition(line: str) -> tuple[str, str, str]:
    return line.partition(":\t")
