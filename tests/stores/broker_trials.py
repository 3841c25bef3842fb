"""Trials against a real RabbitMQ: what winkfs does to a broker's folder, the broker survives.

    python -m pytest tests/stores/broker_trials.py

Needs Debian's rabbitmq-server (scripts/system-packages broker) and pika. One node publishes and is
stopped; each trial has a copy of its data, and drains all queues in the end: what comes out is
compared with an untouched copy.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_node import BIN, Node

from winkfs.stores.messagestore.store import MessageStore

pytestmark = pytest.mark.skipif(not BIN.is_dir(), reason="needs rabbitmq-server")
pika = pytest.importorskip("pika")
WINKFS = [sys.executable, "-c", "import sys; from winkfs.__main__ import main; sys.exit(main())"]
QUEUES = {"one": {}, "two": {}, "three": {}, "lazy": {"x-queue-mode": "lazy"},
          "second": {"x-queue-version": 2}}  # fmt: skip
Drained = dict[str, Counter[bytes]]


def winkfs(*args: object, status: int = 0) -> str:
    done = subprocess.run([*WINKFS, *map(str, args)], capture_output=True, text=True, timeout=300)
    assert done.returncode == status, (args, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout if status == 0 else done.stderr


def publish(node: Node, count: int, seed: int) -> None:
    rng = random.Random(seed)
    with node.channel() as channel:
        channel.confirm_delivery()
        channel.exchange_declare("fan", "fanout", durable=True)
        for queue, arguments in QUEUES.items():
            channel.queue_declare(queue, durable=True, arguments=arguments)
        for queue in ("one", "two", "three"):
            channel.queue_bind(queue, "fan")
        durable = pika.BasicProperties(delivery_mode=2, headers={"n": 1})
        for number in range(count):
            size = rng.choice((0, 900, 4500, 6000, 30_000, 120_000))
            body = b"%d %d " % (seed, number)
            body += rng.randbytes(max(size - len(body), 0))
            if number % 3:
                channel.basic_publish("", rng.choice(list(QUEUES)), body, durable)
            else:
                channel.basic_publish("fan", "", body, durable)


def take(node: Node, most: int | None = None) -> Drained:
    """What comes out of all queues, of each `most` messages; acknowledged."""
    found: Drained = {}
    with node.channel() as channel:
        for queue in QUEUES:
            found[queue] = Counter()
            while most is None or found[queue].total() < most:
                method, _, body = channel.basic_get(queue, auto_ack=True)
                if method is None:
                    break
                found[queue][body] += 1
    return found


def drain(node: Node) -> Drained:
    node.start()
    try:
        return take(node)
    finally:
        node.close()


def digest(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module", params=["stopped", "killed"])
def origin(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that has published and consumed, and was stopped, or killed."""
    node = Node(tmp_path_factory.mktemp(request.param) / "origin")
    try:
        node.start()
        publish(node, 500, 1)
        take(node, 45)
        publish(node, 80, 2)
        time.sleep(1.5)
        node.stop() if request.param == "stopped" else node.kill()
        node.close()
        assert (node.store / "clean.dot").exists() == (request.param == "stopped")
        yield node
    finally:
        node.close()


@pytest.fixture(scope="module")
def wanted(origin: Node, tmp_path_factory: pytest.TempPathFactory) -> Drained:
    return drain(origin.copy(tmp_path_factory.mktemp("untouched") / "node"))


@pytest.fixture
def node(origin: Node, tmp_path: Path) -> Iterator[Node]:
    found = origin.copy(tmp_path / "node")
    yield found
    found.close()


def ids(node: Node) -> dict[str, int]:
    """References of the messages of its store."""
    rows = map(json.loads, winkfs("store", "ls", node.store, "--json").splitlines())
    return {row["id"]: row["refs"] for row in rows}


def content_of(term: bytes, known: set[bytes]) -> bytes | None:
    """Which of some bodies is in a message as the broker stores it."""
    for found in re.finditer(rb"m(.{4})", term[:2000], re.DOTALL):
        body = term[found.end() : found.end() + int.from_bytes(found[1], "big")]
        if body in known:
            return body
    return None


