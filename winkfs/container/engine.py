"""Engine: a container that is open. Its life, its lock between threads, begin and end of a call.

`Container` is what a user holds; the rest of this library asks the engine for more.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from winkformats.arrays import Int64
from winkformats.disk.paths import absolute
from winkformats.errors import CorruptError, raise_it
from winkfs.access import close_at_end, tell_of_forks
from winkfs.container.catalogquery import Query, all_rows, settled
from winkfs.container.draft import Draft
from winkfs.container.ondisk.data import UNNAMED
from winkfs.container.ondisk.inode import Attrs, check_directory, check_ftype, check_length
from winkfs.container.ondisk.typed import Schema, check_schema
from winkfs.container.read import (
    LOOK,
    ORDINARY,
    BulkGet,
    Content,
    Short,
    renewed,
    short_way,
)
from winkfs.container.store import Store
from winkfs.container.table import ALWAYS, ASK, KIND, POINTER, SIZE, FileTable, Times
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
from winkfs.units import shown

AT_ONCE: Final = 1 << 20  # bytes of a content that is read through a row
BESIDE: Final = 32  # bytes of an entry beside its value, about
CONTENTS: Final = frozenset({FileType.FILE, FileType.EXEC, FileType.LINK})
FORKED: Final = "of the parent process"
HALF: Final = "closed half-way, close it again"
Moment = tuple[int, int]  # CONTID and FILESIZE


class Engine:
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

    def __init__(self, base: str, mode: str, *, mapped: bool = True) -> None:
        """`mapped`: see `DataFile`."""
        self.lock = threading.RLock()
        self._dropped: weakref.finalize[[Store, dict[bytes, Draft]], Engine] | None = None
        self._path = absolute(base)  # for processes that run in other folders
        self.store = Store(base, writable=mode == "a", mapped=mapped)
        if mode == "a" and UNNAMED in self.store.kv.superblock:
            self.store.abandon()
            what = (
                "the disk failed at the end of a compaction, and after a power cut the older file "
                "may be back, without what is written from now on: run winkfs compact again"
            )
            raise NotAllowed(what, base)
        try:
            self._attach()
        except BaseException:
            self.store.abandon()
            raise
        self.closed = ""
        self._running = ""  # the call that is taking files from a generator or a source
        self._unsure = False  # whether the last call was broken off half-way
        self._lost: OSError | None = None  # a sync failed, and what was not synced is gone
        self.losses = 0
        self.troubles = 0
        self._looked = time.monotonic()
        tell_of_forks(self)
        if mode == "a":
            close_at_end(self, base, self.lock)

    def _attach(self) -> None:
        self._generation = self.store.generation
        self.content = Content(self.store)
        self.changes = Changes(self.store, self.content)
        self.files = self.changes.files
        self.bulkget = BulkGet(self.store, self.content)
        self.short = short_way(self.store, self.changes.drafts)
        self._forget_drop()
        self._dropped = weakref.finalize(self, _let_go, self.store, self.changes.drafts)
        self._dropped.atexit = not self.store.writable  # a writer is closed by `close_at_end`

    def _forget_drop(self) -> None:
        if self._dropped is not None:
            self._dropped.detach()

    # --- calls of this library ---

    def begin(self, key: bytes, ftype: int, attrs: Attrs | None) -> Draft:
        """Create an empty file, to be written to -> its draft. Cost: nothing is written before
        there is content, or a sync.

        key     an inode key that there is not
        attrs   None: the defaults of the ftype
        """
        with self.lock:
            self.need_writable()
            draft: Draft = self.run(self.changes.begin, key, None, ftype, attrs)
            return draft

    def amend(
        self, draft: Draft, mode: int | None, uid: int, gid: int, ns: int | None, ctime_ns: int
    ) -> None:
        """Change mode, owner and mtime of a file at once: see `Changes.amend`. Of a draft that
        there is."""
        with self.lock:
            self.need_writable()
            self.run(self.changes.amend, draft, mode, uid, gid, ns, ctime_ns)

    def write_many(self, key: bytes, pieces: Sequence[tuple[int, bytes]], ns: int) -> None:
        """See `Container.write_many`. Of an inode key and bytes, which are not looked at again."""
        for offset, data in pieces:
            check_length(offset + len(data), key)
        with self.lock:
            self.need_writable()
            self.run(self.changes.write_many, key, pieces, ns)

    def grow(self, draft: Draft, data: bytes, ns: int) -> bool:
        """See `Changes.grow`. Of a draft that there is."""
        with self.lock:
            self.need_writable()
            grown: bool = self.run(self.changes.grow, draft, data, ns)
            return grown

    def put_file(
        self,
        name: Name,
        source: Any,
        *,
        mtime_ns: int | None = None,
        ftype: int = FileType.FILE,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        xattrs: Mapping[bytes, bytes] | None = None,
        fileid: int | None = None,
    ) -> int:
        """See `Container.put_file`. `fileid`: of `Store.new_fileid`, used by no file; None: new."""
        key, ftype = self.key(name), check_ftype(ftype)
        ns = self.changes.clamped.nearest(mtime_ns, name)
        check_directory(ftype, name, 0)
        if not hasattr(source, "read"):
            raise TypeError(f"a source has a method read, which {shown(source)} has not")
        with self.lock:
            self.need_writable()
            owner = self.changes.attrs_for(ftype, mode, uid, gid, xattrs)
            size: int = self.consume(
                "put_file", lambda: self.changes.put_stream(key, source, ns, ftype, owner, fileid)
            )
            return size

    def entomb(self, names: Iterable[Name]) -> int:
        """Append tombstones of names that this container does not have -> position of the first.

        They say nothing here: a shard deletes files of other shards so, see `winkfs.dataset`.
        raises  ValueError where there are none, or there is a file of such a name
        """
        keys = [self.key(name) for name in names]
        with self.lock:
            self.need_writable()
            if not keys or any(map(self.files.find, keys)):
                raise ValueError("tombstones are for names that have no file here")
            pos: int = self.run(self.changes.entomb, keys)
            return pos

    def add_columns(self, columns: Mapping[str, str]) -> None:
        """See `Container.add_columns`. The caller has checked the handle."""
        known = dict(self.store.schema)
        for name in columns:
            if name in known:
                raise ValueError(f"the container has a column {name!r}: {known[name]}")
        self.run(self.changes.declare, check_schema(known | dict(columns)))

    def drop_columns(self, names: list[str]) -> None:
        """See `Container.drop_columns`. The caller has checked the handle."""
        schema = dict(self.store.schema)
        check_columns(names, schema)
        self.run(self.changes.declare, {n: kind for n, kind in schema.items() if n not in names})

    def set_compression(self, level: int) -> None:
        """Compress new content with this level of zstd; 0: not at all.

        raises  NotAllowed where the container cannot have compressed content; Refusal
        """
        with self.lock:
            self.need_writable()
            self.run(self.changes.set_compression, level)

    def learn(self, samples: Sequence[bytes], total: int) -> None:
        """Before files are put: try a dictionary, see `Changes.learn`; not where one was tried."""
        with self.lock:
            self.need_writable()
            if self.changes.may_learn:
                self.run(self.changes.learn, samples, total)

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
            found = all_rows(store, self.lock, problem or raise_it, query)
        return map(partial(self._settled, problem, query), found)

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

    def _settled(
        self, problem: Callable[[CorruptError], None] | None, query: Query, rows: FileTable
    ) -> FileTable:
        with self.lock:
            return settled(self.store, rows, query, problem)

    def contents(self, rows: FileTable) -> Iterator[bytes | CorruptError | None]:
        """The contents of the files of some rows, in their order; None for one that the catalog
        does not say the place of, or that is larger than AT_ONCE: it is to be read by its name.

        An error is not raised, but given in the place of a content.
        cost  one read a file, of just its entry
        """
        kv = self.store.kv
        kv.show(kv.end - 1)  # all of it written
        read, layout, end, name = kv.storage.read, kv.layout, kv.end, kv.storage.name
        said = rows.numbers[:, [KIND, POINTER, SIZE]].tolist()
        for kind, pointer, size in said:
            if pointer <= 0 or size > AT_ONCE or kind & (ASK | 255) not in CONTENTS:
                yield b"" if pointer == 0 and kind & (ASK | 255) in CONTENTS else None
                continue
            try:
                entry = layout.read(read, pointer, end, name, size + BESIDE)
                plain = len(entry.value) == size and not entry.deleted
                yield entry.value if plain else None
            except CorruptError as error:
                yield error

    def get_some(self, names: Sequence[Name]) -> list[bytes]:
        """The contents of a few thousand files at most, up to the first that is missing."""
        with self.lock:
            self.settled()
            return self.bulkget.get(list(names), self.short_to(b""))[0]

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
        store = Store(self._path, writable=False, mapped=old.mapped)
        try:
            if old.frozen:
                _stay(store, _moment(old))
        except BaseException:
            store.abandon()
            raise
        old.abandon()
        self.store, self.closed, self._unsure = store, "", False
        self._attach()

    def pickled(self) -> tuple[str, bool, Moment | None]:
        """What a reader elsewhere is made of: path, whether it is mapped, where it stays."""
        if self.writable:
            raise TypeError(
                f"{self.base}: a writer cannot be pickled or copied: sync, and open it for reading"
            )
        if self.closed not in ("", FORKED):
            raise Closed(f"the container is {self.closed}", self.base)
        return self._path, self.store.mapped, _moment(self.store) if self.store.frozen else None

    def stay(self, moment: Moment) -> None:
        """Freeze it. Raises StalePlan where it is not as it was at that moment."""
        _stay(self.store, moment)
        self.short = ORDINARY

    # --- the handle ---

    @property
    def base(self) -> str:
        """The path without .data."""
        return self.store.base

    @property
    def writable(self) -> bool:
        return self.store.writable

    def close(self) -> None:
        """Sync, bring the derived files up to date where that is quick, release the lock.
        Idempotent.

        raises  OSError, also where an earlier sync failed; the handle is closed all the same
        """
        with self.lock:
            if self.closed in (FORKED, HALF):  # a child's descriptors: the parent keeps its own
                self.store.abandon()
                self.closed = "closed"
            if self.closed:
                return
            self.check_idle()
            try:
                self._check_lost()
                if self.writable:
                    if self._unsure:
                        self._recover()
                    self.changes.close()
                    self.store.close()
                    if self.changes.clamped.number:
                        line = f"{self.store.base}: {self.changes.clamped.line()}"
                        warn_caller(line, UserWarning)
                    self.changes.report_unwritten()
            finally:
                self.short, self.closed = ORDINARY, HALF
                self._forget_drop()
                self.store.abandon()
                self.closed = "closed"

    def abort(self) -> None:
        """See `Container.abort`."""
        with self.lock:
            if self.closed == HALF:
                self.store.abandon()
                self.closed = "closed"
            if self.closed:
                return
            self.check_idle()
            self.short, self.closed = ORDINARY, HALF
            self._forget_drop()
            self.store.close()
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

    def check(self) -> None:
        """Get over a call that was broken off."""
        with self.lock:
            self.catch_up()

    def freeze(self) -> None:
        """Follow the writer no more: the files stay those of now, whatever it does to them.

        For a reader. Memory and cost: none.
        """
        with self.lock:
            self.catch_up()
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

    def follow_files(self) -> None:
        """Before many files are put: keep what `save_catalog` writes of them."""
        with self.lock:
            self.catch_up()
            self.store.catalog.follow()

    def save_catalog(self) -> None:
        """Sync, and bring BASE.cat up to date. Raises OSError, but not where the disk is full."""
        with self.lock:
            self.sync()
            self.run(self.store.catalog.save)

    def keep_mark(self, packed: dict[str, int]) -> None:
        """Sync, and write an index that says when a tree was packed: see `archive.update`."""
        with self.lock:
            self.sync()
            self.store.idx.packed = packed
            self.run(self.store.merge)

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
        self.short = renewed(self.short, self.store, self.changes.drafts, key)
        return self.short

    def _check_lost(self) -> None:
        if self._lost is not None:
            raise OSError(self._lost.errno, self._lost.strerror, self._lost.filename)

    def need_writable(self) -> None:
        """Refuse what cannot write now; get over a call that was broken off."""
        if self.closed or self._unsure or not self.store.writable:
            self.catch_up()
        if self._lost is not None:
            self._check_lost()
        if not self.store.writable:
            raise ReadOnly("opened for reading: open it with mode 'a' to write", self.base)
        if self._running:
            self.check_idle()

    def check_idle(self) -> None:
        """Raises Busy inside of what a running call takes its files from."""
        if self._running:
            what = f"{self._running} is running on this handle: what it reads from cannot change it"
            raise Busy(what, self.base)

    def consume(self, call: str, action: Callable[[], Any]) -> Any:
        """Run a change that calls the user's code meanwhile. The caller has checked the handle."""
        try:
            self._running = call
            return self.run(action)
        finally:
            self._running = ""

    def run(self, action: Callable[..., Any], *args: Any) -> Any:
        """Run a change. Where the disk refuses or a signal interrupts it, the next call recovers.

        Ctrl-C, a signal handler that raises and MemoryError come anywhere.
        """
        try:
            return action(*args)
        except BaseException as error:
            kv = self.store.kv
            sure = isinstance(error, Exception) and not isinstance(error, MemoryError)
            if not sure or kv.broken:
                self._unsure, self.short = True, ORDINARY
                self.troubles += 1
            self.losses += kv.broken
            if kv.lost is not None:
                self._fall_back()
            raise

    def _fall_back(self) -> None:
        """After a failed sync: read on, as the last sync left everything."""
        try:
            self.store.kv.check_lost()
        except OSError as error:
            self._lost = error
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


def again(kind: type[Any], path: str, mapped: bool, moment: Moment | None) -> Any:
    """A reader that was pickled or copied: a Container, `kind`. See `Engine.pickled`."""
    handle = kind(path, "r", mapped=mapped)
    if moment is not None:
        try:
            handle.engine.stay(moment)
        except BaseException:
            handle.close()
            raise
    return handle


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


def _stay(store: Store, moment: Moment) -> None:
    """Freeze a store. Raises StalePlan where it is not as it was at that moment."""
    if _moment(store) != moment:
        raise StalePlan("was changed since it was opened: open it again", store.base)
    store.frozen = True


def _moment(store: Store) -> Moment:
    return store.settings.contid, store.kv.end
