"""Rewrite: the visible files of some shards into new ones, which take their place.

The new shards get the highest rank of those they replace. That changes nothing of what is seen:
a file that is copied is the newest of its name, so no shard in between says anything of that name,
and shards above still win over it. A tombstone is carried along only where no shard above its own
has the name, and a shard below, which stays, has a file of it.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from winkfs.archive.items import LARGE
from winkfs.container.bulkput import Row
from winkfs.container.entry import Entry, to_bytes
from winkfs.container.ondisk.inode import default_mode, inode_key
from winkfs.container.scan import scan
from winkfs.dataset.dataset import copy_file
from winkfs.dataset.handles import Handles
from winkfs.dataset.records import ShardRecord
from winkfs.dataset.shardwriter import ShardWriter
from winkfs.dataset.snapshot import Snapshot
from winkfs.dataset.transaction import Transaction
from winkfs.mounting.shardnames import tombstones

BATCH: Final = 16 << 20  # bytes of content between two looks at the size of the new shard
PER_ROW: Final = 200  # bytes of a file in a container beside name and content, about
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Group:
    """Shards that are replaced together; it can be pickled.

    members  their numbers in the snapshot
    size     bytes of a new shard, about
    name     of the attempt that writes them
    """

    members: tuple[int, ...]
    size: int
    name: str


def rewrite(
    transaction: Transaction, snapshot: Snapshot, group: Group, progress: Progress | None = None
) -> list[ShardRecord]:
    """Write the new shards of a group -> their records, for the commit of all groups.

    progress  called with the number of files since the last call
    raises    StalePlan; CorruptError (a damaged file is not silently left out); OSError
    cost      10 us a file of 4 KiB
    """
    handles = Handles(snapshot.shards)
    try:
        run = _Rewrite(transaction, handles, group, progress or (lambda done: None))
        records = run.run()
    finally:
        handles.close()
    rank = snapshot.shards[group.members[-1]].record.rank
    return [replace(record, rank=rank) for record in records]


class _Rewrite:
    """One group on its way."""

    def __init__(
        self, transaction: Transaction, handles: Handles, group: Group, progress: Progress
    ) -> None:
        self._transaction, self._handles, self._group = transaction, handles, group
        self._progress = progress
        self._shards = [handles.shards[number] for number in group.members]
        self._ao = all(shard.record.ao for shard in self._shards)
        self._large: tuple[int, Entry] | None = None
        self._ended = False

    def run(self) -> list[ShardRecord]:
        records: list[ShardRecord] = []
        files = self._files()
        gone = live_tombstones(self._handles, self._group.members)
        while not self._ended or gone:
            writer = ShardWriter(
                self._transaction, f"{self._group.name}-{len(records)}", ao=self._ao
            )
            try:
                self._fill(writer, files)
                if self._ended:
                    writer.gone, gone = gone, set()
                if not writer.empty:
                    records.append(writer.finish())
                    continue
            except BaseException:
                writer.abandon()
                raise
            writer.abandon()
        return records

    def _files(self) -> Iterator[tuple[int, Entry]]:
        """All that can be seen of the group, with the number of the shard; ao: by mtime."""
        parts = [self._files_of(number) for number in self._group.members]
        if self._ao:
            return heapq.merge(*parts, key=lambda item: item[1].mtime_ns)
        return chain.from_iterable(parts)

    def _files_of(self, number: int) -> Iterator[tuple[int, Entry]]:
        store = self._handles.container(number).parts()[0]
        hidden = self._handles.shards[number].hidden
        alone = contextlib.nullcontext()
        for entry in scan(store, alone, None, None, b"", None, without=hidden):
            yield number, entry

    def _fill(self, writer: ShardWriter, files: Iterator[tuple[int, Entry]]) -> None:
        """Copy files until the new shard is large enough, or there are no more."""
        owner = writer.container.parts()[0].owner
        while not self._ended:
            room = min(BATCH, self._group.size - writer.size)
            done = writer.container.put_rows(self._rows(files, room, owner))
            if self._large is not None:
                number, entry = self._large
                key = to_bytes(entry.name)
                copy_file(self._handles.container(number), key, writer.container, key)
                done += 1
            self._progress(done)
            if writer.size >= self._group.size:
                return

    def _rows(
        self,
        files: Iterator[tuple[int, Entry]],
        room: int,
        owner: tuple[int, int],
    ) -> Iterator[Row]:
        """Rows of `room` bytes, or up to a large file, kept in `_large`."""
        self._large = None
        for number, entry in files:
            if entry.size >= LARGE:
                self._large = number, entry
                return
            name, mode = entry.name, entry.mode  # str: names are encoded all at once
            plain = mode == default_mode(entry.ftype) and owner == (entry.uid, entry.gid)
            if plain and not entry.xattrs:
                yield Row(name, entry.read(), entry.mtime_ns, entry.ftype)
            else:
                attrs = mode, entry.uid, entry.gid, entry.xattrs
                yield Row(name, entry.read(), entry.mtime_ns, entry.ftype, *attrs)
            room -= entry.size + len(name) + PER_ROW
            if room <= 0:
                return
        self._ended = True


# --- tombstones ---


def live_tombstones(handles: Handles, members: Sequence[int]) -> set[bytes]:
    """The names that shards of a group delete from others which stay, and still have to.

    members  numbers of the group, ascending
    """
    last: dict[bytes, int] = {}  # name -> number of the highest shard that deletes it
    for number in range(members[0], len(handles.shards)):
        for name in _gone(handles, number):
            last[name] = number
    names = [name for name, number in last.items() if number in members]
    for number in range(len(handles.shards) - 1, members[0], -1):
        has = _has(handles, number, names)
        names = [n for n, there in zip(names, has, strict=True) if not there or last[n] > number]
    needed: set[bytes] = set()
    for number in range(members[-1]):
        if number not in members:
            has = _has(handles, number, names)
            needed |= {n for n, there in zip(names, has, strict=True) if there and last[n] > number}
    return needed


def _gone(handles: Handles, number: int) -> list[bytes]:
    record = handles.shards[number].record
    if not record.tombstones:
        return []
    return tombstones(handles.container(number).parts()[0], record.tombs_at)[0]


def _has(handles: Handles, number: int, names: list[bytes]) -> Iterable[bool]:
    """Whether a shard has files of these names, hidden or not."""
    if not names or not handles.shards[number].record.files:
        return [False] * len(names)
    index = handles.container(number).parts()[0].index
    keys = list(map(inode_key, names))
    found = index.candidates(keys).tolist()
    return [pos > 0 and index.lookup(key) > 0 for pos, key in zip(found, keys, strict=True)]
