"""The files of any store as tables, with all their metadata: to list, sum or compare.

Containers and data sets are listed from their catalogs, and no content is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import CorruptError, raise_it
from winkfs.container.catalog import POLICY, open_catalog
from winkfs.container.container import Container
from winkfs.container.directories import IMPLIED, Nesting, implied, order_of
from winkfs.container.ondisk.typed import to_value
from winkfs.container.select import Query, positions_of
from winkfs.container.selection import starting
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
    latest,
    owner_word,
)
from winkfs.entry import FileType, Stat
from winkfs.errors import NoSuchFile
from winkfs.names import after, to_bytes, to_str
from winkfs.reader import Problem, Reader, each_once
from winkfs.units import LAST, NANO

if TYPE_CHECKING:
    from winkfs.dataset.reading import DatasetReading

ENTRIES_AT_ONCE: Final = 1 << 12  # of a scan that become a table


def tables(
    reader: Reader,
    prefix: bytes = b"",
    problem: Problem | None = None,
    *,
    times: Times = ALWAYS,
    where: str | None = None,
    columns: Sequence[str] = (),
    at_once: int | None = None,
) -> Iterator[FileTable]:
    """Yield the files in tables, none empty, whose rows are complete, with mode and owner.

    prefix   of the names
    problem  called with each damaged file, which is left out; None: it raises CorruptError
    times    of the mtimes, nanoseconds
    where    a condition, see `container.where`: of containers and data sets
    columns  columns of the user whose values the rows contain; of a scan they do not
    at_once  blocks of the catalog that are read together; None: the default
    ->       in byte order of the names from catalogs. A data set with very many shards is scanned
             shard by shard, any other store in its own order
    cost     that of the catalog; a scan reads each inode
    raises   ValueError; CorruptError; OSError
    """
    options: dict[str, Any] = {"times": times, "where": where, "columns": columns}
    found = from_catalogs(reader, prefix, problem, **options, at_once=at_once)
    if found is None:
        found = scanned(reader, prefix, problem, times, {} if where is None else {"where": where})
    yield from found


def from_catalogs(
    reader: Reader,
    prefix: bytes,
    problem: Problem | None,
    *,
    times: Times = ALWAYS,
    where: str | None = None,
    columns: Sequence[str] = (),
    start: bytes = b"",
    at_once: int | None = None,
) -> Iterator[FileTable] | None:
    """Return the tables of `tables` in byte order of the names; None: the store has to be scanned.

    start    the least name
    at_once  blocks of the catalog that are read together; None: the default
    """
    if not (isinstance(reader, Container) or is_dataset(reader)):
        if where is not None:
            raise ValueError(f"{reader.base}: a condition is for containers and data sets")
        return None
    found = reader.rows(prefix, problem, times, where, columns, start=start, at_once=at_once)
    if found is None:
        return None
    owner = owner_of(reader)
    some = (whole(reader, rows.owned(owner), problem) for rows in found if len(rows))
    return filter(len, some)


def is_listed(reader: Reader, prefix: bytes = b"") -> bool:
    """Return whether files with a prefix are listed from catalogs, not scanned."""
    if is_dataset(reader):
        return reader.rows(prefix, None) is not None
    return isinstance(reader, Container)


def is_dataset(reader: Reader) -> TypeGuard[DatasetReading]:
    """Return whether a store is a data set."""
    if isinstance(reader, Container):
        return False
    from winkfs.dataset.reading import DatasetReading  # late: a container needs none

    return isinstance(reader, DatasetReading)


def owner_of(reader: Reader) -> tuple[int, int]:
    """Return uid and gid of files without attributes."""
    return reader.store.owner if isinstance(reader, Container) else (0, 0)


def ordered(
    reader: Reader,
    prefix: bytes = b"",
    problem: Problem | None = None,
    *,
    times: Times = ALWAYS,
    where: str | None = None,
    columns: Sequence[str] = (),
) -> Iterator[FileTable]:
    """Yield the tables of `tables` in byte order of the names, of any store.

    cost  without catalogs, memory for all rows
    """
    found = from_catalogs(reader, prefix, problem, times=times, where=where, columns=columns)
    if found is not None:
        yield from found
        return
    options = {} if where is None else {"where": where}
    rows = FileTable.concat(list(scanned(reader, prefix, problem, times, options)))
    if len(rows):
        yield rows.take(order_of(rows.column))


def one(
    reader: Reader,
    name: bytes,
    problem: Problem | None = None,
    *,
    times: Times = ALWAYS,
    where: str | None = None,
    columns: Sequence[str] = (),
) -> Iterator[FileTable]:
    """Yield the file of a name, which exists, as `tables` does, if it meets the conditions.

    cost    one look-up; with a condition or columns, a block of the catalog
    raises  NoSuchFile; CorruptError
    """
    if where is None and not columns:
        rows = table_of([reader.stat(name)])
        yield rows.take(rows.within(times))
        return
    options: dict[str, Any] = {"times": times, "where": where, "columns": columns}
    found = tables(reader, name, problem, **options, at_once=1)
    for rows in islice(found, 1) if is_listed(reader, name) else found:  # in order it is the first
        yield rows.take(starting(rows, name) & (rows.name_lengths == len(name)))


def level(
    reader: Reader,
    prefix: bytes = b"",
    problem: Problem | None = None,
    *,
    times: Times = ALWAYS,
    where: str | None = None,
    columns: Sequence[str] = (),
) -> FileTable:
    """Return the files and directories directly below a directory, in byte order of the names.

    prefix  the name of the directory with a slash; empty: the root
    times, where  leave out directories without an entry, too, since these have no metadata
    ->      directories without an entry as `directories.implied` makes them
    cost    that of `shallow`
    """
    parts, unknown = list[FileTable](), times != ALWAYS or where is not None
    for rows, begun in shallow(reader, prefix, problem, times=times, where=where, columns=columns):
        parts += [rows] if unknown else [rows, begun]
    return _once(list(filter(len, parts)))


def shallow(
    reader: Reader,
    prefix: bytes = b"",
    problem: Problem | None = None,
    *,
    depth: int | None = 1,
    times: Times = ALWAYS,
    where: str | None = None,
    columns: Sequence[str] = (),
    at_once: int | None = None,
) -> Iterator[tuple[FileTable, FileTable]]:
    """Yield the files of some levels, and the directories of these that begin among them.

    prefix   of the names; levels count from the last slash in it
    depth    levels; None: all
    at_once  blocks of the catalog that are read together; None: the default
    ->       in byte order of the names. The directories are as `directories.implied` makes them,
             also those with an entry, which is among the files
    cost     reads the blocks of the catalog that have such names, and passes over the rest; without
             a catalog, all files
    """
    top = prefix.rfind(b"/") + 1
    nesting, owner = Nesting(top, depth), owner_of(reader)
    problem = problem and each_once(problem)  # a listing may begin several times
    options: dict[str, Any] = {"times": times, "where": where, "columns": columns}
    found = from_catalogs(reader, prefix, problem, **options, at_once=at_once)
    jumps = depth is not None and found is not None and _begins_cheaply(reader)
    left = ordered(reader, prefix, problem, **options) if found is None else found
    while (rows := next(left, None)) is not None:
        nested = nesting.add(rows)
        here = nested.level < (LAST if depth is None else depth)
        begun = implied(nested.names, len(nested.at), owner)
        yield rows if here.all() else rows.take(here), begun
        if jumps and not here[-1] and (nested.at[-1:] < len(rows) // 2).all():
            last, at = rows.last, top - 1
            for _ in range(depth or 0):
                at = last.index(b"/", at + 1)
            start = after(last[: at + 1]) or b""
            again = from_catalogs(reader, prefix, problem, **options, start=start, at_once=at_once)
            left = again or iter(())


def _begins_cheaply(reader: Reader) -> bool:
    """Return whether a listing that begins anew is cheap: without a catalog, one is made first."""
    if not isinstance(reader, Container):
        return True
    with reader.lock:
        catalog = open_catalog(reader.settled(), behind=POLICY.short)
    if catalog is not None:
        catalog.close()
    return catalog is not None


def values_of(
    reader: Reader, rows: FileTable, columns: Sequence[str], *, listed: bool
) -> list[dict[str, Any]]:
    """Return the values of columns of the user, for each row.

    listed  the rows come from catalogs, and contain the values
    """
    if not listed:
        known = zip(rows.names, (rows.pos != IMPLIED).tolist(), strict=True)
        found = (reader.getcolumns(name) if there else {} for name, there in known)
        return [{name: one.get(name) for name in columns} for one in found]
    schema = {name: reader.columns[name] for name in columns}
    pairs = zip(schema.values(), rows.typed(schema), strict=True)
    lists = [[to_value(kind, text) for text in texts] for kind, texts in pairs]
    return [dict(zip(schema, one, strict=True)) for one in zip(*lists, strict=True)]


def has_below(reader: Reader, directory: bytes, problem: Problem | None = None) -> bool:
    """Return whether there are names below a directory.

    problem  called with each damaged inode that is met; None: it raises CorruptError
    cost     the part of the catalog with such names; without one a pass over the inodes
    """
    prefix = directory + b"/"
    if isinstance(reader, Container):
        with reader.lock:
            found = positions_of(reader.settled(), Query.of_prefix(prefix))
        if found is not None:
            return len(found) > 0
    return any(True for _ in reader.scan(prefix=prefix, problem=problem))


def _once(parts: list[FileTable]) -> FileTable:
    """Return rows in order, without directories that have an entry, too."""
    rows = FileTable.concat(parts)
    lacking = rows.pos == IMPLIED
    if lacking.any():
        known = set(rows.take(rows.directories & ~lacking).names)
        twice = np.fromiter(map(known.__contains__, rows.take(lacking).names), bool)
        kept = np.ones(len(rows), bool)
        kept[lacking] = ~twice
        rows = rows.take(kept)
    return rows.take(order_of(rows.column))


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
    return latest(FileTable(names, rows))


def _numbers(stats: Sequence[Stat]) -> Int64:
    """Return the columns of files, int64[n, 8]: their positions are their numbers."""
    rows = np.zeros((len(stats), OWNER + 1), np.int64)
    rows[:, 0] = np.arange(len(stats))
    for i, stat in enumerate(stats):
        ftype = stat.ftype if 0 <= stat.ftype <= 255 else FileType.UNKNOWN  # damaged or hostile
        rows[i, FILEID:] = (
            stat.fileid, _int64(stat.size), _int64(stat.mtime_ns), BY_INODE, _int64(stat.ctime_ns),
            ftype | SPECIAL | stat.mode << MODE_AT, owner_word(stat.uid, stat.gid),
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
