"""Output and contents of archives that are written: contents are known to be intact before a member
begins."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from winkformats.disk.storage import Storage
from winkformats.errors import FormatError
from winkfs.archive.items import SPARSE_BYTES, Allowance, Note, Notes
from winkfs.entry import Entry
from winkfs.names import to_bytes

BUFFER: Final = 1 << 20  # bytes written at a time
HELD_BYTES: Final = 16 << 20  # content of a file up to which it is held in memory
PIECE: Final = 1 << 20  # zeros written at a time
ZEROS: Final = bytes(PIECE)
CHANGED: Final = "changed or was damaged while it was written: zeros are in its place"


class Writes(Protocol):
    """A file or a pipe."""

    def write(self, data: bytes, /) -> int | None: ...


class NewFile(io.RawIOBase):
    """A file that is written from its start to its end."""

    def __init__(self, storage: Storage) -> None:
        self.storage, self._at = storage, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        """Append bytes. Raises OSError."""
        size = memoryview(data).nbytes
        self.storage.write(self._at, [data])
        self._at += size
        return size

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        if not self.closed:
            super().close()
            self.storage.close()


class Output:
    """Collects small writes. `at`: bytes written until now."""

    def __init__(self, file: Writes) -> None:
        self._file, self._parts, self._size = file, list[bytes](), 0
        self.at = 0

    def write(self, *parts: bytes) -> None:
        """Append bytes. Raises OSError."""
        self._parts += parts
        size = sum(map(len, parts))
        self._size += size
        self.at += size
        if self._size >= BUFFER:
            self.flush()

    def write_at_once(self, data: memoryview) -> None:
        """Append many bytes. Raises OSError."""
        self.flush()
        self.at += len(data)
        self._write(data)

    def flush(self) -> None:
        parts, self._parts, self._size = self._parts, [], 0
        self._write(memoryview(b"".join(parts)))

    def _write(self, data: memoryview) -> None:
        while data:  # a pipe may take a part
            data = data[self._file.write(data) or 0 :]  # type: ignore[arg-type]


@dataclass(slots=True)
class Body:
    """The content of a file, which was verified.

    ranges  of the bytes that are no hole
    held    its pieces; None: it is read again
    """

    entry: Entry
    ranges: list[tuple[int, int]]
    held: list[tuple[int, bytes]] | None

    def data(self, *, holes: bool, note: Notes) -> Iterator[bytes]:
        """Yield the bytes, exactly as many as the ranges have.

        holes   yield holes, too, as zeros
        """
        at = 0
        wanted = [(0, self.entry.size)] if holes else self.ranges
        total = sum(size for _, size in wanted)
        done = 0
        try:
            for offset, data in self.entry.pieces() if self.held is None else self.held:
                if holes:
                    for zeros in gap(offset - at):
                        done += len(zeros)
                        yield zeros
                    at = offset + len(data)
                data = data[: total - done]
                done += len(data)
                yield data
        except (FormatError, OSError) as error:
            note(Note(to_bytes(self.entry.name), f"{CHANGED}: {error}", True))
        yield from gap(total - done)


def gap(size: int) -> Iterator[bytes]:
    """Yield zeros."""
    while size > 0:
        yield ZEROS[:size] if size < PIECE else ZEROS
        size -= PIECE


def body_of(entry: Entry, allowance: Allowance, *, holes: bool) -> Body:
    """Read the content of a file -> the content, all of it intact.

    holes   they are written as zeros
    raises  CorruptError; FormatError: more than the allowance
    cost    memory: HELD_BYTES; a larger file is read here, and again when it is written
    """
    ranges = entry.ranges()
    data = sum(size for _, size in ranges)
    if entry.size < SPARSE_BYTES or not holes:
        allowance.claim(data)
    else:
        allowance.claim(entry.size, holes=entry.size - data)
    pieces = entry.pieces()
    if data <= HELD_BYTES:
        return Body(entry, ranges, list(pieces))
    for _ in pieces:
        pass
    return Body(entry, ranges, None)
