"""Builds the manifest record of a closed container."""

from __future__ import annotations

import contextlib
import errno
from dataclasses import replace

from winkfs.container.columns import Columns
from winkfs.container.ondisk.cols import ColumnsFile, open_columns, sum_of, write_columns
from winkfs.container.ondisk.idx import open_base
from winkfs.container.store import Store
from winkfs.dataset.hidden import tombstones
from winkfs.dataset.records import NAME, ShardRecord
from winkfs.errors import Refusal
from winkfs.names import to_strs


def survey(base: str, path: str, tombs_at: int = 0) -> ShardRecord:
    """Build the manifest record of a closed container. Writes BASE.cols where it is missing.

    path      of the shard below the data set
    tombs_at  position from which its tombstones count; 0: it has none
    raises    Refusal where it was not closed; FormatError; OSError
    cost      reads BASE.cols where there is one, else the inodes
    """
    store = Store(base, writable=False, load=False)
    try:
        _check_closed(store)
        index = open_base(base + ".idx", store.settings, store.kv.superblock, store.kv.end)
        whole = index is not None and index.covered == store.kv.end
        if index is not None:
            index.storage.close()
        columns = open_columns(store) if whole else None
    finally:
        store.abandon()
    if columns is None:
        store = Store(base, writable=True)  # makes the index, where it is not there
        try:
            _check_closed(store)
            write_columns(store)
        finally:
            store.close()
        columns = open_columns(base)
    return describe(base, path, tombs_at, columns)


def _check_closed(store: Store) -> None:
    kv = store.kv
    if kv.truncated or kv.superblock.get("SYNCSIZE", kv.end) != kv.end or store.notes:
        what = store.notes[0] if store.notes else "it was not closed"
        raise Refusal(f"cannot become a shard: {what}", store.base, number=errno.EINVAL)


def describe(base: str, path: str, tombs_at: int, columns: ColumnsFile | None) -> ShardRecord:
    """The record of a sound container; `columns` are closed. Raises FormatError; OSError."""
    with contextlib.ExitStack() as stack:
        if columns is not None:
            stack.enter_context(columns)
        store = Store(base, writable=False, load=columns is None)
        stack.callback(store.abandon)
        gone = tombstones(store, tombs_at)[0]
        if columns is None:  # classic layout
            parts = [Columns.of(store)]
        else:
            parts = [columns.chunk(i) for i in range(len(columns.chunks))]
        end = store.kv.end
        record = ShardRecord(
            path, store.settings.contid, end, sum(map(len, parts)),
            sum(sum_of(part.size) for part in parts), len(gone), tombs_at if gone else end,
            ao=store.settings.ao,
        )  # fmt: skip
    parts = [part for part in parts if len(part)]
    if parts:
        low, high = (min(int(p.mtime.min()) for p in parts), max(int(p.mtime.max()) for p in parts))
        record = replace(record, mtime_min=low, mtime_max=high)
    ends = [*gone, *(end for part in parts for end in _ends(part.names()))]
    if ends and max(map(len, (min(ends), max(ends)))) <= NAME:
        first, last = to_strs([min(ends), max(ends)])
        record = replace(record, first=first, last=last)
    return record


def _ends(names: list[bytes]) -> tuple[bytes, bytes]:
    return min(names), max(names)
