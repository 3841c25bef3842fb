"""Drafts: how what is being changed becomes inodes, is counted, and is made durable.

The entry comes first, then what is known in memory: so a call that a signal interrupts can be taken
as done or as not begun (`recover`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import numpy as np

from winkfs.container.arguments import check_directory
from winkfs.container.bulkencode import append_drafts, can_append
from winkfs.container.content import Content
from winkfs.container.draft import Draft, DraftWriter, with_ctime
from winkfs.container.files import Files
from winkfs.container.ondisk.inode import Inode
from winkfs.container.store import Store

TAILS: Final = 64 << 20  # bytes of drafts' tails in memory
DRAFTS: Final = 4096
FEW_DRAFTS: Final = 16  # up to which they are settled one by one


class Drafts(Files):
    """Files with drafts that are written: the room they need, their inodes, when those are synced.

    held   bytes kept ready for somebody: see `hold`
    last   ao: position of the inode written last, 0: none since open
    """

    def __init__(self, store: Store, content: Content) -> None:
        super().__init__(store, content)
        self.last = 0
        self.held: dict[int, int] = {}
        self._waiting = 0  # bytes that all drafts still have to write, at most, and those held
        self._pending = 0  # bytes appended to drafts since they were last settled
        self._sure = False  # whether what was found when it was opened is on the disk
        self._writer = DraftWriter(store.kv, store.settings, content.read_all)

    # --- drafts ---

    def _draft(self, key: bytes, what: str, size: int = 0) -> Draft:
        """The draft of an existing file, begun now if there is none. `size`: bytes to be added."""
        self._limit_drafts()
        draft = self.drafts.get(key)
        if draft is None:
            self._store.need_delflag(what)
            pos, inode = self._inode(key)
            attrs = self._content.attrs(inode) if inode.attrs else None
            draft = Draft.of(key, inode, pos, attrs)
        check_directory(draft.ftype, key[:-3], size)
        self.drafts[key] = draft
        return draft

    def _limit_drafts(self) -> None:
        if self._pending > TAILS or len(self.drafts) > DRAFTS:
            self.settle()

    def _touch(self, draft: Draft, count: int, ns: int | None = None) -> None:
        ns = time.time_ns() if ns is None else ns
        draft.mtime = self._store.settings.mtime_of(ns)
        self._pending += count
        if draft.attrs is not None and draft.attrs.ctime_ns is not None:
            with_ctime(draft, ns, ns, self._content.owner)

    def _pop(self, key: bytes) -> Draft | None:
        draft = self.drafts.pop(key, None)
        if draft is not None:
            self._waiting -= draft.promised
        return draft

    # --- room on the disk ---

    def _promise(self, draft: Draft, length: int) -> None:
        """Make room for `length` bytes more of a draft, beside what all drafts still have to write.

        raises  OSError ENOSPC, before anything is changed
        """
        cost = self._writer.cost(draft, length)
        self._kv.reserve(self._waiting + cost - draft.promised)
        self._waiting += cost - draft.promised
        draft.promised = cost

    def hold(self, holder: int, size: int) -> None:
        """Keep `size` bytes of the disk ready for somebody, instead of what he had before.

        raises  OSError ENOSPC, before anything is changed
        """
        more = size - self.held.get(holder, 0)
        if more > 0:
            self._kv.reserve(self._waiting + more)
        self._waiting += more
        self.held[holder] = size

    def let_go(self, holder: int) -> bool:
        """-> whether something was held for him."""
        held = self.held.pop(holder, None)
        if held is not None:
            self._waiting -= held
        return held is not None

    @property
    def spare(self) -> int:
        """Bytes of the disk that the data file has and that nobody has been promised."""
        return self._kv.spare - self._waiting

    def cost(self, key: bytes, size: int) -> int:
        """Bytes that a new file of this size takes at most. Raises EFBIG where it is too large."""
        draft = Draft(key, 0, 0, 0)
        self._writer.need_room(draft, size)
        return self._writer.cost(draft, size)

    def cost_of_change(self, key: bytes) -> int:
        """Bytes that writing to a file takes at most beside what is written."""
        draft = self.drafts.get(key)
        if draft is None:
            pos, inode = self._inode(key)
            draft = Draft.of(key, inode, pos, None)
        return self._writer.cost(draft, 0)

    # --- inodes ---

    def _append_inode(self, draft: Draft) -> tuple[Inode, int, int]:
        """-> the inode, its position, bytes of its value. Where it fails the draft stays good."""
        store, kv = self._store, self._kv
        inode = self._writer.settle(draft)
        value = inode.encode(store.settings.form, store.settings.isz)
        if not (store.settings.ao and draft.old):
            return inode, kv.append(draft.key, value), len(value)
        kv.replace(draft.old, draft.key, value)
        store.rewritten(draft.old)
        return inode, draft.old, len(value)

    def _account(
        self,
        draft: Draft,
        inode: Inode,
        pos: int,
        size: int,
        *,
        bulk: bool = False,
        new: bool = False,
    ) -> None:
        """Take a written inode into index, time index and counters. `new`: there was no key."""
        store = self._store
        if draft.old and pos != draft.old:
            self._doom(draft.old, 0, 0, set())
        if store.times is not None and not draft.old:
            store.times.add(draft.mtime, min([pos, *inode.pointers]))
        store.itotsz += size - draft.old_size
        store.dtotsz += draft.lsize - draft.old_lsize
        self._doom_entries(draft.owned - set(inode.pointers))
        self.last = pos
        if bulk:
            store.index.add_bulk([draft.key], np.array([pos]))
        else:
            store.index.assign(draft.key, pos, new=new)

    def _drop(self, key: bytes) -> bool:
        """Doom what the name holds -> whether there was something on disk."""
        draft = self._pop(key)
        if draft is not None:
            self._doom(draft.old, draft.old_size, draft.old_lsize, draft.owned)
            return draft.old != 0
        self.settle_bulk()
        found = self._content.inode(key)
        if found is None:
            return False
        self._store.need_delflag("replacing or deleting a file")
        pos, inode = found
        self._doom(pos, inode.size, inode.lsize, set(inode.pointers))
        return True

    # --- durability ---

    def settle(self) -> None:
        """Write the inodes of all drafts, and look through what was put in bulk."""
        self.settle_drafts()
        self.settle_bulk()

    def settle_drafts(self) -> None:
        """Write the inodes of all drafts."""
        self._pending = 0
        if len(self.drafts) > FEW_DRAFTS and can_append(self._store) and not self._store.times:
            for keys in append_drafts(self._store, self.drafts.values()):
                for key in keys:
                    self._pop(key)
        for key, draft in list(self.drafts.items()):
            self._settle_one(key, draft)

    def _settle_one(self, key: bytes, draft: Draft) -> None:
        self._account(draft, *self._append_inode(draft), new=not draft.old)
        self._pop(key)

    def sync(self) -> None:
        """Make everything durable."""
        for _ in self.syncing():
            self._kv.sync_storage()

    def syncing(self) -> Iterator[None]:
        """`sync` in steps, see `GrowingFile.syncing`."""
        self.settle()
        store = self._store
        if self._kv.end != store.synced or store.doomed:
            yield from store.syncing_data()
        elif not self._sure:  # what was found may be of a sync that failed, see `GrowingFile`
            yield
        self._sure = True
        if not store.should_merge:
            return
        if self.drafts or self._kv.end != store.synced:  # an index is of what is durable
            self.settle()
            store.sync_data()
        store.merge()

    def close(self) -> None:
        """Sync, and bring index and time index up to date on disk."""
        self.sync()
        base = self._store.index.base
        if (
            self._store.index.pending
            or base is None
            or base.covered != self._kv.end
            or not self._store.times_current
        ):
            self._store.merge()

    def recover(self) -> None:
        """After a failed write or an interrupted call: what is whole in the file counts.

        So do drafts that build on it. Cost: a rebuild.
        """
        store, kv = self._store, self._kv
        broken = kv.broken
        kv.settle()
        for key, draft in list(self.drafts.items()):
            if max([draft.old, *draft.owned]) >= kv.end:
                del self.drafts[key]  # it built on what was lost
            elif store.settings.ao:  # in place, which a sync forbids
                self._append_inode(draft)
                del self.drafts[key]
        store.recover(broken)
        self._pending = self.last = 0
        self._waiting = sum(self.held.values())
        for key, draft in list(self.drafts.items()):
            found = self._content.inode(key)
            if found is None and not draft.old:  # never written
                self._waiting += draft.promised
                continue
            if found is None or found[1].fileid != draft.fileid:
                del self.drafts[key]  # deleted, replaced or renamed: the call came that far
                continue
            draft.old, inode = found
            draft.old_size, draft.old_lsize = inode.size, inode.lsize
            draft.owned.update(inode.pointers)
            self._waiting += draft.promised
