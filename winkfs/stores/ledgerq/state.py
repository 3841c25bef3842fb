"""State of a queue: its journal `cursors.dat`, and the files in which LedgerQ keeps its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from winkformats.disk.storage import Directory, Storage, replacing
from winkformats.errors import CorruptError
from winkformats.ledgerq import cursors as ondisk
from winkformats.ledgerq import state as theirs
from winkformats.ledgerq.entry import HIGH
from winkformats.ledgerq.state import Dedup, Metadata, Retry
from winkfs.stores.ledgerq.cursor import MAIN, Cursor, Lease, write_lease
from winkfs.stores.ledgerq.files import Warn, content_of, write_anew

JOURNAL_ROOM: Final = 1 << 20  # bytes up to which a journal is not written anew


class QueueState:
    """Consumers and options of a queue, and their journal. Not for several threads at once.

    cursors    by name; the main one is always there
    mode       whether messages are read by priority; None: not decided yet
    written    the last two states of metadata.dat that a writer was about to write
    files      how often other processes added, removed or changed segments
    dedup      by hash
    seed       of the journal; None: there is no valid one
    """

    def __init__(self, directory: Directory, warn: Warn) -> None:
        self.directory, self.warn = directory, warn
        self.seed: int | None = None
        self._added = 0  # rows
        self._out: ondisk.Journal | None = None  # to write
        self._heard: Storage | None = None  # to read what other processes write
        self._identity, self._size = (0, 0), 0  # of the file; bytes of it that were read
        self._clear()

    def _clear(self) -> None:
        self.cursors = {MAIN: Cursor(MAIN, 0)}
        self.mode: bool | None = None
        self.written: list[Metadata] = []
        self.files = 0
        self.dedup: dict[str, Dedup] = {}
        self._numbers = {0: self.cursors[MAIN]}
        self._key = b""

    def add(self, name: str, number: int | None = None) -> Cursor:
        """Add a cursor that begins anew. Raises ValueError if no number is left for it."""
        if number is None:
            number = next((n for n in range(1, 256) if n not in self._numbers), -1)
            if number < 0:
                raise ValueError("a queue has 255 consumers at most")
        old = self._numbers.get(number)
        if old is not None:
            self.cursors.pop(old.name, None)
        cursor = self._numbers[number] = self.cursors[name] = Cursor(name, number)
        return cursor

    def remove(self, cursor: Cursor) -> None:
        del self.cursors[cursor.name], self._numbers[cursor.number]

    @property
    def low(self) -> int:
        """The id below which all consumers have consumed everything."""
        return min(cursor.low for cursor in self.cursors.values())

    # --- the journal, to read ---

    def load(self) -> None:
        """Read all of the journal."""
        self.close()
        self._clear()
        self.seed = None
        with suppress(FileNotFoundError):
            self._heard = self.directory.open(ondisk.CURSORS, follow=False)
            self.seed, self._size = ondisk.seed_of(self._heard), 0
            if self.seed is not None:
                self._size = ondisk.HEADER.size
                self._read_on()
            elif self._heard.size():
                self.warn(f"{self._heard.name}: its header is wrong: all is read from metadata.dat")
            self._identity = self._heard.info().identity

    def _read_on(self) -> None:
        assert self._heard is not None and self.seed is not None
        for row, end in ondisk.rows(self._heard, self.seed, self._size):
            self.apply(row)
            self._size = end

    def catch_up(self) -> bool:
        """Read what other processes have added -> whether the journal is the one that was read."""
        info = self.directory.info(ondisk.CURSORS)
        if info is None or info.identity != self._identity:
            return info is None
        if info.size != self._size:
            self._read_on()
            if self._size < info.size:  # a process was killed while writing
                with self.directory.open(ondisk.CURSORS, "w", follow=False) as storage:
                    storage.truncate(self._size)
            if self._out is not None:
                self._out.size = self._size
        return True

    def is_torn(self) -> bool:
        """Return whether bytes follow the last complete row."""
        return self._heard is not None and self._heard.size() > self._size

    def apply(self, row: ondisk.Row) -> None:
        """Apply a row. Rows that make no sense are ignored: they have a checksum."""
        kind, number, count, priority, values, text = row
        cursor = self._numbers.get(number)
        if kind == ondisk.NAME:
            self.add(text.rstrip(b"\0").decode("utf-8", "replace"), number)
        elif kind == ondisk.MODE:
            self.mode = bool(values[0])
        elif kind == ondisk.WRITTEN:
            self.written = [*self.written[-1:], Metadata(values[0], values[1])]
        elif kind == ondisk.FILES:
            self.files += 1
        elif kind == ondisk.KEY:
            self._key = text
        elif kind == ondisk.KEPT:
            key = self._key.hex()
            self.dedup[key] = Dedup(key, values[0], values[1], values[2], values[3])
        elif cursor is None:
            return
        elif kind == ondisk.AT:
            cursor.at[:] = values[:3]
        elif kind == ondisk.SEEK:
            cursor.seek(list(values[:3]))
        elif kind == ondisk.LEASED:
            lane, id = min(priority, HIGH), values[0]
            cursor.lease(id, Lease(values[1], count, values[2], lane))
            cursor.at[lane] = max(cursor.at[lane], id + 1)
        elif kind == ondisk.DONE:
            cursor.leased.pop(values[0], None)
        elif kind == ondisk.GONE and number:
            self.remove(cursor)

    # --- the journal, to write ---

    def append(self) -> ondisk.Journal:
        """Return the journal, to add a row about a change that was made in memory."""
        if self._out is None and self.seed is None:
            self.renew()
        elif self._out is None:
            storage = self.directory.open(ondisk.CURSORS, "w", follow=False)
            self._out = ondisk.Journal(storage, self.seed, self._size)
        assert self._out is not None
        self._added += 1
        return self._out

    def announce(self) -> None:
        """Record that segments are about to be added, removed or changed, for other processes."""
        self.append().add(ondisk.FILES)
        self._write()

    def flush(self) -> None:
        """Write all to the journal."""
        for cursor in self.cursors.values():
            if cursor.moved:
                self.append().add(ondisk.AT, cursor.number, *cursor.at)
                cursor.moved = False
        self._write()

    def _write(self) -> None:
        if self._out is not None:
            self._out.flush()
            self._size = self._out.size

    def unsynced(self) -> Storage | None:
        """Return a duplicate of the journal, to be synced; None: it is synced."""
        if self._out is None or not self._out.unsynced:
            return None
        storage = self._out.storage.duplicate()
        self._out.unsynced = False
        return storage

    @property
    def changes(self) -> int:
        """The number of rows that were added, or will be by `flush`."""
        return self._added + sum(cursor.moved for cursor in self.cursors.values())

    def is_long(self) -> bool:
        """Return whether the journal is much longer than its live rows need."""
        out = self._out  # None: another process has just written it anew
        if out is None or out.size <= JOURNAL_ROOM:
            return False
        live = sum(len(cursor.leased) for cursor in self.cursors.values()) + 2 * len(self.dedup)
        return out.size > 4 * live * ondisk.STRIDE

    def renew(self) -> None:
        """Replace the journal by one that contains only the current state. Durable."""
        now = time.time_ns()
        self.dedup = {key: entry for key, entry in self.dedup.items() if entry.expires > now}
        with replacing(self.directory, ondisk.CURSORS, keep=True) as storage:
            journal = ondisk.Journal(storage)
            self._store(journal)
            journal.flush()
        journal.unsynced = False
        self.close()
        self._out, self.seed, self._size = journal, journal.seed, journal.size
        self._heard, self._identity = storage.duplicate(), storage.info().identity

    def _store(self, journal: ondisk.Journal) -> None:
        """Add the rows of the current state."""
        if self.mode is not None:
            journal.add(ondisk.MODE, 0, int(self.mode))
        for metadata in self.written:
            journal.add(ondisk.WRITTEN, 0, *metadata)
        for cursor in self.cursors.values():
            if cursor.number:
                journal.add_text(ondisk.NAME, cursor.number, cursor.name.encode())
            for id, lease in cursor.leased.items():
                write_lease(journal, cursor, id, lease)
            journal.add(ondisk.AT, cursor.number, *cursor.at)
            cursor.moved = False
        for entry in self.dedup.values():
            _write_key(journal, entry)

    def seek(self, cursor: Cursor, id: int) -> None:
        """Move a consumer, whose leases end."""
        cursor.seek([id] * 3)
        self.append().add(ondisk.SEEK, cursor.number, *cursor.at)

    def pass_over(self, last: int) -> None:
        """Move all cursors past `last`, whose messages are being removed."""
        for cursor in self.cursors.values():
            if cursor.low <= last:
                cursor.past(last)
                for id, lease in cursor.leased.items():
                    write_lease(self.append(), cursor, id, lease)

    def keep_key(self, entry: Dedup) -> None:
        """Remember the key of a message that was pushed."""
        self.dedup.pop(entry.key, None)
        self.dedup[entry.key] = entry
        _write_key(self.append(), entry)

    def forget_keys(self, now: int, most: int) -> None:
        """Forget keys whose window has ended; if `most` are left, those that end first, a tenth."""
        for key in [key for key, entry in self.dedup.items() if entry.expires <= now]:
            del self.dedup[key]
        if len(self.dedup) >= most:
            first = sorted(self.dedup.values(), key=lambda entry: entry.expires)
            for entry in first[: len(self.dedup) - most * 9 // 10]:
                del self.dedup[entry.key]

    def close(self) -> None:
        for storage in (self._heard, None if self._out is None else self._out.storage):
            if storage is not None:
                storage.close()
        self._heard = self._out = None


def _write_key(journal: ondisk.Journal, entry: Dedup) -> None:
    journal.add_text(ondisk.KEY, 0, bytes.fromhex(entry.key))
    journal.add(ondisk.KEPT, 0, entry.message_id, entry.enqueued, entry.expires, entry.offset)


class LedgerqState:
    """State in the files of LedgerQ: metadata.dat, .dedup_state.json and .retry_state.json.

    metadata  as in the file; None: there is no valid one
    retry     failures of messages, by id
    """

    def __init__(self, state: QueueState) -> None:
        self.state, self.directory, self._warn = state, state.directory, state.warn
        self.metadata: Metadata | None = None
        self.retry: dict[int, Retry] = {}
        self._moved = False  # LedgerQ has read on, which the journal does not contain yet

    # --- metadata.dat ---

    def load(self, last: int) -> None:
        """Take over the position of LedgerQ, unless the metadata are those that winkfs wrote.

        last  the highest id of the segments
        """
        known, main = self.state.seed is not None, self.state.cursors[MAIN]
        self.read_metadata()
        if self.metadata is None or (known and self.metadata in self.state.written):
            return
        read = self.metadata.read_id
        if read > max(self.metadata.next_id, last + 1):
            path = f"{self.directory.path}/{theirs.METADATA}"
            self._warn(f"{path}: its read id is {read}: it is not used")
        elif read != main.low:
            main.seek([read] * 3)
        self.state.written = [*self.state.written[-1:], self.metadata]
        self._moved = known

    def read_metadata(self) -> None:
        size, use = theirs.LAYOUT.size, "made again from the segments"
        self.metadata = self._read(theirs.METADATA, Metadata.decode, size, use)

    def _read(
        self, name: str, decode: Callable[..., Any], most: int = theirs.MAX_STATE_BYTES,
        use: str = "it is not used",
    ) -> Any:  # fmt: skip
        """Decode a file of LedgerQ; None: it is missing, or damaged, which is reported."""
        data = content_of(self.directory, name, most)
        try:
            return None if data is None else decode(data, file=f"{self.directory.path}/{name}")
        except CorruptError as error:
            self._warn(f"{error}: {use}")

    def note_move(self) -> None:
        """Write the position of LedgerQ to the journal."""
        if self._moved:
            journal = self.state.append()
            journal.add(ondisk.SEEK, 0, *self.state.cursors[MAIN].at)
            journal.add(ondisk.WRITTEN, 0, *self.state.written[-1])
            self._moved = False

    def announce(self, metadata: Metadata) -> bool:
        """Record metadata that are about to be written -> whether they have changed.

        The caller syncs the journal before it writes them: until then the old ones are valid.
        """
        if metadata == self.metadata:
            return False
        self.state.written = [one for one in (self.metadata, metadata) if one is not None]
        for one in self.state.written:
            self.state.append().add(ondisk.WRITTEN, 0, *one)
        return True

    def write_metadata(self, metadata: Metadata) -> None:
        with replacing(self.directory, theirs.METADATA) as storage:
            storage.write(0, [metadata.encode()])
        self.metadata = metadata

    # --- JSON ---

    def read_trackers(self) -> None:
        self.retry.clear()
        now = time.time_ns()
        for key in self._read(theirs.DEDUP, theirs.decode_dedup) or ():
            if key.expires > now and len(key.key) == 64:
                with suppress(ValueError):
                    bytes.fromhex(key.key)
                    self.state.dedup.setdefault(key.key, key)
        for failed in self._read(theirs.RETRY, theirs.decode_retry) or ():
            self.retry.setdefault(failed.message_id, failed)

    def write_trackers(self, retries: int) -> None:
        now = time.time_ns()
        kept = [entry for entry in self.state.dedup.values() if entry.expires > now]
        made = {theirs.DEDUP: (theirs.encode_dedup(kept), bool(kept))}
        leased = self.state.cursors[MAIN].leased.items()
        failed = {id: Retry(id, lease.failures, now) for id, lease in leased if lease.failures}
        rows = (failed | self.retry).values()
        made[theirs.RETRY] = theirs.encode_retry(rows, retries), bool(rows)
        for name, (data, used) in made.items():
            if used or self.directory.exists(name):
                write_anew(self.directory, name, data)
