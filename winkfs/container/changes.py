"""Changes: what a writer does to files, by key.

A change of the name space moves the end of the data file: a new inode, or a tombstone. What it
supersedes is marked deleted after the next sync.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from winkfs.container.arguments import check_attrs, check_directory, check_size
from winkfs.container.draft import Draft, with_ctime, with_mode
from winkfs.container.drafts import Drafts
from winkfs.container.entry import to_str
from winkfs.container.ondisk.extent import Extent, joined
from winkfs.container.ondisk.inode import Attrs, default_mode
from winkfs.container.store import MERGE_OVERLAY
from winkfs.errors import NotAllowed, WinkError
from winkfs.units import NANO

DOOMED: Final = 1 << 20  # delflags waiting for a sync
OVERLAY: Final = 2 * MERGE_OVERLAY  # changes in memory, 250 bytes each, before a sync is due
NOTED: Final = 64  # bytes that the time of a change takes, at most
SOON: Final = 2 * NANO
PIECE: Final = 160  # bytes that a small overwrite needs beside its own: pairs, a part of an entry
EXTENTS: Final = 4096  # of a file that is streamed, to which more are appended one by one
AO: Final = "the container is append-only"


class Changes(Drafts):
    """The changing side of a container."""

    # --- whole files ---

    def attrs_for(
        self,
        ftype: int,
        mode: int | None,
        uid: int | None,
        gid: int | None,
        xattrs: Mapping[bytes, bytes] | None = None,
    ) -> Attrs | None:
        """Attributes asked for at creation; None: the defaults."""
        if mode is None and uid is None and gid is None and not xattrs:
            return None
        owner = self._content.owner
        if (mode, uid, gid) == (default_mode(ftype), *owner) and not xattrs:
            return None
        return check_attrs(
            Attrs(
                default_mode(ftype) if mode is None else mode & 0o7777,
                owner[0] if uid is None else uid,
                owner[1] if gid is None else gid,
                dict(xattrs or {}),
            )
        )

    def put(self, key: bytes, data: bytes, ns: int | None, ftype: int, attrs: Attrs | None) -> None:
        """Create or replace a file."""
        self._writer.need_room(None, len(data))
        draft = self._begin(key, ns, ftype, attrs)
        self._kv.reserve(self._waiting + self._writer.cost(draft, len(data)))
        self._writer.append(draft, data)
        self._replace(draft)

    def begin(self, key: bytes, ns: int | None, ftype: int, attrs: Attrs | None) -> int:
        """A new file without content -> its FILEID. There must be none of that name.

        It is a draft, and not in the data file before it has 1 MiB, or is settled.
        """
        self._limit_drafts()
        draft = self._begin(key, ns, ftype, attrs)
        self._promise(draft, 0)
        self.drafts[key] = draft
        return draft.fileid

    def put_bulk(
        self, key: bytes, data: bytes, ns: int | None, ftype: int, attrs: Attrs | None
    ) -> None:
        """The same among files put in bulk: what had the name is found with theirs."""
        self._writer.need_room(None, len(data))
        draft = self._begin(key, ns, ftype, attrs)
        self._kv.reserve(self._writer.cost(draft, len(data)))
        self._writer.append(draft, data)
        inode, pos, size = self._append_inode(draft)
        self._account(draft, inode, pos, size, bulk=True)

    def put_stream(
        self,
        key: bytes,
        source: Any,
        ns: int | None,
        ftype: int,
        attrs: Attrs | None,
        fileid: int | None = None,
    ) -> int:
        """Create or replace a file with what `source.read` gives -> bytes."""
        draft = self._begin(key, ns, ftype, attrs, fileid)
        try:
            self._take_stream(draft, source)
        except Exception:  # not of a signal, which may come after the inode
            self._doom_entries(draft.owned)
            raise
        self._replace(draft)
        return draft.lsize

    def _take_stream(self, draft: Draft, source: Any) -> None:
        """Append all of a stream to a new draft."""
        writer, name = self._writer, draft.key[:-3]
        skip = getattr(source, "skip_hole", None) if self._store.settings.holes else None
        aside: list[Sequence[Extent]] = []  # or each piece would copy the extents of all before it
        while True:
            if skip is not None and (gap := skip()):
                check_size(draft.lsize + gap, name)
                self._kv.reserve(self._waiting + writer.cost(draft, 0))
                writer.truncate(draft, draft.lsize + gap)
            if not (data := source.read(writer.chunk)):
                break
            check_directory(draft.ftype, name, len(data))
            self._kv.reserve(self._waiting + writer.cost(draft, len(data)))
            writer.append(draft, data)
            if len(draft.base) > EXTENTS:
                aside.append(draft.base)
                draft.base = ()
        draft.base = joined(*aside, draft.base)
        writer.need_room(draft, 0)
        self._kv.reserve(self._waiting + writer.cost(draft, 0))

    def _replace(self, draft: Draft) -> None:
        """Write a new or renamed file; then doom what had its name."""
        try:
            inode, pos, size = self._append_inode(draft)
        except Exception:  # not of a signal, which may come after the inode
            if not draft.old:
                self._doom_entries(draft.owned)
            raise
        self._drop(draft.key)
        self._account(draft, inode, pos, size)

    def _begin(
        self,
        key: bytes,
        ns: int | None,
        ftype: int,
        attrs: Attrs | None,
        fileid: int | None = None,
    ) -> Draft:
        if self._store.settings.ao and self.drafts:
            self.settle()
        if len(self._store.doomed) > DOOMED or len(self._store.index.overlay) > OVERLAY:
            self.sync()
        mtime = self.new_mtime(ns)
        draft = Draft(key, fileid or self._store.new_fileid(), ftype, mtime)
        if attrs is not None:
            self._set_attrs(draft, attrs)
        if not self._kv.layout.delflag and self._content.inode(key):
            self._store.need_delflag("replacing a file")
        return draft

    def new_mtime(self, ns: int | None) -> int:
        """FMTIME for a new file. ao: never before that of the last one."""
        settings, times = self._store.settings, self._store.times
        mtime = settings.mtime_of(time.time_ns() if ns is None else ns)
        if times is None or times.last is None or mtime >= times.last:
            return mtime
        if ns is None:
            return times.last
        raise self.disorder(mtime)

    def disorder(self, mtime: int) -> NotAllowed:
        """The refusal of an mtime that lies before its predecessor's."""
        return NotAllowed(
            f"{AO}: mtime {mtime} lies before that of the file before it", self._store.base
        )

    def is_default(self, ftype: int, attrs: Attrs) -> bool:
        """Whether a file of this type with these attributes needs nothing stored for them."""
        return attrs == Attrs(default_mode(ftype), *self._content.owner)

    # --- parts of files ---

    def append(self, key: bytes, data: bytes) -> None:
        if self._store.settings.ao:
            self._append_ao(key, data)
            return
        draft = self._draft(key, "appending to a file", len(data))
        self._promise(draft, len(data))
        self._writer.append(draft, data)
        self._touch(draft, len(data))

    def _append_ao(self, key: bytes, data: bytes) -> None:
        """ao: only to the last file, before a sync, while its inode has room."""
        pos, inode = self._inode(key)
        if pos != self.last or pos < self._store.fixed:
            raise NotAllowed(f"{AO}: only the last file can grow, until it is synced",
                             to_str(key[:-3]))  # fmt: skip
        draft = self.drafts.get(key) or Draft.of(key, inode, pos, None)
        pairs = draft.pairs + -(-(len(draft.tail) + len(data)) // self._writer.chunk)
        if 56 + 16 * (pairs + (inode.attrs is not None)) > inode.size:
            raise NotAllowed(f"{AO}: the file's inode has no room for another extent",
                             to_str(key[:-3]))  # fmt: skip
        self._promise(draft, len(data))
        self.drafts[key] = draft
        self._writer.append(draft, data)
        self._pending += len(data)

    def write(self, key: bytes, offset: int, data: bytes, ns: int | None = None) -> None:
        self._forbid_ao("overwriting", key)
        draft = self._draft(key, "changing a file", len(data))
        self._promise(draft, len(data) + self._zeros(offset - draft.lsize))
        self._writer.write(draft, offset, data)
        self._touch(draft, len(data), ns)

    def write_many(self, key: bytes, pieces: Sequence[tuple[int, bytes]], ns: int | None) -> None:
        self._forbid_ao("overwriting", key)
        size = sum(len(data) for _, data in pieces)
        draft = self._draft(key, "changing a file", size)
        gap = max((offset for offset, _ in pieces), default=0) - draft.lsize
        self._promise(draft, size + len(pieces) * PIECE + self._zeros(gap))
        self._writer.write_many(draft, pieces)
        self._touch(draft, size, ns)

    def punch(self, key: bytes, offset: int, size: int) -> None:
        """Zeros inside the file, as a hole where holes are known."""
        self._forbid_ao("overwriting", key)
        draft = self._draft(key, "changing a file")
        self._promise(draft, self._zeros(size))
        self._writer.punch(draft, offset, size)
        self._touch(draft, self._zeros(size))

    def truncate(self, key: bytes, size: int) -> None:
        self._forbid_ao("truncating", key)
        draft = self._draft(key, "changing a file", size)
        self._promise(draft, self._zeros(size - draft.lsize))
        self._writer.truncate(draft, size)
        self._touch(draft, 0)

    def _zeros(self, gap: int) -> int:
        """Bytes to be written for a gap: none where holes are known."""
        return 0 if self._store.settings.holes else max(gap, 0)

    def _forbid_ao(self, what: str, key: bytes) -> None:
        if self._store.settings.ao:
            raise NotAllowed(f"{AO}: {what} is not possible", to_str(key[:-3]))

    # --- metadata ---

    def utime(self, key: bytes, ns: int, ctime_ns: int) -> None:
        self._forbid_ao("setting the mtime", key)
        draft = self._draft(key, "changing a file")
        self._promise(draft, NOTED)
        draft.mtime = self._store.settings.mtime_of(ns)
        self._changed(draft, ctime_ns)

    def _changed(self, draft: Draft, ctime_ns: int) -> None:
        """Note when a file was changed, where the container keeps that."""
        settings = self._store.settings
        if settings.attrs and settings.nanoseconds:
            with_ctime(draft, ctime_ns, draft.mtime, self._content.owner)

    def set_attrs(self, key: bytes, attrs: Attrs, ctime_ns: int | None = None) -> None:
        """`ctime_ns`: when that was; None: not noted."""
        self._forbid_ao("changing mode, owner or attributes", key)
        draft = self._draft(key, "changing a file")
        self._promise(draft, NOTED + len(attrs.encode()))
        self._set_attrs(draft, attrs)
        if ctime_ns is not None:
            self._changed(draft, ctime_ns)

    def _set_attrs(self, draft: Draft, attrs: Attrs) -> None:
        before = draft.attrs, draft.attrs_at, draft.ftype
        with_mode(draft, attrs, self._content.owner)
        if draft.attrs is not None and not self._store.settings.attrs:
            draft.attrs, draft.attrs_at, draft.ftype = before
            raise WinkError(
                "the container has no ATTRS: it keeps no modes but 0644 and 0755, and no owners",
                to_str(draft.key[:-3]), number=errno.EOPNOTSUPP,
            )  # fmt: skip

    # --- names ---

    def delete(self, key: bytes) -> None:
        """Append a tombstone; doom what the name held."""
        if len(self._store.doomed) > DOOMED:
            self.sync()
        self.settle_bulk()
        self._store.need_delflag("deleting a file")
        if self._store.settings.ao:
            self.settle()
        draft = self.drafts.get(key)
        if draft is not None and not draft.old:  # never written
            self._pop(key)
            self._doom_entries(draft.owned)
            return
        self._kv.reserve(self._waiting + 64 + len(key))
        if draft is None:
            draft = Draft.of(key, *self._inode(key)[::-1], None)
        self._kv.append(key, b"", deleted=True)
        self._pop(key)
        self._doom(draft.old, draft.old_size, draft.old_lsize, draft.owned, delete=True)
        self._store.index.assign(key, 0)

    def entomb(self, keys: Sequence[bytes]) -> int:
        """Append tombstones of keys that nothing here has -> position of the first."""
        self._store.need_delflag("deleting a file")
        self.settle()
        self._kv.reserve(sum(map(len, keys)) + 64 * len(keys))
        first = self._kv.end
        for key in keys:
            self._kv.append(key, b"", deleted=True)
        return first

    def rename(self, key: bytes, new: bytes, ctime_ns: int | None = None) -> None:
        """A new inode under the new name, then a tombstone of the old one.

        ctime_ns  when that was; None: not noted, as within SOON of the last write: that is how
                  programs replace a file, and attributes would cost each of them an entry
        """
        self._store.need_delflag("renaming a file")
        if self._store.settings.ao:
            self._rename_ao(key, new)
            return
        draft = self._draft(key, "renaming a file")
        if not draft.old and self.find(new):
            self._settle_one(key, draft)
            draft = self._draft(key, "renaming a file")
        self._promise(draft, 64 + NOTED + len(key) + len(new))
        if ctime_ns is not None and (draft.attrs or ctime_ns - draft.mtime > SOON):
            self._changed(draft, ctime_ns)
        if not draft.old:  # never written
            draft.key = new
            self.drafts[new] = self.drafts.pop(key)
            return
        self._replace(replace(draft, key=new))
        self._kv.append(key, b"", deleted=True)
        self._pop(key)
        self._store.index.assign(key, 0)

    def _rename_ao(self, key: bytes, new: bytes) -> None:
        """ao: in place, while the inode is not synced, and where the new entry has its size."""
        self.settle()
        pos, inode = self._inode(key)
        old = self._kv.get(pos)
        room = len(old.value) + len(key) - len(new)
        is_last = pos + old.size == self._kv.end
        value = inode.encode(self._store.settings.form, len(old.value) if is_last else room)
        there = self._store.index.overlay.get(new, -1)
        later = there == 0 or there > pos  # a tombstone or a file of that name behind this inode
        if pos < self._store.fixed or not (is_last or (len(value) == room and not later)):
            raise NotAllowed(f"{AO}: only the last file can be renamed, until it is synced, to a "
                             "name for which its inode has room", to_str(key[:-3]))  # fmt: skip
        self._kv.reserve(len(new) + len(value) + len(key) + 64)
        self._kv.replace(pos, new, value)
        self._store.rewritten(pos)
        self._drop(new)
        self._kv.append(key, b"", deleted=True)  # or an older file of that name would come back
        self._store.index.assign(key, 0)
        self._store.index.assign(new, pos)
