"""Extents: where the bytes of a file lie, as a list or, where there are many, as columns.

A file that is overwritten in small pieces has an extent for each: a list of 16,000 costs 5 ms to
make and 2 ms to cut, the columns 0.1 ms and 20 us.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Self, overload

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import CorruptError
from winkfs.errors import WinkError

AT_ONCE: Final = 1 << 30  # bytes of content that are read at once, however small the container
RATIO: Final = 16  # how many times its container's bytes a content may have to be read at once
FEW: Final = 64  # extents up to which a list is the faster way


class Extent(NamedTuple):
    """`size` bytes of the value at `pointer` after its first `skip`; pointer 0: a hole."""

    pointer: int
    skip: int
    size: int


class ExtentArray(Sequence[Extent]):
    """Extents in file order, immutable. `rows`: int64[n, 3], (pointer, skip, size)."""

    __slots__ = ("_ends", "rows")

    def __init__(self, rows: Int64) -> None:
        self.rows = rows
        self._ends: Int64 | None = None

    @classmethod
    def of(cls, extents: Iterable[Extent]) -> Self:
        rows = np.array(list(extents), np.int64)
        return cls(rows.reshape(-1, 3))

    @property
    def ends(self) -> Int64:
        """int64[n]: where in the file each extent ends, bytes."""
        if self._ends is None:
            self._ends = np.cumsum(self.rows[:, 2])
        return self._ends

    @property
    def pointers(self) -> Int64:
        """kv_pointers of the entries they lie in, ascending, each once; holes have none."""
        found = np.sort(self.rows[:, 0])
        pointers: Int64 = found[(found != 0) & (np.diff(found, prepend=0) != 0)]
        return pointers

    def part(self, start: int, stop: int) -> Self:
        """The part that holds the bytes [start, stop) of the file."""
        ends = self.ends
        if not len(ends) or start >= stop or start >= ends[-1]:
            return type(self)(self.rows[:0])
        first = int(np.searchsorted(ends, start, "right"))
        last = int(np.searchsorted(ends, stop, "left"))
        rows = self.rows[first : last + 1].copy()
        before = start - int(ends[first] - self.rows[first, 2])
        rows[0, 1:] += (before, -before) if rows[0, 0] else (0, -before)
        if last < len(ends):
            rows[-1, 2] -= int(ends[last]) - stop
        return type(self)(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Extent]:
        return map(Extent._make, self.rows.tolist())

    @overload
    def __getitem__(self, index: int) -> Extent: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: int | slice) -> Extent | Self:
        if isinstance(index, slice):
            return type(self)(self.rows[index])
        return Extent._make(self.rows[index].tolist())


def cut(extents: Sequence[Extent], start: int, stop: int) -> Sequence[Extent]:
    """The part of a file's extents that holds the bytes [start, stop)."""
    if isinstance(extents, ExtentArray):
        return extents.part(start, stop)
    found, at = [], 0
    for extent in extents:
        a, b = max(start - at, 0), min(stop - at, extent.size)
        if a < b:
            skip = extent.skip + a if extent.pointer else 0
            found.append(Extent(extent.pointer, skip, b - a))
        at += extent.size
        if at >= stop:
            break
    return found


def joined(*parts: Sequence[Extent]) -> Sequence[Extent]:
    """Extents one behind the other."""
    if sum(map(len, parts)) <= FEW:
        return [extent for part in parts for extent in part]
    arrays = [part if isinstance(part, ExtentArray) else ExtentArray.of(part) for part in parts]
    return ExtentArray(np.concatenate([array.rows for array in arrays]))


def check_size(size: int, container: int, file: str) -> None:
    """Refuse to hold content in memory that a container only claims to have, by a hole or by one
    entry again and again.

    size, container  bytes of the content, and of the container's data file
    raises           WinkError EFBIG
    """
    if size > AT_ONCE and size > RATIO * container:
        raise WinkError(
            f"{size:,} bytes in a container of {container:,}: too many to be read at once, read "
            "them in parts", file, number=errno.EFBIG,
        )  # fmt: skip


