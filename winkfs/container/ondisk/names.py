"""BASE.names: how the order of all names is written, and brought up to date.

A perm of the live inodes in byte order of their names. After a few changes the old order is copied
with them put in (`Merge`), after many it is built from the index. A new file is written beside the
old one, synced and renamed over it. `nameorder` reads it.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import compress
from typing import Final

import numpy as np

from winkformats.arrays import Bools, Int64, fetch
from winkformats.disk.paths import open_file
from winkformats.disk.replace import TEMPORARY
from winkformats.errors import CorruptError, DerivedDamage, FormatError
from winkformats.kv.superblock import read_superblock
from winkformats.perm import Perm
from winkfs.container.derived import Opened
from winkfs.container.nameorder import (
    CLASHES,
    HEAD,
    NameOrder,
    is_ours,
    key_hashes,
    open_order,
    order_in,
)
from winkfs.container.namesort import CHUNK, ClashFinder, NameSorter, Sorted
from winkfs.container.ondisk.data import PURPOSE_NAMES, InodeKeys
from winkfs.container.recovery import tail
from winkfs.names import INODE, name_of

COPIED: Final = 1 << 16  # pairs copied at a time
RARE: Final = 2000  # one name in so many that came or went: cheaper to look up than to count all
SPAN: Final = 8 << 20  # bytes of the data file read at once
LONGEST: Final = 65_000 + 64  # bytes of a key, and of what stands before it
DENSE: Final = 16 << 10  # bytes a file below which reading all beats reading the keys alone
PIECE: Final = 1 << 15  # inodes looked at together
ROWS: Final = 1 << 12  # the same where each is read for itself
SHORT: Final = 64 << 20  # bytes of a tail that is merged, and not a reason to build anew
CHANGES: Final = 1 << 16  # names in it, or a part of all names:
PART: Final = 64
Fill = Callable[[Perm], int]


class Merge:
    """An order, and changes in byte order of their names: position, or 0 for one that is gone."""

    def __init__(self, order: NameOrder, changes: Iterable[Sorted]) -> None:
        self._order, self._changes = order, changes
        self._moved: list[bytes] = []  # names that came, went or changed, up to `limit`
        self._limit = order.count // RARE + 100
        self._finder: ClashFinder | None = None  # where all names are among the changes

    def pairs(self) -> Iterator[Int64]:
        """All pairs of the new order. Cost: copies the old one; a binary search a change."""
        order, done = self._order, 0
        self._moved = []
        self._finder = None if order.count else ClashFinder()
        for names, pairs in self._changes:
            if not names:
                continue
            at, same = self._places(names, done)
            self._note_moved(names, same, pairs[:, 0] != 0)
            if self._finder is not None:
                live = pairs[:, 0].tolist()
                self._finder.add([name for name, pos in zip(names, live, strict=True) if pos])
            end, first = int(at[-1]) + int(same[-1]), 0
            for start in range(done, max(end, done + 1), COPIED):
                stop = min(start + COPIED, end)
                last = len(at) if stop == end else int(np.searchsorted(at, stop))
                part = slice(first, last)
                yield _spliced(order.pairs(start, stop), at[part] - start, same[part], pairs[part])
                first = last
            done = end
        for start in range(done, order.count, COPIED):
            yield order.pairs(start, start + COPIED)

    def clashes(self, new: NameOrder, files_among: Callable[[list[bytes]], int]) -> int:
        """CLASHES of the new order, after `pairs`.

        files_among  tells how many of some names are files
        cost         binary searches for each name that came, went or changed; many: reads all names
        """
        if self._finder is not None:
            return files_among(self._finder.found)
        if self._order.clashes or len(self._moved) > self._limit:
            return files_among(find_clashes(new))
        touched = sorted({part for name in self._moved for part in _with_directories(name)})
        return files_among(_clashing(new, touched))

    def _places(self, names: list[bytes], low: int) -> tuple[Int64, Bools]:
        """For each name its index in the order, int64[n], and whether it is there, bool[n]."""
        order = self._order
        at, same = np.empty(len(names), np.int64), np.zeros(len(names), bool)
        for i, name in enumerate(names):
            at[i] = low = order.lower_bound(name, low)
            same[i] = low < order.count and order.name(low) == name
        return at, same

    def _note_moved(self, names: list[bytes], same: Bools, stays: Bools) -> None:
        for i in np.flatnonzero(same | stays).tolist():
            if len(self._moved) > self._limit:
                return
            self._moved.append(names[i])


def find_clashes(order: NameOrder) -> list[bytes]:
    """Names of an order that are also a directory of others. Cost: reads all names."""
    finder = ClashFinder()
    for start in range(0, order.count, COPIED):
        finder.add(order.names(start, start + COPIED))
    return finder.found


def _spliced(old: Int64, at: Int64, same: Bools, new: Int64) -> Int64:
    """Pairs with others put in before the indices `at`, in the place of what is there if `same`."""
    comes = new[:, 0] != 0
    kept = np.ones(len(old), bool)
    kept[at[same]] = False
    joined: Int64 = np.insert(old, at[comes], new[comes], axis=0)
    joined = joined[np.insert(kept, at[comes], True)]
    return joined


def _with_directories(name: bytes) -> list[bytes]:
    """A name and all that it has before a slash."""
    found = [name]
    at = name.find(b"/")
    while at >= 0:
        found.append(name[:at])
        at = name.find(b"/", at + 1)
    return found


def _clashing(order: NameOrder, names: list[bytes]) -> list[bytes]:
    """Those of these ascending names that are in the order, and a directory of others there."""
    found, at = [], 0
    for name in names:
        at = order.lower_bound(name, at)
        if at < order.count and order.name(at) == name:
            below = order.lower_bound(name + b"/", at)
            if below < order.count and order.name(below).startswith(name + b"/"):
                found.append(name)
    return found


class DerivedNames:
    """BASE.names of an open container.

    since   DATAEND that a file must have at least to be believed
    """

    suffix = ".names"

    def __init__(self, store: Opened) -> None:
        self._store = store
        self.since = 0

    def sweep(self) -> None:
        store, name = self._store, self._store.name + self.suffix
        store.directory.unlink(name + TEMPORARY)  # of a writer that was killed
        if not self._is_true():
            store.directory.unlink(name)  # before .data grows to its DATAEND

    def _is_true(self) -> bool:
        """Whether what a file on the disk says is true as far as it goes."""
        store = self._store
        try:
            with open_file(store.base + self.suffix) as storage:
                block = read_superblock(storage)
        except (FormatError, OSError):
            return False
        return is_ours(block, store.settings) and block.get("DATAEND", -1) <= store.kv.end

    def rewritten(self, pos: int) -> None:
        """An inode in its old place has its old name, or `Index.assign` is told."""

    def drop(self) -> None:
        store = self._store
        self.since = store.kv.end
        store.index.drop_trail()
        if store.writable:
            store.directory.unlink(store.name + self.suffix)

    def save(self) -> None:
        save_order(self._store)


def build(store: Opened, *, save: bool = True) -> NameOrder:
    """The live names of the container, from its index. A writer has synced.

    save    write BASE.names, where there is a writer, the container is not classic and the disk
            has room; else the order is kept in memory, 8 bytes a name
    raises  OSError
    cost    reads the inodes and sorts the names, n log n; memory: 8 bytes a name and 100 MiB
    """
    covered = store.kv.end
    sorter = new_sorter(store)
    try:
        for found in _on_disk(store, store.index.positions()):
            sorter.add(*found)
        if save and store.writable and not store.settings.classic:
            try:
                return _open(store, write_sorted(store, sorter, covered))
            except OSError as error:
                store.excuse(error)
        positions = _column(sorter.count, sorter.pairs())
        return NameOrder(store, positions, covered, _files_among(store, sorter.clashing))
    finally:
        sorter.close()


def merge(
    store: Opened, order: NameOrder, changes: Mapping[bytes, int], *, save: bool = True
) -> NameOrder:
    """An order brought up to date with all that happened since. A writer has synced.

    changes  name -> position of its inode, 0 where it is gone
    save     as with `build`
    raises   CorruptError; OSError
    cost     a binary search a change, and a copy of the order
    """
    work = Merge(order, [_sorted_changes(store, changes)])
    covered = store.kv.end
    if save and store.writable and not store.settings.classic:
        try:
            fill = functools.partial(_fill_merged, store, work, covered)
            return _open(store, _write(store, fill, covered))
        except OSError as error:
            store.excuse(error)
    positions = _column(order.count + len(changes), work.pairs())
    new = NameOrder(store, positions, covered, 0)
    new.clashes = work.clashes(new, lambda names: _files_among(store, names))
    return new


def save_order(store: Opened, names: NameSorter | None = None) -> None:
    """Bring BASE.names up to date with all that is durable. The writer has synced.

    Nothing is done where it is current, in classic layout, and where the disk is full.

    names   all live names, and maybe others: the file is made of them; None: see `_save_or_build`
    raises  ValueError (there is something to sync); OSError
    cost    as `merge` where little happened since it was written, else as `build`
    """
    if store.settings.classic:
        return
    if not store.writable or store.kv.end != store.synced:
        raise ValueError("a name order is saved by a writer that has synced")
    order = open_order(store) if names is None else None
    try:
        if names is not None:
            write_sorted(store, names, store.kv.end).close()
        elif order is None or order.covered != store.kv.end:
            _save_or_build(store, order)
    except CorruptError as error:
        store.note(error)
    except OSError as error:
        store.excuse(error)
    finally:
        if order is not None:
            order.close()


def _save_or_build(store: Opened, order: NameOrder | None) -> None:
    try:
        _save(store, order)
    except DerivedDamage as error:  # of the order that was there
        store.remark(error)
        build(store).close()


def _save(store: Opened, order: NameOrder | None) -> None:
    trail, end = store.index.trail, store.kv.end
    if trail is not None and trail.since == store.kv.start:
        write_sorted(store, trail.sorter(), end).close()
        return
    if trail is not None and order is not None and trail.since == order.covered:
        live = store.index.positions()
        new = live[np.searchsorted(live, trail.since) :]
        work = Merge(order, trail.sorter().blocks(new))
        _write(store, functools.partial(_fill_merged, store, work, end), end).close()
        return
    changes = None if order is None else _short_tail(store, order)
    if changes is None or order is None:
        build(store).close()
    else:
        merge(store, order, changes).close()


def _short_tail(store: Opened, order: NameOrder) -> dict[bytes, int] | None:
    """What happened since the order was written; None where it is too much to merge."""
    if store.kv.end - order.covered > max(SHORT, order.covered // PART):
        return None
    limit = max(CHANGES, order.count // PART)
    changes = dict(itertools.islice(tail(store, order.covered), limit + 1))
    return changes if len(changes) <= limit else None


def follow_names(store: Opened) -> None:
    """Keep the names that are put from now on, so that `save_order` need not read them again."""
    if not store.settings.classic:
        store.index.follow(new_sorter(store), store.kv.end)


def new_sorter(store: Opened) -> NameSorter:
    """One with its scratch file beside the container, or where temporary files go."""
    return NameSorter(store.directory.scratch, CHUNK)


def write_sorted(store: Opened, sorter: NameSorter, covered: int) -> Perm:
    """Write BASE.names from names among which all live ones are -> the file, durable."""
    live = None if sorter.count == store.index.count else store.index.positions()

    def fill(perm: Perm) -> int:
        perm.extend(sorter.pairs(live))
        return _files_among(store, sorter.clashing)

    return _write(store, fill, covered)


def write_pairs(store: Opened, pairs: Int64, clashes: int) -> Perm:
    """Write BASE.names from its pairs, int64[n, 2] -> the file. The writer has synced."""

    def fill(perm: Perm) -> int:
        perm.extend([pairs])
        return clashes

    return _write(store, fill, store.kv.end)


def _fill_merged(store: Opened, work: Merge, covered: int, perm: Perm) -> int:
    perm.extend(work.pairs())
    new = order_in(store, perm, covered, 0)
    try:
        return work.clashes(new, lambda names: _files_among(store, names))
    finally:
        new.close()


def _write(store: Opened, fill: Fill, covered: int) -> Perm:
    """Write BASE.names -> the file. `fill` adds the pairs and returns the number of clashes."""
    settings = store.settings
    extra = {"SYNCSIZE": 0, "SYNCTIME": 0, "CONTID": settings.contid, "DATAEND": 0, CLASHES: 0}
    with store.deriving(".names") as storage:
        perm = Perm.create(storage, htalgo=settings.htalgo, purpose=PURPOSE_NAMES, extra=extra)
        clashes = fill(perm)
        now = store.kv.superblock.get("SYNCTIME", int(time.time()))
        perm.seal({"DATAEND": covered, CLASHES: clashes}, now=now)
    return perm


def _open(store: Opened, perm: Perm) -> NameOrder:
    """The order in a BASE.names that was just written."""
    with perm:
        return order_in(store, perm, perm.superblock["DATAEND"], perm.superblock[CLASHES])


def _files_among(store: Opened, names: list[bytes]) -> int:
    """How many of these names are not those of directories. Cost: one look-up each."""
    return sum(not store.is_directory(name + INODE) for name in names)


def _sorted_changes(store: Opened, changes: Mapping[bytes, int]) -> Sorted:
    names = sorted(changes)
    hashes = key_hashes(store.settings.htalgo, [name + INODE for name in names])
    positions = np.fromiter(map(changes.__getitem__, names), np.int64, len(names))
    return Sorted(names, np.stack([positions, hashes], 1))


def _column(room: int, blocks: Iterable[Int64]) -> Int64:
    """The positions of all pairs, int64[n], n at most `room`."""
    positions, at = np.empty(room, np.int64), 0
    for pairs in blocks:
        positions[at : at + len(pairs)] = pairs[:, 0]
        at += len(pairs)
    return positions[:at]


def _on_disk(store: Opened, positions: Int64) -> Iterator[tuple[list[bytes], Int64, Int64]]:
    """Names, lengths and pairs of inodes at ascending positions, in that order.

    One that cannot be read is noted and left out.
    """
    for keys, at, part in _pieces(store, positions):
        try:
            names, lengths, texts = keys.names_and_keys(at)
        except CorruptError:
            part, texts = _one_by_one(store, part)
            names = list(map(name_of, texts))
            lengths = np.fromiter(map(len, names), np.int64, len(names))
        yield names, lengths, np.stack([part, key_hashes(store.settings.htalgo, texts)], 1)


def _one_by_one(store: Opened, positions: Int64) -> tuple[Int64, list[bytes]]:
    """Those of these inodes whose keys can be read, and the keys."""
    keys = list(map(store.key_at, positions.tolist()))
    good = [len(key) > len(INODE) and key.endswith(INODE) and key[-4] != 0 for key in keys]
    for pos, right in zip(positions.tolist(), good, strict=True):
        if not right:
            store.note(CorruptError("no inode with a name", file=store.kv.storage.name, offset=pos))
    return positions[np.array(good, bool)], list(compress(keys, good))


def _pieces(store: Opened, positions: Int64) -> Iterator[tuple[InodeKeys, Int64, Int64]]:
    """Parts of the positions, each with what reads the names, and where it finds them."""
    kv = store.kv
    kv.show(kv.end - 1)  # all of it written
    if not len(positions):
        return
    name, end = kv.storage.name, kv.end
    if int(positions[-1] - positions[0]) > DENSE * len(positions):
        inside = positions[(positions >= kv.start) & (positions < end)]
        for at in range(0, len(inside), ROWS):
            part = inside[at : at + ROWS]
            rows, where = fetch(kv.storage, part, HEAD)
            yield InodeKeys(rows, kv.layout, 0, len(rows), name, room=HEAD), where, part
        return
    reader = kv.storage.bulk(int(positions[0]), end)
    at = 0
    try:
        while at < len(positions):
            base = int(positions[at])
            stop = min(int(np.searchsorted(positions, base + SPAN)), at + PIECE)
            length = min(int(positions[stop - 1]) + LONGEST, end) - base
            data, part = reader.read(base, length), positions[at:stop]
            yield InodeKeys(data, kv.layout, base, end, name, base), part, part
            at = stop
    finally:
        reader.close()
