"""Ranges of the streaming source, without a JVM: offsets, limits, what is in a range, replays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import stored
from data_sets import add, commit, delete

import winkfs
from winkfs.dataset.compaction import compact
from winkfs.dataset.maintain import vacuum
from winkfs.errors import StalePlan
from winkfs.stores.ledgerq import Queue, Rotation

pytestmark = pytest.mark.slow

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")

from pyspark.sql.types import StructType  # noqa: E402 - needs the two above

from winkfs.arrow.batches import Reading  # noqa: E402
from winkfs.spark import streaming as streamsource  # noqa: E402
from winkfs.spark.reading.batches import batches  # noqa: E402
from winkfs.spark.reading.options import Options  # noqa: E402
from winkfs.spark.streaming import (  # noqa: E402
    Limit,
    Offset,
    open_feed,
    stream_reader,
)

SCHEMA = pa.schema([("path", pa.string()), ("content", pa.binary())])
MOMENT = 1_700_000_000


class Stream:
    """What Spark makes of a tail, without Spark; offsets go through JSON as in a checkpoint."""

    def __init__(self, path: Path, **options: str) -> None:
        self.options = Options.of({"path": str(path), **options})

    def offset(self, what: str, *args: Any) -> Offset:
        with open_feed(self.options) as tail:
            found: Offset = json.loads(json.dumps(getattr(tail, what)(*args)))
            return found

    def rows(self, start: Offset, end: Offset) -> list[tuple[str, bytes]]:
        with open_feed(self.options) as tail:
            planned = tail.partitions(start, end, contents=True)
        reading = Reading(SCHEMA, ["path", "content"], 2 << 20, 1 << 30, "FAILFAST", True, False)
        found = [batch for part in planned for batch in batches(reading, part)]
        return [(row["path"], row["content"]) for b in found for row in b.to_pylist()]

    def batches(self, limit: Limit, start: Offset | None = None) -> Iterator[list[Any]]:
        """All there is, batch by batch, and each read again in the end gives the same."""
        at = start or self.offset("earliest")
        end = self.offset("latest", at)
        seen = []
        while at != end:
            following = self.offset("cut", at, end, limit)
            assert following != at
            seen.append((at, following, self.rows(at, following)))
            yield seen[-1][2]
            at = following
        for low, high, rows in seen:
            assert self.rows(low, high) == rows


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """An append-only container with 100 files of 10 bytes."""
    rows = ((f"f{i:02d}", b"%010d" % i, MOMENT + i) for i in range(100))
    return stored.make(tmp_path / "log", rows, ao=True)


FILES = [(f"f{i:02d}", b"%010d" % i) for i in range(100)]


# --- a container ----------------------------------------------------------------------------------


def test_a_container_is_read_from_its_beginning_to_its_last_sync(log: Path) -> None:
    stream = Stream(log)
    start, end = stream.offset("earliest"), stream.offset("latest", None)
    assert stream.rows(start, end) == FILES
    assert len(json.dumps(end)) < 100
    with winkfs.open(log, "a") as container:
        container.put("new", b"1", mtime=MOMENT + 500)
        assert stream.offset("latest", end) == end  # not synced
        container.sync()
        later = stream.offset("latest", end)
        assert stream.rows(end, later) == [("new", b"1")]
        container.put("newer", b"2", mtime=MOMENT + 501)
    assert stream.rows(later, stream.offset("latest", later)) == [("newer", b"2")]


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("limit", "files"),
    [
        *((Limit(files, None), files) for files in (1, 7, 99, 100, 1000)),
        *((Limit(None, size), max(size // 10, 1)) for size in (1, 10, 35, 999, 1000)),
    ],
)
def test_a_limit_of_files_or_bytes_cuts_exactly(limit: Limit, files: int, log: Path) -> None:
    """A batch has one file at least, however large it is."""
    found = list(Stream(log).batches(limit))
    assert [row for rows in found for row in rows] == FILES
    assert {len(rows) for rows in found[:-1]} <= {files}


def test_the_last_entry_of_a_name_in_the_range_counts(log: Path) -> None:
    stream = Stream(log)
    start = stream.offset("latest", None)
    with winkfs.open(log, "a") as container:
        for i, name in enumerate(["a", "b", "a", "c", "gone"]):
            container.put(name, b"%d" % i, mtime=MOMENT + 200)
        container.delete("gone")
        container.delete("f00")
    middle = stream.offset("latest", start)
    with winkfs.open(log, "a") as container:
        container.put("c", b"later", mtime=MOMENT + 300)
        container.delete("b")
    end = stream.offset("latest", middle)
    expected = [("b", b"1"), ("a", b"2"), ("c", b"3")]
    assert stream.rows(start, middle) == expected  # though c and b have changed since
    assert stream.rows(middle, end) == [("c", b"later")]
    assert stream.rows(start, end) == [("a", b"2"), ("c", b"later")]


def test_rows_are_filtered_but_offsets_are_not(log: Path) -> None:
    stream = Stream(log, prefix="f1", maxSize="10", glob="*[1-3]")
    start, end = stream.offset("earliest"), stream.offset("latest", None)
    assert [path for path, _ in stream.rows(start, end)] == ["f11", "f12", "f13"]


def test_large_and_empty_files_and_links_of_a_log(tmp_path: Path) -> None:
    large = bytes(range(256)) * 10_000
    with winkfs.create(tmp_path / "log", ao=True) as container:
        container.put("large", large)
        container.put("empty", b"")
        container.symlink("large", "link")
        container.put("small", b"1")
    assert list(Stream(tmp_path / "log").batches(Limit(1, None))) == [
        [("large", large)], [("empty", b"")], [], [("small", b"1")],
    ]  # fmt: skip


def test_a_plain_container_is_no_stream(tmp_path: Path) -> None:
    winkfs.create(tmp_path / "plain").close()
    with pytest.raises(ValueError, match=r"append-only container \(ao\) or a data set"):
        Stream(tmp_path / "plain").offset("earliest")


def test_a_container_in_the_place_of_another_ends_the_stream(log: Path, tmp_path: Path) -> None:
    stream = Stream(log)
    end = stream.offset("latest", None)
    old = (tmp_path / "log.data").read_bytes()
    stored.change(log, {"more": b"more"})
    later = stream.offset("latest", end)
    (tmp_path / "log.data").write_bytes(old)  # rolled back
    with pytest.raises(StalePlan, match="an older state of it was put in its place"):
        stream.offset("latest", later)
    for file in tmp_path.glob("log.*"):
        file.unlink()
    stored.make(log, {"x": b"1"}, ao=True)
    with pytest.raises(StalePlan, match="another container has its place"):
        stream.rows(stream.offset("earliest") | {"contid": end["contid"]}, end)


def test_a_start_behind_the_end_is_no_empty_batch(log: Path) -> None:
    stream = Stream(log)
    start, end = stream.offset("earliest"), stream.offset("latest", None)
    with pytest.raises(StalePlan, match=r"its first batch failed.*Begin anew"):
        stream.rows(end, start)


def test_spark_4_1_asks_without_arguments(log: Path) -> None:
    """It knows neither the start of a batch nor limits: a batch is all there is."""
    fields = StructType().add("path", "string").add("content", "binary")
    reader = stream_reader({"path": str(log)}, fields)
    start, end = reader.initialOffset(), reader.latestOffset()
    assert reader.latestOffset() == end
    found = [b for part in reader.partitions(start, end) for b in reader.read(part)]
    assert [row["path"] for batch in found for row in batch.to_pylist()] == [n for n, _ in FILES]


# --- a data set -----------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data set: a of generation 2, b and c of 1, d was deleted."""
    root = tmp_path / "set"
    add(root, {"a": b"1", "b": b"1"}, {"c": b"1", "d": b"1"})
    add(root, {"a": b"2"})
    delete(root, "d")
    return root


