"""Reading: contents of files, checked before they are returned. Three ways, one answer:

- `Content` reads any file: its inode, then each data entry that the bytes asked for lie in. `Files`
  reads with it, by key, and lays the drafts of a writer over; a mount, a scan and Spark read with
  it, by position.
- `Short` reads one file of the usual layout in few steps, and knows whether there is one: for a
  handle through a map, for a mount by pread. `Plain` is the same in Python.
- `BulkGet` reads plain files by the thousand: one look-up for all names, inodes gathered as
  columns, and a slice for each data entry. A file is plain if `put` or `put_many` wrote it: one
  extent.

The last two are compiled, too: see `native`.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, repeat
from operator import getitem
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import numpy as np
import xxhash

from winkformats import native
from winkformats.arrays import Int64, column, rows_at
from winkformats.disk.posix import FileStorage
from winkformats.errors import CorruptError
from winkformats.hashing import MASK63, XXH3
from winkformats.kv.entry import MASK64, KVEntry, from_bytes
from winkformats.kv.pagesums import PAGE
from winkformats.kv.sequence import KVSeq
from winkfs.container.index import MERGE_OVERLAY
from winkfs.container.ondisk.chain import whole
from winkfs.container.ondisk.idx import ALIKE, PAIRS
from winkfs.container.ondisk.inode import (
    CK_XXH3,
    FRAME,
    HEAD,
    INT64,
    Attrs,
    Extent,
    Inode,
    assemble,
    assemble_into,
    attributes,
    check_lives,
    check_size,
    cut,
    joined,
)
from winkfs.entry import DEFAULT_MODE, FileType, Stat, default_mode, stat_of
from winkfs.errors import NoSuchFile
from winkfs.names import INODE, INODE_TEXT, Name, name_of, to_bytes, to_str

if TYPE_CHECKING:
    from winkformats.disk.storage import Storage
    from winkformats.native import Found, Native, Read, ReadAt
    from winkfs.container.draft import Draft
    from winkfs.container.ondisk.idx import Base
    from winkfs.container.store import Store

KEEP: Final = 4  # checked entries kept, for reads in small steps of a large one
LARGE: Final = 64 << 10  # bytes from which an entry is kept
LOOK: Final = 0.05  # seconds after which a reader looks whether BASE.data is another file
NEAR: Final = 8 << 10  # bytes before an inode that are read with it, most
SPARE: Final = 300  # bytes of an entry beside its value, most
LARGEST: Final = 1024  # bytes of the inodes that the short way reads, and of their names
EXTENTS: Final = 16  # of a file that the short way reads, most
USUAL_KEY: Final = 255  # bytes of most keys
USUAL: Final = 1 << 20  # bytes of a content that a container need not have itself
ROWS: Final = 1024  # of a batch: what it touches stays in the L2 cache
LONGEST_KEY: Final = 255  # bytes of the longest key in a batch that is read as columns
VALUES: Final = [slice(start, None) for start in range(32)]  # each a slice made once
POWERS: Final = np.array([16**i for i in range(1, 15)], np.int64)


class EntryAt(Protocol):
    """Reads an entry and checks it. `least`: bytes of its value that are needed, 0: not known."""

    def __call__(self, pos: int, least: int = 0, /) -> KVEntry: ...


class Content:
    """Resolves what inodes name to bytes: the inodes below them, attributes, extents.

    entry_at  how the entries are read; None: as the handle does
    storage   that they are read from
    keep      how many large values are kept; 0: several threads read
    """

    def __init__(
        self,
        store: Store,
        entry_at: EntryAt | None = None,
        storage: Storage | None = None,
        keep: int = KEEP,
    ) -> None:
        self._store, self._kv, self._keep = store, store.kv, keep
        self._entry_at = entry_at or store.entry_at
        self._storage = storage or store.kv.storage
        self._form, self._frames = store.settings.form, store.frames
        self._kept: dict[int, bytes] = {}  # position -> checked value, or what that has in it
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

    def stored(self, pos: int) -> tuple[bytes, Inode]:
        """The inode at a position as it is stored, and its key. Raises CorruptError."""
        entry, name = self._entry_at(pos), self._storage.name
        return entry.key, Inode.decode(entry.value, self._form, file=name, offset=pos)

    def whole(self, inode: Inode, pos: int) -> Inode:
        """The same inode with all its extents. Raises CorruptError."""
        return whole(inode, pos, self._entry_at, self._form, self._storage.name)

    def attrs(self, inode: Inode) -> Attrs:
        """The attributes of a file, the defaults where it has none. Raises CorruptError."""
        return attributes(inode, self.owner, self._entry_at, self._storage.name)

    def read(self, extents: Sequence[Extent], start: int, stop: int, *, holder: int = 0) -> bytes:
        """The bytes [start, stop) of a file, stop no more than its size. Raises CorruptError;
        Refusal EFBIG for a hole that is out of all proportion. `holder`: see `check_lives`."""
        name = self._storage.name
        check_size(stop - start, self._kv.end, name)
        return assemble(cut(extents, start, stop), partial(self.value, holder), name)

    def read_into(
        self, into: memoryview, extents: Sequence[Extent], start: int, *, holder: int = 0
    ) -> int:
        """The bytes from `start` on, as many as `into` has room for -> how many."""
        part = cut(extents, start, start + len(into))
        return assemble_into(into, part, partial(self.value, holder), self._storage.name)

    def read_all(self, extents: Sequence[Extent]) -> bytes:
        """All bytes of the extents."""
        return self.read(extents, 0, sum(extent.size for extent in extents))

    def value(self, holder: int, pos: int, least: int, framed: bool) -> bytes:
        """The value of the entry at `pos`; what is in it, where it is a frame. See `ValueAt`."""
        kept = self._kept.get(pos)
        if kept is not None:
            return kept
        entry = self._entry_at(pos, 0 if framed else least)
        check_lives(entry, holder, self._storage.read, self._storage.name)
        value = self._frames.content(entry.value, pos) if framed else entry.value
        if len(value) >= LARGE and self._keep:
            if len(self._kept) >= self._keep:
                del self._kept[next(iter(self._kept))]
            self._kept[pos] = value
        return value

    def read_whole(self, key: bytes) -> bytes | None:
        """The whole content of a file, None where there is none of that name."""
        found = self.inode(key)
        if found is None:
            return None
        return self.read(found[1].extents, 0, found[1].lsize, holder=found[0])


class Files:
    """What is seen of files by their inode keys, with the drafts of a writer laid over.

    All raise NoSuchFile for a missing key, save `find`.

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
            try:
                _, inode, _ = self._store.inode_at(pos)
            except CorruptError as error:  # what it owned is not known; what replaces it is good
                self._store.note(error)
                continue
            self.doom(pos, inode.size, inode.lsize, inode.owned)
        if index.must_merge or len(index.overlay) > MERGE_OVERLAY:
            self._store.sync_data()
            self._store.merge()

    def doom(self, pos: int, size: int, lsize: int, pointers: Set[int]) -> None:
        """Count an inode and its entries as gone, and have their delflags set after the sync."""
        store = self._store
        store.itotsz -= size
        store.dtotsz -= lsize
        store.forget_inode(pos)
        if pos and not store.keeps_older:
            store.doomed.append(pos)
            self._kv.aentries -= 1
        self.doom_entries(pointers)

    def doom_entries(self, pointers: Set[int]) -> None:
        """The same for entries that no inode names any more."""
        if self._kv.layout.delflag and not self._store.keeps_older:
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
        draft, name = self.drafts.get(key), name_of(key)
        if draft:
            return self.stated(
                name, draft.fileid, draft.lsize, draft.ftype, draft.mtime, draft.attrs
            )
        inode = self.inode(key)[1]
        attrs = self._content.attrs(inode)
        return self.stated(name, inode.fileid, inode.lsize, inode.ftype, inode.mtime, attrs)

    def stated(
        self,
        name: Name,
        fileid: int,
        size: int,
        ftype: int,
        mtime: int,
        attrs: Attrs | bytes | None,
        at: int = 0,
        pos: int = 0,
    ) -> Stat:
        """The Stat of a file, of what `Short.find` has of it or of Attrs. `attrs` None: the
        defaults."""
        store, (uid, gid) = self._store, self._content.owner
        ns = mtime * store.settings.mtime_unit
        if attrs is None:
            mode = DEFAULT_MODE.get(ftype, 0o644)  # type: ignore[call-overload]
            return stat_of(name, fileid, size, ns, ftype, mode, uid, gid, ns)
        if isinstance(attrs, bytes):
            attrs = Attrs.decode(attrs, file=store.kv.storage.name, offset=at)
        ctime = ns if attrs.ctime_ns is None else attrs.ctime_ns
        return stat_of(name, fileid, size, ns, ftype, attrs.mode, attrs.uid, attrs.gid, ctime)

    def attrs(self, key: bytes) -> Attrs:
        """Mode, owner and extended attributes, the defaults where nothing is stored; the record of
        columns as it is today."""
        draft = self.drafts.get(key)
        stored = (
            self._content.attrs(self.inode(key)[1]) if draft is None else self.draft_attrs(draft)
        )
        shown = self._store.shown.shown(stored.xattrs)
        return stored if shown is stored.xattrs else replace(stored, xattrs=shown)

    def draft_attrs(self, draft: Draft) -> Attrs:
        """The same of a draft, as they are stored."""
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
        stop = offset + size if size >= 0 else sys.maxsize
        return self._read(*self._stands(key), offset, stop)

    def read_into(self, key: bytes, offset: int, into: memoryview) -> int:
        """Fill a buffer from `offset` -> bytes, fewer only at the end of the file."""
        holder, extents, body, tail = self._stands(key)
        room = min(len(into), max(body - offset, 0))
        done = self._content.read_into(into[:room], extents, offset, holder=holder)
        rest = tail[max(offset - body, 0) :][: len(into) - done]
        into[done : done + len(rest)] = rest
        return done + len(rest)

    def reader(self, key: bytes) -> Callable[[int, int], bytes]:
        """-> reads (offset, size) of the file as it stands now, also when it has changed or gone.

        For as long as the handle is open, except for entries that a failed write took along: see
        `Handle.troubles`. Memory: 1 MiB at most; nothing is copied but the tail of a draft.
        """
        holder, extents, body, tail = self._stands(key)
        tail = bytes(tail)
        return lambda offset, size: self._read(holder, extents, body, tail, offset, offset + size)

    def _stands(self, key: bytes) -> tuple[int, Sequence[Extent], int, bytes | bytearray]:
        """-> where its inode is, 0: a draft; the extents of the first bytes of a file, how many
        these are, what follows them."""
        draft = self.drafts.get(key)
        if draft is not None:
            return 0, draft.extents, draft.body, draft.tail
        pos, inode = self.inode(key)
        return pos, inode.extents, inode.lsize, b""

    def _read(
        self,
        holder: int,
        extents: Sequence[Extent],
        body: int,
        tail: bytes | bytearray,
        start: int,
        stop: int,
    ) -> bytes:
        rest = tail[max(start - body, 0) : max(stop - body, 0)]
        return self._content.read(extents, start, min(stop, body), holder=holder) + rest


