"""Handle: an open container. Opening, closing, the lock between threads, begin and end of a call.

`Container` adds the methods for users; those here are for the rest of this library.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, TypeVarTuple

import numpy as np

from winkformats.arrays import Int64
from winkformats.disk.paths import absolute
from winkformats.errors import CorruptError, raise_it
from winkformats.kv.sequence import KVSeq
from winkfs.access import close_at_end, watch_forks
from winkfs.container.draft import Draft
from winkfs.container.ondisk.data import UNNAMED
from winkfs.container.ondisk.typed import Schema
from winkfs.container.read import BulkGet, Content, Files
from winkfs.container.select import Query, all_rows
from winkfs.container.short import FIRST, LOOK, ORDINARY, Short, renewed
from winkfs.container.store import Store
from winkfs.container.table import ALWAYS, ASK, KIND, POINTER, POS, SIZE, FileTable, Times
from winkfs.container.write import Changes
from winkfs.entry import FileType
from winkfs.errors import (
    Busy,
    Closed,
    NameTooLong,
    NotAllowed,
    ReadOnly,
    StalePlan,
    warn_caller,
)
from winkfs.names import INODE, Name, to_bytes, to_str

ROW_READ_BYTES: Final = 1 << 20  # content up to which `contents` reads a file
CONTENTS: Final = frozenset({FileType.FILE, FileType.EXEC, FileType.LINK})
FORKED: Final = "of the parent process"
CLOSED_HALFWAY: Final = "closed half-way, close it again"
Moment = tuple[int, int]  # CONTID and FILESIZE


P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
H = TypeVar("H", bound="Handle")


def reads(call: Callable[Concatenate[H, P], T]) -> Callable[Concatenate[H, P], T]:
    """Decorate a method that reads: it runs with the lock, and sees the writer's last sync."""

    @functools.wraps(call)
    def locked(self: H, /, *args: P.args, **named: P.kwargs) -> T:
        with self.lock:
            self.catch_up()
            return call(self, *args, **named)

    return locked


def writes(
    call: Callable[Concatenate[H, P], T], *, takes: bool = False
) -> Callable[Concatenate[H, P], T]:
    """Decorate a method that changes files: it runs with the lock; if it is interrupted, the next
    call recovers.

    takes  it calls code of the user, which must not change anything meanwhile
    """
    running = call.__name__ if takes else ""

    @functools.wraps(call)
    def locked(self: H, /, *args: P.args, **named: P.kwargs) -> T:
        with self.lock:
            self.need_writable()
            try:
                self._running = running
                return call(self, *args, **named)
            except BaseException as error:
                self._broken_off(error)
                raise
            finally:
                self._running = ""

    return locked


def consumes(call: Callable[Concatenate[H, P], T]) -> Callable[Concatenate[H, P], T]:
    """Decorate, as `writes`, a method that takes files from an iterable or a source of the user."""
    return writes(call, takes=True)


