"""Batch: names of the order one after another as files that a directory shows."""

from __future__ import annotations

import stat
from itertools import repeat
from typing import Any, Final, cast

import numpy as np

from winkformats.arrays import Int64, fetch
from winkformats.errors import CorruptError
from winkfs.container.arguments import nearest_ns
from winkfs.container.ondisk.data import nearest_many
from winkfs.container.ondisk.inode import Attrs, FileType, default_mode
from winkfs.container.plain import PlainInodes, few_inodes, good_inodes
from winkfs.container.store import Store
from winkfs.mounting.ids import OWN_IDS
from winkfs.names import MAX_COMPONENT, MAX_PATH
from winkfs.units import NANO
from winkmount.source import Attr

FEW: Final = 64  # names that are cheaper one by one than as columns
ROUND: Final = 384  # bytes of an entry beside its inode: a name up to 370 bytes
SPECIAL: Final = 1 << 10  # bytes of the attributes of a file that are read with those of others
UNKNOWN: Final = (b"", 0, 0, 0, 0)
MODE_OF: Final = [stat.S_IFREG | default_mode(ftype) for ftype in range(256)]
MODE_OF[FileType.LINK] = stat.S_IFLNK | 0o777
MODES: Final = np.array(MODE_OF, np.int64)
MAKE: Final = cast(Any, tuple.__new__)  # what _make does, without a frame of Python: 0.2 us less


class Batch:
    """What is to say of some names.

    names, shorts   n names, and what of them is below the directory
    attrs           n attributes, None at the indices in `odd`: look one by one
    ids, known      of the others: ids and names, where the mount is to remember them
    flat            all of them can be shown, and are files of the directory itself
    """

    names: list[bytes]
    attrs: list[Attr | None]
    ids: list[int]
    known: list[bytes]
    odd: list[int]

    def _cut(self, cut: int) -> None:
        """`cut`: bytes of each name up to what is below the directory."""
        self.shorts = [name[cut:] for name in self.names] if cut else self.names
        joined = b"/".join(self.shorts)
        self.flat = (
            joined.count(b"/") == len(self.names) - 1
            and max(map(len, self.shorts)) <= MAX_COMPONENT
            and max(map(len, self.names)) <= MAX_PATH
            and not {b"", b".", b".."}.intersection(self.shorts)
        )


class InodeBatch(Batch):
    """What the inodes at some positions say. A name that is damaged is b""."""

    def __init__(self, store: Store, positions: Int64, cut: int) -> None:
        """`positions`: int64[n]; `cut`: bytes of each name up to what is below the directory."""
        n, kv = len(positions), store.kv
        kv.show(kv.end - 1)
        inside = (positions >= kv.start) & (positions < kv.end)
        if not inside.all():
            positions = np.where(inside, positions, kv.start - 1)  # where no inode is
        data, at = fetch(kv.storage, positions, store.inode_size + ROUND)
        if n <= FEW:
            self._each(store, data, at.tolist(), positions.tolist())
        else:
            self._all(store, data, at, positions)
        self.odd = [i for i, attr in enumerate(self.attrs) if attr is None]
        for i in self.odd:
            self.names[i] = self.names[i] or name_at(store, int(positions[i]))
        self._cut(cut)

    def _each(self, store: Store, data: bytes, at: list[int], positions: list[int]) -> None:
        kv, settings, (uid, gid) = store.kv, store.settings, store.owner
        unit = 1 if settings.nanoseconds else NANO
        self.names, self.attrs, self.ids, self.known = [], [], [], []
        for found in few_inodes(data, at, positions, kv.layout, settings.form, store.inode_size):
            name, fileid, size, ftype, mtime = found or UNKNOWN
            self.names.append(name)
            if 0 < fileid < OWN_IDS and ftype != FileType.DIR:
                mode = MODE_OF[ftype & 255]
                self.attrs.append(
                    MAKE(Attr, (fileid, mode, size, nearest_ns(mtime * unit), uid, gid, 0))
                )
                self.ids.append(fileid)
                self.known.append(name)
            else:
                self.attrs.append(None)

    def _all(self, store: Store, data: bytes, at: Int64, positions: Int64) -> None:
        settings, n = store.settings, len(positions)
        rows = good_inodes(data, at, positions, store.kv.layout, settings.form)
        files = (rows.ftype != FileType.DIR) & (rows.fileid < OWN_IDS)
        rows = rows if files.all() else rows.take(files)
        self.ids, self.known = rows.fileid.tolist(), rows.names
        times = rows.mtime
        if not settings.nanoseconds:
            times = nearest_many(times)
        attrs: list[Attr | None] = list(map(
            MAKE,
            repeat(Attr),
            zip(
                self.ids, MODES[rows.ftype & 255].tolist(), rows.lsize.tolist(), times.tolist(),
                repeat(store.owner[0]), repeat(store.owner[1]), repeat(0),
            ),
        ))  # fmt: skip
        self._special(store, rows, attrs)
        if len(attrs) == n:
            self.attrs, self.names = [*attrs], rows.names
            return
        self.attrs, self.names = [None] * n, [b""] * n
        for i, attr, name in zip(rows.which.tolist(), attrs, rows.names, strict=True):
            self.attrs[i], self.names[i] = attr, name

    @staticmethod
    def _special(store: Store, rows: PlainInodes, attrs: list[Attr | None]) -> None:
        """Put in what the attributes of files say, None where they are damaged."""
        fields, kv = rows.fields, store.kv
        which = np.flatnonzero((fields[:, 6] > 0) & (fields[:, -1] < 0))
        places, sizes = fields[which, 7], -fields[which, -1]
        inside = (places >= kv.start) & (places < kv.end) & (sizes <= SPECIAL)
        for i in which[~inside].tolist():
            attrs[i] = None
        which, places, sizes = which[inside], places[inside], sizes[inside]
        data, at = fetch(kv.storage, places, int(sizes.max(initial=0)) + ROUND)
        each = zip(which.tolist(), at.tolist(), places.tolist(), sizes.tolist(), strict=True)
        for i, start, pos, size in each:
            attrs[i] = _with_attrs(store, attrs[i], data, start, pos, size)


def _with_attrs(
    store: Store, attr: Attr | None, data: bytes, at: int, pos: int, size: int
) -> Attr | None:
    """A file with the attributes that are the first bytes of an entry, None where it is damaged."""
    name = store.kv.storage.name
    try:
        value = store.kv.layout.decode(data, at, pos, name).value
        found = Attrs.decode(value[:size], file=name, offset=pos)
    except CorruptError:
        return None
    if attr is None or len(value) < size:
        return None
    mode = stat.S_IFMT(attr.mode) | stat.S_IMODE(found.mode)
    return attr._replace(mode=mode, uid=found.uid, gid=found.gid, ctime_ns=found.ctime_ns or 0)


def name_at(store: Store, pos: int) -> bytes:
    """The name of the inode at a position, b"" where it is not sure.

    Where the inode is damaged, the hash that the index has of the key tells whether the key is.
    """
    try:
        return store.inode_at(pos)[0][:-3]
    except CorruptError:
        key = store.key_at(pos)
        return key[:-3] if key and store.index.lookup(key) == pos else b""


def fine(short: bytes, path: bytes) -> bool:
    """Whether this can be shown as a file."""
    usual = short not in (b"", b".", b"..")
    return usual and len(short) <= MAX_COMPONENT and len(path) <= MAX_PATH