THERE = [("a", b"2"), ("b", b"1"), ("c", b"1")]


def test_a_data_set_is_read_as_it_stands_and_then_what_comes(root: Path) -> None:
    stream = Stream(root)
    start = stream.offset("earliest")
    end = stream.offset("latest", start)
    assert sorted(stream.rows(start, end)) == THERE
    assert stream.offset("latest", end) == end
    add(root, {"b": b"4", "e": b"4"}, {"f": b"4"})
    add(root, {"f": b"5"})
    later = stream.offset("latest", end)
    assert sorted(stream.rows(end, later)) == [("b", b"4"), ("e", b"4"), ("f", b"5")]
    assert sorted(stream.rows(start, end)) == THERE
    assert sorted(stream.rows(start, later)) == sorted(
        [("a", b"2"), ("c", b"1"), ("b", b"4"), ("e", b"4"), ("f", b"5")]
    )
    assert len(json.dumps(later)) < 100


@pytest.mark.few(2)
@pytest.mark.parametrize("limit", [Limit(1, None), Limit(2, None), Limit(None, 1), Limit(3, 2)])
def test_limits_cut_inside_shards_and_lose_nothing(limit: Limit, root: Path) -> None:
    for number in range(3):
        add(root, {f"{number}/{i}": b"%d" % i for i in range(5)}, {f"{number}/x": b""})
    found = list(Stream(root).batches(limit))
    expected = THERE + [(f"{n}/{i}", b"%d" % i) for n in range(3) for i in range(5)]
    expected += [(f"{n}/x", b"") for n in range(3)]
    assert sorted(row for rows in found for row in rows) == sorted(expected)
    assert max(map(len, found)) <= (limit.files or 100)


