"""Reading: contents of files, checked before they are returned. Three ways, one answer:

- `Content` reads any file: its inode, then each data entry that the bytes asked for lie in. `Files`
  reads with it, by key, and lays the drafts of a writer over.
- `fast_reader` reads one plain file in few steps: a closure over locals. A file is plain if `put`
  or `put_many` wrote it: one extent, the default layout. For any other it returns None.
- `BulkGet` reads plain files by the thousand: one look-up for all names, inodes gathered as
  columns, and a slice for each data entry.

The last two are compiled, too: see `native`.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import islice
from operator import getitem
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import xxhash

from winkformats import native
from winkformats.arrays import Int64, column, rows_at
from winkformats.disk.posix import FileStorage
from winkformats.errors import CorruptError
from winkformats.hashing import MASK63
from winkformats.hindex.table import PROBED
from winkformats.kv.entry import MASK64
from winkformats.kv.sequence import KVSeq
from winkfs.container.entry import Stat
from winkfs.container.index import MERGE_OVERLAY
from winkfs.container.ondisk.idx import ALIKE, PAIRS, usual
from winkfs.container.ondisk.inode import (
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
    default_mode,
    joined,
)
from winkfs.errors import NoSuchFile
from winkfs.names import INODE, INODE_TEXT, Name, name_of, to_bytes, to_str

if TYPE_CHECKING:
    from winkformats.disk.storage import Lookups, Storage
    from winkformats.native import Native, Read
    from winkfs.container.draft import Draft
    from winkfs.container.ondisk.idx import Base
    from winkfs.container.store import Store

KEEP: Final = 4  # checked entries kept, for reads in small steps of a large one
LARGE: Final = 64 << 10  # bytes from which an entry is kept
LOOK: Final = 0.05  # seconds after which a reader looks whether BASE.data is another file
SEARCHED: Final = 16 * ALIKE  # bytes of cells that are searched
NEAR: Final = 8 << 10  # bytes before an inode that are read with it, most
SPARE: Final = 300  # bytes of an entry beside its value, most
LARGEST: Final = 1024  # bytes of the inodes that the compiled path reads
ROWS: Final = 1024  # of a batch: what it touches stays in the L2 cache
LONGEST_KEY: Final = 255  # bytes of the longest key in a batch that is read as columns
VALUES: Final = [slice(start, None) for start in range(32)]  # each a slice made once
POWERS: Final = np.array([16**i for i in range(1, 15)], np.int64)


class Content:
    """Reads inodes, attributes and extents of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
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

    def attrs(self, inode: Inode) -> Attrs:
        """The attributes of a file, the defaults where it has none."""
        return attributes(inode, self.owner, self._store.entry_at, self._store.kv.storage.name)

    def read(self, extents: Sequence[Extent], start: int, stop: int, *, holder: int = 0) -> bytes:
        """The bytes [start, stop) of a file, stop no more than its size. Raises CorruptError;
        Refusal EFBIG for a hole that is out of all proportion. `holder`: see `check_lives`."""
        kv = self._store.kv
        check_size(stop - start, kv.end, kv.storage.name)
        value = partial(self._value, holder=holder)
        return assemble(cut(extents, start, stop), value, kv.storage.name)

    def read_into(
        self, into: memoryview, extents: Sequence[Extent], start: int, *, holder: int = 0
    ) -> int:
        """The bytes from `start` on, as many as `into` has room for -> how many."""
        part = cut(extents, start, start + len(into))
        value = partial(self._value, holder=holder)
        return assemble_into(into, part, value, self._store.kv.storage.name)

    def read_all(self, extents: Sequence[Extent]) -> bytes:
        """All bytes of the extents."""
        return self.read(extents, 0, sum(extent.size for extent in extents))

    def _value(self, pos: int, least: int, framed: bool, *, holder: int) -> bytes:
        kept = self._kept.get(pos)
        if kept is not None:
            return kept
        store = self._store
        entry = store.entry_at(pos)
        check_lives(entry, holder, store.kv.storage.read, store.kv.storage.name)
        value = store.frames.content(entry.value, pos) if framed else entry.value
        if len(value) >= LARGE:
            if len(self._kept) >= KEEP:
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
        """Mode, owner and extended attributes, the defaults where nothing is stored; the record of
        columns as it is today."""
        draft = self.drafts.get(key)
        stored = (
            self._content.attrs(self.inode(key)[1]) if draft is None else self._draft_attrs(draft)
        )
        shown = self._store.shown.shown(stored.xattrs)
        return stored if shown is stored.xattrs else replace(stored, xattrs=shown)

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
        `Engine.troubles`. Memory: 1 MiB at most; nothing is copied but the tail of a draft.
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


