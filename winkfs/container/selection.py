"""Selection: which files, by name, time, size and type. Light: Spark's planner imports it anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Bools

if TYPE_CHECKING:
    from winkformats.arrays import Int64
    from winkfs.container.columns.columns import Columns
    from winkfs.container.ondisk.cols import Chunk


@dataclass(frozen=True, slots=True)
class Selection:
    """Which files: those that fit in all of it. A default leaves all.

    prefix              of the name
    globs               one of which the name matches, as in `names`
    paths               names; others are not chosen
    since, until        mtime in [since, until), nanoseconds
    min_size, max_size  bytes, both inclusive
    ftypes              FileType
    """

    prefix: bytes = b""
    globs: tuple[str, ...] = ()
    paths: tuple[bytes, ...] | None = None
    since: int | None = None
    until: int | None = None
    min_size: int | None = None
    max_size: int | None = None
    ftypes: frozenset[int] | None = None

    @property
    def everything(self) -> bool:
        return self == Selection()

    @property
    def by_number(self) -> bool:
        """Whether mtime, size or type count."""
        return (self.since, self.until, self.min_size, self.max_size, self.ftypes) != (None,) * 5

    def chosen(self, rows: Columns) -> Bools:
        """Which of these files, bool[n]. Cost: 40 ns a file; a glob: see `globs.matches`."""
        found = self.numbers(rows.mtime, rows.size, rows.ftype)
        if self.prefix:
            from winkfs.container.globs import starting

            found &= starting(rows, self.prefix)
        if (self.globs or self.paths is not None) and found.any():
            left = np.flatnonzero(found)
            found[left] = self._by_name(rows if len(left) == len(rows) else rows.take(left))
        return found

    def _by_name(self, rows: Columns) -> Bools:
        found = np.ones(len(rows), bool)
        if self.paths is not None:
            wanted = frozenset(self.paths)
            found &= np.fromiter(map(wanted.__contains__, rows.names()), np.bool_, len(rows))
        if self.globs:
            from winkfs.container.globs import matches

            found &= np.logical_or.reduce([matches(rows, pattern) for pattern in self.globs])
        return found

    def numbers(self, mtime: Int64, size: Int64, ftype: npt.NDArray[Any]) -> Bools:
        """Which of n files by what is not their name, bool[n]."""
        found = np.ones(len(mtime), bool)
        if self.since is not None:
            found &= mtime >= self.since
        if self.until is not None:
            found &= mtime < self.until
        if self.min_size is not None:
            found &= size >= self.min_size
        if self.max_size is not None:
            found &= size <= self.max_size
        if self.ftypes is not None:
            found &= np.isin(ftype, list(self.ftypes))
        return found

    def may_be_in(self, chunk: Chunk) -> bool:
        """Whether mtime and size can be those of a file of the chunk."""
        return not (
            (self.since is not None and chunk.mtime_max < self.since)
            or (self.until is not None and chunk.mtime_min >= self.until)
            or (self.min_size is not None and chunk.size_max < self.min_size)
            or (self.max_size is not None and chunk.size_min > self.max_size)
        )
