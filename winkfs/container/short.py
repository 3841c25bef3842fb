"""The short way: reads one file of the usual layout in few steps, without the lock of the handle.

A handle reads a mapping, a mount by pread; both are compiled (see `native`), and `PythonReader` is
their reference.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, ParamSpec, TypeVar

import xxhash

from winkformats.disk.posix import FileStorage
from winkformats.errors import CorruptError
from winkformats.hashing import MASK63, XXH3
from winkformats.kv.entry import KVEntry
from winkformats.kv.pagesums import PAGE
from winkfs.container.ondisk.idx import ALIKE, PAIRS
from winkfs.container.ondisk.inode import CK_XXH3, INT64, Inode
from winkfs.container.read import ENTRY_OVERHEAD, MAX_SHORT_INODE, Content, code_for, form_of
from winkfs.names import INODE, name_of

if TYPE_CHECKING:
    from winkformats.disk.storage import Storage
    from winkformats.native import Found, Read, ReadAt
    from winkfs.container.draft import Draft
    from winkfs.container.ondisk.idx import Base
    from winkfs.container.store import Store

LOOK: Final = 0.05  # seconds after which a reader checks whether BASE.data was replaced
READ_BEFORE_BYTES: Final = 8 << 10  # that are read with an inode, at most
MAX_EXTENTS: Final = 16  # of a file that the short way reads
USUAL_KEY: Final = 255  # bytes that most keys do not exceed
ALWAYS_READ_BYTES: Final = 1 << 20  # content that is read even if the container is smaller

Known = tuple[bytes, int, Inode]
"""The key of a file, the position of its inode, and this."""
P = ParamSpec("P")
T = TypeVar("T")


class Short(NamedTuple):
    """Functions that read files of the usual layout without the lock.

    The first three take a name, and return the result; False: there is no such file; None: use the
    ordinary way. After the index was replaced, or another process has synced, it is always None:
    then make a new one. The other two take the position of an inode.

    stale   not empty: the index was replaced
    limits  int64[2]: bytes of the data file that are visible; see `Lookups.limits`
    reach   up to which byte `limits` may be raised
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
    """Return None: use the ordinary way."""


ORDINARY: Final = Short(_ask, _ask, _ask, _ask, _ask, (True,), array("q", (INT64, 0)), INT64)
"""For a handle that is closed, or that must check something before it answers."""
FIRST: Final = ORDINARY._replace()
"""For a handle that was just opened, and may read few files only."""


def short_way(store: Store, drafts: dict[bytes, Draft], *, often: bool = False) -> Short:
    """Return the short way to a store as it is now. The caller has the lock.

    often   many files have been read, so that a copy of the index is worth its time
    """
    index, kv, settings = store.index, store.kv, store.settings
    # CONTID + position must not wrap.
    if not kv.layout.standard or settings.ckalgo != CK_XXH3 or not 0 <= kv.layout.contid <= INT64:
        return ORDINARY._replace(stale=index.stale)
    base = index.base if settings.htalgo == XXH3 and settings.cellsz == 2 else None
    try:
        kv.show(kv.end - 1)
        compiled = _compiled(store, base, drafts, often)
    except (OSError, CorruptError):  # disk full, no descriptor left, or file truncated
        return ORDINARY._replace(stale=index.stale)
    if compiled is not None:
        return compiled
    plain = PythonReader(store, drafts, base)
    return Short(
        plain.read, plain.has, plain.find, plain.read_at, plain.find_at, index.stale,
        plain.limits, INT64,
    )  # fmt: skip


def _compiled(
    store: Store, base: Base | None, drafts: dict[bytes, Draft], often: bool
) -> Short | None:
    """Return the compiled short way; None: there is none for this layout or disk."""
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
        min(kv.end // max(live, 1), READ_BEFORE_BYTES),
        -1 if _is_steady(store) else store.filesize_at,
        int.from_bytes(store.filesize, sys.byteorder), int((time.monotonic() + LOOK) * 1e9),
        store.frames.content,
    )  # fmt: skip
    return Short(*found, store.index.stale, limits, reach)


def renewed(short: Short, store: Store, drafts: dict[bytes, Draft], pos: int) -> Short:
    """Return a valid short way to the inode at this position; the old one, with a higher limit, if
    only entries were added. The caller has the lock."""
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
    """Return whether no other process can change the visible files."""
    return store.writable or store.frozen


