"""The state of a queue: what its journal `cursors.dat` says, and what LedgerQ keeps of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from winkformats.disk.storage import Directory, Storage, replacing
from winkformats.errors import CorruptError
from winkformats.ledgerq import cursors as ondisk
from winkformats.ledgerq import state as theirs
from winkformats.ledgerq.cursors import CURSORS, Journal, Row
from winkformats.ledgerq.entry import HIGH
from winkformats.ledgerq.state import Dedup, Metadata, Retry
from winkfs.stores.ledgerq.cursor import MAIN, Cursor, Lease, write_lease
from winkfs.stores.ledgerq.files import Say, content_of, write_anew

JOURNAL_ROOM: Final = 1 << 20  # bytes of a journal, at least, behind which it is written anew


class State:
    """What the journal of cursors says, and the journal. Not for several threads at once.

    cursors    by name; the main one is always there
    mode       whether messages are read by priority; None: nobody has said
    written    the last two states of metadata.dat that were about to be written
    files      how often others made segments come, go or change
    dedup      by hash
    seed       of the journal; None: there is none that is any good
    """

    def __init__(self, directory: Directory, say: Say) -> None:
        self.directory, self.say = directory, say
        self.seed: int | None = None
        self._added = 0  # rows
        self._out: Journal | None = None  # to write
        self._heard: Storage | None = None  # to read what others write
        self._identity, self._size = (0, 0), 0  # of the file; its bytes that are taken up
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
        """A cursor that begins. Raises ValueError where there is no number left for it."""
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
        """All below is consumed, by all."""
        return min(cursor.low for cursor in self.cursors.values())

    # --- the journal, to read ---

    def load(self) -> None:
        """Read all of the journal."""
        self.close()
        self._clear()
        self.seed = None
        with suppress(FileNotFoundError):
            self._heard = self.directory.open(CURSORS, follow=False)
            self.seed, self._size = ondisk.seed_of(self._heard), 0
            if self.seed is not None:
                self._size = ondisk.HEADER.size
                self._read_on()
            elif self._heard.size():
                self.say(f"{self._heard.name}: its header is wrong: all is read from metadata.dat")
            self._identity = self._heard.info().identity

    def _read_on(self) -> None:
        assert self._heard is not None and self.seed is not None
        for row, end in ondisk.rows(self._heard, self.seed, self._size):
            self.apply(row)
            self._size = end

    def catch_up(self) -> bool:
        """Take up what others have added -> whether the journal is the one that was read."""
        info = self.directory.info(CURSORS)
        if info is None or info.identity != self._identity:
            return info is None
        if info.size != self._size:
            self._read_on()
            if self._size < info.size:  # somebody was killed while writing
                with self.directory.open(CURSORS, "w", follow=False) as storage:
                    storage.truncate(self._size)
            if self._out is not None:
                self._out.size = self._size
        return True

    def is_torn(self) -> bool:
        """Whether there are bytes behind the last row that is whole."""
        return self._heard is not None and self._heard.size() > self._size

    def apply(self, row: Row) -> None:
        """What a row says. Rows that make no sense are ignored: they have a checksum."""
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

    def append(self) -> Journal:
        """The journal, for a row of what has changed here already."""
        if self._out is None:
            self._begin()
        assert self._out is not None
        self._added += 1
        return self._out

    def _begin(self) -> None:
        if self.seed is None:
            self.renew()
        else:
            storage = self.directory.open(CURSORS, "w", follow=False)
            self._out = Journal(storage, self.seed, self._size)

    def announce(self) -> None:
        """Segments are about to come, go or change: others have to know, whatever happens then."""
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
        """A duplicate of the journal, for who syncs it; None: that was done."""
        if self._out is None or not self._out.unsynced:
            return None
        storage = self._out.storage.duplicate()
        self._out.unsynced = False
        return storage

    @property
    def changes(self) -> int:
        """Rows that were added, or will be by `flush`."""
        return self._added + sum(cursor.moved for cursor in self.cursors.values())

    def is_long(self) -> bool:
        """Whether it is time to `renew` the journal."""
        out = self._out  # None: another process has just written it anew
        if out is None or out.size <= JOURNAL_ROOM:
            return False
        live = sum(len(cursor.leased) for cursor in self.cursors.values()) + 2 * len(self.dedup)
        return out.size > 4 * live * ondisk.STRIDE

    def renew(self) -> None:
        """Write a journal that says how it is now, and nothing else. Durable."""
        now = time.time_ns()
        self.dedup = {key: entry for key, entry in self.dedup.items() if entry.expires > now}
        with replacing(self.directory, CURSORS, keep=True) as storage:
            journal = Journal(storage)
            self._store(journal)
            journal.flush()
        journal.unsynced = False
        self.close()
        self._out, self.seed, self._size = journal, journal.seed, journal.size
        self._heard, self._identity = storage.duplicate(), storage.info().identity

    def _store(self, journal: Journal) -> None:
        """Rows that say all of it."""
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
        """What is up to an id is going: nobody waits for it."""
        for cursor in self.cursors.values():
            if cursor.low <= last:
                cursor.past(last)
                for id, lease in cursor.leased.items():
                    write_lease(self.append(), cursor, id, lease)

    def keep_key(self, entry: Dedup) -> None:
        """A message was pushed with this key."""
        self.dedup.pop(entry.key, None)
        self.dedup[entry.key] = entry
        _write_key(self.append(), entry)

    def forget_keys(self, now: int, most: int) -> None:
        """Those whose window has ended, and a tenth of the others: those that end first."""
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


def _write_key(journal: Journal, entry: Dedup) -> None:
    journal.add_text(ondisk.KEY, 0, bytes.fromhex(entry.key))
    journal.add(ondisk.KEPT, 0, entry.message_id, entry.enqueued, entry.expires, entry.offset)


class LedgerqState:
    """What LedgerQ keeps of a state: metadata.dat, .dedup_state.json and .retry_state.json.

    metadata  as they are there; None: they are not
    retry     failures of messages, by id
    """

    def __init__(self, state: State) -> None:
        self.state, self.directory, self._say = state, state.directory, state.say
        self.metadata: Metadata | None = None
        self.retry: dict[int, Retry] = {}
        self._moved = False  # LedgerQ has read on: the journal has to say so

    # --- metadata.dat ---

    def load(self, last: int) -> None:
        """Take up what LedgerQ has read; what we were about to write tells nothing.

        last  the highest id of the segments
        """
        known, main = self.state.seed is not None, self.state.cursors[MAIN]
        self.read_metadata()
        if self.metadata is None or (known and self.metadata in self.state.written):
            return
        read = self.metadata.read_id
        if read > max(self.metadata.next_id, last + 1):
            path = f"{self.directory.path}/{theirs.METADATA}"
            self._say(f"{path}: its read id is {read}: it is not used")
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
        """Decode a file of LedgerQ; None: there is none, or it is damaged, which is reported."""
        data = content_of(self.directory, name, most)
        try:
            return None if data is None else decode(data, file=f"{self.directory.path}/{name}")
        except CorruptError as error:
            self._say(f"{error}: {use}")

    def note_move(self) -> None:
        """Write to the journal what LedgerQ has read."""
        if self._moved:
            journal = self.state.append()
            journal.add(ondisk.SEEK, 0, *self.state.cursors[MAIN].at)
            journal.add(ondisk.WRITTEN, 0, *self.state.written[-1])
            self._moved = False

    def announce(self, metadata: Metadata) -> bool:
        """Before they are written -> whether they are others. Who writes syncs the journal first:
        until they are there, the old ones are."""
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
