"""A disk that fills up under each store: what was acknowledged stays, the handle says why it cannot
go on, and does so where there is room again."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from simulated.disk import SimulatedDisk

import winkfs
from winkfs.errors import Refusal
from winkfs.stores.ledgerq import Queue, Rotation
from winkfs.stores.ledgerq import create as create_queue
from winkfs.stores.logstore import LogStore
from winkfs.stores.messagestore import MessageStore
from winkfs.stores.messagestore import create as create_messages
from winkfs.stores.ringpage import Ring
from winkfs.stores.ringpage import create as create_ring

ROOMS = [0, 1, 20, 60, 200, 500, 900, 1500, 3000, 5000, 9000, 20000]


class OnQueue:
    def __init__(self, path: str, *, make: bool = False) -> None:
        if make:
            create_queue(path)
        self.store = Queue(path, "a", sync="none", rotation=Rotation(2000, 15))

    def add(self, body: bytes) -> Any:
        return self.store.push(body)

    def remove(self, id: Any) -> None:
        message = self.store.pop(visible=1000)
        if message is not None:
            self.store.ack(message.id)

    def sync(self) -> None:
        self.store.sync()

    def compact(self) -> None:
        self.store.compact()

    def bodies(self) -> dict[Any, bytes]:
        return {message.id: message.payload for message in self.store.all_messages()}


class OnMessages:
    def __init__(self, path: str, *, make: bool = False) -> None:
        if make:
            create_messages(path, checksums=True)
        self.store = MessageStore(path, "a")
        self.count = 0 if make else 1000

    def add(self, body: bytes) -> Any:
        self.count += 1
        id = b"%016d" % self.count
        self.store.write(id, body)
        return id

    def remove(self, id: Any) -> None:
        self.store.remove(id)

    def sync(self) -> None:
        self.store.sync()

    def compact(self) -> None:
        self.store.compact()

    def bodies(self) -> dict[Any, bytes]:
        ids = [id.astype(">u8").tobytes() for id in self.store.rows().ids]
        return {id: self.store.read(id) for id in ids}


class OnLog:
    def __init__(self, path: str, *, make: bool = False) -> None:
        if make:
            LogStore.create(path, file_size=2000, cutoff=300, save_every=2).close()
        self.store = LogStore(path, "a")

    def add(self, body: bytes) -> Any:
        return self.store.put(body)

    def remove(self, id: Any) -> None:
        self.store.delete(id)

    def sync(self) -> None:
        self.store.commit()

    def compact(self) -> None:
        self.store.compact(least=0.3)

    def bodies(self) -> dict[Any, bytes]:
        return {recid: self.store.get(recid) or b"" for recid in self.store.recids()}


class OnRing:
    """Records have no ids: each is named by its body."""

    def __init__(self, path: str, *, make: bool = False) -> None:
        if make:
            create_ring(path, pages=60)
        self.path, self.store = path, Ring(path, "a", memory=4096)

    def add(self, body: bytes) -> Any:
        self.store.push(body)
        return body

    def sync(self) -> None:
        self.store.flush()

    def compact(self) -> None:
        self.store.sync()

    def bodies(self) -> dict[Any, bytes]:
        with Ring(self.path) as reader:
            return {record.body: record.body for record in reader.records()}


STORES: dict[str, Callable[..., OnQueue | OnMessages | OnLog | OnRing]] = {
    "queue": OnQueue, "messages": OnMessages, "log": OnLog, "ring": OnRing,
}  # fmt: skip


def used(disk: SimulatedDisk) -> int:
    return sum(len(disk.durable(path)) for path in disk.paths())


def is_full(error: OSError) -> bool:
    """No other fault comes of it; a handle whose sync has failed says so, and how to go on."""
    return error.errno == errno.ENOSPC or (isinstance(error, Refusal) and "open it a" in str(error))


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("kind", STORES)
def test_what_was_acknowledged_stays_on_a_full_disk(kind: str, room: int) -> None:
    disk, rng = SimulatedDisk(1), random.Random(room)
    path = f"{disk.path}/s"
    on = STORES[kind](path, make=True)
    kept = {on.add(b"kept%d" % n * 9): b"kept%d" % n * 9 for n in range(8)}
    on.sync()
    disk.capacity = used(disk) + room
    waiting: dict[Any, bytes] = {}
    full = 0
    for step in range(120):
        body = rng.randbytes(rng.choice((5, 60, 400)))
        try:
            waiting[on.add(body)] = body
            if step % 7 == 0:
                on.sync()
                kept |= waiting
                waiting = {}
            if step % 29 == 28:
                on.compact()
        except OSError as error:
            assert is_full(error), error
            full += 1
            if full > 20:
                break
    assert full or room > 9000
    with suppress(OSError):
        on.store.close()
    for image in (disk, disk.crash(rng)):
        image.capacity = None
        with winkfs.open(f"{image.path}/s") as look:
            assert not look.problems or image is not disk, look.problems  # a torn end is told
        after = STORES[kind](f"{image.path}/s")
        found = after.bodies()
        assert {id: found.get(id) for id in kept} == kept
        assert all(found[id] == waiting.get(id, kept.get(id)) for id in found if id in waiting)
        new = after.add(b"there is room again")
        after.sync()
        assert after.bodies()[new] == b"there is room again"
        after.store.close()
        assert not winkfs.verify(f"{image.path}/s").problems


@pytest.mark.parametrize("kind", STORES)
def test_a_handle_goes_on_where_there_is_room_again(kind: str) -> None:
    disk = SimulatedDisk(2)
    on = STORES[kind](f"{disk.path}/s", make=True)
    kept = {on.add(b"first"): b"first"}
    on.sync()
    disk.capacity = used(disk) + 300
    with pytest.raises(OSError, match="No space"):
        for _ in range(100):
            kept[on.add(b"x" * 200)] = b"x" * 200
            on.sync()
    disk.capacity = None
    kept[on.add(b"last")] = b"last"
    on.sync()
    found = on.bodies()
    assert {id: found[id] for id in kept} == kept
    on.store.close()
    assert not winkfs.verify(f"{disk.path}/s").problems
