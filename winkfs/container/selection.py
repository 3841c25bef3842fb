"""Selection: chooses files by name, time, size and type.

Globs are matched on many names at once: the literal start and end of a pattern are compared as
columns, and only the remaining names with a regular expression. Spark's planner imports this module
anew for each query, so it imports little.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Bools, rows_at
from winkfs.names import is_glob, literal_prefix, matcher, to_bytes, to_str

if TYPE_CHECKING:
    from winkfs.container.table import FileTable
    from winkfs.container.where import Condition

_END: Final = re.compile(r"[*?\]]")  # what may come before the literal end of a pattern


def matches(rows: FileTable, pattern: str) -> Bools:
    """Return which names match, bool[n], by the rules of `names.matcher`.

    cost    array operations on all names; for a pattern with more than one `*`, a regular
            expression for each name whose start and end match
    """
    if not is_glob(pattern):
        name = to_bytes(pattern)
        equal: Bools = starting(rows, name) & (rows.name_lengths == len(name))
        return equal
    head, tail = literal_prefix(pattern), _END.split(pattern)[-1]
    found = starting(rows, to_bytes(head)) & ending(rows, to_bytes(tail))
    if pattern == f"{head}*{tail}" and _whole(head) and _whole(tail):
        return found & (rows.name_lengths >= len(to_bytes(head)) + len(to_bytes(tail)))
    left = np.flatnonzero(found)
    if len(left):
        names = to_str(b"\0".join(rows.take(left).names)).split("\0")
        found[left] = np.fromiter(map(bool, map(matcher(pattern), names)), np.bool_, len(left))
    return found


def starting(rows: FileTable, start: bytes) -> Bools:
    """Return which names begin with `start`, bool[n]. Cost: one array comparison."""
    return _having(rows, rows.name_ends[:-1], start)


def ending(rows: FileTable, end: bytes) -> Bools:
    return _having(rows, rows.name_ends[1:] - len(end), end)


def _having(rows: FileTable, at: npt.NDArray[Any], part: bytes) -> Bools:
    """Return which names have `part` at the offsets `at` of `name_bytes`, bool[n]."""
    found: Bools = rows.name_lengths >= len(part)
    if not part or b"\0" in part:
        return found if not part else np.zeros(len(rows), bool)
    which = slice(None) if found.all() else np.flatnonzero(found)
    if found.any():
        parts = rows_at(rows.name_bytes, at[which], len(part)).view(f"S{len(part)}")
        found[which] = parts[:, 0] == part
    return found


def _whole(literal: str) -> bool:
    """Return whether the bytes of a literal are whole characters in any context."""
    return not any("\ud800" <= char <= "\udfff" for char in literal)


@dataclass(frozen=True, slots=True)
class Selection:
    """A choice of files: those that meet all conditions. A default chooses all.

    prefix              of the name
    globs               the name matches one of them, as in `names`
    paths               the name is one of them
    since, until        mtime in [since, until), nanoseconds
    min_size, max_size  bytes, both inclusive
    ftypes              FileType is one of them
    where               a condition, see `container.where`; it is evaluated on the catalog
    """

    prefix: bytes = b""
    globs: tuple[str, ...] = ()
    paths: tuple[bytes, ...] | None = None
    since: int | None = None
    until: int | None = None
    min_size: int | None = None
    max_size: int | None = None
    ftypes: frozenset[int] | None = None
    where: Condition | None = None

    @property
    def everything(self) -> bool:
        return self == Selection()

    def chosen(self, rows: FileTable) -> Bools:
        """Return which of these files are chosen, bool[n], except by `where`.

        cost  array operations; a glob: see `matches`
        """
        found = rows.within((self.since, self.until))
        if self.min_size is not None:
            found &= rows.size >= self.min_size
        if self.max_size is not None:
            found &= rows.size <= self.max_size
        if self.ftypes is not None:
            found &= np.isin(rows.ftype, list(self.ftypes))
        if self.prefix:
            found &= starting(rows, self.prefix)
        if (self.globs or self.paths is not None) and found.any():
            left = np.flatnonzero(found)
            found[left] = self._by_name(rows if len(left) == len(rows) else rows.take(left))
        return found

    def _by_name(self, rows: FileTable) -> Bools:
        found = np.ones(len(rows), bool)
        if self.paths is not None:
            wanted = frozenset(self.paths)
            found &= np.fromiter(map(wanted.__contains__, rows.names), np.bool_, len(rows))
        if self.globs:
            found &= np.logical_or.reduce([matches(rows, pattern) for pattern in self.globs])
        return found
