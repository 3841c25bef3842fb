"""kvseq (FORMAT 0x10): a sequence of keys and values of any size.

    0         superblock     SBSIZE bytes
    SBSIZE    entries        see `entry`, up to FILESIZE

Variables: KVDELFL, KEYREPR, VALREPR, ALIGN, KVCKSUM, CONTID shape the entries; ENTRIES (all) and
AENTRIES (not deleted) are kept where they stand in the superblock.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from winkformats.entry import KVEntry, Layout
from winkformats.errors import CorruptError, FormatError
from winkformats.kvscan import scan
from winkformats.pipeline import WriteBehind
from winkformats.storage import Buffer, Storage
from winkformats.superblock import KVSEQ, Superblock, read_superblock

LARGE: Final = 32 << 10  # bytes of a value that is not copied
FLUSH: Final = 1 << 20  # bytes gathered before a write; 1 and 4 MiB measured the same, 16 slower
FILEINCR: Final = 4 << 20
MAX_INCR: Final = 1 << 30  # bytes reserved at a time, whatever FILEINCR says
AHEAD: Final = 64 << 20  # bytes reserved beyond that at most, where a file is large
PROBE: Final = 4096  # bytes read first for an entry of unknown length
SECTOR: Final = 512


class KVSeq:
    """An append-only sequence of (key, value) entries in one file.

    One writer, many readers. A position, once returned by `append`, names the same entry until the
    file is compacted. Appended entries are readable at once through the same object, by others
    after `sync`.
    """

    def __init__(self, storage: Storage, superblock: Superblock, *, writable: bool) -> None:
        if superblock["FORMAT"] != KVSEQ:
            raise FormatError(f"{storage.name}: FORMAT is {superblock['FORMAT']:#x}, not a kvseq")
        superblock.check_known(storage.name)
        self.storage, self.superblock, self.writable = storage, superblock, writable
        self.layout = Layout.of(superblock, storage.name)
        size = storage.size()
        self.end = superblock.get("FILESIZE", size)  # logical end, with what is not yet written
        if self.end < superblock["SBSIZE"]:
            raise CorruptError("FILESIZE", file=storage.name, offset=64, found=self.end)
        self.truncated = self.end > size
        if self.truncated and writable:
            raise CorruptError(
                "the file is cut short, repair it before writing",
                file=storage.name, offset=size, expected=f"{self.end} bytes", found=size,
            )  # fmt: skip
        if self.truncated:
            self.end = size
        self.entries = superblock.get("ENTRIES", 0)
        self.aentries = superblock.get("AENTRIES", 0)
        self._parts: list[Buffer] = []
        self._written = self.end  # everything below has been given to write()
        self._reserved = size
        self._behind: WriteBehind | None = None
        self._map: mmap.mmap | memoryview = memoryview(b"")
        self._failed = False
        self._patched = False  # entries were changed in place since the last sync
        self._visible = 0  # the view holds everything below
        self._sparse = False

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
        sbsize: int = 4096,
        extra: Mapping[str, int] | None = None,
    ) -> Self:
        """Make an empty file in `storage`; its superblock is written and synced.

        raises  FormatError for a KEYREPR or VALREPR not defined; OSError from the disk
        """
        variables = {"FILEINCR": FILEINCR, "SYNCSIZE": sbsize, "SYNCTIME": int(time.time())}
        variables |= {"KVDELFL": kvdelfl, "KEYREPR": keyrepr, "VALREPR": valrepr}
        variables |= {"ALIGN": align} if align else {}
        variables |= {"ENTRIES": 0, "AENTRIES": 0}
        if kvcksum:
            variables |= {"KVCKSUM": 1, "INCOMPAT": 1, "SBCKSUM": 0}
            variables["CONTID"] = secrets.randbits(63) if contid is None else contid
        variables |= {} if htalgo is None else {"HTALGO": htalgo}
        block = Superblock.new(KVSEQ, purpose, {**variables, **(extra or {})}, sbsize)
        Layout.of(block, storage.name)  # refuses before anything is written
        storage.write(0, [block.encode()])
        storage.sync()
        return cls(storage, block, writable=True)

    @classmethod
    def open(cls, storage: Storage, writable: bool = False) -> Self:
        """raises  FormatError for wrong bytes; CorruptError for a cut file opened for writing"""
        return cls(storage, read_superblock(storage), writable=writable)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

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

    def _hand_over(self, parts: Sequence[Buffer], entries: int) -> None:
        """Have the thread write what lies behind `_written`, which must not change any more.

        entries  how many of them `end` and the counters do not know yet, all live
        """
        if self._behind is None:
            self._behind = WriteBehind(self.storage)
        end = self._written + sum(map(len, parts))
        all_of, alive = self.entries + entries, self.aentries + entries
        self._behind.put(self._written, parts)
        self._parts, self.end, self._written, self.entries, self.aentries = (
            [], end, end, all_of, alive
        )  # fmt: skip

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
        self._map, self._visible = memoryview(b""), 0  # it may end inside the new entry
        if is_last:  # as if it were appended: `settle` then finds it, wherever a signal comes
            self._parts, self._written, self.end = [data], pos, pos + len(data)
            self.flush()
        else:
            self.storage.write(pos, [data])

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
        for pos in positions:
            self.storage.patch(pos, b"\1")

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

    def view(self, pos: int) -> mmap.mmap | memoryview:
        """A read-only view of the file that holds at least the whole entry at `pos`."""
        if pos >= self._visible:
            self.flush()
            self.drain()
            if len(self._map) < self._written:
                self._map = self.storage.view(self.storage.size(), sparse=self._sparse)
            self._visible = self._written
        return self._map

    @property
    def visible(self) -> int:
        """Bytes that the last view holds in any case: entries below need no new one."""
        return self._visible

    def read_sparse(self, sparse: bool = True) -> None:
        """From now on views read only the pages that are touched, or those around them as well."""
        self._sparse = sparse
        self.drop_view()

    def drop_view(self) -> None:
        """Let go of the mapping, which holds the file open. What was handed out stays good."""
        self._map, self._visible = memoryview(b""), 0

    def advance(self, superblock: Superblock) -> None:
        """A reader takes up a later superblock of the same file."""
        self.superblock = superblock
        self.end = self._written = superblock["FILESIZE"]

    # --- durability ---

    def flush(self) -> None:
        """Give buffered entries to write(). Not durable."""
        if not self._parts:
            return
        self.drain()
        try:
            length = self.storage.write(self._written, self._parts)
        except OSError:
            self._failed = True
            raise
        self._parts, self._written = [], self._written + length  # no signal comes in between

    @property
    def broken(self) -> bool:
        """Whether a write failed: then `settle` must come before anything else."""
        return self._failed or (self._behind is not None and self._behind.failed is not None)

    def drain(self) -> None:
        """Wait for the writing thread; raises what it met."""
        if self._behind:
            self._behind.drain()

    @property
    def spare(self) -> int:
        """Bytes behind the end that the disk holds ready for this file."""
        return max(self._reserved - self.end, 0)

    def reserve(self, extra: int) -> None:
        """Make room on the disk for `extra` more bytes, in steps of FILEINCR or several of them.

        raises  OSError ENOSPC, with nothing changed: so a full disk is met before an entry is begun
        """
        stop = self.end + extra
        if stop <= self._reserved:
            return
        step = min(max(self.superblock.get("FILEINCR", 0), 1), MAX_INCR)
        # fallocate waits for the write that is going on: fewer of them, 13 % with 16 KiB files.
        ahead = min(self.end // 4, AHEAD) if step > 1 else 0
        goal = -(-(stop + ahead) // step) * step
        try:
            self.storage.preallocate(goal)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or goal == stop:
                raise
            goal = stop  # the last bit of the disk
            self.storage.preallocate(goal)
        self._reserved = goal

    def sync(self, variables: Mapping[str, int] | None = None, *, now: int | None = None) -> None:
        """Make everything appended durable, then the superblock that says so.

        variables  further ones to store in the same write
        now        SYNCTIME, seconds since the epoch
        """
        self._check_writable()
        self.flush()
        self.drain()
        try:
            self.storage.sync()  # a superblock must never name bytes that are not there
        except OSError:
            self._failed = True
            raise
        block = self.superblock
        block["FILESIZE"] = self.end
        known = {"SYNCSIZE": self.end, "SYNCTIME": int(time.time()) if now is None else now}
        known |= {"ENTRIES": self.entries, "AENTRIES": self.aentries}
        block.update({name: value for name, value in known.items() if name in block})
        block.update(variables or {})
        self.write_superblock()
        self.storage.sync()
        self._patched = False

    def write_superblock(self) -> None:
        """Write the sectors that the variables fill: one, for up to 31 of them."""
        used = -(-(8 + 16 * len(self.superblock) + 8) // SECTOR) * SECTOR
        self.storage.write(0, [self.superblock.encode()[:used]])

    def settle(self) -> None:
        """After a failed write, or a call that a signal interrupted: be whole again.

        What a failed write lost is dropped, else nothing is. The counters are the caller's affair.
        """
        if self._failed:
            self._parts, self._failed = [], False
        if self._behind:
            with contextlib.suppress(OSError):
                self._behind.drain()
            if self._behind.failed is not None:
                self._parts, self._written = [], self._behind.failed
            self._behind.forget()
        self.end = self._written + sum(map(len, self._parts))
        self._visible = min(self._visible, self._written)

    def close(self) -> None:
        """Sync what is not synced, give preallocated space back, and close the storage.

        After a failed write nothing is synced: the file stays as its last sync left it.
        """
        try:
            changed = self._patched or self.end != self.superblock.get("FILESIZE")
            if self.writable and changed and not self._failed:
                self.sync()
        finally:
            try:
                self.release()
            finally:
                self.storage.close()
                self.writable = False

    def release(self) -> None:
        """Stop the writing thread and give preallocated space back."""
        if self._behind:
            self._behind.close()
            self._behind = None
        if self.writable and self.storage.size() > self.superblock.get("FILESIZE", 1 << 63):
            self.storage.truncate(self.superblock["FILESIZE"])

    def _check_writable(self) -> None:
        if not self.writable:
            raise PermissionError(1, f"{self.storage.name} is open for reading only")
        if self._failed:
            what = "an earlier write failed, `settle` what it lost before going on"
            raise OSError(errno.EIO, what, self.storage.name)
