"""Handle: a container that is open. Its life, its lock between threads, and what ends a call."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Self

from winkfs import fastread
from winkfs.bulkget import BulkGet
from winkfs.changes import Changes
from winkfs.columnsfile import follow_columns, write_columns
from winkfs.content import Content
from winkfs.entry import to_bytes, to_str
from winkfs.errors import Closed, NameTooLong, ReadOnly
from winkfs.fastread import LOOK, Read
from winkfs.inode import inode_key
from winkfs.namesfile import follow_names, save_order
from winkfs.store import Store

_open_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


class Handle:
    """One writer or one of many readers; threads may share it, a forked child may not."""

    def __init__(self, base: str, mode: str) -> None:
        self._lock = threading.RLock()
        self._store = Store(base, writable=mode == "a")
        self._attach()
        self._closed = ""
        self._unsure = False  # whether the last call was broken off half-way
        self._lost: OSError | None = None  # a sync failed, and what was not synced is gone
        self.troubles = 0  # how often that happened: what was not synced may be lost
        self._looked = time.monotonic()
        _open_handles.add(self)

    def _attach(self) -> None:
        self._generation = self._store.generation
        self._content = Content(self._store)
        self._changes = Changes(self._store, self._content)
        self._bulkget = BulkGet(self._store, self._content)
        self._fast: Read | None = fastread.make(self._store, self._changes.drafts)

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
    def notes(self) -> list[str]:
        """What was found wrong and got round, a sentence each."""
        return list(self._store.notes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = self._closed or ("writing" if self.writable else "reading")
        return f"<winkfs container {self.base} ({state})>"

    def close(self) -> None:
        """Sync, write the index, let go of the lock. A second time does nothing.

        raises  OSError, also where an earlier sync failed; the handle is closed all the same
        """
        with self._lock:
            if self._closed:
                return
            try:
                self._check_lost()
                if self.writable:
                    if self._unsure:
                        self._recover()
                    self._changes.close()
                    self._store.close()
            finally:
                self._fast = None
                self._store.abandon()
                self._closed = "closed"
                _open_handles.discard(self)

    def sync(self) -> None:
        """Make everything durable; other processes see it from now on.

        raises  OSError. Where the disk refuses to sync, it may have dropped anything written since
                the last sync: from then on the handle reads what that one left, and refuses to
                write; open the container again to go on
        """
        with self._lock:
            self._check()
            self._check_lost()
            if self.writable:
                self._guard(self._changes.sync)

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
            self._guard(lambda: save_order(self._store))

    def keep_mark(self, packed: dict[str, int]) -> None:
        """Sync, and write an index that says when a tree was packed: see `winkfs.update`."""
        with self._lock:
            self.sync()
            self._store.packed = packed
            self._guard(self._store.merge)

    def follow_columns(self) -> None:
        """Before many files are put: keep what `save_columns` writes of them."""
        with self._lock:
            self._check()
            follow_columns(self._store)

    def save_columns(self) -> None:
        """Sync, and write BASE.cols. Raises OSError, but not where the disk is full."""
        with self._lock:
            self.sync()
            self._guard(lambda: write_columns(self._store))

    def _check(self) -> None:
        """Refuse a dead handle; get over an interrupted call; catch up with the writer."""
        if self._closed:
            raise Closed(f"the container is {self._closed}", self._store.base)
        store = self._store
        if store.writable:
            if self._unsure:
                self._recover()
            return
        if store.frozen:
            return
        now = time.monotonic()
        if store.moved() or now - self._looked > LOOK or self._unsure:
            self._looked = now
            refresh, self._unsure = (store.reopen if self._unsure else store.refresh), True
            refresh()
            self._unsure = False
        if store.generation != self._generation:
            self._attach()

    def _check_lost(self) -> None:
        if self._lost is not None:
            raise OSError(self._lost.errno, self._lost.strerror, self._lost.filename)

    def _check_write(self) -> None:
        self._check()
        self._check_lost()
        if not self.writable:
            raise ReadOnly("opened for reading: open it with mode 'a' to write", self.base)

    def _guard(self, action: Callable[[], Any]) -> Any:
        """Run a change. Where the disk refuses or a signal interrupts it, the next call recovers.

        Ctrl-C, a signal handler that raises and MemoryError come anywhere.
        """
        try:
            return action()
        except BaseException as error:
            kv = self._store.kv
            sure = isinstance(error, Exception) and not isinstance(error, MemoryError)
            if not sure or kv.broken:
                self._unsure, self._fast = True, None
                self.troubles += 1
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

    def _key(self, name: str | bytes) -> bytes:
        raw = to_bytes(name)
        limit = min(65_000, self._store.kv.layout.key.limit - 3)
        if not raw or b"\0" in raw:
            raise ValueError(f"a name must not be empty or have NUL in it: {name!r}")
        if len(raw) > limit:
            raise NameTooLong(
                f"a name may have {limit} bytes, this has {len(raw)}", to_str(raw[:80])
            )
        return inode_key(raw)


def _after_fork() -> None:
    """In a child: the handles of the parent are not ours, nor is its lock."""
    for handle in list(_open_handles):
        handle._lock = threading.RLock()
        handle._fast = None
        handle._closed = "of the parent process: open it anew after fork"
        if handle._store.lock:
            handle._store.lock.forget()


os.register_at_fork(after_in_child=_after_fork)
