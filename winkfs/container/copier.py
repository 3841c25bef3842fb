"""Copying files into a container that is open for writing, and contents into drafts.

copy_entries  adds many files of a container to another one, plain ones a batch at a time
FileCopier    adds one file to another container; verifies each entry that it moves
fill          writes the content of a file anew, into a draft
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import compress, groupby
from typing import TYPE_CHECKING, Final

import numpy as np

from winkformats.arrays import Bools, Int64, among
from winkformats.errors import CorruptError
from winkfs.container.bulk import LONG_ATTRS_BYTES, BulkPut, FileBatch
from winkfs.container.draft import VALUE_BYTES, Draft, DraftWriter, is_usual
from winkfs.container.ondisk.compressed import FRAME_CONTENT_BYTES
from winkfs.container.ondisk.inode import (
    ATTRS,
    FRAME,
    HIGHEST,
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
from winkfs.container.ondisk.typed import RECORD, USER, recorded
from winkfs.container.read import Content
from winkfs.container.scan import Window
from winkfs.container.store import Store
from winkfs.container.survey import InodeRows, rows_of
from winkfs.entry import DEFAULT_MODES, FileType
from winkfs.names import INODE, name_of

if TYPE_CHECKING:
    from winkfs.container.handle import Handle

TYPES: Final = 256  # FileTypes that there can be
OnDamage = Callable[[int, bytes | None, CorruptError], None]


class FileIds:
    """FILEIDs of files that are copied from several containers into one.

    A file keeps its own, unless the target has, or had, a file of that FILEID.
    """

    def __init__(self, target: Store, beyond: Sequence[int]) -> None:
        """Prepare a target. `beyond`: for each source, see `unused_fileid`."""
        self._floor = target.new_fileid()
        self._target, self._used = target, np.empty(0, np.int64)
        self._now: list[Int64] = []  # of the current source
        target.nextfid = max([self._floor, *beyond])  # no new one is that of a later file

    def of(self, fileids: Int64) -> Int64:
        """Return the FILEIDs of files in the target, int64[n]."""
        kept = (fileids >= self._floor) & ~among(fileids, self._used)
        if not kept.all():
            count = len(kept) - int(kept.sum())
            first = self._target.new_fileid()
            self._target.nextfid = first + count
            fileids = fileids.copy()
            fileids[~kept] = np.arange(first, first + count)
        self._now.append(fileids)
        return fileids

    def next_source(self) -> None:
        """Begin with another source: its files may have FILEIDs of those copied before."""
        self._used = np.sort(np.concatenate([self._used, *self._now]))
        self._now = []


def unused_fileid(source: Store) -> int:
    """Return a FILEID above those of all files of a container."""
    return source.nextfid or source.new_fileid()


@dataclass(slots=True)
class Copied:
    """Numbers of files that were copied, and bytes of their content."""

    files: int = 0
    directories: int = 0
    links: int = 0
    bytes: int = 0

    def count(self, ftypes: Int64, size: int) -> None:
        numbers = np.bincount(ftypes, minlength=TYPES)
        self.directories += int(numbers[FileType.DIR])
        self.links += int(numbers[FileType.LINK])
        self.files += len(ftypes) - int(numbers[FileType.DIR] + numbers[FileType.LINK])
        self.bytes += size


def copy_entries(
    source: Store,
    positions: Int64,
    target: Handle,
    fileids: FileIds,
    copied: Copied,
    *,
    on_damage: OnDamage,
    prefix: bytes = b"",
    progress: Callable[[int], None] | None = None,
) -> None:
    """Copy files with all their metadata. Each entry is verified, and its checksum made anew.

    positions  of the inodes, ascending, int64[n]
    copied     is increased by what is copied
    on_damage  called with position, name if it is known, and error of each damaged file, which is
               left out; it may raise
    prefix     put before each name
    progress   called with the number of files since the last call
    raises     Refusal of a file that the target cannot hold; OSError
    cost       one pass over the part of the data file that has the files; contents are neither
               decompressed nor compressed, unless the target compresses otherwise
    """
    copier = _EntryCopier(source, target, fileids, copied, on_damage, prefix)
    at = 0
    try:
        while at < len(positions):
            stop = copier.window.batch(positions, at)
            copier.copy(positions[at:stop])
            if progress:
                progress(stop - at)
            at = stop
    finally:
        copier.window.close()


class _EntryCopier:
    """A run of `copy_entries`."""

    def __init__(
        self,
        source: Store,
        target: Handle,
        fileids: FileIds,
        copied: Copied,
        on_damage: OnDamage,
        prefix: bytes,
    ) -> None:
        self._source, self._target, self._fileids = source, target, fileids
        self._copied, self._on_damage, self._prefix = copied, on_damage, prefix
        self._one = FileCopier(source, target)
        self._content = Content(source)
        self.window = Window(source)
        self.window.contents = True
        new = target.store
        self._bulk = is_usual(source) and is_usual(new) and new.settings.attrs
        self._anew = not self._one.same_compression
        self._anew |= source.settings.compressed and not new.settings.compressed
        compresses = self._anew and target.changes.compressor is not None
        self._most = FRAME_CONTENT_BYTES if compresses else VALUE_BYTES
        mine, its = source.owner, target.content.owner
        self._plain = [b""] * TYPES  # attributes of a file without any, by FileType
        if mine != its:
            self._plain = [ATTRS.pack(mode, *mine) for mode in DEFAULT_MODES]
        self._records = recorded(source.shown.schema), recorded(new.declared.schema)
        extra = new.declared.schema.keys() - source.shown.schema.keys()
        self._extra = [USER + name.encode() for name in extra]
        self._same_columns = source.shown.record == new.declared.record

    def copy(self, positions: Int64) -> None:
        """Copy files of the window in order: plain ones together, the others one by one."""
        if not self._bulk:
            for pos in positions.tolist():
                self._copy_one(pos)
            return
        batch, there = self.window.entries(positions)
        rows = rows_of(batch, self._source.settings, _ignore)
        rows = rows.take(np.flatnonzero(rows.fit & rows.named & ~rows.deleted))
        files, good = self._columns(rows)
        which, fileids = there[rows.which[good]], rows.fileid[good]
        others = np.ones(len(positions), np.bool_)
        others[which] = False
        start = 0
        for i in [*np.flatnonzero(others).tolist(), len(positions)]:
            stop = int(np.searchsorted(which, i))
            if stop > start:
                self._put(files.part(start, stop), fileids[start:stop])
                start = stop
            if i < len(positions):
                self._copy_one(int(positions[i]))

    # --- plain files ---

    def _columns(self, rows: InodeRows) -> tuple[FileBatch, Int64]:
        """Return the plain files among some, and their indices."""
        lsize, (extents, attrs, (content, skip, size)) = rows.lsize, rows.first
        unit = self._source.settings.mtime_unit
        framed = skip == FRAME
        full = (extents == 1) & (size == lsize) & (content > 0) & ((skip == 0) | framed)
        plain = (full & (lsize <= self._most)) | ((extents == 0) & (lsize == 0))
        plain &= (np.abs(rows.mtime) <= HIGHEST) | (unit == 1)
        full &= plain & (lsize > 0)
        starts, ends, sound = self._values(content, full)
        plain &= sound & ((ends - starts == lsize) | framed | ~full)
        special = plain & (attrs[1] > 0)
        words_at, words_end, sound = self._values(attrs[0], special)
        plain &= sound & (words_end - words_at >= attrs[1]) & (attrs[1] < LONG_ATTRS_BYTES)
        good = np.flatnonzero(plain)
        keys = rows.take(good).keys if len(good) < len(plain) else rows.keys
        if self._prefix:
            keys = [self._prefix + key for key in keys]
            longest = self._target.store.kv.layout.key.limit
            if max(map(len, keys), default=0) > longest:
                self._target.key(max(keys, key=len)[: -len(INODE)])  # raises
        data: list[memoryview | bytes] = [*self.window.texts(starts[good], ends[good])]
        framed = framed[good] & full[good]
        if self._anew and framed.any():
            ok = self._decode(data, np.flatnonzero(framed), content[good], lsize[good])
            data, keys = list(compress(data, ok)), list(compress(keys, ok))
            good, framed = good[ok], np.zeros(len(data), np.bool_)
        ftypes = rows.fields[good, 4]
        words = list(map(self._plain.__getitem__, ftypes.tolist()))
        named = np.flatnonzero(special[good])
        begin = words_at[good[named]]
        texts = self.window.texts(begin, begin + attrs[1][good[named]])
        for i, word in zip(named.tolist(), texts, strict=True):
            words[i] = self._word(bytes(word))
        lengths = np.fromiter(map(len, keys), np.int64, len(keys))
        files = FileBatch(
            keys, lengths, data, lsize[good], rows.mtime[good] * unit, ftypes, words,
            framed if framed.any() else None,
        )  # fmt: skip
        return files, good

    def _values(self, pos: Int64, asked: Bools) -> tuple[Int64, Int64, Bools]:
        """Return offsets of the values of entries, and of their ends, and which are intact in the
        window, int64[n] and bool[n]; what is not asked for counts as intact, and is empty."""
        starts, ends, sound = np.zeros(len(pos), np.int64), np.zeros(len(pos), np.int64), ~asked
        index = np.flatnonzero(asked)
        batch, there = self.window.entries(pos[index])
        good = batch.flags == 0
        good[batch.bad()] = False
        there, value = index[there[good]], batch.value[good]
        starts[there], ends[there], sound[there] = value, value + batch.value_len[good], True
        return starts, ends, sound

    def _decode(
        self, data: list[memoryview | bytes], which: Int64, pos: Int64, sizes: Int64
    ) -> Bools:
        """Replace frames by their contents -> which files are intact, bool[n]."""
        sound = np.ones(len(data), np.bool_)
        for i in which.tolist():
            try:
                data[i] = self._source.frames.content(bytes(data[i]), int(pos[i]))
            except CorruptError:  # it is reported when it is copied by itself
                sound[i] = False
            else:
                sound[i] = len(data[i]) == sizes[i]
        return sound

    def _word(self, word: bytes) -> bytes:
        """Return the value of an attribute entry as the target has it."""
        if self._same_columns:
            return word
        old, new = self._records
        if old and word.startswith(old, ATTRS.size) and not any(map(word.count, self._extra)):
            return word[: ATTRS.size] + new + word[ATTRS.size + len(old) :]
        if RECORD not in word and not any(map(word.count, self._extra)):
            return word
        attrs = Attrs.decode(word, file=self._source.kv.storage.name, offset=0)
        xattrs = self._target.changes.metadata.typed(self._source.shown.shown(attrs.xattrs))
        return replace(attrs, xattrs=xattrs).encode()

    def _put(self, files: FileBatch, fileids: Int64) -> None:
        target = self._target
        bulk = BulkPut(target.store, target.changes)
        target.change(partial(bulk.copy, anew=self._anew), files, self._fileids.of(fileids))
        self._copied.count(files.ftypes, int(files.lengths.sum()))

    # --- any file ---

    def _copy_one(self, pos: int) -> None:
        name = None
        try:
            key, inode, _ = self._source.inode_at(pos)
            name = name_of(key)
            attrs = self._content.attrs(inode)
            shown = replace(attrs, xattrs=self._source.shown.shown(attrs.xattrs))
            (fileid,) = self._fileids.of(np.array([inode.fileid])).tolist()
            self._target.key(self._prefix + name)  # raises if it is too long
            self._one.copy(pos, inode, shown, self._prefix + key, fileid)
        except CorruptError as error:
            self._on_damage(pos, name, error)
        else:
            self._copied.count(np.array([inode.ftype]), inode.lsize)


def _ignore(error: CorruptError) -> None:
    """Leave a damaged inode to `_copy_one`, which reports it."""


@dataclass(frozen=True, slots=True)
class FileCopier:
    """Copies files of a store into a container that is open for writing, with all their metadata.

    Entries are copied as they are if the container can have them; otherwise the content is written
    anew.
    """

    source: Store
    target: Handle

    def copy(
        self, pos: int, inode: Inode, attrs: Attrs | None, key: bytes, fileid: int | None = None
    ) -> None:
        """Copy the file whose inode is at `pos`.

        inode   with all its extents
        attrs   as they are shown; None: the defaults of the target
        key     of the inode in the target
        fileid  its FILEID in the target, where it is unused; None: a new one
        raises  CorruptError if it is damaged: then nothing is copied; Refusal EFBIG if holes far
                larger than the container would become zeros; OSError
        cost    memory: its largest entry
        """
        target, ns = self.target, self.source.settings.ns_of(inode.mtime)
        with target.lock:
            target.need_writable()
            changes, fill = target.changes, partial(self._fill, pos, inode)
            if attrs is not None and attrs.xattrs:
                attrs = replace(attrs, xattrs=changes.metadata.typed(attrs.xattrs))
            known = changes.clamped.nearest(ns, name_of(key))
            target.change(changes.put_made, key, fill, known, inode.ftype, attrs, fileid)

    def _fill(self, pos: int, inode: Inode, draft: Draft, writer: DraftWriter) -> None:
        """Fill a new draft with the content of a file."""
        if self._fits(inode):
            draft.base = joined(self._entries(pos, inode, draft))
            draft.body = inode.lsize
            return
        if not self.target.store.settings.holes:
            check_size(inode.lsize, self.source.kv.end, self.source.kv.storage.name)
        fill(draft, writer, Content(self.source), inode, writer.chunk)

    @property
    def same_compression(self) -> bool:
        """True if new content of both is compressed alike."""
        try:
            made, wanted = self.source.frames.compression, self.target.store.frames.compression
        except CorruptError:
            return False
        return (made.level, made.dictid) == (wanted.level, wanted.dictid)

    def _fits(self, inode: Inode) -> bool:
        """Return whether the target can have the extents of a file as they are."""
        new = self.target.store
        holes = any(extent.pointer == 0 for extent in inode.extents)
        skip = max((extent.skip for extent in inode.extents), default=0)
        return (
            self.same_compression
            and (new.settings.holes or not holes)
            and (new.settings.pairoff or skip == 0)
            and (new.settings.compressed or skip < FRAME)
        )

    def _entries(self, pos: int, inode: Inode, draft: Draft) -> list[Extent]:
        """Append the entries of the content of a file, verified -> its extents."""
        source, kv, new = self.source, self.target.store.kv, {0: 0}
        file = source.kv.storage.name

        @lru_cache(1)  # an entry may have many extents
        def value(pointer: int, framed: bool) -> bytes:
            entry = source.entry_at(pointer)
            check_lives(entry, pos, source.kv.storage.read, file)
            found = source.frames.content(entry.value, pointer) if framed else entry.value
            if pointer not in new:
                number = kv.end if draft.owns else 0
                new[pointer] = kv.append(data_key(draft.fileid, number), entry.value)
                draft.added.add(new[pointer])
            return found

        extents = cut(inode.extents, 0, inode.lsize)
        for extent in extents:
            if extent.pointer:
                assemble([extent], lambda at, _, framed: value(at, framed), file)
        return [Extent(new[extent.pointer], extent.skip, extent.size) for extent in extents]


def fill(draft: Draft, writer: DraftWriter, content: Content, inode: Inode, longest: int) -> None:
    """Fill a new draft with the content of a file, `longest` bytes at a time.

    raises  CorruptError
    """
    extents, at = cut(inode.extents, 0, inode.lsize), 0
    for hole, run in groupby(extents, lambda extent: extent.pointer == 0):
        end = at + sum(extent.size for extent in run)
        if hole:
            writer.truncate(draft, end)
        for start in range(end if hole else at, end, longest):
            writer.append(draft, content.read(extents, start, min(start + longest, end)))
        at = end
