"""Rewrite: live and intact entries of a container go to another file.

`Rewrite` writes the data file that takes the place of an older one: entries keep their keys and
values, but for inodes, which point to where their entries are then. `FileCopier` adds files to a
container that has others. Both check each entry that they copy.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final, Protocol, Self

import numpy as np

from winkformats.arrays import Int64, among, number_bytes
from winkformats.errors import CorruptError
from winkformats.hashing import xxh3_many
from winkformats.kv.scan import Batch, scan
from winkformats.kv.sequence import KVSeq
from winkfs.container.draft import CHUNK, COMPRESSIBLE, Draft, DraftWriter
from winkfs.container.frames import Compressor, entries_of
from winkfs.container.ondisk.compressed import COMPRESS, PIECE, Compression
from winkfs.container.ondisk.compressed import KEY as COMPRESSION
from winkfs.container.ondisk.data import Settings
from winkfs.container.ondisk.inode import (
    FRAME,
    HEAD,
    Attrs,
    Extent,
    Inode,
    assemble,
    check_lives,
    check_size,
    cut,
    data_key,
    joined,
)
from winkfs.container.ondisk.typed import COLUMNS
from winkfs.container.read import Content
from winkfs.container.recovery import known_sums
from winkfs.container.survey import chained, is_inode
from winkfs.errors import Refusal
from winkfs.names import name_of

if TYPE_CHECKING:
    from winkfs.container.handle import Handle
    from winkfs.container.store import Store

BATCH: Final = 4 << 20  # bytes of content that are compressed together
Progress = Callable[[int], None]


class OddContainerError(Exception):
    """Its entries are not as our writers order them: they have to be moved one by one."""


class Target(Protocol):
    """Where entries are appended: `end` is that of the file, bytes."""

    end: int

    def append(self, key: bytes, value: bytes) -> int:
        """-> position of the entry."""


class Places:
    """Where entries were, and where they are now: runs that moved together, and single entries."""

    def __init__(self) -> None:
        # Of each call of `add`: first old positions of the runs, their ends, new minus old.
        self._runs: list[tuple[Int64, Int64, Int64]] = []
        self._firsts: list[int] = []
        self._single = array("q")  # old and new position by turns
        self._sorted: Int64 | None = None  # the same by old position, int64[2, n]

    def add(self, old: Int64, new: Int64, sizes: Int64) -> tuple[Int64, Int64]:
        """Note entries behind those noted before, int64[n] each.

        ->      indices of the first and of the last entry of each run that stays together
        """
        moved = new - old
        first = np.flatnonzero(np.diff(moved, prepend=moved[0] - 1))
        last = np.append(first[1:], len(old)) - 1
        self._runs.append((old[first], old[last] + sizes[last], moved[first]))
        self._firsts.append(int(old[0]))
        return first, last

    def note(self, places: Iterable[tuple[int, int]]) -> None:
        """Note entries one by one, in any order: (old, new) position each."""
        self._single.extend(chain.from_iterable(places))
        self._sorted = None

    def of(self, old: Int64) -> Int64:
        """New positions, int64[n]; -1 for what was not noted."""
        new = np.full(len(old), -1, np.int64)
        part = np.searchsorted(np.array(self._firsts, np.int64), old, "right") - 1
        for k in np.unique(part[part >= 0]).tolist():
            rows = np.flatnonzero(part == k)
            starts, ends, moved = self._runs[k]
            run = np.searchsorted(starts, old[rows], "right") - 1
            new[rows] = np.where(old[rows] < ends[run], old[rows] + moved[run], -1)
        if self._single:
            if self._sorted is None:
                single = np.array(self._single).reshape(-1, 2)
                self._sorted = single[np.argsort(single[:, 0])].T.copy()
            before, now = self._sorted
            at = np.minimum(np.searchsorted(before, old), len(before) - 1)
            new = np.where(before[at] == old, now[at], new)
        return new


@contextlib.contextmanager
def sound(store: Store) -> Iterator[None]:
    """Refuse to go on where something is damaged."""
    try:
        yield
    except CorruptError as error:
        raise Refusal(f"is damaged: {error}: repair it first", store.base) from None


def kept_in(store: Store, progress: Progress | None) -> Iterator[tuple[Batch, Int64]]:
    """Every batch with the indices of the entries that are kept, each of them checked: live inodes,
    and all else that is not marked deleted, but what content was compressed with before.

    The dead are not checked: if one of their lengths is wrong, it leads past entries that are
    counted. Raises Refusal for damage.
    """
    kv, live = store.kv, store.index.positions()
    entries, files, compression = 0, 0, kv.superblock.get(COMPRESS, 0)
    with sound(store):
        for batch in scan(kv.storage, kv.layout, kv.start, kv.end, progress=progress):
            keep = batch.flags == 0
            if compression:
                old = entries_of(batch, COMPRESSION)
                keep[old] &= batch.pos[old] == compression
            inodes = np.flatnonzero(is_inode(batch))  # a delflag may be wrong
            keep[inodes] = among(batch.pos[inodes], live)
            kept = np.flatnonzero(keep)
            batch.check(kept)
            entries, files = entries + len(batch), files + int(keep[inodes].sum())
            yield batch, kept
        known = known_sums(kv).get("ENTRIES", entries)
        if (entries, files) != (known, len(live)):
            what = f"has {entries} entries and {files} files, not {known} and {len(live)}"
            raise Refusal(f"is damaged, it {what}: repair it first", store.base)


class Rewrite:
    """Moves the live entries of a container to the end of another file.

    places  of what was moved
    grown   bytes that all inodes together are larger
    known   whether the old catalog says how the new inodes look
    """

    def __init__(
        self, store: Store, target: Target, settings: Settings, progress: Progress | None
    ) -> None:
        """`settings`: of the target."""
        self._store, self._target, self._progress = store, target, progress
        self._settings = settings
        self.places, self.grown, self.known = Places(), 0, True
        self._compress_at = 0

    @property
    def named(self) -> dict[str, int]:
        """Where the entries are now that the superblock names; 0: there is none."""
        block = self._store.kv.superblock
        old = [block.get(COLUMNS, 0), block.get(COMPRESS, 0)]
        columns, compress = np.maximum(self.places.of(np.array(old, np.int64)), 0).tolist()
        return {COLUMNS: columns, COMPRESS: self._compress_at or compress}

    # --- whole batches ---

    def batches(self, kv: KVSeq) -> None:
        """In the order of the file, a batch at a time, to `kv`, which is the target. Of the
        standard layout. Raises OddContainerError."""
        later: list[int] = []
        for batch, chosen in kept_in(self._store, self._progress):
            if not len(chosen):
                continue
            if not batch.whole:
                if is_inode(batch).any():
                    raise OddContainerError
                self.places.add(batch.pos, np.array([kv.end]), batch.end - batch.at)
                entry = batch.entry(0)
                kv.append(entry.key, entry.value)
                continue
            others = chained(batch)[chosen]
            later += batch.pos[chosen[others]].tolist()
            chosen = chosen[~others]
            if len(chosen):
                kv.append_encoded([self._encoded(batch, chosen, kv)], len(chosen))
        self.places.note([(pos, self._chained(pos)) for pos in later])

    def _chained(self, pos: int) -> int:
        """Append an inode with all of its extents, whose entries have been moved -> where it is."""
        file = _File.at(self._store, pos)
        pointers = np.array(file.inode.pointers, np.int64)
        places = self.places.of(pointers)
        if (places < 0).any():
            raise OddContainerError
        return self._inode(file, dict(zip(pointers.tolist(), places.tolist(), strict=True)))

    def _encoded(self, batch: Batch, chosen: Int64, kv: KVSeq) -> bytearray:
        """The chosen entries as they stand from the end of the new file on."""
        sizes = batch.end[chosen] - batch.at[chosen]
        offsets = np.cumsum(sizes) - sizes
        new = kv.end + offsets
        first, last = self.places.add(batch.pos[chosen], new, sizes)
        begins, stops = batch.at[chosen[first]].tolist(), batch.end[chosen[last]].tolist()
        data = batch.data
        out = bytearray().join([data[a:b] for a, b in zip(begins, stops, strict=True)])
        inner = is_inode(batch)[chosen]
        if inner.any():
            self._point(out, batch, chosen[inner], offsets[inner])
        with memoryview(out) as view:
            pairs = zip((offsets + 1).tolist(), (offsets + sizes - 4).tolist(), strict=True)
            sums = kv.layout.sums(new, (view[a:b] for a, b in pairs))
            raw = np.frombuffer(out, np.uint8)
            raw[(offsets + sizes - 4)[:, None] + np.arange(4)] = number_bytes(sums, ">u4")
            del raw
        return out

    def _point(self, out: bytearray, batch: Batch, chosen: Int64, offsets: Int64) -> None:
        """Let inodes point to where their entries are now, and sum them anew.

        chosen    their indices in the batch; offsets: of the entries in `out`
        """
        form = self._settings.form
        raw = np.frombuffer(out, np.uint8)
        values = offsets + batch.value[chosen] - batch.at[chosen]
        counts = batch.words(batch.value[chosen] + 48, 1, ">i8")[:, 0].astype(np.int64)
        ends = values + HEAD.size + counts * form.pair
        where = np.repeat(values + HEAD.size, counts)
        where += (np.arange(len(where)) - np.repeat(np.cumsum(counts) - counts, counts)) * form.pair
        pointers = raw[where[:, None] + np.arange(8)].view(">i8")[:, 0].astype(np.int64)
        there = pointers != 0  # a hole points nowhere
        pointers[there] = self.places.of(pointers[there])
        if (pointers < 0).any():
            raise OddContainerError
        raw[where[:, None] + np.arange(8)] = number_bytes(pointers, ">i8")
        with memoryview(out) as view:
            bodies = (view[a:b] for a, b in zip((values + 8).tolist(), ends.tolist(), strict=True))
            sums = xxh3_many(bodies)
        raw[values[:, None] + np.arange(8)] = number_bytes(sums, ">u8")

    # --- file by file ---

    def files(self, positions: Iterable[int]) -> None:
        """Any layout, any order: `positions` of the live inodes."""
        self._others(self._progress)
        for pos in positions:
            file = _File.at(self._store, pos)
            new = {old: self._append(old) for old in file.inode.pointers}
            self.places.note([*new.items(), (pos, self._inode(file, new))])

    def anew(self, positions: Iterable[int], compression: Compression) -> None:
        """The same with contents in other entries: in frames or, with level 0, plain."""
        store, target, done, reported = self._store, self._target, 0, 0
        compressor = Compressor(compression, store.base) if compression.level else None
        self.known = False
        with sound(store):
            if compressor is not None:
                self._compress_at = target.append(COMPRESSION, compression.encode())
            self._others(None, anew=True)
            for file, piece, frame in _framed(_pieces_of(store, positions, compressor), compressor):
                if isinstance(piece, int):
                    file.extents.append(Extent(0, 0, piece))
                elif piece is not None:
                    number = target.end if file.extents else 0
                    value = piece if frame is None else frame
                    at = target.append(data_key(file.inode.fileid, number), value)
                    file.extents.append(Extent(at, 0 if frame is None else FRAME, len(piece)))
                else:
                    attrs = file.inode.attrs
                    new = {attrs[0]: self._append(attrs[0])} if attrs else {}
                    self.places.note([(file.pos, self._end(file, new, self._settings.isz))])
                    done += file.inode.lsize
                    if self._progress and done <= store.dtotsz:
                        reached = store.kv.end * done // max(store.dtotsz, 1)
                        self._progress(reached - reported)
                        reported = reached

    def _others(self, progress: Progress | None, *, anew: bool = False) -> None:
        """Entries that are neither inodes nor parts of files. `anew`: the contents are."""
        for batch, chosen in kept_in(self._store, progress):
            for i in chosen[~is_inode(batch)[chosen]].tolist():
                entry = batch.entry(i)
                part = entry.key.rpartition(b"/")[2][:1]
                if part not in (b"D", b"A") and not (anew and entry.key == COMPRESSION):
                    self.places.note([(entry.pos, self._target.append(entry.key, entry.value))])

    def _append(self, old: int) -> int:
        entry = self._store.entry_at(old)
        return self._target.append(entry.key, entry.value)

    def _inode(self, file: _File, new: Mapping[int, int]) -> int:
        """Append an inode whose entries are in other places -> where it is."""
        extents = file.inode.extents
        file.extents = [Extent(new.get(e.pointer, 0), e.skip, e.size) for e in extents]
        self.known &= len(extents) > 1 or not file.inode.links
        return self._end(file, new, file.inode.size)

    def _end(self, file: _File, new: Mapping[int, int], size: int) -> int:
        """The same, of the extents that it has now. `size`: bytes that it takes at least."""
        old = file.inode
        attrs = (new[old.attrs[0]], old.attrs[1]) if old.attrs else None
        moved = Inode(old.fileid, old.lsize, old.ftype, old.mtime, file.extents, attrs)
        value = moved.encode(self._settings.form, size)
        self.grown += len(value) - old.size
        return self._target.append(file.key, value)


@dataclass(slots=True)
class _File:
    """A file while it is moved: where its inode was, and the extents that it has so far."""

    pos: int
    key: bytes
    inode: Inode
    extents: list[Extent] = field(default_factory=list)

    @classmethod
    def at(cls, store: Store, pos: int) -> Self:
        """Raises CorruptError."""
        return cls(pos, *store.inode_at(pos)[:2])


def pieces(content: Content, inode: Inode, longest: int) -> Iterator[bytes | int]:
    """The content of a file: bytes, of at most `longest`, and sizes of holes. CorruptError."""
    extents, at = cut(inode.extents, 0, inode.lsize), 0
    for hole, run in groupby(extents, lambda extent: extent.pointer == 0):
        end = at + sum(extent.size for extent in run)
        if hole:
            yield end - at
        else:
            for start in range(at, end, longest):
                yield content.read(extents, start, min(start + longest, end))
        at = end


def _pieces_of(
    store: Store, positions: Iterable[int], compressor: Compressor | None
) -> Iterator[tuple[_File, bytes | int | None]]:
    """The pieces of files, each with its file; None is the end of one."""
    content, longest = Content(store), CHUNK if compressor is None else PIECE
    for pos in positions:
        file = _File.at(store, pos)
        for piece in chain(pieces(content, file.inode, longest), [None]):
            yield file, piece


def _framed(
    pieces: Iterable[tuple[_File, bytes | int | None]], compressor: Compressor | None
) -> Iterator[tuple[_File, bytes | int | None, bytes | None]]:
    """The same with the frame of each piece; None: it stays plain."""
    for batch in _batches(pieces):
        chosen = [
            (number, piece)
            for number, (file, piece) in enumerate(batch)
            if compressor and isinstance(piece, bytes) and file.inode.ftype in COMPRESSIBLE
        ]
        made = compressor.many([piece for _, piece in chosen]) if compressor else []
        frames = dict(zip((number for number, _ in chosen), made, strict=True))
        for number, (file, piece) in enumerate(batch):
            yield file, piece, frames.get(number)


def _batches(
    pieces: Iterable[tuple[_File, bytes | int | None]],
) -> Iterator[list[tuple[_File, bytes | int | None]]]:
    """Lists of pieces, of BATCH bytes each."""
    batch, size = [], 0
    for file, piece in pieces:
        batch.append((file, piece))
        size += len(piece) if isinstance(piece, bytes) else 0
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    yield batch


class FileCopier:
    """Copies files of a store into a container that is open for writing, with all their metadata.

    Entries stay as they are where the container can have them; else the content is written anew.
    """

    def __init__(self, source: Store, target: Handle, *, keep_ids: bool = False) -> None:
        """`keep_ids`: with the FILEIDs that they have, of which the target has none."""
        self._source, self._target, self._keep_ids = source, target, keep_ids
        self._content = Content(source)
        self._file = source.kv.storage.name
        if keep_ids:
            target.store.nextfid = max(target.store.nextfid, source.nextfid)

    def copy(self, pos: int, inode: Inode, attrs: Attrs | None, key: bytes) -> None:
        """Copy the file whose inode is at `pos`.

        inode   with all its extents
        attrs   as they are shown; None: the defaults of the target
        key     of the inode in the target
        raises  CorruptError where it is damaged: nothing of it is there then; Refusal EFBIG where
                holes that are out of all proportion would become zeros; OSError
        cost    memory: its largest entry
        """
        target, ns = self._target, self._source.settings.ns_of(inode.mtime)
        fileid = inode.fileid if self._keep_ids else None
        with target.lock:
            target.need_writable()
            changes, fill = target.changes, partial(self._fill, pos, inode)
            if attrs is not None and attrs.xattrs:
                attrs = replace(attrs, xattrs=changes.metadata.typed(attrs.xattrs))
            known = changes.clamped.nearest(ns, name_of(key))
            target.change(changes.put_made, key, fill, known, inode.ftype, attrs, fileid)

    def _fill(self, pos: int, inode: Inode, draft: Draft, writer: DraftWriter) -> None:
        """Give a new draft the content of a file."""
        if self._fits(inode):
            draft.base = joined(self._entries(pos, inode, draft))
            draft.body = inode.lsize
            return
        if not self._target.store.settings.holes:
            check_size(inode.lsize, self._source.kv.end, self._file)
        for piece in pieces(self._content, inode, writer.chunk):
            if isinstance(piece, int):
                writer.truncate(draft, draft.lsize + piece)
            else:
                writer.append(draft, piece)

    def _fits(self, inode: Inode) -> bool:
        """Whether the target can have the extents of a file, and would write no others."""
        old, new = self._source, self._target.store
        try:
            made, wanted = old.frames.compression, new.frames.compression
        except CorruptError:
            return False
        holes = any(extent.pointer == 0 for extent in inode.extents)
        skip = max((extent.skip for extent in inode.extents), default=0)
        return (
            (made.level, made.dictid) == (wanted.level, wanted.dictid)
            and (new.settings.holes or not holes)
            and (new.settings.pairoff or skip == 0)
            and (new.settings.compressed or skip < FRAME)
        )

    def _entries(self, pos: int, inode: Inode, draft: Draft) -> list[Extent]:
        """Append the entries of the content of a file, checked -> its extents."""
        source, kv, new = self._source, self._target.store.kv, {0: 0}
        kept: dict[tuple[int, bool], bytes] = {}  # the last one, which may have many extents

        def value_at(pointer: int, least: int, framed: bool) -> bytes:
            if (pointer, framed) not in kept:
                entry = source.entry_at(pointer)
                check_lives(entry, pos, source.kv.storage.read, self._file)
                kept.clear()
                kept[pointer, framed] = (
                    source.frames.content(entry.value, pointer) if framed else entry.value
                )
                if pointer not in new:
                    number = kv.end if draft.owns else 0
                    new[pointer] = kv.append(data_key(draft.fileid, number), entry.value)
                    draft.added.add(new[pointer])
            return kept[pointer, framed]

        extents = cut(inode.extents, 0, inode.lsize)
        for extent in extents:
            if extent.pointer:
                assemble([extent], value_at, self._file)
        return [Extent(new[extent.pointer], extent.skip, extent.size) for extent in extents]