def _sums(store: Store, base: Base | None) -> bytearray | bytes | None:
    """Return for each page of the index whether it was verified, so that it proves the absence of a
    name; None: all prove it."""
    if base is None:
        return None
    if store.index.gone is not None:  # the index lacks names
        return bytes((base.offset + base.size) // PAGE + 1)
    return None if base.sums is None else base.sums.good


def _or_none(read: Callable[P, T]) -> Callable[P, T | None]:
    """Decorate a method to return None, for the ordinary way, on damage or after a close."""

    @wraps(read)
    def asked(*given: P.args, **named: P.kwargs) -> T | None:
        try:
            return read(*given, **named)
        except (OSError, CorruptError):
            return None

    return asked


class PythonReader:
    """The functions of `Short` in Python, by `Storage.read`: the reference of
    `native.code.reader`."""

    def __init__(self, store: Store, drafts: Mapping[bytes, Draft], base: Base | None) -> None:
        kv, index = store.kv, store.index
        self.limits = array("q", (kv.end, 0))
        self._data, self._layout, self._form = kv.storage, kv.layout, store.settings.form
        self._content = Content(store, self._entry, keep=0)
        self._base, self._sums = base, _sums(store, base)
        self._overlay, self._drafts = index.overlay, drafts
        self._stale, self._bulk = index.stale, index.bulk
        self._room = 11 + store.inode_size
        self._filesize = None if _is_steady(store) else (store.filesize_at, store.filesize)
        self._due = time.monotonic() + LOOK
        self._last: Known | None = None

    def has(self, name: object) -> bool | None:
        """Return whether there is a file."""
        found = self.find(name)
        return bool(found) if found is not None else None

    @_or_none
    def find(self, name: object) -> Found | Literal[False] | None:
        """Return the fields of a file's inode."""
        known = self._named(name)
        return self._facts(*known) if known else known

    @_or_none
    def find_at(self, pos: int) -> tuple[bytes, Found] | None:
        """Return the name of a file, and the fields of its inode."""
        known = self._inode(pos) if self._is_sure() else None
        return (name_of(known[0]), self._facts(*known)) if known else None

    @_or_none
    def read(self, name: object, most: int = INT64) -> bytes | Literal[False] | None:
        """Return the content of a file."""
        known = self._named(name)
        return self._bytes(*known[1:], most) if known else known

    @_or_none
    def read_at(self, pos: int, most: int = INT64) -> bytes | None:
        """Return the content of the file whose inode is at `pos`."""
        known = self._inode(pos) if self._is_sure() else None
        return self._bytes(*known[1:], most) if known else None

    def _facts(self, key: bytes, pos: int, inode: Inode) -> Found:
        word = self._content.word(inode)
        at = 0 if inode.attrs is None else inode.attrs[0]
        return inode.fileid, inode.lsize, inode.ftype, inode.mtime, word, at, pos

    def _bytes(self, pos: int, inode: Inode, most: int) -> bytes | None:
        size = inode.lsize
        if size > most or len(inode.extents) > MAX_EXTENTS:
            return None
        if size > ALWAYS_READ_BYTES and size > self.limits[0]:
            return None
        return self._content.read(inode.extents, 0, size, holder=pos)

    def _entry(self, pos: int, least: int = 0, most: int = INT64) -> KVEntry:
        """Return the verified entry at a position, see `EntryAt`. `most`: its bytes, at most."""
        end = min(self.limits[0], pos + most)
        return self._layout.read(self._data.read, pos, end, self._data.name, least + ENTRY_OVERHEAD)

    def _is_sure(self) -> bool:
        """Return whether no change has happened that this reader does not see."""
        if self._stale or self._bulk:
            return False
        if self._filesize is None:
            return True
        at, size = self._filesize  # another process may write, or replace the file
        return self._data.read(at, 8) == size and time.monotonic() <= self._due

    def _named(self, name: object) -> Known | Literal[False] | None:
        """Return the inode of a name."""
        try:
            raw = name.encode("utf-8", "surrogateescape") if type(name) is str else name
        except UnicodeEncodeError:
            return None
        if type(raw) is not bytes or not 0 < len(raw) < MAX_SHORT_INODE or b"\0" in raw:
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
        return False if pos == 0 and not self._stale else None  # checked again after the look-up

    def _inode(self, pos: int, length: int = USUAL_KEY) -> Known | None:
        """Return the inode at a position. `length`: a guess for its key, bytes."""
        if self._last and pos == self._last[1]:  # a `find` is often followed by a read
            return self._last
        entry = self._entry(pos, self._room + length - ENTRY_OVERHEAD, 2 * MAX_SHORT_INODE)
        if self._stale or entry.deleted or not entry.key[: -len(INODE)]:
            return None
        inode = Inode.decode(entry.value, self._form, file=self._data.name, offset=pos)
        if inode.nexti or not entry.key.endswith(INODE):
            return None
        self._last = entry.key, pos, inode
        return self._last

    def _position(self, s: int) -> int:
        """Return the position that the index has for a hash; 0: certainly none, -1: uncertain."""
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


def _descriptor(storage: Storage, view: mmap.mmap | memoryview | bytes) -> int:
    """Return the descriptor by which the compiled code reads a file, or sees the length of a mapped
    one; -1: a view in memory, which needs none."""
    if isinstance(storage, FileStorage) and (isinstance(view, mmap.mmap) or not view):
        return storage.fd
    return -1
