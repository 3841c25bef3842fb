"""Wrong arguments of the stores: each is one clear error, and nothing is stored or lost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from arguments import Call as MethodCall
from arguments import attempt, one_wrong
from refusals import all_raise, refuses
from store_kinds import KINDS

import winkfs
from winkfs.errors import NoSuchFile
from winkfs.stores import messagestore, ringpage
from winkfs.stores.ledgerq import Queue, Rotation, create
from winkfs.stores.logstore import LogStore
from winkfs.stores.messagestore import MessageStore

pytestmark = pytest.mark.in_memory
NO_BYTES: list[Any] = [5, [1, 2, 3], True, "text", {"a": 1}, 1.5, 10**10]
NO_SPANS: list[Any] = [0, math.nan, math.inf, -1, -1e-9, True, "1", None, 1j]
ID = b"0123456789abcdef"
Call = Callable[[Any, Any], object]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    create(str(tmp_path / "s"))
    with Queue(str(tmp_path / "s"), "a", window=60) as made:
        yield made


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogStore]:
    with LogStore.create(str(tmp_path / "s")) as made:
        yield made


@pytest.fixture
def messages(tmp_path: Path) -> Iterator[MessageStore]:
    messagestore.create(str(tmp_path / "s"))
    with MessageStore(str(tmp_path / "s"), "a") as made:
        yield made


MANY: Call = lambda s, x: s.push_many([b"a", x])  # noqa: E731
BODIES: list[tuple[str, Call]] = [
    ("queue", lambda s, x: s.push(x)),
    ("queue", lambda s, x: s.push(x, priority=0, headers={"a": "b"})),
    ("queue", MANY),
    ("queue", lambda s, x: s.push_many([b"a", {"payload": x}])),
    ("queue", lambda s, x: s.push_once(x, "key")),
    ("ring", lambda s, x: s.push(x)),
    ("messages", lambda s, x: s.write(ID, x)),
    ("messages", lambda s, x: s.write_many([(ID, x)])),
    ("log", lambda s, x: s.put(x)),
    ("log", lambda s, x: s.put_many([b"a", x])),
    ("log", lambda s, x: s.begin().put(x)),
]


@pytest.mark.parametrize(("kind", "call"), BODIES)
def test_what_is_not_bytes_is_no_body(kind: str, call: Call, tmp_path: Path) -> None:
    """bytes(5) would be five NULs."""
    options = {"window": 60} if kind == "queue" else {}
    on = KINDS[kind](str(tmp_path / "s"), make=True, **options)
    with on.store as store:
        for wrong in [*NO_BYTES, *([] if kind == "log" else [None])]:
            if call is MANY and isinstance(wrong, dict):  # options of a message
                continue
            with pytest.raises(TypeError, match=f"is bytes, not {type(wrong).__name__}"):
                call(store, wrong)
        on.sync()
        assert len(store) == 0
        for good in (bytearray(b"x"), memoryview(b"x")):
            call(store, good)
        on.sync()
        assert len(store) > 0 or "begin" in call.__code__.co_names


SPANS: list[tuple[Call, set[Any]]] = [  # with what is allowed
    (lambda q, x: q.push(b"x", ttl=x), {None}),
    (lambda q, x: q.push_many([b"x"], ttl=x), {None}),
    (lambda q, x: q.push_once(b"x", "key", window=x), {None}),
    (lambda q, x: q.pop(visible=x), {None, 0}),
    (lambda q, x: q.pop_many(2, visible=x), {None, 0}),
    (lambda q, x: q.pop(timeout=x), {0, math.inf}),
    (lambda q, x: next(q.stream(timeout=x)), {None, 0, math.inf}),
    (lambda q, x: q.nack(1, delay=x), {0}),
    (lambda q, x: q.touch(1, x), {0}),
    (lambda q, x: q.compact(seconds=x), {None, 0}),
    (lambda q, x: q.seek_time(x), {0, -1, -1e-9, True}),
    (lambda q, x: Queue(q.path, "r", interval=x), set()),
    (lambda q, x: Queue(q.path, "r", window=x), {0}),
    (lambda q, x: Queue(q.path, "r", starved=x), {0}),
    (lambda q, x: Queue(q.path, "r", ttl=x), {None}),
    (lambda q, x: Queue(q.path, "r", rotation=Rotation(seconds=x)), {None}),
]


@pytest.mark.parametrize(("call", "allowed"), SPANS)
def test_a_time_span_that_is_none_changes_nothing(
    call: Call, allowed: set[Any], queue: Queue
) -> None:
    queue.push(b"1")
    assert queue.pop(visible=1000)
    wrong = [span for span in NO_SPANS if span not in allowed]
    refuses(partial(call, queue), wrong, (TypeError, ValueError))
    assert queue.next_id == 2 and queue.stats()["in_flight"] == 1 and queue.pop() is None
    assert queue.stats()["retrying"] == 0


def test_the_longest_time_spans_are_taken(queue: Queue) -> None:
    for span in (1e300, 10**400, np.float32(1e30), np.float64(3.5)):
        id = queue.push(b"x", ttl=span)
        assert queue.push_once(b"y", f"{span}", window=span)[1]
        message = queue.pop(visible=span)
        assert message is not None and message.id == id
        queue.nack(id, delay=span)
        queue.touch(id, span)
        queue.ack(id)
        assert queue.pop() is not None
    queue.compact(seconds=1e300)


def test_a_message_with_a_wrong_window_is_not_pushed(queue: Queue) -> None:
    wrong: list[Any] = [math.inf, math.nan, -1, "1"]
    calls = (partial(queue.push_once, b"x", "key", window=window) for window in wrong)
    all_raise((TypeError, ValueError), calls)
    with pytest.raises(TypeError, match="key"):
        queue.push_once(b"x", 5)  # type: ignore[arg-type]
    assert queue.next_id == 1


IDS: list[Call] = [
    lambda q, x: q.ack(x), lambda q, x: q.ack(1, x), lambda q, x: q.nack(x),
    lambda q, x: q.touch(x, 5), lambda q, x: q.read(x),
]  # fmt: skip


@pytest.mark.parametrize("call", IDS)
def test_an_invalid_id_raises_and_acknowledges_nothing(call: Call, queue: Queue) -> None:
    queue.push_many([b"1", b"2"])
    assert queue.pop(visible=1000)
    refuses(partial(call, queue), ("1", 1.0, True, None, b"1"), TypeError, "an id must be an int")
    refuses(partial(call, queue), (99, 0, -1, 1 << 63, 1 << 70), NoSuchFile)
    if call is not IDS[-1]:
        with pytest.raises(NoSuchFile):  # it was not popped
            call(queue, 2)
    assert queue.stats()["in_flight"] == 1
    assert queue.ack(np.int64(1)) == 1 and queue.ack(1) == 0  # type: ignore[arg-type]


RECIDS: list[Call] = [
    lambda s, x: s.get(x), lambda s, x: s.update(x, b""), lambda s, x: s.delete(x),
    lambda s, x: s.get_many([x]), lambda s, x: s.update_many([x], [b""]),
    lambda s, x: s.compare_and_swap(x, b"1", b"2"), lambda s, x: s.snapshot().get(x),
    lambda s, x: s.begin().get(x),
]  # fmt: skip


@pytest.mark.parametrize("call", RECIDS)
def test_a_recid_that_is_none_is_an_error(call: Call, log: LogStore) -> None:
    recid = log.put(b"1")
    log.commit()
    refuses(
        partial(call, log), ("1", 1.0, True, None), TypeError, r"recids? (must be an int|are ints)"
    )
    refuses(partial(call, log), (99, 0, -1), NoSuchFile)
    assert log.get(recid) == b"1" == log.get(np.int64(recid))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["text of 16 bytes", 5, None, bytearray(16)])
def test_a_message_id_that_is_none_is_an_error(wrong: Any, messages: MessageStore) -> None:
    all_raise(
        TypeError,
        (
            lambda: messages.write(wrong, b""),
            lambda: messages.write_many([(wrong, b"")]),
            lambda: messages.read(wrong),
            lambda: messages.remove(wrong),
            lambda: wrong in messages,
        ),
        "a message id is bytes",
    )
    assert len(messages) == 0


OPTIONS: list[Callable[[str], object]] = [
    lambda p: LogStore.create(p, file_size=1e6),  # type: ignore[arg-type]
    lambda p: LogStore.create(p, cutoff="1"),  # type: ignore[arg-type]
    lambda p: LogStore.create(p, save_every=True),
    lambda p: ringpage.create(p, pages=2.0),  # type: ignore[arg-type]
    lambda p: ringpage.create(p, page_size="4096"),  # type: ignore[arg-type]
    lambda p: ringpage.create(p, record_size=1.5),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("call", OPTIONS)
def test_a_number_of_another_type_makes_no_store(
    call: Callable[[str], object], tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match="must be an int"):
        call(str(tmp_path / "s"))
    assert not list(tmp_path.iterdir())


# --- all methods, and many values ---

RECORDS = [b"body %d" % i * (i % 7 + 1) for i in range(60)]
OTHERS = 20  # of the first records, whose ids are among the wrong arguments: these may go
LIBRARY = ("close", "abort", "after_fork", "keep", "leave")  # the last of the library


class Asked(NamedTuple):
    """Good values of arguments, methods that are left out, how many are refused at least, and
    options of the handle."""

    good: dict[str, Any]
    skip: tuple[str, ...]
    refused: int
    options: Mapping[str, Any] = MappingProxyType({})


OF_KIND = {
    "queue": Asked(
        {"id": 3, "payload": b"x", "messages": lambda: [b"1"], "count": 1, "key": "k",
         "name": "audit", "seconds": 1.0, "visible": 1.0},
        # what waits, what removes, what returns a handle
        ("stream", "compact", "dead_letters", "requeue"),
        300,
        {"window": 60},
    ),
    "ring": Asked(
        {"body": b"x", "bodies": lambda: [b"1", b"2"]},
        ("pop", "pop_many", "clear"),
        100,
    ),
    "messages": Asked(
        {"msg_id": b"fedcba9876543210", "body": b"x", "ids": lambda: [b"fedcba9876543210"],
         "messages": lambda: [(b"fedcba9876543210", b"x")]},
        ("beside", "candidates", "form", "place", "places", "rows"),  # of the library
        200,
    ),
    "log": Asked(
        {"recid": 2, "recids": lambda: [2], "body": b"x", "bodies": lambda: [b"x"],
         "expected": b"y"},
        ("begin", "snapshot", "start_compaction", "create"),
        200,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_argument_is_one_clear_error_and_loses_nothing(kind: str, tmp_path: Path) -> None:
    about = OF_KIND[kind]
    on = KINDS[kind](str(tmp_path / "s"), make=True, **about.options)
    added = {on.add(body): body for body in RECORDS}
    kept = dict(list(added.items())[OTHERS:])
    on.sync()
    refused, method = 0, ""
    for call in one_wrong(on.store, about.good, LIBRARY + about.skip):
        if call.method != method:
            assert kept.items() <= on.bodies().items()
            method = call.method
        if not _waits(call):
            refused += attempt(on.store, call) is not None
    assert refused > about.refused
    on.sync()
    on.store.close()
    assert winkfs.verify(on.path).problems == []
    again = KINDS[kind](on.path)
    assert kept.items() <= again.bodies().items()
    again.store.close()


def _waits(call: MethodCall) -> bool:
    """Whether a call does what it is asked to: to wait."""
    return "timeout" in call.given
