"""AsyncQueue: a queue for asyncio. Calls that may wait for the disk run in threads."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Self, TypeVar

from winkformats.ledgerq.entry import Message
from winkfs.stores.ledgerq.cursor import MAIN
from winkfs.stores.ledgerq.queue import POLL, Put, Queue
from winkfs.units import as_timeout

Found = TypeVar("Found", list[Message], Message | None)


class AsyncQueue:
    """The calls of `Queue` that change it, to be awaited; `queue` has the others.

    async with AsyncQueue("jobs", shared=True) as jobs:
        await jobs.push(b"payload")
        async for message in jobs.stream(timeout=5):
            ...

    A cancelled `pop`, `pop_many` or `stream` consumes nothing: what its thread has popped is given
    back. Another call that is cancelled may be done all the same.
    """

    def __init__(self, path: str, mode: str = "a", **options: Any) -> None:
        """As `Queue`."""
        self.queue = Queue(path, mode, **options)
        self._running: set[asyncio.Future[Any]] = set()  # calls that pop, or give back

    def __repr__(self) -> str:
        return f"Async{self.queue!r}"

    async def push(self, payload: bytes, **options: Any) -> int:
        return await asyncio.to_thread(self.queue.push, payload, **options)

    async def push_many(self, messages: Iterable[bytes | Put], **options: Any) -> range:
        return await asyncio.to_thread(self.queue.push_many, messages, **options)

    async def pop(
        self, *, visible: float | None = None, timeout: float = 0, consumer: str = MAIN
    ) -> Message | None:
        """As `Queue.pop`; with a timeout no thread waits."""

        def call() -> Message | None:
            return self.queue.pop(visible=visible, consumer=consumer)

        until = time.monotonic() + as_timeout(timeout)
        while True:
            message = await self._take(call, consumer)
            left = until - time.monotonic()
            if message is not None or left <= 0:
                return message
            await asyncio.sleep(min(left, POLL))

    async def pop_many(
        self, count: int, *, visible: float | None = None, consumer: str = MAIN
    ) -> list[Message]:
        def call() -> list[Message]:
            return self.queue.pop_many(count, visible=visible, consumer=consumer)

        return await self._take(call, consumer)

    async def ack(self, *ids: int, consumer: str = MAIN) -> int:
        return await asyncio.to_thread(self.queue.ack, *ids, consumer=consumer)

    async def nack(self, id: int, reason: str = "", **options: Any) -> bool:
        return await asyncio.to_thread(self.queue.nack, id, reason, **options)

    async def touch(self, id: int, visible: float, *, consumer: str = MAIN) -> None:
        await asyncio.to_thread(self.queue.touch, id, visible, consumer=consumer)

    async def sync(self) -> None:
        await asyncio.to_thread(self.queue.sync)

    async def stream(
        self, *, timeout: float | None = None, visible: float | None = None, consumer: str = MAIN
    ) -> AsyncIterator[Message]:
        """As `Queue.stream`: pop messages as they come."""
        wait = math.inf if timeout is None else as_timeout(timeout)
        while (
            message := await self.pop(visible=visible, timeout=wait, consumer=consumer)
        ) is not None:
            yield message

    async def _take(self, call: Callable[[], Found], consumer: str) -> Found:
        """Pop in a thread. Where this is cancelled, what was popped is given back."""
        taken = _Taken(self.queue, call, consumer)
        running = self._run(taken.run)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if taken.drop():
                self._run(taken.give_back)
            raise

    def _run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run it in a thread, for which `close` waits."""
        running = asyncio.get_running_loop().run_in_executor(None, call)
        self._running.add(running)
        running.add_done_callback(self._ended)
        return running

    def _ended(self, running: asyncio.Future[Any]) -> None:
        self._running.discard(running)
        if not running.cancelled():
            running.exception()  # of a call that was cancelled nobody else asks for it

    async def close(self) -> None:
        while self._running:
            await asyncio.wait(self._running)
        await asyncio.to_thread(self.queue.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class _Taken:
    """A pop in a thread, whose caller may be cancelled before it ends, or just as it does."""

    def __init__(self, queue: Queue, call: Callable[[], Any], consumer: str) -> None:
        self._queue, self._call, self._consumer = queue, call, consumer
        self._lock, self._dropped = threading.Lock(), False
        self._found: list[Message] | None = None  # None: not yet

    def run(self) -> Any:
        if self._dropped:
            return None
        found = self._call()
        with self._lock:
            self._found = found if isinstance(found, list) else [found] if found else []
            dropped = self._dropped
        if dropped:
            self.give_back()
        return found

    def drop(self) -> bool:
        """The caller is gone -> whether the messages are there already, to be given back."""
        with self._lock:
            self._dropped = True
            return bool(self._found)

    def give_back(self) -> None:
        if self._found:
            self._queue.give_back(*self._found, consumer=self._consumer)
