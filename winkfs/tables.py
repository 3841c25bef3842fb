"""The files of any store as tables, with all their metadata: for whoever lists, sums or compares.

Containers and data sets are listed from their catalogs, and no content is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import CorruptError, raise_it
from winkfs.container.container import Container
from winkfs.container.table import (
    ALWAYS,
    BY_INODE,
    FILEID,
    MODE_AT,
    NOTHING,
    OWNER,
    SPECIAL,
    FileTable,
    Times,
    owner_word,
)
from winkfs.dataset.reading import DatasetReading
from winkfs.entry import Stat
from winkfs.errors import NoSuchFile
from winkfs.names import to_bytes, to_str
from winkfs.reader import Problem, Reader
from winkfs.units import LAST, NANO

ENTRIES_AT_ONCE: Final = 1 << 12  # of a scan that become a table


def tables(
    reader: Reader,
    prefix: bytes = b"",
    problem: Problem | None = None,
    *,
    times: Times = ALWAYS,
    where: str | None = None,
    columns: Sequence[str] = (),
) -> Iterator[FileTable]:
    """Yield the files in tables whose rows are complete, with mode and owner.

    prefix   of the names
    problem  called with each damaged file, which is left out; None: it raises CorruptError
    times    of the mtimes, nanoseconds
    where    a condition, see `container.where`: of containers and data sets
    columns  columns of the user whose values the rows contain; of a scan they do not
    ->       in byte order of the names from catalogs. A data set with very many shards is scanned
             shard by shard, any other store in its own order
    cost     that of the catalog; a scan reads each inode
    raises   ValueError; CorruptError; OSError
    """
    found = None
    options: dict[str, Any] = {}
    if isinstance(reader, Container | DatasetReading):
        found = reader.rows(prefix, problem, times, where, columns)
        options = {"where": where}
    elif where is not None:
        raise ValueError("a condition is for containers and data sets")
    if found is None:
        yield from scanned(reader, prefix, problem, times, options)
        return
    owner = reader.store.owner if isinstance(reader, Container) else (0, 0)
    for rows in found:
        if len(rows):
            whole_rows = whole(reader, rows.owned(owner), problem)
            if len(whole_rows):
                yield whole_rows


def scanned(
    reader: Reader,
    prefix: bytes,
    problem: Problem | None,
    times: Times,
    options: dict[str, Any],
) -> Iterator[FileTable]:
    """Yield the files of a scan, see `tables`. options: further ones of the scan."""
    low, high = times
    since = None if low is None else low // NANO  # whole seconds, which lose no digits
    until = None if high is None else -(-high // NANO)
    found = reader.scan(since, until, to_str(prefix), problem=problem, **options)
    while some := list(islice(found, ENTRIES_AT_ONCE)):
        rows = table_of(some)
        kept = rows.take(rows.within(times))
        if len(kept):
            yield kept


def table_of(stats: Sequence[Stat]) -> FileTable:
    """Return files as a table whose positions are their numbers."""
    numbers = _numbers(stats)
    return FileTable([to_bytes(stat.name) for stat in stats], numbers)


def table_by_name(names: list[bytes], facts: Sequence[Sequence[int]]) -> FileTable:
    """Return files as a table in byte order of the names; of several with one name the last counts.

    facts  of each: size, mtime and ctime in nanoseconds, FileType, mode, uid, gid
    ->     positions are the numbers of the files in the order given
    """
    if not names:
        return NOTHING
    size, mtime, ctime, ftype, mode, uid, gid = np.array(facts, np.int64).T
    rows = np.zeros((len(names), OWNER + 1), np.int64)
    rows[:, 0] = np.arange(len(names))
    rows[:, FILEID + 1 : OWNER] = np.stack([
        size, mtime, np.full(len(names), BY_INODE), ctime, ftype | SPECIAL | mode << MODE_AT,
    ], 1)  # fmt: skip
    rows[:, OWNER] = uid | (gid - (gid >> 31 << 32)) << 32
    found = FileTable(names, rows)
    found = found.take(np.argsort(found.column, kind="stable"))
    kept = np.ones(len(found), np.bool_)
    kept[:-1] = found.column[1:] != found.column[:-1]
    return found if kept.all() else found.take(kept)


def _numbers(stats: Sequence[Stat]) -> Int64:
    """Return the columns of files, int64[n, 8]: their positions are their numbers."""
    rows = np.zeros((len(stats), OWNER + 1), np.int64)
    rows[:, 0] = np.arange(len(stats))
    for i, stat in enumerate(stats):
        rows[i, FILEID:] = (
            stat.fileid, _int64(stat.size), _int64(stat.mtime_ns), BY_INODE, _int64(stat.ctime_ns),
            stat.ftype | SPECIAL | stat.mode << MODE_AT, owner_word(stat.uid, stat.gid),
        )  # fmt: skip
    return rows


def _int64(number: int) -> int:
    return min(max(number, -LAST - 1), LAST)


def whole(reader: Reader, rows: FileTable, problem: Problem | None) -> FileTable:
    """Return rows without ASK: with metadata that the catalog does not have."""
    asked = np.flatnonzero(rows.asked)
    if not len(asked):
        return rows
    numbers, kept = rows.numbers.copy(), np.ones(len(rows), np.bool_)
    for i in asked.tolist():
        try:
            stat = reader.stat(rows.name(i))
        except CorruptError as error:
            (problem or raise_it)(error)
            kept[i] = False
        except NoSuchFile:  # removed meanwhile
            kept[i] = False
        else:
            numbers[i, FILEID:] = _numbers([stat])[0, FILEID:]
    return rows.with_numbers(numbers).take(kept)
