"""Finding and reading what a container has, for a mount.

Lookup       files by key, entries by position
CacheBudget  what a mount does to the page cache of its container
find_data, text_of      what extents tell: data and holes, and a text for people
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import xxhash

from winkformats.arrays import Int64
from winkformats.errors import CorruptError, DerivedDamage
from winkformats.hashing import MASK63
from winkformats.hindex.table import PROBED
from winkformats.kv.entry import MASK64
from winkformats.kv.scan import values_at
from winkformats.kv.sequence import KVSeq
from winkfs.container.ondisk.idx import ALIKE, usual
from winkfs.container.ondisk.inode import FRAME, Attrs, Extent, Inode, assemble, check_lives, cut
from winkfs.entry import FileType

if TYPE_CHECKING:
    from winkfs.container.read import Content
    from winkfs.container.store import Store

PAGE: Final = 4096
PAGES: Final = 8192  # that may come before they go
SPREAD: Final = 64 << 10  # bytes from one inode to the next, on average, that are read with them
LARGE: Final = 64 << 10  # bytes from which a checked value is kept
NAME: Final = 256  # bytes of a name, mostly
ROUND: Final = 32  # bytes of an entry beside its value, most: 11, and "<hex of the file id>/D0"
KEEP: Final = 4  # values kept, for reads in small steps of large files
INODES: Final = 64  # inodes of several extents kept
ATTRS: Final = 1 << 10  # attributes kept
AHEAD: Final = 4 << 20  # bytes that the disk brings ahead of who reads files in order, at most
BUFFER: Final = (1 << 20) + (4 << 10)  # bytes of the largest entry read through the buffer
SHOWN: Final = 64  # extents in a text


class CacheBudget:
    """Keeps what a mount reads of its container from filling the page cache.

    The kernel keeps what was read as pages of the mount. So pages of the container are dropped when
    PAGES of them have come, except those that were there when the mount began.
    """

    def __init__(self, kv: KVSeq) -> None:
        self._storage = kv.storage
        self._storage.remember_resident()
        self._touched = 0

    def touches(self, pages: int) -> None:
        self._touched += pages
        if self._touched > PAGES:
            self._touched = 0
            self._storage.drop_seen()

    def inodes(self, positions: Int64) -> None:
        """These are read, int64[n]. Where they lie close together, all between comes at once."""
        low, high = int(positions.min()), int(positions.max())
        near = 0 < high - low <= min(SPREAD * len(positions), PAGE * PAGES)
        self.touches((high - low) // PAGE + 1 if near else len(positions))
        if near:
            self._storage.read_ahead(low, high + PAGE - low)

    def reads(self, size: int) -> None:
        """So many bytes of a file. The kernel reads ahead by itself."""
        self._touched += size // PAGE + 1
        if self._touched > PAGES:
            self.touches(0)


class Found(NamedTuple):
    """The inode of a file.

    size     bytes
    mtime    as stored
    pointer  kv_pointer of the one extent, which is all of the file; 0: of none; -1: of several
    attrs    None: the defaults
    """

    pos: int
    fileid: int
    size: int
    ftype: int
    mtime: int
    pointer: int
    attrs: Attrs | None


Find = Callable[[bytes], Found | None]


class Lookup:
    """Finds and reads what is in a store; drafts are not.

    What `put` writes for a file of one extent or none is found by a closure over locals, and its
    content in one read; everything else goes the ordinary way. Everything is read by pread, and
    `CacheBudget` says what stays of it in the page cache.
    """

    def __init__(self, store: Store, content: Content) -> None:
        self._store, self._content = store, content
        self._inodes: dict[int, Inode] = {}  # by position
        self._values: dict[int, bytes] = {}  # position -> checked value
        self._known_attrs: dict[int, Attrs] = {}  # by position
        self._buffer = self._region = memoryview(bytearray(0))
        self._inode_size = store.inode_size
        self._ahead = 0  # bytes of the file up to which the disk was asked for them
        self._form = struct.Struct(">8x6q" + ("3q" if store.settings.pairoff else "2q"))
        self.find: Find = self._finder()

    def renew(self) -> None:
        """Go on with the index as it is now."""
        self.find = self._finder()

    # inodes

    def find_any(self, key: bytes) -> Found | None:
        """The ordinary way, for every kind of inode and layout. Raises CorruptError."""
        found = self._content.inode(key)
        return None if found is None else self._found(*found)

    def at(self, pos: int) -> Found:
        """The file whose inode stands at a position. Raises CorruptError."""
        found = None if pos in self._inodes else self._plain(pos)
        return found or self._found(pos, self.inode(pos))

    def _plain(self, pos: int) -> Found | None:
        """The same of an inode that `put` writes for a file of one extent; None: it is another.
        0.4 to 0.7 of the time of the ordinary way."""
        kv, size = self._store.kv, self._inode_size
        if not kv.layout.standard or not 0 < pos < kv.end or size < self._form.size:
            return None
        if pos >= kv.visible:
            kv.show(pos)
        value = self._usual(self._fetch(pos, min(size + ROUND + NAME, kv.end - pos)), pos, size)
        if value is None:
            return None
        nexti, fileid, lsize, ftype, mtime, count, pointer, *rest = self._form.unpack_from(value)
        whole = count == 1 and rest[-1] == lsize and pointer > 0 and not any(rest[:-1])
        if nexti or fileid < 1 or lsize < 0 or not whole:
            return None
        return Found(pos, fileid, lsize, ftype or FileType.FILE, mtime, pointer, None)

    def _found(self, pos: int, inode: Inode) -> Found:
        attrs = self._content.attrs(inode) if inode.attrs else None
        pointer = -1
        if not inode.extents:
            pointer = 0
        elif len(inode.extents) == 1:
            only = inode.extents[0]
            if only.pointer > 0 and not only.skip and only.size == inode.lsize:
                pointer = only.pointer
        return Found(pos, inode.fileid, inode.lsize, inode.ftype, inode.mtime, pointer, attrs)

    def inode(self, pos: int) -> Inode:
        """The inode at a position. Raises CorruptError."""
        known = self._inodes.get(pos)
        if known is None:
            _, known, _ = self._store.inode_at(pos)
            if len(self._inodes) >= INODES:
                self._inodes.clear()
            self._inodes[pos] = known
        return known

    def _finder(self) -> Find:
        """A closure for the index as it is now; `stale` says when it is another."""
        store = self._store
        kv, settings = store.kv, store.settings
        base = usual(store.index.base, kv.layout, settings)
        if base is None or store.index.gone is not None:
            return self.find_any
        pair = "qqq" if settings.pairoff else "qq"
        rest = store.inode_size - 56 - 16 * len(pair)
        if rest < 0:
            return self.find_any
        body = f"4x16xqqqqq{pair}{pair}{rest}xI"
        size_at = 6 + len(pair)  # where in the fields the size of the first pair is
        shapes: dict[int, tuple[Any, int]] = {}  # key length -> how to unpack its entry, bytes
        read_cells, first, htsize = base.read, base.offset, base.shape.htsize
        last, htfree = first + 16 * htsize, base.shape.htfree
        cells_in, hash64 = struct.Struct(">qQ").iter_unpack, xxhash.xxh3_64_intdigest
        read, contid = kv.storage.read, kv.layout.contid
        overlay, stale, hidden = store.index.overlay, store.index.stale, store.index.hidden
        pairoff, by_inode, find_any = settings.pairoff, self._find_damaged, self.find_any

        def find(key: bytes) -> Found | None:
            if stale:
                self.renew()
                return self.find(key)
            pos = overlay.get(key, -1) if overlay else -1
            if pos < 0:
                s = hash64(key)
                at = first + 16 * ((s & MASK63) % htsize)
                left = min(htsize, ALIKE)
                try:
                    while pos < 0 and left > 0:
                        length = min(16 * PROBED, last - at)
                        for found, stored in cells_in(read_cells(at, length)):
                            if found == htfree:
                                base.vouch(s & MASK63)
                                return None
                            if stored == s and found not in hidden:
                                pos = found
                                break
                        at, left = (at + length if at + length < last else first), left - PROBED
                except DerivedDamage:
                    return find_any(key)  # has the index made anew
            if pos <= 0:
                return find_any(key) if pos else None  # -1: in a long run of cells
            try:
                unpack, width = shapes[len(key)]
            except KeyError:
                code = struct.Struct(f">B2x{len(key)}s{body}")
                unpack, width = shapes[len(key)] = code.unpack, code.size
            if pos >= kv.visible:
                kv.show(pos)  # what is buffered has to be written
            data = read(pos, width)
            if len(data) < width:
                return by_inode(key, pos)
            fields = unpack(data)
            if hash64(data[1:-4], pos + contid) & 0xFFFFFFFF != fields[-1]:
                return by_inode(key, pos)
            if fields[1] != key or fields[0]:
                return by_inode(key, pos)
            _, _, fileid, size, ftype, mtime, count, pointer = fields[:8]
            length, skip, attrs = fields[size_at], fields[8] if pairoff else 0, None
            if count and length < 0:
                attrs = self._attrs(pointer, -length)
                count, pointer = count - 1, fields[size_at + 1]
                length, skip = fields[-2], fields[size_at + 2] if pairoff else 0
            if count == 0:
                if size or fileid < 1:
                    return by_inode(key, pos)
                return Found(pos, fileid, 0, ftype, mtime, 0, attrs)
            if count != 1 or length != size or pointer <= 0 or skip or fileid < 1 or size < 0:
                return by_inode(key, pos)
            return Found(pos, fileid, size, ftype, mtime, pointer, attrs)

        return find

    def _attrs(self, pos: int, size: int) -> Attrs:
        """The attributes that are the first `size` bytes of the entry at `pos`."""
        known = self._known_attrs.get(pos)
        if known is None:
            file = self._store.kv.storage.name
            value = self.value(pos, size, False)
            if size > len(value):
                raise CorruptError("attribute size", file=file, offset=pos)
            known = Attrs.decode(value[:size], file=file, offset=pos)
            if len(self._known_attrs) >= ATTRS:
                self._known_attrs.clear()
            self._known_attrs[pos] = known
        return known

    def _find_damaged(self, key: bytes, pos: int) -> Found | None:
        """The ordinary way, where the index says that the key is at `pos`. A name that is not found
        only because its inode is damaged is a CorruptError."""
        found = self.find_any(key)
        if found is None:
            self._store.entry_at(pos)
        return found

    # contents

    def read(self, found: Found, offset: int, size: int) -> bytes:
        """Up to `size` bytes of the file from `offset`. Raises CorruptError."""
        stop = min(offset + size, found.size)
        if offset >= stop:
            return b""
        if found.pointer > 0:
            value = self.content(found.pointer, found.size, found.pos)
            return value[offset:stop] if stop - offset < len(value) else value
        extents = cut(self.inode(found.pos).extents, offset, stop)
        value_at = partial(self.value, holder=found.pos)
        return assemble(extents, value_at, self._store.kv.storage.name)

    def content(self, pos: int, size: int, holder: int) -> bytes:
        """The first bytes of the entry at `pos`, `size` of them; mostly it has no more.

        Fast for what `put` writes for a file of one extent. Raises CorruptError, also for a
        shorter entry.
        """
        kv = self._store.kv
        usual = 0 < size <= BUFFER - ROUND and 0 < pos <= kv.end - size
        if usual and kv.layout.standard and pos not in self._values:
            if pos >= kv.visible:
                kv.show(pos)
            found = self._usual(self._fetch(pos, min(size + ROUND, kv.end - pos)), pos, size)
            if found is not None:
                value = bytes(found)
                if size >= LARGE:
                    self._keep(pos, value)
                return value
        value = self.value(pos, size, False, holder=holder)  # written in another way, or damaged
        if len(value) < size:
            raise CorruptError(
                "size", file=kv.storage.name, offset=pos, expected=size, found=len(value)
            )
        return value[:size]

    def contents(self, positions: Int64, pointers: Int64, sizes: Int64) -> list[memoryview | None]:
        """The contents of files of one entry each, int64[n] all, that are read at once: where their
        inodes are, the entries, and the bytes of each file.

        None where they lie far apart, or where an inode or a content is written in another way or
        damaged: see `read`. They are good until the next call.
        """
        kv, inode = self._store.kv, self._inode_size
        low, high = int(pointers.min()), int((pointers + sizes).max()) + ROUND
        near = high - low <= 2 * int(sizes.sum()) and kv.layout.standard and low > 0
        if not near or high - ROUND > kv.visible:
            return [None] * len(pointers)
        high += inode + ROUND + NAME  # `put` writes an inode behind its content
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
        """Files behind `at` are read next, as those in the `size` bytes before it: the disk brings
        twice as many bytes, while these are checked and pushed."""
        stop = min(at + min(2 * size, AHEAD), self._store.kv.end)
        start = self._ahead if at <= self._ahead <= at + AHEAD else at
        if stop - start >= min(size, AHEAD // 4):
            self._store.kv.storage.read_ahead(start, stop - start)
            self._ahead = stop

    def present(self, pos: int, size: int) -> bool:
        """Whether the page cache has the inode at a position and a content of `size` bytes before
        it, where `put` writes it. See `Storage.present`."""
        start = max(pos - size - ROUND, 0)
        storage = self._store.kv.storage
        return storage.present(start, pos + self._inode_size - start)

    def bring(self, pos: int, size: int) -> None:
        """Have them brought from the disk, and wait for that. For any thread."""
        start = max(pos - size - ROUND, 0)
        self._store.kv.storage.read(start, pos + self._inode_size + NAME - start)

    def _usual(self, data: memoryview, pos: int, size: int) -> memoryview | None:
        """The value of the entry at `pos`, which begins `data`; None: it is not one of `put` of
        so many bytes, or it is damaged."""
        # delflag, two lengths, key; then value, checksum
        at = 7 + int.from_bytes(data[1:3], "big")
        end = at + size
        sum32 = xxhash.xxh3_64_intdigest(data[1:end], (self._store.kv.layout.contid + pos) & MASK64)
        right = (sum32 & 0xFFFFFFFF).to_bytes(4, "big") == data[end : end + 4]
        if right and not data[0] and int.from_bytes(data[at - 4 : at], "big") == size:
            return data[at:end]
        return None

    def value(self, pos: int, least: int, framed: bool, *, holder: int = 0) -> bytes:
        """The checked value of the entry at `pos`; what is in it, where it is a frame.

        least   bytes that it has, most likely
        holder  see `check_lives`
        """
        known = self._values.get(pos)
        if known is not None:
            return known
        value = self._value(pos, least, holder)
        if framed:
            value = self._store.frames.content(value, pos)
        if len(value) >= LARGE:
            self._keep(pos, value)
        return value

    def _value(self, pos: int, least: int, holder: int) -> bytes:
        store, kv = self._store, self._store.kv
        if not 0 < pos < kv.end:
            raise CorruptError("no entry", file=kv.storage.name, offset=pos)
        kv.show(pos)
        want = min(least + 64, kv.end - pos)
        data = self._fetch(pos, want)
        span = kv.layout.locate(data, 0)
        if span is None or span.end > len(data):
            entry = store.entry_at(pos)  # a long key, or an entry of which a part is used
        else:
            entry = kv.layout.decode(data, 0, pos, kv.storage.name)
        check_lives(entry, holder, kv.storage.read, kv.storage.name)
        return entry.value

    def _keep(self, pos: int, value: bytes) -> None:
        if len(self._values) >= KEEP:
            del self._values[next(iter(self._values))]
        self._values[pos] = value

    def _fetch(self, pos: int, length: int) -> memoryview:
        """Bytes of the file; good until the next call."""
        if length > len(self._buffer):
            self._buffer = memoryview(bytearray(max(length, LARGE)))
        got = self._store.kv.storage.read_into(self._buffer[:length], pos)
        return self._buffer[:got]


def find_data(extents: Sequence[Extent], offset: int, *, hole: bool) -> int:
    """Offset of the first byte from `offset` on that is (not) in a hole; see `Source.seek`."""
    at = 0
    for pointer, _, size in extents:
        at += size
        if at > offset and (pointer == 0) == hole:
            return max(offset, at - size)
    if hole:
        return max(offset, at)
    raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))


def text_of(extents: Sequence[Extent]) -> str:
    """`bytes@position` each, `bytes+skipped@position` where the first of an entry are not used,
    `bytes@position(zstd)` of a frame, `bytes@hole` and `bytes@memory`; the first of many, and how
    many there are."""
    parts = []
    for pointer, skip, size in extents[:SHOWN]:
        framed, skip = skip >= FRAME, skip & ~FRAME
        place = "hole" if pointer == 0 else "memory" if pointer < 0 else str(pointer)
        place += "(zstd)" if framed else ""
        parts.append(f"{size}+{skip}@{place}" if skip else f"{size}@{place}")
    if len(extents) > SHOWN:
        parts.append(f"... {len(extents)} in all")
    return " ".join(parts)
