"""The short way: one file of the usual layout in few steps, without the lock of the handle.

A handle reads through a map, a mount by pread; both are compiled (see `native`), and `Plain` is the
same in Python.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import sys
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING, Final, Literal

import xxhash

from winkformats import native
from winkformats.disk.posix import FileStorage
from winkformats.errors import CorruptError
from winkformats.hashing import MASK63, XXH3
from winkformats.kv.entry import MASK64, from_bytes
from winkformats.kv.pagesums import PAGE
from winkfs.container.ondisk.idx import ALIKE, PAIRS
from winkfs.container.ondisk.inode import CK_XXH3, FRAME, HEAD, INT64
from winkfs.entry import FileType
from winkfs.names import INODE

if TYPE_CHECKING:
    from winkformats.disk.storage import Storage
    from winkformats.native import Found, Native, Read, ReadAt
    from winkfs.container.draft import Draft
    from winkfs.container.ondisk.idx import Base
    from winkfs.container.store import Store

LOOK: Final = 0.05  # seconds after which a reader looks whether BASE.data is another file
NEAR: Final = 8 << 10  # bytes before an inode that are read with it, most
SPARE: Final = 300  # bytes of an entry beside its value, most
LARGEST: Final = 1024  # bytes of the inodes that the short way reads, and of their names
EXTENTS: Final = 16  # of a file that the short way reads, most
USUAL_KEY: Final = 255  # bytes of most keys
USUAL: Final = 1 << 20  # bytes of a content that a container need not have itself

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
    kv, code = store.kv, code_for(store)
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
        view, limits, *form_of(store), cells, *shape, _sums(store, base), store.index.overlay,
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


def code_for(store: Store) -> type[Native] | None:
    """What reads plain files of a standard layout; None: the path in Python."""
    usual_size = HEAD.size + store.settings.form.pair <= store.inode_size <= LARGEST
    return native.code if usual_size else None


def _descriptor(storage: Storage, view: mmap.mmap | memoryview | bytes) -> int:
    """By which to see how long a file is that is mapped, or to read one that is not; -1: the view
    is none that can be cut."""
    if isinstance(storage, FileStorage) and (isinstance(view, mmap.mmap) or not view):
        return storage.fd
    return -1


def form_of(store: Store) -> tuple[int, bool, int]:
    """What the compiled path has to know of a container: ISZ, PAIROFF, CONTID mod 2^64."""
    return store.inode_size, store.settings.pairoff, store.kv.layout.contid & MASK64
