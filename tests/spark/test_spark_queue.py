"""A queue as Spark rows and as a stream by id, and as input of `pipeline ingest`, while other
processes push and pop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import stored
from flips import flip
from sparking import DataFrame, SparkSession, application
from test_spark_stream import PATIENCE, limits, pour, refused, tail, wait_for, written
from warm import PACKAGES

import winkfs
from winkfs.dataset.manifest import is_dataset
from winkfs.stores.ledgerq import HIGH, Queue, Rotation, create

pytestmark = pytest.mark.spark
pytest.importorskip("pyspark")
SMALL = Rotation(messages=100)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create(str(tmp_path / "q"))
    return tmp_path / "q"


def push(path: Path, count: int) -> dict[str, bytes]:
    with Queue(path, "a", rotation=SMALL) as queue:
        bodies = [b"%d" % number * (number % 50) for number in range(count)]
        ids = queue.push_many(bodies)
        return {f"{id}": body for id, body in zip(ids, bodies, strict=True)}


def named(frame: DataFrame) -> DataFrame:
    """As files of a data set."""
    return frame.selectExpr("cast(id as string) path", "content", "timestamp mtime")


def follow(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return named(tail(spark, path, **options))


def test_the_unread_messages_are_rows(spark: SparkSession, path: Path) -> None:
    with Queue(path, "a", rotation=SMALL) as queue:
        queue.push_many([b"%d" % number for number in range(250)])
        headers = {"type": "text/plain", "\u00fc": "\u20ac"}
        queue.push(b"x" * 5000, headers=headers, priority=HIGH, ttl=3600, compress=9)
        queue.push(b"gone", ttl=0.001)
        for _ in range(120):
            assert queue.pop() is not None
        leased = queue.pop(visible=1000)
        assert leased is not None and leased.id == 121
        last = queue.read(251)
        time.sleep(0.01)
    frame = spark.read.format("winkfs").load(str(path))
    assert [f"{f.name} {f.dataType.simpleString()}" for f in frame.schema] == [
        "id bigint", "size bigint", "content binary", "file string", "offset bigint",
        "timestamp timestamp", "priority bigint", "expires timestamp", "headers string",
    ]  # fmt: skip
    rows = {row.id: row for row in frame.collect()}
    assert sorted(rows) == list(range(121, 252))
    assert all(bytes(rows[id].content) == b"%d" % (id - 1) for id in range(121, 251))
    one = rows[251]
    assert (one.size, bytes(one.content), one.priority) == (5000, b"x" * 5000, HIGH)
    assert json.loads(one.headers) == headers
    assert last.expires is not None
    assert (one.expires - one.timestamp).total_seconds() == 3600
    assert rows[200].headers is None and rows[200].expires is None
    assert {rows[200].file, one.file} == {f"{101:020d}.log", f"{201:020d}.log"}
    times = spark.read.format("winkfs").option("columns", "mtime_ns,path").load(str(path))
    assert {row.mtime_ns for row in times.where("path = '251'").collect()} == {last.timestamp}
    some = spark.read.format("winkfs").option("glob", "*9").option("splitBytes", "64k")
    assert some.load(str(path)).count() == 13


@limits
def test_batches_are_ranges_of_ids_and_go_on_from_the_checkpoint(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    root, check = tmp_path / "set", tmp_path / "check"
    files = push(path, 150)
    with Queue(path, "a") as queue:
        queue.pop_many(30)  # whoever has read them, they are there
    assert pour(follow(spark, path, maxFilesPerTrigger=100), root, check) == [100, 50]
    assert stored.files(root) == files
    files |= push(path, 70)
    assert len(pour(follow(spark, path, maxBytesPerTrigger=2000), root, check)) > 1
    assert pour(follow(spark, path), root, check) == []
    assert stored.files(root) == files and set(written(root).values()) == {1}
    offset = (check / "offsets/1").read_text().splitlines()[-1]
    assert json.loads(offset) == {"id": 151, "first": 1}
    whole = follow(spark, path, startingOffset=200)
    assert pour(whole, tmp_path / "b", tmp_path / "check2") == [21]
    latest = follow(spark, path, startingOffset="latest")
    assert pour(latest, tmp_path / "c", tmp_path / "check3") == []
    new = push(path, 5)
    assert pour(latest, tmp_path / "c", tmp_path / "check3") == [5]
    assert stored.files(tmp_path / "c") == new


@pytest.mark.long
def test_what_was_removed_before_it_was_read_ends_the_stream(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    root, check = tmp_path / "set", tmp_path / "check"
    files = push(path, 50)
    assert pour(follow(spark, path), root, check) == [50]
    push(path, 300)
    with Queue(path, "a", rotation=SMALL) as queue:
        queue.pop_many(320)
        assert queue.compact().segments == 3
        assert [run.first for run in _runs(path)] == [301]
    line = "messages 51 to 300 are not there any more.*failOnDataLoss=false"
    with pytest.raises(Exception, match=line):
        pour(follow(spark, path), root, check)
    assert stored.files(root) == files
    assert pour(follow(spark, path, failOnDataLoss="false"), root, check) == [50]
    assert sorted(map(int, stored.files(root))) == [*range(1, 51), *range(301, 351)]


def _runs(path: Path) -> list[Any]:
    from winkfs.stores.ledgerq.records import QueueRecords

    with QueueRecords(str(path)) as records:
        return records.runs()


def test_a_damaged_message_is_lost(spark: SparkSession, path: Path, tmp_path: Path) -> None:
    push(path, 100)
    with Queue(path) as queue:
        place = queue.read(60).offset
    flip(path / f"{1:020d}.log", place + 30)
    with pytest.raises(Exception, match="message 60 is not there any more"):
        pour(follow(spark, path), tmp_path / "a", tmp_path / "check")
    lossy = follow(spark, path, failOnDataLoss="false")
    assert pour(lossy, tmp_path / "a", tmp_path / "check") == [99]


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("q", {"startingOffset": "first"}, "earliest or latest, or of a queue the id"),
    ("q", {"startingOffset": 12}, "startingOffset is 12, and the next message is 11"),
    ("q", {"startingOffset": 0}, "earliest or latest, or of a queue the id"),
    ("q", {"startingOffsets": "latest"}, "did you mean startingOffset?"),
    ("q", {"failOnDataLoss": "maybe"}, "it takes true or false"),
    ("q", {"where": "size > 1"}, "where is for containers and data sets"),
    ("log", {"startingOffset": 5}, "an id as startingOffset is for a queue"),
    ("log", {"failOnDataLoss": "false"}, "failOnDataLoss=false is for a queue"),
]


@pytest.fixture
def two(path: Path, tmp_path: Path) -> Path:
    """A folder with a queue and an append-only container."""
    push(path, 10)
    winkfs.create(tmp_path / "log", ao=True).close()
    return tmp_path


def test_wrong_options_are_one_line(two: Path) -> None:
    for name, options, answer in WRONG:
        line = refused(two / name, **options)
        assert answer in line and "\n" not in line


@pytest.mark.few(1)
@pytest.mark.parametrize("case", WRONG, ids=lambda case: "=".join(map(str, *case[1].items())))
def test_wrong_options_end_a_query(
    spark: SparkSession, two: Path, case: tuple[str, dict[str, Any], str]
) -> None:
    name, options, answer = case
    with pytest.raises(Exception) as error:
        pour(tail(spark, two / name, **options), two / "set", two / "check")
    assert answer in str(error.value)


@pytest.mark.long
def test_a_checkpoint_of_another_source_is_refused(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    push(path, 10)
    pour(follow(spark, path), tmp_path / "set", tmp_path / "check")
    other = tmp_path / "other"
    create(str(other))
    push(other, 3)
    with pytest.raises(Exception, match="those before 11 were read: another queue"):
        pour(follow(spark, other), tmp_path / "set", tmp_path / "check")


WORKS = """
import os, random, sys, time
from winkfs.stores.ledgerq import Queue, Rotation
path, seed = sys.argv[1], int(sys.argv[2])
rng, number = random.Random(seed), 0
with Queue(path, "a", shared=True, rotation=Rotation(messages=200), by_priority=True) as queue:
    while not os.path.exists(path + ".stop"):
        number += 1
        count = rng.randrange(1, 20)
        queue.push_many([
            {"payload": b"needle %d %d\\n" % (seed, i), "priority": rng.randrange(3)}
            for i in range(count)
        ])
        for message in queue.pop_many(rng.randrange(30), visible=5):
            assert message.payload.startswith(b"needle")
            queue.ack(message.id)
        if number % 20 == 0 and os.path.exists(path + ".read"):  # what the stream has read may go
            read = int(open(path + ".read").read() or 0)
            queue.compact(segments=(queue.next_id - read) // 200 + 3)
        time.sleep(rng.random() * 0.1)
"""


@contextmanager
def others(path: Path) -> Iterator[Callable[[], None]]:
    """Two processes push and pop, and remove what is read -> a function that ends them well."""
    environment = os.environ | {"PYTHONPATH": PACKAGES}
    running = [
        subprocess.Popen([sys.executable, "-c", WORKS, str(path), str(seed)], env=environment)
        for seed in range(2)
    ]

    def end() -> None:
        Path(f"{path}.stop").touch()
        assert [process.wait(PATIENCE) for process in running] == [0, 0]

    try:
        yield end
    finally:
        for process in running:
            process.kill()
            process.wait()


def committed(check: Path) -> int:
    """Return the last id that no batch asks for again: a batch that has no commit is run anew."""
    batches = [int(file.name) for file in check.glob("commits/*") if file.name.isdecimal()]
    offset = (check / f"offsets/{max(batches)}").read_text() if batches else '{"id": 1}'
    return int(json.loads(offset.splitlines()[-1])["id"]) - 1


def count(root: Path) -> int:
    """Files of a data set that may not be there yet."""
    if not is_dataset(root):
        return 0
    with winkfs.open(root) as files:
        return len(files)


def oldest(path: Path) -> int:
    """Id of the first message that is still in a queue."""
    with Queue(path) as queue:
        return next(iter(queue.all_messages())).id


@pytest.mark.long
def test_a_stream_takes_each_message_once_beside_other_consumers(
    spark: SparkSession, path: Path, tmp_path: Path
) -> None:
    """The query stops and goes on from its checkpoint meanwhile."""
    root, check = tmp_path / "set", tmp_path / "check"
    writer = follow(spark, path).writeStream.format("winkfs")
    writer = writer.option("checkpointLocation", str(check))
    query = None

    def compacted() -> bool:
        """Return whether a consumer has removed what the stream had read by now."""
        Path(f"{path}.read").write_text(str(committed(check)))
        return oldest(path) > 1

    try:
        with others(path) as end:
            for _ in range(2):
                query = writer.start(str(root))
                before = count(root)
                wait_for(lambda: count(root) > before, query)  # noqa: B023
                query.stop()
                Path(f"{path}.read").write_text(str(committed(check)))
            query = writer.start(str(root))
            wait_for(compacted, query)
            end()
        with Queue(path) as queue:
            last = queue.next_id - 1
        wait_for(lambda: count(root) >= last, query)
    finally:
        if query is not None:
            query.stop()
    found = stored.files(root)
    assert sorted(map(int, found)) == list(range(1, last + 1)) and last > 300
    assert all(body.startswith(b"needle") for body in found.values())
    assert set(written(root).values()) == {1}
    with Queue(path) as queue:
        there = {f"{message.id}": message.payload for message in queue.all_messages()}
    assert there.items() <= found.items() and len(there) < len(found)


@pytest.mark.long
def test_rows_while_others_push_and_pop(spark: SparkSession, path: Path) -> None:
    with others(path) as end:
        for _ in range(5):
            frame = spark.read.format("winkfs").option("splitBytes", "64k").load(str(path))
            rows = frame.collect()
            ids = [row.id for row in rows]
            assert len(ids) == len(set(ids))
            assert all(row.content.startswith(b"needle") for row in rows)
        end()
    with Queue(path) as queue:
        leased = queue.state.cursors[""].leased
        wanted = sorted({*leased, *(message.id for message in queue.messages())})
    rows = spark.read.format("winkfs").load(str(path)).select("id").collect()
    assert sorted(row.id for row in rows) == wanted


INGEST = """
from winkfs.spark.jobs import ingest
for given in ({}, {}, {"again": True}):
    done = ingest.run(spark, sys.argv[1:2], sys.argv[2], **given)
    print(done["files"], done["bytes"], done["skipped"], done["units"], done["bad"])
"""


@pytest.mark.long
def test_ingest_takes_what_is_new(path: Path, tmp_path: Path) -> None:
    files = push(path, 250)
    size = sum(map(len, files.values()))
    done = application(INGEST, path, tmp_path / "out")
    assert done.stdout.splitlines() == [
        f"250 {size} 0 3 0", "0 0 3 0 0", f"250 {size} 0 3 0",
    ], done.stderr[-3000:]  # fmt: skip
    with Queue(path, "a", rotation=SMALL) as queue:
        queue.pop_many(120)
        assert queue.compact().segments == 1
    new = push(path, 80)
    done = application(INGEST, path, tmp_path / "out")
    more = sum(map(len, new.values()))
    first, second, _ = done.stdout.splitlines()
    assert (first, second) == (f"80 {more} 1 2 0", "0 0 3 0 0"), done.stderr[-3000:]
    assert stored.files(tmp_path / "out") == files | new


@pytest.mark.long
def test_ingest_of_a_new_queue_in_the_same_place(path: Path, tmp_path: Path) -> None:
    import shutil

    push(path, 50)
    code = INGEST.replace(', {}, {"again": True}', ",")
    done = application(code, path, tmp_path / "out")
    assert done.stdout.split()[0] == "50", done.stderr[-3000:]
    shutil.rmtree(path)
    create(str(path))
    push(path, 60)
    done = application(code, path, tmp_path / "out")
    assert done.stdout.split()[0] == "60", done.stderr[-3000:]
