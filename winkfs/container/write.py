"""Changes: what a writer does to files, by key, and how that becomes inodes and is made durable.

A change of the name space moves the end of the data file: a new inode, or a tombstone. What it
supersedes is marked deleted after the next sync. The entry comes first, then what is known in
memory: so a call that a signal interrupts can be taken as done or as not begun (`recover`).
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
    NOTED,
    PIECE,
    SMALL,
    Draft,
    DraftWriter,
    is_usual,
)
from winkfs.container.frames import Compressor, trained
from winkfs.container.index import MERGE_OVERLAY
from winkfs.container.metadata import Metadata
from winkfs.container.ondisk.chain import LEAST, above, link_of
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

TAILS: Final = 8 << 20  # bytes of drafts' tails in memory
DRAFTS: Final = 4096
DOOMED: Final = 1 << 20  # delflags waiting for a sync
OVERLAY: Final = 2 * MERGE_OVERLAY  # changes in memory, 250 bytes each, before a sync is due
SOON: Final = 2 * NANO
EXTENTS: Final = 4096  # of a file that is streamed, to which more are appended one by one
AO: Final = "the container is append-only"
Held = tuple[int, int, int, Set[int]]
"""Position of an inode, its bytes, those of the content, other entries: see `Files.doom`."""


class Changes:
    """The changing side of a container: what becomes of files, and when it is durable.

    files   what is seen of files; drafts: its own, those that are being changed
    metadata  attributes and columns, as they are stored
    held    bytes of the disk kept ready, by holder: see `hold`
    compressor  makes frames of new content; None: it stays as it is
    last    ao: position of the inode written last, 0: none since open
    unwritten   what was lost of drafts that could not be written, see `report_unwritten`
    """

    def __init__(self, store: Store, content: Content, files: Files) -> None:
        self._store, self._content, self._kv = store, content, store.kv
        self.files, self.drafts = files, files.drafts
        self.metadata = Metadata(store, content.owner)
        self.last = 0
        self.clamped = Clamped()
        self.held: dict[bytes | int, int] = {}
        self._waiting = 0  # bytes that all drafts still have to write, at most, and those held
        self._pending = 0  # bytes appended to drafts since they were last settled
        self.unwritten: list[str] = []
        self._sure = False  # whether what was found when it was opened is on the disk
        self._writer = DraftWriter(store.kv, store.settings, content.read_all)
        self._usual = is_usual(store) and not store.settings.ao
        self.use_compression()

    # --- how content is compressed ---

    def use_compression(self) -> None:
        """Write, from now on, as the container says that content is compressed."""
        store, self._writer.compressor = self._store, None
        try:
            compresses = store.writable and store.settings.compressed
            if compresses and (chosen := store.frames.compression).level:
                self._writer.compressor = Compressor(chosen, store.base, store.frames.at())
        except CorruptError as error:
            store.note(f"{error}: new content is not compressed")
        self.compressor = self._writer.compressor

    def set_compression(self, level: int) -> None:
        """Compress new content with this level, 0: not at all. Raises NotAllowed; Refusal."""
        store, chosen = self._store, self._store.frames.compression
        if chosen.level != level:
            if not store.settings.compressed:
                what = "cannot have compressed content: `winkfs compact --compress` makes it so"
                raise NotAllowed(what, store.base)
            self.compress(replace(chosen, level=level))

    def learn(self, samples: Sequence[bytes], total: int) -> None:
        """Try whether a dictionary for content like some samples pays, and use it if it does.

        total   bytes of content that there are, about
        """
        level = self._store.frames.compression.level
        self.compress(trained(samples, level, total, self._store.base))

    @property
    def may_learn(self) -> bool:
        """Whether no dictionary has been tried yet."""
        return self.compressor is not None and not self._store.frames.compression.tried

    def compress(self, compression: Compression) -> None:
        """Compress new content so."""
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
        """Create or replace a file. `bulk`: among files put in bulk; what had the name is found
        with theirs."""
        if not self._usual or len(data) > SMALL:
            fill = partial(self._fill, data)
            self.put_made(key, fill, ns, ftype, attrs, bulk=bulk)
            return
        store, word = self._store, b""
        if len(store.doomed) > DOOMED or len(store.index.overlay) > OVERLAY:
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
        """A new file without content. There must be none of that name.

        It is a draft, and not in the data file before it has 1 MiB, or is settled.
        """
        self._limit_drafts()
        draft = self._begin(key, ns, ftype, attrs)
        named = 0 if draft.attrs is None else draft.attrs.size + NOTED
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
        """Create or replace a file with what `source.read` gives -> bytes."""
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
        """Create or replace a file with what `fill` gives a new draft -> bytes. `bulk`: as `put`"""
        draft = self._begin(key, ns, ftype, attrs, fileid)
        try:
            fill(draft, self._writer)
            made = self._append_inode(draft)
        except Exception:  # not of a signal, which may come after the inode
            self.files.doom_entries(draft.owned)
            raise
        self._account(draft, *made, over=True, bulk=bulk)
        return draft.lsize

    def _take_stream(self, source: Any, draft: Draft, writer: DraftWriter) -> None:
        """Append all of a stream to a new draft."""
        name = name_of(draft.key)
        skip = getattr(source, "skip_hole", None) if self._store.settings.holes else None
        aside: list[Sequence[Extent]] = []  # or each piece would copy the extents of all before it
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
            if len(draft.base) > EXTENTS:
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
        if self._store.settings.ao and self.drafts:
            self.settle()
        if len(self._store.doomed) > DOOMED or len(self._store.index.overlay) > OVERLAY:
            self.sync()
        mtime = self.new_mtime(ns)
        draft = Draft(key, fileid or self._store.new_fileid(), ftype, mtime)
        if attrs is not None:
            self._set(draft, attrs, None)
        if not self._kv.layout.delflag and self._content.inode(key):
            self._store.need_delflag("replacing a file")
        return draft

    def new_mtime(self, ns: int | None) -> int:
        """FMTIME for a new file. ao: never before that of the last one."""
        settings, times = self._store.settings, self._store.times
        mtime = (time.time_ns() if ns is None else ns) // settings.mtime_unit
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
        """ao: the draft of the last file, before a sync, while its inode has room."""
        pos, inode = self.files.inode(key)
        if pos != self.last or pos < self._store.fixed:
            raise NotAllowed(f"{AO}: only the last file can grow, until it is synced",
                             to_str(name_of(key)))  # fmt: skip
        draft = self.drafts.get(key) or self._draft_of(key, pos, inode)
        pairs = draft.pairs + -(-(len(draft.tail) + size) // self._writer.chunk)
        if 56 + self._store.settings.form.pair * (pairs + (inode.attrs is not None)) > inode.size:
            raise NotAllowed(f"{AO}: the file's inode of {inode.size} bytes has no room for "
                             "another extent (winkfs create --isz)",
                             to_str(name_of(key)))  # fmt: skip
        self.drafts[key] = draft
        return draft

    def write_many(self, key: bytes, pieces: Sequence[tuple[int, bytes]], ns: int | None) -> None:
        size = last = 0
        for offset, data in pieces:
            size, last = size + len(data), max(last, offset)
        draft = self._draft(key, size, ao="overwriting")
        self._promise(draft, size + len(pieces) * PIECE + self._zeros(last - draft.lsize))
        self._writer.write_many(draft, pieces)
        self._touch(draft, size, ns)

    def grow(self, draft: Draft, data: bytes, ns: int) -> bool:
        """`append` to a draft -> False: something would have to be written first."""
        size = len(data)
        if len(draft.tail) + size >= self._writer.chunk or self._pending + size > TAILS:
            return False
        self.hold(draft.key, self.held[draft.key] + size)
        draft.tail += data
        self._touch(draft, size, ns)
        return True

    def punch(self, key: bytes, offset: int, size: int) -> None:
        """Zeros inside the file, as a hole where holes are known."""
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
        """Bytes to be written for a gap: none where holes are known."""
        return 0 if self._store.settings.holes else max(gap, 0)

    # --- metadata ---

    def utime(self, key: bytes, ns: int, ctime_ns: int) -> None:
        self.amend(self._draft(key, ao="setting the mtime"), None, -1, -1, ns, ctime_ns)

    def amend(
        self, draft: Draft, mode: int | None, uid: int, gid: int, ns: int | None, ctime_ns: int
    ) -> None:
        """Change mode, owner and mtime of a draft at once.

        mode, ns    None: they stay; uid, gid: 32 bits, or -1
        ctime_ns    when that was
        raises      OSError
        """
        had = draft.attrs
        if had is None or draft.attrs_at is not None:  # else it has room for them
            had = self.files.draft_attrs(draft)
            self._promise(draft, NOTED + had.size)
        mode = had.mode if mode is None else mode
        uid, gid = had.uid if uid == -1 else uid, had.gid if gid == -1 else gid
        if ns is not None:
            draft.mtime = self._store.settings.mtime_of(ns)
        self._set(draft, Attrs(mode, uid, gid, had.xattrs, had.ctime_ns), ctime_ns)

    def keeps(self, draft: Draft, mode: int | None, uid: int, gid: int) -> bool:
        """Whether a draft has this mode and owner already; None and -1: whichever they are."""
        had, (own_uid, own_gid) = draft.attrs, self._content.owner
        return (
            mode in (None, DEFAULT_MODES[draft.ftype & 255] if had is None else had.mode)
            and uid in (-1, own_uid if had is None else had.uid)
            and gid in (-1, own_gid if had is None else had.gid)
        )

    def set_attrs(
        self, key: bytes, attrs: Attrs, ctime_ns: int | None = None, *, strict: bool = True
    ) -> None:
        """`ctime_ns`: when that was; None: not noted. `strict`: see `typed`."""
        self._forbid_ao("changing mode, owner or attributes", key)
        if attrs.xattrs:
            before = self.files.attrs(key).xattrs
            attrs = replace(attrs, xattrs=self.metadata.typed(attrs.xattrs, before, strict=strict))
        self.metadata.checked(attrs)
        draft = self._draft(key)
        self._promise(draft, NOTED + attrs.size)
        self._set(draft, attrs, ctime_ns)

    def _set(self, draft: Draft, attrs: Attrs, ctime_ns: int | None) -> None:
        """Give a draft attributes; what equals the defaults is not stored.

        ctime_ns  when they were changed, to be noted where the container keeps that; a later time
                  that is known stays, and what equals the mtime is not stored
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
        """Append a tombstone; doom what the name held."""
        if len(self._store.doomed) > DOOMED:
            self.sync()
        self._need_one_version("deleting a file")
        if self._store.settings.ao:
            self.settle()
        held = self._held_by(key)
        if held is None:
            raise NoSuchFile("no such file in the container", to_str(name_of(key)))
        if held[0]:  # else it was never written
            self._kv.reserve(self._waiting + 64 + len(key))
            self._kv.append(key, b"", deleted=True)
            self._store.index.assign(key, 0, old=held[0])
        self.files.doom(*held)
        self._pop(key)

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
        self._need_one_version("renaming a file")
        if self._store.settings.ao:
            self._rename_ao(key, new)
            return
        what = "renaming a file"
        draft = self._draft(key, what=what)
        if not draft.old and self.files.find(new):
            self._settle_one(key, draft, self._frames({key: draft}).get(key))
            draft = self._draft(key, what=what)
        self._promise(draft, 64 + NOTED + len(key) + len(new))
        if ctime_ns is not None and (draft.attrs or ctime_ns - draft.mtime > SOON):
            self._set(draft, self.files.draft_attrs(draft), ctime_ns)
        if not draft.old:  # never written
            draft.key = new
            self.drafts[new] = draft  # first: a reader without the lock finds it under one of them
            self.held[new] = self.held.pop(key)
            del self.drafts[key]
            return
        moved = replace(draft, key=new)
        self._account(moved, *self._append_inode(moved), over=True)
        self._kv.append(key, b"", deleted=True)
        self._store.index.assign(key, 0)
        self._pop(key)

    def _need_one_version(self, what: str) -> None:
        """Have all older inodes be marked deleted, before a name goes: with HAVEDUPS another
        program would take one of them for the file."""
        self._store.need_delflag(what)
        if self._store.keeps_older:
            self.sync()
            self._store.mark_older()

    def _rename_ao(self, key: bytes, new: bytes) -> None:
        """ao: in place, while the inode is not synced, and where the new entry has its size."""
        self.settle()
        pos, inode = self.files.inode(key)
        old = self._kv.get(pos)
        room = len(old.value) + len(key) - len(new)
        is_last = pos + old.size == self._kv.end
        value = inode.encode(self._store.settings.form, len(old.value) if is_last else room)
        there = self._store.index.overlay.get(new, -1)
        later = there == 0 or there > pos  # a tombstone or a file of that name behind this inode
        if pos < self._store.fixed or not (is_last or (len(value) == room and not later)):
            raise NotAllowed(f"{AO}: only the last file can be renamed, until it is synced, to a "
                             "name for which its inode has room", to_str(name_of(key)))  # fmt: skip
        self._kv.reserve(len(new) + len(value) + len(key) + 64)
        self._kv.replace(pos, new, value)
        self._store.catalog.close()  # what it keeps is wrong
        self._supersede(new)
        self._kv.append(key, b"", deleted=True)  # or an older file of that name would come back
        self._store.index.assign(new, pos)
        self._store.index.assign(key, 0)
        self._pop(new)

    # --- drafts ---

    def _draft(
        self, key: bytes, size: int = 0, what: str = "changing a file", *, ao: str = ""
    ) -> Draft:
        """The draft of an existing file, begun now if there is none.

        size    bytes to be added
        what    is done, which needs delflags; ao: what an append-only container refuses
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
            raise NotAllowed(f"{AO}: {what} is not possible", to_str(name_of(key)))

    def _draft_of(self, key: bytes, pos: int, inode: Inode) -> Draft:
        """The draft of a file as it stands, with its attributes."""
        return Draft.of(key, inode, pos, self._content.attrs(inode) if inode.attrs else None)

    def _limit_drafts(self) -> None:
        if self._pending > TAILS or len(self.drafts) > DRAFTS:
            self.settle()

    def _touch(self, draft: Draft, count: int, ns: int | None) -> None:
        """Note that content was written, `count` bytes, at a time; None: now."""
        self._pending += count
        if self._store.settings.ao:
            return
        ns = time.time_ns() if ns is None else ns
        draft.mtime = self._store.settings.mtime_of(ns)
        if draft.attrs is not None and draft.attrs.ctime_ns is not None:
            self._set(draft, draft.attrs, ns)

    def _pop(self, key: bytes) -> None:
        self.drafts.pop(key, None)
        self.let_go(key)

    # --- room on the disk ---

    def _promise(self, draft: Draft, length: int) -> None:
        """Make room for `length` bytes more of a draft, beside what all drafts still have to write.

        raises  OSError ENOSPC, before anything is changed
        """
        self.hold(draft.key, self._writer.cost(draft, length))

    def hold(self, holder: bytes | int, size: int) -> None:
        """Keep `size` bytes of the disk ready for a draft, by its key, or for another, instead of
        what it had before.

        raises  OSError ENOSPC, before anything is changed
        """
        more = size - self.held.get(holder, 0)
        if more > 0:
            self._kv.reserve(self._waiting + more)
        self._waiting += more
        self.held[holder] = size

    def let_go(self, holder: bytes | int) -> bool:
        """-> whether something was held for it."""
        there = holder in self.held
        self._waiting -= self.held.pop(holder, 0)
        return there

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
        draft = draft or Draft(key, 0, 0, 0, base=self.files.inode(key)[1].extents)
        return self._writer.cost(draft, 0)

    # --- inodes ---

    def _append_inode(self, draft: Draft) -> tuple[Inode, int, int]:
        """-> the inode, its position, bytes of its value. Where it fails the draft stays good."""
        store, kv = self._store, self._kv
        inode = self._writer.settle(draft)
        stored, links = inode, tuple[Link, ...]()
        if len(inode.extents) > LEAST and draft.old and store.need_chains():
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
        store.catalog.close()  # what it keeps is wrong
        return inode, draft.old, len(value)

    def _account(
        self, draft: Draft, inode: Inode, pos: int, size: int, *, over: bool, bulk: bool = False
    ) -> None:
        """Take a written inode into index, time index and counters, in the place of the one that
        the draft had.

        over  also in the place of what else has the name; bulk: that is found later
        """
        if over and not bulk:
            self._supersede(draft.key)
        old = 0 if pos == draft.old else draft.old
        self.files.doom(old, draft.under.size, draft.under.lsize, draft.owned_beside(inode))
        if self._store.times is not None and not draft.old:
            self._store.times.add(draft.mtime, min([pos, *inode.pointers]))
        # The index may also have an inode that is marked deleted.
        self._enter(draft.key, pos, size, draft.lsize, new=not (over or draft.old), bulk=bulk)

    def _enter(
        self, key: bytes, pos: int, size: int, lsize: int, *, new: bool, bulk: bool = False
    ) -> None:
        """Have a name mean the inode at `pos`.

        size, lsize  bytes of that, and of the content
        new          nothing has the name; bulk: it is looked for later
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
        if key in self.drafts:  # now: a reader without the lock goes by both
            self._pop(key)

    def _held_by(self, key: bytes) -> Held | None:
        """What a name has on the disk: what `Files.doom` takes. None: there is no such file."""
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
        """Doom what a name has, if it has anything."""
        held = self._held_by(key)
        if held is not None:
            self.files.doom(*held)

    # --- durability ---

    def settle(self) -> None:
        """Write the inodes of all drafts, and look through what was put in bulk."""
        self.settle_drafts()
        self.files.settle_bulk()

    def settle_drafts(self) -> None:
        """Write the inodes of all drafts."""
        self._pending = 0
        frames = self._frames(self.drafts)
        for key, draft in list(self.drafts.items()):
            try:
                self._settle_one(key, draft, frames.get(key))
            except Exception as error:
                of_the_disk = isinstance(error, OSError) and error.errno != errno.EFBIG
                if of_the_disk or isinstance(error, MemoryError) or self._kv.broken:
                    raise  # else it is only of the draft that met it
                self._give_up(key, draft, error)

    def _frames(self, drafts: Mapping[bytes, Draft]) -> dict[bytes, bytes | None]:
        """What the small ones are compressed to, all processors at work."""
        if self.compressor is None or not self._usual:
            return {}
        small = {k: d.tail for k, d in drafts.items() if d.plain and d.ftype in COMPRESSIBLE}
        return dict(zip(small, self.compressor.many(list(small.values())), strict=True))

    def _give_up(self, key: bytes, draft: Draft, error: Exception) -> None:
        """Drop a draft that cannot be written: its file stays as it was last settled."""
        self._pop(key)
        self.files.doom_entries(draft.added)
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
        """`sync` in steps, see `KVSeq.syncing`."""
        yield from self._syncing_data()
        store = self._store
        if store.should_merge:
            if self.drafts or self._kv.end != store.synced:  # an index is of what is durable
                self.settle()
                store.sync_data()
            store.merge()

    def _syncing_data(self) -> Iterator[None]:
        """The same without derived files."""
        self.settle()
        store = self._store
        if self._kv.end != store.synced or store.doomed:
            yield from store.syncing_data()
        elif not self._sure:  # what was found may be of a sync that failed, see `KVSeq`
            yield
        self._sure = True

    def close(self) -> None:
        """Sync, and bring the derived files up to date on disk, where that is worth its time."""
        store = self._store
        for _ in self._syncing_data():
            self._kv.sync_storage()
        store.catalog.keep_up()
        if store.should_merge or (store.is_behind and not store.may_leave_tail):
            store.merge()

    def recover(self) -> None:
        """After a failed write or an interrupted call: what is whole in the file counts.

        So do drafts that build on it. Cost: that of `Store.recover`.
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
        self.use_compression()
        self._pending = self.last = 0
        self._sure = False  # a sync that finds nothing to do asks the disk that failed all the same
        for key, draft in list(self.drafts.items()):
            found = self._content.inode(key)
            if found is None and not draft.old:  # never written
                continue
            if found is None or found[1].fileid != draft.fileid:
                del self.drafts[key]  # deleted, replaced or renamed: the call came that far
                continue
            draft.old, draft.under = found
            # Of the inode before it what is not wanted is marked, or going to be.
            draft.added = set(unmarked(kv, sorted(draft.added.difference(store.doomed))))
            draft.over = None
        kept = self.drafts.keys()
        self.held = {k: size for k, size in self.held.items() if isinstance(k, int) or k in kept}
        self._waiting = sum(self.held.values())
