"""Places: where the rows lie, 8 bytes each, in disk order.

    bits 20..63  position of the inode
    bits 0..19   bytes before the inode that have the content, rounded up; 0: the inode has to be
                 read to find the content

The bytes are a number with 15 bits and an exponent of 5, so that a row is read with one request or
one access, without a look at the catalog. They are in memory or, of many rows, in a file without a
name, which processes of this machine map together: it ends with the last of them.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import tempfile
import weakref
from collections.abc import Iterable
from typing import BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from winkformats.arrays import Int64
from winkformats.kv.sequence import USUAL_OVERHEAD
from winkfs.container.table import FileTable

Words = npt.NDArray[np.uint64]
SPAN_BITS: Final = 20
MANTISSA: Final = 15  # bits
MOST_POSITION: Final = 1 << 64 - SPAN_BITS
BETWEEN: Final = 64 << 10  # bytes between content and inode that are read with them
SHARED_BYTES: Final = 1 << 20  # of places, from which on they are in a file
TOKEN_BYTES: Final = 16  # at the start of that file
NO_WORDS: Final = np.empty(0, np.uint64)


def words_of(rows: FileTable) -> Words:
    """Return the places of files, uint64[n]."""
    pos, pointer, size = rows.pos, rows.pointer, rows.size
    span = pos - pointer
    near = ~rows.asked & (pointer > 0) & (span > size) & (span <= size + USUAL_OVERHEAD + BETWEEN)
    found: Words = pos.astype(np.uint64) << np.uint64(SPAN_BITS)
    found |= _packed(np.where(near, span, 0))
    return found


def _packed(span: Int64) -> Words:
    exponent = np.maximum(np.frexp(span.astype(np.float64))[1] - MANTISSA, 0).astype(np.int64)
    kept = (span + (1 << exponent) - 1) >> exponent
    full = kept >> MANTISSA  # it was rounded up to one bit more
    found: Words = ((exponent + full) << MANTISSA | kept >> full).astype(np.uint64)
    return found


def positions(words: Words) -> Int64:
    """Return the positions of the inodes, int64[n]."""
    return (words >> np.uint64(SPAN_BITS)).astype(np.int64)


def spans(words: Words) -> Int64:
    """Return the bytes before the inodes that have the contents, int64[n]."""
    low = (words & np.uint64((1 << SPAN_BITS) - 1)).astype(np.int64)
    return (low & (1 << MANTISSA) - 1) << (low >> MANTISSA)


class Shared(NamedTuple):
    """Where other processes find the file: process and descriptor, and what it begins with."""

    pid: int
    descriptor: int
    token: bytes


class Places:
    """The places of the rows of some shards, one after the other.

    words   uint64[n], ascending in each shard
    starts  int64[shards + 1]: the rows of shard i are starts[i] .. starts[i + 1]
    """

    def __init__(
        self, words: Words, starts: Int64, descriptor: int = -1, token: bytes = b""
    ) -> None:
        """descriptor: of the file, which it closes; -1: there is none."""
        self.words, self.starts, self._file, self._token = words, starts, descriptor, token
        if descriptor >= 0:
            weakref.finalize(self, os.close, descriptor)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def digest(self) -> int:
        """A hash of all places. Cost: reads them."""
        return xxh3_64_intdigest(self.words.view(np.uint8).data)

    @property
    def shared(self) -> Shared | None:
        """Where other processes find the file; None: they are in memory."""
        if self._file < 0:
            return None
        return Shared(os.getpid(), self._file, self._token)


class Building:
    """Places while they are collected."""

    def __init__(self) -> None:
        self._parts: list[Words] = []
        self._bytes, self._count, self._ends = 0, 0, [0]
        self._file: BinaryIO | None = None
        self._token = secrets.token_bytes(TOKEN_BYTES)

    def add(self, words: Words) -> None:
        """Add rows of the shard. Raises OSError."""
        if not len(words):
            return
        self._parts.append(words)
        self._bytes += words.nbytes
        self._count += len(words)
        if self._bytes >= SHARED_BYTES:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix=".winkfs-rows-", buffering=0)  # noqa: SIM115
            self._file.write(self._token)
        for part in self._parts:
            view = part.view(np.uint8).data
            while view:
                view = view[self._file.write(view) :]
        self._parts, self._bytes = [], 0

    def end_shard(self) -> None:
        self._ends.append(self._count)

    def made(self) -> Places:
        """Return the places, in the order of the disk in each shard. Raises OSError."""
        starts = np.array(self._ends, np.int64)
        if self._file is None:
            words = np.concatenate([NO_WORDS, *self._parts])
        else:
            self._spill()
            words = _mapped(self._file.fileno(), writable=True)
        for low, high in zip(self._ends[:-1], self._ends[1:], strict=True):
            words[low:high].sort()
        if self._file is None:
            return Places(words, starts)
        made = Places(
            _mapped(self._file.fileno()), starts, os.dup(self._file.fileno()), self._token
        )
        self.close()
        return made

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _mapped(descriptor: int, *, writable: bool = False) -> Words:
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    return np.frombuffer(mmap.mmap(descriptor, 0, access=access), np.uint64, offset=TOKEN_BYTES)


def found(shared: Shared, starts: Iterable[int]) -> Places | None:
    """Return the places that another process of this machine has made; None: it has ended."""
    descriptor = -1
    with contextlib.suppress(OSError, ValueError):
        path = f"/proc/{shared.pid}/fd/{shared.descriptor}"
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if os.read(descriptor, TOKEN_BYTES) == shared.token:
            return Places(_mapped(descriptor), np.array([*starts]), descriptor, shared.token)
    if descriptor >= 0:
        os.close(descriptor)
    return None
