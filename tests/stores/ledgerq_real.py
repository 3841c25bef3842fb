"""winkfs and LedgerQ itself on one queue, in both directions: `make test-ledgerq LEDGERQ=FOLDER`.

FOLDER has LedgerQ's sources; GO is the Go command. Not part of `make test`: it needs both.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from winkfs.stores.ledgerq import HIGH, LOW, MEDIUM, Message, Queue, Rotation, create
from winkfs.stores.ledgerq.records import repair, verify

SOURCES = os.environ.get("LEDGERQ", "")
GO = os.environ.get("GO", "go")
DRIVER = Path(__file__).with_name("ledgerq_driver.go")
MODULE = "github.com/vnykmshr/ledgerq"
SMALL = Rotation(messages=37)
TIMEOUT = 60  # seconds of a call


class LedgerQ:
    """LedgerQ in a process of its own; `call` runs one call of it."""

    def __init__(self, program: Path) -> None:
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, call: str, payload: bytes | None = None, **options: Any) -> dict[str, Any]:
        if payload is not None:
            options["payload"] = b64encode(payload).decode()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"call": call, **options}) + "\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert "error" not in found, (call, options, found["error"])
        for message in found.get("messages", ()):
            message["payload"] = b64decode(message["payload"])
            message["headers"] = message["headers"] or {}
        return found

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(TIMEOUT)
        self.process.stdout.close()


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not Path(SOURCES, "go.mod").is_file():
        pytest.fail("LEDGERQ must name a folder with the sources of LedgerQ")
    folder = tmp_path_factory.mktemp("driver")
    shutil.copy(DRIVER, folder / "main.go")
    (folder / "go.mod").write_text(
        f"module driver\n\ngo 1.23\n\nrequire {MODULE} v0.0.0\n\n"
        f"replace {MODULE} => {Path(SOURCES).resolve()}\n"
    )
    environment = os.environ | {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local", "GOPROXY": "off"}
    subprocess.run([GO, "build", "-o", "driver", "."], cwd=folder, env=environment, check=True)
    return folder / "driver"


@pytest.fixture
def opened(program: Path, tmp_path: Path) -> Callable[..., Any]:
    """A context with LedgerQ, that has the queue open."""

    @contextmanager
    def context(path: str, **options: Any) -> Iterator[LedgerQ]:
        ledgerq = LedgerQ(program)
        try:
            ledgerq("open", dir=path, **options)
            yield ledgerq
            if ledgerq.process.poll() is None:
                ledgerq("close")
        finally:
            ledgerq.end()

    return context


def body(number: int) -> bytes:
    rng = random.Random(number)
    text = rng.choice((rng.randbytes(rng.randint(1, 300)), b"%d " % number * rng.randint(1, 900)))
    return text or b"0"


def options_of(number: int) -> dict[str, Any]:
    headers = {"number": str(number), "text": "ä" * (number % 7)} if number % 3 == 0 else {}
    return {"headers": headers, "seconds": 3600.0 if number % 5 == 0 else 0}


def same(theirs: dict[str, Any], ours: Message) -> bool:
    return (theirs["id"], theirs["payload"], theirs["headers"], theirs["priority"]) == (
        ours.id, ours.payload, dict(ours.headers), ours.priority,
    ) and (theirs["expires"] or None) == ours.expires  # fmt: skip


def sound(path: str) -> None:
    assert not verify(path).problems


def test_what_ledgerq_writes_is_read(opened: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "q")
    with opened(path, messages=37) as ledgerq:
        for number in range(200):
            ledgerq("push", body(number), gzip=number % 4 == 0, **options_of(number))
        ledgerq("pop", count=40)
    sound(path)
    with Queue(path) as queue:
        found = list(queue.all_messages())
        assert [m.payload for m in found] == [body(number) for number in range(200)]
        assert [m.id for m in queue.messages()] == list(range(41, 201))
        assert not queue.problems
    with Queue(path, "a") as queue:
        assert [m.id for m in queue.pop_many(20)] == list(range(41, 61))
    with opened(path, messages=37) as ledgerq:
        theirs = ledgerq("pop", count=140)["messages"]
        assert all(same(one, other) for one, other in zip(theirs, found[60:], strict=True))


def test_what_is_written_is_read_by_ledgerq(opened: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "q")
    create(path)
    with Queue(path, "a", rotation=SMALL, compress=6) as queue:
        for number in range(200):
            given = options_of(number)
            queue.push(body(number), headers=given["headers"], ttl=given["seconds"] or None)
        queue.pop_many(30)
    with Queue(path) as queue:
        ours = list(queue.all_messages(31))
    with opened(path) as ledgerq:
        theirs = ledgerq("pop", count=170)["messages"]
    assert all(same(one, other) for one, other in zip(theirs, ours, strict=True))
    with Queue(path) as queue:
        assert queue.empty() and not queue.problems
    sound(path)


def test_both_write_and_read_in_turns(opened: Any, tmp_path: Path) -> None:
    path, rng, at, pushed = str(tmp_path / "q"), random.Random(1), 1, 0
    create(path)
    for round in range(12):
        count, taken = rng.randint(1, 60), rng.randint(0, 40)
        taken = min(taken, pushed + count - at + 1)
        if round % 2:
            with opened(path, messages=25) as ledgerq:
                for number in range(pushed, pushed + count):
                    ledgerq("push", body(number))
                found = ledgerq("pop", count=taken).get("messages", [])
                got = [(m["id"], m["payload"]) for m in found]
        else:
            with Queue(path, "a", rotation=SMALL) as queue:
                for number in range(pushed, pushed + count):
                    assert queue.push(body(number)) == number + 1
                got = [(m.id, m.payload) for m in queue.pop_many(taken)]
                assert not queue.problems
        pushed += count
        assert got == [(id, body(id - 1)) for id in range(at, at + taken)]
        at += taken
        sound(path)


def test_keys_of_one_are_known_to_the_other(opened: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "q")
    with opened(path) as ledgerq:
        assert ledgerq("push_once", b"1", key="one", seconds=3600)["new"]
    with Queue(path, "a") as queue:
        assert queue.push_once(b"x", "one", window=3600) == (1, False)
        assert queue.push_once(b"2", "two", window=3600) == (2, True)
    with opened(path) as ledgerq:
        for key in ("one", "two"):
            assert "new" not in ledgerq("push_once", b"x", key=key, seconds=3600)
        assert ledgerq("push_once", b"3", key="three", seconds=3600)["new"]
    with Queue(path, "a") as queue:
        assert queue.push_once(b"x", "three", window=3600) == (3, False)


@pytest.mark.parametrize("first", ["LedgerQ", "winkfs"])
def test_failures_are_counted_on_and_lead_to_the_dead_letters(
    first: str, opened: Any, tmp_path: Path
) -> None:
    path, dead = str(tmp_path / "q"), str(tmp_path / "dead")
    if first == "LedgerQ":
        with opened(path, dlq=dead) as ledgerq:
            ledgerq("push", b"poison", headers={"a": "b"})
            ledgerq("pop", count=1)
            ledgerq("nack", id=1, reason="theirs")
        with Queue(path, "a", dead_letters=dead) as queue:
            assert queue.stats()["retrying"] == 1
            assert [queue.nack(1, "ours") for _ in range(2)] == [False, True]
    else:
        create(path)
        with Queue(path, "a", dead_letters=dead) as queue:
            queue.push(b"poison", headers={"a": "b"})
            assert queue.pop(visible=3600)
            assert [queue.nack(1, "ours", delay=3600) for _ in range(2)] == [False, False]
        with opened(path, dlq=dead) as ledgerq:
            assert ledgerq("stats")["stats"]["RetryTrackedMessages"] == 1
            ledgerq("nack", id=1, reason="theirs")
    with Queue(dead) as letters:
        (letter,) = letters.messages()
        assert letter.payload == b"poison" and letter.headers["a"] == "b"
        assert letter.headers["dlq.retry_count"] == "3"
        reason = "ours" if first == "LedgerQ" else "theirs"
        assert letter.headers["dlq.failure_reason"] == reason
    sound(dead)


@pytest.mark.parametrize("writer", ["LedgerQ", "winkfs"])
def test_priorities_come_in_the_same_order(writer: str, opened: Any, tmp_path: Path) -> None:
    path, rng = str(tmp_path / "q"), random.Random(2)
    levels = [rng.choice((LOW, MEDIUM, HIGH)) for _ in range(80)]
    wanted = [i + 1 for level in (HIGH, MEDIUM, LOW) for i, x in enumerate(levels) if x == level]
    if writer == "LedgerQ":
        with opened(path, by_priority=True) as ledgerq:
            for level in levels:
                ledgerq("push", b"x", priority=level)
        with Queue(path, "a", starved=0) as queue:
            assert queue.by_priority and [m.id for m in queue.pop_many(100)] == wanted
        return
    create(path, by_priority=True)
    with Queue(path, "a") as queue:  # one segment: its index by offset loops over several
        for level in levels:
            queue.push(b"x", priority=level)
    with opened(path, by_priority=True) as ledgerq:
        assert [m["id"] for m in ledgerq("pop", count=80)["messages"]] == wanted


@pytest.mark.parametrize("synced", [True, False])
def test_what_a_killed_ledgerq_left_is_read(synced: bool, opened: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "q")
    with opened(path, messages=300) as ledgerq:
        for number in range(1000):
            ledgerq("push", body(number))
        ledgerq("pop", count=70)
        if synced:
            ledgerq("sync")
        ledgerq.kill()
    with Queue(path) as queue:
        found = list(queue.messages())
        assert len(found) == 930 or (len(found) >= 925 and not synced)
        assert [m.payload for m in found] == [body(m.id - 1) for m in found]
    repair(path)
    sound(path)
    with opened(path) as ledgerq:
        theirs = ledgerq("pop", count=len(found))["messages"]
        assert [m["id"] for m in theirs] == [m.id for m in found]


def test_what_a_killed_winkfs_left_is_read_by_ledgerq(opened: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "q")
    create(path)
    queue = Queue(path, "a", rotation=SMALL)
    for number in range(500):
        queue.push(body(number))
    queue.pop_many(70)
    queue.sync()
    queue.abort()
    with Queue(path, "a"):
        """A writer mends what LedgerQ would refuse, and writes its metadata."""
    with opened(path) as ledgerq:
        theirs = ledgerq("pop", count=430)["messages"]
    assert [(m["id"], m["payload"]) for m in theirs] == [(i + 1, body(i)) for i in range(70, 500)]


def test_segments_that_ledgerq_has_removed_unread_are_missed(opened: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "q")
    with opened(path, messages=20) as ledgerq:
        for number in range(100):
            ledgerq("push", body(number))
    for segment in sorted(Path(path).glob("*.log"))[:2]:
        segment.unlink()
    with Queue(path) as queue:
        assert [m.id for m in queue.messages()] == list(range(41, 101))
        assert "messages 1 to 40 are missing" in queue.problems[0]
