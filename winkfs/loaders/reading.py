"""Reading rows of a shard by their places: names, contents and attributes, many at a time.

Compiled code reads the files of the usual layout from a mapping of the data file or, of a container
that is far, from ranges that are requested together. All others, and those that are damaged, are
read by `Content`, which is the reference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import CorruptError
from winkfs.container.catalogindex import INODE_OVERHEAD
from winkfs.container.ondisk.inode import Attrs
from winkfs.container.ondisk.typed import Schema, to_values
from winkfs.container.read import Content, code_for, form_of
from winkfs.container.store import Store
from winkfs.dataset.shard import Shard
from winkfs.loaders.places import Words, positions, spans
from winkfs.names import INODE, name_of, to_path

USUAL_NAME: Final = 200  # bytes of a name that are requested with an inode
FAR_BYTES: Final = 32 << 20  # that are requested of a container that is far at a time


@dataclass(slots=True)
class Found:
    """n rows of a shard.

    names     path of each, see `Reader.to_batches`; None: the row could not be read
    contents  None: not read
    words     the stored bytes of their attributes, None: none, or not read
    errors    of the rows that could not be read, by index
    """

    names: list[Any]
    contents: list[bytes | None]
    words: list[bytes | None]
    sizes: Int64
    mtimes: Int64
    errors: dict[int, Exception] = field(default_factory=dict)

    @classmethod
    def of(cls, n: int) -> Found:
        numbers = np.zeros((2, n), np.int64)
        return cls([None] * n, [None] * n, [None] * n, *numbers)

    def put(self, at: Int64, part: Found) -> None:
        """Set the rows with the indices `at` to those of a part."""
        where = at.tolist()
        for mine, given in (
            (self.names, part.names), (self.contents, part.contents), (self.words, part.words)
        ):  # fmt: skip
            for i, value in zip(where, given, strict=True):
                mine[i] = value
        self.sizes[at], self.mtimes[at] = part.sizes, part.mtimes
        for i, error in part.errors.items():
            self.errors[where[i]] = error


class ShardRows:
    """An open shard. Threads may share it.

    far   whether it is on object storage
    users how many calls read it now
    tail  bytes after the position of an inode that usually have all of it
    """

    def __init__(self, shard: Shard, columns: Schema) -> None:
        """Open it. Raises StalePlan; FormatError; OSError."""
        self.store: Store = shard.open(load=False)
        self.users = 0
        if shard.record.columns:
            self.store.show_types(columns)
        kv = self.store.kv
        self.far = kv.storage.far
        self._content = Content(self.store, keep=0)
        self._code = code_for(self.store) if kv.layout.standard else None
        self._form = form_of(self.store)
        self._unit = self.store.settings.mtime_unit
        self.tail = self.store.inode_size + INODE_OVERHEAD + len(INODE) + USUAL_NAME
        if not self.far and not self.store.mapped:
            self._code = None

    @property
    def end(self) -> int:
        """Bytes of the data file."""
        return self.store.kv.end

    def leave(self) -> None:
        """Close it if no call reads it."""
        if not self.users:
            self.close()

    def close(self) -> None:
        """Close it. Idempotent."""
        self.store.abandon()

    def brought(self, starts: Int64, stops: Int64) -> list[bytes]:
        """Return ranges of the data file, which are requested together. Raises OSError."""
        storage, ranges = (
            self.store.kv.storage,
            list(zip(starts.tolist(), stops.tolist(), strict=True)),
        )
        storage.fetch(ranges)
        return [storage.read(start, stop - start) for start, stop in ranges]

    def read_in(self, data: Any, at: Int64, words: Words, content: bool, attributes: bool) -> Found:
        """Return rows whose inodes are at these offsets of some bytes of the file. Raises
        OSError."""
        found, pos = Found.of(len(words)), positions(words)
        if self._code is not None:
            self._compiled(data, len(data), at, pos, found, content, attributes)
        self._rest(pos, found, content, attributes)
        return found

    def read(self, words: Words, content: bool, attributes: bool) -> Found:
        """Return rows by their places, in any order. Raises OSError."""
        if self.far:
            return self._far(words, content, attributes)
        found, pos = Found.of(len(words)), positions(words)
        if self._code is not None and len(words):
            kv = self.store.kv
            view = kv.view(kv.end - 1, few=True)
            end = min(kv.end, len(view))
            low = pos - spans(words) if content else pos
            inside = low < end
            kv.fetch(low[inside], np.minimum(pos + self.tail, end)[inside])
            self._compiled(view, end, pos, pos, found, content, attributes)
        self._rest(pos, found, content, attributes)
        return found

    def _compiled(
        self,
        data: Any,
        limit: int,
        at: Int64,
        pos: Int64,
        found: Found,
        content: bool,
        attributes: bool,
    ) -> None:
        assert self._code is not None
        self._code.files(
            data, limit, *self._form, at, pos, found.names, found.contents if content else None,
            found.words if attributes else None, found.sizes, found.mtimes,
        )  # fmt: skip

    def _far(self, words: Words, content: bool, attributes: bool) -> Found:
        """Read rows of an object, near ones with one request."""
        found, pos = Found.of(len(words)), positions(words)
        low = pos - (spans(words) if content else 0)
        order = np.argsort(low, kind="stable")
        total = np.cumsum(pos[order] + self.tail - low[order])
        start = 0
        while start < len(order):
            before = int(total[start - 1]) if start else 0
            stop = max(int(np.searchsorted(total, before + FAR_BYTES, "right")), start + 1)
            some = order[start:stop]
            part = Found.of(len(some))
            self._ranges(low[some], pos[some], part, content, attributes)
            self._rest(pos[some], part, content, attributes)
            found.put(some, part)
            start = stop
        return found

    def _ranges(
        self, low: Int64, pos: Int64, found: Found, content: bool, attributes: bool
    ) -> None:
        """Request the ranges of some rows, ascending, and read these."""
        high = np.maximum.accumulate(np.minimum(pos + self.tail, self.end))
        heads = np.flatnonzero(np.append(True, low[1:] > high[:-1]))
        starts, stops = low[heads], high[np.append(heads[1:], len(low)) - 1]
        parts = self.brought(starts, stops)
        if self._code is None:
            return
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        places = np.cumsum([0, *map(len, parts)])[:-1] - starts
        at = pos + places[np.searchsorted(starts, pos, "right") - 1]
        self._compiled(data, len(data), at, pos, found, content, attributes)

    def _rest(self, pos: Int64, found: Found, content: bool, attributes: bool) -> None:
        """Read what is left, one by one, and complete what compiled code has read."""
        asked = set(map(type, found.names)) != {str}  # else loops over rows cost more than reading
        for i, name in enumerate(found.names) if asked else ():
            if name is None:
                try:
                    self._one(int(pos[i]), i, found, content, attributes)
                except CorruptError as error:
                    found.errors[i] = error
            elif type(name) is bytes:
                found.names[i] = to_path(name)
        found.mtimes *= self._unit

    def _one(self, pos: int, i: int, found: Found, content: bool, attributes: bool) -> None:
        """Read any row. Raises CorruptError; OSError."""
        reader = self._content
        key, stored = reader.stored(pos)
        name = name_of(key) if key.endswith(INODE) else b""
        if not name:
            raise CorruptError("no inode with a name", file=self.store.kv.storage.name, offset=pos)
        inode = reader.whole(stored, pos)
        found.sizes[i], found.mtimes[i] = inode.lsize, inode.mtime
        if attributes:
            found.words[i] = reader.word(inode)
        if content:
            found.contents[i] = reader.read(inode.extents, 0, inode.lsize, holder=pos)
        found.names[i] = to_path(name)


def values_of(word: bytes | None, typed: Schema) -> dict[str, Any]:
    """Return the values of a row in columns of the user. Raises CorruptError."""
    if word is None:
        return dict.fromkeys(typed)
    return to_values(Attrs.decode(word, file="attributes", offset=0).xattrs, typed)
