"""Log of a LogStore: replay, append, sync, the next file, the saved index table."""

from __future__ import annotations

import errno
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from winkformats.arrays import Int64, UInt64
from winkformats.disk.storage import Storage, replacing
from winkformats.logstore import datafiles, entry, index
from winkformats.logstore.entry import (
    EOF,
    HEAD,
    PART,
    RECORD,
    RESERVE,
    START,
    Damage,
    Entries,
    LogScan,
)
from winkfs.errors import CorruptError, DerivedDamage, Refusal
from winkfs.stores.logstore.files import GENERATION, Files, numbers_in
from winkfs.stores.logstore.table import Table, View, Words

LOAD_ATTEMPTS: Final = 8  # loads of a store whose files a writer removes
Progress = Callable[[int], None]
UNUSED_GENERATIONS: Final = 3  # generations that stay unused, if there are 8 or more
RESERVED_GENERATIONS: Final = 1  # the same while the oldest is compacted, which frees one


class Full(Refusal):
    """There is no number left for another file."""

    number = errno.ENOSPC


class Batch(NamedTuple):
    """Entries to be appended: recids int64[n], lengths int64[n] as in `Entries`, their bytes."""

    recids: Int64
    lengths: Int64
    data: bytes


class PlannedSave(NamedTuple):
    """The table as of a commit, which is to be saved."""

    view: View
    position: int
    sequence: int
    recids: int
    written: int