# --- one file, the short way ---

Triple = tuple[int, int, int]  # as an Extent
Fields = tuple[int, int, int, int, Triple | None]
"""FILEID, LSIZE, FTYPE, FMTIME, the triple of the attributes."""
Known = tuple[bytes, int, Fields, list[Triple]]
"""The key of a file, the position of its inode, and the extents."""


@dataclass(frozen=True, slots=True)
class Short:
    """The short way to files of the usual layout, for threads without the lock.

    Each of the first three, by name, has three answers: what is asked for; False: there is no file
    of that name; None: the ordinary way decides. It is None for ever once the index is replaced, or
    another process has synced. The others are asked by the position of an inode.

    stale   not empty: the index was replaced
    limits  int64[2]: bytes of the data file that are looked at; see `Lookups.limits`
    reach   how many could be looked at
    """

    read: Read
    has: Callable[[object], bool | None]
    find: Callable[[object], Found | Literal[False] | None]
    read_at: ReadAt
    find_at: Callable[[int], tuple[bytes, Found] | None]
    stale: Sequence[bool]
    limits: array[int]
    reach: int


def _ask(given: object, most: int = INT64) -> None:
    """The answer that the ordinary way decides."""


ORDINARY: Final = Short(_ask, _ask, _ask, _ask, _ask, (True,), array("q", (INT64, 0)), INT64)
"""Of a handle that is closed, or has to look at something before it answers."""
FIRST: Final = replace(ORDINARY)
"""Of a handle that was opened just now, and maybe for few files."""


