"""A disk that fills up under each store: what was acknowledged stays, the handle says why it cannot
go on, and does so where there is room again."""

from __future__ import annotations

import errno
import random
from contextlib import suppress
from typing import Any

import pytest
from simulated.disk import SimulatedDisk
from store_kinds import KINDS, OnStore

import winkfs
from winkfs.errors import Refusal
from winkfs.stores.ledgerq import Rotation

ROOMS = [0, 1, 20, 60, 200, 500, 900, 1500, 3000, 5000, 9000, 20000]


MADE: dict[str, dict[str, Any]] = {
    "queue": {}, "messages": {"checksums": True}, "ring": {"pages": 60},
    "log": {"file_size": 2000, "cutoff": 300, "save_every": 2},
}  # fmt: skip
OPENED: dict[str, dict[str, Any]] = {
    "queue": {"sync": "none", "rotation": Rotation(2000, 15)}, "messages": {}, "log": {},
    "ring": {"memory": 4096},
}  # fmt: skip


def opened(kind: str, path: str) -> OnStore:
    return KINDS[kind](path, **OPENED[kind])


def made(kind: str, path: str) -> OnStore:
    KINDS[kind].create(path, **MADE[kind])
    return opened(kind, path)


def used(disk: SimulatedDisk) -> int:
    return sum(len(disk.durable(path)) for path in disk.paths())


def is_full(error: OSError) -> bool:
    """No other fault comes of it; a handle whose sync has failed says so, and how to go on."""
    return error.errno == errno.ENOSPC or (isinstance(error, Refusal) and "open it a" in str(error))


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_acknowledged_stays_on_a_full_disk(kind: str, room: int) -> None:
    disk, rng = SimulatedDisk(1), random.Random(room)
    on = made(kind, f"{disk.path}/s")
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
            assert not look.problems or image is not disk, look.problems  # a torn end is reported
        after = opened(kind, f"{image.path}/s")
        found = after.bodies()
        assert {id: found.get(id) for id in kept} == kept
        assert all(found[id] == waiting.get(id, kept.get(id)) for id in found if id in waiting)
        new = after.add(b"there is room again")
        after.sync()
        assert after.bodies()[new] == b"there is room again"
        after.store.close()
        assert not winkfs.verify(f"{image.path}/s").problems


@pytest.mark.parametrize("kind", KINDS)
def test_a_handle_goes_on_where_there_is_room_again(kind: str) -> None:
    disk = SimulatedDisk(2)
    on = made(kind, f"{disk.path}/s")
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
