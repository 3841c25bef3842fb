"""Access: the life of open handles. Light: a queue imports it.

watch_forks   registers a handle to be called in forked children
close_at_end  registers a writer to be synced at the normal end of the process
keep_open     does so, and keeps the writer alive without any reference to it
Access        the state of a handle: open, writable, failed
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final, Protocol

from winkfs.errors import Closed, ReadOnly, Refusal

PATIENCE: Final = 5.0  # seconds that the end of the process waits for a thread inside a call
FORKED: Final = "belongs to the parent process: open it anew after a fork"

# --- forks ---


class Forked(Protocol):
    """A handle that a forked child cannot use as it is: another thread may have held its lock."""

    def after_fork(self) -> None: ...


_watching: weakref.WeakSet[Forked] = weakref.WeakSet()


def watch_forks(handle: Forked) -> None:
    """Register a handle: each forked child calls its `after_fork`, while the handle lives."""
    _watching.add(handle)


def _after_fork() -> None:
    _writers.clear()  # they are the parent's
    _kept.clear()
    with ExitStack() as stack:  # each is called, even if another one fails
        for handle in list(_watching):
            stack.callback(handle.after_fork)


os.register_at_fork(after_in_child=_after_fork)


# --- the end of the process ---


class Writer(Protocol):
    """A handle that writes. `closed`: true once it is closed; `abort` and `close` do nothing then.

    drops_on_exception  whether an exception that ends its `with` block drops unsynced changes
    """

    @property
    def closed(self) -> object: ...

    @property
    def drops_on_exception(self) -> bool: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class Lock(Protocol):
    """The reentrant lock that a call of a handle takes."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...

    def release(self) -> None: ...


_writers: weakref.WeakKeyDictionary[Writer, tuple[str, Lock]] = weakref.WeakKeyDictionary()
_ended_child: BaseException | None = None
_hooked = 0  # the process whose end calls `_close_writers`


def close_at_end(writer: Writer, path: str, lock: Lock) -> None:
    """Register a writer, as long as it lives: at the normal end of this process, also by sys.exit,
    it is synced and closed if it is still open, with one line on stderr.

    An uncaught exception that ends the process acts as if it had left a `with` block. Forked
    children do not touch the writer; os._exit and signals that kill call nothing.

    path  for the line
    lock  waited for PATIENCE seconds at most, as another thread may never release it
    """
    global _hooked
    if _hooked != os.getpid():
        weakref.finalize(writer, bool)  # the hook of finalizers is registered first: it runs last
        atexit.register(_close_writers, last=True)
        child = sys.modules.get("multiprocessing.process")
        if child is not None and child.parent_process() is not None:  # it may skip atexit
            sys.modules["multiprocessing.util"].Finalize(None, _close_writers, exitpriority=0)
            _note_what_ends_a_child()
        _hooked = os.getpid()
    _writers[writer] = path, lock


def _note_what_ends_a_child() -> None:
    """Keep the exception that ends a child of multiprocessing, as `sys.last_value` is kept: from
    Python 3.13 on it has been printed, and is gone, when the exit functions run."""
    import traceback

    real = traceback.print_exc

    def print_exc(*given: Any, **named: Any) -> None:
        global _ended_child
        if sys._getframe(1).f_code.co_name == "_bootstrap":
            _ended_child = sys.exc_info()[1]
        real(*given, **named)

    traceback.print_exc = print_exc


def _close_writers(*, last: bool = False) -> None:
    """Close the writers that are open, in the order in which they were opened.

    last    keep the locks: all other threads are daemons, and a thread that went on would print
            that the handle is closed, which can abort an interpreter that ends
    """
    raised = sys.exc_info()[1] or _ended_child or getattr(sys, "last_value", None)
    failed = raised is not None and not isinstance(raised, SystemExit) and not hasattr(sys, "ps1")
    for writer, (path, lock) in list(_writers.items()):
        if writer.closed:
            continue
        try:
            done = _close_writer(writer, lock, failed=failed, last=last)
        except BaseException as error:
            done = f"{error}: what was not synced is lost"
        with suppress(Exception):  # stderr may be closed
            line = f"{path}: still open for writing at the end of the process: {done}"
            print(f"winkfs: {line}", file=sys.stderr, flush=True)


