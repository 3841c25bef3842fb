"""Scan: all files of a container in disk order, as of one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from winkformats.errors import CorruptError
from winkfs.entry import Entry, to_str
from winkfs.inode import Inode
from winkfs.settings import NANO, Settings
from winkfs.store import Store
from winkfs.window import Window

Int64 = npt.NDArray[np.int64]


def scan(
    store: Store,
    lock: Any,
    since: float | None,
    until: float | None,
    prefix: bytes,
    problem: Callable[[CorruptError], None] | None,
) -> Iterator[Entry]:
    """Entries of the files that are live now; their positions are taken at once."""
    settings = store.settings
    low = None if since is None else _edge(since)
    high = None if until is None else _edge(until)
    with lock:
        store.kv.view(store.kv.end - 1)  # all of it written
        positions = store.index.positions()
        if store.times is not None:
            positions = _narrow(positions, store, low, high)
        window = Window(store)
    return _entries(window, store.owner, settings, positions, low, high, prefix, problem)


def _narrow(positions: Int64, store: Store, low: int | None, high: int | None) -> Int64:
    """ao: only the positions between the time marks around [low, high)."""
    times = store.times
    assert times is not None
    first, last = 0, len(positions)
    if low is not None:
        first = int(np.searchsorted(positions, times.start(low // NANO)))
    stop = None if high is None else times.stop(-(-high // NANO))
    if stop is not None:
        last = int(np.searchsorted(positions, stop))
    return positions[first:last].copy()


def _entries(
    window: Window,
    owner: tuple[int, int],
    settings: Settings,
    positions: Int64,
    low: int | None,
    high: int | None,
    prefix: bytes,
    problem: Callable[[CorruptError], None] | None,
) -> Iterator[Entry]:
    at = 0
    try:
        while at < len(positions):
            stop = window.batch(positions, at)
            for pos in positions[at:stop].tolist():
                try:
                    key, inode = window.inode(pos)
                    ns = settings.ns_of(inode.mtime)
                    if (low is not None and ns < low) or (high is not None and ns >= high):
                        continue
                    if not key[:-3].startswith(prefix):
                        continue
                    entry = _entry(key, inode, ns, owner, window)
                except CorruptError as error:
                    if problem is None:
                        raise
                    problem(error)
                    continue
                yield entry
            at = stop
    finally:
        window.close()


def _entry(key: bytes, inode: Inode, ns: int, owner: tuple[int, int], window: Window) -> Entry:
    attrs = window.attrs(inode, owner)

    def read() -> bytes:
        return window.read(inode)

    return Entry(
        to_str(key[:-3]), inode.fileid, inode.lsize, ns, inode.ftype,
        attrs.mode, attrs.uid, attrs.gid, read,
    )  # fmt: skip


def _edge(seconds: float) -> int:
    return seconds * NANO if isinstance(seconds, int) else round(seconds * NANO)