class Handle:
    """The one writer of a container, or one of many readers; threads may share it.

    store, content  the open files; other objects after a failed sync or a fork
    files, changes  read side and write side, by name
    lock            held during each call, reentrant
    closed          "" while the handle is open, else how it ended
    short           the short way to files, see `short_to`
    losses          number of failed writes; some unsynced changes are lost
    troubles        number of failed writes and interrupts; unsynced changes may be lost

    A reader that is copied, pickled, or used in a forked child opens the container anew there. A
    writer refuses: its unsynced changes are only in its memory.
    """

    drops_on_exception: Final = True

    def __init__(
        self, base: str, mode: str, *, mapped: bool = True, moment: Moment | None = None
    ) -> None:
        """Open a container. `mapped`: see `DataFile`.

        moment  the state at which a reader is frozen; None: it follows the writer
        raises  StalePlan if the container is in another state; as `Store`
        """
        self.lock = threading.RLock()
        self._dropped: weakref.finalize[[Store, dict[bytes, Draft]], Handle] | None = None
        self._path = absolute(base)  # for processes that run in other folders
        self._take(Store(base, writable=mode == "a", mapped=mapped), moment)
        self.closed = ""
        self._running = ""  # name of the call that takes files from an iterable or a source
        self._unsure = False  # whether the last call was interrupted
        self._lost: KVSeq | None = None  # the file whose sync failed
        self.losses = self.troubles = 0
        self._looked = time.monotonic()
        watch_forks(self)
        if mode == "a":
            close_at_end(self, base, self.lock)

    def _take(self, store: Store, moment: Moment | None) -> None:
        """Use a store that was just opened; close it if that fails."""
        try:
            if store.writable and UNNAMED in store.kv.superblock:
                what = (
                    "the disk failed at the end of a compaction, and after a power cut the older "
                    "file may be back, without what is written from now on: run winkfs compact "
                    "again"
                )
                raise NotAllowed(what, store.base)
            if moment is not None and moment != _moment(store):
                raise StalePlan("was changed since it was opened: open it again", store.base)
            store.frozen = store.frozen or moment is not None  # or it is far
            self.store = store
            self._attach()
        except BaseException:
            store.abandon()
            raise

    def _attach(self) -> None:
        self._generation = self.store.generation
        self.content = Content(self.store)
        self.files = Files(self.store, self.content)
        self.__dict__.pop("changes", None)
        if self.store.writable:
            _ = self.changes  # made now, so that no two threads make one, and damage is noted early
        self.bulkget = BulkGet(self.store, self.content)
        self.short = FIRST
        self._forget_drop()
        self._dropped = weakref.finalize(self, _release_unclosed, self.store, self.files.drafts)
        self._dropped.atexit = not self.store.writable  # a writer is closed by `close_at_end`

    @functools.cached_property
    def changes(self) -> Changes:
        return Changes(self.store, self.content, self.files)

    def _forget_drop(self) -> None:
        if self._dropped is not None:
            self._dropped.detach()

    # --- calls of this library ---

    @writes
    def append_tombstones(self, names: Iterable[Name]) -> int:
        """Append tombstones of names that this container does not have -> position of the first.

        So a shard deletes files of other shards, see `winkfs.dataset`; here they have no effect.
        raises  ValueError if there are no names, or a file has one of them
        """
        keys = [self.key(name) for name in names]
        if not keys or any(map(self.files.find, keys)):
            raise ValueError("tombstones are for names that have no file here")
        return self.changes.append_tombstones(keys)

    @writes
    def learn(self, samples: Sequence[bytes], total: int) -> None:
        """Train a dictionary before files are put, see `Changes.learn`, unless one was tried."""
        if self.changes.may_learn:
            self.changes.learn(samples, total)

    def settled(self) -> Store:
        """Return the store after all drafts are in its index. The caller has the lock."""
        self.catch_up()
        if self.store.writable:
            self.run(self.changes.settle)
        return self.store

    def rows(
        self,
        prefix: bytes,
        problem: Callable[[CorruptError], None] | None,
        times: Times = ALWAYS,
        where: str | None = None,
        columns: Sequence[str] = (),
        schema: Schema | None = None,
        start: bytes = b"",
        at_once: int | None = None,
    ) -> Iterator[FileTable]:
        """Yield rows of the catalog by prefix of the name and mtime: see `all_rows`.

        where    a condition on the files, see `container.where`
        columns  columns of the user whose values the rows contain
        schema   columns that may be used; one that the container lacks is null. None: its own
        start    the least name
        at_once  blocks of the catalog that are read together; None: the default
        problem  called with each damaged inode that must be read; its row is left out. None: it is
                 raised as CorruptError
        """
        with self.lock:
            store = self.settled()
            schema = store.schema if schema is None else schema
            condition = None
            if where is not None:
                from winkfs.container.where import parse  # late: most commands have no condition

                condition = parse(where).bound(schema)
            check_columns(columns, schema)
            query = Query.of_prefix(prefix, times, condition, columns)
            query = query._replace(low=max(prefix, start), at_once=at_once)
            return all_rows(store, self.lock, problem or raise_it, query)

    def positions(
        self,
        prefix: bytes,
        problem: Callable[[CorruptError], None] | None,
        times: Times,
        where: str | None,
        schema: Schema | None = None,
    ) -> Int64:
        """Return the positions of the inodes of the files that match, ascending: see `rows`."""
        found = [rows.pos for rows in self.rows(prefix, problem, times, where, schema=schema)]
        return np.sort(np.concatenate([np.empty(0, np.int64), *found]))

    def contents(self, rows: FileTable) -> Iterator[bytes | CorruptError | None]:
        """Yield the contents of the files of rows, in their order.

        ->    None for a file that has to be read by its name: the catalog does not have its
              position, or it is larger than ROW_READ_BYTES; an error in place of a damaged content
        cost  one read a file, of just its entry
        """
        content, columns = self.content, [KIND, POS, POINTER, SIZE]
        for kind, pos, pointer, size in rows.numbers[:, columns].tolist():
            if pointer < 0 or size > ROW_READ_BYTES or kind & (ASK | 255) not in CONTENTS:
                yield None
                continue
            try:
                with self.lock:
                    value = content.value(pos, pointer, size, False) if pointer else b""
                yield value if len(value) == size else None
            except CorruptError as error:
                yield error

    def some(self, names: list[Name]) -> tuple[list[bytes], str | None]:
        """Return the contents of a few thousand files, up to the first missing one, and its name;
        of a container that is far, fewer if they have many bytes.

        raises  CorruptError
        """
        with self.lock:
            self.settled()
            return self.bulkget.get(names, self.short_to(b"").read)

    def portions(self, names: list[Name]) -> Iterator[tuple[list[bytes], str | None]]:
        """Yield what `some` returns until all files were read, or one is missing."""
        at, count = 0, len(names)
        while at < len(names):
            found, missing = self.some(names[at : at + count])
            yield found, missing
            if missing is not None:
                return
            at += len(found)
            count = 2 * len(found)  # fewer than were asked for: each call looks all of them up

    # --- other processes ---

    def after_fork(self) -> None:
        """Forget, in a forked child, the lock and the state in memory: they are the parent's."""
        self._forget_drop()
        self.lock = threading.RLock()
        self.short = ORDINARY
        self.closed = self.closed or FORKED
        if self.store.lock:
            self.store.lock.forget()

    def _renew(self) -> None:
        """Open the container anew in a forked child of a reader; otherwise raise Closed."""
        old = self.store
        if self.closed != FORKED:
            raise Closed(f"the container is {self.closed}", old.base)
        if old.writable:
            raise Closed("a writer does not survive fork: open it anew in the child", old.base)
        moment = _moment(old) if old.frozen else None
        self._take(Store(self._path, writable=False, mapped=old.mapped), moment)
        old.abandon()
        self.closed, self._unsure = "", False

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy or pickle a reader as a new handle; a frozen one stays at its state."""
        if self.writable:
            raise TypeError(
                f"{self.base}: a writer cannot be pickled or copied: sync, and open it for reading"
            )
        if self.closed not in ("", FORKED):
            raise Closed(f"the container is {self.closed}", self.base)
        moment = _moment(self.store) if self.store.frozen else None
        kind = partial(type(self), mapped=self.store.mapped, moment=moment)
        return kind, (self._path, "r")

    # --- the handle ---

    @property
    def base(self) -> str:
        """The path without .data."""
        return self.store.base

    @property
    def writable(self) -> bool:
        return self.store.writable

    def close(self) -> None:
        """Sync, bring index and catalog up to date where that is quick, release the lock.
        Idempotent.

        raises  OSError, also if an earlier sync failed; the handle is closed all the same
        """
        self._end(self._finish)

    def abort(self) -> None:
        """Close, and drop all changes since the last sync."""
        self._end(lambda: self.store.kv.release())

    def _end(self, last: Callable[[], None]) -> None:
        """Run `last`, and close everything. Raises Busy."""
        with self.lock:
            if self.closed in (FORKED, CLOSED_HALFWAY):  # a child closes its own descriptors only
                self._release()
            if self.closed:
                return
            self.check_idle()
            try:
                last()
            finally:
                self._release()

    def _finish(self) -> None:
        """Write all that is not on the disk yet."""
        self._check_lost()
        if self.store.writable:
            if self._unsure:
                self._recover()
            self.changes.close()
            self.store.kv.release()
            if self.changes.clamped.number:
                line = f"{self.store.base}: {self.changes.clamped.line()}"
                warn_caller(line, UserWarning)
            self.changes.report_unwritten()

    def _release(self) -> None:
        self.short, self.closed = ORDINARY, CLOSED_HALFWAY
        self._forget_drop()
        self.store.abandon()
        self.closed = "closed"

    def sync(self) -> None:
        """Make everything durable; other processes see it from now on.

        raises  OSError. If the disk fails to sync, it may have dropped anything written since the
                last sync: from then on the handle reads the state of that sync, and refuses to
                write; open the container again to write
        """
        with self.lock:
            self.catch_up()
            self._check_lost()
            self.check_idle()
            if self.writable:
                self.run(self.changes.sync)
                self.changes.report_unwritten()

    def syncing(self) -> Generator[Callable[[], None], None, None]:
        """Sync in steps, for a server that answers other requests meanwhile.

        ->      functions that wait for the disk, each to be called before the next step; if one
                raises, the caller throws its error into this generator
        raises  OSError, as `sync`
        """
        with self.lock:
            self.catch_up()
            self._check_lost()
            steps = self.changes.syncing() if self.writable else iter(())
        kv, more = self.store.kv, object()
        while True:
            with self.lock:
                if self.run(lambda: next(steps, more)) is more:
                    self.changes.report_unwritten()
                    return
            try:
                yield kv.sync_storage
            except OSError as error:
                with self.lock:
                    self.run(partial(raise_it, error))

    @reads
    def freeze(self) -> None:
        """Stop following the writer, for a reader: later changes are not visible.

        Memory and cost: none.
        """
        self.store.frozen = not self.writable
        self.short = ORDINARY

    def follow(self) -> bool:
        """Advance a frozen reader to the writer's last sync -> whether anything has changed."""
        with self.lock:
            store = self.store
            before = store.synced, store.generation
            store.frozen = False
            try:
                self._looked = -LOOK  # checks also whether the files were replaced
                self.catch_up()
            finally:
                store.frozen, self.short = True, ORDINARY
            return before != (store.synced, store.generation)

    @reads
    def follow_files(self) -> None:
        """Keep, from now on, the rows of files that are put, for `save_catalog`."""
        self.store.catalog.follow()

    @writes
    def save_catalog(self) -> None:
        """Sync, and bring BASE.cat up to date. Raises OSError, unless the disk is full."""
        self.sync()
        self.store.catalog.save()

    @writes
    def keep_mark(self, packed: dict[str, int]) -> None:
        """Sync, and write an index that records when a tree was packed: see `archive.update`."""
        self.sync()
        self.store.packed = packed
        self.store.merge()

    # --- begin and end of a call: the caller has the lock ---

    def catch_up(self) -> None:
        """Begin a call: refuse a closed handle, recover from an interrupted call, see the last
        sync."""
        if self.closed:
            self._renew()
        store = self.store
        if store.writable:
            if self._unsure:
                self._recover()
            if store.index.bulk:
                self.run(self.files.settle_bulk)
            return
        if store.frozen:
            return
        now = time.monotonic()
        if store.moved() or now - self._looked > LOOK or self._unsure:
            self._looked, self.short = now, ORDINARY
            refresh, self._unsure = (store.reopen if self._unsure else store.refresh), True
            refresh()
            self._unsure = False
        if store.generation != self._generation:
            self._attach()

    def short_to(self, key: bytes) -> Short:
        """Return the short way to the file of a key as it is now, b"": to any file. The caller has
        called `catch_up`."""
        pos = self.store.index.overlay.get(key, 0)
        self.short = renewed(self.short, self.store, self.files.drafts, pos)
        return self.short

    def _check_lost(self) -> None:
        if self._lost is not None:
            self._lost.check_lost()

    def need_writable(self) -> None:
        """Begin a call that writes: raise ReadOnly if that is not possible; recover from an
        interrupted call."""
        if self.closed or self._unsure or not self.store.writable:
            self.catch_up()
        if not self.store.writable:
            self._check_lost()
            raise ReadOnly("opened for reading: open it with mode 'a' to write", self.base)
        if self._running:
            self.check_idle()

    def check_idle(self) -> None:
        """Raise Busy if called by an iterable or source from which a running call takes files."""
        if self._running:
            what = f"{self._running} is running on this handle: what it reads from cannot change it"
            raise Busy(what, self.base)

    def run(self, action: Callable[[], T]) -> T:
        """Run a step that may change files. The caller has the lock."""
        try:
            return action()
        except BaseException as error:
            self._broken_off(error)
            raise

    @writes
    def change(self, action: Callable[[*Ts], T], *given: *Ts) -> T:
        """Run a method of `changes`."""
        return action(*given)

    def _broken_off(self, error: BaseException) -> None:
        """Have the next call recover if a write failed or a signal interrupted a change.

        Ctrl-C, a signal handler that raises and MemoryError can come anywhere.
        """
        kv = self.store.kv
        sure = isinstance(error, Exception) and not isinstance(error, MemoryError)
        if not sure or kv.broken:
            self._unsure, self.short = True, ORDINARY
            self.troubles += 1
        self.losses += kv.broken
        if kv.lost is not None:
            self._fall_back()

    def _fall_back(self) -> None:
        """Become a reader of the last sync, after a failed one."""
        self._lost = self.store.kv
        self.store.fall_back()
        self._attach()
        self._unsure = False

    def _recover(self) -> None:
        self.changes.recover()
        self._unsure = False

    def key(self, name: Name) -> bytes:
        """Return the inode key of a name. Raises ValueError; NameTooLong."""
        raw = name.encode("utf-8", "surrogateescape") if type(name) is str else to_bytes(name)
        limit = min(65_000, self.store.kv.layout.key.limit - 3)
        if not raw or b"\0" in raw:
            raise ValueError(f"a name must not be empty or have NUL in it: {name!r}")
        if len(raw) > limit:
            raise NameTooLong(
                f"a name may have {limit} bytes, this has {len(raw)}", to_str(raw[:80])
            )
        return raw + INODE


def check_columns(names: Iterable[str], schema: Schema) -> None:
    """Raise ValueError for a column that does not exist."""
    for name in names:
        if name not in schema:
            there = ", ".join(schema) or "there are none"
            raise ValueError(f"there is no column {name!r} ({there})")


def _release_unclosed(store: Store, drafts: Mapping[bytes, Draft]) -> None:
    """Close the files of a handle that was garbage-collected. As in a crash, nothing is synced; a
    line on stderr reports lost changes."""
    lost = store.writable and (drafts or store.kv.end != store.synced or store.pending_deletes)
    with contextlib.suppress(OSError):
        store.close()
    what = "writer: what was not synced is lost" if store.writable else "container"
    if lost:
        with contextlib.suppress(Exception):  # stderr may be closed
            print(f"winkfs: {store.base}: unclosed {what}", file=sys.stderr, flush=True)
    warnings.warn(f"unclosed {what}: {store.base}", ResourceWarning, stacklevel=3)


def _moment(store: Store) -> Moment:
    return store.settings.contid, store.kv.end