def consumed(node: Node, wanted: Drained) -> list[str]:
    """Messages of the store whose bodies are in no queue."""
    left = {body for some in wanted.values() for body in some}
    with MessageStore(str(node.store)) as store:
        terms = ((id, store.read(bytes.fromhex(id))) for id in ids(node))
        return [id for id, term in terms if content_of(term, left) is None]


def test_looking_changes_nothing(node: Node, tmp_path: Path) -> None:
    before = digest(node.store)
    for command in ("ls", "stats", "verify"):
        winkfs("store", command, node.store)
    winkfs("store", "salvage", node.store, tmp_path / "saved")
    for segment in node.store.glob("*.rdq"):
        winkfs("fct", "scan", segment)
    for command in ("compact", "migrate"):
        answer = winkfs("store", command, node.store, status=1)
        assert "a folder of RabbitMQ" in answer
    assert digest(node.store) == before


def test_the_messages_are_those_of_the_queues(node: Node, wanted: Drained) -> None:
    """After a clean shutdown exactly these, with as many references."""
    holders: Counter[bytes] = Counter()
    for some in wanted.values():
        holders.update(some)
    large = {body: refs for body, refs in holders.items() if len(body) > 4096}
    found = ids(node)
    if (node.store / "clean.dot").exists():
        assert sorted(found.values()) == sorted(large.values())
    else:
        assert len(found) >= len(large)


def test_a_dirty_start_brings_the_same(node: Node, wanted: Drained) -> None:
    winkfs("store", "compact", node.store, "--force")  # there may be nothing to do
    assert not (node.store / "clean.dot").exists()
    assert drain(node) == wanted


def test_remove_and_compact_leave_what_the_queues_have(node: Node, wanted: Drained) -> None:
    dead = consumed(node, wanted)
    before = sum(map(len, digest(node.store).values()))
    if dead:  # after a kill; else they are none already
        winkfs("store", "rm", node.store, "--force", *dead)
    winkfs("store", "compact", node.store, "--force")
    assert sum(map(len, digest(node.store).values())) < before
    winkfs("store", "verify", node.store)
    assert drain(node) == wanted


def test_compacted_segments_are_read_to_their_end(
    node: Node, wanted: Drained, tmp_path: Path
) -> None:
    """Gaps stay in them: this broker stops a scan at a size of zero."""
    dead = set(consumed(node, wanted))
    keep = [id for id in ids(node) if id not in dead]
    (tmp_path / "keep").write_text("".join(f"{id}\n" for id in keep))
    gaps = 0
    for segment in node.store.glob("*.rdq"):
        before = segment.stat().st_size
        winkfs("fct", "compact", segment, "--keep", tmp_path / "keep", "--force", "--no-truncate")
        assert segment.stat().st_size == before
        rows = winkfs("fct", "scan", segment, "--json").splitlines()
        gaps += before - sum(json.loads(row)["size"] for row in rows)
    assert gaps > 0
    assert drain(node) == wanted


def test_a_broker_goes_on_in_a_folder_that_was_changed(node: Node, wanted: Drained) -> None:
    """It stops and starts again, and its messages are the same for winkfs."""
    winkfs("store", "compact", node.store, "--force")
    node.start()
    publish(node, 60, 3)
    taken = take(node, 5)
    time.sleep(2)  # its queues remove from the store on their own
    node.stop()
    node.close()
    found = ids(node)
    left = drain(node)
    holders: Counter[bytes] = Counter()
    for some in left.values():
        holders.update(some)
    large = Counter(n for body, n in holders.items() if len(body) > 4096)
    assert not large - Counter(found.values())  # it may not have come to remove all
    for queue, bodies in wanted.items():
        assert not bodies - taken[queue] - left[queue], queue


if __name__ == "__main__":
    os.environ.pop("PYTEST_ADDOPTS", None)
    sys.exit(pytest.main([__file__, "-v"]))