class _Shapes(dict[int, tuple[Any, int, Any]]):
    """Length of a key -> how to unpack its inode entry, the bytes of that, and, where attributes
    stand before its extent, how to unpack that extent; None: there is no room for it."""

    def __init__(self, store: Store) -> None:
        form = store.settings.form
        rest = store.inode_size - 56 - form.pair
        # The checksum covers the lengths that are not unpacked. However many extents there are:
        # where the first has the length of the file it is all of it.
        pair = "qqq" if store.settings.pairoff else "q0sq"
        self._inode = f"4x24xq24x{pair}{rest}xI"
        self._next = f"{56 + form.pair}x{pair}" if rest >= form.pair else ""

    def __missing__(self, length: int) -> tuple[Any, int, Any]:
        code = struct.Struct(f">B2x{length}s{self._inode}")
        second = struct.Struct(f">{7 + length}x{self._next}").unpack_from if self._next else None
        found = self[length] = code.unpack_from, code.size, second
        return found


def fast_reader(store: Store, drafts: Mapping[bytes, Any], *, often: bool = False) -> Read | None:
    """A reader for the store as it is now, None where its layout is another.

    It answers None for ever once the index is replaced or another process has synced.

    often   whether many files have been read: a copy of the index is worth its time
    """
    kv, settings = store.kv, store.settings
    base = usual(store.index.base, kv.layout, settings)
    if base is None or base.looks is None or not store.mapped:
        return None
    looks, limit = kv.looks(kv.end - 1), kv.end
    if looks.reads > 0 and not store.writable:
        return _near_reader(store, base, looks)
    view, shapes = looks.view, _Shapes(store)
    whole = memoryview(view)  # structs unpack faster from it, slices are faster of the map
    first = base.offset
    htsize, htfree, htdel = base.shape.htsize, base.shape.htfree, base.shape.htdel
    last = first + 16 * htsize
    cell, u32 = struct.Struct(">qQ").unpack_from, struct.Struct(">I").unpack_from
    hash64, contid = xxhash.xxh3_64_intdigest, kv.layout.contid
    index = store.index
    overlay, stale, bulk = index.overlay, index.stale, index.bulk
    at = store.filesize_at
    size_now = whole[at : at + 8].cast("Q")
    writable, size_then = store.writable, int.from_bytes(store.filesize, sys.byteorder)
    clock, due = time.monotonic, time.monotonic() + LOOK
    mapped, framed, copy = len(view), _framed(store), base.in_memory(make=often)
    base.looks.advise()
    cells = base.looks.view if copy is None else copy
    files = _descriptor(kv.storage, view), _descriptor(base.storage, cells)
    try:
        if code := _compiled(store):
            return code.reader(
                view, min(limit, mapped), *_form(store), cells, first, htsize, htfree, htdel,
                overlay, (stale, drafts, bulk), *files, -1 if writable else at, size_then,
                int(due * 1e9),
            )  # fmt: skip
        # What is mapped must not be cut short meanwhile: a look behind its end ends the process.
        # Nobody goes by the place of these descriptors, and to set it takes half the time of fstat.
        seek, (data_file, index_file) = os.lseek, _duplicates(files)
    except OSError:  # no descriptor is left; the ordinary way needs none
        return None

    def read(key: str | bytes, most: int = INT64) -> bytes | None:
        if stale or drafts or bulk:
            return None
        if not isinstance(key, bytes):
            key = (key + INODE_TEXT).encode("utf-8", "surrogateescape")
        if data_file >= 0 and seek(data_file, 0, os.SEEK_END) < mapped:
            return None
        if index_file >= 0 and seek(index_file, 0, os.SEEK_END) < last:
            return None
        if not writable and (size_now[0] != size_then or clock() > due):
            return None
        pos = overlay.get(key, -1) if overlay else -1
        if pos < 0:
            s = hash64(key)  # `look` has the same loop: a call to it costs 3 % of a read
            at = first + 16 * ((s & MASK63) % htsize)
            stop = at + SEARCHED
            while True:
                pos, stored = cell(cells, at)
                if pos == htfree:
                    return None
                if stored == s and pos != htdel:
                    break
                at += 16
                if at == stop or at >= last:
                    return None
        unpack, width, second = shapes[len(key)]
        if pos <= 0 or pos + width > limit or stale:  # between the looks at overlay and cells
            return None
        flag, found, lsize, pointer, skip, length, sum32 = unpack(whole, pos)
        if length < 0 and second:
            pointer, skip, length = second(whole, pos)
        if found != key or flag or length != lsize or lsize > most:
            return None
        if hash64(view[pos + 1 : pos + width - 4], pos + contid) & 0xFFFFFFFF != sum32:
            return None
        if pointer <= 0 or pointer + lsize + 11 > limit or skip:
            return framed(pointer, lsize) if skip == FRAME else None
        if view[pointer]:  # marked deleted meanwhile, or a filler
            return None
        start = view[pointer + 2] + 6
        body = view[pointer + 1 : pointer + 1 + start + lsize]
        try:
            sum32 = u32(whole, pointer + 1 + start + lsize)[0]
        except struct.error:  # the length of the key is damaged, and leads past the end
            return None
        if hash64(body, pointer + contid) & 0xFFFFFFFF != sum32:
            return None
        return body[start:]  # type: ignore[return-value]

    weakref.finalize(read, _close_all, (data_file, index_file)).atexit = False
    return read


