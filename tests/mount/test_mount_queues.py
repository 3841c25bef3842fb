"""Mounts of queues and of ring buffers: messages as files, while other processes push and pop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mounting import grep, mounted, soon
from warm import PACKAGES

from winkfs.stores import ringpage
from winkfs.stores.general import FLAT_RECORDS
from winkfs.stores.ledgerq import HIGH, Queue, Rotation, create

pytestmark = [pytest.mark.mount, pytest.mark.in_memory]
FOLLOW = ("--ro", "--follow")


def names(there: Path) -> list[int]:
    """Of all files, which may lie in directories."""
    return sorted(int(name) for _, _, files in os.walk(there) for name in files)


def test_messages_of_a_queue_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "q"
    create(str(path))
    with Queue(path, "a", rotation=Rotation(messages=10)) as queue:
        queue.push_many([b"%d\n" % number for number in range(25)])
        queue.push(b"", priority=HIGH, headers={"type": "text"}, ttl=1000)
        queue.sync()
        sent = queue.read(26)
        with mounted(path, *FOLLOW) as there:
            assert names(there) == list(range(1, 27))
            assert (there / "7").read_bytes() == b"6\n"
            assert (there / "26").stat().st_mtime_ns == sent.timestamp
            facts = {
                name: os.getxattr(there / "26", f"user.winkfs.{name}").decode()
                for name in ("file", "offset", "timestamp", "priority", "expires", "headers")
            }
            assert facts == {
                "file": f"{21:020d}.log", "offset": str(sent.offset), "priority": "2",
                "timestamp": str(sent.timestamp), "expires": str(sent.expires),
                "headers": json.dumps({"type": "text"}),
            }  # fmt: skip
            with pytest.raises(OSError, match="No data"):
                os.getxattr(there / "7", "user.winkfs.headers")
            queue.pop_many(20)
            queue.push(b"new")
            assert queue.compact().segments == 2
            soon(lambda: names(there) == list(range(21, 28)))
            soon(lambda: not (there / "7").exists())  # the kernel believes a name for a second
            assert (there / "27").read_bytes() == b"new"
            with pytest.raises(OSError, match="Read-only"):
                (there / "30").write_bytes(b"x")


def test_without_follow_it_is_as_of_the_mount(tmp_path: Path) -> None:
    create(str(tmp_path / "q"))
    with Queue(tmp_path / "q", "a") as queue:
        queue.push_many([b"x"] * 5)
        queue.sync()
        with mounted(tmp_path / "q", "--ro") as there:
            queue.pop_many(3)
            queue.push(b"new")
            queue.sync()
            assert names(there) == [1, 2, 3, 4, 5]
            assert (there / "2").read_bytes() == b"x"


def test_many_messages_lie_in_directories(tmp_path: Path) -> None:
    create(str(tmp_path / "q"), by_priority=True)
    with Queue(tmp_path / "q", "a", rotation=Rotation(messages=1000)) as queue:
        count = FLAT_RECORDS + 500
        queue.push_many([{"payload": b"%d" % i, "priority": i % 3} for i in range(count)])
        assert len(queue.pop_many(2000)) == 2000
        wanted = sorted(message.id for message in queue.messages())
    with mounted(tmp_path / "q", "--ro") as there:
        assert names(there) == wanted
    with Queue(tmp_path / "q", "a") as queue:
        queue.seek(1)
    with mounted(tmp_path / "q", "--ro") as there:
        assert (there / "4000-4999/4123").read_bytes() == (there / "4123").read_bytes() == b"4122"
        assert names(there) == list(range(1, FLAT_RECORDS + 501))


def test_records_of_a_ring_buffer_are_followed(tmp_path: Path) -> None:
    path = str(tmp_path / "ring")
    ringpage.create(path, pages=16)
    with ringpage.Ring(path, "a", memory=8192) as ring:
        ring.push_many([b"%04d\n" % number * 50 for number in range(100)])
        ring.flush()
        with mounted(path, *FOLLOW) as there:
            assert names(there) == list(range(100))
            assert (there / "42").read_bytes() == b"0042\n" * 50
            ring.push_many([b"new"] * 10)
            ring.flush()
            soon(lambda: names(there) == list(range(110)))
            assert (there / "109").read_bytes() == b"new"
            ring.push_many([b"%04d\n" % number * 50 for number in range(110, 500)])
            ring.flush()
            oldest = 500 - len(ring)
            assert oldest > 110
            soon(lambda: names(there) == list(range(oldest, 500)))
            assert (there / "499").read_bytes() == b"0499\n" * 50
            soon(lambda: not (there / "42").exists())


WORKS = """
import random, sys, time
from winkfs.stores.ledgerq import Queue, Rotation
rng = random.Random(sys.argv[2])
with Queue(sys.argv[1], "a", shared=True, rotation=Rotation(messages=300)) as queue:
    until = time.monotonic() + 2
    while time.monotonic() < until:
        queue.push_many([b"needle %d\\n" % i * 20 for i in range(rng.randrange(100))])
        for message in queue.pop_many(rng.randrange(100), visible=rng.choice((None, 5))):
            assert message.payload.startswith(b"needle")
            if rng.random() < 0.9:
                queue.ack(message.id)
        queue.compact()
"""
RINGS = """
import random, sys, time
from winkfs.stores.ringpage import Ring
rng = random.Random(sys.argv[2])
with Ring(sys.argv[1], "a", memory=8192) as ring:
    until = time.monotonic() + 2
    while time.monotonic() < until:
        ring.push_many([b"needle %d\\n" % i * 20 for i in range(rng.randrange(100))])
        ring.pop_many(rng.randrange(40))  # a mount shows what was there a second ago
        ring.flush()
        time.sleep(0.1)
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["queue", "ring"])
def test_grep_goes_through_it_while_others_push_and_pop(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "q"
    if kind == "queue":
        create(str(path))
    else:
        ringpage.create(str(path), pages=64)
    code, count = (WORKS, 2) if kind == "queue" else (RINGS, 1)
    environment = os.environ | {"PYTHONPATH": PACKAGES}
    with mounted(path, *FOLLOW) as there:
        workers = [
            subprocess.Popen([sys.executable, "-c", code, path, str(seed)], env=environment)
            for seed in range(count)
        ]
        found = rounds = 0
        try:
            while any(worker.poll() is None for worker in workers):
                found += len(grep(there))
                rounds += 1
        finally:
            for worker in workers:
                worker.kill()
        assert [worker.wait() for worker in workers] == [0] * count
        assert rounds > 1 and found > 100
        soon(lambda: names(there) == unread(path, kind))
        assert grep(there) == set(map(str, unread(path, kind)))


def unread(path: Path, kind: str) -> list[int]:
    if kind == "queue":
        with Queue(path) as queue:
            leased = queue.state.cursors[""].leased
            return sorted({*leased, *(message.id for message in queue.messages())})
    with ringpage.Ring(str(path)) as ring:
        return [record.number for record in ring.records()]
