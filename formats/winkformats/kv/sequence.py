"""kvseq (FORMAT 0x10): a sequence of keys and values of any size.

    0         superblock     SBSIZE bytes
    SBSIZE    entries        see `entry`, up to FILESIZE

Variables: KVDELFL, KEYREPR, VALREPR, ALIGN, KVCKSUM, CONTID shape the entries; ENTRIES (all) and
AENTRIES (not deleted) are kept where they stand in the superblock.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from winkformats.disk.storage import Buffer, Storage
from winkformats.errors import CorruptError, FormatError
from winkformats.kv.entry import KVEntry, Layout
from winkformats.kv.growing import GrowingFile
from winkformats.kv.scan import scan
from winkformats.kv.superblock import HALF, KVSEQ, SBSIZE, Superblock, read_superblock

LARGE: Final = 32 << 10  # bytes of a value that is not copied
FLUSH: Final = 1 << 20  # bytes gathered before a write; 1 and 4 MiB measured the same, 16 slower
FILEINCR: Final = 4 << 20
PROBE: Final = 4096  # bytes read first for an entry of unknown length


class KVSeq(GrowingFile):
    """An append-only sequence of (key, value) entries in one file.

    One writer, many readers. A position, once returned by `append`, names the same entry until the
    file is compacted. Appended entries are readable at once through the same object, by others
    after `sync`.
    """

    def __init__(self, storage: Storage, superblock: Superblock, *, writable: bool) -> None:
        if superblock["FORMAT"] != KVSEQ:
            raise FormatError(f"{storage.name}: FORMAT is {superblock['FORMAT']:#x}, not a kvseq")
        superblock.check_known(storage.name)
        self.layout = Layout.of(superblock, storage.name)
        super().__init__(storage, superblock, writable=writable)

    @classmethod
    def create(
        cls,
        storage: Storage,
        *,
        purpose: str = "",
        keyrepr: int = 1,
        valrepr: int = 2,
        kvdelfl: int = 1,
        align: int = 0,
        kvcksum: int = 1,
        contid: int | None = None,
        htalgo: int | None = None,
        sbsize: int | None = None,
        extra: Mapping[str, int] | None = None,
    ) -> Self:
        """Make an empty file in `storage`; its superblock is written and synced.

        sbsize  None: 8192, which makes two superblocks, or 4096 without KVCKSUM
        raises  FormatError for a KEYREPR or VALREPR not defined; OSError from the disk
        """
        sbsize = sbsize or (2 * HALF if kvcksum else SBSIZE)
        variables = {"FILEINCR": FILEINCR, "SYNCSIZE": sbsize, "SYNCTIME": int(time.time())}
        variables |= {"KVDELFL": kvdelfl, "KEYREPR": keyrepr, "VALREPR": valrepr}
        variables |= {"ALIGN": align} if align else {}
        variables |= {"ENTRIES": 0, "AENTRIES": 0}
        if kvcksum:
            variables |= {"KVCKSUM": 1, "INCOMPAT": 1, "SBCKSUM": 0}
            variables |= {"SBSEQ": 1} if sbsize == 2 * HALF else {}
            variables["CONTID"] = secrets.randbits(63) if contid is None else contid
        variables |= {} if htalgo is None else {"HTALGO": htalgo}
        block = Superblock.new(KVSEQ, purpose, {**variables, **(extra or {})}, sbsize)
        Layout.of(block, storage.name)  # refuses before anything is written
        storage.write(0, block.images())
        storage.sync()
        return cls(storage, block, writable=True)

    @classmethod
    def open(cls, storage: Storage, writable: bool = False) -> Self:
        """raises  FormatError for wrong bytes; CorruptError for a cut file opened for writing"""
        return cls(storage, read_superblock(storage), writable=writable)

    @property
    def start(self) -> int:
        """Position of the first entry."""
        return self.layout.aligned(self.superblock["SBSIZE"])

    # --- appending ---

    def append(self, key: bytes, value: bytes, *, deleted: bool = False) -> int:
        """Add an entry after the last one.

        key     0..65_535 bytes under KEYREPR 1; `entry` has the table
        value   0..4_294_967_295 bytes under VALREPR 2
        deleted add it as a deleted entry (a tombstone)
        ->      kv_pointer: byte offset of the entry
        raises  ValueError for what the file cannot represent; OSError from the disk
        cost    buffered; one write per FLUSH bytes; durable only after `sync`
        source  wink container formats, "kvseq format"
        """
        self._check_writable()
        pos = self.layout.aligned(self.end)
        if len(value) < LARGE:
            parts = [self.layout.encode(pos, key, value, deleted=deleted)]
        else:
            parts = self.layout.encode_large(pos, key, value, deleted=deleted)
        end = pos + sum(map(len, parts))
        self.reserve(end - self.end)
        if pos > self.end:
            parts.insert(0, bytes(pos - self.end))
        count, entries, alive = len(self._parts), self.entries + 1, self.aentries + (not deleted)
        # One statement without a call, so that no signal handler comes in between.
        self._parts[count:], self.end, self.entries, self.aentries = parts, end, entries, alive
        if end - self._written >= FLUSH:
            self._hand_over(self._parts, 0)
        return pos

    def append_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> npt.NDArray[np.int64]:
        """Add many entries -> their positions, int64[n]. Cost: one write for thousands of them."""
        if len(keys) != len(values):
            raise ValueError(f"{len(keys)} keys but {len(values)} values")
        positions = [self.append(key, value) for key, value in zip(keys, values, strict=True)]
        return np.array(positions, np.int64)

    def append_encoded(self, data: Buffer, entries: int) -> None:
        """Add entries whose bytes the caller has made for position `end`, which needs no padding.

        entries  how many, all live
        cost     no copy; written behind by a thread, so `data` must not change afterwards
        """
        self._check_writable()
        self.flush()
        self.reserve(len(data))
        self._hand_over([data], entries)

    def replace(self, pos: int, key: bytes, value: bytes) -> None:
        """Put another entry in the place of the one at `pos`.

        raises  ValueError unless it has the same size or is the last entry
        """
        self._check_writable()
        old = self.get(pos)
        data = self.layout.encode(pos, key, value, deleted=old.deleted)
        is_last = pos + old.size == self.end
        if len(data) != old.size and not is_last:
            raise ValueError(
                f"the new entry has {len(data)} bytes, the old one at {pos} has {old.size}: "
                "only the last entry may change its size"
            )
        self.flush()
        self.drain()
        self._patched = True
        self.drop_view()  # it may end inside the new entry
        if is_last:  # as if it were appended: `settle` then finds it, wherever a signal comes
            self._parts, self._written, self.end = [data], pos, pos + len(data)
            self.flush()
        else:
            self._write_over(old, data)

    def _write_over(self, old: KVEntry, data: bytes) -> None:
        """Write `data` over an entry; where that fails the entry is put back, or all since the last
        sync counts as lost."""
        try:
            self.storage.write(old.pos, [data])
        except BaseException as error:
            self._failed = True
            before = self.layout.encode(old.pos, old.key, old.value, deleted=old.deleted)
            try:
                self.storage.write(old.pos, [before])
            except OSError:
                self.lost = error if isinstance(error, OSError) else self.lost
            raise

    def delete(self, pos: int) -> None:
        """Mark the entry at `pos` as deleted. A second time changes nothing."""
        if not self.get(pos).deleted:
            self.mark_deleted([pos])
            self.aentries -= 1

    def mark_deleted(self, positions: Sequence[int]) -> None:
        """Set delflags on disk; the counters are the caller's affair. Cost: one write each."""
        self._check_writable()
        if not self.layout.delflag:
            raise PermissionError(1, "the file has no delflags (KVDELFL is not 1)")
        self.flush()
        self.drain()
        self._patched = self._patched or len(positions) > 0
        self._marked += positions
        self._mark(positions)

    def cut(self, start: int) -> None:
        """Drop what follows the last whole entry, of those from position `start` on.

        The counters are the caller's affair. For what was not synced yet.
        """
        self.flush()
        self.drain()
        self.end = self._written = self.whole_until(start, self.end)
        self.drop_view()

    def extend(self, end: int) -> None:
        """Take in entries that stand behind the end, up to `end`."""
        self.end = self._written = end

    def whole_until(self, start: int, stop: int) -> int:
        """Where the entries from `start` on, before `stop`, end to be good one after the other."""
        end = start
        if self.layout.checksum:
            stop = min(stop, self._reserve_from(start, stop) + 8)  # a checksum may end in zeros
        with contextlib.suppress(FormatError):
            for batch in scan(self.storage, self.layout, start, stop, uncached=False):
                bad = batch.bad()
                if len(bad):
                    good = int(bad[0])
                    return int(batch.first(good).end[-1] + batch.base) if good else end
                end = int(batch.base + batch.end[-1])
        return end

    def _reserve_from(self, start: int, stop: int) -> int:
        """Where the zeros begin that end at `stop`: else each 11 of them are walked as an entry."""
        while start < stop:
            low = max(start, stop - FLUSH)
            data = self.storage.read(low, stop - low).rstrip(b"\0")
            if data:
                return low + len(data)
            stop = low
        return stop

    # --- reading ---

    def get(self, pos: int) -> KVEntry:
        """The entry at `pos`, deleted or not. Raises CorruptError for none or a bad one."""
        if not self.superblock["SBSIZE"] <= pos < self.end or pos % max(self.layout.align, 1):
            raise CorruptError("no entry", file=self.storage.name, offset=pos)
        if pos >= self._written:
            self.flush()
        self.drain()
        head = self.storage.read(pos, min(PROBE, self.end - pos))
        while (need := self.layout.reach(head)) > len(head):
            head = self.storage.read(pos, need) if pos + need <= self.end else b""
            if len(head) < need:
                raise CorruptError("entry reaches past the end", file=self.storage.name, offset=pos)
        return self.layout.decode(head, 0, pos, self.storage.name)

    def get_many(self, positions: Sequence[int]) -> list[KVEntry]:
        """The entries at `positions`, in that order. Cost: read in file order."""
        order = sorted(range(len(positions)), key=positions.__getitem__)
        found = {i: self.get(positions[i]) for i in order}
        return [found[i] for i in range(len(positions))]

    def iterate(self, start: int | None = None) -> Iterator[KVEntry]:
        """All entries in file order, deleted ones too, from position `start` to today's end."""
        self.flush()
        self.drain()
        for batch in scan(
            self.storage, self.layout, self.start if start is None else start, self.end
        ):
            batch.check()
            for i in range(len(batch.pos)):
                yield batch.entry(i)

    __iter__ = iterate

    def __len__(self) -> int:
        return self.entries
