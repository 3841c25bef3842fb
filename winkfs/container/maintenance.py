"""Maintenance of a whole container."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from winkfs.container.basepath import base_of
from winkfs.container.ondisk.columnsfile import write_columns
from winkfs.container.ondisk.names import new_sorter, save_order
from winkfs.container.rebuild import rebuild
from winkfs.container.store import Store


def reindex(
    base: str | os.PathLike[str],
    progress: Callable[[int], None] | None = None,
    *,
    cols: bool = False,
    problem: Callable[[str], None] = lambda line: None,
) -> int:
    """Drop what is derived (index, names, time index, counters) and make it from the data file.

    progress  called with the number of bytes read since the last call
    cols      write BASE.cols too; else it is brought up to date where it is there
    problem   called with a line for each damaged place, whose files are left out
    ->        number of files
    raises    FileNotFoundError; Locked; CorruptError where the chain of entries breaks, and there
              are no checksums to find where it goes on
    cost      1.4 million entries/s warm
    """
    store = Store(base_of(base), writable=True, load=False)
    names = None if store.settings.classic else new_sorter(store)
    try:
        store.drop_names()
        found = rebuild(
            store.kv, store.settings, problem=store.note, progress=progress, names=names
        )
        store.take(found)
        save_order(store, names if found.whole else None)
        if cols or Path(store.base + ".cols").exists():
            write_columns(store)
        count = store.index.count
        store.close()
        for line in store.notes:
            problem(line)
        return count
    except BaseException:
        store.abandon()
        raise
    finally:
        if names is not None:
            names.close()
