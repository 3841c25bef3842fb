"""The queue: what LedgerQ wrote and reads, what is handed out when, damage, several readers."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import ledgerq_oracle
import pytest
from constants import shrink
from flips import flip, flipping
from folders import untouched
from refusals import all_raise, each_raises, refuses
from seam import bytes_read, disk_calls
from simulated.disk import Event
from store_kinds import in_child, looking, simulated
from threaded import in_threads

from winkformats.disk.paths import directory_of
from winkformats.errors import CorruptError
from winkformats.ledgerq import cursors as ondisk
from winkformats.ledgerq import entry
from winkformats.ledgerq.segment import Header
from winkformats.ledgerq.state import Metadata
from winkfs.errors import Closed, FileExists, Locked, NoSuchFile, ReadOnly, Refusal
from winkfs.stores.ledgerq import (
    HIGH,
    LOW,
    MEDIUM,
    Compaction,
    Message,
    Queue,
    Rotation,
    create,
    files,
    is_queue,
)
from winkfs.stores.ledgerq.aio import AsyncQueue
from winkfs.stores.ledgerq.records import repair, verify

pytestmark = pytest.mark.in_memory
GOLDEN = Path(__file__).parents[1] / "golden" / "ledgerq"
MANIFEST: dict[str, list[dict[str, Any]]] = json.loads((GOLDEN / "manifest.json").read_text())
CASES = MANIFEST["cases"]
SMALL = Rotation(1 << 20, 10)


def ids(messages: Any) -> list[int]:
    return [message.id for message in messages]


def filled(path: str, count: int, body: bytes = b"x", **options: Any) -> None:
    """Push messages that are alike, with a handle that is closed then."""
    with Queue(path, "a", **options) as queue:
        queue.push_many([body] * count)


def popped(queue: Queue, **options: Any) -> Message:
    message = queue.pop(**options)
    assert message is not None
    return message


def waiting(path: str) -> list[int]:
    """Return the ids that a new look finds, without damage."""
    with Queue(path) as queue:
        found = ids(queue.messages())
        assert not queue.problems
        return found


def drained(queue: Queue, **options: Any) -> list[int]:
    return ids(iter(lambda: queue.pop(**options), None))


@pytest.fixture
def path(tmp_path: Path) -> str:
    create(str(tmp_path / "q"))
    return str(tmp_path / "q")


@pytest.fixture
def by_priority(tmp_path: Path) -> str:
    create(str(tmp_path / "q"), by_priority=True)
    return str(tmp_path / "q")


@pytest.fixture
def queue(path: str) -> Iterator[Queue]:
    """A handle on an empty queue, open to write."""
    with Queue(path, "a") as made:
        yield made


class Clock:
    """A time that goes on when a test lets it."""

    def __init__(self) -> None:
        self.now = 1_700_000_000 * 10**9

    def time_ns(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1e9

    def sleep(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in ("queue", "state", "tail"):
        monkeypatch.setattr(f"winkfs.stores.ledgerq.{module}.time", made)
    return made


def repaired(path: str) -> list[str]:
    """Repair a queue, which is sound then, also for LedgerQ -> what was done."""
    done = repair(path)
    assert not verify(path).problems
    ledgerq_oracle.queue(ledgerq_oracle.files_of(Path(path)))  # reads on id by id
    return done


# --- files of the reference ---


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_reference_queue_is_read_alike_and_left_untouched(
    case: dict[str, Any], tmp_path: Path
) -> None:
    path = str(shutil.copytree(GOLDEN / case["dir"], tmp_path / "q"))
    wanted = {row["id"]: row for row in case["enqueued"]}
    with untouched(Path(path)), Queue(path) as queue:
        found = list(queue.messages())
        assert ids(found) == case["ledgerq_on_reopen"]["ids"]
        assert ids(queue.peek(2)) == ids(found)[:2]
        for message in found:
            row = wanted[message.id]
            assert message.payload == base64.b64decode(row["payload_b64"])
            assert message.headers == (row["headers"] or {})
            assert message.priority == row["priority"]
            assert queue.read(message.id) == message
        stats = queue.stats()
        assert stats["pending"] == case["expect"]["stats"]["pending"]
        assert stats["segments"] == case["expect"]["stats"]["segments"]
        assert stats["next_id"] == case["next_message_id"]
        assert stats["read_id"] == case["read_message_id"]
        assert ids(queue.all_messages()) == [row["id"] for row in case["enqueued"]]
        assert not queue.problems and not queue.refresh()
        assert queue.by_priority == (case["name"] == "priorities")
        with pytest.raises(ReadOnly):
            queue.push(b"x")
    assert is_queue(path) and not verify(path).problems
    with Queue(path, starved=0) as queue:
        order = case["expect"].get("priority_order_ids", case["ledgerq_on_reopen"]["ids"])
        assert ids(queue.messages()) == order


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_reference_can_go_on_with_what_we_did(case: dict[str, Any], tmp_path: Path) -> None:
    path = str(shutil.copytree(GOLDEN / case["dir"], tmp_path / "q"))
    with Queue(path, "a", compress=9) as queue:
        assert popped(queue).id == case["ledgerq_on_reopen"]["ids"][0]
        id = queue.push(b"new" * 500, headers={"a": "b"}, ttl=1000)
        assert id == case["next_message_id"]
    rows, next_id, read_id = ledgerq_oracle.queue(ledgerq_oracle.files_of(Path(path)))
    assert next_id == id + 1 and rows[-1]["payload"] == b"new" * 500
    with Queue(path) as queue:
        left = case["ledgerq_on_reopen"]["ids"][1:]
        assert ids(queue.messages()) == [*left, id] or case["name"] == "priorities"
        assert min(left) >= read_id


@pytest.mark.parametrize("case", MANIFEST["damaged"], ids=lambda case: case["name"])
def test_a_queue_that_the_reference_does_not_open_is_mended(
    case: dict[str, Any], tmp_path: Path
) -> None:
    path = str(shutil.copytree(GOLDEN / case["dir"], tmp_path / "q"))
    with untouched(Path(path)):
        with Queue(path) as queue:
            assert ids(queue.all_messages()) == case["readable_ids"]
            assert len(queue.problems) == 1
        assert verify(path).problems
    raw = next(Path(path).glob("*.log")).read_bytes()
    answer = repair(path)
    assert any("are kept in" in line for line in answer)
    kept = next(Path(path).glob("*.cut")).read_bytes()
    assert kept in raw
    assert not verify(path).problems
    rows, _, _ = ledgerq_oracle.queue(ledgerq_oracle.files_of(Path(path)))
    good = [row["id"] for row in rows if row["expires"] is None]
    assert good == case["readable_ids"]
    with Queue(path, "a") as queue:
        assert drained(queue) == [id for id in case["readable_ids"] if id >= 6]


def test_what_the_reference_reads_between_is_not_read_again(path: str) -> None:
    with Queue(path, "a") as queue:
        queue.push_many([b"x"] * 10)
        assert ids(queue.pop_many(3)) == [1, 2, 3]
        assert queue.pop(visible=1000)
        assert ids(queue.pop_many(2)) == [5, 6]
    raw = Path(path, "metadata.dat")
    assert Metadata.decode(raw.read_bytes(), file="") == (11, 4)  # 4 is not acknowledged
    raw.write_bytes(Metadata(11, 8).encode())
    for _ in range(2):
        with Queue(path, "a") as queue:
            assert ids(queue.messages()) == [8, 9, 10]
    raw.write_bytes(Metadata(11, 2).encode())
    with Queue(path, "a") as queue:
        assert drained(queue) == list(range(2, 11))


def test_positions_of_a_foreign_queue_survive_without_a_close(tmp_path: Path) -> None:
    path = str(shutil.copytree(GOLDEN / "rotated", tmp_path / "q"))
    queue = Queue(path, "a")
    assert ids(queue.pop_many(4)) == [24, 25, 26, 27]
    queue.sync()
    queue.abort()
    with Queue(path, "a") as again:
        assert again.peek()[0].id == 28


def test_the_layout_of_rotated_segments_is_that_of_the_reference(tmp_path: Path) -> None:
    path = tmp_path / "q"
    with Queue(str(path), "a", rotation=Rotation(messages=10), make=True) as queue:
        for n in range(1, 58):
            assert queue.push(b"rot-%03d" % n) == n
        assert ids(queue.pop_many(23)) == list(range(1, 24))
    wanted = {p.name: p.stat().st_size for p in (GOLDEN / "rotated").iterdir()}
    found = {p.name: p.stat().st_size for p in path.iterdir()}
    for name in ("cursors.dat", "ledgerq.lock"):
        del found[name]
    assert found == wanted
    for name in ("00000000000000000011.log", "00000000000000000011.idx", "metadata.dat"):
        ours, theirs = (path / name).read_bytes(), (GOLDEN / "rotated" / name).read_bytes()
        blank = {"log": (16, 24, 60, 98), "idx": (48, 56), "dat": ()}[name[-3:]]
        assert ours[:16] == theirs[:16] and (blank or ours == theirs)
        if name.endswith("log"):
            assert ours[24:60] == theirs[24:60] and ours[64:78] == theirs[64:78]
    ledgerq_oracle.queue(ledgerq_oracle.files_of(path), step=10)


# --- pushing and popping ---


@pytest.mark.slow
@pytest.mark.parametrize("by_priority", [False, True])
def test_a_queue_is_a_queue(tmp_path: Path, by_priority: bool) -> None:
    path, rng, size = str(tmp_path / "q"), random.Random(1), (0, 1, 50, 3000)
    create(path, by_priority=by_priority)
    wanted: list[Message] = []

    def expected() -> Message:
        """Return the next message, which is gone then."""
        first = min(wanted, key=lambda one: (-one.priority * by_priority, one.id))
        wanted.remove(first)
        return first

    queue = Queue(path, "a", rotation=SMALL)
    for _ in range(400):
        priority = rng.choice((LOW, MEDIUM, HIGH))
        payloads = [rng.randbytes(rng.choice(size)) for _ in range(rng.randint(1, 5))]
        if rng.random() < 0.5:
            pushed = queue.push_many(payloads, priority=priority)
        else:
            pushed = [queue.push(payload, priority=priority) for payload in payloads]
        wanted += map(queue.read, pushed)
        assert [message.payload for message in wanted[-len(payloads) :]] == payloads
        for _ in range(min(rng.randint(0, 5), len(wanted))):
            assert popped(queue)._replace(deliveries=0) == expected()._replace(deliveries=0)
        if rng.random() < 0.05:
            queue.close()
            queue = Queue(path, "a", rotation=SMALL)
        if rng.random() < 0.03:
            queue.compact()
        assert queue.pending() == len(wanted) == queue.stats()["pending"]
    rest = [expected().id for _ in range(len(wanted))]
    assert ids(queue.messages()) == rest == ids(queue.stream(timeout=0))
    assert queue.pop() is None
    queue.close()
    assert not verify(path).problems


def test_low_priority_that_starves_comes_first(path: str, clock: Clock) -> None:
    with Queue(path, "a", by_priority=True, starved=30) as queue:
        queue.push_many([b"low"] * 2)
        clock.sleep(29)
        queue.push_many([b"high"] * 3, priority=HIGH)
        queue.push(b"low again")
        assert popped(queue).id == 3
        clock.sleep(1)
        assert drained(queue) == [1, 2, 4, 5, 6]


def test_low_priority_is_not_lost_by_a_reopen(path: str) -> None:
    """As it is by the reference, which keeps one read id."""
    with Queue(path, "a", by_priority=True) as queue:
        queue.push(b"low")
        queue.push(b"high", priority=HIGH)
        assert popped(queue).id == 2
    with Queue(path, "a") as queue:
        assert queue.by_priority and drained(queue) == [1]
    with Queue(path, "a", by_priority=False) as queue:
        assert drained(queue) == []


def test_a_message_expires(path: str, clock: Clock) -> None:
    with Queue(path, "a", ttl=50) as queue:
        queue.push(b"1", ttl=1)
        queue.push(b"2")
        queue.push(b"3", ttl=100)
        assert ids(queue.messages()) == [1, 2, 3]
        clock.sleep(1)
        assert ids(queue.peek(1)) == [2]
        clock.sleep(49)
        assert popped(queue).id == 3
        queue.push(b"4", ttl=1)
        clock.sleep(1)
        assert queue.pop() is None and queue.pending() == 0
        for seconds in (0, -1, float("inf"), float("nan")):
            with pytest.raises(ValueError, match="ttl"):
                queue.push(b"5", ttl=seconds)
            if seconds:
                with pytest.raises(ValueError, match="seconds"):
                    queue.pop(visible=seconds)


def test_gzip_and_its_limit(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = [b"a" * 5000, os.urandom(5000), b"a" * 1023, b"a" * 1024]
    with Queue(path, "a", compress=6) as queue:
        queue.push_many(payloads)
        assert queue.push(b"b" * 5000, compress=0) == 5
        assert [m.payload for m in queue.messages()][:4] == payloads
    rows, _, _ = ledgerq_oracle.queue(ledgerq_oracle.files_of(Path(path)))
    sizes = [b["offset"] - a["offset"] for a, b in pairwise(rows)]
    assert sizes[0] < 100 and sizes[1] > 5000 and sizes[2] > 1000 and sizes[3] < 100
    monkeypatch.setattr(entry, "UNPACKED", 3000)
    with Queue(path, "a") as queue:
        assert ids(queue.messages()) == [2, 3, 4, 5]
        assert len(queue.problems) == 1 and "more than 3000" in queue.problems[0]
        with pytest.raises(CorruptError, match="more than 3000"):
            queue.read(1)
        assert drained(queue) == [2, 3, 4, 5]


def test_a_key_is_pushed_once_in_its_window(path: str, clock: Clock) -> None:
    with Queue(path, "a", window=60) as queue:
        assert queue.push_once(b"a", "k") == (1, True)
        assert queue.push_once(b"b", "k") == (1, False)
        assert queue.push_once(b"b", "l", window=5) == (2, True)
        clock.sleep(5)
        assert queue.push_once(b"c", "l") == (3, True)
    state = json.loads(Path(path, ".dedup_state.json").read_text())
    assert state["version"] == 1 and [row["message_id"] for row in state["entries"]] == [1, 3]
    Path(path, "cursors.dat").unlink()  # only what LedgerQ has, too
    with Queue(path, "a", window=60) as queue:
        assert queue.push_once(b"x", "k") == (1, False)
        clock.sleep(55)
        assert queue.push_once(b"x", "k") == (4, True)
    with pytest.raises(ValueError, match="window"), Queue(path, "a") as queue:
        queue.push_once(b"x", "k")


def test_keys_are_bounded(path: str) -> None:
    with Queue(path, "a", window=60, keys=20) as queue:
        for n in range(50):
            queue.push_once(b"x", str(n))
        assert 10 <= queue.stats()["keys"] <= 20
        assert queue.push_once(b"x", "49")[1] is False


def test_a_lease_ends(path: str, clock: Clock) -> None:
    with Queue(path, "a") as queue:
        queue.push_many([b"x"] * 4)
        assert ids(queue.pop_many(3, visible=10)) == [1, 2, 3]
        assert queue.ack(1) == 1 and queue.ack(1) == 0
        assert queue.stats()["in_flight"] == 2
        clock.sleep(9)
        assert ids(queue.messages()) == [4]
        clock.sleep(1)
        assert ids(queue.messages()) == [2, 3, 4]
        message = popped(queue, visible=10)
        assert (message.id, message.deliveries) == (2, 2)
        assert queue.ack(3) == 1  # late, but nobody has it
        assert drained(queue) == [4]
    with Queue(path, "a") as queue:
        assert queue.stats()["in_flight"] == 1 and queue.pop() is None
        clock.sleep(10)
        message = popped(queue)
        assert (message.id, message.deliveries) == (2, 3)
        assert queue.pending() == 0


def test_a_message_that_fails_too_often_is_buried_and_comes_back(path: str, clock: Clock) -> None:
    dead = path + ".dead"
    with Queue(path, "a", dead_letters=dead, retries=3) as queue:
        queue.push(b"bad", headers={"h": "1"})
        for n in range(3):
            message = popped(queue, visible=100)
            assert message.deliveries == n + 1
            assert queue.nack(message.id, "it\nfails", delay=5) == (n == 2)
            assert queue.pop() is None
            clock.sleep(5)
        assert queue.pop() is None and queue.pending() == 0
        (letter,) = queue.dead_letters().messages()
        assert letter.payload == b"bad"
        assert letter.headers == {
            "h": "1", "dlq.original_msg_id": "1", "dlq.retry_count": "3",
            "dlq.failure_reason": "it fails", "dlq.last_failure": "2023-11-14T22:13:30.000Z",
        }  # fmt: skip
        assert queue.requeue() == 1 and queue.requeue() == 0
        assert queue.dead_letters().pending() == 0
        message = popped(queue)
        assert (message.id, message.headers) == (2, {"h": "1"})


def test_failures_are_kept_as_the_reference_keeps_them(path: str) -> None:
    with Queue(path, "a", retries=5) as queue:
        queue.push_many([b"x"] * 2)
        queue.pop_many(2)
        assert not queue.nack(2, "why") and not queue.nack(2, "why not")
        with pytest.raises(NoSuchFile):
            queue.nack(3)
    state = json.loads(Path(path, ".retry_state.json").read_text())
    (row,) = state["entries"]
    assert (state["version"], state["max_retries"]) == (1, 5)
    assert (row["msg_id"], row["retry_count"], row["failure_reason"]) == (2, 2, "why not")
    with Queue(path, "a") as queue:
        assert drained(queue) == [2] and queue.ack(2) == 0
    assert json.loads(Path(path, ".retry_state.json").read_text())["entries"] == []


def test_consumers_read_on_their_own(path: str) -> None:
    with Queue(path, "a", rotation=SMALL) as queue:
        queue.push_many([b"x"] * 30)
        queue.add_consumer("a")
        queue.add_consumer("b", start=21)
        assert drained(queue) == list(range(1, 31))
        assert queue.compact().segments == 0  # a has read nothing
        assert ids(queue.pop_many(15, consumer="a")) == list(range(1, 16))
        assert queue.compact(dry_run=True) == queue.compact()
        assert drained(queue, consumer="b") == list(range(21, 31))
        with pytest.raises(NoSuchFile, match="no consumer"):
            queue.pop(consumer="c")
    with Queue(path, "a") as queue:
        assert queue.stats()["consumers"]["a"]["pending"] == 15
        assert ids(queue.messages(consumer="a")) == list(range(16, 31))
        queue.remove_consumer("a")
        assert queue.compact().segments == 1
        queue.add_consumer("a")
        assert popped(queue, consumer="a").id == 21
        refuses(queue.add_consumer, ("", "x" * 33, "a\0"), ValueError, "name")
    with Queue(path) as queue:
        assert sorted(queue.stats()["consumers"]) == ["a", "b"]


def test_seek_by_id_and_by_time(path: str, clock: Clock) -> None:
    start = clock.now // 10**9
    with Queue(path, "a", rotation=Rotation(messages=500)) as queue:
        for _ in range(2000):
            queue.push(bytes(100))
            clock.sleep(1)
        for id in (1, 7, 499, 500, 501, 1234, 2000):
            queue.seek(id)
            assert popped(queue).id == id
            assert queue.seek_time(start + id - 1) == id
            assert popped(queue).id == id
        assert queue.seek_time(start + 5000) == 2001 and queue.pop() is None
        assert queue.seek_time(0) == 1
        queue.seek(10**6)
        assert queue.pop() is None
        refuses(queue.seek, (0, -1, 1 << 63), ValueError, "id")
        assert queue.push(b"x") == 2001 and drained(queue) == [2001]


@pytest.mark.slow
def test_a_stream_waits(queue: Queue) -> None:
    pusher = threading.Timer(0.1, queue.push, (b"late",))
    pusher.start()
    began = time.monotonic()
    assert ids(queue.stream(timeout=0.4)) == [1]
    assert 0.4 < time.monotonic() - began < 3
    pusher.join()


def test_rotation_by_bytes_and_by_time(path: str, clock: Clock) -> None:
    with Queue(path, "a", rotation=Rotation(bytes=1000, messages=100)) as queue:
        queue.push_many([bytes(300)] * 9)
        assert queue.stats()["segments"] == 3
    with Queue(path, "a", rotation=Rotation(seconds=60, messages=100)) as queue:
        clock.sleep(61)
        queue.push(b"x")
        queue.push(b"x")
        assert queue.stats()["segments"] == 4
    names = sorted(p.stem for p in Path(path).glob("*.log"))
    assert [int(name) for name in names] == [1, 101, 201, 301]
    ledgerq_oracle.queue(ledgerq_oracle.files_of(Path(path)), step=100)


def test_compaction_takes_what_it_may(path: str, clock: Clock) -> None:
    with Queue(path, "a", rotation=SMALL) as queue:
        for _ in range(6):
            queue.push_many([bytes(1000)] * 10)
            clock.sleep(100)
        assert queue.compact() == Compaction()
        queue.pop_many(35)
        assert queue.compact(segments=6) == Compaction()
        assert queue.compact(seconds=500).segments == 0
        assert queue.compact(seconds=300).segments == 2
        assert queue.compact(bytes=35_000).segments == 1
        assert queue.compact().segments == 0  # 31 to 40 are not all read
        assert queue.compact(unread=True, segments=1, dry_run=True) == (2, queue.compact(
            unread=True, segments=1, dry_run=True).bytes, 15)  # fmt: skip
        assert queue.compact(unread=True, segments=1).unread == 15
        assert drained(queue) == list(range(51, 61))
        assert queue.compact(least=3).segments == 0
    assert not verify(path).problems
    assert len(list(Path(path).glob("*.idx"))) == 1


@pytest.mark.slow
def test_sync_policies(path: str) -> None:
    def durable(**options: Any) -> int:
        """Messages that a kill right behind a push leaves."""
        queue = Queue(path, "a", **options)
        queue.push(b"x")
        time.sleep(0.3 if "interval" in options else 0)
        queue.abort()
        with Queue(path) as found:
            return len(list(found.all_messages()))

    assert durable(sync="none") == 0 == durable()
    assert durable(sync="always") == 1
    assert durable(sync="interval", interval=0.02) == 2
    assert durable(interval=0.02) == 3  # the default: what one second brings is lost, no more


@pytest.mark.slow
def test_a_queue_is_imported_and_used_without_numpy(path: str) -> None:
    """numpy takes longer to import than all the rest."""
    script = """
