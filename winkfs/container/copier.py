"""Copying files into a container that is open for writing, and contents into drafts.

FileCopier  adds files of a container to another one; verifies each entry that it moves
fill        writes the content of a file anew, into a draft
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby
from typing import TYPE_CHECKING

from winkformats.errors import CorruptError
from winkfs.container.draft import Draft, DraftWriter
from winkfs.container.ondisk.inode import (
    FRAME,
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
from winkfs.container.read import Content
from winkfs.container.store import Store
from winkfs.names import name_of

if TYPE_CHECKING:
    from winkfs.container.handle import Handle


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

    def _fits(self, inode: Inode) -> bool:
        """Return whether the target can have the extents of a file as they are."""
        old, new = self.source, self.target.store
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
