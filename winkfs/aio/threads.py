"""Threads: calls of a handle that run in threads, awaited in any event loop.

A call that is cancelled before it has begun is not made. One that runs goes on to its end, since a
thread cannot be stopped, and its result is dropped. The handle is closed after all of them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

from winkfs.errors import Closed

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """Threads of one handle.

    what  the handle, for messages: "the reader"
    most  threads, at most
    """

    def __init__(self, what: str, most: int | None = None) -> None:
        self._what, self._most = what, most
        self._begin()

    def _begin(self) -> None:
        self._pool, self._pid = ThreadPoolExecutor(self._most, "winkfs-aio"), os.getpid()
        self._lock = threading.Lock()
        self._closing: Future[None] | None = None

    def submit(self, call: Callable[P, T], /, *given: P.args, **named: P.kwargs) -> Future[T]:
        """Begin a call, with the context variables of the caller. Raises Closed."""
        if self._pid != os.getpid():  # a forked child has none of the threads
            self._begin()
        with self._lock:
            if self._closing is not None:
                raise Closed(f"{self._what} is closed")
            return self._pool.submit(copy_context().run, partial(call, *given, **named))

    async def run(self, call: Callable[P, T], /, *given: P.args, **named: P.kwargs) -> T:
        """Make a call. Raises what it raises; Closed."""
        return await asyncio.wrap_future(self.submit(call, *given, **named))

    async def finish(self, call: Callable[P, T], /, *given: P.args, **named: P.kwargs) -> T:
        """Make a call as `run`; if this is cancelled, wait for a call that has begun."""
        future = self.submit(call, *given, **named)
        waiting = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not future.cancel():
                await _ended(waiting)
            raise

    async def close(self, last: Callable[[], None]) -> None:
        """Wait for all calls, then make the last one; if this is cancelled, that goes on.

        Idempotent: a second call waits for the first one, and raises what that raises.
        """
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            if (closing := self._closing) is None:
                closing = self._closing = Future()
                threading.Thread(target=self._end, args=(closing, last), name="winkfs-aio").start()
        await asyncio.shield(asyncio.wrap_future(closing))

    def release(self) -> None:
        """End the threads after their calls, without waiting for them."""
        self._pool.shutdown(wait=False)

    def _end(self, closing: Future[None], last: Callable[[], None]) -> None:
        try:
            self._pool.shutdown()
            last()
        except BaseException as error:
            closing.set_exception(error)
        else:
            closing.set_result(None)


async def _ended(waiting: asyncio.Future[Any]) -> None:
    """Wait for a future, also if this is cancelled meanwhile."""
    while not waiting.done():
        try:
            await asyncio.wait([waiting])
        except asyncio.CancelledError:
            continue
    if not waiting.cancelled():
        waiting.exception()  # it was looked at: the caller was cancelled


def undo(future: Future[T], last: Callable[[T], object]) -> None:
    """Cancel a call; if it has begun, pass its result to `last` when it ends."""

    def ended(done: Future[T]) -> None:
        if not done.cancelled() and done.exception() is None:
            last(done.result())

    if not future.cancel():
        future.add_done_callback(ended)
