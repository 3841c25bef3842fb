"""Core: the parts of a queue, and the operations on all of them: open, catch up, sync, end.

Turns let several processes write one queue, call by call, one process at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from winkformats.disk.storage import Directory, Lock
from winkformats.ledgerq import cursors as ondisk
from winkformats.ledgerq.entry import LAST_ID
from winkformats.ledgerq.state import Metadata
from winkfs.access import Access
from winkfs.errors import Locked
from winkfs.stores.handle import Calls
from winkfs.stores.ledgerq import recovery
from winkfs.stores.ledgerq.cursor import MAIN, Deliveries
from winkfs.stores.ledgerq.files import Files, Segment
from winkfs.stores.ledgerq.reading import Reading
from winkfs.stores.ledgerq.state import LedgerqState, QueueState
from winkfs.stores.ledgerq.tail import Defaults, Rotation, Tail

LOCK: Final = "ledgerq.lock"
TURN: Final = "ledgerq.turn"
TURN_SECONDS: Final = 60.0  # seconds that a process waits for its turn
LOCK_PAUSE: Final = 0.02  # seconds between attempts to take the lock of all
Call = Callable[[], object]


class Core:
    """The parts of a queue. Not for several threads, or processes, at once.

    files, reading  its segments, and the messages in them
    state, ledgerq  positions and leases in the journal, and in the files of LedgerQ
    tail            adds messages
    deliveries      hands them out
    problems        damage that was found, a line each
    """

    def __init__(
        self,
        directory: Directory,
        access: Access,
        rotation: Rotation,
        defaults: Defaults,
        *,
        shared: bool,
        by_priority: bool | None,
        starved: int,
    ) -> None:
        """by_priority: None: as before; shared: with other processes; starved: see `Order`."""
        self.directory, self._access = directory, access
        self._shared, self._wanted = shared, by_priority
        self.problems: list[str] = []
        warn = self.problems.append
        self.files, self.state = Files(directory, warn), QueueState(directory, warn)
        self.reading, self.ledgerq = Reading(self.files), LedgerqState(self.state)
        self.tail = Tail(self.files, rotation, defaults, self._before_segment, self._access.final)
        self.deliveries = Deliveries(self.reading, self.state.append, warn, starved=starved)

    # --- from the disk ---

    def open(self) -> None:
        self.load()
        missing = self._missing()
        recovery.mend(self.files, self.problems.append, self._before_change)
        self._sync_found()
        if self.state.is_torn():
            # Rows behind one that is torn must not be good again when that is written over.
            self.state.renew()
        self.ledgerq.note_move()
        mode = self.deliveries.by_priority
        if mode != self.state.mode:
            self.state.mode = mode
            if self.state.seed is not None:
                self.state.append().add(ondisk.MODE, 0, int(mode))
        self.ledgerq.read_trackers()
        self._settle_ids()
        self._pass_unsynced(missing)
        if gone := self.files.left_by_compaction(self.state.low):
            self.remove(gone)

    def _pass_unsynced(self, missing: list[tuple[int, int]]) -> None:
        """Move cursors past messages that a power cut has taken, or that were damaged and cut off.

        missing  ids that were missing before; if there are any, no cursor moves
        """
        if missing or self.ledgerq.metadata is None:
            return
        for first, last in self.files.missing(self.state.low, self.tail.next_id):
            for cursor in self.state.cursors.values():
                if first <= cursor.low <= last:
                    self.state.seek(cursor, last + 1)

    def _sync_found(self) -> None:
        """Sync what a process may have written before it ended without a sync."""
        last = self.files.newest
        names = [] if last is None else [last.name]
        for name in names + [ondisk.CURSORS] * (self.state.seed is not None):
            with self.directory.open(name, "w", follow=False) as storage:
                storage.sync()
        self.directory.sync()

    def _before_segment(self) -> None:
        # LedgerQ looks for the highest id in the last segment alone, which is empty for a moment.
        self._write_metadata()
        self._before_change()

    def _before_change(self) -> None:
        """Announce to other processes that segments are about to be added, removed or changed."""
        if self._shared:
            self.state.announce()

    def load(self, *, follow: bool = False) -> None:
        """Read journal, segments and metadata."""
        self.state.load()
        self.files.by_priority = bool(self.state.mode if self._wanted is None else self._wanted)
        self.files.load(follow=follow)
        self._use_state()
        if self._missing():
            self.state.load()  # a writer has moved on before it removes a segment
            self._use_state()
            for first, last in self._missing():
                ids = f"message {first} is" if first == last else f"messages {first} to {last} are"
                self.files.warn(f"{self.directory.path}: {ids} missing: a segment is gone")

    def look(self) -> None:
        """Read the queue without writing to it: other processes may be writing."""
        self.load(follow=True)
        self.ledgerq.read_trackers()

    def _missing(self) -> list[tuple[int, int]]:
        """Return first and last of the unread ids that no segment has."""
        metadata, main = self.ledgerq.metadata, self.state.cursors[MAIN]
        lows = [cursor.low for cursor in self.state.cursors.values() if cursor is not main]
        # Messages below the position that was written last may be gone, wherever a seek has gone.
        floor = min(*lows, max(main.low, metadata.read_id if metadata else 1), LAST_ID)
        # Metadata are written behind a sync; a position may outlive messages that no sync covers.
        end = metadata.next_id if metadata else max(self._positions())
        return self.files.missing(floor, end)

    def _positions(self) -> list[int]:
        return [max(cursor.at) for cursor in self.state.cursors.values()]

    def _use_state(self) -> None:
        self.ledgerq.load(self.files.last)
        mode = self.state.mode if self._wanted is None else self._wanted
        if mode is None:
            mode = self.reading.have_priorities(self.state.cursors[MAIN].low)
        self.deliveries.by_priority = self.tail.by_priority = mode

    def _settle_ids(self) -> None:
        """Set the next id, which no message has had."""
        known = self._positions()
        if self.ledgerq.metadata is not None:
            known.append(self.ledgerq.metadata.next_id)
        self.tail.go_on(known)

    def catch_up(self) -> None:
        """Take up what other processes did since the last turn of this one."""
        before = self.state.files
        if not self.state.catch_up():
            self.state.load()
            self._use_state()
            before = -1
        mode = self.state.mode
        if mode not in (None, self.deliveries.by_priority) and self._wanted is None:
            self.deliveries.by_priority = self.tail.by_priority = mode
            for cursor in self.state.cursors.values():
                cursor.order = None
        changed = before != self.state.files
        if changed:
            self.tail.release()
            self.files.load()
            self.tail.named = True  # the process that made them may have ended since
        elif not self.tail.catch_up():
            return
        if changed or ((last := self.files.newest) is not None and last.torn):
            recovery.mend(self.files, self.problems.append, self._before_change)
        self._settle_ids()

    # --- to the disk ---

    def flush(self) -> None:
        """Write what is in memory to the segment and to the journal."""
        self.tail.flush()
        self.state.flush()

    def unsynced(self, stack: ExitStack) -> Calls:
        """Write all -> calls that make it durable, for which other calls need not wait."""
        self.flush()
        calls: Calls = []
        if self.tail.dirty and self.tail.out is not None:
            calls.append(stack.enter_context(self.tail.out.duplicate()).sync)
        if self.tail.named:
            calls.append(self.directory.sync)
        if (journal := self.state.unsynced()) is not None:
            calls.append(stack.enter_context(journal).sync)
        self.tail.named = self.tail.dirty = False
        return calls

    def sync(self) -> None:
        """Make all durable, under the lock."""
        with ExitStack() as stack:
            calls = self.unsynced(stack)
            with self._access.final():
                for call in calls:
                    call()

    def _write_metadata(self) -> None:
        """Write the metadata that LedgerQ reads first, behind a sync of what they refer to."""
        firsts = [segment.first for segment in self.files.segments.values() if segment.first]
        # LedgerQ waits for a message that is not there.
        read = max(self.state.cursors[MAIN].low, *firsts[:1] or [self.tail.next_id])
        metadata = Metadata(self.tail.next_id, min(read, self.tail.next_id))
        if self._shared:
            self.ledgerq.read_metadata()
        if self.ledgerq.announce(metadata):
            self.sync()
            with self._access.final():
                self.ledgerq.write_metadata(metadata)

    def end(self, retries: int) -> None:
        """Write the files that LedgerQ reads."""
        last = self.files.newest
        if last is not None and last.first:
            self.tail.end(last, fill=True)
        self._write_metadata()
        self.ledgerq.write_trackers(retries)

    def remove(self, gone: list[Segment]) -> None:
        self.state.pass_over(max(segment.last for segment in gone))
        self._write_metadata()
        self.sync()  # what is removed must not be wanted any more
        self._before_change()
        for segment in gone:
            self.files.remove(segment)
        with self._access.final():
            self.directory.sync()

    def picture(self) -> object:
        cursors = [
            (c.name, tuple(c.at), sorted(c.leased.items())) for c in self.state.cursors.values()
        ]
        return cursors, [(n, s.size, s.first, s.identity) for n, s in self.files.segments.items()]

    @property
    def changes(self) -> int:
        """The number of messages that were added, and of other changes."""
        return self.state.changes + self.tail.done

    def close(self) -> None:
        """Close all files; what is in memory is lost."""
        with ExitStack() as stack:
            for part in (self.tail, self.state, self.files):
                stack.callback(part.close)


class Turns:
    """A context manager that excludes other processes and threads, and may be entered again within
    itself. A handle that may not write any more takes no turn.

    lock    of the threads
    begin   called when a turn has begun; `end`: called before it ends
    """

    def __init__(
        self, directory: Directory, access: Access, lock: threading.RLock, begin: Call, end: Call
    ) -> None:
        """Take the lock that all sharing processes have. Raises Locked; OSError."""
        self.directory, self.lock, self.begin, self.end = directory, lock, begin, end
        self._access, self._depth = access, 0
        for name in (LOCK, TURN):
            with suppress(FileExistsError):
                directory.create_new(name).close()
        until = time.monotonic() + 1.0  # a process that ends has it alone for a moment
        while (shares := directory.lock(LOCK, shared=True)) is None:
            if time.monotonic() > until:
                raise Locked("another process has the queue open for itself: stop it", access.path)
            time.sleep(LOCK_PAUSE)
        self._shares: Lock | None = shares
        self._turn = directory.turn(TURN)

    def __enter__(self) -> None:
        self.lock.acquire()
        try:
            if self._depth == 0 and self._access.ready:
                if not self._turn.take(TURN_SECONDS):
                    raise Locked(
                        f"another process keeps the turn for {TURN_SECONDS:.0f} seconds",
                        self._access.path,
                    )
                try:
                    self.begin()
                except BaseException:
                    self._turn.release()
                    raise
            self._depth += 1
        except BaseException:
            self.lock.release()
            raise

    def __exit__(self, *exc: object) -> None:
        self._depth -= 1
        try:
            if self._depth == 0:
                try:
                    if self._access.ready:
                        with self._access.final():  # other processes append to what is written
                            self.end()
                finally:
                    self._turn.release()
        finally:
            self.lock.release()

    @contextmanager
    def leave(self) -> Iterator[bool]:
        """Stop sharing -> whether no other process shares it; none can begin within the block."""
        if self._shares is not None:
            self._shares.release()
            self._shares = None
        alone = self.directory.lock(LOCK)
        try:
            yield alone is not None
        finally:
            if alone is not None:
                alone.release()

    def forget(self) -> None:
        """Drop the turn in a forked child, which does not write."""
        self._turn.forget()

    def close(self) -> None:
        self._turn.close()
        if self._shares is not None:
            self._shares.release()
