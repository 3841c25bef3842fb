"""Draft: a file that is being changed. Its inode is written once, when the draft is settled.

Appended content waits in `tail`, so that many small appends become one entry of up to 1 MiB; an
overwrite becomes an entry at once. Synced entries are never changed.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Final

import numpy as np
import xxhash

from winkformats import native
from winkformats.arrays import among
from winkformats.disk.storage import Buffer
from winkformats.errors import CorruptError
from winkformats.kv.entry import MASK64
from winkformats.kv.sequence import KVSeq
from winkfs.container.frames import Compressor
from winkfs.container.ondisk.chain import laid_over, layer, sum_of
from winkfs.container.ondisk.compressed import FRAME_CONTENT_BYTES
from winkfs.container.ondisk.data import Settings
from winkfs.container.ondisk.inode import (
    BELOW,
    CK_XXH3,
    FRAME,
    LIST_EXTENTS,
    Attrs,
    Extent,
    ExtentArray,
    Inode,
    attr_key,
    cut,
    data_key,
    joined,
)
from winkfs.entry import FileType
from winkfs.errors import Refusal

if TYPE_CHECKING:
    from winkfs.container.store import Store

GROUP_BYTES: Final = 64 << 10  # small overwrites in one entry: a read of one checks them all
MIN_GATHERED: Final = 8  # small extents that become one, at least
MAX_PATCHES: Final = 4096  # overwrites that are not in the extents yet
PATCH_BYTES: Final = 160  # that a small overwrite needs beside its own: pairs, a part of an entry
CTIME_BYTES: Final = 64  # that the time of a change takes in attributes, at most
COPIED_BYTES: Final = 32 << 10  # content up to which a file is encoded in one buffer
VALUE_BYTES: Final = 1 << 20  # bytes of the largest value we write: a checksum covers a whole entry
COMPRESSIBLE: Final = (FileType.FILE, FileType.EXEC)


NONE: Final = Inode(0, 0, 0, 0)
FIELDS: Final = [struct.Struct(f">{6 + n}q") for n in range(7)]
"""The fields of an inode after its checksum, with 0 to 6 words of pairs."""


@dataclass(slots=True)
class Draft:
    """A file that is being changed.

    base      extents of the first `body` bytes of the content, without the `patches`
    over      a `base`, and which of its parts differ from `under`: see `changed`
    patches   overwrites that are not in `base` yet, in the order they were made: (offset, extent)
    tail      the rest of the content
    attrs     attributes to write, None: none; `attrs_at`: position and size if already written
    old       position of the inode that this one replaces, 0: none
    under     that inode, with all its extents; NONE: there is none
    added     positions of data and attribute entries written since
    """

    key: bytes
    fileid: int
    ftype: int
    mtime: int
    body: int = 0
    base: Sequence[Extent] = ()
    over: tuple[Sequence[Extent], ExtentArray] | None = None
    patches: list[tuple[int, Extent]] = field(default_factory=list)
    tail: bytearray = field(default_factory=bytearray)
    attrs: Attrs | None = None
    attrs_at: tuple[int, int] | None = None
    old: int = 0
    under: Inode = NONE
    added: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, key: bytes, inode: Inode, pos: int, attrs: Attrs | None) -> Draft:
        """Return a draft of a stored file. `pos`: of its inode."""
        base, over = cut(inode.extents, 0, inode.lsize), None
        if isinstance(base, ExtentArray) and inode.lsize:
            over = base, ExtentArray.of([Extent(BELOW, 0, inode.lsize)])
        return cls(
            key, inode.fileid, inode.ftype, inode.mtime, inode.lsize, base, over, [], bytearray(),
            attrs, inode.attrs, pos, inode,
        )  # fmt: skip

    @property
    def lsize(self) -> int:
        """Bytes of the content."""
        return self.body + len(self.tail)

    @property
    def owned(self) -> Set[int]:
        """Positions of the data and attribute entries of `under`, and of those written since."""
        return self.added | self.under.owned if self.old else self.added

    @property
    def owns(self) -> bool:
        """True if there are such entries."""
        return bool(self.added or self.under.pointers)

    def owned_beside(self, inode: Inode) -> Set[int]:
        """Return those of the `owned` entries that another inode does not name."""
        under, more = self.under, [*self.added, *(self.under.attrs or ())[:1]]
        own = np.append(ExtentArray.of(under.extents).pointers, np.array(more, np.int64))
        gone = own[~among(own, ExtentArray.of(inode.extents).pointers)]
        return set(gone.tolist()).difference((inode.attrs or ())[:1])

    @property
    def plain(self) -> bool:
        """True if it is a new file without written entries, of COPIED_BYTES at most."""
        new = not (self.old or self.added or self.body or self.patches)
        return new and len(self.tail) <= COPIED_BYTES

    @property
    def extents(self) -> Sequence[Extent]:
        """Extents of the first `body` bytes of the content, with all overwrites."""
        if self.patches:
            rows = layer(sum_of(self.base), self.patches)
            base, over = laid_over(rows, ExtentArray.of(self.base)), self.changed
            known = None if over is None else (base, laid_over(rows, over))
            self.base, self.patches, self.over = base, [], known
        return self.base

    @property
    def changed(self) -> ExtentArray | None:
        """The extents of `base`, BELOW for each part that is as in `under`; None after a change
        other than an overwrite."""
        return self.over[1] if self.over is not None and self.over[0] is self.base else None

    @property
    def pairs(self) -> int:
        """An upper bound of the number of extents."""
        return len(self.base) + 2 * len(self.patches)


def is_usual(store: Store) -> bool:
    """Return whether `entries` and the compiled path can encode files of this container."""
    return store.kv.layout.standard and store.settings.ckalgo == CK_XXH3


class DraftWriter:
    """Changes drafts, and writes their content as entries to the data file.

    Extents, tail and size change in one statement, so that a signal handler that raises leaves the
    draft in the state before or after the call.

    read        reads the content of extents, for the copies that a container without PAIROFF needs
    compressor  compresses content that is appended; overwrites are never compressed. None: nothing
                is
    """

    compressor: Compressor | None = None

    def __init__(
        self, kv: KVSeq, settings: Settings, read: Callable[[Sequence[Extent]], bytes]
    ) -> None:
        self._kv, self._settings, self._read = kv, settings, read
        layout, field = kv.layout, kv.layout.value
        self._pair = settings.form.pair
        self._entry_room = layout.size(64, 0) + max(layout.align, 1) + max(field.room, 0)
        self.chunk = min(FRAME_CONTENT_BYTES if settings.compressed else VALUE_BYTES, field.limit)
        self._extents = (field.limit - 56) // settings.form.pair - 1  # a pair is for attributes
        self._least = -(-settings.isz // 8) * 8  # bytes of an inode
        self.empty = self.cost(Draft(b"", 0, 0, 0), 0)  # of a new file, except its key

    def need_room(self, draft: Draft, length: int) -> None:
        """Raise Refusal EFBIG if the inode could not hold the extents of `length` more bytes."""
        known = draft.pairs + 3  # an overwrite cuts one in two
        if known + -(-(len(draft.tail) + length) // self.chunk) > self._extents:
            raise Refusal(
                f"the file would need more than {self._extents} extents, all that an inode can "
                "hold under this VALREPR", self._kv.storage.name, number=errno.EFBIG,
            )  # fmt: skip

    def cost(self, draft: Draft, length: int) -> int:
        """Return the bytes that a draft will still write, at most, if `length` are added to it."""
        waiting, entry = len(draft.tail) + length, self._entry_room
        pieces = waiting // self.chunk + 3
        pairs = self._pair * (draft.pairs + pieces)
        inode = max(self._settings.isz, 64 + pairs) + len(draft.key)
        named = draft.attrs.size + CTIME_BYTES if draft.attrs and not draft.attrs_at else 0
        if self._gathers(draft):
            waiting += min(draft.body, self.chunk)
        return waiting + pieces * entry + inode + named + 2 * entry + 64

    def append(self, draft: Draft, data: bytes | memoryview) -> None:
        """Add content at the end."""
        self.need_room(draft, len(data))
        if not draft.tail and len(data) >= self.chunk:
            self._spill(draft, data, len(data) - len(data) % self.chunk)
            return
        draft.tail += data
        if len(draft.tail) >= self.chunk:
            self._spill(draft, draft.tail, len(draft.tail) - len(draft.tail) % self.chunk)

    def write(self, draft: Draft, offset: int, data: bytes | memoryview) -> None:
        """Write at any offset; a gap after the old end reads as zeros."""
        if not data:
            return
        small = len(data) <= GROUP_BYTES and self._settings.pairoff
        if offset < draft.body and small and draft.pairs > LIST_EXTENTS:
            self._patch(draft, [(offset, data)])
            return
        gap = max(offset - draft.lsize, 0)
        self.need_room(draft, len(data) + (0 if self._settings.holes else gap))
        if gap:
            self._put_zeros(draft, draft.lsize, gap)
        if offset == draft.lsize:
            self.append(draft, data)
            return
        if offset >= draft.body:  # inside the tail: still in memory
            at = offset - draft.body
            draft.tail[at : at + len(data)] = data
            self.append(draft, b"")
            return
        self.spill(draft)
        self._lay(draft, offset, len(data), self._entries(draft, data))

    def write_many(self, draft: Draft, pieces: Sequence[tuple[int, bytes]]) -> None:
        """Write each (offset, data), in this order; small overwrites share an entry."""
        if len(pieces) == 1:
            self.write(draft, *pieces[0])
            return
        group: list[tuple[int, bytes]] = []
        room = GROUP_BYTES
        for offset, data in pieces:
            fits = self._settings.pairoff and 0 < len(data) <= GROUP_BYTES
            fits = fits and offset + len(data) <= draft.lsize
            if group and (not fits or len(data) > room):
                self._patch(draft, group)
                group, room = [], GROUP_BYTES
            if fits:
                group.append((offset, data))
                room -= len(data)
            else:
                self.write(draft, offset, data)
        if group:
            self._patch(draft, group)

    def _patch(self, draft: Draft, pieces: Sequence[tuple[int, bytes | memoryview]]) -> None:
        """Write overwrites as one entry, in a container with PAIROFF.

        pieces  (offset, data), GROUP_BYTES in all at most
        """
        self.need_room(draft, 0)
        self.spill(draft)
        (entry,) = self._entries(draft, b"".join(data for _, data in pieces))
        patches, skip = list(draft.patches), entry.skip
        for offset, data in pieces:
            patches.append((offset, Extent(entry.pointer, skip, len(data))))
            skip += len(data)
        end = max(offset + len(data) for offset, data in pieces)
        draft.patches, draft.body = patches, max(draft.body, end)
        if len(patches) > MAX_PATCHES:
            _ = draft.extents

    def punch(self, draft: Draft, offset: int, size: int) -> None:
        """Replace `size` bytes inside the file by zeros: by a hole if the format has holes."""
        if offset >= draft.body:
            draft.tail[offset - draft.body : offset - draft.body + size] = bytes(size)
            return
        self.need_room(draft, 0)
        self._put_zeros(draft, offset, size)

    def truncate(self, draft: Draft, size: int) -> None:
        """Cut or extend to `size` bytes; added bytes are zeros."""
        if size > draft.lsize:
            self.need_room(draft, 0 if self._settings.holes else size - draft.lsize)
            self._put_zeros(draft, draft.lsize, size - draft.lsize)
        elif size >= draft.body:
            del draft.tail[size - draft.body :]
        else:
            extents = cut(draft.extents, 0, size)
            draft.tail, draft.base, draft.body = bytearray(), extents, size

    def whole(
        self, key: bytes, fileid: int, data: bytes, mtime: int, ftype: int, word: bytes,
        frame: bytes | None,
    ) -> tuple[int, int]:  # fmt: skip
        """Append a whole file -> position of its inode, and the size of the inode in bytes.

        The container must be usual, see `is_usual`.

        data   COPIED_BYTES at most
        mtime  in units of the container
        word   the value of its attribute entry; empty: there is none
        frame  the compressed data; None: it is stored as it is
        """
        kv, framed = self._kv, frame is not None
        stored = data if frame is None else frame
        encode = entries if native.code is None else native.code.entries
        found, pos, size = encode(
            kv.end, self._least, self._settings.pairoff, kv.layout.contid & MASK64, fileid, mtime,
            ftype, key, stored, word, len(data), framed,
        )  # fmt: skip
        count = 1 + bool(data) + bool(word)
        kv.append_parts([found], count, count)
        return pos, size

    def spill(self, draft: Draft) -> None:
        """Write the whole tail as entries."""
        if draft.tail:
            self._spill(draft, draft.tail, len(draft.tail))

    def settle(self, draft: Draft) -> Inode:
        """Write the rest of the content and the attributes -> the inode to write."""
        if self._gathers(draft) and draft.tail:
            self._gather(draft)
        self.spill(draft)
        if draft.attrs is not None and draft.attrs_at is None:
            data = draft.attrs.encode()
            pos = self._kv.append(attr_key(draft.fileid), data)
            draft.added.add(pos)
            draft.attrs_at = (pos, len(data))
        return Inode(
            draft.fileid, draft.lsize, draft.ftype, draft.mtime, draft.extents, draft.attrs_at
        )

    def _gathers(self, draft: Draft) -> bool:
        """Return whether small extents are joined: in classic layout, where each change of a file
        writes a whole inode. A file that is appended to n times then has about log n extents."""
        return self._settings.classic and not self._settings.ao and draft.pairs >= MIN_GATHERED

    def _gather(self, draft: Draft) -> None:
        """Move the last extents into the tail, each one that is no larger than all after it."""
        extents, count, total = draft.extents, 0, len(draft.tail)
        for extent in reversed(extents):
            if extent.size > min(total, GROUP_BYTES) or total + extent.size > self.chunk:
                break
            count, total = count + 1, total + extent.size
        if count < MIN_GATHERED:
            return
        try:
            data = self._read(extents[-count:])
        except CorruptError:  # they stay as they are
            return
        draft.base, draft.body = extents[:-count], draft.body - len(data)
        draft.tail[:0] = data

    def _spill(self, draft: Draft, waiting: Buffer, length: int) -> None:
        """Write the first `length` bytes of `waiting`, which follows the body, as entries; the rest
        becomes the tail."""
        with memoryview(waiting) as view:
            entries = self._entries(draft, view[:length], frames=True)
            rest = bytearray(view[length:])
        extents, body = joined(draft.extents, entries), draft.body + length
        draft.base, draft.tail, draft.body = extents, rest, body

    def _entries(
        self, draft: Draft, data: bytes | memoryview, *, frames: bool = False
    ) -> list[Extent]:
        """Write content as data entries, numbered by their positions, which are unique.

        frames  they may be compressed
        """
        pieces = [bytes(data[at : at + self.chunk]) for at in range(0, len(data), self.chunk)]
        made: Iterable[bytes | None] = repeat(None)
        if frames and self.compressor is not None and draft.ftype in COMPRESSIBLE:
            made = self.compressor.many(pieces)
        return [self.entry(draft, *both) for both in zip(pieces, made, strict=False)]

    def entry(self, draft: Draft, content: bytes, frame: bytes | None) -> Extent:
        """Write content, or its frame if there is one, as one entry."""
        key = data_key(draft.fileid, self._kv.end if draft.owns else 0)
        room, value = self._kv.layout.value, content if frame is None else frame
        pad = room.limit - len(value) if room.prefix == 0 else 0  # a fixed length: data_size cuts
        pos = self._kv.append(key, value + bytes(pad) if pad else value)
        draft.added.add(pos)
        return Extent(pos, 0 if frame is None else FRAME, len(content))

    def _lay(self, draft: Draft, offset: int, size: int, entries: list[Extent]) -> None:
        """Replace `size` bytes by extents, or append these. There must be no tail."""
        before, after = cut(draft.extents, 0, offset), cut(draft.extents, offset + size, draft.body)
        if after and after[0].skip and not self._settings.pairoff:  # it can begin at 0 only
            after = joined(self._entries(draft, self._read(after[:1])), after[1:])
        extents = joined(before, entries, after)
        draft.base, draft.body = extents, max(draft.body, offset + size)

    def _put_zeros(self, draft: Draft, offset: int, size: int) -> None:
        """Replace `size` bytes by zeros, or append zeros: as a hole if the format has holes."""
        if self._settings.holes:
            self.spill(draft)
            self._lay(draft, offset, size, [Extent(0, 0, size)])
            return
        for at in range(offset, offset + size, self.chunk):
            self.write(draft, at, bytes(min(self.chunk, offset + size - at)))


def entries(
    pos: int, least: int, pairoff: bool, contid: int, fileid: int, mtime: int, ftype: int,
    key: bytes, data: Buffer, word: bytes, length: int, framed: bool, /,
) -> tuple[bytes, int, int]:  # fmt: skip
    """Encode the entries of a file -> the entries, position of the inode, its size in bytes.

    The reference of `entries` of the compiled module.
    """
    found, pairs = b"", list[int]()
    if data:
        found = _entry(data_key(fileid, 0), data, contid + pos)
        pairs += pos, framed * FRAME, length
    if word:
        at = pos + len(found)
        found += _entry(attr_key(fileid), word, contid + at)
        pairs = [at, 0, -len(word), *pairs]
    count, at = len(pairs) // 3, pos + len(found)
    if not pairoff:
        del pairs[1::3]
    fields = FIELDS[len(pairs)].pack(0, fileid, length, ftype, mtime, count, *pairs)
    value = (xxhash.xxh3_64_digest(fields) + fields).ljust(least, b"\0")
    return found + _entry(key, value, contid + at), at, len(value)


def _entry(key: bytes, value: Buffer, seed: int) -> bytes:
    body = b"".join((len(key).to_bytes(2, "big"), key, len(value).to_bytes(4, "big"), value))
    return b"\0%b%b" % (body, xxhash.xxh3_64_digest(body, seed & MASK64)[4:])
