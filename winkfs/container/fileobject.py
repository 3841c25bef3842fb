"""A file of a container as a Python file object."""

from __future__ import annotations

import errno
import io
from itertools import groupby
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _typeshed import ReadableBuffer, WriteableBuffer

    from winkfs.container.ondisk.extent import Extent


BUFFER: Final = 256 << 10  # bytes


class Container(Protocol):
    """What has the file: a container, or a data set."""

    def read(self, name: str | bytes, offset: int = 0, size: int = -1) -> bytes: ...

    def read_into(self, name: str | bytes, offset: int, into: memoryview) -> int: ...


class WithExtents(Container, Protocol):
    """One that tells where the holes of a file are."""

    def extents(self, name: str | bytes) -> Sequence[Extent]: ...


class FileReader(io.RawIOBase):
    """Seekable, read-only. Its length is that of the file when it was opened."""

    mode = "rb"

    def __init__(self, container: Container, name: str, size: int) -> None:
        self._container, self.name, self._size, self._at = container, name, size, 0

    @property
    def best_buffer(self) -> int:
        """Bytes for a buffer: a small file is read at once."""
        return min(max(self._size, 1), BUFFER)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        raise io.UnsupportedOperation("not open for writing: use put, write and append")

    def truncate(self, size: int | None = None) -> int:
        raise io.UnsupportedOperation("not open for writing: use put, write and append")

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._check()
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}.get(whence)
        if base is None:
            raise ValueError(f"whence {whence} is not known")
        if base + offset < 0:
            raise OSError(errno.EINVAL, "seek before the start of the file", self.name)
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        self._check()
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        self._check()
        with memoryview(buffer).cast("B") as whole:
            want = max(min(len(whole), self._size - self._at), 0)
            if want == self._size and want <= BUFFER:
                data = self._container.read(self.name)[:want]
                whole[: len(data)], got = data, len(data)
            else:
                with whole[:want] as part:
                    got = self._container.read_into(self.name, self._at, part) if want else 0
        self._at += got
        return got

    def readall(self) -> bytes:
        """The rest. Memory: what it has."""
        self._check()
        want = max(self._size - self._at, 0)
        if want == self._size:  # all of it is quicker
            data = self._container.read(self.name)[:want]
        else:
            data = self._container.read(self.name, self._at, want) if want else b""
        self._at += len(data)
        return data

    def _check(self) -> None:
        if self.closed:
            raise ValueError("the file is closed")


class SparseReader(FileReader):
    """The same, read once from start to end: by `Container.put_file`, which keeps its holes."""

    def __init__(self, container: WithExtents, name: str, size: int) -> None:
        super().__init__(container, name, size)
        runs = groupby(container.extents(name), key=lambda extent: extent.pointer == 0)
        self._runs = [(hole, sum(e.size for e in extents)) for hole, extents in runs][::-1]
        self._stop = 0  # where the bytes end before the next hole; 0: `skip_hole` was not called

    def skip_hole(self) -> int:
        """-> bytes of the hole at this place, which is passed over; 0: there is none."""
        if self._at < self._stop or not self._runs:
            return 0
        gap = self._runs.pop()[1] if self._runs[-1][0] else 0
        self._at += gap
        self._stop = self._at + (self._runs.pop()[1] if self._runs else 0)
        return gap

    def readinto(self, buffer: WriteableBuffer) -> int:
        with memoryview(buffer).cast("B") as view:
            return super().readinto(view[: self._stop - self._at] if self._stop else view)
