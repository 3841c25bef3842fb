"""MemoryStorage: a file in memory, where there shall be none on the disk, or can be none."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from winkformats.pagecache import BulkReader

if TYPE_CHECKING:
    from winkformats.storage import Buffer


class MemoryStorage:
    """A file in memory."""

    def __init__(self, data: bytes = b"", name: str = "memory") -> None:
        self.name = name
        self.uncached = False
        self.data = bytearray(data)

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.data[offset : offset + length])

    def read_into(self, into: memoryview, offset: int) -> int:
        data = self.data[offset : offset + len(into)]
        into[: len(data)] = data
        return len(data)

    def view(self, length: int, *, sparse: bool = False) -> memoryview | mmap.mmap:
        return memoryview(self.data).toreadonly()[:length]

    def remember_resident(self) -> None:
        pass

    def drop_seen(self) -> None:
        pass

    def read_ahead(self, offset: int, length: int) -> None:
        pass

    def bulk(self, start: int, stop: int, *, uncached: bool = True) -> BulkReader:
        return BulkReader(self.read_into, None)

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)
        self.preallocate(offset + len(data))
        self.data[offset : offset + len(data)] = data
        return len(data)

    def patch(self, offset: int, data: Buffer) -> None:
        self.write(offset, [data])

    def sync(self) -> None:
        pass

    def size(self) -> int:
        return len(self.data)

    def preallocate(self, length: int) -> None:
        if length > len(self.data):
            self.truncate(length)

    def truncate(self, length: int) -> None:
        # A new object, for one with views on it cannot change its size.
        self.data = bytearray(self.data[:length].ljust(length, b"\0"))

    def duplicate(self) -> MemoryStorage:
        return self

    def close(self) -> None:
        pass
