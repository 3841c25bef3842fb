"""kvseq (FORMAT 0x10): a sequence of keys and values of any size.

    0         superblock     SBSIZE bytes
    SBSIZE    entries        see `entry`, up to FILESIZE

Variables: KVDELFL, KEYREPR, VALREPR, ALIGN, KVCKSUM, CONTID determine the layout of entries;
ENTRIES (all) and AENTRIES (not deleted) are updated if the superblock has them.

New entries are buffered, or written by a thread, into space that was reserved before. They are
visible to other processes, and durable, when the superblock is that includes them.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Self

from winkformats.arrays import Int64
from winkformats.closing import Closing
from winkformats.disk.storage import Buffer, Lookups, Storage
from winkformats.disk.writebehind import WriteBehind
from winkformats.errors import CorruptError, FormatError
from winkformats.kv.entry import PROBE, KVEntry, Layout
from winkformats.kv.pagesums import VARIABLE as PAGESUMS
from winkformats.kv.scan import scan
from winkformats.kv.superblock import (
    FILEINCR,
    HALF,
    KVSEQ,
    SBSIZE,
    Superblock,
    read_superblock,
    renew_second,
    repeat,
    write_first,
    write_second,
)

MAX_INCR: Final = 1 << 30  # bytes reserved at a time, a limit of FILEINCR
MAX_RESERVED_AHEAD: Final = 64 << 20  # bytes reserved beyond that for a large file
NOT_COPIED: Final = 32 << 10  # bytes of a value from which it is not copied to a buffer
USUAL_OVERHEAD: Final = 64  # bytes of an entry beside its value, with a usual key
FLUSH: Final = 1 << 20  # bytes buffered before a write
FAR_PROBE: Final = 512  # bytes read first of an entry of unknown length, where each byte costs


class KVSeq(Closing):
    """An append-only sequence of (key, value) entries in one file.

    One writer, many readers. A position, once returned by `append`, names the same entry until the
    file is compacted. Appended entries are readable at once through the same object, by others
    after `sync`.

    start               position of the first entry
    end                 logical end, bytes, unwritten entries included
    entries, aentries   the counters ENTRIES and AENTRIES
    visible             bytes known to be in the file: entries below need no `show`
    """

    def __init__(self, storage: Storage, superblock: Superblock, *, writable: bool) -> None:
        if superblock["FORMAT"] != KVSEQ:
            raise FormatError(f"{storage.name}: FORMAT is {superblock['FORMAT']:#x}, not a kvseq")
        superblock.check_known(storage.name)
        self.layout = Layout.of(superblock, storage.name)
        self.start = self.layout.aligned(superblock["SBSIZE"])
        self.storage, self.superblock, self.writable = storage, superblock, writable
        size = storage.size()
        self.end = superblock.get("FILESIZE", size)
        if self.end < superblock["SBSIZE"]:
            raise CorruptError("FILESIZE", file=storage.name, offset=64, found=self.end)
        self.truncated = self.end > size
        if self.truncated and writable:
            raise CorruptError(
                "the file is cut short, what is there can only be read: put a whole copy in its "
                "place",
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
        self._looks: dict[bool, Lookups] = {}
        self._failed = False
        self.lost: OSError | None = None  # error of a sync: later writes may not be on the disk
        self._patched = False  # entries were changed in place since the last sync
        self._marked: list[int] = []  # positions of delflags set since the last sync
        self._syncs = 0  # number of syncs begun
        self._unsure = False  # the superblock in the file may be that of the previous sync
        self.visible = self.end if storage.far else 0
        self._probe = FAR_PROBE if storage.far else PROBE

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
        """Create an empty sequence in `storage`; its superblock is written and synced.

        sbsize  None: 8192, for two superblocks, or 4096 without KVCKSUM
        raises  FormatError for an undefined KEYREPR or VALREPR; OSError from the disk
        """
        import secrets  # late: readers need none

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
        Layout.of(block, storage.name)  # raises before anything is written
        storage.write(0, block.images())
        storage.sync()
        return cls(storage, block, writable=True)

    @classmethod
    def open(cls, storage: Storage, writable: bool = False) -> Self:
        """Open a sequence.

        raises  FormatError for wrong bytes; CorruptError for a truncated file opened for writing
        """
        return cls(storage, read_superblock(storage), writable=writable)

    # --- the file ---

    def reserve(self, extra: int) -> None:
        """Reserve disk space for `extra` more bytes, in multiples of FILEINCR.

        raises  OSError ENOSPC, with nothing changed, so that no entry is begun on a full disk
        """
        stop = self.end + extra
        if stop <= self._reserved:
            return
        step = min(max(self.superblock.get("FILEINCR", 0), 1), MAX_INCR)
        # fallocate waits for a write in progress, so it is called rarely.
        ahead = min(self.end // 4, MAX_RESERVED_AHEAD) if step > 1 else 0
        goal = -(-(stop + ahead) // step) * step
        try:
            self.storage.preallocate(goal)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or goal == stop:
                raise
            goal = stop  # the disk has no space for a whole step
            self.storage.preallocate(goal)
        self._reserved = goal

    @property
    def spare(self) -> int:
        """Reserved bytes after the end of the file."""
        return max(self._reserved - self.end, 0)

    def _hand_over(self, parts: Sequence[Buffer], entries: int) -> None:
        """Let the thread write the parts after `_written`, which must not change any more.

        entries  number of live entries in them that `end` and the counters do not include yet
        """
        if self._behind is None:
            self._behind = WriteBehind(self.storage)
        end = self._written + sum(map(len, parts))
        all_of, alive = self.entries + entries, self.aentries + entries
        self._behind.put(self._written, parts)
        self._parts, self.end, self._written, self.entries, self.aentries = (
            [], end, end, all_of, alive
        )  # fmt: skip

    def flush(self) -> None:
        """Write all buffered entries to the file, not synced."""
        self.drain()
        if not self._parts:
            return
        try:
            length = self.storage.write(self._written, self._parts)
        except OSError:
            self._failed = True
            raise
        self._parts, self._written = [], self._written + length  # no signal comes in between

    def drain(self) -> None:
        """Wait for the writing thread, and raise its error."""
        if self._behind:
            self._behind.drain()

    def _check_writable(self) -> None:
        if not self.writable:
            raise PermissionError(1, f"{self.storage.name} is open for reading only")
        self.check_lost()
        if self._failed:
            what = "an earlier write failed, `settle` what it lost before going on"
            raise OSError(errno.EIO, what, self.storage.name)

    def check_lost(self) -> None:
        """Raise OSError if a sync has failed.

        The kernel drops pages that it could not write, and reports that only once: the next sync
        would succeed without them.
        """
        if self.lost is not None:
            what = f"a sync failed ({self.lost.strerror}): what was not synced before is lost"
            raise OSError(self.lost.errno, f"{what}; open it again to go on", self.storage.name)

    # --- views ---

    def show(self, pos: int) -> None:
        """Ensure that the entry at `pos` is in the file, for reads of the storage."""
        if pos >= self.visible:
            self.flush()
            self.visible = self._written

    def view(self, pos: int, *, few: bool = False) -> mmap.mmap | memoryview:
        """Return a read-only view of the file that contains at least the entry at `pos`.

        Call it again before each batch of reads: it raises CorruptError if the file was truncated,
        since access to the view would kill the process.

        few  for random access: see `Lookups`
        """
        return self.looks(pos, few=few).view

    def looks(self, pos: int, *, few: bool = True) -> Lookups:
        """Return the `Lookups` of a view that contains the entry at `pos`. See `view`."""
        if pos >= self.visible:
            self.show(pos)
        looks = self._looks.get(few)
        if looks is None or len(looks.view) < self.visible:
            looks = self._looks[few] = Lookups(self.storage, self.storage.size(), few=few)
        looks.check(min(len(looks.view), self.visible))
        return looks

    def fetch(self, starts: Int64, stops: Int64) -> None:
        """Read ranges of the last view for random access in parallel: see `Lookups.fetch`."""
        self._looks[True].fetch(starts, stops)

    def drop_view(self) -> None:
        """Drop the mapping, which keeps the file open. Existing views stay valid."""
        self._looks, self.visible = {}, 0

    def advance(self, superblock: Superblock) -> None:
        """Advance a reader to a later superblock of its file."""
        self.superblock = superblock
        self.end = self._written = superblock["FILESIZE"]

    # --- durability ---

    def sync(self, variables: Mapping[str, int] | None = None, *, now: int | None = None) -> None:
        """Make all appended entries durable, then the superblock that includes them.

        variables  further ones to store in the same write
        now        SYNCTIME, seconds since the epoch
        raises     OSError; after a failed sync of the disk each later call raises, too
        """
        for _ in self.syncing(variables, now=now):
            self.sync_storage()

    def syncing(
        self, variables: Mapping[str, int] | None = None, *, now: int | None = None
    ) -> Iterator[None]:
        """Sync in steps, for callers that serve others meanwhile: at each the caller must call
        `sync_storage`. Entries may be added between steps, and other syncs be done; the entries
        that existed at the beginning are durable at the end."""
        self._check_writable()
        self.flush()
        known = {"SYNCSIZE": self.end, "SYNCTIME": int(time.time()) if now is None else now}
        known |= {"ENTRIES": self.entries, "AENTRIES": self.aentries}
        known |= {PAGESUMS: 0}  # the file has changed
        known = {name: value for name, value in known.items() if name in self.superblock}
        known |= {"FILESIZE": self.end, **(variables or {})}
        if self.superblock.late:
            with contextlib.suppress(OSError):  # the first one suffices, as after each sync
                renew_second(self.storage, self.superblock)
        self._syncs, self._patched = self._syncs + 1, False
        mine = self._syncs
        try:
            yield  # a superblock must never name bytes that are not there
            if self._syncs == mine:
                self._publish(known)
                yield
            self._check_writable()  # a later sync that overtook this one may have failed
            if self._syncs == mine:
                # Durable with the next sync; until then the first one suffices.
                with contextlib.suppress(OSError):
                    write_second(self.storage, self.superblock)
        except BaseException:
            self._patched = True
            raise

    def _publish(self, variables: Mapping[str, int]) -> None:
        self._check_writable()
        self._unsure = True
        self.superblock.update(variables)
        try:
            write_first(self.storage, self.superblock)
        except OSError:
            self._failed = True
            raise
        self._unsure = False

    def confirm(self) -> None:
        """Write the superblock that was read again, and sync it.

        After a failed sync it may exist only in the page cache, as a clean page. Its entries are on
        the disk, since they were synced before it was written. Its counters are kept, because the
        current ones may not be known yet. Raises OSError.
        """
        names = ("SYNCSIZE", "SYNCTIME", "ENTRIES", "AENTRIES")
        self.sync({name: self.superblock[name] for name in names if name in self.superblock})

    def sync_storage(self) -> None:
        """Sync the storage. A failure is final, see `check_lost`."""
        self.check_lost()
        marked, self._marked = self._marked, []
        try:
            self.storage.sync()
        except OSError as error:
            self.lost = error
            # Else the next writer would see both in the page cache, and not write them again.
            with contextlib.suppress(OSError):
                self.storage.patch_each(marked, b"\1")
                repeat(self.storage, self.superblock)
            raise

    @property
    def broken(self) -> bool:
        """True if a write failed, so that `settle` must be called before anything else."""
        return (
            self._failed
            or self.lost is not None
            or (self._behind is not None and self._behind.failed is not None)
        )

    def settle(self) -> None:
        """Restore a consistent state after a failed write, or a call that a signal interrupted.

        Entries that a failed write lost are dropped, no others. The caller corrects the counters.
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
        self.visible = min(self.visible, self._written)

    def close(self) -> None:
        """Sync, give back reserved space, and close the storage.

        After a failed write nothing is synced: the file keeps the state of its last sync.
        raises  OSError, also if an earlier sync failed
        """
        try:
            changed = self._patched or self.end != self.superblock.get("FILESIZE")
            if self.writable and changed and not self._failed:
                self.sync()
            self.check_lost()
        finally:
            try:
                self.release()
            finally:
                self.storage.close()
                self.writable = False

    def stop(self) -> None:
        """Stop the writing thread after it has written all."""
        if self._behind:
            self._behind.close()
            self._behind = None

    def release(self) -> None:
        """Stop the writing thread, and truncate the file to its last sync.

        Entries at the end of the file would otherwise be valid although no sync covers them.
        """
        self.stop()
        if not self.writable:
            return
        block = read_superblock(self.storage) if self._unsure else self.superblock
        if self.storage.size() > block.get("FILESIZE", 1 << 63):
            self.storage.truncate(block["FILESIZE"])

    # --- appending ---

    def append(self, key: bytes, value: bytes, *, deleted: bool = False) -> int:
        """Add an entry after the last one.

        key     0..65_535 bytes under KEYREPR 1; see the table in `entry`
        value   0..4_294_967_295 bytes under VALREPR 2
        deleted add it as a deleted entry (a tombstone)
        ->      kv_pointer: byte offset of the entry
        raises  ValueError for what the file cannot represent; OSError from the disk
        cost    buffered; one write per FLUSH bytes; durable only after `sync`
        source  wink container formats, "kvseq format"
        """
        self._check_writable()
        pos = self.layout.aligned(self.end)
        parts = self.layout.parts(pos, key, value, deleted=deleted)
        if len(value) < NOT_COPIED:
            parts = [b"".join(parts)]
        if pos > self.end:
            parts.insert(0, bytes(pos - self.end))
        self.append_parts(parts, 1, 0 if deleted else 1)
        return pos

    def append_parts(self, parts: Sequence[bytes], entries: int, live: int) -> None:
        """Add entries that the caller has encoded for position `end`, with padding.

        entries  their number
        live     how many of them are not deleted
        raises   OSError from the disk
        cost     as `append`
        """
        if not self.writable or self._failed or self.lost is not None:
            self._check_writable()
        end = self.end + sum(map(len, parts))
        if end > self._reserved:
            self.reserve(end - self.end)
        count, all_of, alive = len(self._parts), self.entries + entries, self.aentries + live
        # One statement without a call, so that no signal handler runs in between.
        self._parts[count:], self.end, self.entries, self.aentries = parts, end, all_of, alive
        if end - self._written >= FLUSH:
            self._hand_over(self._parts, 0)

    def append_encoded(self, parts: Sequence[Buffer], entries: int) -> None:
        """Add entries that the caller has encoded for position `end`, which needs no padding.

        parts    their bytes, in order; not empty. They must not change afterwards
        entries  their number; all are live
        cost     no copy; a thread writes them
        """
        self._check_writable()
        if self._parts:
            self.flush()
        self.reserve(sum(map(len, parts)))
        self._hand_over(parts, entries)

    def replace(self, pos: int, key: bytes, value: bytes) -> None:
        """Overwrite the entry at `pos`.

        raises  ValueError unless the new entry has its size, or it is the last entry
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
        self._patched = True
        self.drop_view()  # it may end inside the new entry
        if is_last:  # as if it were appended, so that `settle` finds it after a signal
            self._parts, self._written, self.end = [data], pos, pos + len(data)
            self.flush()
        else:
            self._write_over(old, data)

    def _write_over(self, old: KVEntry, data: bytes) -> None:
        """Write `data` over an entry. If that fails, the old entry is restored; if this fails, too,
        all since the last sync counts as lost."""
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
        """Mark the entry at `pos` as deleted. Idempotent."""
        if not self.get(pos).deleted:
            self.mark_deleted([pos])
            self.aentries -= 1

    def mark_deleted(self, positions: Sequence[int]) -> None:
        """Set delflags on disk; the caller corrects the counters. Cost: one write each."""
        self._check_writable()
        if not self.layout.delflag:
            raise PermissionError(1, "the file has no delflags (KVDELFL is not 1)")
        self.flush()
        self._patched = self._patched or len(positions) > 0
        self._marked += positions
        self.storage.patch_each(positions, b"\1")

    def cut(self, start: int) -> None:
        """Drop unsynced bytes after the last valid entry, searched from position `start` on.

        The caller corrects the counters.
        """
        self.flush()
        self.end = self._written = self.whole_until(start, self.end)
        self.drop_view()

    def extend(self, end: int) -> None:
        """Accept entries after the end, up to `end`."""
        self.end = self._written = end

    def whole_until(self, start: int, stop: int) -> int:
        """Return where the first run of valid entries from `start` on ends, at most `stop`."""
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
        """Return where the zeros that end at `stop` begin, since 11 zeros look like an entry."""
        while start < stop:
            low = max(start, stop - FLUSH)
            data = self.storage.read(low, stop - low).rstrip(b"\0")
            if data:
                return low + len(data)
            stop = low
        return stop

    # --- reading ---

    def get(self, pos: int, least: int = 0) -> KVEntry:
        """Return the entry at `pos`, deleted or not. Raises CorruptError if it is not valid.

        least  known lower bound of the bytes of its value, for the first read; 0: not known
        """
        if not self.superblock["SBSIZE"] <= pos < self.end or pos % max(self.layout.align, 1):
            lost = self.truncated and self.end <= pos < self.superblock["FILESIZE"]
            what = "the entry is in the part of the file that is gone" if lost else "no entry"
            raise CorruptError(what, file=self.storage.name, offset=pos)
        if pos >= self._written:
            self.flush()
        self.drain()
        first = least + USUAL_OVERHEAD if least else self._probe
        return self.layout.read(self.storage.read, pos, self.end, self.storage.name, first)

    def iterate(self, start: int | None = None) -> Iterator[KVEntry]:
        """Yield all entries in file order, also deleted ones, from position `start` to the current
        end."""
        self.flush()
        for batch in scan(
            self.storage, self.layout, self.start if start is None else start, self.end
        ):
            batch.check()
            for i in range(len(batch.pos)):
                yield batch.entry(i)

    __iter__ = iterate

    def __len__(self) -> int:
        return self.entries