def assemble(extents: Sequence[Extent], value_at: Callable[[int, int], bytes], file: str) -> bytes:
    """The bytes of extents, one behind the other.

    value_at    position of an entry, and how many bytes of its value are needed at least
                -> its value, checked
    file        the name of the data file, for the error
    raises      CorruptError; WinkError EFBIG for a hole that is larger than the memory
    """
    parts = []
    for pointer, skip, size in extents:
        if pointer == 0:
            parts.append(_zeros(size, file))
            continue
        value = value_at(pointer, skip + size)
        if skip + size > len(value):
            raise CorruptError("extent is longer than its entry", file=file, offset=pointer)
        parts.append(value[skip : skip + size] if (skip, size) != (0, len(value)) else value)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _zeros(size: int, file: str) -> bytes:
    try:
        return bytes(size)
    except MemoryError:
        what = f"a file with a hole of {size} bytes is too large to be read at once: open_file"
        raise WinkError(what, file, number=errno.EFBIG) from None


def assemble_into(
    into: memoryview, extents: Sequence[Extent], value_at: Callable[[int, int], bytes], file: str
) -> int:
    """The same into a buffer that holds them -> bytes."""
    at = 0
    for pointer, skip, size in extents:
        value = value_at(pointer, skip + size) if pointer else bytes(size)
        if skip + size > len(value):
            raise CorruptError("extent is longer than its entry", file=file, offset=pointer)
        into[at : at + size] = memoryview(value)[skip : skip + size]
        at += size
    return at


def overlay(base: Sequence[Extent], patches: Sequence[tuple[int, Extent]]) -> ExtentArray:
    """The extents of a file after overwrites.

    base     the extents before; nothing is written behind their end but from the end on
    patches  (offset in the file, extent) in the order they were written; later ones win
    cost     3 ms for 1,000 patches on 40,000 extents
    """
    old = base if isinstance(base, ExtentArray) else ExtentArray.of(base)
    at = np.array([offset for offset, _ in patches], np.int64)
    new = ExtentArray.of(extent for _, extent in patches).rows
    upto = at + new[:, 2]
    # every piece between two neighbouring edges comes from one extent
    size = max(int(old.ends[-1]) if len(old) else 0, int(upto.max()))
    edges = np.concatenate([[0, size], old.ends, at, upto])
    edges.sort(kind="stable")  # half of it is in order already; np.unique takes three times as long
    edges = edges[np.concatenate([[True], np.diff(edges) != 0])]
    starts, sizes = edges[:-1], np.diff(edges)
    owner = _owners(starts, at, upto)
    rows = np.empty((len(starts), 3), np.int64)
    kept = owner < 0
    source = np.searchsorted(old.ends, starts[kept], "right")
    begins = old.ends - old.rows[:, 2]
    rows[kept, 0] = old.rows[source, 0]
    rows[kept, 1] = old.rows[source, 1] + starts[kept] - begins[source]
    rows[~kept, 0] = new[owner[~kept], 0]
    rows[~kept, 1] = new[owner[~kept], 1] + starts[~kept] - at[owner[~kept]]
    rows[:, 2] = sizes
    rows[rows[:, 0] == 0, 1] = 0
    return ExtentArray(_joined(rows))


def _owners(starts: Int64, at: Int64, upto: Int64) -> Int64:
    """Which patch owns the piece at each of `starts`: its index, -1 for none. int64[n]."""
    owner = np.full(len(starts), -1, np.int64)
    first, last = np.searchsorted(starts, at), np.searchsorted(starts, upto)
    for i, (a, b) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        owner[a:b] = i  # in the order they were written: the last one stays
    return owner


def _joined(rows: Int64) -> Int64:
    """Neighbours that go on in the same entry, or are both holes, become one."""
    pointer, skip, size = rows.T
    goes_on = (pointer[1:] == pointer[:-1]) & (
        (pointer[1:] == 0) | (skip[1:] == skip[:-1] + size[:-1])
    )
    heads = np.flatnonzero(np.concatenate([[True], ~goes_on]))
    found = rows[heads]
    found[:, 2] = np.add.reduceat(size, heads)
    return found
