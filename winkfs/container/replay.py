"""Replay: bring an index up to date with the entries that came after what it covers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from winkformats.errors import CorruptError
from winkformats.kv.sequence import KVSeq
from winkfs.container.inodescan import inode_rows
from winkfs.container.ondisk.data import Settings
from winkfs.container.ondisk.idx import Base
from winkfs.container.ondisk.inode import Inode
from winkfs.container.ondisk.time import TimeIndex

NOT_FOUND: Final = 0


class Target(Protocol):
    """What a replay brings up to date: an index, or the changes alone."""

    @property
    def base(self) -> Base | None: ...

    def lookup(self, key: bytes) -> int: ...

    def assign(self, key: bytes, pos: int) -> None: ...


class Changes(dict[bytes, int]):
    """What a tail says of the keys in it: key -> position of the inode, 0 for a name that is gone.

    A tail where a file has lost its name without a tombstone is none to go by: the index of the
    container is then rebuilt (`Replay.known`), and what stands beside it dropped.
    """

    base = None

    def lookup(self, key: bytes) -> int:
        return self.get(key, NOT_FOUND)

    def assign(self, key: bytes, pos: int) -> None:
        self[key] = pos


class Replay:
    """One pass over a tail.

    superseded  positions of inodes that the tail replaced, or that are marked deleted in it: a
                writer marks them and their entries deleted, where a kill came between the flags
    known       False where a file of the tail has an older inode that the tail does not name: then
                only a rebuild can find it
    """

    def __init__(self, kv: KVSeq, settings: Settings, index: Target, times: TimeIndex | None):
        self._kv, self._settings, self._index, self._times = kv, settings, index, times
        self._newest: dict[int, bytes] = {}  # FILEID -> key, of the files in the tail
        self._lost: set[int] = set()  # FILEIDs older than the base whose old inode is not yet met
        self.superseded: list[int] = []

    @property
    def known(self) -> bool:
        return not self._lost

    def heirs(self) -> dict[int, int]:
        """FILEID -> position of the live inode, of the files in the tail."""
        found = {fileid: self._index.lookup(key) for fileid, key in self._newest.items()}
        return {fileid: pos for fileid, pos in found.items() if pos}

    def run(
        self, start: int, stop: int, times_from: int, problem: Callable[[CorruptError], None]
    ) -> None:
        """Take in the entries of [start, stop); the time index those from `times_from` on."""
        kv = self._kv
        for _, rows in inode_rows(
            kv.storage, kv.layout, self._settings, start, stop, problem=problem
        ):
            if self._times is not None:
                new = (rows.pos >= times_from) & (rows.size > 0)
                self._times.add_many(rows.mtime[new], rows.firsts(self._settings)[new])
            fileids, deleted = rows.fileid.tolist(), rows.deleted.tolist()
            self.superseded += rows.pos[rows.deleted & (rows.size > 0)].tolist()
            for row, (key, pos) in enumerate(zip(rows.keys, rows.pos.tolist(), strict=True)):
                self._apply(key, pos, fileids[row], deleted[row])

    def _apply(self, key: bytes, pos: int, fileid: int, deleted: bool) -> None:
        index = self._index
        old = index.lookup(key)
        if old and old != pos:
            if not self._settings.havedups or not fileid:  # duplicates may stay, deleted files not
                self.superseded.append(old)
            self._lost.discard(self._fileid_at(old))
        if fileid:
            other = self._newest.get(fileid)
            if other is not None and other != key:  # renamed inside the tail
                left = index.lookup(other)
                if left and self._fileid_at(left) == fileid:
                    self.superseded.append(left)
                    index.assign(other, NOT_FOUND)
            base = index.base
            fresh = base is None or (base.nextfid and fileid >= base.nextfid)
            known = other is not None or fresh or (old and self._fileid_at(old) == fileid)
            if not known:
                self._lost.add(fileid)
            self._newest[fileid] = key
        index.assign(key, NOT_FOUND if deleted else pos)

    def _fileid_at(self, pos: int) -> int:
        entry = self._kv.get(pos)
        form, file = self._settings.form, self._kv.storage.name
        return Inode.decode(entry.value, form, file=file, offset=pos).fileid if entry.value else 0