import sys
import google_crc32c  # 1.5 imports 130 modules of its own
theirs = set(sys.modules)
from winkfs.stores.ledgerq import Queue
with Queue(sys.argv[1], "a") as queue:
    queue.push(b"1", ttl=5, headers={"a": "b"})
    queue.push_many([b"2", b"3"])
    message = queue.pop(visible=5)
    queue.ack(message.id)
    queue.pop_many(1)
    queue.sync()
with Queue(sys.argv[1], "a") as queue:
    assert queue.pop().payload == b"3"
unwanted = {"numpy", "winkfs.container.container", "winkfs.reader", "inspect_", "tempfile", "click"}
ours = set(sys.modules) - theirs
assert not unwanted & ours, unwanted & ours
assert len(ours) < 125, len(ours)
"""
    subprocess.run([sys.executable, "-c", script, path], check=True, timeout=60)


# --- who may do what ---


@pytest.mark.slow
def test_one_writes_and_others_look(path: str) -> None:
    with Queue(path, "a", rotation=SMALL) as writer, Queue(path) as looker:
        for shared in (False, True):
            with pytest.raises(Locked):
                Queue(path, "a", shared=shared)
        assert not looker.refresh()
        writer.push_many([b"x"] * 5, priority=HIGH)
        writer.sync()
        assert looker.refresh() and ids(looker.messages()) == [1, 2, 3, 4, 5]
        writer.pop()
        writer.add_consumer("a")
        writer.sync()
        assert looker.refresh() and ids(looker.messages()) == [2, 3, 4, 5]
        assert ids(looker.messages(consumer="a")) == [1, 2, 3, 4, 5]
        assert not looker.refresh() and not looker.problems
        for _ in range(3):
            writer.push_many([b"y"] * 10)
            writer.sync()
            assert looker.refresh()
        assert ids(looker.messages()) == list(range(2, 36))
        writer.seek(30)
        writer.add_consumer("b", start=30)
        writer.remove_consumer("a")
        writer.compact()
        assert looker.refresh() and ids(looker.messages()) == list(range(30, 36))
    all_raise(Closed, (lambda: writer.push(b"x"), lambda: list(looker.messages())))


def test_a_write_that_is_going_on_is_no_damage(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path, 3, b"x" * 100)
    (segment,) = Path(path).glob("*.log")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-50])
    with Queue(path) as reader:
        assert reader.problems == [f"{segment}: 80 bytes at byte 324 are no messages"]
    monkeypatch.setattr(files, "sleep", lambda _: segment.write_bytes(whole))
    assert waiting(path) == [1, 2, 3]


def test_what_is_pushed_and_popped_during_a_verify_is_no_damage(by_priority: str) -> None:
    filled(by_priority, 15, b"x" * 5000, rotation=SMALL)

    def others(_: int) -> None:
        with Queue(by_priority, "a") as queue:
            queue.push_many([b"x" * 5000] * 40, priority=HIGH)
            queue.pop_many(30)

    report = verify(by_priority, others)
    assert not report.problems and report.files == 15


def test_a_viewer_sees_the_others_while_segments_are_removed(path: str) -> None:
    with Queue(path, "a", rotation=SMALL) as writer:
        writer.push_many([b"x"] * 1000)
        writer.sync()
        with Queue(path) as looker:
            found, every = looker.messages(), looker.all_messages()
            assert next(found).id == next(every).id == 1
            writer.pop_many(995)
            assert writer.compact().segments == 99
            assert ids(found)[-1] == ids(every)[-1] == 1000
            assert not looker.problems


def test_several_share_a_queue(path: str) -> None:
    first, second = (Queue(path, "a", shared=True, rotation=SMALL) for _ in range(2))
    with pytest.raises(Locked):
        Queue(path, "a")
    for n in range(25):
        queue = (first, second)[n % 2]
        assert queue.push(b"%d" % n) == n + 1
    assert popped(first).id == 1 and popped(second).id == 2
    assert second.ack(popped(first, visible=100).id) == 1
    second.seek(2)
    assert popped(first).id == 2
    first.add_consumer("a")
    assert popped(second, consumer="a").id == 1
    second.remove_consumer("a")
    assert ids(first.pop_many(20)) == list(range(3, 23))
    assert second.compact().segments == 2
    assert first.push(b"x") == 26 and second.push_many([b"y"] * 20) == range(27, 47)
    first.close()
    assert drained(second) == list(range(23, 47))
    second.close()
    assert not verify(path).problems
    ledgerq_oracle.queue(ledgerq_oracle.files_of(Path(path)), step=10)
    with Queue(path, "a") as queue:
        assert queue.push(b"alone") == 47


@pytest.mark.slow
def test_threads_share_a_queue(path: str) -> None:
    taken: list[list[int]] = [[] for _ in range(4)]
    with Queue(path, "a", rotation=Rotation(messages=100)) as queue:

        def push() -> None:
            for _ in range(500):
                queue.push(b"x")
            queue.sync()

        def pop(into: list[int]) -> None:
            for message in queue.stream(timeout=0.3):
                into.append(message.id)

        in_threads(*[push] * 4, *(partial(pop, into) for into in taken))
    assert sorted(id for into in taken for id in into) == list(range(1, 2001))
    assert all(into == sorted(into) for into in taken)


def test_a_forked_child_looks_and_does_not_write(path: str) -> None:
    with Queue(path, "a") as writer:
        writer.push(b"x")
        writer.sync()
        with Queue(path) as looker:

            def look() -> None:
                assert ids(looker.messages()) == [1]
                with pytest.raises(Closed):
                    writer.push(b"y")

            with writer._lock, looker._lock:  # as another thread might
                in_child(look)
        assert drained(writer) == [1]


def test_asyncio(path: str) -> None:
    async def run() -> list[int]:
        async with AsyncQueue(path) as queue:
            await queue.push(b"a")
            await queue.push_many([b"b", b"c"])
            message = await queue.pop(visible=10)
            assert message is not None
            await queue.ack(message.id)
            await queue.sync()
            return [m.id async for m in queue.stream(timeout=0.05)]

    assert asyncio.run(run()) == [2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("visible", [None, 1000.0])
@pytest.mark.parametrize("way", ["pop", "pop_many", "stream", "wait_for", "timeout"])
def test_a_cancelled_pop_consumes_nothing(path: str, way: str, visible: float | None) -> None:
    """At each moment: before its thread runs, while it does, and as it ends."""

    async def popped(queue: AsyncQueue) -> list[Message]:
        if way == "pop_many":
            return await queue.pop_many(2, visible=visible)
        if way == "stream":
            return [await anext(queue.stream(visible=visible))]
        message = await queue.pop(visible=visible, timeout=5)
        return [] if message is None else [message]

    async def run() -> list[int]:
        got: list[Message] = []
        async with AsyncQueue(path) as queue:
            await queue.push_many([b"x"] * 100)
            for round in range(40):
                if way == "wait_for":
                    with suppress(TimeoutError):
                        got += await asyncio.wait_for(popped(queue), round % 5 * 1e-4)
                elif way == "timeout":
                    with suppress(TimeoutError):
                        async with asyncio.timeout(round % 5 * 1e-4):
                            got += await popped(queue)
                else:
                    task = asyncio.create_task(popped(queue))
                    for _ in range(round % 4):
                        await asyncio.sleep(0)
                    time.sleep(round % 3 * 1e-3)
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        got += await task
        return ids(got)

    got = asyncio.run(run())
    with Queue(path, "a") as queue:
        rest = list(iter(queue.pop, None))
        assert len(set(got)) == len(got) and {m.deliveries for m in rest} == {1}
        assert sorted(got + ids(rest)) == list(range(1, 101))
        assert ids(rest) == sorted(ids(rest))


def test_what_is_given_back_counts_no_delivery_and_no_failure(path: str) -> None:
    with Queue(path, "a") as queue:
        queue.push_many([b"1", b"2"])
        for visible in (None, 1000.0):
            message = popped(queue, visible=visible)
            assert (message.id, message.deliveries) == (1, 1)
            queue.give_back(message)
        assert ids(queue.messages()) == [1, 2] and queue.stats()["retrying"] == 0
    with Queue(path, "a") as queue:
        assert [(m.id, m.deliveries) for m in queue.pop_many(2)] == [(1, 1), (2, 1)]


def test_a_pop_waits_for_a_message_up_to_a_limit(path: str) -> None:
    with Queue(path, "a", shared=True) as queue, Queue(path, "a", shared=True) as other:
        started = time.monotonic()
        assert queue.pop(timeout=0.1) is None
        assert time.monotonic() - started >= 0.1
        timer = threading.Timer(0.1, other.push, [b"x"])
        timer.start()
        assert popped(queue, timeout=30, visible=1000).payload == b"x"
        timer.join()

        async def run() -> tuple[Message | None, Message | None]:
            async with AsyncQueue(path, shared=True) as jobs:
                none = await jobs.pop(timeout=0.05)
                await jobs.push(b"y")
                return none, await jobs.pop(timeout=30)

        none, found = asyncio.run(run())
        assert none is None and found is not None and found.payload == b"y"


def test_a_lease_can_be_extended(queue: Queue, clock: Clock) -> None:
    queue.push(b"long job")
    assert queue.pop(visible=10)
    for _ in range(5):
        clock.sleep(9)
        assert queue.pop() is None
        queue.touch(1, 10)
    clock.sleep(10)
    assert popped(queue, visible=10).deliveries == 2
    queue.ack(1)
    with pytest.raises(NoSuchFile, match="leased"):
        queue.touch(1, 10)


def test_length_iteration_clear_and_repr(path: str) -> None:
    with Queue(path, "a") as queue:
        assert queue.empty() and len(queue) == 0 and queue
        queue.push_many([b"1", b"2", b"3"])
        assert queue.pop(visible=1000)
        assert not queue.empty() and len(queue) == 3 and ids(queue) == [2, 3]
        assert repr(queue) == f"Queue({path!r}, 'a')"
        queue.clear()
        assert queue.empty() and len(queue) == 0 and queue.ack(1) == 0
        queue.seek(2)
        assert ids(queue) == [2, 3]
    assert repr(queue) == f"<closed Queue {path!r}>"


def test_failures_that_ledgerq_noted_are_counted(path: str) -> None:
    """By a look, which has no journal of them."""
    with Queue(path, "a") as queue:
        queue.push_many([b"1", b"2"])
        queue.pop_many(2, visible=1000)
        queue.nack(1)
        queue.sync()
        with Queue(path) as look:
            assert look.stats()["retrying"] == 1 == queue.stats()["retrying"]
    Path(path, "cursors.dat").unlink()  # as LedgerQ leaves it
    with Queue(path) as look:
        assert look.stats()["retrying"] == 1


def test_wrong_calls_are_refused_in_a_line(path: str, tmp_path: Path) -> None:
    all_raise(
        ValueError,
        (
            lambda: Queue(path, "w"),
            lambda: Queue(path, "a", sync="never"),  # type: ignore[arg-type]
            lambda: Queue(path, "a", compress=10),
            lambda: Queue(path, "a", rotation=Rotation(0)),
        ),
        "must be",
    )
    none, empty, other = (str(tmp_path / name) for name in ("none", "empty", "other"))
    os.mkdir(empty)
    os.mkdir(other)
    Path(other, "file").touch()
    each_raises(
        (NoSuchFile, None, lambda: Queue(none, "a")),
        (NoSuchFile, None, lambda: Queue(empty)),
        (FileExists, "queue already", lambda: create(path)),
        (Refusal, "by arrival", lambda: create(path, exist_ok=True, by_priority=True)),
        (Refusal, "not empty", lambda: create(other, exist_ok=True)),
    )
    assert not is_queue(empty) and not is_queue(none)
    create(path, exist_ok=True)
    with Queue(path, "a") as queue:
        all_raise(
            ValueError,
            (
                lambda: queue.push(b"x", priority=3),
                lambda: queue.push(b"x", priority=-1),
                lambda: queue.push(b"x", compress=11),
            ),
            "must be",
        )
        wrong = ({"priority": 9}, {"headers": {"a": "b" * 70000}})
        many = [[b"a", {"payload": b"x", **options}, b"c"] for options in wrong]
        refuses(queue.push_many, many, ValueError, r"must be|at most")
        assert queue.next_id == 1
        with pytest.raises(ValueError, match="dead_letters"):
            queue.dead_letters()
        assert queue.push(bytearray(b"x")) == 1
        assert queue.pop() == Message(1, b"x", queue.read(1).timestamp, offset=64, segment=1)


# --- damage ---


def test_an_id_that_was_consumed_is_not_given_again(path: str) -> None:
    """A power cut may leave a position, and not the messages below it."""
    with Queue(path, "a") as queue:
        queue.push_many([b"x"] * 3)
        assert drained(queue) == [1, 2, 3]
    log = Path(path, f"{1:020}.log")
    for left in (64, 64 + 31, 0):
        log.write_bytes(log.read_bytes()[:left])
        log.with_suffix(".idx").unlink(missing_ok=True)
        with Queue(path, "a") as queue:
            id = queue.push(b"new")
            assert id > 3 and drained(queue) == [id]
        ledgerq_oracle.queue(ledgerq_oracle.files_of(Path(path)))


def test_a_message_is_in_the_queue_or_the_dead_letters() -> None:
    disk, path = simulated("queue", 3)
    looks, rng = 0, random.Random(3)

    def look(event: Event) -> None:
        nonlocal looks
        image = disk.crash(rng)
        with Queue(f"{image.path}/s") as queue:
            found = [m.payload for m in queue.messages()]
            found += [b"bad"] * bool(queue.state.cursors[""].leased)
        if b"bad" not in found:
            with Queue(f"{image.path}/dead") as queue:
                left = queue.state.cursors[""]
                assert left.leased or [m.payload for m in queue.messages()] == [b"bad"]
        looks += 1

    options: dict[str, Any] = {"dead_letters": f"{disk.path}/dead", "retries": 1}
    with Queue(path, "a", sync="none", **options) as queue:
        queue.push(b"bad")
        message = popped(queue, visible=100)
        queue.sync()
        with looking(disk, look):
            for _ in range(3):
                assert queue.nack(message.id, "bad")
                queue.sync()
                assert queue.requeue() == 1
                message = popped(queue, visible=100)
                queue.sync()
    assert looks > 50


def test_what_is_removed_is_consumed_for_ledgerq_too() -> None:
    """It waits for a message that is gone."""
    (disk, path), looks = simulated("queue", 2), 0

    def look(event: Event) -> None:
        nonlocal looks
        if event.call == "unlink" and event.path.endswith(".log"):
            image = disk.crash()
            with directory_of(f"{image.path}/s").open("metadata.dat") as storage:
                assert Metadata.decode(storage.read(0, 24), file="").read_id == 36
            looks += 1

    with Queue(path, "a", sync="none", rotation=SMALL) as queue:
        queue.push_many([b"x"] * 50)
        queue.pop_many(35)
        with looking(disk, look):
            assert (queue.compact().segments, looks) == (3, 3)


def test_unwritten_metadata_are_not_taken_for_those_of_ledgerq() -> None:
    disk, path = simulated("queue", 1)
    with Queue(path, "a", sync="none") as queue:
        queue.push_many([b"x"] * 10)
        queue.pop()
    for n in range(2, 6):
        queue = Queue(path, "a", sync="none")
        assert popped(queue).id == n
        queue.sync()
        disk.arm("rename")
        with pytest.raises(OSError, match="error"):
            queue.close()


def test_derived_files_that_are_gone_or_damaged_cost_nothing(by_priority: str) -> None:
    path, rng = by_priority, random.Random(3)
    with Queue(path, "a", sync="none", rotation=Rotation(messages=100)) as queue:
        for n in range(350):
            queue.push(b"%d" % n, priority=rng.randrange(3))
        wanted = list(queue.messages())
    for suffix in (".idx", ".pri"):
        for file in Path(path).glob(f"*{suffix}"):
            data = file.read_bytes()
            for damaged in (None, b"", data[:-1], data[:20] + b"x" + data[21:], bytes(len(data))):
                file.unlink() if damaged is None else file.write_bytes(damaged)
                with Queue(path) as queue:
                    assert list(queue.messages()) == wanted
                    assert queue.read(123).id == 123
            file.write_bytes(data)
    Path(path, "metadata.dat").unlink()
    with Queue(path) as queue:
        assert list(queue.messages()) == wanted and queue.next_id == 351
    Path(path, "cursors.dat").unlink()
    with Queue(path) as queue:
        assert list(queue.messages()) == wanted
    with Queue(path, "a") as queue:
        assert queue.push(b"x") == 351
    assert not verify(path).problems


ENDS = {
    "zeros": bytes(5000), "garbage": random.Random(4).randbytes(5000), "half a header": None,
    "nothing": b"",
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_bytes_behind_the_end_are_kept_aside(path: str, end: str) -> None:
    filled(path, 15, rotation=SMALL)
    data = ENDS[end]
    last = Path(path, "00000000000000000011.log")
    if data:
        last.write_bytes(last.read_bytes() + data)
    else:
        last = Path(path, "00000000000000000021.log")
        last.write_bytes(b"" if data is not None else last.with_stem(f"{11:020}").read_bytes()[:40])
    with Queue(path, "a", rotation=SMALL) as queue:
        assert ids(queue.messages()) == list(range(1, 16))
        assert queue.push(b"new") == 16
    kept = [file.read_bytes() for file in Path(path).glob("*.cut*")]
    assert (
        kept == [{"garbage": data, "half a header": kept and kept[0]}[end]]
        if kept
        else (end in ("zeros", "nothing"))
    )
    assert not verify(path).problems
    rows, _, _ = ledgerq_oracle.queue(ledgerq_oracle.files_of(Path(path)))
    assert [row["id"] for row in rows] == list(range(1, 17))


@pytest.mark.in_memory
@pytest.mark.slow
def test_every_flip_costs_the_message_that_it_hits(path: str, soak: bool) -> None:
    rng = random.Random(5)
    with Queue(path, "a", rotation=SMALL) as queue:
        for n in range(25):
            queue.push(b"%d" % n * 7, priority=n % 3, headers={"a": "b"} if n % 4 else None)
        wanted = {m.id: m for m in queue.messages()}
    files = sorted(Path(path).iterdir())
    for file in files:
        size = file.stat().st_size
        for byte in range(size) if soak else rng.sample(range(size), min(size, 60)):
            with flipping(file, byte, bits=1 << rng.randrange(8)), Queue(path) as queue:
                found = {m.id: m for m in queue.all_messages()}
                lost = wanted.keys() - found.keys()
                assert len(lost) <= (file.suffix == ".log"), (file.name, byte)
                for id, message in found.items():
                    assert message._replace(offset=0) == wanted[id]._replace(offset=0)
                if lost:
                    assert queue.problems


@pytest.mark.in_memory
@pytest.mark.slow
def test_a_flip_of_an_index_does_not_hide_messages(path: str, clock: Clock) -> None:
    times = []
    with Queue(path, "a", rotation=Rotation(messages=100)) as queue:
        for _ in range(250):
            times.append(clock.now)
            queue.push(bytes(500))
            clock.sleep(1)
        queue.pop_many(150)
    for file in sorted(Path(path).glob("*.idx")):
        for byte in range(file.stat().st_size):
            with flipping(file, byte, bits=1 << byte * 3 % 8), Queue(path) as queue:
                assert queue.peek()[0].id == 151 and queue.read(77).id == 77
                assert queue.reading.at_time(times[119]) == 120


def test_a_flip_in_a_closed_segment_is_skipped_and_repaired(path: str) -> None:
    filled(path, 35, b"x" * 50, rotation=SMALL)
    flip(f"{path}/00000000000000000011.log", 400)
    with Queue(path, "a") as queue:
        wanted = [id for id in range(1, 36) if id != 15]
        assert ids(queue.messages()) == wanted
        assert len(queue.problems) == 1
        assert drained(queue) == wanted and len(queue.problems) == 1
        queue.seek(1)
    assert len(verify(path).problems) == 2  # and message 15 is missing
    assert repaired(path)
    assert waiting(path) == wanted


@pytest.mark.slow
@pytest.mark.parametrize(("cut", "lost"), [(1, 0), (5, 1), (40, 2), (300, 10)])
def test_a_closed_segment_that_is_cut_short_is_repaired(path: str, cut: int, lost: int) -> None:
    filled(path, 35, rotation=SMALL)
    file = Path(path, "00000000000000000011.log")
    file.write_bytes(file.read_bytes()[:-cut])
    with Queue(path) as queue:
        left = ids(queue.messages())
        assert len(left) == 35 - lost
    assert bool(verify(path).problems) == bool(lost)
    repaired(path)
    with Queue(path, "a") as queue:
        assert drained(queue) == left


def test_hostile_integers_are_refused_or_reported(path: str) -> None:
    filled(path, 25, rotation=SMALL)
    head = Path(path, "00000000000000000011.log")
    data = head.read_bytes()
    for low, high in ((0, 0), (5, 1 << 62), (1, 1), (20, 11), (11, 10**9), (1 << 63, 1 << 63)):
        forged = Header(11, 1, low, high).encode()
        head.write_bytes(forged + data[64:])
        assert waiting(path) == list(range(1, 26))
    head.write_bytes(data)
    for numbers in ((1, 1 << 62), (1 << 62, 1 << 62), (5, 9)):
        Path(path, "metadata.dat").write_bytes(Metadata(*numbers).encode())
        with Queue(path, "a") as queue:
            queue.push(b"y")
            list(queue.messages())
    Path(path, "metadata.dat").write_bytes(b"\xff" * 24)
    with Queue(path, "a", sync="none") as queue:
        assert any("metadata" in line for line in queue.problems)


def test_a_sync_makes_the_name_of_a_new_segment_durable() -> None:
    disk, path = simulated("queue", 1)
    queue = Queue(path, "a", sync="none", rotation=Rotation(messages=1))
    for count in range(1, 10):
        queue.push(b"x")
        queue.sync()
        for _ in range(5):
            image = disk.crash()
            assert waiting(f"{image.path}/s") == list(range(1, count + 1))
    queue.abort()


def test_rows_behind_one_that_is_torn_are_not_good_again(path: str) -> None:
    """When that one is written over."""
    filled(path, 40, sync="none")
    begun = Path(path, "cursors.dat").stat().st_size
    queue = Queue(path, "a", sync="none")
    for _ in range(20):
        queue.pop()
        queue.sync()
    queue.abort()
    journal = Path(path, "cursors.dat")
    assert journal.stat().st_size == begun + 20 * ondisk.STRIDE
    flip(journal, begun + 5 * ondisk.STRIDE + 9)
    for first in (6, 7):
        queue = Queue(path, "a", sync="none")
        assert popped(queue).id == first
        queue.sync()
        queue.abort()


def test_a_directory_in_the_place_of_a_segment_is_refused(path: str) -> None:
    Path(path, f"{5:020}.log").mkdir()
    with pytest.raises(Refusal, match="is no segment"):
        Queue(path)


@pytest.fixture
def short_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch, "a queue", journal=2000)


@pytest.mark.usefixtures("short_journal")
def test_a_journal_that_grows_is_written_anew(path: str) -> None:
    with Queue(path, "a", sync="none") as queue:
        queue.add_consumer("a")
        queue.push_many([b"x"] * 3000)
        for _ in range(300):
            for message in queue.pop_many(5, visible=100):
                queue.ack(message.id)
            queue.sync()
        assert Path(path, "cursors.dat").stat().st_size < 5000
    with Queue(path) as queue:
        assert ids(queue.peek()) == [1501] and ids(queue.peek(consumer="a")) == [1]


@pytest.mark.usefixtures("short_journal")
def test_another_process_writes_the_journal_anew(path: str) -> None:
    """Between the look at its size and the turn."""
    first, second = (Queue(path, "a", shared=True) for _ in range(2))
    for _ in range(100):
        first.push(b"x")
        first.ack(popped(first, visible=100).id)
    second.push_many([b"y"] * 2)
    second.ack(popped(second, visible=100).id)
    second.sync()
    assert Path(path, "cursors.dat").stat().st_size < 2000
    first.sync()
    assert popped(first).payload == b"y"
    first.close()
    second.close()


def test_to_open_does_not_read_what_is_closed(path: str) -> None:
    with Queue(path, "a", rotation=Rotation(messages=1000)) as queue:
        queue.push_many([bytes(50)] * 9500)
        queue.pop_many(1500)
    with disk_calls() as calls, Queue(path) as queue:
        assert queue.next_id == 9501
        assert bytes_read(calls, "") < 40_000
        assert queue.pending() == 8000


@pytest.mark.long
@pytest.mark.slow
def test_memory_of_pending_messages_with_priorities(by_priority: str) -> None:
    with Queue(by_priority, "a") as queue:
        queue.push(b"x", priority=HIGH)
        tracemalloc.start()
        queue.push_many([{"payload": b"", "priority": n % 3} for n in range(1)])
        count = 100_000
        for n in range(count):
            queue.push(b"", priority=n % 3)
        queue.sync()
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert taken / count <= 40
    with Queue(by_priority, "a") as queue:
        tracemalloc.start()
        assert queue.pop() is not None
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert taken / count <= 40
