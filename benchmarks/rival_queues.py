"""Queues, winkfs's and others, that answer to the same calls.

A queue is made anew for each step, in a folder of its own, for one use: by arrival, by priority, or
with messages that are acknowledged. What it does not have is missing from `uses`, `syncs` or
`calls`.
"""

from __future__ import annotations

import os
import pickle
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from winkfs.stores.ledgerq import Queue as LedgerQueue
from winkfs.stores.ledgerq import create as create_ledger
from winkfs.stores.ringpage import Ring
from winkfs.stores.ringpage import create as create_ring

Use = Literal["arrival", "priority", "ack"]
Sync = Literal["none", "interval", "each"]
SIZE: Final = 256  # bytes of a record
MEMORY: Final = 64 << 10  # bytes of records that wait in the memory of a ring
LEASE: Final = 600.0  # seconds
PRIORITIES: Final = 3  # 0 is the lowest


class Queue(ABC):
    """A queue, open. Its calls are attributes, which are bound functions where they can be.

    few     it is measured with so many messages at most, where it takes longer
    held    and with so many where it holds many
    bodies  what was popped -> the bodies
    """

    few, held = 1_000_000, 1_000_000
    uses: frozenset[Use] = frozenset({"arrival"})
    syncs: frozenset[Sync] = frozenset({"none", "each"})
    calls: frozenset[str] = frozenset({"push", "pop"})
    push: Callable[[bytes], object]
    push_by: Callable[[bytes, int], object]
    push_many: Callable[[Sequence[bytes]], object]
    pop: Callable[[], Any]
    pop_many: Callable[[int], Sequence[Any]]

    @abstractmethod
    def __init__(self, place: Path, use: Use, sync: Sync, *, new: bool = True) -> None: ...

    def flush(self) -> None:  # noqa: B027 - most have nothing left
        """Hand to the kernel what waits in memory."""

    @abstractmethod
    def close(self) -> None: ...

    @staticmethod
    def bodies(found: list[Any]) -> list[bytes]:
        return found


class Ledger(Queue):
    """winkfs, LedgerQ: up to 1 MiB of what was not synced waits in memory."""

    held = 10_000_000
    uses = frozenset({"arrival", "priority", "ack"})
    syncs = frozenset({"none", "interval", "each"})
    calls = frozenset({"push", "push_by", "push_many", "pop", "pop_many"})

    def __init__(self, place: Path, use: Use, sync: Sync, *, new: bool = True) -> None:
        path = os.fspath(place / "ledger")
        if new:
            create_ledger(path, by_priority=use == "priority")
        self.queue = queue = LedgerQueue(path, "a", sync="always" if sync == "each" else sync)
        self.push, self.push_many = queue.push, queue.push_many
        self.pop, self.pop_many = queue.pop, queue.pop_many
        if use == "ack":
            self.pop, self.pop_many = self._pop_and_ack, self._pop_and_ack_many

    def push_by(self, body: bytes, priority: int) -> object:
        return self.queue.push(body, priority=priority)

    def flush(self) -> None:
        self.queue.sync()

    def _pop_and_ack(self) -> object:
        message = self.queue.pop(visible=LEASE)
        if message is not None:
            self.queue.ack(message.id)
        return message

    def _pop_and_ack_many(self, count: int) -> Sequence[object]:
        found = self.queue.pop_many(count, visible=LEASE)
        self.queue.ack(*(message.id for message in found))
        return found

    def close(self) -> None:
        self.queue.close()

    @staticmethod
    def bodies(found: list[Any]) -> list[bytes]:
        return [message.payload for message in found]


class RingPage(Queue):
    """winkfs: a Ring Page buffer that has room for all. A sync pads a page."""

    calls = frozenset({"push", "push_many", "pop"})

    def __init__(self, place: Path, use: Use, sync: Sync, *, new: bool = True) -> None:
        path = place / "ring"
        if new:
            create_ring(path, pages=65_000)
        self.ring = ring = Ring(path, "a", memory=MEMORY)
        self.push, self.push_many, self.pop = ring.push, ring.push_many, ring.pop
        if sync == "each":
            self.push = _then(ring.push, ring.flush)
            self.push_many = _then(ring.push_many, ring.flush)

    def flush(self) -> None:
        self.ring.flush()

    def close(self) -> None:
        self.ring.close()


