"""Reads a tree ahead with the compiled path: plain files by many, as columns, while others are
stored."""

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
from winkfs.archive.items import LARGE, SPARSE, Block, Item
from winkfs.names import MAX_NAME

FILE, DIR, LINK, OTHER = b"f", b"d", b"l", b"o"
MANY: Final = 256  # names that are read at once,
OPEN: Final = 64  # directories that are kept open for them,
ROOM: Final = 2 << 20  # and bytes of their contents, about; where memory is not ample
LITTLE_ROOM: Final = 512 << 10
READERS: Final = 3  # threads that do so: a disk that is waited for does several reads at once
FIELDS: Final = 5  # of what `read_files` says of each


class Found(NamedTuple):
    """A name in the tree that is not read yet."""

    path: bytes  # from the directory `fd`
    fd: int
    name: bytes  # from the root
    kind: bytes


Plain = tuple[memoryview, int, bytearray]
"""Of the first of many files: a buffer with their contents, bytes of these, and
int64[n, FIELDS]; -1: not plain, see `Ahead`."""


class Ahead:
    """Reads what a walk finds. 78,000 files of 8 KB, already in memory, take 0.6 of the time.

    read     reads one that is not plain: large, with holes or extended attributes, a link ...
    xattrs   whether all extended attributes count, not only those called user.*
    leave    (device, inode) of a file that is not plain either
    """

    def __init__(
        self,
        read: Callable[[Found], Item | None],
        *,
        xattrs: bool,
        leave: tuple[int, int] | None,
    ) -> None:
        self._read, self._xattrs, self._leave = read, xattrs, leave or (0, 0)
        self._buffers = Buffers((ROOM if has_ample_memory() else LITTLE_ROOM) + LARGE)

    def items(
        self, walk: Callable[[Callable[[int], None]], Generator[Found, None, None]]
    ) -> Generator[Item | Block, None, None]:
        """`walk` is given what takes the descriptors of directories that it has left."""
        left: list[int] = []
        ahead: deque[tuple[list[Found], list[int], Future[Plain]]] = deque()
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

    def _begin(self, some: list[Found], threads: ThreadPoolExecutor) -> Future[Plain]:
        """Read the first of these, as many as there is room for."""
        return threads.submit(self._plain, some, self._buffers.take())

    def _plain(self, some: list[Found], buffer: memoryview) -> Plain:
        assert native.code is not None  # else nothing is read ahead
        directories = np.array([found.fd for found in some], np.int64)
        kinds = b"".join([found.kind for found in some])
        used, rows = native.code.read_files(
            directories, [found.path for found in some], kinds, self._xattrs, *self._leave,
            LARGE, SPARSE, buffer,
        )  # fmt: skip
        return buffer, used, rows

    def _taken(
        self, some: list[Found], plain: Future[Plain], threads: ThreadPoolExecutor
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
    """Buffers for contents, each taken again when nobody looks at it any more. The heap would keep
    pieces of it, and new memory is cleared by the kernel: `pack` has 34 MiB where memory is not
    ample, otherwise 44 to 52; 78,000 files take 1.86 s, otherwise 2.02.

    size  bytes of a buffer
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._all: list[mmap.mmap] = []

    def take(self) -> memoryview:
        for buffer in self._all:
            with suppress(BufferError):  # there is a view of it; otherwise nothing changes
                buffer.resize(self._size)
                return memoryview(buffer)
        self._all.append(mmap.mmap(-1, self._size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        return memoryview(self._all[-1])


def _some(walk: Iterator[Found], left: list[int]) -> Iterator[Found]:
    for found in islice(walk, MANY):
        yield found
        if len(left) >= OPEN:
            return


def _block(some: list[Found], contents: memoryview, facts: Int64) -> Block:
    """Of files with those facts; of what is not plain, too, without content."""
    ends = np.cumsum(np.maximum(facts[0], 0)).tolist()
    data = [contents[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    folders = np.fromiter((found.kind == DIR for found in some), bool, len(some))
    return Block([found.name for found in some], data, facts, folders)
