"""Reading: contents of files, verified before they are returned. Three readers, equal results:

- `Content` reads any file: its inode, then each data entry that has requested bytes. `Files` uses
  it by key, and lays the drafts of a writer over; a mount, a scan and Spark use it by position.
- `Short` (`short`) reads one file of the usual layout in few steps.
- `BulkGet` reads plain files by the thousand: one look-up for all names, inodes gathered as
  columns, and a slice for each data entry. A file is plain if it has one extent, as `put` and
  `put_many` write it.

The last two have a compiled counterpart: see `native`.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import islice
from operator import getitem
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from winkformats import native
from winkformats.arrays import Bools, Int64, column, rows_at
from winkformats.errors import CorruptError
from winkformats.kv.entry import MASK64, KVEntry
from winkfs.container.catalogindex import Expected, with_content
from winkfs.container.index import MERGE_OVERLAY
from winkfs.container.ondisk.chain import whole
from winkfs.container.ondisk.inode import (
    HEAD,
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
    stored,
)
from winkfs.entry import DEFAULT_MODE, Stat, default_mode, stat_of
from winkfs.errors import NoSuchFile
from winkfs.names import INODE, Name, inode_keys, name_of, to_bytes, to_str

if TYPE_CHECKING:
    from winkformats.disk.storage import Storage
    from winkformats.native import Native, Read
    from winkfs.container.draft import Draft
    from winkfs.container.store import Store

ENTRY_OVERHEAD: Final = 300  # bytes of an entry beside its value, at most, for prefetching
MAX_SHORT_INODE: Final = 1024  # bytes of the inodes that the short way reads, and of their names
KEPT_VALUES: Final = 4  # verified values kept, for reads in small steps of a large one
KEPT_BYTES: Final = 64 << 10  # of a value, at least, for it to be kept
BATCH_ROWS: Final = 1024  # few enough that all they touch stays in the L2 cache
FAR_ROWS: Final = 8 << 10  # of a batch of a container that is far, at most
LONGEST_KEY: Final = 255  # bytes of the longest key in a batch that is read as columns
VALUES: Final = [slice(start, None) for start in range(32)]  # made once, for speed
FEW_FAR: Final = 8  # files of a container that is far, up to which each is read by itself
_LENGTH: Final = struct.Struct(">H").pack  # of a key, before it
POWERS: Final = np.array([16**i for i in range(1, 15)], np.int64)


class EntryAt(Protocol):
    """Function that reads and verifies an entry. `least`: bytes of its value that are needed, 0:
    not known."""

    def __call__(self, pos: int, least: int = 0, /) -> KVEntry: ...


class Content:
    """Resolves inodes to bytes: chains, attributes, extents.

    entry_at  reads an entry; None: `Store.entry_at`
    storage   file that it reads; None: that of the store
    keep      number of large values kept in memory; must be 0 if several threads read
    """

    def __init__(
        self,
        store: Store,
        entry_at: EntryAt | None = None,
        storage: Storage | None = None,
        keep: int = KEPT_VALUES,
    ) -> None:
        self._store, self._kv, self._keep = store, store.kv, keep
        self._entry_at = entry_at or store.entry_at
        self._storage = storage or store.kv.storage
        self._form, self._frames = store.settings.form, store.frames
        self._kept: dict[int, bytes] = {}  # position -> verified, decompressed value
        self.owner = store.owner

    def inode(self, key: bytes) -> tuple[int, Inode] | None:
        """Return the live inode of a key and its position, or None. Raises CorruptError."""
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
                if store.index.recheck(key):  # the cell was that of an older inode
                    continue
                if store.frozen:  # it was deleted after this reader froze
                    return pos, inode
            if store.writable or store.frozen or not store.moved():
                # A delete appends a tombstone first: without one, the delflag is wrong.
                return (pos, inode) if pos and not store.settings.classic else None
            store.refresh()  # the writer has synced since this call began

    def stored(self, pos: int) -> tuple[bytes, Inode]:
        """Return key and inode at a position, without resolving a chain. Raises CorruptError."""
        entry, name = self._entry_at(pos), self._storage.name
        return entry.key, Inode.decode(entry.value, self._form, file=name, offset=pos)

    def whole(self, inode: Inode, pos: int) -> Inode:
        """Return an inode with all its extents, resolving its chain. Raises CorruptError."""
        return whole(inode, pos, self._entry_at, self._form, self._storage.name)

    def attrs(self, inode: Inode) -> Attrs:
        """Return the attributes of a file, or the defaults. Raises CorruptError."""
        return attributes(inode, self.owner, self._entry_at, self._storage.name)

    def word(self, inode: Inode) -> bytes | None:
        """Return the attributes of a file as stored bytes, None: it has none. Raises
        CorruptError."""
        return stored(inode, self._entry_at, self._storage.name)

    def read(self, extents: Sequence[Extent], start: int, stop: int, *, holder: int = 0) -> bytes:
        """Return the bytes [start, stop) of a file; stop is at most its size.

        holder  see `check_lives`
        raises  CorruptError; Refusal EFBIG for a hole far larger than the container
        """
        name = self._storage.name
        check_size(stop - start, self._kv.end, name)
        return assemble(cut(extents, start, stop), partial(self.value, holder), name)

    def read_into(
        self, into: memoryview, extents: Sequence[Extent], start: int, *, holder: int = 0
    ) -> int:
        """Read bytes from `start` on into a buffer, until it is full -> how many."""
        part = cut(extents, start, start + len(into))
        return assemble_into(into, part, partial(self.value, holder), self._storage.name)

    def read_all(self, extents: Sequence[Extent]) -> bytes:
        """Return all bytes of the extents."""
        return self.read(extents, 0, sum(extent.size for extent in extents))

    def value(self, holder: int, pos: int, least: int, framed: bool) -> bytes:
        """Return the value of the entry at `pos`, decompressed if it is `framed`. See `ValueAt`."""
        kept = self._kept.get(pos)
        if kept is not None:
            return kept
        entry = self._entry_at(pos, 0 if framed else least)
        check_lives(entry, holder, self._storage.read, self._storage.name)
        value = self._frames.content(entry.value, pos) if framed else entry.value
        if len(value) >= KEPT_BYTES and self._keep:
            if len(self._kept) >= self._keep:
                del self._kept[next(iter(self._kept))]
            self._kept[pos] = value
        return value

    def read_whole(self, key: bytes) -> bytes | None:
        """Return the whole content of a file, None if there is none of that name."""
        found = self.inode(key)
        if found is None:
            return None
        return self.read(found[1].extents, 0, found[1].lsize, holder=found[0])


class Files:
    """The read side of a container: files by their inode keys, including the drafts of a writer.

    All methods except `find` raise NoSuchFile for a missing key.

    drafts   files that `Changes` has begun to change, by key
    """

    def __init__(self, store: Store, content: Content) -> None:
        self._store, self._content = store, content
        self.drafts: dict[bytes, Draft] = {}

    def settle_bulk(self) -> None:
        """Look up older inodes of files that were put in bulk; then the index is complete."""
        index = self._store.index
        if not index.bulk:
            return
        for pos in index.settle():
            try:
                _, inode, _ = self._store.inode_at(pos)
            except CorruptError as error:  # its entries are not known; its replacement is good
                self._store.note(error)
                continue
            self.add_pending_delete(pos, inode.size, inode.lsize, inode.owned)
        if index.must_merge or len(index.overlay) > MERGE_OVERLAY:
            self._store.sync_data()
            self._store.merge()

    def add_pending_delete(self, pos: int, size: int, lsize: int, pointers: Set[int]) -> None:
        """Make an inode and its entries pending deletes.

        pos     of the inode, 0: it was never written; size: its bytes
        lsize   bytes of the content; pointers: positions of its entries
        """
        store = self._store
        store.itotsz -= size
        store.dtotsz -= lsize
        store.kept.pop(pos, None)
        if pos and not store.keeps_older:
            store.pending_deletes.append(pos)
            store.kv.aentries -= 1
        self.add_pending_entries(pointers)

    def add_pending_entries(self, pointers: Set[int]) -> None:
        """Make entries that no inode names any more pending deletes."""
        store = self._store
        if store.kv.layout.delflag and not store.keeps_older:
            store.pending_deletes += sorted(pointers)
            store.kv.aentries -= len(pointers)

    def find(self, key: bytes) -> bool:
        """Return whether there is a file with this inode key."""
        self.settle_bulk()
        return key in self.drafts or self._content.inode(key) is not None

    def inode(self, key: bytes) -> tuple[int, Inode]:
        """Return position and inode of a file as it was last settled."""
        self.settle_bulk()
        found = self._content.inode(key)
        if found is None:
            raise NoSuchFile("no such file in the container", to_str(name_of(key)))
        return found

    def stat(self, key: bytes) -> Stat:
        held: Draft | Inode | None = self.drafts.get(key)
        if held is None:
            self._expect(key, content=False)
            held = self.inode(key)[1]
        attrs = self._content.attrs(held) if isinstance(held, Inode) else held.attrs
        name, fileid = name_of(key), held.fileid
        return self.stated(name, fileid, held.lsize, held.ftype, held.mtime, attrs)

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
        """Return the Stat of a file from its fields.

        attrs  Attrs, or their stored bytes with position `at`, as `Short.find` returns them; None:
               the defaults
        """
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
        """Return mode, owner and extended attributes, or the defaults; columns with the types that
        they are shown with."""
        draft = self.drafts.get(key)
        stored = (
            self._content.attrs(self.inode(key)[1]) if draft is None else self.draft_attrs(draft)
        )
        shown = self._store.shown.shown(stored.xattrs)
        return stored if shown is stored.xattrs else replace(stored, xattrs=shown)

    def shown_xattrs(self, word: bytes | None, at: int) -> dict[bytes, bytes]:
        """Return the extended attributes of a file as they are shown, from their stored bytes with
        position `at`, as `Short.find` returns them; None: it has none."""
        if word is None:
            return {}
        attrs = Attrs.decode(word, file=self._store.kv.storage.name, offset=at)
        return dict(self._store.shown.shown(attrs.xattrs))

    def draft_attrs(self, draft: Draft) -> Attrs:
        """Return the attributes of a draft as they are stored, or the defaults."""
        return draft.attrs or Attrs(default_mode(draft.ftype), *self._content.owner)

    def extents(self, key: bytes) -> Sequence[Extent]:
        """Return the extents of the content, in order; content in memory has pointer -1."""
        _, extents, body, tail = self._parts(key)
        return joined(cut(extents, 0, body), [Extent(-1, 0, len(tail))] if tail else [])

    def read(self, key: bytes, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset`, -1: to the end."""
        if offset < 0:
            raise ValueError(f"offset must not be negative, {offset} is")
        stop = offset + size if size >= 0 else sys.maxsize
        return self._read(*self._parts(key), offset, stop)

    def read_into(self, key: bytes, offset: int, into: memoryview) -> int:
        """Fill a buffer from `offset` -> bytes, fewer only at the end of the file."""
        holder, extents, body, tail = self._parts(key)
        room = min(len(into), max(body - offset, 0))
        done = self._content.read_into(into[:room], extents, offset, holder=holder)
        rest = tail[max(offset - body, 0) :][: len(into) - done]
        into[done : done + len(rest)] = rest
        return done + len(rest)

    def reader(self, key: bytes) -> Callable[[int, int], bytes]:
        """Return a function that reads (offset, size) of the file as it is now, even after it was
        changed or deleted.

        It is valid while the handle is open, except for entries that a failed write removed: see
        `Handle.troubles`. Memory: 1 MiB at most; nothing is copied but the tail of a draft.
        """
        holder, extents, body, tail = self._parts(key)
        tail = bytes(tail)
        return lambda offset, size: self._read(holder, extents, body, tail, offset, offset + size)

    def _parts(self, key: bytes) -> tuple[int, Sequence[Extent], int, bytes | bytearray]:
        """Return the parts of a file: position of its inode, 0: a draft; extents of its first
        bytes; number of these bytes; the bytes that follow them."""
        draft = self.drafts.get(key)
        if draft is not None:
            return 0, draft.extents, draft.body, draft.tail
        self._expect(key)
        pos, inode = self.inode(key)
        return pos, inode.extents, inode.lsize, b""

    def _expect(self, key: bytes, *, content: bool = True) -> None:
        if self._store.kv.storage.far:
            for _ in self._store.expect([key], content=content):
                pass

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


