"""Rebuild the derived files of a container."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from winkfs.container.catalog import new_sorter
from winkfs.container.namesorter import RowCollector
from winkfs.container.ondisk.lock import WriterLock
from winkfs.container.recovery import rebuild
from winkfs.container.store import Store
from winkfs.names import base_of


def reindex(
    base: str | os.PathLike[str],
    progress: Callable[[int], None] | None = None,
    *,
    problem: Callable[[str], None] = lambda line: None,
    lock: WriterLock | None = None,
) -> int:
    """Rebuild the derived files (index, catalog, time index, counters) from the data file.

    progress  called with the number of bytes read since the last call
    problem   called with a line for each damaged place, whose files are left out
    lock      the lock of the container, if the caller has it; it is released. None: it is taken
    ->        number of files
    raises    FileNotFoundError; Locked; CorruptError if a length is damaged in a file
              without checksums: the next entry is not known
    cost      one pass over the data file; memory: see `rebuild`
    """
    with (
        Store(base_of(base), writable=True, load=False, lock=lock) as store,
        contextlib.closing(new_sorter(store)) as sorter,
    ):
        rows = None if store.settings.classic else RowCollector(store, sorter)
        store.catalog.drop()
        found = rebuild(store.kv, store.settings, problem=store.note, progress=progress, names=rows)
        store.take(found)
        store.catalog.save(sorter if found.whole else None)
        count = store.index.count
        store.kv.release()
    for line in store.notes:
        problem(line)
    return count