def _framed(store: Store) -> Callable[[int, int], bytes | None]:
    """Reads all that is in a frame: position of its entry, bytes that it has to have in it. None:
    the ordinary way decides."""
    layout, end, file = store.kv.layout, store.kv.end, store.kv.storage.name
    read, content = store.kv.storage.read, store.frames.content

    def framed(pointer: int, size: int) -> bytes | None:
        if not 0 < pointer < end:
            return None
        try:
            found = content(layout.read(read, pointer, end, file, NEAR).value, pointer)
        except (CorruptError, OSError):  # damaged; closed meanwhile
            return None
        return found if len(found) == size else None

    return framed


def _near_reader(store: Store, base: Base, looks: Lookups) -> Read:
    """The same for the first files of a handle that only reads: by `Storage.read`, see `Lookups`.

    Around an inode it reads what a file of the container has on average: mostly its content, too.
    """
    kv, index, shapes, limit = store.kv, store.index, _Shapes(store), store.kv.end
    overlay, stale, contid = index.overlay, index.stale, kv.layout.contid
    read_cells, read_data = base.storage.read, kv.storage.read
    htsize, htfree, htdel = base.shape.htsize, base.shape.htfree, base.shape.htdel
    first, hash64, u32 = base.offset, xxhash.xxh3_64_intdigest, struct.Struct(">I").unpack_from
    before = min(limit // max(base.live, 1), NEAR)
    size_now = memoryview(looks.view)[store.filesize_at :][:8].cast("Q")
    size_then = int.from_bytes(store.filesize, sys.byteorder)
    clock, due, framed = time.monotonic, time.monotonic() + LOOK, _framed(store)

    def position(key: bytes) -> int:
        s = hash64(key)
        home = (s & MASK63) % htsize
        cells = read_cells(first + 16 * home, 16 * min(PROBED, htsize - home))
        for pos, stored in PAIRS(cells[: len(cells) & -16]):
            if pos == htfree:
                return 0
            if stored == s and pos != htdel:
                return int(pos)
        return 0

    def read(key: str | bytes, most: int = INT64) -> bytes | None:
        if not isinstance(key, bytes):
            key = (key + INODE_TEXT).encode("utf-8", "surrogateescape")
        looks.reads -= 1
        if stale or size_now[0] != size_then or looks.reads < 0 or clock() > due:
            return None
        try:
            pos = overlay.get(key, -1) if overlay else -1
            if pos < 0:
                pos = position(key)
            unpack, width, second = shapes[len(key)]
            if pos <= 0 or pos + width > limit:
                return None
            low = max(pos - before, 0)
            data = read_data(low, pos + width - low)
            at = pos - low
            flag, found, lsize, pointer, skip, length, sum32 = unpack(data, at)
            if length < 0 and second:
                pointer, skip, length = second(data, at)
            if found != key or flag or length != lsize or lsize > most:
                return None
            if hash64(data[at + 1 : at + width - 4], pos + contid) & 0xFFFFFFFF != sum32:
                return None
            if pointer <= 0 or pointer + lsize + 11 > limit or skip:
                return framed(pointer, lsize) if skip == FRAME else None
            if not low <= pointer < pos:
                low, data = pointer, read_data(pointer, min(lsize + SPARE, limit - pointer))
            at = pointer - low + 1
            if data[at - 1]:  # marked deleted meanwhile, or a filler
                return None
            start = data[at + 1] + 6
            body = data[at : at + start + lsize]
            sum32 = u32(data, at + start + lsize)[0]
        except (struct.error, IndexError, OSError):  # damaged or cut short; closed meanwhile
            return None
        if hash64(body, pointer + contid) & 0xFFFFFFFF != sum32:
            return None
        return body[start:]

    return read


def _duplicates(files: Iterable[int]) -> list[int]:
    """Descriptors of our own, -1 for -1. Raises OSError, and has none then."""
    found = list[int]()
    try:
        for fd in files:
            found.append(fd if fd < 0 else os.dup(fd))
    except OSError:
        _close_all(found)
        raise
    return found


def _close_all(files: Iterable[int]) -> None:
    for fd in files:
        if fd >= 0:
            os.close(fd)


def _compiled(store: Store) -> type[Native] | None:
    """What reads plain files of a standard layout; None: the path in Python."""
    usual_size = HEAD.size + store.settings.form.pair <= store.inode_size <= LARGEST
    return native.code if usual_size else None


def _descriptor(storage: Storage, view: mmap.mmap | memoryview | bytes) -> int:
    """By which to see how long a file is that is mapped; -1: the view is none that can be cut."""
    if not isinstance(view, mmap.mmap):
        return -1
    assert isinstance(storage, FileStorage)  # nothing else gives maps
    return storage.fd


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

    def get(self, names: list[Any]) -> tuple[list[bytes], str | None]:
        """-> contents in the order of the names up to the first missing one, and that name."""
        keys = _keys(names)
        store = self._store
        found: list[bytes | None] = [None] * len(keys)
        if self._fast:
            pos = store.index.candidates(keys, compared=True)
            rows = np.flatnonzero(pos)
            if len(rows):
                store.kv.view(int(pos.max()), few=True)
                if code := _compiled(store):
                    self._compiled(code, keys, pos, found)
                else:
                    self._gather(keys, pos, rows, found)
        for i, value in enumerate(found):
            if value is None:
                value = found[i] = self._content.read_whole(keys[i])
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
            framed = good & (words[:, 8] == FRAME)
            if framed.any():
                self._framed(rows[framed], words[framed], found)
            good &= words[:, 8] == 0
        starts = 10 + np.searchsorted(POWERS, words[:, 2], "right")  # "<hex>/D0" and two lengths
        # The entry of `put` with key "<hex>/D0" and all of its value; else its checksum is wrong.
        size, room = words[:, 3], end - 5 - starts - words[:, 7]
        good &= (words[:, 7] <= end) & (size >= 0) & (size <= room)
        if good.all():
            self._data(rows, words[:, 7], starts, words[:, 3], found)
        else:
            self._data(rows[good], words[good, 7], starts[good], words[good, 3], found)

    def _framed(self, rows: Int64, words: Int64, found: list[bytes | None]) -> None:
        """Read the frames of `rows`. `words`: of their inodes."""
        read = _framed(self._store)
        places = zip(rows.tolist(), words[:, 7].tolist(), words[:, 3].tolist(), strict=True)
        for row, pointer, size in places:
            found[row] = read(pointer, size)

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