def test_what_changes_no_file_gives_no_rows(root: Path) -> None:
    stream = Stream(root)
    start = stream.offset("earliest")
    end = stream.offset("latest", start)
    compact(root)
    after = stream.offset("latest", end)
    assert stream.rows(end, after) == []
    assert sorted(stream.rows(start, end)) == THERE
    vacuum(root, keep=1, older_than=0)
    last = stream.offset("latest", after)
    assert stream.rows(after, last) == []
    add(root, {"new": b"1"})
    assert stream.rows(last, stream.offset("latest", last)) == [("new", b"1")]
    with pytest.raises(StalePlan, match="was vacuumed before it was read"):
        stream.rows(start, after)


def test_a_selection_knows_nothing_of_hidden_rows(root: Path) -> None:
    stream = Stream(root, glob="[ad]")
    start = stream.offset("earliest")
    assert stream.rows(start, stream.offset("latest", start)) == [("a", b"2")]


def test_another_data_set_in_its_place_ends_the_stream(root: Path, tmp_path: Path) -> None:
    stream = Stream(root)
    end = stream.offset("latest", None)
    add(tmp_path / "young", {"a": b"1"})
    with pytest.raises(StalePlan, match="was put in its place"):
        Stream(tmp_path / "young").offset("latest", end)
    stored.make(tmp_path / "log", {"x": b"1"}, ao=True)
    with pytest.raises(StalePlan, match="checkpoint is that of a data set"):
        Stream(tmp_path / "log").offset("latest", end)
    with pytest.raises(StalePlan, match="checkpoint is that of a container"):
        stream.offset("latest", Stream(tmp_path / "log").offset("earliest"))


def test_large_shards_are_cut_into_tasks(tmp_path: Path) -> None:
    files = {f"{i:05d}": b"x" * 1000 for i in range(2000)}
    commit(tmp_path / "set", [lambda container: container.put_many(files.items())])
    stream = Stream(tmp_path / "set", splitBytes="256k")
    start = stream.offset("earliest")
    end = stream.offset("latest", start)
    with open_feed(stream.options) as tail:
        assert len(tail.partitions(start, end, contents=True)) >= 8
        half = tail.cut(start, end, Limit(1000, None))
    assert dict(stream.rows(start, half)) == dict(list(files.items())[:1000])
    assert dict(stream.rows(half, end)) == dict(list(files.items())[1000:])


