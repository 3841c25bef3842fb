"""Handle: a container that is open. Its life, its lock between threads, and what ends a call."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, Self

from winkformats.disk.paths import absolute
from winkfs.container.entry import to_bytes, to_str
from winkfs.container.ondisk.data import SUFFIX, UNNAMED
from winkfs.container.ondisk.names import follow_names
from winkfs.container.read import LOOK, BulkGet, Content, Read, fast_reader
from winkfs.container.store import Store
from winkfs.container.write import Changes
from winkfs.errors import Busy, Closed, NameTooLong, NotAllowed, ReadOnly, StalePlan
from winkfs.names import Name
from winkfs.reader import tell_of_forks

FORKED: Final = "of the parent process"
Moment = tuple[int, int]  # CONTID and FILESIZE


class Handle:
    """One writer or one of many readers; threads may share it.

    A reader that is copied, pickled, or used in a forked child opens the container anew there. A
    writer refuses: what it has not synced is known to it alone.
    """

    def __init__(self, base: str, mode: str, *, mapped: bool = True) -> None:
        """`mapped`: see `DataFile`."""
        self._lock = threading.RLock()
        self._path = absolute(base)  # for processes that run in other folders
        self._store = Store(base, writable=mode == "a", mapped=mapped)
        if mode == "a" and UNNAMED in self._store.kv.superblock:
            self._store.abandon()
            what = (
                "the disk failed at the end of a compaction, and after a power cut the older file "
                "may be back, without what is written from now on: run winkfs compact again"
            )
            raise NotAllowed(what, base)
        self._dropped = weakref.finalize(self, _let_go, self._store)
        self._attach()
        self._closed = ""
        self._running = ""  # the call that is taking files from a generator or a source
        self._unsure = False  # whether the last call was broken off half-way
        self._lost: OSError | None = None  # a sync failed, and what was not synced is gone
        self.losses = 0  # how often a write failed: of what was not synced some is lost
        self.troubles = 0  # how often that happened: what was not synced may be lost
        self._looked = time.monotonic()
        tell_of_forks(self)

    def _attach(self) -> None:
        self._generation = self._store.generation
        self._content = Content(self._store)
        self._changes = Changes(self._store, self._content)
        self._bulkget = BulkGet(self._store, self._content)
        self._fast: Read | None = fast_reader(self._store, self._changes.drafts)

    # --- other processes ---

    def after_fork(self) -> None:
        """In a child: what the parent has in memory, and its lock, are not ours."""
        self._dropped.detach()
        self._lock = threading.RLock()
        self._fast = None
        self._closed = self._closed or FORKED
        if self._store.lock:
            self._store.lock.forget()

    def _renew(self) -> None:
        """In a forked child: open anew what the parent was reading. Else raises Closed."""
        old = self._store
        if self._closed != FORKED:
            raise Closed(f"the container is {self._closed}", old.base)
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
        self._store, self._closed, self._unsure = store, "", False
        self._dropped = weakref.finalize(self, _let_go, store)
        self._attach()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.writable:
            raise TypeError(
                f"{self.base}: a writer cannot be pickled or copied: sync, and open it for reading"
            )
        if self._closed not in ("", FORKED):
            raise Closed(f"the container is {self._closed}", self.base)
        store = self._store
        moment = _moment(store) if store.frozen else None
        return _again, (type(self), self._path, store.mapped, moment)

    # --- the handle ---

    @property
    def base(self) -> str:
        """The path without .data."""
        return self._store.base

    @property
    def writable(self) -> bool:
        return self._store.writable

    @property
    def ao(self) -> bool:
        """Whether it is the append-only variant."""
        return self._store.settings.ao

    @property
    def classic(self) -> bool:
        return self._store.settings.classic

    @property
    def superblock(self) -> dict[str, int]:
        """The variables of the data file, as of the last sync."""
        return dict(self._store.kv.superblock)

    @property
    def problems(self) -> list[str]:
        """The damage that was met and got round, a line each: what, in which file, at which byte.

        Files whose inodes are damaged are not listed. Empty does not mean sound: see `verify`.
        """
        return list(self._store.notes)

    @property
    def notes(self) -> list[str]:
        """Problems, and what was found wrong with derived files, which costs no file."""
        return self._store.notes + self._store.remarks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        """Close; after an exception without a sync: the container stays as of the last one."""
        if kind is None:
            self.close()
        else:
            self.abort()

    def __repr__(self) -> str:
        state = self._closed or ("writing" if self.writable else "reading")
        return f"<winkfs container {self.base} ({state})>"

    def close(self) -> None:
        """Sync, write the index, let go of the lock. A second time does nothing.

        raises  OSError, also where an earlier sync failed; the handle is closed all the same
        """
        with self._lock:
            if self._closed == FORKED:  # the child's descriptors: the parent keeps its own
                self._store.abandon()
                self._closed = "closed"
            if self._closed:
                return
            self.check_idle()
            try:
                self._check_lost()
                if self.writable:
                    if self._unsure:
                        self._recover()
                    self._changes.close()
                    self._store.close()
            finally:
                self._fast = None
                self._dropped.detach()
                self._store.abandon()
                self._closed = "closed"

    def abort(self) -> None:
        """Close, and drop what was changed since the last sync."""
        with self._lock:
            if self._closed:
                return
            self.check_idle()
            self._dropped.detach()
            self._fast, self._closed = None, "closed"
            self._store.close()

    def sync(self) -> None:
        """Make everything durable; other processes see it from now on.

        raises  OSError. Where the disk refuses to sync, it may have dropped anything written since
                the last sync: from then on the handle reads what that one left, and refuses to
                write; open the container again to go on
        """
        with self._lock:
            self._check()
            self._check_lost()
            self.check_idle()
            if self.writable:
                self._guard(self._changes.sync)

    def syncing(self) -> Generator[Callable[[], None], None, None]:
        """`sync` in steps, for one that serves others meanwhile: each thing that this gives waits
        for the disk, and is to be called before the next step.

        raises  OSError, as `sync`; so does what it gives, and that is to be thrown in here
        """
        with self._lock:
            self._check()
            self._check_lost()
            steps = self._changes.syncing() if self.writable else iter(())
        kv, more = self._store.kv, object()
        while True:
            with self._lock:
                if self._guard(lambda: next(steps, more)) is more:
                    return
            try:
                yield kv.sync_storage
            except OSError as error:
                with self._lock:
                    self._guard(partial(_raise, error))

    def parts(self) -> tuple[Store, Changes, Content]:
        """What is behind the handle, for one that has it for itself: a mount."""
        return self._store, self._changes, self._content

    def check(self) -> None:
        """Get over a call that was broken off."""
        with self._lock:
            self._check()

    def freeze(self) -> None:
        """Follow the writer no more: the files stay those of now, whatever it does to them.

        For a reader. Memory and cost: none.
        """
        with self._lock:
            self._check()
            self._store.frozen = not self.writable

    def follow(self) -> bool:
        """Go on to the writer's last sync, and stay there -> whether anything has changed."""
        with self._lock:
            store = self._store
            before = store.synced, store.generation
            store.frozen = False
            try:
                self._looked = -LOOK  # also whether other files are in the place of ours
                self._check()
            finally:
                store.frozen = True
            return before != (store.synced, store.generation)

    def follow_names(self) -> None:
        """Before many files are put: keep their names for `save_names`."""
        with self._lock:
            self._check()
            follow_names(self._store)

    def save_names(self) -> None:
        """Sync, and bring BASE.names up to date. Raises OSError, but not where the disk is full."""
        with self._lock:
            self.sync()
            self._guard(self._store.names.save)

    def keep_mark(self, packed: dict[str, int]) -> None:
        """Sync, and write an index that says when a tree was packed: see `archive.update`."""
        with self._lock:
            self.sync()
            self._store.idx.packed = packed
            self._guard(self._store.merge)

    def follow_columns(self) -> None:
        """Before many files are put: keep what `save_columns` writes of them."""
        with self._lock:
            self._check()
            self._store.columns.follow()

    def save_columns(self) -> None:
        """Sync, and write BASE.cols. Raises OSError, but not where the disk is full."""
        with self._lock:
            self.sync()
            self._guard(self._store.columns.save)

    def _check(self) -> None:
        """Refuse a dead handle; get over an interrupted call; catch up with the writer."""
        if self._closed:
            self._renew()
        store = self._store
        if store.writable:
            if self._unsure:
                self._recover()
            return
        if store.frozen:
            return
        now = time.monotonic()
        if store.moved() or now - self._looked > LOOK or self._unsure:
            self._looked, self._fast = now, None
            refresh, self._unsure = (store.reopen if self._unsure else store.refresh), True
            refresh()
            self._unsure = False
        if store.generation != self._generation:
            self._attach()

    def _check_lost(self) -> None:
        if self._lost is not None:
            raise OSError(self._lost.errno, self._lost.strerror, self._lost.filename)

    def _check_write(self) -> None:
        """Refuse what cannot write now; get over a call that was broken off."""
        if self._closed or self._unsure or not self._store.writable:
            self._check()
        if self._lost is not None:
            self._check_lost()
        if not self._store.writable:
            raise ReadOnly("opened for reading: open it with mode 'a' to write", self.base)
        if self._running:
            self.check_idle()

    def check_idle(self) -> None:
        """Raises Busy inside of what a running call takes its files from."""
        if self._running:
            what = f"{self._running} is running on this handle: what it reads from cannot change it"
            raise Busy(what, self.base)

    def _consume(self, call: str, action: Callable[[], Any]) -> Any:
        """Run a change that calls the user's code meanwhile. The caller has checked the handle."""
        try:
            self._running = call
            return self._guard(action)
        finally:
            self._running = ""

    def _guard(self, action: Callable[..., Any], *args: Any) -> Any:
        """Run a change. Where the disk refuses or a signal interrupts it, the next call recovers.

        Ctrl-C, a signal handler that raises and MemoryError come anywhere.
        """
        try:
            return action(*args)
        except BaseException as error:
            kv = self._store.kv
            sure = isinstance(error, Exception) and not isinstance(error, MemoryError)
            if not sure or kv.broken:
                self._unsure, self._fast = True, None
                self.troubles += 1
            self.losses += kv.broken
            if kv.lost is not None:
                self._fall_back()
            raise

    def _fall_back(self) -> None:
        """After a failed sync: read on, as the last sync left everything."""
        try:
            self._store.kv.check_lost()
        except OSError as error:
            self._lost = error
        self._store.fall_back()
        self._attach()
        self._unsure = False

    def _recover(self) -> None:
        self._changes.recover()
        self._unsure = False

    def _key(self, name: Name) -> bytes:
        raw = name.encode("utf-8", "surrogateescape") if type(name) is str else to_bytes(name)
        limit = min(65_000, self._store.kv.layout.key.limit - 3)
        if not raw or b"\0" in raw:
            raise ValueError(f"a name must not be empty or have NUL in it: {name!r}")
        if len(raw) > limit:
            raise NameTooLong(
                f"a name may have {limit} bytes, this has {len(raw)}", to_str(raw[:80])
            )
        return raw + SUFFIX


def _raise(error: OSError) -> None:
    raise error


def _let_go(store: Store) -> None:
    """Close what a handle had that nobody has any more. As in a crash, nothing is synced."""
    with contextlib.suppress(OSError):
        store.close()
    what = "writer: what was not synced is lost" if store.writable else "container"
    warnings.warn(f"unclosed {what}: {store.base}", ResourceWarning, stacklevel=3)


def _again(kind: type[Handle], path: str, mapped: bool, moment: Moment | None) -> Handle:
    """A reader that was pickled or copied."""
    handle = kind(path, "r", mapped=mapped)
    if moment is not None:
        try:
            _stay(handle._store, moment)
        except BaseException:
            handle.close()
            raise
    return handle


def _stay(store: Store, moment: Moment) -> None:
    """Freeze a store. Raises StalePlan where it is not as it was at that moment."""
    if _moment(store) != moment:
        raise StalePlan("was changed since it was opened: open it again", store.base)
    store.frozen = True


def _moment(store: Store) -> Moment:
    return store.settings.contid, store.kv.end
