"""The kinds of store that have a handle of their own, made and used by calls of the same names.

on = KINDS["ring"](path, make=True)
id = on.add(b"body")
on.sync()
assert on.bodies() == {id: b"body"} and content(path) == [b"body"]
"""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from simulated.disk import Event, SimulatedDisk

import winkfs
from winkfs.stores import ledgerq, messagestore, ringpage
from winkfs.stores.handle import StoreHandle
from winkfs.stores.ledgerq import Queue
from winkfs.stores.logstore import LogStore
from winkfs.stores.messagestore import MessageStore
from winkfs.stores.ringpage import Ring

NUMBERS = itertools.count(1)  # of messages, which have no ids of their own


class OnStore(ABC):
    """A store and the handle that has it open, to write.

    make     create it first
    create   makes an empty store: (path, **options)
    options  of the handle
    """

    create: ClassVar[Callable[..., object]]
    handle: ClassVar[type[StoreHandle]]

    def __init__(self, path: str, *, make: bool = False, **options: Any) -> None:
        if make:
            type(self).create(path)
        self.path = path
        self.store: Any = self.handle(path, "a", **options)

    @abstractmethod
    def add(self, body: bytes) -> Any:
        """Return the id of the new record."""

    @abstractmethod
    def bodies(self) -> dict[Any, bytes]:
        """Return the bodies of all records that are there, also of those that were read."""

    def sync(self) -> None:
        self.store.sync()

    def compact(self) -> None:
        self.store.compact()


class OnQueue(OnStore):
    create, handle = staticmethod(ledgerq.create), Queue

    def add(self, body: bytes) -> Any:
        return self.store.push(body)

    def bodies(self) -> dict[Any, bytes]:
        return {message.id: message.payload for message in self.store.all_messages()}


class OnMessages(OnStore):
    create, handle = staticmethod(messagestore.create), MessageStore

    def add(self, body: bytes) -> Any:
        id = b"%016d" % next(NUMBERS)
        self.store.write(id, body)
        return id

    def bodies(self) -> dict[Any, bytes]:
        ids = [id.astype(">u8").tobytes() for id in self.store.rows().ids]
        return {id: self.store.read(id) for id in ids}


class OnLog(OnStore):
    handle = LogStore

    @staticmethod
    def create(path: str, **options: int) -> None:
        LogStore.create(path, **options).close()

    def add(self, body: bytes) -> Any:
        return self.store.put(body)

    def bodies(self) -> dict[Any, bytes]:
        return {recid: self.store.get(recid) or b"" for recid in self.store.recids()}

    def sync(self) -> None:
        self.store.commit()

    def compact(self) -> None:
        self.store.compact(least=0.3)


class OnRing(OnStore):
    """Records have no ids until they are written: each is named by its body."""

    create, handle = staticmethod(ringpage.create), Ring

    def add(self, body: bytes) -> Any:
        self.store.push(body)
        return body

    def bodies(self) -> dict[Any, bytes]:
        with Ring(self.path) as reader:
            return {record.body: record.body for record in reader.records()}

    def sync(self) -> None:
        self.store.flush()

    def compact(self) -> None:
        self.store.sync()


KINDS: dict[str, type[OnStore]] = {
    "queue": OnQueue, "messages": OnMessages, "log": OnLog, "ring": OnRing,
}  # fmt: skip


def content(path: str) -> list[bytes]:
    """Return the bodies that a reader finds which nobody has consumed."""
    with winkfs.open(path) as reader:
        return [reader.read(name) for name in reader.names()]


def simulated(kind: str, seed: int, **options: Any) -> tuple[SimulatedDisk, str]:
    """Return a simulated disk, and the path of an empty store on it, s."""
    disk = SimulatedDisk(seed)
    KINDS[kind].create(f"{disk.path}/s", **options)
    return disk, f"{disk.path}/s"


@contextmanager
def looking(disk: SimulatedDisk, look: Callable[[Event], object]) -> Iterator[None]:
    """Have the calls to a disk looked at, except those that `look` makes itself."""

    def watch(event: Event) -> None:
        disk.watch = None
        look(event)
        disk.watch = watch

    disk.watch = watch
    yield
    disk.watch = None


def in_child(job: Callable[[], object]) -> None:
    """Run something in a forked child of this process. AssertionError if it raises there."""
    child = os.fork()
    if not child:
        status = 1
        try:
            job()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
