"""MemoryStorage: a file in memory, for derived files that are not or cannot be written to disk."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence
from typing import Self

from winkformats.disk.storage import Buffer, FileType, Info, Storage


class MemoryStorage(Storage):
    """A file in memory. All duplicates are the same object, and closing does nothing."""

    def __init__(self, data: bytes = b"", name: str = "memory") -> None:
        self.name = name
        self.data = bytearray(data)
        self._lock = threading.RLock()  # one thread may reserve room while another one writes

    def read_into(self, into: memoryview, offset: int) -> int:
        data = self.data[offset : offset + len(into)]
        into[: len(data)] = data
        return len(data)

    def view(self, length: int, *, sparse: bool = False) -> memoryview | mmap.mmap:
        return memoryview(self.data).toreadonly()[:length]

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)
        with self._lock:
            self.preallocate(offset + len(data))
            self.data[offset : offset + len(data)] = data
        return len(data)

    def sync(self) -> None:
        pass

    def preallocate(self, length: int) -> None:
        with self._lock:
            super().preallocate(length)

    def info(self) -> Info:
        return Info(FileType.FILE, (0, id(self)), len(self.data), 0, 0o600, 0, 0)

    def truncate(self, length: int) -> None:
        # A new object, because a bytearray with views cannot change its size.
        with self._lock:
            self.data = bytearray(self.data[:length].ljust(length, b"\0"))

    def duplicate(self) -> Self:
        return self

    def close(self) -> None:
        pass
