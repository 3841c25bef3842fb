"""Scan: all files of a container in disk order, as of one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import compress, repeat
from typing import Any

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import CorruptError
from winkfs.container.arguments import to_ns
from winkfs.container.entry import Entry, SpecialEntry, entries, to_str, to_strs
from winkfs.container.ondisk.data import Settings
from winkfs.container.ondisk.inode import default_mode
from winkfs.container.plain import PlainInodes
from winkfs.container.store import Store
from winkfs.container.window import Window
from winkfs.units import NANO


def scan(
    store: Store,
    lock: Any,
    since: float | None,
    until: float | None,
    prefix: bytes,
    problem: Callable[[CorruptError], None] | None,
    without: Int64 | None = None,
) -> Iterator[Entry]:
    """Entries of the files that are live now; their positions are taken at once.

    without  positions that are passed over, ascending
    """
    settings = store.settings
    low, high = to_ns(since), to_ns(until)
    with lock:
        store.kv.show(store.kv.end - 1)  # all of it written
        positions = store.index.positions()
        if store.times is not None:
            positions = narrow(positions, store, low, high)
        if without is not None and len(without):
            positions = positions[~np.isin(positions, without, assume_unique=True)]
        window = Window(store)
    return _entries(window, store.owner, settings, positions, low, high, prefix, problem)


def narrow(positions: Int64, store: Store, low: int | None, high: int | None) -> Int64:
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
    chosen = _Chosen(settings, low, high, prefix)
    try:
        while at < len(positions):
            stop = window.batch(positions, at)
            for found in _batch(window, owner, chosen, positions[at:stop]):
                if type(found) is not int:
                    yield found  # type: ignore[misc]
                    continue
                try:
                    entry = _entry(window, owner, chosen, found)
                except CorruptError as error:
                    if problem is None:
                        raise
                    problem(error)
                    continue
                if entry is not None:
                    yield entry
            at = stop
    finally:
        window.close()


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Which files: mtimes in [low, high) nanoseconds, names with a prefix."""

    settings: Settings
    low: int | None
    high: int | None
    prefix: bytes

    def has(self, name: bytes, ns: int) -> bool:
        if (self.low is not None and ns < self.low) or (self.high is not None and ns >= self.high):
            return False
        return name.startswith(self.prefix)

    @property
    def all(self) -> bool:
        return self.low is None and self.high is None and not self.prefix


def _batch(
    window: Window, owner: tuple[int, int], chosen: _Chosen, positions: Int64
) -> Iterable[Entry | int]:
    """The files of a batch in order; of those that are not plain, the position."""
    plain = window.plain(positions)
    if not len(plain):
        return positions.tolist()  # type: ignore[no-any-return]
    odd = np.ones(len(positions), bool)
    odd[plain.which] = False
    settings = chosen.settings
    mtimes = plain.mtime.tolist()
    times = mtimes if settings.nanoseconds else list(map(settings.ns_of, mtimes))
    if not chosen.all:
        kept = list(map(chosen.has, plain.names, times))
        plain = plain.take(np.array(kept, bool))
        times = list(compress(times, kept))
    made = _plain_entries(window, owner, plain, times)
    if not odd.any():
        return made
    found: list[Entry | int] = list(made)
    places = np.searchsorted(plain.which, np.flatnonzero(odd))
    for k, (place, pos) in enumerate(zip(places.tolist(), positions[odd].tolist(), strict=True)):
        found.insert(place + k, pos)
    return found


def _plain_entries(
    window: Window, owner: tuple[int, int], plain: PlainInodes, times: list[int]
) -> Iterator[Entry]:
    sizes, ftypes = plain.lsize.tolist(), plain.ftype.tolist()
    modes = {ftype: default_mode(ftype) for ftype in set(ftypes)}
    reads = map(partial, repeat(window.read_plain), plain.pointer.tolist(), sizes)
    return entries(
        to_strs(plain.names), plain.fileid.tolist(), sizes, times, ftypes,
        map(modes.__getitem__, ftypes), repeat(owner[0]), repeat(owner[1]), times, reads,
    )  # fmt: skip


def _entry(window: Window, owner: tuple[int, int], chosen: _Chosen, pos: int) -> Entry | None:
    """Any file, None for one that is not chosen. Raises CorruptError."""
    key, inode = window.inode(pos)
    name, ns = key[:-3], chosen.settings.ns_of(inode.mtime)
    if not chosen.has(name, ns):
        return None
    attrs = window.attrs(inode, owner)
    said = (
        to_str(name), inode.fileid, inode.lsize, ns, inode.ftype,
        attrs.mode, attrs.uid, attrs.gid, ns if attrs.ctime_ns is None else attrs.ctime_ns,
        partial(window.read, inode),
    )  # fmt: skip
    extents = inode.extents
    if not attrs.xattrs and (not extents or (len(extents) == 1 and extents[0].pointer)):
        return Entry(*said)
    return SpecialEntry(*said, attrs.xattrs, partial(window.pieces, inode))
