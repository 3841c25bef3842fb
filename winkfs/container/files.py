"""Files: what is seen of files by their inode keys, with the drafts of a writer laid over."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from winkformats.kv.sequence import KVSeq
from winkfs.container.draft import Draft
from winkfs.container.entry import Stat
from winkfs.container.index import MERGE_OVERLAY
from winkfs.container.ondisk.inode import Attrs, Extent, Inode, cut, default_mode, joined
from winkfs.errors import NoSuchFile
from winkfs.names import name_of, to_str

if TYPE_CHECKING:
    from winkfs.container.read import Content
    from winkfs.container.store import Store


class Files:
    """The looking side of a container. All raise NoSuchFile for a missing key, save `find`.

    drafts   files that `Changes` has begun to change, by key
    """

    def __init__(self, store: Store, content: Content) -> None:
        self._store, self._content = store, content
        self.drafts: dict[bytes, Draft] = {}

    @property
    def _kv(self) -> KVSeq:
        return self._store.kv

    def settle_bulk(self) -> None:
        """Look through what was put in bulk for double names; after that the index is whole."""
        index = self._store.index
        if not index.bulk:
            return
        for pos in index.settle():
            _, inode, _ = self._store.inode_at(pos)
            self.doom(pos, inode.size, inode.lsize, set(inode.pointers))
        if index.must_merge or len(index.overlay) > MERGE_OVERLAY:
            self._store.sync_data()
            self._store.merge()

    def doom(
        self, pos: int, size: int, lsize: int, pointers: set[int], *, delete: bool = False
    ) -> None:
        """Count an inode and its entries as gone, and have their delflags set after the sync."""
        store = self._store
        store.itotsz -= size
        store.dtotsz -= lsize
        if pos and (delete or not store.settings.havedups):
            store.doomed.append(pos)
            self._kv.aentries -= 1
        self.doom_entries(pointers, delete=delete)

    def doom_entries(self, pointers: set[int], *, delete: bool = False) -> None:
        """The same for entries that no inode names any more."""
        if self._kv.layout.delflag and (delete or not self._store.settings.havedups):
            self._store.doomed += sorted(pointers)
            self._kv.aentries -= len(pointers)

    def find(self, key: bytes) -> bool:
        """Whether there is a file with this inode key."""
        self.settle_bulk()
        return key in self.drafts or self._content.inode(key) is not None

    def inode(self, key: bytes) -> tuple[int, Inode]:
        """The inode of a file as it was last settled, and its position."""
        self.settle_bulk()
        found = self._content.inode(key)
        if found is None:
            raise NoSuchFile("no such file in the container", to_str(name_of(key)))
        return found

    def stat(self, key: bytes) -> Stat:
        draft = self.drafts.get(key)
        if draft:
            attrs, size = self._draft_attrs(draft), draft.lsize
            fileid, mtime, ftype = draft.fileid, draft.mtime, draft.ftype
        else:
            inode = self.inode(key)[1]
            attrs, size = self._content.attrs(inode), inode.lsize
            fileid, mtime, ftype = inode.fileid, inode.mtime, inode.ftype
        ns = self._store.settings.ns_of(mtime)
        name = to_str(name_of(key))
        ctime = ns if attrs.ctime_ns is None else attrs.ctime_ns
        return Stat(name, fileid, size, ns, ftype, attrs.mode, attrs.uid, attrs.gid, ctime)

    def attrs(self, key: bytes) -> Attrs:
        """Mode, owner and extended attributes, the defaults where nothing is stored."""
        draft = self.drafts.get(key)
        if draft is None:
            return self._content.attrs(self.inode(key)[1])
        return self._draft_attrs(draft)

    def _draft_attrs(self, draft: Draft) -> Attrs:
        return draft.attrs or Attrs(default_mode(draft.ftype), *self._content.owner)

    def extents(self, key: bytes) -> Sequence[Extent]:
        """Where the content lies, in order; what is in memory only with pointer -1."""
        draft = self.drafts.get(key)
        if draft is None:
            inode = self.inode(key)[1]
            return cut(inode.extents, 0, inode.lsize)
        tail = [Extent(-1, 0, len(draft.tail))] if draft.tail else []
        return joined(draft.extents, tail)

    def read(self, key: bytes, offset: int, size: int) -> bytes:
        """`size` bytes from `offset`, -1: to the end."""
        if offset < 0:
            raise ValueError(f"offset must not be negative, {offset} is")
        extents, body, tail = self._stands(key)
        return self._read(extents, body, tail, offset, offset + size if size >= 0 else sys.maxsize)

    def read_into(self, key: bytes, offset: int, into: memoryview) -> int:
        """Fill a buffer from `offset` -> bytes, fewer only at the end of the file."""
        extents, body, tail = self._stands(key)
        room = min(len(into), max(body - offset, 0))
        done = self._content.read_into(into[:room], extents, offset)
        rest = tail[max(offset - body, 0) :][: len(into) - done]
        into[done : done + len(rest)] = rest
        return done + len(rest)

    def reader(self, key: bytes) -> Callable[[int, int], bytes]:
        """-> reads (offset, size) of the file as it stands now, also when it has changed or gone.

        For as long as the handle is open, except for entries that a failed write took along: see
        `Engine.troubles`. Memory: 1 MiB at most; nothing is copied but the tail of a draft.
        """
        extents, body, tail = self._stands(key)
        tail = bytes(tail)
        return lambda offset, size: self._read(extents, body, tail, offset, offset + size)

    def _stands(self, key: bytes) -> tuple[Sequence[Extent], int, bytes | bytearray]:
        """-> the extents of the first bytes of a file, how many these are, what follows them."""
        draft = self.drafts.get(key)
        if draft is not None:
            return draft.extents, draft.body, draft.tail
        inode = self.inode(key)[1]
        return inode.extents, inode.lsize, b""

    def _read(
        self, extents: Sequence[Extent], body: int, tail: bytes | bytearray, start: int, stop: int
    ) -> bytes:
        rest = tail[max(start - body, 0) : max(stop - body, 0)]
        return self._content.read(extents, start, min(stop, body)) + rest
