"""FileArray: an array in a file, of which only what is asked for is read, by pread."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Int64, fetch, texts_at
from winkformats.disk.storage import Storage
from winkfs.errors import DerivedDamage

Array = npt.NDArray[Any]


class OpenFile:
    """A file that stays open as long as an array is in it."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        weakref.finalize(self, storage.close)


class FileArray:
    """What a mount asks of a one-dimensional numpy array, whose bytes stay in the file.

    Numpy takes it for an array and reads all of it. Raises DerivedDamage where the file has been
    cut short.
    """

    def __init__(self, file: OpenFile, offset: int, dtype: str, count: int) -> None:
        """`count` numbers from byte `offset` of the file on."""
        self.dtype = np.dtype(dtype)
        self._file, self._storage = file, file.storage
        self._offset, self._count = offset, count

    def __len__(self) -> int:
        return self._count

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found = self._slice(0, self._count)
        return found if dtype is None else found.astype(dtype)

    def item(self, index: int) -> int:
        """One number. Cost: 1 us."""
        return self._slice(index, index + 1).item()  # type: ignore[no-any-return]

    def __getitem__(self, key: Any) -> Any:
        """A number, those of a slice, or those at some indices: int64[n]. Cost: 0.7 us each, less
        where they lie close together."""
        if isinstance(key, slice):
            return self._slice(*key.indices(self._count)[:2])
        if isinstance(key, np.ndarray):
            return self._gather(key)
        return self._slice(int(key), int(key) + 1)[0]

    def searchsorted(self, wanted: int) -> int:
        """Of ascending numbers: the index of the first that is not less."""
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.item(middle) < wanted else (low, middle)
        return low

    def texts(self, begin: Int64, lengths: Int64) -> list[bytes]:
        """Bytes [begin, begin + length) of an array of bytes; none of them may end in NUL."""
        width = int(lengths.max(initial=1))
        self._check(int((begin + lengths).max(initial=0)))
        data, at = fetch(self._storage, begin + self._offset, width)
        return texts_at(np.frombuffer(data, np.uint8), at, lengths)

    def _gather(self, index: Int64) -> Array:
        width = self.dtype.itemsize
        self._check((int(index.max(initial=-1)) + 1) * width)
        data, at = fetch(self._storage, index * width + self._offset, width)
        return np.frombuffer(data, self.dtype)[at // width]

    def _slice(self, start: int, stop: int) -> Array:
        width, stop = self.dtype.itemsize, max(start, stop)
        at, length = self._offset + start * width, (stop - start) * width
        data = self._storage.read(at, length)
        if len(data) < length:
            raise self._cut(at + len(data))
        return np.frombuffer(data, self.dtype)

    def _check(self, length: int) -> None:
        """That the file has so many bytes of the array."""
        if length and not self._storage.read(self._offset + length - 1, 1):
            raise self._cut(self._offset + length - 1)

    def _cut(self, at: int) -> DerivedDamage:
        return DerivedDamage("the columns are cut short", file=self._storage.name, offset=at)