def _close_writer(writer: Writer, lock: Lock, *, failed: bool, last: bool) -> str:
    """Close a writer -> a description of what was done. Raises as `close`."""
    if not lock.acquire(timeout=PATIENCE):
        return "another thread is in the midst of a call: what was not synced is lost"
    try:
        if failed and writer.drops_on_exception:
            writer.abort()
            writer.close()
            return "an exception ended it: what was not synced is dropped"
        writer.close()
        return "synced and closed"
    finally:
        if not last:
            lock.release()


_kept: Final[set[Writer]] = set()  # strong references: unsynced changes are in memory


def keep_open(writer: Writer, path: str, lock: Lock) -> None:
    """Register a writer as `close_at_end` does, and keep it alive until `leave` is called."""
    close_at_end(writer, path, _Passing(lock))
    _kept.add(writer)


def leave(writer: Writer) -> None:
    """Unregister a writer that is closed. Idempotent."""
    _kept.discard(writer)


class _Passing:
    """A lock that is waited for and released at once: closing a handle may wait for a thread that
    needs the lock."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            self._lock.release()
        return taken

    def release(self) -> None:
        """Do nothing: the lock was released at once."""


class Access:
    """The state of a handle: open, writable, failed.

    ready   it may be written; a hot path tests this before it calls `check`
    closed  it cannot be used any more
    forked  it cannot be used because it belongs to the parent process
    failed  why nothing can be written any more, "": no write has failed
    """

    def __init__(self, path: str, what: str, read_only: str, *, writable: bool) -> None:
        """Begin as closed. `what`: "the store", for messages; `read_only`: message of ReadOnly."""
        self.path, self.what, self.writable, self._read_only = path, what, writable, read_only
        self.ready = self.closed = self.forked = False
        self.failed = ""
        self._thread: threading.Thread | None = None
        self._stop: threading.Event | None = None

    def check(self) -> None:
        """Raise Closed; ReadOnly; Refusal after a failed write."""
        if self.ready:
            return
        self.check_writable()
        if self.failed:
            what = f"nothing can be written any more: {self.failed}; open it anew"
            raise Refusal(what, self.path)

    def check_writable(self) -> None:
        """Raise Closed; ReadOnly."""
        self.check_open()
        if not self.writable:
            raise ReadOnly(self._read_only, self.path)

    def check_open(self) -> None:
        """Raise Closed."""
        if self.closed:
            raise Closed(f"{self.what} {FORKED if self.forked else 'is closed'}", self.path)

    @contextmanager
    def final(self) -> Iterator[None]:
        """Make an OSError of the block final: it is not known which bytes are on the disk."""
        try:
            yield
        except OSError as error:
            self.failed, self.ready = self.failed or str(error), False
            raise

    def repeat(self, call: Callable[[], object], interval: float, name: str) -> None:
        """Call a function each `interval` seconds, in a thread, until `end`, or until it returns
        true."""

        stop = self._stop = self._stop or threading.Event()

        def run() -> None:
            while not stop.wait(interval):
                with suppress(OSError):  # the next call of the handle raises it
                    if call():
                        return

        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop the thread of `repeat`, and wait for it."""
        if self._stop is not None and self._thread is not None:
            self._stop.set()
            self._thread.join()

    def close(self, *, forked: bool = False) -> None:
        """Mark it as closed. `forked`: because this is a forked child."""
        self.closed, self.ready, self.forked = True, False, forked

    def picture(self, handle: object) -> str:
        """Return the `repr` of a handle."""
        kind = type(handle).__name__
        if self.closed:
            return f"<closed {kind} {self.path!r}>"
        return f"{kind}({self.path!r}, {'a' if self.writable else 'r'!r})"
