"""Columns: what is to say of many files of a container, as arrays in the order of their inodes.

`Columns.of` reads them from the data file, `columnsfile` keeps them in BASE.cols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Int64, UInt8, texts_at
from winkformats.errors import CorruptError
from winkfs.container.columns.scan import pieces
from winkfs.container.ondisk.inode import FileType

if TYPE_CHECKING:
    from winkfs.container.store import Store

BY_INODE: Final = -1  # in `pointer`: the content is found by way of the inode
EMPTY: Final = 0  # in `pointer`: a file without content


@dataclass(frozen=True, slots=True)
class Columns:
    """n files of one container; the arrays are not to be changed.

    pos         int64[n]  kv_pointer of the inode, ascending
    pointer     int64[n]  kv_pointer of the one data entry whose value is the whole content;
                          EMPTY for none, BY_INODE for several extents, holes, parts of a value
    size        int64[n]  bytes
    mtime       int64[n]  nanoseconds since the epoch; what int64 cannot hold: its nearest
    ftype       uint8[n]  FileType
    special     uint8[n]  1: has attributes
    name_ends   int64[n + 1], name_bytes uint8[..]: names[i] is bytes[name_ends[i]:name_ends[i + 1]]

    Whoever reads the value at `pointer` has to check its checksum, and that it is `size` bytes.
    """

    pos: Int64
    pointer: Int64
    size: Int64
    mtime: Int64
    ftype: UInt8
    special: UInt8
    name_ends: Int64
    name_bytes: UInt8

    @classmethod
    def of(
        cls,
        store: Store,
        positions: Int64 | None = None,
        problem: Callable[[CorruptError], None] | None = None,
    ) -> Self:
        """The files whose inodes stand at `positions`, ascending; None: all that are live.

        problem  is told of each damaged inode, which is left out; None: CorruptError
        raises   CorruptError; OSError
        cost     1 us a file of 1 KiB; reads inodes, and what is between them where that is little.
                 Of more than 1,024 the page cache keeps nothing. A writer has settled what it put
        """
        if positions is None:
            positions = store.index.positions()
        return cls.concat([cls.joined(*piece) for piece in pieces(store, positions, problem)])

    @classmethod
    def joined(
        cls,
        pos: Int64,
        pointer: Int64,
        size: Int64,
        mtime: Int64,
        ftype: UInt8,
        special: UInt8,
        lengths: Int64,
        name_bytes: UInt8,
    ) -> Self:
        """From the lengths of the names, int64[n], in the place of their ends."""
        ends = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        return cls(pos, pointer, size, mtime, ftype, special, ends, name_bytes)

    @classmethod
    def concat(cls, parts: Sequence[Columns]) -> Self:
        """Parts one behind the other."""
        if len(parts) == 1:
            return cls(*parts[0].arrays())
        if not parts:
            none, bare = np.empty(0, np.int64), np.empty(0, np.uint8)
            return cls.joined(none, none, none, none, bare, bare, none, bare)
        lengths = [part.name_lengths for part in parts]
        texts = [part.names_joined for part in parts]
        columns = list(zip(*(part.arrays()[:6] for part in parts), strict=True))
        return cls.joined(*map(np.concatenate, [*columns, lengths, texts]))

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """All arrays, in the order of the fields."""
        return tuple(getattr(self, field.name) for field in fields(self))

    def __len__(self) -> int:
        return len(self.pos)

    def slice(self, start: int, stop: int) -> Self:
        """The files [start, stop), 0 <= start <= stop <= n, without a copy."""
        part = slice(start, stop)
        return type(self)(
            self.pos[part], self.pointer[part], self.size[part], self.mtime[part],
            self.ftype[part], self.special[part], self.name_ends[start : stop + 1],
            self.name_bytes,
        )  # fmt: skip

    def between(self, low: int, high: int) -> Self:
        """The files whose inodes stand in [low, high), without a copy."""
        start, stop = np.searchsorted(self.pos, [low, max(low, high)]).tolist()
        return self.slice(start, stop)

    def take(self, index: npt.NDArray[Any]) -> Self:
        """The files with these indices, int64[m] in any order, or those marked, bool[n]."""
        index = np.flatnonzero(index) if index.dtype == np.bool_ else index
        starts, lengths = self.name_ends[:-1][index], self.name_lengths[index]
        return self.joined(
            self.pos[index], self.pointer[index], self.size[index], self.mtime[index],
            self.ftype[index], self.special[index], lengths,
            gather(self.name_bytes, starts, lengths),
        )  # fmt: skip

    def visible(self, hidden: Int64 | None, *, include_dirs: bool) -> Self:
        """Without files whose inodes are in `hidden`, and without directories and links."""
        seen = np.ones(len(self), np.bool_)
        if hidden is not None and len(hidden):
            seen = ~np.isin(self.pos, hidden)
        if not include_dirs:
            seen &= (self.ftype != FileType.DIR) & (self.ftype != FileType.LINK)
        return self if seen.all() else self.take(seen)

    # --- names ---

    @property
    def name_lengths(self) -> Int64:
        """Bytes of each name, int64[n]."""
        return np.diff(self.name_ends)

    @property
    def names_joined(self) -> UInt8:
        """The names of just these files, one behind the other."""
        return self.name_bytes[self.name_ends[0] : self.name_ends[-1]]

    def names(self) -> list[bytes]:
        """Cost: 60 ns a name."""
        return texts_at(self.name_bytes, self.name_ends[:-1], self.name_lengths)

    def name(self, index: int) -> bytes:
        """One name."""
        return self.name_bytes[self.name_ends[index] : self.name_ends[index + 1]].tobytes()


def gather(data: UInt8, starts: Int64, lengths: Int64) -> UInt8:
    """data[starts[i] : starts[i] + lengths[i]], one behind the other. Cost: 5 ns a byte."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    where = np.arange(total)
    where += np.repeat(starts - ends + lengths, lengths)
    return data[where]
