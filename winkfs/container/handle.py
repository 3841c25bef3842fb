"""Handle: a container that is open. Its life, its lock between threads, begin and end of a call.

`Container` is the handle with what a user may do; the names here are for the rest of this library.
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
from winkfs.access import close_at_end, tell_of_forks
from winkfs.container.draft import Draft
from winkfs.container.ondisk.data import UNNAMED
from winkfs.container.ondisk.typed import Schema
from winkfs.container.read import BulkGet, Content, Files
from winkfs.container.select import Query, all_rows
from winkfs.container.short import FIRST, LOOK, ORDINARY, Short, renewed
from winkfs.container.store import Store
from winkfs.container.table import ALWAYS, ASK, KIND, POINTER, POS, SIZE, FileTable, Times
from winkfs.container.where import parse
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

AT_ONCE: Final = 1 << 20  # bytes of a content that is read through a row
CONTENTS: Final = frozenset({FileType.FILE, FileType.EXEC, FileType.LINK})
FORKED: Final = "of the parent process"
HALF: Final = "closed half-way, close it again"
Moment = tuple[int, int]  # CONTID and FILESIZE


P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
H = TypeVar("H", bound="Handle")


def reads(call: Callable[Concatenate[H, P], T]) -> Callable[Concatenate[H, P], T]:
    """A method that looks at files: it has the lock, and sees the writer's last sync."""

    @functools.wraps(call)
    def locked(self: H, /, *args: P.args, **named: P.kwargs) -> T:
        with self.lock:
            self.catch_up()
            return call(self, *args, **named)

    return locked


