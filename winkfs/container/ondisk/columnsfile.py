"""BASE.cols on disk: when it is believed, and how it is written; `columnschunks` has its bytes.

A new one is written beside the old one, synced and renamed over it, like all that is derived.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np

from winkformats.disk.paths import open_file
from winkformats.errors import CorruptError, FormatError
from winkformats.kv.superblock import read_superblock
from winkfs.container.basepath import base_of
from winkfs.container.columns.columns import Columns
from winkfs.container.columns.trail import ColumnTrail
from winkfs.container.ondisk.cols import ColumnsFile as ColumnsFile
from winkfs.container.ondisk.cols import ColumnsWriter
from winkfs.container.store import Store

FILES: Final = 1 << 16  # of a chunk
NAMES: Final = 1 << 28  # bytes of the names of a chunk, about: int32 offsets hold them


def open_columns(store: Store | str, *, mapped: bool = True) -> ColumnsFile | None:
    """BASE.cols of a container, by its store or BASE, if it can be believed.

    mapped  False: it is read by pread, for who serves others; the last chunk stays in memory
    ->      None where it is missing, foreign, damaged, or not of just what the data file holds
    raises  FormatError, OSError where the superblock of BASE.data cannot be read
    cost    0.2 ms
    """
    if isinstance(store, str):
        with open_file(base_of(store) + ".data") as data:
            block = read_superblock(data)
            contid, end = block.get("CONTID", 0), block.get("FILESIZE", -1)
            if end > data.size():  # cut short: the columns would name what is not there
                return None
        base, note = base_of(store), None
    else:
        contid, end = store.settings.contid, store.kv.end
        base, note = store.base, store.note
    return _open(base + ".cols", contid, end, note, mapped=mapped)


def _open(
    path: str,
    contid: int,
    end: int,
    note: Callable[[CorruptError], None] | None,
    *,
    mapped: bool,
) -> ColumnsFile | None:
    try:
        storage = open_file(path)
    except OSError:
        return None
    storage.mapped = mapped
    try:
        found = ColumnsFile(storage)
    except (FormatError, OSError, ValueError) as error:
        storage.close()
        if note is not None and isinstance(error, CorruptError):
            note(error)
        return None
    if contid and (found.contid, found.covered) == (contid, end):
        return found
    found.close()
    return None


def columns_between(
    base: str, low: int, high: int, problem: Callable[[CorruptError], None] | None = None
) -> Columns:
    """The files of a container whose inodes stand in [low, high): from BASE.cols where it is good.

    problem  is told of each damaged inode, which is left out; None: CorruptError
    raises   NoSuchFile; FormatError; OSError
    cost     0.3 ms; without BASE.cols an index is opened, and inodes are read: see `Columns.of`
    """
    found = open_columns(base)
    if found is not None:
        with found, contextlib.suppress(CorruptError):  # as if it were missing
            return found.between(low, high)
    store = Store(base_of(base), writable=False)
    try:
        positions = store.index.positions()
        start, stop = np.searchsorted(positions, [low, max(low, high)]).tolist()
        return Columns.of(store, positions[start:stop], problem)
    finally:
        store.abandon()


def follow_columns(store: Store) -> None:
    """Keep what is put in bulk from now on, so that `write_columns` need not read it again."""
    if store.settings.contid and store.settings.nanoseconds:
        store.columns = ColumnTrail()


def write_columns(store: Store, rows: Iterable[Columns] | None = None) -> None:
    """Write BASE.cols for all live files. The writer has synced.

    Nothing is done in classic layout, which has no CONTID, and where the disk is full.

    rows    their columns, in order of their inodes, in parts of any size; None: those that the
            store was told to follow, and the others read
    raises  ValueError (there is something to sync); CorruptError (a damaged inode); OSError
    cost    0.1 us a file where they are known; memory: a chunk
    """
    if not store.settings.contid:
        return
    if not store.writable or store.kv.end != store.synced:
        raise ValueError("columns are written by a writer that has synced")
    try:
        with store.deriving(".cols", uncached=True) as storage:
            writer = ColumnsWriter(storage, store.settings.contid)
            trail = store.columns or ColumnTrail()
            for chunk in _chunks(trail.rows(store) if rows is None else rows):
                writer.add(chunk)
            now = store.kv.superblock.get("SYNCTIME", int(time.time()))
            writer.finish(store.kv.end, now)
        storage.close()
    except OSError as error:
        store.excuse(error)


def _chunks(parts: Iterable[Columns]) -> Iterator[Columns]:
    """The same files in chunks of FILES, or less where their names are long."""
    waiting: list[Columns] = []
    files = names = 0
    for whole in parts:
        at = 0
        while at < len(whole):
            limit = int(whole.name_ends[at]) + NAMES - names
            fits = int(np.searchsorted(whole.name_ends, limit, "right")) - 1
            stop = min(len(whole), at + FILES - files, max(fits, at + (files == 0)))
            part = whole.slice(at, stop)
            waiting += [part] if len(part) else []
            files, names, at = files + len(part), names + len(part.names_joined), stop
            if at < len(whole):
                yield Columns.concat(waiting)
                waiting, files, names = [], 0, 0
    if waiting:
        yield Columns.concat(waiting)
