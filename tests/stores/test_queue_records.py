"""A queue as a store of records: what waits to be read, by id, and all there is, by arrival."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from commands import Run as Command
from commands import run
from flips import flip
from folders import untouched
from refusals import all_raise, each_raises

import winkfs
from winkformats.ledgerq.state import METADATA, Metadata
from winkfs.errors import NoSuchFile, ReadOnly
from winkfs.stores.ledgerq import HIGH, MEDIUM, Queue, Rotation, create
from winkfs.stores.ledgerq.files import Files
from winkfs.stores.ledgerq.records import QueueRecords
from winkfs.stores.records import Part, Run

pytestmark = pytest.mark.in_memory
SMALL = Rotation(messages=10)
LOST = "not there any more: removed by a compaction, or damaged"

__all__ = ["run"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    create(str(tmp_path / "q"))
    return str(tmp_path / "q")


def bodies(count: int) -> list[bytes]:
    return [b"%d," % number * number for number in range(1, count + 1)]


def filled(path: str, count: int, **options: Any) -> None:
    """Push bodies with a handle that is closed then."""
    with Queue(path, "a", **options) as queue:
        queue.push_many(bodies(count))


def ids_of(path: str) -> list[int]:
    with QueueRecords(path) as records:
        rows = [int(row.id) for row in records.rows()]
        assert rows == sorted(rows)
        return rows


def test_messages_are_files_with_ids_as_names(path: str) -> None:
    with Queue(path, "a", rotation=SMALL) as queue:
        queue.push_many(bodies(25))
        headers = {"type": "text/plain", "\u00fc": "\u20ac", "odd": "\udcff"}
        queue.push(b"z" * 3000, priority=HIGH, headers=headers, ttl=3600, compress=9)
        queue.pop_many(3)
        queue.sync()
        sent = queue.read(26)
        with (
            untouched(Path(path)),
            winkfs.open(path) as store,
        ):  # beside the writer, who holds the lock
            assert list(store) == [str(id) for id in range(4, 27)] and len(store) == 23
            assert [store.read(str(id)) for id in range(4, 26)] == bodies(25)[3:]
            entry = store.stat("26")
            assert (entry.size, entry.mtime_ns) == (3000, sent.timestamp)
            assert store.read("26", 10, 5) == b"zzzzz"
            found = store.getcolumns("26")
            assert json.loads(found.pop("headers")) == headers
            assert sent.expires is not None
            for name, moment in (("expires", sent.expires), ("timestamp", sent.timestamp)):
                assert found.pop(name).timestamp() == pytest.approx(moment / 1e9, abs=1e-5)
            place = {"file": f"{21:020d}.log", "offset": sent.offset}
            assert found == {"id": 26, "priority": HIGH, **place}
            assert store.getcolumns("5")["headers"] is None
            for name in ("3", "27", "04", "-1", "nope", "9" * 30, ""):
                assert name not in store, name
            assert [e.name for e in store.scan(since=sent.timestamp / 1e9 - 1e-5)][-1] == "26"


def test_rows_are_what_some_consumer_has_not_read(tmp_path: Path) -> None:
    """Random lives, by arrival and by priority: those who could pop it, and leases."""
    for seed in range(12):
        rng = random.Random(seed)
        path, by_priority = str(tmp_path / f"q{seed}"), seed % 2 == 0
        create(path, by_priority=by_priority)
        names = ["", *(["other"] if seed % 3 == 0 else [])]
        with Queue(path, "a", rotation=SMALL, starved=0) as queue:
            for name in names[1:]:
                queue.add_consumer(name)
            for _ in range(60):
                queue.push(b"x" * rng.randrange(9), priority=rng.randrange(3))
                visible = rng.choice((None, 1000.0))
                count, name = rng.choice((0, 0, 1, 3)), rng.choice(names)
                for message in queue.pop_many(count, visible=visible, consumer=name):
                    if visible and rng.random() < 0.5:
                        queue.ack(message.id, consumer=name)
            queue.sync()
            wanted = {id for name in names for id in queue.state.cursors[name].leased}
            wanted |= {m.id for name in names for m in queue.messages(consumer=name)}
            assert 0 < len(wanted) < 60
            with QueueRecords(path) as records:
                rows = [int(row.id) for row in records.rows()]
                assert rows == sorted(wanted)
                parts = records.data_files()
                assert [int(r.id) for part in parts for r in records.rows(part)] == rows
                rng.shuffle(parts)
                assert [int(row.id) for row in records.rows(*parts)] == rows
                listed = [id for ids, _ in records.listing() for id in ids.tolist()]
                assert sorted(listed) == rows and len(records) == len(rows)
                for id in range(62):
                    assert (str(id) in records) == (id in wanted), id


def test_what_has_expired_is_not_there(path: str) -> None:
    with Queue(path, "a") as queue:
        queue.push(b"stays")
        queue.push(b"goes", ttl=0.05)
    time.sleep(0.06)
    assert ids_of(path) == [1]
    with QueueRecords(path) as records:
        assert "2" not in records and list(records.find(["1", "2"])) == [records.row("1")]
        assert len(records) == 2  # as far as ids tell


def test_bodies_in_any_order_and_of_what_is_gone(path: str) -> None:
    filled(path, 200, rotation=SMALL)
    rng = random.Random(1)
    with QueueRecords(path) as records:
        rows = list(records.rows())
        for chosen in (rows, rows[::-1], rows[::7], rng.sample(rows, 100), [rows[3]] * 2):
            assert list(records.bodies(chosen)) == [bodies(200)[int(r.id) - 1] for r in chosen]
            assert list(records.find(row.id for row in chosen)) == chosen
        with Queue(path, "a", rotation=SMALL) as queue:
            queue.pop_many(95)
            assert queue.compact().segments == 9
        good = list(records.contents(rows))
        assert [body for _, body in good][-110:] == bodies(200)[-110:]
        assert records.refresh() and not records.refresh()
        assert [row for row, _ in records.contents(rows)] == rows[90:]
        assert [row.id for row in records.find(["5", "96", "91", "97"])] == ["96", "97"]
        each_raises(
            (NoSuchFile, "message 95", lambda: records.row("95")),
            (NoSuchFile, None, lambda: list(records.bodies(rows[:3]))),
        )
        assert not list(records.rows(Part(f"{1:020d}.log", 1), Part("metadata.dat", 1)))


def test_damage_is_skipped_and_reported(path: str) -> None:
    with Queue(path, "a") as queue:
        queue.push_many(bodies(50))
        place = queue.read(30).offset
    flip(f"{path}/{1:020d}.log", place + 30)
    with QueueRecords(path) as records:
        rows = list(records.rows())
        assert [int(row.id) for row in rows] == [*range(1, 30), *range(31, 51)]
        assert any("are no messages" in line for line in records.problems)
        reported: list[str] = []
        assert list(records.between(1, 51, reported.append)) == rows
        assert reported == [f"message 30 is {LOST}"]


def test_what_is_there_by_arrival(path: str) -> None:
    reported: list[str] = []
    with QueueRecords(path) as records:
        assert (records.next_id, records.runs()) == (1, [])
        assert list(records.between(1, 1, reported.append)) == []
    with Queue(path, "a", rotation=SMALL) as queue:
        queue.push_many(bodies(25))
        queue.pop_many(12)
    with QueueRecords(path) as records:
        assert records.next_id == 26 and not reported
        files = sorted(Path(path).glob("*.log"))
        assert [run[:4] for run in records.runs()] == [
            (file.name, file.stat().st_size, first, stop)
            for file, first, stop in zip(files, (1, 11, 21), (11, 21, 26), strict=True)
        ]
        assert [int(row.id) for row in records.between(5, 15, reported.append)] == list(
            range(5, 15)
        )
        assert not reported
    with Queue(path, "a", rotation=SMALL) as queue:
        queue.compact()
    with QueueRecords(path) as records:
        assert records.runs()[0].first == 11
        found = [row.id for row in records.between(3, 14, reported.append)]
        assert found == ["11", "12", "13"]
        assert reported == [f"messages 3 to 10 are {LOST}"]
        assert list(records.between(3, 5, reported.append)) == []
        assert reported[1:] == [f"messages 3 to 4 are {LOST}"]


def test_ids_go_on_where_all_is_removed(path: str) -> None:
    """The last segment has no message: a reader that was behind learns what is lost."""
    with Queue(path, "a", rotation=Rotation(seconds=0.01)) as queue:
        queue.push_many(bodies(25))
        queue.pop_many(25)
        queue.sync()
        Path(path, f"{1:020d}.log").unlink()
    Path(path, f"{1:020d}.idx").unlink(missing_ok=True)
    with QueueRecords(path) as records:
        reported: list[str] = []
        assert (records.runs(), records.next_id) == ([], 26)
        assert list(records.between(20, 26, reported.append)) == [] and len(reported) == 1


def test_a_gap_that_is_filled_has_no_messages(path: str) -> None:
    filled(path, 3)
    Path(path, METADATA).write_bytes(Metadata(10, 1).encode())
    with Queue(path, "a") as queue:
        assert queue.push(b"ten") == 10
        assert [message.id for message in queue.all_messages()] == list(range(1, 11))
    assert ids_of(path) == [1, 2, 3, 10]
    reported: list[str] = []
    with QueueRecords(path) as records:
        assert [row.id for row in records.between(1, 11, reported.append)] == ["1", "2", "3", "10"]
    assert not reported


def test_a_segment_of_another_queue_has_another_mark(tmp_path: Path) -> None:
    marks: set[Run] = set()
    for name in "ab":
        create(str(tmp_path / name))
        filled(str(tmp_path / name), 1)
        with QueueRecords(str(tmp_path / name)) as records:
            marks.update(records.runs())
    assert len(marks) == 2 and len({run[:4] for run in marks}) == 1


def test_refresh_follows_a_writer(path: str) -> None:
    with QueueRecords(path) as records, Queue(path, "a", rotation=SMALL) as queue:
        queue.push_many(bodies(15))
        queue.sync()
        assert len(records) == 0 and records.refresh() and len(records) == 15
        assert queue.pop(visible=1000) is not None
        queue.sync()
        assert records.refresh() and len(records) == 15
        queue.ack(1)
        queue.pop_many(4)
        queue.sync()
        assert records.refresh()
        assert [row.id for row in records.rows()] == list(map(str, range(6, 16)))


def test_nothing_can_be_written(path: str) -> None:
    with pytest.raises(ReadOnly, match="a queue can only be read"):
        winkfs.open(path, "a")
    with QueueRecords(path) as records:
        all_raise(
            ReadOnly,
            (
                lambda: records.put(None, b""),
                lambda: records.remove("1"),
                records.sync,
                records.compact,
            ),
            "winkfs queue push and pop",
        )


def test_the_commands_take_a_queue(path: str, run: Command) -> None:
    with Queue(path, "a") as queue:
        queue.push(b"one\n", priority=MEDIUM)
        queue.push(b"two\n")
    assert run("ls", path).out == b"1\n2\n"
    assert run("cat", path, "2").out == b"two\n"
    facts = json.loads(run("info", "--json", path).out)
    assert (facts["kind"], facts["records"], facts["next_id"]) == ("queue", 2, 3)
    assert run("verify", path).status == 0
    done = run("cat", path, "nope")
    assert done.status == 1 and done.err.count("\n") == 1 and "nope" in done.err
    rows = run("store", "ls", "--json", path).out.splitlines()
    assert [json.loads(row)["id"] for row in rows] == [1, 2]


def test_segments_that_are_removed_while_it_is_opened(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing names segments that are gone by now, and not those that came since."""
    with Queue(path, "a", rotation=SMALL) as queue:
        queue.push_many(bodies(20))
        before, moves = Files._listed, [True]

        def listed(files: Files, names: Iterable[str]) -> Any:
            found = before(files, names)
            if moves.pop() if moves else False:
                queue.pop_many(20)
                queue.push_many(bodies(5))
                assert queue.compact().segments == 2
            return found

        queue.sync()
        monkeypatch.setattr(Files, "_listed", listed)
        with QueueRecords(path) as records:
            assert [int(row.id) for row in records.rows()] == list(range(21, 26))
            assert records.next_id == 26 and not records.problems
