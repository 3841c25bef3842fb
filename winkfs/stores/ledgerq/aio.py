"""AsyncQueue: a queue for asyncio. Calls that may wait for the disk run in threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any, Self

from winkformats.ledgerq.entry import Message
from winkfs.stores.ledgerq.cursor import MAIN
from winkfs.stores.ledgerq.queue import POLL, Put, Queue


class AsyncQueue:
    """The calls of `Queue` that change it, to be awaited; `queue` has the others.

    async with AsyncQueue("jobs", shared=True) as jobs:
        await jobs.push(b"payload")
        async for message in jobs.stream(timeout=5):
            ...
    """

    def __init__(self, path: str, mode: str = "a", **options: Any) -> None:
        """As `Queue`."""
        self.queue = Queue(path, mode, **options)

    async def push(self, payload: bytes, **options: Any) -> int:
        return await asyncio.to_thread(self.queue.push, payload, **options)

    async def push_many(self, messages: Iterable[bytes | Put], **options: Any) -> range:
        return await asyncio.to_thread(self.queue.push_many, messages, **options)

    async def pop(self, **options: Any) -> Message | None:
        return await asyncio.to_thread(self.queue.pop, **options)

    async def pop_many(self, count: int, **options: Any) -> list[Message]:
        return await asyncio.to_thread(self.queue.pop_many, count, **options)

    async def ack(self, *ids: int, consumer: str = MAIN) -> int:
        return await asyncio.to_thread(self.queue.ack, *ids, consumer=consumer)

    async def nack(self, id: int, reason: str = "", **options: Any) -> bool:
        return await asyncio.to_thread(self.queue.nack, id, reason, **options)

    async def sync(self) -> None:
        await asyncio.to_thread(self.queue.sync)

    async def stream(
        self, *, timeout: float | None = None, **options: Any
    ) -> AsyncIterator[Message]:
        """Pop messages as they come; ends where none has come for `timeout` seconds."""
        last = time.monotonic()
        while True:
            message = await self.pop(**options)
            if message is not None:
                yield message
                last = time.monotonic()
                continue
            left = POLL if timeout is None else last + timeout - time.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(min(left, POLL))

    async def close(self) -> None:
        await asyncio.to_thread(self.queue.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
