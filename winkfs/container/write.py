"""Changes: the write side of a container. Changes files by key, writes inodes, makes all durable.

A change of a name appends an inode or a tombstone. The entries that it supersedes are marked
deleted after the next sync. The entry is written before the state in memory changes, so a call that
a signal interrupts counts as done or as not begun (`recover`).
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from winkformats.errors import CorruptError
from winkfs.container.draft import (
    COMPRESSIBLE,
    COPIED_BYTES,
    CTIME_BYTES,
    PATCH_BYTES,
    Draft,
    DraftWriter,
    is_usual,
)
from winkfs.container.frames import Compressor, trained
from winkfs.container.index import MERGE_OVERLAY
from winkfs.container.metadata import Metadata
from winkfs.container.ondisk.chain import MIN_CHAIN_EXTENTS, above, link_of
from winkfs.container.ondisk.compressed import Compression, zstd
from winkfs.container.ondisk.inode import (
    Attrs,
    Extent,
    ExtentArray,
    Inode,
    Link,
    check_directory,
    check_length,
    joined,
)
from winkfs.container.read import Content, Files
from winkfs.container.recovery import unmarked
from winkfs.entry import DEFAULT_MODES
from winkfs.errors import NoSuchFile, NotAllowed, Refusal
from winkfs.names import name_of, to_str
from winkfs.units import NANO, Clamped

if TYPE_CHECKING:
    from winkfs.container.store import Store

DRAFT_TAIL_BYTES: Final = 8 << 20  # tails of all drafts in memory
MAX_DRAFTS: Final = 4096
MAX_PENDING: Final = 1 << 20  # delflags that wait for a sync
MAX_OVERLAY: Final = 2 * MERGE_OVERLAY  # changes in memory, 250 bytes each, before a sync is due
REPLACE_WITHIN_NS: Final = 2 * NANO  # from the last write to the rename of a file: see `rename`
STREAM_EXTENTS: Final = 4096  # of a stream, after which a new sequence of extents begins
APPEND_ONLY: Final = "the container is append-only"
Held = tuple[int, int, int, Set[int]]
"""Arguments of `Files.add_pending_delete`."""


class Changes:
    """The write side of a container.

    files       the read side; drafts: the files that are being changed, by key
    metadata    encodes attributes and columns
    held        bytes of disk space reserved, by holder: see `hold`
    compressor  compresses new content; None: it is stored as it is
    last        ao: position of the inode written last, 0: none since open
    unwritten   messages about drafts that could not be written: see `report_unwritten`
    """

    def __init__(self, store: Store, content: Content, files: Files) -> None:
        self._store, self._content, self._kv = store, content, store.kv
        self.files, self.drafts = files, files.drafts
        self.metadata = Metadata(store, content.owner)
        self.last = 0
        self.clamped = Clamped()
        self.held: dict[bytes | int, int] = {}
        self._waiting = 0  # bytes: the sum of `held`
        self._pending = 0  # bytes appended to drafts since they were last settled
        self.unwritten: list[str] = []
        self._sure = False  # whether the entries that were found at opening are on the disk
        self._writer = DraftWriter(store.kv, store.settings, content.read_all)
        self._usual = is_usual(store) and not store.settings.ao
        self.use_compression()

    # --- how content is compressed ---

    def use_compression(self) -> None:
        """Compress new content as the container is set to."""
        store, self._writer.compressor = self._store, None
        try:
            compresses = store.writable and store.settings.compressed
            if compresses and (chosen := store.frames.compression).level:
                self._writer.compressor = Compressor(chosen, store.base, store.frames.at())
        except CorruptError as error:
            store.note(f"{error}: new content is not compressed")
        self.compressor = self._writer.compressor

    def set_compression(self, level: int) -> None:
        """Set the level at which new content is compressed, 0: not at all.

        raises  NotAllowed; Refusal
        """
        store, chosen = self._store, self._store.frames.compression
        if chosen.level != level:
            if not store.settings.compressed:
                what = "cannot have compressed content: `winkfs compact --compress` makes it so"
                raise NotAllowed(what, store.base)
            self.compress(chosen._replace(level=level))

    def learn(self, samples: Sequence[bytes], total: int) -> None:
        """Train a dictionary on samples of the content, and use it if it saves enough.

        total   approximate size of all content, bytes
        """
        level = self._store.frames.compression.level
        self.compress(trained(samples, level, total, self._store.base))

    @property
    def may_learn(self) -> bool:
        """True if content is compressed and no dictionary has been tried yet."""
        return self.compressor is not None and not self._store.frames.compression.tried

    def compress(self, compression: Compression) -> None:
        """Record in the container how new content is compressed, and begin to do so."""
        zstd(self._store.base)
        self._store.compress(compression)
        self.use_compression()

    # --- whole files ---

    def put(
        self,
        key: bytes,
        data: bytes,
        ns: int | None,
        ftype: int,
        attrs: Attrs | None,
        *,
        bulk: bool = False,
    ) -> None:
        """Create or replace a file. `bulk`: among files put in bulk, whose older inodes are looked
        up together later."""
        if not self._usual or len(data) > COPIED_BYTES:
            fill = partial(self._fill, data)
            self.put_made(key, fill, ns, ftype, attrs, bulk=bulk)
            return
        store, word = self._store, b""
        if len(store.pending_deletes) > MAX_PENDING or len(store.index.overlay) > MAX_OVERLAY:
            self.sync()
        if attrs is not None:
            ftype, attrs = self.metadata.stored(key, ftype, attrs)
            word = b"" if attrs is None else attrs.encode()
        self._kv.reserve(self._waiting + len(data) + len(word) + len(key) + self._writer.empty)
        mtime = (time.time_ns() if ns is None else ns) // store.settings.mtime_unit
        frame = None
        if self.compressor is not None and ftype in COMPRESSIBLE:
            frame = self.compressor.one(data)
        pos, size = self._writer.whole(key, store.new_fileid(), data, mtime, ftype, word, frame)
        there = not bulk and (
            key in self.drafts or bool(store.index.bulk) or store.index.lookup(key) > 0
        )
        if there:
            self._supersede(key)
        self._enter(key, pos, size, len(data), new=not there, bulk=bulk)

    def _fill(self, data: bytes, draft: Draft, writer: DraftWriter) -> None:
        self._kv.reserve(self._waiting + writer.cost(draft, len(data)))
        writer.append(draft, data)

    def begin(self, key: bytes, ns: int | None, ftype: int, attrs: Attrs | None) -> Draft:
        """Create an empty file as a draft -> the draft. The name must be free.

        Nothing is in the data file before the draft has 1 MiB, or is settled.
        """
        self._limit_drafts()
        draft = self._begin(key, ns, ftype, attrs)
        named = 0 if draft.attrs is None else draft.attrs.size + CTIME_BYTES
        self.hold(key, self._writer.empty + len(key) + named)
        self.drafts[key] = draft
        return draft

    def put_stream(
        self,
        key: bytes,
        source: Any,
        ns: int | None,
        ftype: int,
        attrs: Attrs | None,
        fileid: int | None = None,
    ) -> int:
        """Create or replace a file with all that `source.read` returns -> bytes."""
        return self.put_made(key, partial(self._take_stream, source), ns, ftype, attrs, fileid)

    def put_made(
        self,
        key: bytes,
        fill: Callable[[Draft, DraftWriter], None],
        ns: int | None,
        ftype: int,
        attrs: Attrs | None,
        fileid: int | None = None,
        *,
        bulk: bool = False,
    ) -> int:
        """Create or replace a file; `fill` gives a new draft its content -> bytes. `bulk`: see
        `put`."""
        draft = self._begin(key, ns, ftype, attrs, fileid)
        try:
            fill(draft, self._writer)
            made = self._append_inode(draft)
        except Exception:  # a signal (BaseException) may come after the inode was written
            self.files.add_pending_entries(draft.owned)
            raise
        self._account(draft, *made, over=True, bulk=bulk)
        return draft.lsize

    def _take_stream(self, source: Any, draft: Draft, writer: DraftWriter) -> None:
        """Append all of a stream to a new draft."""
        name = name_of(draft.key)
        skip = getattr(source, "skip_hole", None) if self._store.settings.holes else None
        aside: list[Sequence[Extent]] = []  # else each append would copy all earlier extents
        while True:
            if skip is not None and (gap := skip()):
                check_length(draft.lsize + gap, name)
                self._kv.reserve(self._waiting + writer.cost(draft, 0))
                writer.truncate(draft, draft.lsize + gap)
            if not (data := source.read(writer.chunk)):
                break
            check_directory(draft.ftype, name, len(data))
            self._kv.reserve(self._waiting + writer.cost(draft, len(data)))
            writer.append(draft, data)
            if len(draft.base) > STREAM_EXTENTS:
                aside.append(draft.base)
                draft.base = ()
        draft.base = joined(*aside, draft.base)
        writer.need_room(draft, 0)
        self._kv.reserve(self._waiting + writer.cost(draft, 0))

    def _begin(
        self,
        key: bytes,
        ns: int | None,
        ftype: int,
        attrs: Attrs | None,
        fileid: int | None = None,
    ) -> Draft:
        store = self._store
        if store.settings.ao and self.drafts:
            self.settle()
        if len(store.pending_deletes) > MAX_PENDING or len(store.index.overlay) > MAX_OVERLAY:
            self.sync()
        mtime = self.new_mtime(ns)
        draft = Draft(key, fileid or store.new_fileid(), ftype, mtime)
        if attrs is not None:
            self._set(draft, attrs, None)
        if not self._kv.layout.delflag and self._content.inode(key):
            store.need_delflag("replacing a file")
        return draft

    def new_mtime(self, ns: int | None) -> int:
        """Return the FMTIME of a new file. ao: never before that of the last file."""
        settings, times = self._store.settings, self._store.times
        mtime = (time.time_ns() if ns is None else ns) // settings.mtime_unit
        if times is None or times.last is None or mtime >= times.last:
            return mtime
        if ns is None:
            return times.last
        raise self.disorder(mtime)

    def disorder(self, mtime: int) -> NotAllowed:
        """Return the error for an mtime that lies before that of the last file."""
        what = f"{APPEND_ONLY}: mtime {mtime} lies before that of the file before it"
        return NotAllowed(what, self._store.base)

    # --- parts of files ---

    def append(self, key: bytes, data: bytes) -> None:
        ao = self._store.settings.ao
        draft = self._last(key, len(data)) if ao else self._draft(
            key, len(data), "appending to a file"
        )  # fmt: skip
        check_length(draft.lsize + len(data), name_of(key))
        self._promise(draft, len(data))
        self._writer.append(draft, data)
        self._touch(draft, len(data), None)

    def _last(self, key: bytes, size: int) -> Draft:
        """Return the draft of the last file of an append-only container, to which `size` bytes are
        appended.

        raises  NotAllowed if it is another file, was synced, or if its inode has no room
        """
        pos, inode = self.files.inode(key)
        if pos != self.last or pos < self._store.fixed:
            raise NotAllowed(f"{APPEND_ONLY}: only the last file can grow, until it is synced",
                             to_str(name_of(key)))  # fmt: skip
        draft = self.drafts.get(key) or self._draft_of(key, pos, inode)
        pairs = draft.pairs + -(-(len(draft.tail) + size) // self._writer.chunk)
        if 56 + self._store.settings.form.pair * (pairs + (inode.attrs is not None)) > inode.size:
            raise NotAllowed(f"{APPEND_ONLY}: the file's inode of {inode.size} bytes has no room "
                             "for another extent (winkfs create --isz)",
                             to_str(name_of(key)))  # fmt: skip
        self.drafts[key] = draft
        return draft

    def write_many(self, key: bytes, pieces: Sequence[tuple[int, bytes]], ns: int | None) -> None:
        size = last = 0
        for offset, data in pieces:
            size, last = size + len(data), max(last, offset)
        draft = self._draft(key, size, ao="overwriting")
        self._promise(draft, size + len(pieces) * PATCH_BYTES + self._zeros(last - draft.lsize))
        self._writer.write_many(draft, pieces)
        self._touch(draft, size, ns)

    def grow(self, draft: Draft, data: bytes, ns: int) -> bool:
        """Append to a draft in memory -> False: it has to be written first, nothing was done."""
        size = len(data)
        if len(draft.tail) + size >= self._writer.chunk or self._pending + size > DRAFT_TAIL_BYTES:
            return False
        self.hold(draft.key, self.held[draft.key] + size)
        draft.tail += data
        self._touch(draft, size, ns)
        return True

    def punch(self, key: bytes, offset: int, size: int) -> None:
        """Replace a range inside a file by zeros, stored as a hole if the format has holes."""
        draft = self._draft(key, ao="overwriting")
        self._promise(draft, self._zeros(size))
        self._writer.punch(draft, offset, size)
        self._touch(draft, self._zeros(size), None)

    def truncate(self, key: bytes, size: int) -> None:
        draft = self._draft(key, size, ao="truncating")
        self._promise(draft, self._zeros(size - draft.lsize))
        self._writer.truncate(draft, size)
        self._touch(draft, 0, None)

    def _zeros(self, gap: int) -> int:
        """Return the bytes to be written for a gap: none if the format has holes."""
        return 0 if self._store.settings.holes else max(gap, 0)

    # --- metadata ---

    def utime(self, key: bytes, ns: int, ctime_ns: int) -> None:
        self.amend(self._draft(key, ao="setting the mtime"), None, -1, -1, ns, ctime_ns)

    def amend(
        self, draft: Draft, mode: int | None, uid: int, gid: int, ns: int | None, ctime_ns: int
    ) -> None:
        """Change mode, owner and mtime of a draft at once.

        mode, ns    None: unchanged; uid, gid: 32 bits, or -1: unchanged
        ctime_ns    time of the change
        raises      OSError
        """
        had = draft.attrs
        if had is None or draft.attrs_at is not None:  # otherwise space is reserved already
            had = self.files.draft_attrs(draft)
            self._promise(draft, CTIME_BYTES + had.size)
        mode = had.mode if mode is None else mode
        uid, gid = had.uid if uid == -1 else uid, had.gid if gid == -1 else gid
        if ns is not None:
            draft.mtime = self._store.settings.mtime_of(ns)
        self._set(draft, Attrs(mode, uid, gid, had.xattrs, had.ctime_ns), ctime_ns)

    def keeps(self, draft: Draft, mode: int | None, uid: int, gid: int) -> bool:
        """Return whether a draft has this mode and owner already; None and -1 match any."""
        had, (own_uid, own_gid) = draft.attrs, self._content.owner
        return (
            mode in (None, DEFAULT_MODES[draft.ftype & 255] if had is None else had.mode)
            and uid in (-1, own_uid if had is None else had.uid)
            and gid in (-1, own_gid if had is None else had.gid)
        )

    def set_attrs(
        self, key: bytes, attrs: Attrs, ctime_ns: int | None = None, *, strict: bool = True
    ) -> None:
        """Replace the attributes of a file.

        ctime_ns  time of the change; None: not recorded
        strict    see `Metadata.typed`
        """
        self._forbid_ao("changing mode, owner or attributes", key)
        if attrs.xattrs:
            before = self.files.attrs(key).xattrs
            attrs = replace(attrs, xattrs=self.metadata.typed(attrs.xattrs, before, strict=strict))
        self.metadata.checked(attrs)
        draft = self._draft(key)
        self._promise(draft, CTIME_BYTES + attrs.size)
        self._set(draft, attrs, ctime_ns)

    def _set(self, draft: Draft, attrs: Attrs, ctime_ns: int | None) -> None:
        """Set the attributes of a draft; defaults are not stored.

        ctime_ns  time of the change, recorded if the container keeps ctimes; a later recorded time
                  stays, and one that equals the mtime is not stored
        """
        settings, latest = self._store.settings, attrs.ctime_ns
        if ctime_ns is not None and settings.attrs and settings.nanoseconds:
            latest = max(ctime_ns, latest or ctime_ns)
            latest = None if latest == draft.mtime else latest
        if latest != attrs.ctime_ns:
            attrs = Attrs(attrs.mode, attrs.uid, attrs.gid, attrs.xattrs, latest)
        ftype, stored = self.metadata.stored(draft.key, draft.ftype, attrs)
        if stored is None or draft.attrs != stored:
            draft.ftype, draft.attrs, draft.attrs_at = ftype, stored, None

    # --- names ---

    def delete(self, key: bytes) -> None:
        """Append a tombstone; the file becomes a pending delete. Raises NoSuchFile."""
        if len(self._store.pending_deletes) > MAX_PENDING:
            self.sync()
        self._need_one_version("deleting a file")
        if self._store.settings.ao:
            self.settle()
        held = self._held_by(key)
        if held is None:
            raise NoSuchFile("no such file in the container", to_str(name_of(key)))
        if held[0]:  # otherwise the file is only a draft
            self._kv.reserve(self._waiting + 64 + len(key))
            self._kv.append(key, b"", deleted=True)
            self._store.index.assign(key, 0, old=held[0])
        self.files.add_pending_delete(*held)
        self._pop(key)

    def append_tombstones(self, keys: Sequence[bytes]) -> int:
        """Append tombstones of keys that this container does not have -> position of the first."""
        self._store.need_delflag("deleting a file")
        self.settle()
        self._kv.reserve(sum(map(len, keys)) + 64 * len(keys))
        first = self._kv.end
        for key in keys:
            self._kv.append(key, b"", deleted=True)
        return first

    def rename(self, key: bytes, new: bytes, ctime_ns: int | None = None) -> None:
        """Append an inode under the new name, then a tombstone of the old name.

        ctime_ns  time of the change. None: not recorded. Within REPLACE_WITHIN_NS of the last
                  write it is recorded only if the file has attributes: programs replace files
                  this way, and each would need an entry
        """
        self._need_one_version("renaming a file")
        if self._store.settings.ao:
            self._rename_ao(key, new)
            return
        what = "renaming a file"
        draft = self._draft(key, what=what)
        if not draft.old and self.files.find(new):
            self._settle_one(key, draft, self._frames({key: draft}).get(key))
            draft = self._draft(key, what=what)
        self._promise(draft, 64 + CTIME_BYTES + len(key) + len(new))
        if ctime_ns is not None and (draft.attrs or ctime_ns - draft.mtime > REPLACE_WITHIN_NS):
            self._set(draft, self.files.draft_attrs(draft), ctime_ns)
        if not draft.old:  # never written
            draft.key = new
            self.drafts[new] = draft  # before the old key goes: a reader finds the draft
            self.held[new] = self.held.pop(key)
            del self.drafts[key]
            return
        moved = replace(draft, key=new)
        self._account(moved, *self._append_inode(moved), over=True)
        self._kv.append(key, b"", deleted=True)
        self._store.index.assign(key, 0)
        self._pop(key)

    def _need_one_version(self, what: str) -> None:
        """Mark all older inodes deleted before a name is removed: with HAVEDUPS other programs
        would take one of them for the file."""
        self._store.need_delflag(what)
        if self._store.keeps_older:
            self.sync()
            self._store.mark_older()

    def _rename_ao(self, key: bytes, new: bytes) -> None:
        """Rename in place, in an append-only container. Raises NotAllowed.

        The inode must not be synced yet, and be the last entry or have the size of the new one.
        """
        self.settle()
        pos, inode = self.files.inode(key)
        old = self._kv.get(pos)
        room = len(old.value) + len(key) - len(new)
        is_last = pos + old.size == self._kv.end
        value = inode.encode(self._store.settings.form, len(old.value) if is_last else room)
        there = self._store.index.overlay.get(new, -1)
        later = there == 0 or there > pos  # a tombstone or a file of that name behind this inode
        if pos < self._store.fixed or not (is_last or (len(value) == room and not later)):
            raise NotAllowed(f"{APPEND_ONLY}: only the last file can be renamed, until it is "
                             "synced, to a name for which its inode has room",
                             to_str(name_of(key)))  # fmt: skip
        self._kv.reserve(len(new) + len(value) + len(key) + 64)
        self._kv.replace(pos, new, value)
        self._store.catalog.close()  # the rows it keeps are wrong now
        self._supersede(new)
        self._kv.append(key, b"", deleted=True)  # else an older file of that name is found again
        self._store.index.assign(new, pos)
        self._store.index.assign(key, 0)
        self._pop(new)

    # --- drafts ---

    def _draft(
        self, key: bytes, size: int = 0, what: str = "changing a file", *, ao: str = ""
    ) -> Draft:
        """Return the draft of an existing file; begin one if there is none.

        size    bytes to be added
        what    the operation, which needs delflags; ao: its name if append-only ones refuse it
        raises  NoSuchFile; NotAllowed
        """
        if ao:
            self._forbid_ao(ao, key)
        self._limit_drafts()
        draft = self.drafts.get(key)
        if draft is None:
            self._store.need_delflag(what)
            draft = self._draft_of(key, *self.files.inode(key))
        check_directory(draft.ftype, name_of(key), size)
        self.drafts[key] = draft
        return draft

    def _forbid_ao(self, what: str, key: bytes) -> None:
        if self._store.settings.ao:
            raise NotAllowed(f"{APPEND_ONLY}: {what} is not possible", to_str(name_of(key)))

    def _draft_of(self, key: bytes, pos: int, inode: Inode) -> Draft:
        """Return a new draft of a stored file, with its attributes."""
        return Draft.of(key, inode, pos, self._content.attrs(inode) if inode.attrs else None)

    def _limit_drafts(self) -> None:
        if self._pending > DRAFT_TAIL_BYTES or len(self.drafts) > MAX_DRAFTS:
            self.settle()

    def _touch(self, draft: Draft, count: int, ns: int | None) -> None:
        """Record that `count` bytes of content were written at time `ns`, None: now."""
        self._pending += count
        if self._store.settings.ao:
            return
        ns = time.time_ns() if ns is None else ns
        draft.mtime = self._store.settings.mtime_of(ns)
        if draft.attrs is not None and draft.attrs.ctime_ns is not None:
            self._set(draft, draft.attrs, ns)

    def _pop(self, key: bytes) -> None:
        self.drafts.pop(key, None)
        self.release(key)

    # --- room on the disk ---

    def _promise(self, draft: Draft, length: int) -> None:
        """Reserve disk space for a draft and `length` bytes more.

        raises  OSError ENOSPC, before anything is changed
        """
        self.hold(draft.key, self._writer.cost(draft, length))

    def hold(self, holder: bytes | int, size: int) -> None:
        """Set the reservation of a holder to `size` bytes of disk space.

        holder  the key of a draft, or the number of a file of a mount
        raises  OSError ENOSPC, before anything is changed
        """
        more = size - self.held.get(holder, 0)
        if more > 0:
            self._kv.reserve(self._waiting + more)
        self._waiting += more
        self.held[holder] = size

    def release(self, holder: bytes | int) -> bool:
        """Release the reservation of a holder -> whether it had one."""
        there = holder in self.held
        self._waiting -= self.held.pop(holder, 0)
        return there

    @property
    def spare(self) -> int:
        """Bytes of disk space that the data file has and that are not reserved for a holder."""
        return self._kv.spare - self._waiting

    def cost(self, key: bytes, size: int) -> int:
        """Return the bytes that a new file of this size takes at most. Raises Refusal EFBIG."""
        draft = Draft(key, 0, 0, 0)
        self._writer.need_room(draft, size)
        return self._writer.cost(draft, size)

    def cost_of_change(self, key: bytes) -> int:
        """Return the bytes that a write to a file takes at most beside its data."""
        draft = self.drafts.get(key)
        draft = draft or Draft(key, 0, 0, 0, base=self.files.inode(key)[1].extents)
        return self._writer.cost(draft, 0)

    # --- inodes ---

    def _append_inode(self, draft: Draft) -> tuple[Inode, int, int]:
        """Write the inode of a draft -> the inode, its position, bytes of its value.

        If it fails, the draft remains valid.
        """
        store, kv = self._store, self._kv
        inode = self._writer.settle(draft)
        stored, links = inode, tuple[Link, ...]()
        if len(inode.extents) > MIN_CHAIN_EXTENTS and draft.old and store.need_chains():
            stored, links = above(inode, draft.under, draft.old, draft.changed)
        value = stored.encode(store.settings.form, store.settings.isz)
        if not (store.settings.ao and draft.old):
            pos = kv.append(draft.key, value)
            if isinstance(inode.extents, ExtentArray):
                if links:
                    links = (link_of(pos, len(value), stored), *links)
                store.keep_inode(pos, draft.key, replace(inode, size=len(value), links=links))
            return inode, pos, len(value)
        kv.replace(draft.old, draft.key, value)
        store.catalog.close()  # the rows it keeps are wrong now
        return inode, draft.old, len(value)

    def _account(
        self, draft: Draft, inode: Inode, pos: int, size: int, *, over: bool, bulk: bool = False
    ) -> None:
        """Enter a written inode into index, time index and counters; it replaces that of the draft.

        over  it also replaces another file of that name; bulk: which is looked up later
        """
        if over and not bulk:
            self._supersede(draft.key)
        old = 0 if pos == draft.old else draft.old
        self.files.add_pending_delete(
            old, draft.under.size, draft.under.lsize, draft.owned_beside(inode)
        )
        if self._store.times is not None and not draft.old:
            self._store.times.add(draft.mtime, min([pos, *inode.pointers]))
        # The index may also have an inode that is marked deleted.
        self._enter(draft.key, pos, size, draft.lsize, new=not (over or draft.old), bulk=bulk)

    def _enter(
        self, key: bytes, pos: int, size: int, lsize: int, *, new: bool, bulk: bool = False
    ) -> None:
        """Enter the inode at `pos` into index and counters.

        size, lsize  bytes of the inode, and of the content
        new          no file has the name; bulk: it is looked up later
        """
        store = self._store
        store.itotsz += size
        store.dtotsz += lsize
        self.last = pos
        if bulk:
            store.index.add_bulk([key], np.array([pos]))
            if store.index.trail is not None:
                store.index.trail(name_of(key), pos)
        else:
            store.index.assign(key, pos, new=new)
        if key in self.drafts:  # after the index: a reader without the lock looks in both
            self._pop(key)

    def _held_by(self, key: bytes) -> Held | None:
        """Return what a name has on the disk, None: there is no such file."""
        draft = self.drafts.get(key)
        if draft is not None:
            return draft.old, draft.under.size, draft.under.lsize, draft.owned
        self.files.settle_bulk()
        found = self._content.inode(key)
        if found is None:
            return None
        self._store.need_delflag("replacing or deleting a file")
        pos, inode = found
        return pos, inode.size, inode.lsize, inode.owned

    def _supersede(self, key: bytes) -> None:
        """Make the file of a name, if there is one, a pending delete."""
        held = self._held_by(key)
        if held is not None:
            self.files.add_pending_delete(*held)

    # --- durability ---

    def settle(self) -> None:
        """Write the inodes of all drafts, and look up older inodes of files put in bulk."""
        self.settle_drafts()
        self.files.settle_bulk()

    def settle_drafts(self) -> None:
        """Write the inodes of all drafts; one that cannot be written is dropped and recorded."""
        self._pending = 0
        frames = self._frames(self.drafts)
        for key, draft in list(self.drafts.items()):
            try:
                self._settle_one(key, draft, frames.get(key))
            except Exception as error:
                of_the_disk = isinstance(error, OSError) and error.errno != errno.EFBIG
                if of_the_disk or isinstance(error, MemoryError) or self._kv.broken:
                    raise  # any other error concerns this draft alone
                self._give_up(key, draft, error)

    def _frames(self, drafts: Mapping[bytes, Draft]) -> dict[bytes, bytes | None]:
        """Return the compressed contents of the small drafts, by key; uses all processors."""
        if self.compressor is None or not self._usual:
            return {}
        small = {k: d.tail for k, d in drafts.items() if d.plain and d.ftype in COMPRESSIBLE}
        return dict(zip(small, self.compressor.many(list(small.values())), strict=True))

    def _give_up(self, key: bytes, draft: Draft, error: Exception) -> None:
        """Drop a draft that cannot be written; its file stays as it was last settled."""
        self._pop(key)
        self.files.add_pending_entries(draft.added)
        what = f"{to_str(name_of(key))}: its last changes cannot be written, and are lost: {error}"
        self._store.note(f"{self._store.base}: {what}")
        self.unwritten.append(what)

    def report_unwritten(self) -> None:
        """Raise Refusal for the drafts that were dropped since the last call."""
        lost, self.unwritten = self.unwritten, []
        if lost:
            more = f" (and {len(lost) - 1} more: see `problems`)" if len(lost) > 1 else ""
            raise Refusal(f"{lost[0]}{more}; all else is synced", self._store.base)

    def _settle_one(self, key: bytes, draft: Draft, frame: bytes | None) -> None:
        if self._usual and draft.plain:
            word = b"" if draft.attrs is None else draft.attrs.encode()
            data = bytes(draft.tail)
            pos, size = self._writer.whole(
                key, draft.fileid, data, draft.mtime, draft.ftype, word, frame
            )  # fmt: skip
            self._enter(key, pos, size, len(data), new=True)
        else:
            self._account(draft, *self._append_inode(draft), over=False)

    def sync(self) -> None:
        """Make everything durable."""
        for _ in self.syncing():
            self._kv.sync_storage()

    def syncing(self) -> Iterator[None]:
        """Sync in steps, see `KVSeq.syncing`."""
        yield from self._syncing_data()
        store = self._store
        if store.should_merge:
            if self.drafts or self._kv.end != store.synced:  # only durable entries
                self.settle()
                store.sync_data()
            store.merge()

    def _syncing_data(self) -> Iterator[None]:
        """Sync in steps, without derived files."""
        self.settle()
        store = self._store
        if self._kv.end != store.synced or store.pending_deletes:
            yield from store.syncing_data()
        elif not self._sure:  # the entries may be those of a failed sync, see `KVSeq`
            yield
        self._sure = True

    def close(self) -> None:
        """Sync, and bring the derived files up to date on disk if that is worth its time."""
        store = self._store
        for _ in self._syncing_data():
            self._kv.sync_storage()
        store.catalog.keep_up()
        if store.should_merge or (store.is_behind and not store.may_leave_tail):
            store.merge()

    def recover(self) -> None:
        """Recover from a failed write or an interrupted call: complete entries in the file count.

        Drafts that build on them stay. Cost: that of `Store.recover`.
        """
        store, kv = self._store, self._kv
        broken = kv.broken
        kv.settle()
        for key, draft in list(self.drafts.items()):
            if max([draft.old, *draft.owned]) >= kv.end:
                del self.drafts[key]  # it builds on lost entries
            elif store.settings.ao:  # its inode is rewritten in place, which a sync forbids
                self._append_inode(draft)
                del self.drafts[key]
        store.recover(broken)
        self.use_compression()
        self._pending = self.last = 0
        self._sure = False  # so that the next sync asks the disk even if nothing has changed
        for key, draft in list(self.drafts.items()):
            found = self._content.inode(key)
            if found is None and not draft.old:  # it was never written
                continue
            if found is None or found[1].fileid != draft.fileid:
                del self.drafts[key]  # the interrupted call had deleted, replaced or renamed it
                continue
            draft.old, draft.under = found
            # Unwanted entries of the inode before it are marked deleted, or pending deletes.
            draft.added = set(unmarked(kv, sorted(draft.added.difference(store.pending_deletes))))
            draft.over = None
        kept = self.drafts.keys()
        self.held = {k: size for k, size in self.held.items() if isinstance(k, int) or k in kept}
        self._waiting = sum(self.held.values())
