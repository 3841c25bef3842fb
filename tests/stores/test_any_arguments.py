"""Wrong arguments of every public method of the stores' handles: one clear error, nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from arguments import Call, attempt, one_wrong

import winkfs
from winkfs.stores.ledgerq import Queue
from winkfs.stores.ledgerq import create as create_queue
from winkfs.stores.logstore import LogStore
from winkfs.stores.messagestore import MessageStore
from winkfs.stores.messagestore import create as create_messages
from winkfs.stores.ringpage import Ring
from winkfs.stores.ringpage import create as create_ring

pytestmark = [pytest.mark.slow, pytest.mark.in_memory]

BODIES = [b"body %d" % i * (i % 7 + 1) for i in range(60)]
IDS = [b"%016d" % i for i in range(60)]
KEPT = slice(20, 60)  # of the bodies; the numbers among the wrong arguments are ids of others
HANDLE = ("close", "abort", "after_fork", "keep", "leave")  # the last of the library


@dataclass(frozen=True)
class Kind:
    """How a store is made with BODIES, and read; the good values of arguments, methods left out."""

    make: Callable[[str], Any]
    bodies: Callable[[Any], list[bytes]]
    good: dict[str, Any]
    skip: tuple[str, ...]
    refused: int


def queue(path: str) -> Queue:
    create_queue(path)
    made = Queue(path, "a", window=60)
    made.push_many(BODIES)
    return made


def ring(path: str) -> Ring:
    create_ring(path, pages=4096)
    made = Ring(path, "a")
    made.push_many(BODIES)
    return made


def messages(path: str) -> MessageStore:
    create_messages(path)
    made = MessageStore(path, "a")
    made.write_many(zip(IDS, BODIES, strict=True))
    return made


def log(path: str) -> LogStore:
    made = LogStore.create(path)
    assert made.put_many(BODIES) == list(range(1, 61))
    made.commit()
    return made


KINDS = {
    "queue": Kind(
        queue,
        lambda q: [q.read(id).payload for id in range(1, 61)][KEPT],
        {"id": 3, "payload": b"x", "messages": lambda: [b"1"], "count": 1, "key": "k",
         "name": "audit", "seconds": 1.0, "visible": 1.0},
        # what waits, what removes, what returns a handle
        ("stream", "compact", "dead_letters", "requeue"),
        300,
    ),
    "ring": Kind(
        ring,
        # A writer's records are those that were there when it was opened: there were none.
        lambda r: BODIES[KEPT] if r.writable else [record.body for record in r.records()][KEPT],
        {"body": b"x", "bodies": lambda: [b"1", b"2"]},
        ("pop", "pop_many", "clear"),
        100,
    ),
    "messages": Kind(
        messages,
        lambda m: [m.read(id) for id in IDS][KEPT],
        {"msg_id": b"fedcba9876543210", "body": b"x", "ids": lambda: [b"fedcba9876543210"],
         "messages": lambda: [(b"fedcba9876543210", b"x")]},
        ("beside", "candidates", "form", "place", "places", "rows"),  # of the library
        200,
    ),
    "log": Kind(
        log,
        lambda store: [store.get(id) for id in range(1, 61)][KEPT],
        {"recid": 2, "recids": lambda: [2], "body": b"x", "bodies": lambda: [b"x"],
         "expected": b"y"},
        ("begin", "snapshot", "start_compaction", "create"),
        200,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_argument_is_one_clear_error_and_loses_nothing(kind: str, tmp_path: Path) -> None:
    about, path = KINDS[kind], str(tmp_path / "s")
    handle = about.make(path)
    refused, method = 0, ""
    for call in one_wrong(handle, about.good, HANDLE + about.skip):
        if call.method != method:
            assert about.bodies(handle) == BODIES[KEPT]
            method = call.method
        if not _waits(call):
            refused += attempt(handle, call) is not None
    assert refused > about.refused
    handle.sync() if kind != "log" else handle.commit()
    handle.close()
    assert winkfs.verify(path).problems == []
    with type(handle)(path) as reader:
        assert about.bodies(reader)[: len(BODIES[KEPT])] == BODIES[KEPT]


def _waits(call: Call) -> bool:
    """Whether a call does what it is asked to: to wait."""
    return "timeout" in call.given