def short_way(store: Store, drafts: dict[bytes, Draft], *, often: bool = False) -> Short:
    """The short way to a store as it is now. The caller has the lock.

    often   whether many files have been read: a copy of the index is worth its time
    """
    index, kv, settings = store.index, store.kv, store.settings
    # CONTID + position must not wrap.
    if not kv.layout.standard or settings.ckalgo != CK_XXH3 or not 0 <= kv.layout.contid <= INT64:
        return replace(ORDINARY, stale=index.stale)
    base = index.base if settings.htalgo == XXH3 and settings.cellsz == 2 else None
    try:
        kv.show(kv.end - 1)
        compiled = _compiled(store, base, drafts, often)
    except (OSError, CorruptError):  # the disk is full; no descriptor is left; cut short
        return replace(ORDINARY, stale=index.stale)
    if compiled is not None:
        return compiled
    plain = Plain(store, drafts, base)
    return Short(
        plain.read, plain.has, plain.find, plain.read_at, plain.find_at, index.stale,
        plain.limits, INT64,
    )  # fmt: skip


def _compiled(
    store: Store, base: Base | None, drafts: dict[bytes, Draft], often: bool
) -> Short | None:
    """What is compiled; None where there is nothing for this layout or disk."""
    kv, code = store.kv, _code(store)
    if code is None or not (store.mapped or isinstance(kv.storage, FileStorage)):
        return None
    view: mmap.mmap | memoryview | bytes = b""
    limits, reach = array("q", (0, INT64)), INT64  # all is read by pread
    if store.mapped:
        looks = kv.looks(kv.end - 1)
        view, reach = looks.view, len(looks.view)
        limits = array("q", (0, 0)) if store.writable else looks.limits
    limits[0] = kv.end
    cells: mmap.mmap | memoryview | bytes = b""
    shape, descriptor, live = (0, 0, 0, 0), -1, kv.aentries // 2
    if base is not None:
        if base.looks is not None:
            base.looks.advise()
            cells = base.in_memory(make=often) or base.looks.view
        descriptor, live, table = _descriptor(base.storage, cells), base.live, base.shape
        shape = base.offset, table.htsize, table.htfree, table.htdel
    found = code.reader(
        view, limits, *_form(store), cells, *shape, _sums(store, base), store.index.overlay,
        drafts, (store.index.stale, store.index.bulk), _descriptor(kv.storage, view), descriptor,
        min(kv.end // max(live, 1), NEAR), -1 if _is_steady(store) else store.filesize_at,
        int.from_bytes(store.filesize, sys.byteorder), int((time.monotonic() + LOOK) * 1e9),
        store.frames.content,
    )  # fmt: skip
    return Short(*found, store.index.stale, limits, reach)


def renewed(short: Short, store: Store, drafts: dict[bytes, Draft], pos: int) -> Short:
    """The short way as it is now, for the inode at this position: the same one, if only more was
    written. The caller has the lock."""
    kv = store.kv
    if not short.stale:
        if pos < short.limits[0]:
            return short
        if kv.end <= short.reach:
            with contextlib.suppress(OSError):  # the disk is full
                kv.show(kv.end - 1)
                short.limits[0] = kv.end
            return short
    return short_way(store, drafts, often=short is ORDINARY)


def _is_steady(store: Store) -> bool:
    """Whether no other process changes what it shows."""
    return store.writable or store.frozen


def _sums(store: Store, base: Base | None) -> bytearray | bytes | None:
    """Of each page of the index, whether it was found right, so that a name is not there if it is
    not in it; None: of all."""
    if base is None:
        return None
    if store.index.gone is not None:  # there are names in no index
        return bytes((base.offset + base.size) // PAGE + 1)
    return None if base.sums is None else base.sums.good


class Plain:
    """The functions of `Short` in Python: what `native.code.reader` does, by `Storage.read`."""

    def __init__(self, store: Store, drafts: Mapping[bytes, Draft], base: Base | None) -> None:
        kv, index = store.kv, store.index
        self.limits = array("q", (kv.end, 0))
        self._data, self._decode = kv.storage, store.frames.content
        self._base, self._sums = base, _sums(store, base)
        self._overlay, self._drafts = index.overlay, drafts
        self._stale, self._bulk = index.stale, index.bulk
        self._contid, self._pair = kv.layout.contid, store.settings.form.pair
        self._room = 11 + store.inode_size
        self._filesize = None if _is_steady(store) else (store.filesize_at, store.filesize)
        self._due = time.monotonic() + LOOK
        self._last: Known = (b"", -1, (0, 0, 0, 0, None), [])

    def has(self, name: object) -> bool | None:
        """-> whether there is a file."""
        found = self.find(name)
        return bool(found) if found is not None else None

    def find(self, name: object) -> Found | Literal[False] | None:
        """-> the facts of a file, as its inode has them."""
        try:
            found = self._named(name)
            return self._facts(*found) if found else found
        except OSError:  # closed meanwhile
            return None

    def find_at(self, pos: int) -> tuple[bytes, Found] | None:
        """-> the name of a file, and its facts."""
        try:
            found = self._inode(pos) if self._is_sure() else None
            facts = self._facts(*found) if found else None
        except OSError:  # closed meanwhile
            return None
        return (found[0][: -len(INODE)], facts) if found and facts else None

    def read(self, name: object, most: int = INT64) -> bytes | Literal[False] | None:
        """-> the content of a file."""
        try:
            found = self._named(name)
            return self._content(*found[2:], most) if found else found
        except (OSError, CorruptError):  # closed meanwhile; a frame is damaged
            return None

    def read_at(self, pos: int, most: int = INT64) -> bytes | None:
        """-> the content of the file whose inode stands there."""
        try:
            found = self._inode(pos) if self._is_sure() else None
            return self._content(*found[2:], most) if found else None
        except (OSError, CorruptError):
            return None

    def _facts(self, key: bytes, pos: int, fields: Fields, extents: list[Triple]) -> Found | None:
        fileid, lsize, ftype, mtime, attrs = fields
        if attrs is None:
            return fileid, lsize, ftype, mtime, None, 0, pos
        value = self._value(attrs[0], -attrs[2])
        if value is None or len(value) < -attrs[2]:
            return None
        return fileid, lsize, ftype, mtime, value[: -attrs[2]], attrs[0], pos

    def _content(self, fields: Fields, extents: list[Triple], most: int) -> bytes | None:
        left = fields[1]
        if left > most or len(extents) > EXTENTS or (left > USUAL and left > self.limits[0]):
            return None
        parts: list[bytes] = []
        for pointer, skip, size in extents:
            framed, skip = skip >= FRAME, skip & ~FRAME
            end = skip + min(size, left)
            value = self._value(pointer, 0 if framed else end) if pointer else bytes(end)
            if framed and value is not None:
                value = self._decode(value, pointer)
            if value is None or len(value) < end:
                return None
            parts.append(value[skip:end])
            left -= end - skip
        return b"".join(parts)

    def _value(self, pos: int, least: int) -> bytes | None:
        """The checked value of the live entry at `pos`, of `least` bytes or more."""
        found = self._entry(pos, least + SPARE)
        return found[0][found[1] : found[2]] if found else None

    def _entry(self, pos: int, size: int, most: int = INT64) -> tuple[bytes, int, int] | None:
        """The live entry at `pos`, checked, and where in it its value begins and ends.

        size  bytes that are read first
        most  bytes of the entry
        """
        left = self.limits[0] - pos
        data = self._data.read(pos, min(size, left)) if pos > 0 and left > 0 else b""
        start = 7 + from_bytes(data[1:3])
        end = start + from_bytes(data[start - 4 : start])
        if len(data) < end + 4 <= min(left, most):
            data = self._data.read(pos, end + 4)
        if len(data) < end + 4 or data[0]:
            return None
        found = xxhash.xxh3_64_intdigest(data[1:end], self._contid + pos) & 0xFFFFFFFF
        return (data, start, end) if found == from_bytes(data[end : end + 4]) else None

    def _is_sure(self) -> bool:
        """Whether all that is there is known."""
        if self._stale or self._bulk:
            return False
        if self._filesize is None:
            return True
        at, size = self._filesize  # another process may write, or put a file in its place
        return self._data.read(at, 8) == size and time.monotonic() <= self._due

    def _named(self, name: object) -> Known | Literal[False] | None:
        """-> the inode of a name."""
        try:
            raw = name.encode("utf-8", "surrogateescape") if type(name) is str else name
        except UnicodeEncodeError:
            return None
        if type(raw) is not bytes or not 0 < len(raw) < LARGEST or b"\0" in raw:
            return None
        key = raw + INODE
        if key in self._drafts or not self._is_sure():
            return None
        pos = self._overlay.get(key, -1)
        if pos < 0:
            pos = self._position(xxhash.xxh3_64_intdigest(key))
        if pos > 0:
            found = self._inode(pos, len(key))
            return found if found and found[0] == key else None
        return False if pos == 0 and not self._stale else None  # it was looked at behind the cells

    def _inode(self, pos: int, length: int = USUAL_KEY) -> Known | None:
        """-> the inode at a position. `length`: of its key, most likely."""
        if pos == self._last[1]:  # what was found by its name is read
            return self._last
        found = self._entry(pos, self._room + length, 2 * LARGEST)
        if self._stale or not found or found[2] < found[1] + HEAD.size:
            return None
        data, at, end = found
        cksum, nexti, fileid, lsize, ftype, mtime, count = HEAD.unpack_from(data, at)
        key, step = data[3 : at - 4], self._pair // 8
        stop = at + HEAD.size + self._pair * count
        if stop > end or count < 0 or nexti or fileid < 1 or lsize < 0:
            return None
        named = key.endswith(INODE) and len(key) > len(INODE)
        if not named or cksum != xxhash.xxh3_64_intdigest(data[at + 8 : stop]):
            return None
        numbers = struct.unpack_from(f">{step * count}q", data, at + HEAD.size)
        skips = numbers[1::3] if step == 3 else repeat(0, count)
        extents = list(zip(numbers[::step], skips, numbers[step - 1 :: step], strict=True))
        attrs = extents.pop(0) if extents and extents[0][2] < 0 else None
        total = 0
        for pointer, skip, size in extents:
            if pointer < 0 or skip < 0 or size < 0 or skip + size > INT64:
                return None
            total += size
        if total < lsize:
            return None
        self._last = key, pos, (fileid, lsize, ftype or FileType.FILE, mtime, attrs), extents
        return self._last

    def _position(self, s: int) -> int:
        """The position that the index has for a hash; 0: it surely has none, -1: that is unsure."""
        base = self._base
        if base is None:
            return -1
        shape, offset = base.shape, base.offset
        home = (s & MASK63) % shape.htsize
        cells = base.storage.read(offset + 16 * home, 16 * min(ALIKE, shape.htsize - home))
        for i, (pos, stored) in enumerate(PAIRS(cells[: len(cells) & -16])):
            if pos == shape.htfree:
                first, last = (offset + 16 * home) // PAGE, (offset + 16 * (home + i)) // PAGE
                return 0 if self._sums is None or all(self._sums[first : last + 1]) else -1
            if stored == s and pos != shape.htdel:
                return int(pos)
        return -1


def _code(store: Store) -> type[Native] | None:
    """What reads plain files of a standard layout; None: the path in Python."""
    usual_size = HEAD.size + store.settings.form.pair <= store.inode_size <= LARGEST
    return native.code if usual_size else None


def _descriptor(storage: Storage, view: mmap.mmap | memoryview | bytes) -> int:
    """By which to see how long a file is that is mapped, or to read one that is not; -1: the view
    is none that can be cut."""
    if isinstance(storage, FileStorage) and (isinstance(view, mmap.mmap) or not view):
        return storage.fd
    return -1


def _form(store: Store) -> tuple[int, bool, int]:
    """What the compiled path has to know of a container: ISZ, PAIROFF, CONTID mod 2^64."""
    return store.inode_size, store.settings.pairoff, store.kv.layout.contid & MASK64


class BulkGet:
    """Reads batches of files by name."""

    def __init__(self, store: Store, content: Content) -> None:
        self._store, self._content = store, content
        self._fast = store.kv.layout.standard and store.mapped

    @staticmethod
    def batches(names: Iterable[Name]) -> Iterator[list[Name]]:
        source = iter(names)
        while batch := list(islice(source, ROWS)):
            yield batch

    def get(self, names: list[Any], short: Short) -> tuple[list[bytes], str | None]:
        """-> contents in the order of the names up to the first missing one, and that name.

        short  the way to those that are not plain
        """
        keys = _keys(names)
        store = self._store
        found: list[bytes | None] = [None] * len(keys)
        if self._fast:
            pos = store.index.candidates(keys, compared=True)
            rows = np.flatnonzero(pos)
            if len(rows):
                store.kv.view(int(pos.max()), few=True)
                if code := _code(store):
                    self._compiled(code, keys, pos, found)
                else:
                    self._gather(keys, pos, rows, found)
        for i, value in enumerate(found):
            if value is None:
                more = short.read(names[i])
                value = more if isinstance(more, bytes) else self._content.read_whole(keys[i])
                found[i] = value
            if value is None:
                return found[:i], to_str(names[i])  # type: ignore[return-value]
        return found, None  # type: ignore[return-value]

    def _compiled(
        self, code: type[Native], keys: list[bytes], pos: Int64, found: list[bytes | None]
    ) -> None:
        """As `_gather`, in two steps. Before each the pages that it looks at are asked for."""
        store, kv = self._store, self._store.kv
        view = kv.view(0, few=True)
        end = min(kv.end, len(view))  # a reader's view may be older: it holds just what was asked
        form = view, end, *_form(store)
        places = pos[(pos > 0) & (pos < end)]
        kv.fetch(places, np.minimum(places + store.inode_size + SPARE, end))
        pointers, sizes = np.empty(len(pos), np.int64), np.zeros(len(pos), np.int64)
        code.inodes(*form, keys, pos, pointers, sizes)
        plain = (pointers > 0) & (pointers < end - sizes)
        if not plain.any():
            return
        kv.view(0, few=True)
        kv.fetch(pointers[plain], np.minimum((pointers + sizes)[plain] + SPARE, end))
        code.contents(*form, pointers, sizes, found)

    def _gather(
        self, keys: list[bytes], pos: Int64, rows: Int64, found: list[bytes | None]
    ) -> None:
        """Read the files of `rows` whose inodes are plain and good."""
        kv, pos = self._store.kv, pos[rows]
        view, isz = kv.view(0, few=True), self._store.inode_size
        end = min(kv.end, len(view))  # a reader's view may be older: it holds just what was asked
        lengths = np.fromiter(map(len, keys), np.int64, len(keys))
        lengths = lengths if len(rows) == len(keys) else lengths[rows]
        longest = int(lengths.max())
        inside = (pos >= kv.superblock["SBSIZE"]) & (pos + 11 + longest + isz <= end)
        if longest > LONGEST_KEY or not inside.any():
            return
        if not inside.all():
            rows, pos, lengths = rows[inside], pos[inside], lengths[inside]
        kv.fetch(pos, pos + 11 + longest + isz)
        # A copy of each whole entry overlaps their cache misses: then slices cost half.
        head = rows_at(view, pos, 11 + longest + isz)
        ends = pos + 7 + lengths + isz
        bodies = [view[a:b] for a, b in zip((pos + 1).tolist(), ends.tolist(), strict=True)]
        if len(rows) < len(keys):
            keys = [keys[i] for i in rows.tolist()]
        pairs = zip(bodies, keys, strict=True)
        same = np.array([body.startswith(key, 2) for body, key in pairs])  # type: ignore[union-attr]
        good = same & (head[:, 0] == 0) & (column(head, ">u2", 1) == lengths)
        tail = rows_at(view, ends - isz - 4, isz + 8)
        good &= kv.layout.sums(pos, bodies) == column(tail, ">u4", isz + 4)
        good &= column(tail, ">u4", 0) == isz
        pair = self._store.settings.form.pair // 8  # words
        two = min(isz // 8, 7 + 2 * pair)
        words = np.ndarray((len(rows), two), ">i8", tail, 4, (isz + 8, 8)).astype(np.int64)
        named = words[:, 6 + pair] < 0  # attributes stand before the extents
        if two == 7 + 2 * pair and named.any():
            words[named, 7 : 7 + pair] = words[named, 7 + pair :]
            words[named, 6] -= 1
        # One extent from the start of one entry: what put and put_many write.
        good &= (words[:, 6] == 1) & (words[:, 7] > 0) & (words[:, 6 + pair] == words[:, 3])
        if self._store.settings.pairoff:
            good &= words[:, 8] == 0
        starts = 10 + np.searchsorted(POWERS, words[:, 2], "right")  # "<hex>/D0" and two lengths
        # The entry of `put` with key "<hex>/D0" and all of its value; else its checksum is wrong.
        size, room = words[:, 3], end - 5 - starts - words[:, 7]
        good &= (words[:, 7] <= end) & (size >= 0) & (size <= room)
        if good.all():
            self._data(rows, words[:, 7], starts, words[:, 3], found)
        else:
            self._data(rows[good], words[good, 7], starts[good], words[good, 3], found)

    def _data(
        self, rows: Int64, pos: Int64, starts: Int64, sizes: Int64, found: list[bytes | None]
    ) -> None:
        """Read and check the data entries of `rows`: `starts`: of the value, from pos + 1."""
        if not len(rows):
            return
        kv = self._store.kv
        view = kv.view(0, few=True)
        ends = pos + 1 + starts + sizes
        kv.fetch(pos, ends + 4)
        bodies = [view[a:b] for a, b in zip((pos + 1).tolist(), ends.tolist(), strict=True)]
        good = kv.layout.sums(pos, bodies) == column(rows_at(view, ends, 4), ">u4", 0)
        good &= rows_at(view, pos, 1)[:, 0] == 0  # else marked deleted meanwhile, or a filler
        values: Iterable[Any] = map(getitem, bodies, map(VALUES.__getitem__, starts.tolist()))
        if len(rows) == len(found) and good.all():
            found[:] = values
            return
        for ok, row, value in zip(good.tolist(), rows.tolist(), values, strict=True):
            if ok:
                found[row] = value


def _keys(names: list[Any]) -> list[bytes]:
    try:
        text = (INODE_TEXT + "\0").join(names) + INODE_TEXT
        keys = text.encode("utf-8", "surrogateescape").split(b"\0")
        if len(keys) == len(names):
            return keys
    except TypeError:
        pass
    return [to_bytes(name) + INODE for name in names]