def writes(
    call: Callable[Concatenate[H, P], T], *, takes: bool = False
) -> Callable[Concatenate[H, P], T]:
    """A method that changes files: it has the lock, and where it is broken off the next recovers.

    takes  it calls the user's code meanwhile, which must not change anything
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
    """`writes`, of a method that takes its files from an iterable or a source of the user."""
    return writes(call, takes=True)


class Handle:
    """One writer or one of many readers; threads may share it.

    store, content           what is read: other objects after a failed sync, or a fork
    files, changes           what is seen of files by name, and what changes them
    lock                     of all calls, reentrant
    closed                   "" while it is open, else what became of it
    short                    the short way to files, see `short_to`
    losses                   how often a write failed: of what was not synced some is lost
    troubles                 how often that, or an interrupt, came: what was not synced may be lost

    A reader that is copied, pickled, or used in a forked child opens the container anew there. A
    writer refuses: what it has not synced is known to it alone.
    """

    drops_on_exception: Final = True

    def __init__(
        self, base: str, mode: str, *, mapped: bool = True, moment: Moment | None = None
    ) -> None:
        """`mapped`: see `DataFile`; `moment`: at which a reader stays. Raises StalePlan."""
        self.lock = threading.RLock()
        self._dropped: weakref.finalize[[Store, dict[bytes, Draft]], Handle] | None = None
        self._path = absolute(base)  # for processes that run in other folders
        self._take(Store(base, writable=mode == "a", mapped=mapped), moment)
        self.closed = ""
        self._running = ""  # the call that is taking files from a generator or a source
        self._unsure = False  # whether the last call was broken off half-way
        self._lost: KVSeq | None = None  # whose sync failed, and what was not synced is gone
        self.losses = self.troubles = 0
        self._looked = time.monotonic()
        tell_of_forks(self)
        if mode == "a":
            close_at_end(self, base, self.lock)

    def _take(self, store: Store, moment: Moment | None) -> None:
        """Go on with a store that was opened just now."""
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
            store.frozen = moment is not None
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
            _ = self.changes  # what it finds wrong is known at once, and no thread makes a second
        self.bulkget = BulkGet(self.store, self.content)
        self.short = FIRST
        self._forget_drop()
        self._dropped = weakref.finalize(self, _let_go, self.store, self.files.drafts)
        self._dropped.atexit = not self.store.writable  # a writer is closed by `close_at_end`

    @functools.cached_property
    def changes(self) -> Changes:
        return Changes(self.store, self.content, self.files)

    def _forget_drop(self) -> None:
        if self._dropped is not None:
            self._dropped.detach()

    # --- calls of this library ---

    @writes
    def entomb(self, names: Iterable[Name]) -> int:
        """Append tombstones of names that this container does not have -> position of the first.

        They have no effect here: a shard deletes files of other shards so, see `winkfs.dataset`.
        raises  ValueError where there are none, or there is a file of such a name
        """
        keys = [self.key(name) for name in names]
        if not keys or any(map(self.files.find, keys)):
            raise ValueError("tombstones are for names that have no file here")
        return self.changes.entomb(keys)

    @writes
    def learn(self, samples: Sequence[bytes], total: int) -> None:
        """Before files are put: try a dictionary, see `Changes.learn`; not where one was tried."""
        if self.changes.may_learn:
            self.changes.learn(samples, total)

    def settled(self) -> Store:
        """The store, where its index has all that was put. The caller has the lock."""
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
    ) -> Iterator[FileTable]:
        """The rows of the catalog with names that begin so, and with such mtimes: `all_rows`.

        where    a condition of them, see `container.where`; columns: of the user, whose values the
                 rows are to have
        schema   columns that there may be, of which this container may lack some: null; None: its
                 own

        problem  called with each inode that has to be asked and is damaged; its row is left out.
                 None: CorruptError
        """
        with self.lock:
            store = self.settled()
            schema = store.schema if schema is None else schema
            condition = None if where is None else parse(where).bound(schema)
            check_columns(columns, schema)
            query = Query.of_prefix(prefix, times, condition, columns)
            return all_rows(store, self.lock, problem or raise_it, query)

    def positions(
        self,
        prefix: bytes,
        problem: Callable[[CorruptError], None] | None,
        times: Times,
        where: str | None,
        schema: Schema | None = None,
    ) -> Int64:
        """Positions of the inodes of such files, ascending: see `rows`."""
        found = [rows.pos for rows in self.rows(prefix, problem, times, where, schema=schema)]
        return np.sort(np.concatenate([np.empty(0, np.int64), *found]))

    def contents(self, rows: FileTable) -> Iterator[bytes | CorruptError | None]:
        """The contents of the files of some rows, in their order; None for one whose place
        the catalog does not have, or that is larger than AT_ONCE: it is to be read by its name.

        An error is not raised, but given in the place of a content.
        cost  one read a file, of just its entry
        """
        content, columns = self.content, [KIND, POS, POINTER, SIZE]
        for kind, pos, pointer, size in rows.numbers[:, columns].tolist():
            if pointer < 0 or size > AT_ONCE or kind & (ASK | 255) not in CONTENTS:
                yield None
                continue
            try:
                with self.lock:
                    value = content.value(pos, pointer, size, False) if pointer else b""
                yield value if len(value) == size else None
            except CorruptError as error:
                yield error

    def some(self, names: list[Name]) -> tuple[list[bytes], str | None]:
        """The contents of a few thousand files at most, up to the first missing one, and its name.

        raises  CorruptError
        """
        with self.lock:
            self.settled()
            return self.bulkget.get(names, self.short_to(b"").read)

    # --- other processes ---

    def after_fork(self) -> None:
        """In a child: what the parent has in memory, and its lock, are not ours."""
        self._forget_drop()
        self.lock = threading.RLock()
        self.short = ORDINARY
        self.closed = self.closed or FORKED
        if self.store.lock:
            self.store.lock.forget()

    def _renew(self) -> None:
        """In a forked child: open anew what the parent was reading. Else raises Closed."""
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
        """A copied or pickled reader is opened again; a frozen one stays at its moment."""
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

        raises  OSError, also where an earlier sync failed; the handle is closed all the same
        """
        self._end(self._finish)

    def abort(self) -> None:
        """Close, and drop what was changed since the last sync."""
        self._end(lambda: self.store.kv.release())

    def _end(self, last: Callable[[], None]) -> None:
        """Do what is to be done last, and close everything. Raises Busy."""
        with self.lock:
            if self.closed in (FORKED, HALF):  # a child's descriptors: the parent keeps its own
                self._release()
            if self.closed:
                return
            self.check_idle()
            try:
                last()
            finally:
                self._release()

    def _finish(self) -> None:
        """Bring to the disk what is not there yet."""
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
        self.short, self.closed = ORDINARY, HALF
        self._forget_drop()
        self.store.abandon()
        self.closed = "closed"

    def sync(self) -> None:
        """Make everything durable; other processes see it from now on.

        raises  OSError. Where the disk refuses to sync, it may have dropped anything written since
                the last sync: from then on the handle reads what that one left, and refuses to
                write; open the container again to go on
        """
        with self.lock:
            self.catch_up()
            self._check_lost()
            self.check_idle()
            if self.writable:
                self.run(self.changes.sync)
                self.changes.report_unwritten()

    def syncing(self) -> Generator[Callable[[], None], None, None]:
        """`sync` in steps, for one that serves others meanwhile: each thing that this gives waits
        for the disk, and is to be called before the next step.

        raises  OSError, as `sync`; so does what it gives, and that is to be thrown in here
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
        """Follow the writer no more: the files stay those of now, whatever it does to them.

        For a reader. Memory and cost: none.
        """
        self.store.frozen = not self.writable
        self.short = ORDINARY

    def follow(self) -> bool:
        """Go on to the writer's last sync, and stay there -> whether anything has changed."""
        with self.lock:
            store = self.store
            before = store.synced, store.generation
            store.frozen = False
            try:
                self._looked = -LOOK  # also whether other files are in the place of ours
                self.catch_up()
            finally:
                store.frozen, self.short = True, ORDINARY
            return before != (store.synced, store.generation)

    @reads
    def follow_files(self) -> None:
        """Before many files are put: keep what `save_catalog` writes of them."""
        self.store.catalog.follow()

    @writes
    def save_catalog(self) -> None:
        """Sync, and bring BASE.cat up to date. Raises OSError, but not where the disk is full."""
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
        """Refuse a dead handle; get over an interrupted call; catch up with the writer."""
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
        """The short way to a file as it is now, b"": to any. The caller has caught up."""
        pos = self.store.index.overlay.get(key, 0)
        self.short = renewed(self.short, self.store, self.files.drafts, pos)
        return self.short

    def _check_lost(self) -> None:
        if self._lost is not None:
            self._lost.check_lost()

    def need_writable(self) -> None:
        """Refuse what cannot write now; get over a call that was broken off."""
        if self.closed or self._unsure or not self.store.writable:
            self.catch_up()
        if not self.store.writable:
            self._check_lost()
            raise ReadOnly("opened for reading: open it with mode 'a' to write", self.base)
        if self._running:
            self.check_idle()

    def check_idle(self) -> None:
        """Raises Busy inside of what a running call takes its files from."""
        if self._running:
            what = f"{self._running} is running on this handle: what it reads from cannot change it"
            raise Busy(what, self.base)

    def run(self, action: Callable[[], T]) -> T:
        """Run a step that may change files, for a caller that has the lock."""
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
        """Where the disk refused or a signal interrupted a change, have the next call recover.

        Ctrl-C, a signal handler that raises and MemoryError come anywhere.
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
        """After a failed sync: read on, as the last sync left everything."""
        self._lost = self.store.kv
        self.store.fall_back()
        self._attach()
        self._unsure = False

    def _recover(self) -> None:
        self.changes.recover()
        self._unsure = False

    def key(self, name: Name) -> bytes:
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
    """Raises ValueError for a column that there is not."""
    for name in names:
        if name not in schema:
            there = ", ".join(schema) or "there are none"
            raise ValueError(f"there is no column {name!r} ({there})")


def _let_go(store: Store, drafts: Mapping[bytes, Draft]) -> None:
    """Close what a handle had that is gone itself. As in a crash, nothing is synced; where that
    loses something, a line on stderr reports it."""
    lost = store.writable and (drafts or store.kv.end != store.synced or store.doomed)
    with contextlib.suppress(OSError):
        store.close()
    what = "writer: what was not synced is lost" if store.writable else "container"
    if lost:
        with contextlib.suppress(Exception):  # stderr may be closed
            print(f"winkfs: {store.base}: unclosed {what}", file=sys.stderr, flush=True)
    warnings.warn(f"unclosed {what}: {store.base}", ResourceWarning, stacklevel=3)


def _moment(store: Store) -> Moment:
    return store.settings.contid, store.kv.end
