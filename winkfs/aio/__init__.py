"""Stores for asyncio: reads that run in threads.

async with winkfs.aio.open("pages") as c:
    await c.read("index.html")
    async for content in c.get_many(["a", "b"]):
        ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from winkfs import exports

if TYPE_CHECKING:
    from winkfs.aio.reader import AsyncReader as AsyncReader
    from winkfs.aio.reader import open as open

_HOMES = {"AsyncReader": "reader", "open": "reader"}

__all__ = list(_HOMES)
__getattr__ = exports(globals(), _HOMES)
