"""BASE.names: the name order on disk, made from the index and written beside the old one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from winkformats import hashing
from winkformats.perm import Perm
from winkformats.storage import FileStorage, Storage, publish
from winkfs.clashes import ClashCounter
from winkfs.inodekeys import InodeKeys
from winkfs.nameorder import CLASHES, NameOrder, order_in
from winkfs.namesort import NameSorter, Sorted
from winkfs.rows import Int64
from winkfs.settings import PURPOSE_NAMES
from winkfs.store import NO_ROOM, Store
from winkfs.timeindex import fresh

SPAN: Final = 8 << 20  # bytes of the data file read at once
LONGEST: Final = 65_000 + 64  # bytes of a key, and of what stands before it
DENSE: Final = 16 << 10  # bytes a file below which reading all beats reading the keys alone
PIECE: Final = 1 << 16  # inodes looked at together


def build(store: Store, *, save: bool = True) -> NameOrder:
    """The live names of the container, from its index. The writer has synced.

    save    write BASE.names, where there is a writer, the container is not classic and the disk
            has room; else the order is kept in memory, 8 bytes a name
    raises  CorruptError; OSError
    cost    1 us a name in file order, 3 us in any order; memory: 8 bytes a name and 100 MiB
    """
    covered = store.kv.end
    sorter = NameSorter(lambda: _scratch(store))
    try:
        positions = store.index.positions()
        count = len(positions)
        for found in _on_disk(store, positions):
            sorter.add(*found)
        del positions
        if save and store.writable and not store.settings.classic:
            try:
                return write_order(store, sorter.blocks(), covered)
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
        return _in_memory(store, sorter.blocks(), count, covered)
    finally:
        sorter.close()


def _on_disk(store: Store, positions: Int64) -> Iterator[Sorted]:
    """The names of inodes at ascending positions, in that order, with their pairs."""
    kv, htalgo = store.kv, store.settings.htalgo
    kv.view(kv.end - 1)  # all of it written
    for keys, part in _pieces(store, positions):
        pairs = np.empty((len(part), 2), np.int64)
        pairs[:, 0] = part
        pairs[:, 1] = hashing.hash_keys(htalgo, keys.keys(part))[1].view(np.int64)
        yield Sorted(keys.names(part), pairs)


def _pieces(store: Store, positions: Int64) -> Iterator[tuple[InodeKeys, Int64]]:
    """Parts of the positions, each with what reads the keys there."""
    kv = store.kv
    if not len(positions):
        return
    name, end = kv.storage.name, kv.end
    if int(positions[-1] - positions[0]) > DENSE * len(positions):
        keys = InodeKeys(kv.storage.view(end, sparse=True), kv.layout, kv.start, end, name)
        for at in range(0, len(positions), PIECE):
            yield keys, positions[at : at + PIECE]
        return
    reader = kv.storage.bulk(int(positions[0]), end)
    at = 0
    try:
        while at < len(positions):
            base = int(positions[at])
            stop = min(int(np.searchsorted(positions, base + SPAN)), at + PIECE)
            length = min(int(positions[stop - 1]) + LONGEST, end) - base
            data = reader.read(base, length)
            yield InodeKeys(data, kv.layout, base, end, name, base), positions[at:stop]
            at = stop
    finally:
        reader.close()


def _in_memory(store: Store, blocks: Iterable[Sorted], count: int, covered: int) -> NameOrder:
    clashes = ClashCounter()
    positions, at = np.empty(count, np.int64), 0
    for names, pairs in blocks:
        clashes.add(names)
        positions[at : at + len(names)] = pairs[:, 0]
        at += len(names)
    return NameOrder(store, positions, covered, clashes.count)


def write_order(store: Store, blocks: Iterable[Sorted], covered: int) -> NameOrder:
    """Write BASE.names from all live names in order -> what is in it. Durable on return."""
    clashes = ClashCounter()

    def fill(perm: Perm) -> int:
        for names, pairs in blocks:
            clashes.add(names)
            perm.append_many(pairs[:, 0], pairs[:, 1])
        return clashes.count

    return write_perm(store, fill, covered)


def write_perm(store: Store, fill: Callable[[Perm], int], covered: int) -> NameOrder:
    """Write BASE.names. `fill` appends the pairs and returns the number of clashes."""
    path = store.base + ".names"
    storage = fresh(path + ".tmp")
    try:
        settings = store.settings
        extra = {"SYNCSIZE": 0, "SYNCTIME": 0, "CONTID": settings.contid, "DATAEND": 0, CLASHES: 0}
        perm = Perm.create(storage, htalgo=settings.htalgo, purpose=PURPOSE_NAMES, extra=extra)
        clashes = fill(perm)
        now = store.kv.superblock.get("SYNCTIME", int(time.time()))
        perm.sync({"DATAEND": covered, CLASHES: clashes}, now=now)
        order = order_in(store, storage)
        assert order is not None
        publish(path + ".tmp", path)
        return order
    except BaseException:
        Path(path + ".tmp").unlink(missing_ok=True)
        raise
    finally:
        storage.close()


def _scratch(store: Store) -> Storage:
    """A file without a name beside the container, or where temporary files go."""
    path = store.base + ".names.runs"
    Path(path).unlink(missing_ok=True)
    storage = FileStorage(path, "x")
    Path(path).unlink()
    return storage
