"""AsyncQueue: a queue for asyncio. Calls that may wait for the disk run in threads."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Any, Self, TypeVar

from winkformats.ledgerq.entry import Message
from winkfs.aio.threads import Threads, undo
from winkfs.stores.ledgerq.cursor import MAIN
from winkfs.stores.ledgerq.queue import POLL_SECONDS, PushOptions, Queue
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
        self._threads = Threads(f"the queue {path}")

    def __repr__(self) -> str:
        return f"Async{self.queue!r}"

    async def push(self, payload: bytes, **options: Any) -> int:
        return await self._threads.run(self.queue.push, payload, **options)

    async def push_many(self, messages: Iterable[bytes | PushOptions], **options: Any) -> range:
        return await self._threads.run(self.queue.push_many, messages, **options)

    async def pop(
        self, *, visible: float | None = None, timeout: float = 0, consumer: str = MAIN
    ) -> Message | None:
        """As `Queue.pop`; with a timeout no thread waits."""
        until = time.monotonic() + as_timeout(timeout)
        while True:
            message = await self._take(self.queue.pop, consumer=consumer, visible=visible)
            remaining = until - time.monotonic()
            if message is not None or remaining <= 0:
                return message
            await asyncio.sleep(min(remaining, POLL_SECONDS))

    async def pop_many(
        self, count: int, *, visible: float | None = None, consumer: str = MAIN
    ) -> list[Message]:
        return await self._take(self.queue.pop_many, count, consumer=consumer, visible=visible)

    async def ack(self, *ids: int, consumer: str = MAIN) -> int:
        return await self._threads.run(self.queue.ack, *ids, consumer=consumer)

    async def nack(self, id: int, reason: str = "", **options: Any) -> bool:
        return await self._threads.run(self.queue.nack, id, reason, **options)

    async def touch(self, id: int, visible: float, *, consumer: str = MAIN) -> None:
        await self._threads.run(self.queue.touch, id, visible, consumer=consumer)

    async def sync(self) -> None:
        await self._threads.run(self.queue.sync)

    async def stream(
        self, *, timeout: float | None = None, visible: float | None = None, consumer: str = MAIN
    ) -> AsyncIterator[Message]:
        """As `Queue.stream`: pop messages as they come."""
        wait = math.inf if timeout is None else as_timeout(timeout)
        while (
            message := await self.pop(visible=visible, timeout=wait, consumer=consumer)
        ) is not None:
            yield message

    async def _take(
        self, pop: Callable[..., Found], *args: Any, consumer: str, **named: Any
    ) -> Found:
        """Pop in a thread. If this call is cancelled, the messages are given back."""
        popped = self._threads.submit(pop, *args, consumer=consumer, **named)
        try:
            return await asyncio.wrap_future(popped)
        except asyncio.CancelledError:
            undo(popped, partial(self._give_back, consumer))
            raise

    def _give_back(self, consumer: str, found: list[Message] | Message | None) -> None:
        messages = found if isinstance(found, list) else [found] if found else []
        self.queue.give_back(*messages, consumer=consumer)

    async def close(self) -> None:
        """Wait for the calls that run, and close the queue. Idempotent."""
        await self._threads.close(self.queue.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
