"""Content: the bytes of files, checked before they are handed out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from winkformats.errors import CorruptError
from winkformats.kv.entry import KVEntry
from winkfs.container.ondisk.extent import Extent, assemble, assemble_into, check_size, cut
from winkfs.container.ondisk.inode import Attrs, Inode, default_mode
from winkfs.container.store import Store

KEEP: Final = 4  # checked entries kept, for reads in small steps of a large one
LARGE: Final = 64 << 10  # bytes from which an entry is kept


def attributes(
    inode: Inode, owner: tuple[int, int], entry_at: Callable[[int], KVEntry], file: str
) -> Attrs:
    """The attributes of a file, the defaults where it has none. Raises CorruptError."""
    if inode.attrs is None:
        return Attrs(default_mode(inode.ftype), *owner)
    pos, size = inode.attrs
    value = entry_at(pos).value
    if size > len(value):
        raise CorruptError("attribute size", file=file, offset=pos)
    return Attrs.decode(value[:size], file=file, offset=pos)


class Content:
    """Reads inodes, attributes and extents of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[int, bytes] = {}  # position -> checked value
        self.owner = store.owner

    def inode(self, key: bytes) -> tuple[int, Inode] | None:
        """The live inode of a key and its position, or None."""
        store = self._store
        while True:
            pos = store.index.lookup(key)
            if pos:
                try:
                    _, inode, deleted = store.inode_at(pos)
                except CorruptError:
                    if store.index.recheck(key):
                        continue
                    raise
                if not deleted:
                    return pos, inode
                if store.index.recheck(key):  # the cell is that of an older inode
                    continue
                if store.frozen:  # marked since then
                    return pos, inode
            if store.writable or store.frozen or not store.moved():
                # Whoever deletes a file appends a tombstone first: else the delflag is damaged.
                return (pos, inode) if pos and not store.settings.classic else None
            store.refresh()  # the writer went on since this call began

    def attrs(self, inode: Inode) -> Attrs:
        """The attributes of a file, the defaults where it has none."""
        return attributes(inode, self.owner, self._store.entry_at, self._store.kv.storage.name)

    def read(self, extents: Sequence[Extent], start: int, stop: int) -> bytes:
        """The bytes [start, stop) of a file, stop no more than its size. Raises CorruptError;
        WinkError EFBIG for a hole that is out of all proportion."""
        kv = self._store.kv
        check_size(stop - start, kv.end, kv.storage.name)
        return assemble(cut(extents, start, stop), self._value, self._store.kv.storage.name)

    def read_into(self, into: memoryview, extents: Sequence[Extent], start: int) -> int:
        """The bytes from `start` on, as many as `into` has room for -> how many."""
        part = cut(extents, start, start + len(into))
        return assemble_into(into, part, self._value, self._store.kv.storage.name)

    def read_all(self, extents: Sequence[Extent]) -> bytes:
        """All bytes of the extents."""
        return self.read(extents, 0, sum(extent.size for extent in extents))

    def _value(self, pos: int, least: int) -> bytes:
        kept = self._kept.get(pos)
        if kept is not None:
            return kept
        value = self._store.entry_at(pos).value
        if len(value) >= LARGE:
            if len(self._kept) >= KEEP:
                del self._kept[next(iter(self._kept))]
            self._kept[pos] = value
        return value

    def read_whole(self, key: bytes) -> bytes | None:
        """The whole content of a file, None where there is none of that name."""
        found = self.inode(key)
        return None if found is None else self.read(found[1].extents, 0, found[1].lsize)
