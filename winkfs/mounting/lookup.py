"""Finding and reading what a container has, for a mount.

Lookup       files by key, entries by position
CacheBudget  what a mount does to the page cache of its container
find_data   data and holes of extents
facts_of    what a mount shows of an inode, for people
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from winkformats.arrays import Int64
from winkformats.disk.storage import Storage
from winkformats.kv.scan import values_at
from winkfs.container.ondisk.inode import FRAME, Attrs, Extent, Inode
from winkfs.container.read import KEPT_BYTES
from winkfs.container.short import FIRST, Short, renewed
from winkfs.container.table import BY_INODE
from winkfs.names import INODE, name_of
from winkmount.source import refuse

if TYPE_CHECKING:
    from winkfs.container.read import Content
    from winkfs.container.store import Store

PAGE: Final = 4096
MOST_PAGES: Final = 8192  # that may come before they go
NAME_BYTES: Final = 256  # bytes of a name, mostly
ENTRY_BYTES: Final = 32  # bytes of an entry beside its value, mostly: 11, and "<file id>/D0"
KEPT_INODES: Final = 64  # inodes of several extents kept
KEPT_ATTRS: Final = 1 << 10  # attributes kept
AHEAD_BYTES: Final = 4 << 20  # bytes that the disk reads ahead for files in order, at most
SHOWN_EXTENTS: Final = 64  # extents in a text


class CacheBudget:
    """Keeps what a mount reads of its containers from filling the page cache.

    The kernel keeps what was read as pages of the mount. So pages of the containers are dropped
    when MOST_PAGES of all of them have come, except those that were there when the mount began.
    """

    def __init__(self) -> None:
        self._pages = 0
        self._storages: set[Storage] = set()

    def touches(self, storage: Storage, pages: int) -> None:
        self._storages.add(storage)
        self._pages += pages
        if self._pages > MOST_PAGES:
            self.drop()

    def drop(self) -> None:
        for storage in self._storages:
            storage.drop_seen()
        self._storages.clear()
        self._pages = 0


class Found(NamedTuple):
    """The inode of a file.

    size     bytes
    mtime    as stored
    attrs    None: the defaults
    """

    pos: int
    fileid: int
    size: int
    ftype: int
    mtime: int
    attrs: Attrs | None


class Lookup:
    """Finds and reads what is in a store; drafts are not.

    A file of the usual layout goes the short way (`short.Short`), any other the ordinary one
    (`read.Content`). Everything is read by pread, and `CacheBudget` decides what stays of it in the
    page cache. What finds a file raises CorruptError.

    touches  reports pages of the data file that are read
    """

    def __init__(self, store: Store, content: Content, budget: CacheBudget) -> None:
        self._store, self._content, self._short = store, content, FIRST
        store.kv.storage.remember_resident()
        self.touches = partial(budget.touches, store.kv.storage)
        self._region = memoryview(bytearray(0))
        self._ahead = 0  # bytes of the file up to which the disk was asked for them
        self._inode_at = lru_cache(KEPT_INODES)(store.inode_at)
        self._decoded = lru_cache(KEPT_ATTRS)(partial(Attrs.decode, file=store.kv.storage.name))

    def close(self) -> None:
        """Release the descriptors that the short way has of its own."""
        self._short = FIRST

    # inodes

    def find(self, key: bytes) -> Found | None:
        """Return the file with this inode key, or None."""
        self.touches(1)
        name = key[: -len(INODE)]
        found = self._short.find(name)
        if found is None:
            found = self._renewed(self._store.index.overlay.get(key, 0)).find(name)
        if found is None:
            known = self._content.inode(key)
            return None if known is None else self._found(*known)
        return self._decoded_found(*found) if found else None

    def at(self, pos: int) -> Found:
        """Return the file whose inode is at a position."""
        self.touches(1)
        found = self._short.find_at(pos) or self._renewed(pos).find_at(pos)
        return self._decoded_found(*found[1]) if found else self._found(pos, self.inode(pos))

    def name(self, pos: int) -> bytes:
        """Return the name of the file whose inode is at a position."""
        self.touches(1)
        found = self._short.find_at(pos) or self._renewed(pos).find_at(pos)
        return found[0] if found else name_of(self._inode_at(pos)[0])

    def inode(self, pos: int) -> Inode:
        return self._inode_at(pos)[1]

    def _renewed(self, pos: int) -> Short:
        """Return the short way as it is now, for the inode at a position."""
        self._short = renewed(self._short, self._store, {}, pos)
        return self._short

    def _decoded_found(
        self, fileid: int, size: int, ftype: int, mtime: int, word: bytes | None, at: int, pos: int
    ) -> Found:
        attrs = None if word is None else self._decoded(word, offset=at)
        return Found(pos, fileid, size, ftype, mtime, attrs)

    def _found(self, pos: int, inode: Inode) -> Found:
        attrs = self._content.attrs(inode) if inode.attrs else None
        return Found(pos, inode.fileid, inode.lsize, inode.ftype, inode.mtime, attrs)

    # contents

    def read(self, pos: int, whole: int, offset: int, size: int, pointer: int = BY_INODE) -> bytes:
        """Read up to `size` bytes from `offset` of the file whose inode stands at a position.

        whole    bytes of the file
        pointer  as in `FileTable`
        """
        stop = min(offset + size, whole)
        if offset >= stop:
            return b""
        self.touches((stop - offset) // PAGE + 1)
        if whole <= KEPT_BYTES or stop - offset == whole:
            found = self._short.read_at(pos, whole) or self._renewed(pos).read_at(pos, whole)
            if found is not None and len(found) == whole:
                return found[offset:stop]
        plain = pointer > 0  # read even if the inode is damaged
        extents = [Extent(pointer, 0, whole)] if plain else self.inode(pos).extents
        return self._content.read(extents, offset, stop, holder=pos)

    def contents(self, positions: Int64, pointers: Int64, sizes: Int64) -> list[memoryview | None]:
        """Read the contents of files of one entry each at once. int64[n] each: where their inodes
        are, the entries, and the bytes of each file.

        None where they lie far apart, or where an inode or a content is written in another way or
        damaged: see `read`. They are good until the next call.
        """
        kv, inode = self._store.kv, self._store.inode_size
        low, high = int(pointers.min()), int((pointers + sizes).max()) + ENTRY_BYTES
        near = high - low <= 2 * int(sizes.sum()) and kv.layout.standard and low > 0
        if not near or high - ENTRY_BYTES > kv.visible:
            return [None] * len(pointers)
        high += inode + ENTRY_BYTES + NAME_BYTES  # `put` writes an inode behind its content
        self.touches((high - low) // PAGE)
        self._expect(high, high - low)
        if high - low > len(self._region):
            self._region = memoryview(bytearray(high - low))
        data = self._region[: kv.storage.read_into(self._region[: high - low], low)]
        places = np.concatenate([pointers, positions])
        every = np.append(sizes, np.full_like(sizes, inode))
        good, at = values_at(data, places - low, kv.layout, places, every)
        n = len(sizes)
        starts, ends = at[:n].tolist(), (at[:n] + sizes).tolist()
        both = (good[:n] & good[n:]).tolist()
        return [data[a:b] if ok else None for ok, a, b in zip(both, starts, ends, strict=True)]

    def _expect(self, at: int, size: int) -> None:
        """Read ahead behind `at`, as the files in the `size` bytes before it were read: the disk
        brings twice as many bytes, while these are checked and pushed."""
        stop = min(at + min(2 * size, AHEAD_BYTES), self._store.kv.end)
        start = self._ahead if at <= self._ahead <= at + AHEAD_BYTES else at
        if stop - start >= min(size, AHEAD_BYTES // 4):
            self._store.kv.storage.read_ahead(start, stop - start)
            self._ahead = stop

    def present(self, pos: int, size: int) -> bool:
        """Return whether the page cache has the inode at a position and a content of `size` bytes
        before it, where `put` writes it. See `Storage.present`."""
        start = max(pos - size - ENTRY_BYTES, 0)
        storage = self._store.kv.storage
        return storage.present(start, pos + self._store.inode_size - start)

    def bring(self, pos: int, size: int) -> None:
        """Have them brought from the disk, and wait for that. For any thread."""
        start = max(pos - size - ENTRY_BYTES, 0)
        self._store.kv.storage.read(start, pos + self._store.inode_size + NAME_BYTES - start)


def find_data(extents: Sequence[Extent], offset: int, *, hole: bool) -> int:
    """Return the offset of the first byte from `offset` on that is (not) in a hole; see
    `Source.seek`."""
    if not 0 <= offset < sum(size for _, _, size in extents):
        raise refuse(errno.ENXIO)
    at = 0
    for pointer, _, size in extents:
        at += size
        if at > offset and (pointer == 0) == hole:
            return max(offset, at - size)
    if hole:
        return at
    raise refuse(errno.ENXIO)


def facts_of(fileid: int, ftype: int, extents: Sequence[Extent]) -> dict[str, str]:
    """Return the facts of an inode, see `Source.facts`."""
    kind = chr(ftype) if 32 < ftype < 127 else str(ftype)
    return {"fileid": str(fileid), "ftype": kind, "extents": text_of(extents)}


def text_of(extents: Sequence[Extent]) -> str:
    """`bytes@position` each, `bytes+skipped@position` where the first of an entry are not used,
    `bytes@position(zstd)` of a frame, `bytes@hole` and `bytes@memory`; the first of many, and how
    many there are."""
    parts = []
    for pointer, skip, size in extents[:SHOWN_EXTENTS]:
        framed, skip = skip >= FRAME, skip & ~FRAME
        place = "hole" if pointer == 0 else "memory" if pointer < 0 else str(pointer)
        place += "(zstd)" if framed else ""
        parts.append(f"{size}+{skip}@{place}" if skip else f"{size}@{place}")
    if len(extents) > SHOWN_EXTENTS:
        parts.append(f"... {len(extents)} in all")
    return " ".join(parts)
