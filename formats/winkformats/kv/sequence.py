"""kvseq (FORMAT 0x10): a sequence of keys and values of any size.

    0         superblock     SBSIZE bytes
    SBSIZE    entries        see `entry`, up to FILESIZE

Variables: KVDELFL, KEYREPR, VALREPR, ALIGN, KVCKSUM, CONTID shape the entries; ENTRIES (all) and
AENTRIES (not deleted) are kept where they stand in the superblock.

What is added is gathered, or written behind by a thread, on room that was reserved before. It is
durable, and there for others, when the superblock that says so is.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import secrets
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
    repeat,
    write_first,
    write_second,
)

MAX_INCR: Final = 1 << 30  # bytes reserved at a time, whatever FILEINCR says
AHEAD: Final = 64 << 20  # bytes reserved beyond that at most, where a file is large
LARGE: Final = 32 << 10  # bytes of a value that is not copied
BESIDE: Final = 64  # bytes of an entry beside its value, mostly
FLUSH: Final = 1 << 20  # bytes gathered before a write; 4 MiB are no faster, 16 slower


class KVSeq(Closing):
    """An append-only sequence of (key, value) entries in one file.

    One writer, many readers. A position, once returned by `append`, names the same entry until the
    file is compacted. Appended entries are readable at once through the same object, by others
    after `sync`.

    start               position of the first entry
    end                 logical end, bytes: with what is not yet written
    entries, aentries   the counters ENTRIES and AENTRIES
    visible             bytes that are in the file in any case: entries below need no `show`
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
        self.lost: OSError | None = None  # a sync failed: what was written since the last is unsure
        self._patched = False  # entries were changed in place since the last sync
        self._marked: list[int] = []  # delflags that were set since
        self._syncs = 0  # how many were begun
        self._unsure = False  # the superblock in the file may be that of the sync before
        self.visible = 0

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

    # --- the file ---

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

    @property
    def spare(self) -> int:
        """Bytes behind the end that the disk holds ready for this file."""
        return max(self._reserved - self.end, 0)

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

    def flush(self) -> None:
        """Have all entries in the file, written by write(). Not durable."""
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
        """Wait for the writing thread; raises what it met."""
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
        """Raise OSError where a sync has failed.

        The system drops what it could not write, and says so once: the next sync would succeed
        without it.
        """
        if self.lost is not None:
            what = f"a sync failed ({self.lost.strerror}): what was not synced before is lost"
            raise OSError(self.lost.errno, f"{what}; open it again to go on", self.storage.name)

    # --- seeing ---

    def show(self, pos: int) -> None:
        """Have the entry at `pos` in the file, for reads of the storage."""
        if pos >= self.visible:
            self.flush()
            self.visible = self._written

    def view(self, pos: int, *, few: bool = False) -> mmap.mmap | memoryview:
        """A read-only view of the file that holds at least the whole entry at `pos`.

        To be asked for again with each batch of reads. Raises CorruptError where the file was cut
        short: to look at the view would kill the process.

        few  for look-ups here and there: see `Lookups`
        """
        return self.looks(pos, few=few).view

    def looks(self, pos: int, *, few: bool = True) -> Lookups:
        """That view with what was looked at in it. See `view`."""
        if pos >= self.visible:
            self.show(pos)
        looks = self._looks.get(few)
        if looks is None or len(looks.view) < self.visible:
            looks = self._looks[few] = Lookups(self.storage, self.storage.size(), few=few)
        looks.check(min(len(looks.view), self.visible))
        return looks

    def fetch(self, starts: Int64, stops: Int64) -> None:
        """See `Lookups.fetch`: places in the view for look-ups that was handed out last."""
        self._looks[True].fetch(starts, stops)

    def drop_view(self) -> None:
        """Drop the mapping, which holds the file open. Views handed out stay valid."""
        self._looks, self.visible = {}, 0

    def advance(self, superblock: Superblock) -> None:
        """A reader takes up a later superblock of the same file."""
        self.superblock = superblock
        self.end = self._written = superblock["FILESIZE"]

    # --- durability ---

    def sync(self, variables: Mapping[str, int] | None = None, *, now: int | None = None) -> None:
        """Make everything appended durable, then the superblock that says so.

        variables  further ones to store in the same write
        now        SYNCTIME, seconds since the epoch
        raises     OSError; where the disk refused to sync, each later call does so, too
        """
        for _ in self.syncing(variables, now=now):
            self.sync_storage()

    def syncing(
        self, variables: Mapping[str, int] | None = None, *, now: int | None = None
    ) -> Iterator[None]:
        """`sync` in steps, for who does not wait for the disk: at each the caller has to call
        `sync_storage`. Meanwhile entries may be added, and others synced; what is durable at the
        end is what was there at the beginning."""
        self._check_writable()
        self.flush()
        known = {"SYNCSIZE": self.end, "SYNCTIME": int(time.time()) if now is None else now}
        known |= {"ENTRIES": self.entries, "AENTRIES": self.aentries}
        known |= {PAGESUMS: 0}  # the file is another now
        known = {name: value for name, value in known.items() if name in self.superblock}
        known |= {"FILESIZE": self.end, **(variables or {})}
        self._syncs, self._patched = self._syncs + 1, False
        mine = self._syncs
        try:
            yield  # a superblock must never name bytes that are not there
            if self._syncs == mine:
                self._publish(known)
                yield
            self._check_writable()  # where a later sync came first, it has not failed
            if self._syncs == mine:
                # Durable with the next sync; the first one says it all.
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
        """Make the superblock durable that was found: write it again, and sync.

        After a failed sync it may be in the page cache alone, and clean. The entries that it names
        are on the disk, for they were synced before it was written. Its counters stay, for those
        of now may not be known yet. Raises OSError.
        """
        names = ("SYNCSIZE", "SYNCTIME", "ENTRIES", "AENTRIES")
        self.sync({name: self.superblock[name] for name in names if name in self.superblock})

    def sync_storage(self) -> None:
        """Sync the file as it is. A failure is final, see `check_lost`."""
        self.check_lost()
        marked, self._marked = self._marked, []
        try:
            self.storage.sync()
        except OSError as error:
            self.lost = error
            # The next writer sees both in the page cache, and would not write them again.
            with contextlib.suppress(OSError):
                self.storage.patch_each(marked, b"\1")
                repeat(self.storage, self.superblock)
            raise

    @property
    def broken(self) -> bool:
        """Whether a write failed: then `settle` must come before anything else."""
        return (
            self._failed
            or self.lost is not None
            or (self._behind is not None and self._behind.failed is not None)
        )

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
        self.visible = min(self.visible, self._written)

    def close(self) -> None:
        """Sync what is not synced, give preallocated space back, and close the storage.

        After a failed write nothing is synced: the file stays as its last sync left it.
        raises  OSError, also where an earlier sync failed
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
        """Stop the writing thread, after what it was given."""
        if self._behind:
            self._behind.close()
            self._behind = None

    def release(self) -> None:
        """Stop the writing thread and give back what lies behind the last sync that is in the file.

        Entries that no sync covers would count where the file ends with them.
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
        parts = self.layout.parts(pos, key, value, deleted=deleted)
        if len(value) < LARGE:
            parts = [b"".join(parts)]
        if pos > self.end:
            parts.insert(0, bytes(pos - self.end))
        self.append_parts(parts, 1, 0 if deleted else 1)
        return pos

    def append_parts(self, parts: Sequence[bytes], entries: int, live: int) -> None:
        """Add entries whose bytes the caller has made for position `end`, padding and all.

        entries, live  how many they are, and how many of them are not deleted
        raises         OSError from the disk
        cost           as `append`
        """
        if not self.writable or self._failed or self.lost is not None:
            self._check_writable()
        end = self.end + sum(map(len, parts))
        if end > self._reserved:
            self.reserve(end - self.end)
        count, all_of, alive = len(self._parts), self.entries + entries, self.aentries + live
        # One statement without a call, so that no signal handler comes in between.
        self._parts[count:], self.end, self.entries, self.aentries = parts, end, all_of, alive
        if end - self._written >= FLUSH:
            self._hand_over(self._parts, 0)

    def append_encoded(self, parts: Sequence[Buffer], entries: int) -> None:
        """Add entries whose bytes the caller has made for position `end`, which needs no padding.

        parts    all bytes, one part behind the other; not empty
        entries  how many, all live
        cost     no copy; written behind by a thread, so that no part may change afterwards
        """
        self._check_writable()
        if self._parts:
            self.flush()
        self.reserve(sum(map(len, parts)))
        self._hand_over(parts, entries)

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
        self._patched = self._patched or len(positions) > 0
        self._marked += positions
        self.storage.patch_each(positions, b"\1")

    def cut(self, start: int) -> None:
        """Drop what follows the last whole entry, of those from position `start` on.

        The counters are the caller's affair. For what was not synced yet.
        """
        self.flush()
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

    def get(self, pos: int, least: int = 0) -> KVEntry:
        """The entry at `pos`, deleted or not. Raises CorruptError for none or a bad one.

        least  bytes of its value that are read at once; 0: not known
        """
        if not self.superblock["SBSIZE"] <= pos < self.end or pos % max(self.layout.align, 1):
            lost = self.truncated and self.end <= pos < self.superblock["FILESIZE"]
            what = "the entry is in the part of the file that is gone" if lost else "no entry"
            raise CorruptError(what, file=self.storage.name, offset=pos)
        if pos >= self._written:
            self.flush()
        self.drain()
        first = least + BESIDE if least else PROBE
        return self.layout.read(self.storage.read, pos, self.end, self.storage.name, first)

    def iterate(self, start: int | None = None) -> Iterator[KVEntry]:
        """All entries in file order, deleted ones too, from position `start` to today's end."""
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
