"""The names of inodes whose positions are known, many at a time or one, without their values."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from winkformats.entry import PREFIXES, Layout
from winkformats.errors import CorruptError
from winkformats.gather import rows_at, texts_at
from winkfs.rows import Int64

SUFFIX: Final = b"/I0"  # what the key of an inode has behind the name
SUFFIX_BYTES: Final = np.frombuffer(SUFFIX, np.uint8)


class InodeKeys:
    """Names by position, in a piece of the data file. Wrong bytes are a CorruptError.

    data         the piece; it begins at byte `base` of the file
    start, stop  bytes of the file: where an inode may begin, and where it must end
    """

    def __init__(
        self,
        data: memoryview | mmap.mmap,
        layout: Layout,
        start: int,
        stop: int,
        file: str,
        base: int = 0,
    ) -> None:
        field = layout.key
        self._data: Any = data
        self._raw: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        self._base, self._file = base, file
        self._delflag, self._prefix, self._room = layout.delflag, field.prefix, field.room
        self._end = min(stop - base, len(data))  # where keys end at the latest
        self._low = start
        self._high = base + self._end - self._delflag - self._prefix - len(SUFFIX)
        self._unpack: Callable[[Any, int], tuple[int, ...]] | None = None
        if self._prefix:
            self._unpack = PREFIXES[self._prefix.bit_length() - 1].unpack_from

    def names(self, positions: Int64) -> list[bytes]:
        """The names of these inodes. Cost: 0.15 us a name in warm memory."""
        return texts_at(self._raw, *self.spans(positions))

    def names_and_keys(self, positions: Int64) -> tuple[list[bytes], Int64, list[bytes]]:
        """The names of these inodes, their lengths, and the keys."""
        at, lengths = self.spans(positions)
        keys = texts_at(self._raw, at, lengths + len(SUFFIX))
        return texts_at(self._raw, at, lengths), lengths, keys

    def spans(self, positions: Int64) -> tuple[Int64, Int64]:
        """Where in the piece the names of these inodes begin, and their lengths, int64[n] each."""
        self._check(positions, (positions >= self._low) & (positions <= self._high))
        at = positions + (self._delflag - self._base)
        if not len(at):
            return at, at
        if self._prefix:
            lengths = rows_at(self._raw, at, self._prefix).view(f">u{self._prefix}")[:, 0]
            lengths = lengths.astype(np.int64) - len(SUFFIX)
            at += self._prefix
        else:
            lengths = np.full(len(at), self._room - len(SUFFIX), np.int64)
        self._check(positions, (lengths > 0) & (lengths <= self._end - len(SUFFIX) - at))
        tails = rows_at(self._raw, at + lengths - 1, 1 + len(SUFFIX))
        self._check(positions, (tails[:, 1:] == SUFFIX_BYTES).all(1) & (tails[:, 0] != 0))
        return at, lengths

    def name(self, pos: int) -> bytes:
        """The name of one inode. Cost: 1 us."""
        if not self._low <= pos <= self._high:
            raise self._damaged(pos)
        at = pos + self._delflag - self._base
        length = self._unpack(self._data, at)[0] if self._unpack else self._room
        at += self._prefix
        key = bytes(self._data[at : min(at + length, self._end)])
        if len(key) != length or length <= len(SUFFIX) or not key.endswith(SUFFIX):
            raise self._damaged(pos)
        return key[: -len(SUFFIX)]

    def close(self) -> None:
        """Let go of the file."""
        self._raw, self._data, self._high = np.empty(0, np.uint8), b"", -1

    def _check(self, positions: Int64, fit: npt.NDArray[np.bool_]) -> None:
        if not fit.all():
            raise self._damaged(int(positions[~fit][0]))

    def _damaged(self, pos: int) -> CorruptError:
        return CorruptError("no inode with a name", file=self._file, offset=pos)