class Log:
    """Files of a store, and the table derived from them.

    problems  damage of synced bytes, a line each
    notes     bytes cut off because they were not synced, and derived files that were unusable
    failed    why nothing can be written any more, "" if it can
    """

    def __init__(self, path: str, *, full: bool = False, progress: Progress | None = None) -> None:
        """Open to read. Raises NoSuchFile, CorruptError, OSError.

        full      read all data files, and the whole records of damaged transactions
        progress  called with the bytes that were read
        """
        self._full, self._progress = full, progress
        self.files = Files(path)
        self.layout = self.files.layout
        self._unused = min(UNUSED_GENERATIONS, self.layout.generations // 2)
        self.table = Table()
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.failed = ""
        self.write_lock = threading.Lock()  # of all below
        self._syncing = threading.Lock()  # of the storage; taken after it
        self.saving = threading.Lock()  # of the index; taken before it
        self._head: Storage | None = None
        self.kept: dict[int, int] = {}  # bytes of files that must stay beside live records
        self.torn = 0  # bytes behind the last commit
        self.planned: PlannedSave | None = None
        self.blobs = 1  # number of the next blob file
        self.load()

    # --- replay ---

    def load(self) -> None:
        """Load the store. Raises CorruptError, OSError."""
        for _ in range(LOAD_ATTEMPTS - 1):
            with suppress(FileNotFoundError):  # a writer removes files
                return self._load()
        return self._load()

    def _load(self) -> None:
        self._list()
        self.problems, self.notes, self.torn = [], [], 0
        for number in self.files.missing():
            self.note_problem(
                f"{self.files.path}/{self.files.name(number)}: the data file is missing"
            )
        table, start = Table(), None
        self.scan = LogScan(self.layout)
        saved = self._saved()
        if saved is not None:
            head, positions, lengths = saved
            start, self.blobs = head.position, max(self.blobs, head.blobs)
        self.saved_at = start or 0
        if saved is not None and not self._full:
            table.load(positions, lengths)
            self.scan.sequence, self.scan.durable = head.sequence, head.position
            self.scan.number, self.scan.end = self.layout.split(head.position)
        self._replay(table)
        self.table = table

    def _list(self) -> None:
        """List the files. Cost: a read of each."""
        for attempt in range(LOAD_ATTEMPTS):
            # In this order: a generation is in use before it has a file, and after.
            listed = numbers_in(self.files.data)
            self.used = numbers_in(self.files.generations, GENERATION)
            # A power cut may bring back the name of such a file long after its removal.
            self.emptied = [number for number in listed if self.files.is_being_removed(number)]
            numbers = [number for number in listed if number not in self.emptied]
            try:
                self.oldest = self.layout.oldest(self.used, numbers)
                break
            except ValueError as error:
                if attempt == LOAD_ATTEMPTS - 1:
                    raise CorruptError(
                        str(error), file=f"{self.files.path}/generations", offset=0
                    ) from error
        numbers.sort(key=self.age)
        while numbers and self.files.is_unfinished(numbers[-1]):
            self.emptied.append(numbers.pop())
        self.numbers = tuple(numbers)

    def age(self, number: int) -> int:
        return self.layout.age(number, self.oldest)

    def _saved(self) -> tuple[index.Head, UInt64, Words] | None:
        try:
            with self.files.root.open(index.NAME, follow=False) as storage:
                head, positions, lengths = index.read(storage)
        except FileNotFoundError:
            return None
        except DerivedDamage as error:
            self.notes.append(f"{error}: all data files are read")
            return None
        number, _ = self.layout.split(head.position)
        if head.store != self.layout.store or self.layout.generation(number) not in self.used:
            return None
        ages = self.ages(positions)
        present = np.zeros(int(ages.max(initial=0)) + 1, bool)
        known = np.array([self.age(number) for number in self.numbers], np.int64)
        present[known[known < len(present)]] = True
        gone = ~present[ages]
        positions[gone], lengths[gone] = 0, 0
        return head, positions, lengths

    def ages(self, positions: UInt64) -> Int64:
        """Return the ages of the files at these positions, int64[n]."""
        layout = self.layout
        files = (positions >> np.uint64(layout.offset_bits)).astype(np.int64)
        first = self.oldest << layout.file_bits - layout.generation_bits
        files -= first
        files &= layout.files - 1
        return files

    def _replay(self, table: Table) -> None:
        """Read on from the last commit."""
        scan, before = self.scan, None
        goes_on, at = scan.number >= 0, scan.end  # it may go on at the start of a file
        begin = self.age(scan.number) if goes_on else 0
        numbers = [number for number in self.numbers if self.age(number) >= begin]
        if scan.number >= 0 and not numbers:
            name = self.files.name(scan.number)
            self.note_problem(f"{self.files.path}/{name}: the file of the last commit is missing")
        for number in numbers:
            start = at if self.age(number) == begin else START
            adjacent = before is not None and number == self.layout.following(before)
            first = goes_on and self.age(number) == begin
            if start == START and not (adjacent or first):
                scan.resume(gap=True, first=number == 0)
            if not self._replay_file(table, number, start, last=number == numbers[-1]):
                break
            before = number
        scan.forget()

    def _replay_file(self, table: Table, number: int, start: int, *, last: bool) -> bool:
        """Read a file; return whether the next file may follow."""
        scan, handle = self.scan, self.files.handle(number)
        storage = handle.storage
        size = storage.size()
        if start > max(size, START):
            if last:
                what = f"a file of {size} bytes that was synced up to {start}"
                self.note_problem(str(Damage(storage.name, size, size, what, True)))
                return False
            start = START
        wrong = scan.read(storage, number, start)
        if not wrong and not scan.ended and not last:
            wrong = "no end"
        searched = 0
        while wrong:
            begin = scan.end if scan.number == number else min(scan.at, START)
            found = scan.find(storage, number, max(begin, searched))
            if last and not self._proves(found, number, begin):
                self.torn = size - begin
                table.apply(scan.entries())
                return False
            self.note_problem(str(Damage(storage.name, begin, scan.at, wrong, True)))
            scan.resume()
            if self._full:
                table.apply(scan.entries())
                stop = size if found is None else found[0]
                table.apply(entry.whole_records(storage, self.layout, number, begin, stop))
            if found is None:
                break
            scan.number, scan.end, searched = number, found[0], found[0] + 1
            wrong = scan.read(storage, number, found[0], headed=False)
        table.apply(scan.entries())
        if self._progress is not None:
            self._progress(size)
        if last:
            self.torn = size - scan.end if scan.number == number else size
        return True

    def note_problem(self, problem: str) -> None:
        """Add a problem, once."""
        if problem not in self.problems:
            self.problems.append(problem)

    def _proves(self, found: tuple[int, int] | None, number: int, begin: int) -> bool:
        """Return whether the bytes from `begin` on were synced: the saved table ends after them, or
        a commit after the damage records it."""
        file, offset = self.layout.split(self.saved_at)
        if self.saved_at and (self.age(file), offset) > (self.age(number), begin):
            return True
        if found is None:
            return False
        file, offset = self.layout.split(found[1])
        return file == number and offset > begin

    def refresh(self) -> bool:
        """Read what was appended since; return whether anything was.

        raises  CorruptError, OSError
        """
        before = self.scan.number, self.scan.end, self.scan.sequence
        self.files.forget()
        try:
            self._list()
            exists = self.scan.number in self.numbers
            if exists and self.files.size(self.scan.number) >= self.scan.end:
                self._replay(self.table)
            else:
                self.load()
        except FileNotFoundError:
            self.load()
        return before != (self.scan.number, self.scan.end, self.scan.sequence)

    # --- to write ---

    def start_writing(self) -> None:
        """Cut off an incomplete transaction, and make the rest durable.

        raises  Refusal if synced bytes are damaged; OSError
        cost    after an unclean end the last data file is copied
        """
        if self.problems:
            raise Refusal(
                f"{self.problems[0]}: only to be read; `winkfs store salvage` copies what is good",
                self.files.path,
            )
        scan, numbers = self.scan, list(self.numbers)
        kept = scan.number in numbers
        last = numbers.index(scan.number) + 1 if kept else 0
        self.files.write_list(numbers[:last])
        while len(numbers) > last:
            self.files.forget(numbers[-1])
            self.files.data.unlink(f"{numbers.pop():016x}")
            self.files.data.sync()
        for number in self.emptied:
            self.files.remove(number)
        self.files.sync_names()
        self.numbers = tuple(numbers)
        self.sequence = scan.sequence or 0
        if not kept:
            self._begin(self.oldest << self.layout.file_bits - self.layout.generation_bits)
        elif self.saved_at == self.layout.position(scan.number, scan.end) and not self.torn:
            self._take(
                self.files.data.open(f"{scan.number:016x}", "w", follow=False),
                scan.number,
                scan.end,
            )
        else:
            if self.torn:
                where = self.files.name(scan.number)
                self.notes.append(f"{where}: {self.torn} bytes that were not synced are cut off")
            for generation in self._youngest(self.layout.generation(scan.number)):
                self.files.use_generation(generation)
            self._take(self.files.rewrite(scan.number, scan.end), scan.number, scan.end)
        self.since = 0  # files since the index was saved
        self._clear_blobs()

    def _youngest(self, first: int) -> list[int]:
        """Return the generations in use from this one on."""
        count = self.layout.generations
        since = (first - self.oldest) % count
        return [one for one in self.used if (one - self.oldest) % count >= since]

    def _begin(self, number: int) -> None:
        """Create the first file of a store."""
        self.files.use_generation(self.oldest)
        self.used = list({*self.used, self.oldest})
        self._take(self._create(number), number, START)
        self.numbers = (number,)

    def _take(self, storage: Storage, number: int, end: int) -> None:
        self._head, self.number, self.end = storage, number, end
        self.durable = self.layout.position(number, end)
        self.written = self.synced = 0

    def _clear_blobs(self) -> None:
        """Remove blob files without a record. Cost: a read for each blob record."""
        unused = set(numbers_in(self.files.blob))
        self.blobs = max([self.blobs, *(number + 1 for number in unused)])
        for some in self.table.view().parts() if unused else ():
            blobs = some.take(np.flatnonzero(some.lengths & entry.IS_BLOB))
            for recid, position in zip(
                blobs.recids.tolist(), blobs.positions.tolist(), strict=True
            ):
                unused.discard(self.blob_at(recid, position).number)
        for number in unused:
            self.files.blob.unlink(f"{number:016x}")

    def read(self, recid: int, position: int, length: int) -> bytes | None:
        """Return the body of a record; None: null. Raises CorruptError, OSError."""
        number, offset = self.layout.split(position)
        handle = self.files.handle(number)
        data = handle.storage.read(offset, length & entry.LENGTH)
        if length < entry.IS_NULL:  # the usual case of `decode`
            body = data[HEAD.size :]
            if data[: HEAD.size] == HEAD.pack(
                RECORD, len(body), recid, zlib.crc32(body, zlib.crc32(data[: PART.size]))
            ):
                return body
        found = entry.decode(data, recid, file=handle.storage.name, offset=offset)
        return self.files.read_blob(found) if isinstance(found, entry.Blob) else found

    def blob_at(self, recid: int, position: int) -> entry.Blob:
        """Return the entry of a blob record. Raises CorruptError, OSError."""
        number, offset = self.layout.split(position)
        handle = self.files.handle(number)
        data = handle.storage.read(offset, entry.BLOB_HEAD.size)
        name = handle.storage.name
        found = entry.decode(data, recid, file=name, offset=offset)
        if not isinstance(found, entry.Blob):
            raise CorruptError("no blob record", file=name, offset=offset)
        return found

    def check(self) -> None:
        """Raise Refusal if nothing can be written any more."""
        if self.failed:
            raise Refusal(
                "nothing is written any more, open it again: what was not acknowledged may be "
                f"lost ({self.failed})",
                self.files.path,
            )

    def sure(self, sync: Callable[[], object]) -> None:
        """Call a sync; if it raises, nothing is written any more."""
        try:
            sync()
        except BaseException as error:
            self.failed = f"{error}"
            raise

    def new_blob(self) -> int:
        with self.write_lock:
            self.blobs += 1
            return self.blobs - 1

    def append(self, batch: Batch, *, reserve: int | None = None) -> Entries:
        """Append a transaction and apply it to the table; the caller holds `write_lock`.

        reserve  generations that stay unused; None: as many as compaction needs
        ->       the former entries of its recids
        raises   OSError, Full: nothing is changed then
        """
        self.check()
        start = self.number, self.end
        sizes = np.where(batch.lengths == 0, entry.HEAD.size, batch.lengths & entry.LENGTH)
        finished = [0]
        self.table.reserve(int(batch.recids.max(initial=0)) + 1)
        try:
            positions = self._write(sizes, batch.data, reserve or self._unused, finished)
            old = self.table.apply(Entries(batch.recids, positions, batch.lengths))
            self.sequence += 1
        except OSError:
            if not self.failed:
                self._undo(start, finished[0])
            raise
        except BaseException as error:  # it may be in the log, and not in the table
            self.failed = f"a commit was interrupted by {type(error).__name__}"
            raise
        if self.since >= self.layout.every:
            self.plan_save()
        return old

    def _write(self, sizes: Int64, data: bytes, reserve: int, finished: list[int]) -> UInt64:
        """Write a transaction; return the positions of its entries.

        finished  finished[0] is set to the bytes of it that are in finished files
        """
        layout, total = self.layout, len(data)
        room = layout.largest - RESERVE
        if self.end + total > room and (total <= room - START or self.end >= room):
            self._roll(reserve)
        ends = np.cumsum(sizes)
        positions = np.empty(len(sizes), np.uint64)
        checksum, done, first = entry.seed(layout), 0, 0
        while True:
            fit = len(sizes)
            if self.end + total - done > room:
                fit = int(np.searchsorted(ends, done + room - self.end, "right"))
            stop = int(ends[fit - 1]) if fit else 0
            base = self.layout.position(self.number, self.end)
            if fit > first:
                places = ends[first:fit] - sizes[first:fit] - done
                positions[first:fit] = places.astype(np.uint64) + np.uint64(base)
            piece = data if stop - done == total else memoryview(data)[done:stop]
            assert self._head is not None
            if fit == len(sizes):
                checksum = zlib.crc32(piece, checksum)
                mark = entry.commit(self.sequence + 1, self.durable, total, checksum)
                self.end += self._head.write(self.end, [piece, mark])
                self.written += total
                return positions
            if stop > done:
                checksum = zlib.crc32(piece, checksum)
                self.end += self._head.write(self.end, [piece])
                self.written += stop - done
            finished[0] = done = stop
            first = fit
            self._roll(reserve)

    def _undo(self, start: tuple[int, int], finished: int) -> None:
        """Take back a transaction that was not written completely."""
        assert self._head is not None
        try:
            one_file = self.number == start[0]
            self.end = start[1] if one_file else self.end
            self._head.truncate(self.end)
            with self._syncing:  # another thread may have synced what is cut off
                number, offset = self.layout.split(self.durable)
                if number == self.number:
                    self.durable = self.layout.position(number, min(offset, self.end))
            if finished and not one_file:
                mark = entry.rollback(self.sequence, self.durable, finished, self.layout)
                self.end += self._head.write(self.end, [mark])
                self.written += len(mark)
        except BaseException as error:
            self.failed = f"a transaction could not be taken back: {error}"

    def _roll(self, reserve: int) -> None:
        """Go on in a new file. Raises Full, OSError."""
        number = self.layout.following(self.number)
        generation = self.layout.generation(number)
        new = generation not in self.used
        if new and len(self.used) + 1 > self.layout.generations - reserve:
            raise Full("no file numbers left: compact it", self.files.path)
        old = self._head
        assert old is not None
        with self._syncing:
            old.write(self.end, [bytes([EOF])])
            self.sure(old.sync)
            try:
                if new:
                    self.sure(partial(self.files.use_generation, generation))
                    self.used.append(generation)
                head = self._create(number)
            except BaseException:
                if not self.failed:
                    self.sure(partial(old.truncate, self.end))
                raise
            old.close()
            self.files.forget(self.number)
            self._head, self.number, self.end = head, number, START
            self.durable, self.synced = self.layout.position(number, START), self.written
        self.numbers = (*self.numbers, number)
        self.since += 1

    def next_file(self) -> None:
        """Go on in a new file; the caller holds `write_lock`. Raises as `append`."""
        self.check()
        try:
            self._roll(self._unused)
        except OSError:
            raise
        except BaseException as error:
            self.failed = f"a new file was interrupted by {type(error).__name__}"
            raise

    def _create(self, number: int) -> Storage:
        name = f"{number:016x}"
        self.files.forget(number)
        storage = self.files.data.create_new(name)
        try:
            storage.write(0, [entry.header(number)])
            self.sure(storage.sync)
            self.sure(self.files.data.sync)
        except BaseException:
            storage.close()
            if not self.failed:
                self.sure(partial(self.files.data.unlink, name))
            raise
        with suppress(OSError):  # the file exists; the list is derived
            self.files.list_as(datafiles.THERE, number)
        return storage

    def sync(self, upto: int | None = None) -> None:
        """Make all that was appended durable, or at least its first `upto` bytes."""
        self.check()
        with self._syncing:
            self.check()
            head, number, end, written = self._head, self.number, self.end, self.written
            if self.synced >= (written if upto is None else upto) or head is None:
                return
            self.sure(head.sync)
            self.durable, self.synced = self.layout.position(number, end), written

    # --- the saved index ---

    def plan_save(self) -> None:
        """Plan to save the table as of the last commit; the caller holds `write_lock`."""
        if self.planned is not None:
            self.table.close(self.planned.view)
        view = self.table.view()
        view.needs_files = False
        at = self.layout.position(self.number, self.end)
        self.planned = PlannedSave(view, at, self.sequence, self.table.top, self.written)
        self.since = 0

    def save_planned(self) -> None:
        """Save the index table if that is due. Raises OSError if the log cannot be synced."""
        while self.planned is not None and self.saving.acquire(blocking=False):
            try:
                planned, self.planned = self.planned, None
                if planned is not None:
                    self._save(planned)
            finally:
                self.saving.release()

    def _save(self, planned: PlannedSave) -> None:
        try:
            self.sync(planned.written)
            positions, lengths = planned.view.columns()
        finally:
            self.table.close(planned.view)
        recids = min(planned.recids, len(positions))
        head = index.Head(self.layout.store, planned.position, planned.sequence, recids, self.blobs)
        try:
            with replacing(self.files.root, index.NAME, unsure=self._unsure) as storage:
                index.write(storage, head, positions, lengths)
        except OSError as error:
            self.notes.append(f"the index table is not saved: {error}")
            return
        self.saved_at = planned.position

    def _generation_at(self, position: int) -> int:
        return self.layout.generation(self.layout.split(position)[0])

    def _unsure(self) -> None:
        self.failed = "the directory could not be synced"

    def free_generations(self) -> None:
        """Free the oldest generations if they have no file; the caller holds `saving` and
        `write_lock`."""
        with_files = {self.layout.generation(number) for number in self.numbers}
        while self.oldest not in with_files:
            # A saved table must end in a generation that has stayed in use.
            end = self.planned.position if self.planned is not None else self.saved_at
            if self._generation_at(end) == self.oldest:
                self.plan_save()
            if self._generation_at(self.saved_at) == self.oldest:
                self.files.root.unlink(index.NAME)
                self.sure(self.files.root.sync)
                self.saved_at = 0
            self.sure(partial(self.files.free_generation, self.oldest))
            self.used.remove(self.oldest)
            self.oldest = (self.oldest + 1) % self.layout.generations

    def close(self) -> None:
        """Close the files. Idempotent."""
        if self._head is not None:
            self._head.close()
            self._head = None
        self.files.close()
