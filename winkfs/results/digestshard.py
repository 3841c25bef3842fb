"""A shard of a digest set: a kvseq of records with its hindex.

    BASE.kvseq     PURPOSE DIGDATA2; key: the path of a document, value: a record
    BASE.hindex    PURPOSE DIGIDX, HTALGO 2, CELLSZ 2: path -> position of its entry

A record:

    offset  size  type  field  meaning
    0       8     Q     xxh3   XXH3-64 of the content, seed 0
    8       16    16s   mmh3   MurmurHash3 x64 128 of the content, seed 0
    24      8     q     size   bytes of content
    32      8     q     mtime  nanoseconds since the epoch
    40      n           title  UTF-8, at most MAX_TITLE bytes, no NUL; n = 0: it has none
    40 + n  1           zero
    41 + n  m           lang   ASCII, at most MAX_LANG bytes, "de-AT"; m = 0: not known

In a file of an older version, PURPOSE DIGDATA, a record ends with the title.

Big-endian. Both files have one CONTID; DATAEND of the index is FILESIZE of the kvseq. An index that
is missing, damaged or of a different file is rebuilt in memory from all undamaged entries. A key
that is found is compared; before a path is reported as missing, the pages of the index that were
read are checked. If entries are damaged, a path that is not found raises an error instead.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from winkformats import hashing
from winkformats.arrays import (
    Bools,
    Int64,
    UInt64,
    column,
    number_bytes,
    row_bytes,
    rows_at,
    superseded,
    texts_at,
)
from winkformats.disk.memory import MemoryStorage
from winkformats.disk.paths import locate, open_file
from winkformats.disk.storage import Storage, check_view
from winkformats.errors import CorruptError, DerivedDamage, FormatError, raise_it
from winkformats.hindex import table
from winkformats.hindex.hindex import HIndex
from winkformats.kv import pagesums
from winkformats.kv.entry import KVEntry
from winkformats.kv.pagesums import PageSums
from winkformats.kv.scan import Batch, scan_intact
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import HINDEX, Superblock
from winkfs.container.ondisk.idx import Base
from winkfs.names import to_strs

RECORD_HEAD: Final = struct.Struct(">Q16s2q")
assert RECORD_HEAD.size == 40
PURPOSE_DATA: Final = "DIGDATA2"
PURPOSES: Final = (PURPOSE_DATA, "DIGDATA")
PURPOSE_INDEX: Final = "DIGIDX"
SUFFIXES: Final = (".kvseq", ".hindex")
MAX_TITLE: Final = 1024  # bytes
MAX_LANG: Final = 35  # bytes
R = TypeVar("R")


class Digest(NamedTuple):
    """The digest of a document.

    xxh3      XXH3-64 of the content
    mmh3      MurmurHash3 x64 128 of the content, 16 bytes
    size      bytes
    mtime_ns  nanoseconds since the epoch
    title     of HTML
    lang      the language that the document declares, as "de" or "pt-BR"
    """

    xxh3: int
    mmh3: bytes
    size: int
    mtime_ns: int
    title: str | None
    lang: str | None = None


class DigestColumns(NamedTuple):
    """Columns of n digests to be written.

    paths    n byte strings, at most 65,535 bytes each
    xxh3     uint64[n]
    mmh3     uint8[n, 16]
    size     int64[n]; mtime: int64[n], nanoseconds
    titles   n byte strings, at most MAX_TITLE bytes; empty: none
    langs    n byte strings, at most MAX_LANG bytes; empty: not known
    """

    paths: Sequence[bytes]
    xxh3: npt.NDArray[np.uint64]
    mmh3: npt.NDArray[np.uint8]
    size: Int64
    mtime: Int64
    titles: Sequence[bytes]
    langs: Sequence[bytes]


class DigestShardWriter:
    """Writer of one shard. Of two digests of one path the later one counts."""

    def __init__(self, base: Path) -> None:
        self._base = base
        directory, name = locate(f"{base}.kvseq")
        storage = directory.create_new(name, uncached=True)
        self._kv = KVSeq.create(storage, purpose=PURPOSE_DATA, contid=secrets.randbits(63))
        self._s: list[UInt64] = []
        self._positions: list[Int64] = []

    def add(self, columns: DigestColumns) -> None:
        """Append digests. Raises ValueError if a path, title or language is too long."""
        n = len(columns.paths)
        if not n:
            return
        kv = self._kv
        lengths = np.fromiter(map(len, columns.paths), np.int64, n)
        titles = np.fromiter(map(len, columns.titles), np.int64, n)
        langs = np.fromiter(map(len, columns.langs), np.int64, n)
        if int(lengths.max()) > kv.layout.key.limit or int(titles.max()) > MAX_TITLE:
            raise ValueError("a path has at most 65535 bytes, a title 1024")
        if int(langs.max()) > MAX_LANG:
            raise ValueError(f"a language has at most {MAX_LANG} bytes")
        values = RECORD_HEAD.size + titles + 1 + langs
        sizes = kv.layout.size(0, 0) + lengths + values
        positions = kv.end + np.cumsum(sizes) - sizes
        bodies = list(map(b"".join, zip(_prefixes(lengths, ">u2"), columns.paths,
                                        _prefixes(values, ">u4"), _heads(columns),
                                        columns.titles, repeat(b"\0", n), columns.langs,
                                        strict=True)))  # fmt: skip
        sums = _prefixes(kv.layout.sums(positions, bodies), ">u4")
        entries = chain.from_iterable(zip(repeat(b"\0"), bodies, sums, strict=False))
        kv.append_encoded([b"".join(entries)], n)
        self._s.append(hashing.hash_keys(hashing.XXH3, columns.paths)[0])
        self._positions.append(positions)

    def finish(self) -> dict[str, Any]:
        """Sync both files -> the record of the shard for `publish`."""
        kv = self._kv
        kv.sync()
        s = np.concatenate([np.empty(0, np.uint64), *self._s])
        positions = np.concatenate([np.empty(0, np.int64), *self._positions])
        keep = self._last_of_each(s, positions)
        contid = kv.superblock["CONTID"]
        directory, name = locate(f"{self._base}.hindex")
        with directory.create_new(name) as storage:
            storage.remember_resident()  # no page of a new file: all are dropped below
            write_index(storage, s[keep], positions[keep], contid, kv.end)
            storage.sync()
            storage.drop_seen()
        size = kv.end
        kv.close()
        return {"file": self._base.name, "contid": contid, "entries": int(keep.sum()), "size": size}

    def abandon(self) -> None:
        """Close the files without a sync."""
        self._kv.storage.close()

    def _last_of_each(self, s: UInt64, positions: Int64) -> Bools:
        """Return which entries are the last of their path, and mark the others deleted."""
        keep = np.ones(len(s), bool)
        older = superseded(s, lambda row: self._kv.get(int(positions[row])).key)
        keep[older] = False
        for pos in positions[older].tolist():
            self._kv.delete(pos)
        if len(older):
            self._kv.sync()
        return keep


def _prefixes(numbers: npt.NDArray[Any], dtype: str) -> list[bytes]:
    return row_bytes(number_bytes(numbers, dtype))


def _heads(columns: DigestColumns) -> list[bytes]:
    """Encode the fixed part of each record."""
    heads = np.empty((len(columns.paths), RECORD_HEAD.size), np.uint8)
    heads[:, 0:8] = number_bytes(columns.xxh3, ">u8")
    heads[:, 8:24] = columns.mmh3
    heads[:, 24:32] = number_bytes(columns.size, ">i8")
    heads[:, 32:40] = number_bytes(columns.mtime, ">i8")
    return row_bytes(heads)


def write_index(storage: Storage, s: UInt64, positions: Int64, contid: int, end: int) -> Superblock:
    """Write a whole hindex into an empty storage, not synced -> its superblock.

    end     FILESIZE of the kvseq
    """
    variables = {"HTSIZE": 0, "HTALGO": hashing.XXH3, "CELLSZ": 2, "HTFREE": 0, "HTDEL": 1}
    variables |= {"ENTRIES": len(s), "AENTRIES": len(s), "SBCKSUM": 0, "CONTID": contid}
    variables |= {"DATAEND": end, "FILESIZE": 0, pagesums.VARIABLE: 0}
    block = Superblock.new(HINDEX, PURPOSE_INDEX, variables).note_writer()
    cells = np.stack([positions, s.view(np.int64)], axis=1)
    table.write(storage, block, table.bits_of(s), lambda chosen: cells[chosen])
    return block


class DigestShard:
    """A shard open for reading, with both files mapped, so that they may be deleted meanwhile.

    start, end    range of the entries in the kvseq, byte offsets
    entries       number of digests, from the record of the set
    damage        damage of one of the two superblocks of the kvseq; None: both are intact
    index         its hindex, or one in memory
    index_damage  why the index is in memory; "": it is not
    lost          damaged ranges, which an index in memory does not cover

    raises  FormatError: damaged, or not the shard of the record; OSError
    """

    def __init__(
        self,
        base: Path,
        contid: int,
        size: int,
        entries: int,
        *,
        on_damage: Callable[[list[str]], None] = lambda lines: None,
    ) -> None:
        """Open a shard; contid, size and entries are from the record of the set.

        on_damage  called with a line for each range of `lost`, when they are found
        """
        self.lost: list[CorruptError] = []
        self._on_damage = on_damage
        self._index_storage: Storage | None = None
        self.storage = storage = open_file(f"{base}.kvseq")
        try:
            kv = KVSeq.open(storage)
            if kv.superblock.purpose not in PURPOSES or kv.superblock.get("CONTID") != contid:
                raise FormatError(f"{storage.name}: not a shard of this digest set: make it anew")
            if kv.end != size:
                raise CorruptError("file is cut short", file=storage.name, offset=storage.size(),
                                   expected=size, found=kv.end)  # fmt: skip
            self._data = memoryview(storage.view(kv.end))
            self.layout, self.start, self.end = kv.layout, kv.start, kv.end
            self._contid, self.entries = contid, entries
            self.damage = kv.superblock.damage
            self._has_replaced = kv.entries != entries  # entries replaced by later ones of the path
            self.index_damage = ""
            self.index = self._open_index(f"{base}.hindex") or self._make_index()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.storage.close()
        if self._index_storage is not None:
            self._index_storage.close()

    def _open_index(self, path: str) -> Base | None:
        """Open the index on the disk; None if it cannot be used. Its cells are read when needed."""
        try:
            self._index_storage = storage = open_file(path)
            block = HIndex.open(storage).superblock
            ours = (block.purpose, block.get("CONTID"), block.get("DATAEND"), block["HTALGO"])
            if ours != (PURPOSE_INDEX, self._contid, self.end, hashing.XXH3):
                self.index_damage = f"{path}: is not the index of this shard"
                return None
            base = _base(storage, block)
            base.sums, base.proven = PageSums.load(storage, block), False
            return base
        except (OSError, FormatError) as error:
            self.index_damage = str(error)
            return None

    def _make_index(self) -> Base:
        """Build an index in memory. Delflags are ignored, because no checksum covers them: of two
        digests of one path the later one counts."""
        memory = MemoryStorage(name=f"{self.storage.name} (index in memory)")
        lost: list[CorruptError] = []
        base = _base(memory, self._write_index(memory, lost.append))
        self.lost = lost
        if lost:
            self._on_damage([str(error) for error in lost])
        return base

    def save_index(self, storage: Storage) -> Superblock:
        """Write an index into an empty storage, not synced -> its superblock.

        raises  CorruptError if an entry is damaged, since its path would silently be missing
        """
        return self._write_index(storage, raise_it)

    def _write_index(self, storage: Storage, problem: Callable[[CorruptError], None]) -> Superblock:
        positions: dict[bytes, int] = {}
        for batch in self._batches(problem):
            keys = batch.keys(np.arange(len(batch.pos)))
            positions.update(zip(keys, batch.pos.tolist(), strict=True))
        s, _ = hashing.hash_keys(hashing.XXH3, positions)
        where = np.fromiter(positions.values(), np.int64, len(positions))
        return write_index(storage, s, where, self._contid, self.end)

    def get(self, key: bytes, s: int) -> Digest | None:
        """Return the digest of a key; None: there is none. s: XXH3-64 of the key."""
        return self._retried(self._get, key, s)

    def _retried(self, look_up: Callable[..., R], *args: Any) -> R:
        """Return `look_up(index, *args)`, again with a rebuilt index if that is damaged."""
        while True:
            index = self.index
            try:
                return look_up(index, *args)
            except DerivedDamage:
                self.index = self._make_index()
            except CorruptError:
                if self._is_sound(index):
                    raise

    def _get(self, index: Base, key: bytes, s: int) -> Digest | None:
        pos = index.find(key, s, s & hashing.MASK63, lambda at: self._entry(at).key, ())
        entry = self._entry(pos) if pos else None
        if entry is None or entry.deleted:
            index.vouch(s & hashing.MASK63)
            if self.lost and (entry is None or self._has_replaced):  # a later one may be lost
                raise self._not_found_error()
        return None if entry is None else self._digest(entry.value, pos)

    def _entry(self, pos: int) -> KVEntry:
        self._check_positions(pos, pos)
        return self.layout.decode(self._data, pos, pos, self.storage.name)

    def _is_sound(self, index: Base) -> bool:
        """Return whether the index is undamaged; otherwise it has been rebuilt."""
        try:
            index.check()
        except DerivedDamage:
            self.index = self._make_index()
        return self.index is index

    def get_many(self, keys: Sequence[bytes], s: UInt64) -> list[Digest | None]:
        """Return the digests of many keys. s: uint64[n], XXH3-64 of the keys."""
        return self._retried(self._get_many, keys, s)

    def _get_many(self, index: Base, keys: Sequence[bytes], s: UInt64) -> list[Digest | None]:
        positions, slots = index.find_many(s, table.bits_of(s))
        found: list[Digest | None] = [None] * len(keys)
        hits = np.flatnonzero(slots >= 0)
        if self.lost and len(hits) < len(keys):
            raise self._not_found_error()
        if not len(hits):
            return found
        batch, every = self._batch(positions[hits]), np.arange(len(hits))
        for row, key, digest, flag in zip(
            hits.tolist(), batch.keys(every), _digests(batch, every), batch.flags.tolist(),
            strict=True,
        ):  # fmt: skip
            # If a different key with this hash or an older digest was found, search on.
            good = key == keys[row] and not flag
            found[row] = digest if good else self.get(keys[row], int(s[row]))
        return found

    def items(self) -> Iterator[tuple[str, Digest]]:
        """Yield paths and digests as written. Raises CorruptError at the end if one is missing."""
        lost: list[CorruptError] = []
        count = 0
        for batch in self._batches(lost.append):
            every = np.arange(len(batch.pos))
            live = np.flatnonzero(batch.flags == 0) if self._has_replaced else every
            count += len(live)
            yield from zip(to_strs(batch.keys(live)), _digests(batch, live), strict=True)
        if lost:
            raise lost[0]
        if count != self.entries:
            raise CorruptError("digests are missing", file=self.storage.name, offset=self.end,
                               expected=self.entries, found=count)  # fmt: skip

    def _batches(self, problem: Callable[[CorruptError], None]) -> Iterator[Batch]:
        """Yield all undamaged entries. problem: called with each damaged range."""
        return scan_intact(self.storage, self.layout, self.start, self.end, problem=problem)

    def _not_found_error(self) -> CorruptError:
        """Return the error for a path that is not found, but may be that of a damaged entry."""
        return CorruptError("no undamaged digest of this path, but a damaged one of unknown path,",
                            file=self.storage.name, offset=self.lost[0].offset)  # fmt: skip

    def _batch(self, positions: Int64) -> Batch:
        """Return the entries at these positions, checked."""
        self._check_positions(int(positions.min()), int(positions.max()))
        try:
            batch = Batch(self.storage, self.layout, 0, self._data, positions)
            whole = bool((batch.end <= self.end).all())
        except IndexError:  # an entry ends beyond the end of the file
            whole = False
        if not whole:
            raise CorruptError("entry reaches past the end", file=self.storage.name,
                               offset=int(positions.max()))  # fmt: skip
        batch.check()
        return batch

    def _check_positions(self, low: int, high: int) -> None:
        check_view(self._data, self.end, self.storage.name)
        if low < self.start or high + self.layout.minimum > self.end:
            wrong = low if low < self.start else high
            raise CorruptError("no entry", file=self.storage.name, offset=wrong)

    def _digest(self, value: bytes, pos: int) -> Digest:
        if len(value) < RECORD_HEAD.size:
            raise CorruptError("record is cut short", file=self.storage.name, offset=pos,
                               expected=RECORD_HEAD.size, found=len(value))  # fmt: skip
        xxh3, mmh3, size, mtime = RECORD_HEAD.unpack_from(value)
        title, _, lang = value[RECORD_HEAD.size :].decode("utf-8", "replace").partition("\0")
        return Digest(xxh3, mmh3, size, mtime, title or None, lang or None)


def _base(storage: Storage, block: Superblock) -> Base:
    shape = table.Shape.of(block)
    return Base(storage, shape, block["SBSIZE"], block["DATAEND"], 0, block["AENTRIES"])


def _digests(batch: Batch, chosen: Int64) -> Iterator[Digest]:
    """Decode the digests of checked entries."""
    at, lengths = batch.value[chosen], batch.value_len[chosen] - RECORD_HEAD.size
    if len(chosen) and int(lengths.min()) < 0:
        where = int(batch.pos[chosen[int(lengths.argmin())]])
        raise CorruptError("record is cut short", file=batch.storage.name, offset=where)
    if not len(chosen):
        return iter(())
    rows = rows_at(batch.raw, at, RECORD_HEAD.size)
    xxh3: list[int] = column(rows, ">u8", 0).tolist()
    size: list[int] = column(rows, ">i8", 24).tolist()
    mtime: list[int] = column(rows, ">i8", 32).tolist()
    mmh3 = row_bytes(np.ascontiguousarray(rows[:, 8:24]))
    texts = texts_at(batch.raw, at + RECORD_HEAD.size, lengths)
    words = [text.decode("utf-8", "replace").partition("\0") for text in texts]
    titles = [title or None for title, _, _ in words]
    langs = [lang or None for _, _, lang in words]
    return map(Digest, xxh3, mmh3, size, mtime, titles, langs)
