"""Reading a tree ahead with the compiled path: many plain files at a time, as columns, while others
are stored."""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from winkformats import native
from winkformats.arrays import Int64
from winkformats.disk.room import has_ample_memory
from winkfs.archive.items import SPARSE_BYTES, STREAM_BYTES, Block, Item
from winkfs.names import MAX_NAME

FILE, DIR, LINK, OTHER = b"f", b"d", b"l", b"o"
NAMES_AT_ONCE: Final = 256  # read together
OPEN_DIRS: Final = 64  # directories that are kept open for them
BUFFER_BYTES: Final = 2 << 20  # contents of them, about
SMALL_BUFFER_BYTES: Final = 512 << 10  # the same, if memory is not ample
READERS: Final = 3  # threads: a disk does several reads at once
FIELDS: Final = 5  # that `read_files` returns for each file


class Found(NamedTuple):
    """A name in the tree that is not read yet."""

    path: bytes  # from the directory `fd`
    fd: int
    name: bytes  # from the root
    kind: bytes


Walk = Callable[[Callable[[int], None]], Generator[Found, None, None]]
"""Yields names in the tree. It gets a function to which it passes the descriptors of directories
that it has left."""
PlainFiles = tuple[memoryview, int, bytearray]
"""The first n of many files: a buffer with their contents, the bytes used of it, and
int64[n, FIELDS]; -1: not plain, see `Ahead`."""


class Ahead:
    """Reads the files that a walk finds, ahead of their use.

    read     reads a file that is not plain: large, with holes or extended attributes, a link ...
    xattrs   whether all extended attributes count, not only those called user.*
    leave    (device, inode) of a file that counts as not plain
    """

    def __init__(
        self,
        read: Callable[[Found], Item | None],
        *,
        xattrs: bool,
        leave: tuple[int, int] | None,
    ) -> None:
        self._read, self._xattrs, self._leave = read, xattrs, leave or (0, 0)
        self._buffers = Buffers(
            (BUFFER_BYTES if has_ample_memory() else SMALL_BUFFER_BYTES) + STREAM_BYTES
        )

    def items(self, walk: Walk) -> Generator[Item | Block, None, None]:
        """Yield the items of a walk."""
        left: list[int] = []
        ahead: deque[tuple[list[Found], list[int], Future[PlainFiles]]] = deque()
        walking, threads = walk(left.append), ThreadPoolExecutor(READERS, "winkfs-read")
        try:
            while True:
                some = list(_some(walking, left))
                if some:
                    ahead.append((some, left.copy(), self._begin(some, threads)))
                    left.clear()
                if ahead and (len(ahead) > READERS or not some):
                    found, _, plain = ahead[0]
                    yield from self._taken(found, plain, threads)
                    del plain  # and with it a buffer
                    for fd in ahead.popleft()[1]:
                        os.close(fd)
                elif not some:
                    return
        finally:
            threads.shutdown(cancel_futures=True)
            walking.close()
            for fd in [*left, *(fd for _, fds, _ in ahead for fd in fds)]:
                os.close(fd)

    def _begin(self, some: list[Found], threads: ThreadPoolExecutor) -> Future[PlainFiles]:
        """Begin to read the first of these files, as many as fit into a buffer."""
        return threads.submit(self._plain, some, self._buffers.take())

    def _plain(self, some: list[Found], buffer: memoryview) -> PlainFiles:
        assert native.code is not None  # reading ahead needs it
        directories = np.array([found.fd for found in some], np.int64)
        kinds = b"".join([found.kind for found in some])
        used, rows = native.code.read_files(
            directories, [found.path for found in some], kinds, self._xattrs, *self._leave,
            STREAM_BYTES, SPARSE_BYTES, buffer,
        )  # fmt: skip
        return buffer, used, rows

    def _taken(
        self, some: list[Found], plain: Future[PlainFiles], threads: ThreadPoolExecutor
    ) -> Iterator[Item | Block]:
        while some:
            buffer, used, rows = plain.result()
            facts = np.frombuffer(rows, np.int64).reshape(-1, FIELDS).T
            n = facts.shape[1]
            if rest := some[n:]:
                plain = self._begin(rest, threads)
            block = _block(some[:n], buffer[:used], facts)
            del buffer
            odd = facts[0] < 0
            odd |= np.fromiter((len(name) > MAX_NAME for name in block.names), bool, n)
            start = 0
            for i in [*np.flatnonzero(odd).tolist(), n]:
                if start < i:
                    yield block.part(start, i)
                if i < n and (item := self._read(some[i])):
                    yield item
                start = i + 1
            some = rest


class Buffers:
    """Buffers for contents, each reused when no view of it is left. On the heap, they would be
    fragmented, and the kernel clears new memory.

    size  bytes of a buffer
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._all: list[mmap.mmap] = []

    def take(self) -> memoryview:
        for buffer in self._all:
            with suppress(BufferError):  # there is a view of it; otherwise the size is unchanged
                buffer.resize(self._size)
                return memoryview(buffer)
        self._all.append(mmap.mmap(-1, self._size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        return memoryview(self._all[-1])


def _some(walk: Iterator[Found], left: list[int]) -> Iterator[Found]:
    for found in islice(walk, NAMES_AT_ONCE):
        yield found
        if len(left) >= OPEN_DIRS:
            return


def _block(some: list[Found], contents: memoryview, facts: Int64) -> Block:
    """Return a Block of files with these facts; files that are not plain have no content in it."""
    ends = np.cumsum(np.maximum(facts[0], 0)).tolist()
    data = [contents[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    folders = np.fromiter((found.kind == DIR for found in some), bool, len(some))
    return Block([found.name for found in some], data, facts, folders)