class BulkGet:
    """Reads batches of files by name."""

    def __init__(self, store: Store, content: Content) -> None:
        self._store, self._content = store, content
        self._fast = store.kv.layout.standard and store.mapped

    @staticmethod
    def batches(names: Iterable[Name], most: int = 0) -> Iterator[list[Name]]:
        """Split names into lists of at most BATCH_ROWS, or of up to `most`, for which fewer
        requests are waited for: growing ones where the caller may still make the names."""
        source, count = iter(names), BATCH_ROWS
        if isinstance(names, Sequence):
            count = max(count, most)
        while batch := list(islice(source, count)):
            yield batch
            count = max(min(2 * count, most), BATCH_ROWS)

    def get(self, names: list[Any], read: Read) -> tuple[list[bytes], str | None]:
        """Return contents in the order of the names up to the first missing one, and that name.

        read  `Short.read`, for files that are not plain
        ->    of a container that is far, fewer if they have many bytes
        """
        keys, store = inode_keys(names), self._store
        if len(keys) != len(names):
            keys = [to_bytes(name) + INODE for name in names]
        if store.kv.storage.far:
            return self._far(names, keys)
        found: list[bytes | None] = [None] * len(keys)
        if self._fast:
            pos = store.index.candidates(keys, compared=True)
            rows = np.flatnonzero(pos)
            if len(rows):
                store.kv.view(int(pos.max()), few=True)
                if code := code_for(store):
                    self._compiled(code, keys, pos, found)
                else:
                    self._gather(keys, pos, rows, found)
        for i, value in enumerate(found):
            if value is None:
                more = read(names[i])
                value = more if isinstance(more, bytes) else self._content.read_whole(keys[i])
                found[i] = value
            if value is None:
                return found[:i], to_str(names[i])  # type: ignore[return-value]
        return found, None  # type: ignore[return-value]

    def _far(self, names: list[Any], keys: list[bytes]) -> tuple[list[bytes], str | None]:
        """Read files of a container that is far, so many as are held in memory."""
        found, store = list[bytes](), self._store
        code = code_for(store) if store.kv.layout.standard else None
        expected = next(iter(store.expect(keys)))
        some = keys[: len(expected.rows)]
        values: list[bytes | None] = [None] * len(some)
        if code and len(some) >= FEW_FAR:
            self._gather_far(code, some, expected, values)
        for i, value in enumerate(values):
            if value is None:
                value = self._content.read_whole(some[i])
            if value is None:
                return found, to_str(names[i])
            found.append(value)
        return found, None

    def _gather_far(
        self, code: type[Native], keys: list[bytes], expected: Expected, found: list[bytes | None]
    ) -> None:
        """Read the plain files among those that are expected with compiled code, into `found`."""
        store, isz = self._store, self._store.inode_size
        starts = np.array([start for start, _ in expected.ranges], np.int64)
        parts = [store.kv.storage.read(low, high - low) for low, high in expected.ranges]
        data = b"".join(parts)
        places = np.cumsum([0, *map(len, parts)])[:-1] - starts
        rows = np.flatnonzero(with_content(expected.rows))
        if not len(rows):
            return
        pos, size, pointer = np.ascontiguousarray(expected.rows[rows].T)

        def copied(pos: Int64, sizes: Int64) -> tuple[Int64, npt.NDArray[np.uint8], Bools]:
            """Copy the values of entries -> where these are in `data`, the values, and which are
            intact."""
            at = pos + places[np.searchsorted(starts, pos, "right") - 1]
            into, good = np.empty(int(sizes.sum()), np.uint8), np.zeros(len(pos), bool)
            contid = store.kv.layout.contid & MASK64
            code.gather(data, at, pos, sizes, contid, into.data, good)
            return at, into, good

        at, inodes, good = copied(pos, np.full(len(rows), isz))
        chosen = [keys[i] for i in rows.tolist()]
        starts_of = zip((at + 1).tolist(), chosen, strict=True)
        good &= [data.startswith(_LENGTH(len(key)) + key, at) for at, key in starts_of]
        words = inodes.view(">i8").reshape(len(rows), -1).astype(np.int64)
        plain, pointers, sizes = self._plain(words)
        good &= plain & (pointers == pointer) & (sizes == size)
        sizes = np.where(good, size, 0)
        _, contents, intact = copied(pointer, sizes)
        good &= intact
        joined, ends = contents.tobytes(), np.cumsum(sizes)
        for ok, row, a, b in zip(
            good.tolist(), rows.tolist(), (ends - sizes).tolist(), ends.tolist(), strict=True
        ):
            if ok:
                found[row] = joined[a:b]

    def _plain(self, words: Int64) -> tuple[Bools, Int64, Int64]:
        """Return which inodes, given as words, have one extent from the start of one entry, as put
        and put_many write it, the position of that entry, and its bytes. Changes `words`."""
        pair = self._store.settings.form.pair // 8
        named = words[:, 6 + pair] < 0  # attributes stand before the extents
        if words.shape[1] >= 7 + 2 * pair and named.any():
            words[named, 7 : 7 + pair] = words[named, 7 + pair : 7 + 2 * pair]
            words[named, 6] -= 1
        good = (words[:, 6] == 1) & (words[:, 7] > 0) & (words[:, 6 + pair] == words[:, 3])
        if self._store.settings.pairoff:
            good &= words[:, 8] == 0
        return good, words[:, 7], words[:, 3]

    def _compiled(
        self, code: type[Native], keys: list[bytes], pos: Int64, found: list[bytes | None]
    ) -> None:
        """Read plain files with compiled code: inodes, then contents. The pages that each step
        reads are prefetched."""
        store, kv = self._store, self._store.kv
        view = kv.view(0, few=True)
        end = min(kv.end, len(view))  # a reader's view may be older, and then shorter
        form = view, end, *form_of(store)
        places = pos[(pos > 0) & (pos < end)]
        kv.fetch(places, np.minimum(places + store.inode_size + ENTRY_OVERHEAD, end))
        pointers, sizes = np.empty(len(pos), np.int64), np.zeros(len(pos), np.int64)
        code.inodes(*form, keys, pos, pointers, sizes)
        plain = (pointers > 0) & (pointers < end - sizes)
        if not plain.any():
            return
        kv.view(0, few=True)
        kv.fetch(pointers[plain], np.minimum((pointers + sizes)[plain] + ENTRY_OVERHEAD, end))
        code.contents(*form, pointers, sizes, found)

    def _gather(
        self, keys: list[bytes], pos: Int64, rows: Int64, found: list[bytes | None]
    ) -> None:
        """Read the files of `rows` whose inodes are plain and intact, into `found`."""
        kv, pos = self._store.kv, pos[rows]
        view, isz = kv.view(0, few=True), self._store.inode_size
        end = min(kv.end, len(view))  # a reader's view may be older, and then shorter
        lengths = np.fromiter(map(len, keys), np.int64, len(keys))
        lengths = lengths if len(rows) == len(keys) else lengths[rows]
        longest = int(lengths.max())
        inside = (pos >= kv.superblock["SBSIZE"]) & (pos + 11 + longest + isz <= end)
        if longest > LONGEST_KEY or not inside.any():
            return
        if not inside.all():
            rows, pos, lengths = rows[inside], pos[inside], lengths[inside]
        kv.fetch(pos, pos + 11 + longest + isz)
        # Copying all entries at once overlaps their cache misses, so that slices are cheaper.
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
        good &= self._plain(words)[0]
        starts = 10 + np.searchsorted(POWERS, words[:, 2], "right")  # "<hex>/D0" and two lengths
        # Assume the key "<hex>/D0" of `put`, and the whole value; otherwise the checksum fails.
        size, room = words[:, 3], end - 5 - starts - words[:, 7]
        good &= (words[:, 7] <= end) & (size >= 0) & (size <= room)
        if good.all():
            self._data(rows, words[:, 7], starts, words[:, 3], found)
        else:
            self._data(rows[good], words[good, 7], starts[good], words[good, 3], found)

    def _data(
        self, rows: Int64, pos: Int64, starts: Int64, sizes: Int64, found: list[bytes | None]
    ) -> None:
        """Read and verify the data entries of `rows`, into `found`.

        starts  offset of the value from pos + 1; sizes: of the value, bytes
        """
        if not len(rows):
            return
        kv = self._store.kv
        view = kv.view(0, few=True)
        ends = pos + 1 + starts + sizes
        kv.fetch(pos, ends + 4)
        bodies = [view[a:b] for a, b in zip((pos + 1).tolist(), ends.tolist(), strict=True)]
        good = kv.layout.sums(pos, bodies) == column(rows_at(view, ends, 4), ">u4", 0)
        good &= rows_at(view, pos, 1)[:, 0] == 0  # not marked deleted, and no filler
        values: Iterable[Any] = map(getitem, bodies, map(VALUES.__getitem__, starts.tolist()))
        if len(rows) == len(found) and good.all():
            found[:] = values
            return
        for ok, row, value in zip(good.tolist(), rows.tolist(), values, strict=True):
            if ok:
                found[row] = value


def code_for(store: Store) -> type[Native] | None:
    """Return the compiled code that reads plain files of this container; None: it cannot."""
    usual_size = HEAD.size + store.settings.form.pair <= store.inode_size <= MAX_SHORT_INODE
    return native.code if usual_size else None


def form_of(store: Store) -> tuple[int, bool, int]:
    """Return what the compiled path needs to know of a container: ISZ, PAIROFF, CONTID mod 2^64."""
    return store.inode_size, store.settings.pairoff, store.kv.layout.contid & MASK64