class PersistSqlite(Queue):
    """persist-queue: FIFOSQLiteQueue, PriorityQueue and SQLiteAckQueue, without pickle. Each call
    is a transaction, and several together cannot be one. It syncs each, as it comes, or none."""

    few, held = 2000, 50_000
    uses = frozenset({"arrival", "priority", "ack"})
    calls = frozenset({"push", "push_by", "pop"})

    def __init__(self, place: Path, use: Use, sync: Sync, *, new: bool = True) -> None:
        module = _module("persistqueue")
        kinds = {
            "arrival": module.FIFOSQLiteQueue, "priority": module.PriorityQueue,
            "ack": module.SQLiteAckQueue,
        }  # fmt: skip
        self.queue = queue = kinds[use](os.fspath(place), auto_commit=True, serializer=_Plain)
        queue._putter.execute(f"PRAGMA synchronous = {_level(sync)}")
        self.push, self.pop = queue.put, self._pop_and_ack if use == "ack" else queue.get

    def push_by(self, body: bytes, priority: int) -> object:
        return self.queue.put(body, priority=PRIORITIES - priority)

    def _pop_and_ack(self) -> object:
        found = self.queue.get(raw=True)
        self.queue.ack(id=found["pqid"])
        return found["data"]

    def close(self) -> None:
        self.queue.close()


class PersistFile(Queue):
    """persist-queue: Queue, in files, with pickle. It syncs each hundredth message alone."""

    few, held = 1000, 10_000
    uses = frozenset({"arrival", "ack"})
    syncs = frozenset({"none"})

    def __init__(self, place: Path, use: Use, sync: Sync, *, new: bool = True) -> None:
        self.queue = queue = _module("persistqueue").Queue(
            os.fspath(place / "files"), tempdir=os.fspath(place), serializer=pickle,
            autosave=use == "arrival",
        )  # fmt: skip
        self.push, self.pop = queue.put, self._pop_and_ack if use == "ack" else queue.get

    def _pop_and_ack(self) -> object:
        found = self.queue.get()
        self.queue.task_done()
        return found

    def close(self) -> None:
        self.queue.headf.close()
        self.queue.tailf.close()


class _Plain:
    """A serializer of persist-queue that leaves bytes as they are."""

    @staticmethod
    def dumps(value: bytes) -> bytes:
        return value

    @staticmethod
    def loads(value: bytes) -> bytes:
        return value


class Lite(Queue):
    """litequeue: what is popped stays in its table, and to look for the next takes the longer."""

    few, held = 2000, 100_000
    uses = frozenset({"arrival", "ack"})
    calls = frozenset({"push", "push_many", "pop"})

    def __init__(self, place: Path, use: Use, sync: Sync, *, new: bool = True) -> None:
        self.queue = queue = _module("litequeue").LiteQueue(place / "lite.db")
        queue.conn.execute(f"PRAGMA synchronous = {_level(sync)}")
        self.push, self.pop = queue.put, self._pop_and_ack if use == "ack" else queue.pop

    def push_many(self, some: Sequence[bytes]) -> None:
        with self.queue.transaction():
            for body in some:
                self.push(body)

    def _pop_and_ack(self) -> object:
        message = self.queue.pop()
        self.queue.done(message.message_id)
        return message

    def close(self) -> None:
        self.queue.close()

    @staticmethod
    def bodies(found: list[Any]) -> list[bytes]:
        return [message.data for message in found]


class Append(Queue):
    """A plain file: no queue, but what a disk can do."""

    calls = frozenset({"push", "push_many", "pop", "pop_many"})

    def __init__(self, place: Path, use: Use, sync: Sync, *, new: bool = True) -> None:
        self.fd = fd = os.open(place / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.at = 0
        self.push = partial(os.write, fd)
        self.push_many = lambda some: os.write(fd, b"".join(some))
        if sync == "each":
            sync_it = partial(os.fdatasync, fd)
            self.push = _then(self.push, sync_it)
            self.push_many = _then(self.push_many, sync_it)

    def pop(self) -> bytes:
        data = os.pread(self.fd, SIZE, self.at)
        self.at += SIZE
        return data

    def pop_many(self, count: int) -> list[bytes]:
        data = os.pread(self.fd, SIZE * count, self.at)
        self.at += len(data)
        return [data[at : at + SIZE] for at in range(0, len(data), SIZE)]

    def close(self) -> None:
        os.close(self.fd)


def _then(call: Callable[[Any], object], after: Callable[[], object]) -> Callable[[Any], None]:
    def both(argument: Any) -> None:
        call(argument)
        after()

    return both


def _level(sync: Sync) -> str:
    """Of SQLite, with its log: FULL syncs each transaction, NORMAL checkpoints alone."""
    return "FULL" if sync == "each" else "NORMAL"


def _module(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        sys.exit(f"{name}, a rival, is not installed: pip install 'winkfs[bench]'")


OURS: Final = "LedgerQ queue"
RING: Final = "Ring Page buffer"
QUEUES: Final[dict[str, type[Queue]]] = {
    OURS: Ledger,
    RING: RingPage,
    "persist-queue, SQLite": PersistSqlite,
    "persist-queue, files": PersistFile,
    "litequeue": Lite,
    "append": Append,
}