def test_a_limit_that_this_spark_would_ignore_is_refused(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streamsource, "ReadMaxFiles", object)  # as with Spark 4.1
    for name in ("maxFilesPerTrigger", "maxBytesPerTrigger"):
        with pytest.raises(ValueError, match=f"option {name} needs Spark 4.2"):
            stream_reader({"path": str(log), name: "3"}, StructType().add("path", "string"))


# --- each kind of source --------------------------------------------------------------------------


def grow(kind: str, source: Path, low: int, high: int) -> None:
    """Add files, or messages, with the contents b"<low>" .. to a source of some kind."""
    bodies = [b"%d" % i for i in range(low, high)]
    if kind == "data set":
        add(source, {body.decode(): body for body in bodies})
    elif kind == "queue":
        with Queue(source, "a", make=True, rotation=Rotation(messages=4)) as queue:
            queue.push_many(bodies)
    else:
        opened = winkfs.open(source, "a") if low else winkfs.create(source, ao=True)
        with opened as container:
            container.put_many((body.decode(), body, MOMENT) for body in bodies)


@contextmanager
def reader_of(source: Path, options: dict[str, str]) -> Iterator[Any]:
    reader = stream_reader({"path": str(source), **options}, StructType().add("content", "binary"))
    try:
        yield reader
    finally:
        reader.stop()


def first_end(kind: str, source: Path, options: dict[str, str]) -> Offset:
    """The end of a first batch of a source that gets the bodies 5 .. 9 after its initial offset."""
    with reader_of(source, options) as reader:
        start = json.loads(json.dumps(reader.initialOffset()))
        grow(kind, source, 5, 10)
        found: Offset = json.loads(
            json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit()))
        )
        return found


def bodies_of(source: Path, options: dict[str, str], end: Offset) -> list[int]:
    """The bodies of a batch up to `end` when it is run again, by a reader that begins anew."""
    with reader_of(source, options) as reader:
        parts = reader.partitions(json.loads(json.dumps(reader.initialOffset())), end)
        read = [batch for part in parts for batch in reader.read(part)]
    return sorted(int(body) for batch in read for body in batch.column("content").to_pylist())


@pytest.mark.few(4)
@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("begin", ["earliest", "latest"])
@pytest.mark.parametrize("kind", ["container", "data set", "queue"])
def test_a_first_batch_that_is_run_again_has_the_same_rows(
    kind: str, begin: str, limit: int | None, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    grow(kind, source, 0, 5)
    options = {"startingOffset": begin} | ({"maxFilesPerTrigger": str(limit)} if limit else {})
    end = first_end(kind, source, options)
    first = 5 if begin == "latest" else 0
    expected = list(range(first, first + limit if limit else 10))
    for low in (10, 15):  # the batch failed, and the source has grown
        grow(kind, source, low, low + 5)
        assert bodies_of(source, options, end) == expected
    other = {"startingOffset": "latest" if begin == "earliest" else "earliest"}
    assert bodies_of(source, options | other, end) == expected  # as in Spark, it counts once


def test_messages_removed_before_a_repeated_batch_end_the_stream(tmp_path: Path) -> None:
    source = tmp_path / "source"
    grow("queue", source, 0, 5)
    end = first_end("queue", source, {})
    with Queue(source, "a") as queue:
        queue.pop_many(9)
        queue.compact()
    with pytest.raises(StalePlan, match="messages 1 to 8 are not there any more"):
        bodies_of(source, {}, end)
    assert bodies_of(source, {"failOnDataLoss": "false"}, end) == [8, 9]
