"""Streams in Spark: tails of containers and data sets, exactly once into data sets, crashes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import stored
from data_sets import add
from sparking import application
from warm import PACKAGES

import winkfs
from winkfs.dataset.maintain import vacuum
from winkfs.dataset.manifest import Log, is_dataset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark
pytest.importorskip("pyspark")
MOMENT = 1_700_000_000
PATIENCE = 180  # seconds
limits = pytest.mark.skipif(
    find_spec("pyspark.sql.streaming.datasource") is None, reason="Spark 4.1 knows no limits"
)


def log(base: Path, low: int, high: int) -> dict[str, bytes]:
    """Add the files f<low> .. f<high - 1> to an append-only container, in one sync."""
    files = {f"f{i:04d}": b"%d" % i * (i % 50) for i in range(low, high)}
    opened = winkfs.open(base, "a") if Path(f"{base}.data").exists() else winkfs.create(base, True)
    with opened as container:
        container.put_many((name, data, MOMENT) for name, data in files.items())
    return files


def tail(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    named = {name: str(value) for name, value in options.items()}
    return spark.readStream.format("winkfs").options(**named).load(str(path))


def refused(path: Path, **options: Any) -> str:
    """Return what the reader of a stream raises, before Spark has it."""
    from pyspark.sql.types import StructType

    from winkfs.spark.streaming import stream_reader

    named = {"path": str(path)} | {name: str(value) for name, value in options.items()}
    with pytest.raises(Exception) as error, ExitStack() as stack:
        reader = stream_reader(named, StructType().add("path", "string"))
        stack.callback(reader.stop)
        reader.initialOffset()
    return str(error.value)


def pour(frame: DataFrame, root: Path, checkpoint: Path, mode: str = "append") -> list[int]:
    """Write what is there now into a data set -> rows of each batch."""
    writer = frame.writeStream.format("winkfs").outputMode(mode)
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start(str(root))
    assert query.awaitTermination(PATIENCE)
    return [progress["numInputRows"] for progress in query.recentProgress if progress.numInputRows]


def written(root: Path) -> Counter[str]:
    """How often a file of each name stands in the shards."""
    found: Counter[str] = Counter()
    for data in root.glob("*/*.data"):
        with winkfs.open(str(data).removesuffix(".data")) as shard:
            found.update(entry.name for entry in shard.scan())
    return found


def batches(root: Path) -> list[tuple[str, int]]:
    """(query, batch) of each generation, the oldest first."""
    with winkfs.open(root) as files:
        found = [item for entry in files.history() for item in entry.streams.items()]
    return found[::-1]


def no_leftovers(root: Path) -> bool:
    return not list((root / "_pending").iterdir())


def wait_for(condition: Callable[[], bool], query: StreamingQuery) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert query.isActive, str(query.exception())
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.long  # in the suite: those of a queue
@limits
def test_batches_keep_the_limit_and_go_on_from_the_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, root, checkpoint = tmp_path / "log", tmp_path / "set", tmp_path / "check"
    files = log(source, 0, 150)
    assert pour(tail(spark, source, maxFilesPerTrigger=100), root, checkpoint) == [100, 50]
    assert stored.files(root) == files
    files |= log(source, 150, 200)
    assert pour(tail(spark, source, maxFilesPerTrigger=100), root, checkpoint) == [50]
    assert pour(tail(spark, source, maxFilesPerTrigger=100), root, checkpoint) == []
    assert stored.files(root) == files and set(written(root).values()) == {1}
    assert [batch for _, batch in batches(root)] == [0, 1, 2]
    assert len({query for query, _ in batches(root)}) == 1
    # The data set is a source in turn: what is there, by bytes; of its columns some.
    frame = tail(spark, root, maxBytesPerTrigger=3000, glob="f00*").select("path", "content")
    copied = pour(frame, tmp_path / "copy", tmp_path / "check2")
    assert len(copied) > 1
    chosen = {name: data for name, data in files.items() if name.startswith("f00")}
    assert stored.files(tmp_path / "copy") == chosen


@pytest.mark.long
def test_latest_begins_with_what_comes(spark: SparkSession, tmp_path: Path) -> None:
    source, root, checkpoint = tmp_path / "log", tmp_path / "set", tmp_path / "check"
    log(source, 0, 10)
    frame = tail(spark, source, startingOffset="latest")
    pour(frame, root, checkpoint)
    new = log(source, 10, 20)
    pour(frame, root, checkpoint)
    assert stored.files(root) == new


APPENDS = """
import sys, time, winkfs
with winkfs.open(sys.argv[1], "a") as container:
    for number in range(40):
        container.put_many((f"g{number}/{i}", b"%d" % i, 1_700_000_100) for i in range(25))
        container.sync()
        time.sleep(0.05)
"""


@pytest.mark.long
def test_a_tail_follows_another_process_into_two_queries(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two queries, one data set: batches of equal numbers are not taken for one another."""
    sources = [tmp_path / "log0", tmp_path / "set0"]
    log(sources[0], 0, 1)
    add(sources[1], {"start": b"1"})
    root = tmp_path / "set"
    queries = []
    for number, source in enumerate(sources):
        frame = tail(spark, source).selectExpr(f"concat('{number}/', path) path", "content")
        writer = frame.writeStream.format("winkfs").option(
            "checkpointLocation", str(tmp_path / f"check{number}")
        )
        queries.append(writer.start(str(root)))
    try:
        environment = os.environ | {"PYTHONPATH": PACKAGES}
        process = subprocess.Popen([sys.executable, "-c", APPENDS, sources[0]], env=environment)
        for number in range(3):
            add(sources[1], {f"more{number}": b"2"})
        assert process.wait(PATIENCE) == 0
        expected = {"0/f0000": b""}
        expected |= {f"0/g{n}/{i}": b"%d" % i for n in range(40) for i in range(25)}
        expected |= {"1/start": b"1"} | {f"1/more{n}": b"2" for n in range(3)}
        for query in queries:
            wait_for(lambda: is_dataset(root) and stored.files(root) == expected, query)
    finally:
        for query in queries:
            query.stop()
    assert set(written(root).values()) == {1}
    assert len({query for query, _ in batches(root)}) == 2


def test_a_batch_that_fails_leaves_nothing_and_comes_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, root, checkpoint = tmp_path / "log", tmp_path / "set", tmp_path / "check"
    files = log(source, 0, 100)
    bad = "case when path = 'f0077' then null else content end content"
    with pytest.raises(Exception, match="f0077: the content is null"):
        pour(tail(spark, source).selectExpr("path", bad), root, checkpoint)
    assert stored.files(root) == {} and no_leftovers(root)
    assert {path.name for path in root.iterdir()} == {"_pending", "_winkfs"}
    pour(tail(spark, source), root, checkpoint)
    assert stored.files(root) == files


@pytest.mark.long
def test_complete_mode_replaces_what_was_there(spark: SparkSession, tmp_path: Path) -> None:
    source, root, checkpoint = tmp_path / "log", tmp_path / "set", tmp_path / "check"
    log(source, 0, 10)
    for expected in (b"10", b"30"):
        counts = tail(spark, source).groupBy().count()
        frame = counts.selectExpr("'count' path", "cast(count as string) content")
        pour(frame, root, checkpoint, "complete")
        assert stored.files(root) == {"count": expected}
        log(source, 10, 30)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("plain", {}, "a stream reads an append-only container"),
    ("log", {"orderBy": "path"}, "option orderBy is not for streams"),
    ("log", {"maxFilesPerTrigger": 0}, "option maxFilesPerTrigger is '0'"),
    ("log", {"startingOffset": "first"}, "it takes earliest or latest"),
    ("log", {"maxFilesPerTriger": 1}, "did you mean maxFilesPerTrigger?"),
]


def test_what_is_no_stream_is_refused_in_one_line(tmp_path: Path) -> None:
    winkfs.create(tmp_path / "plain").close()
    log(tmp_path / "log", 0, 1)
    for name, options, answer in WRONG:
        line = refused(tmp_path / name, **options)
        assert answer in line and "\n" not in line


@pytest.mark.few(1)
@pytest.mark.parametrize("case", WRONG, ids=lambda case: " ".join([case[0], *case[1]]))
def test_what_is_no_stream_ends_a_query(
    spark: SparkSession, tmp_path: Path, case: tuple[str, dict[str, Any], str]
) -> None:
    winkfs.create(tmp_path / "plain").close()
    log(tmp_path / "log", 0, 1)
    name, options, answer = case
    with pytest.raises(Exception) as error:
        pour(tail(spark, tmp_path / name, **options), tmp_path / "set", tmp_path / "check")
    assert answer in str(error.value)
    with pytest.raises(Exception, match="no option 'maxfilespertrigger'"):
        spark.read.format("winkfs").option("maxFilesPerTrigger", 1).load(
            str(tmp_path / "log")
        ).count()


DIES = """
import os, sys, threading, time
from pathlib import Path
from winkfs.dataset import compaction
from winkfs.dataset.transaction import Transaction
from winkfs.spark.source import WinkfsDataSource
from winkfs.spark.writing.sink import WinkfsStreamWriter, stream_writer

source, root, checkpoint, when, *every = sys.argv[1:]
Path(checkpoint + ".pid").write_text(str(spark._jvm.java.lang.ProcessHandle.current().pid()))

def kill(checkpoint):
    os.kill(int(Path(checkpoint + ".pid").read_text()), 9)

def die(checkpoint):  # in a process of the JVM, which is killed, too
    kill(checkpoint)
    time.sleep(60)

def dying(place, name, late):
    real = getattr(place, name)
    def call(*given, **more):
        if late:
            real(*given, **more)
        die(checkpoint)
    setattr(place, name, call)

class Dying(WinkfsStreamWriter):
    def commit(self, messages, batchId):
        if when == f"before {batchId}":
            die(checkpoint)
        super().commit(messages, batchId)
        if when == f"after {batchId}":
            die(checkpoint)

    def _compact(self, job, added):
        if when == "committed":
            dying(compaction, "_attempt", False)
        if when == "rewritten":
            dying(compaction, "rewrite", True)
        if when == "placed":
            dying(Transaction, "_place", True)
        if when == "compacted":
            dying(compaction, "_attempt", True)
        super()._compact(job, added)

class Source(WinkfsDataSource):
    def streamWriter(self, schema, overwrite):
        writer = stream_writer(self.options, schema, overwrite)
        writer.__class__ = Dying
        return writer

at_any = threading.Timer(float(when[4:]) if when.startswith("any ") else 1e6, kill, [checkpoint])
at_any.daemon = True
at_any.start()
spark.dataSource.register(Source)
frame = spark.readStream.format("winkfs").option("maxFilesPerTrigger", 20).load(source)
writer = frame.writeStream.format("winkfs").option("checkpointLocation", checkpoint)
if every:
    writer = writer.option("compactEvery", every[0])
query = writer.trigger(availableNow=True).start(root)
assert query.awaitTermination(200)
at_any.cancel()  # the next application may have the same JVM
"""


@pytest.mark.long
@limits
def test_a_driver_killed_after_its_commit_doubles_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In the first compaction, which follows the commit of the third batch."""
    source, root, checkpoint = tmp_path / "log", tmp_path / "set", tmp_path / "check"
    files = log(source, 0, 100)
    done = application(DIES, source, root, checkpoint, "rewritten", 2)
    assert done.returncode != 0
    assert stored.files(root) == dict(list(files.items())[:60])
    assert len(list((root / "_pending").iterdir())) == 1
    again = pour(tail(spark, source, maxFilesPerTrigger=20), root, checkpoint)
    assert again == [20, 20, 20]  # Spark does not know that the first of them was committed
    assert stored.files(root) == files
    assert set(written(root).values()) == {1}
    assert [batch for _, batch in batches(root)] == [0, 1, 2, 3, 4]
    assert no_leftovers(root) and not winkfs.verify(root).problems


@pytest.mark.soak
def test_a_driver_killed_at_any_time_loses_and_doubles_nothing(
    tmp_path: Path, soak: bool, seed: int
) -> None:
    if not soak:
        pytest.skip("minutes long: make soak")
    source, root, checkpoint = tmp_path / "log", tmp_path / "set", tmp_path / "check"
    random = Random(seed)
    files: dict[str, bytes] = {}
    for number in range(6):
        files |= log(source, 200 * number, 200 * (number + 1))
        when = {2: "before", 4: "after"}.get(number, "any")  # a batch, or seconds
        application(DIES, source, root, checkpoint, f"{when} {random.randrange(1, 20)}")
        have = stored.files(root) if is_dataset(root) else {}  # killed before it made one
        assert have == dict(list(files.items())[: len(have)])
    done = application(DIES, source, root, checkpoint, "never")
    assert done.returncode == 0, done.stderr[-3000:]
    assert stored.files(root) == files and set(written(root).values()) == {1}
    assert no_leftovers(root) and not winkfs.verify(root).problems


MOMENTS = ["committed", "rewritten", "placed", "compacted"]  # of the first compaction of a driver


@limits
@pytest.mark.soak
def test_a_driver_killed_around_a_compaction_doubles_nothing(
    tmp_path: Path, soak: bool, seed: int
) -> None:
    if not soak:
        pytest.skip("minutes long: make soak")
    source, root, checkpoint = tmp_path / "log", tmp_path / "set", tmp_path / "check"
    moments = [*MOMENTS, *MOMENTS, "any 8", "any 9", "any 10", "never"]
    Random(seed).shuffle(moments)
    files: dict[str, bytes] = {}
    for number, moment in enumerate([*moments, "never"]):
        files |= log(source, 100 * number, 100 * (number + 1))
        done = application(DIES, source, root, checkpoint, moment, 2)
        assert moment not in MOMENTS or done.returncode != 0, moment
        have = stored.files(root) if is_dataset(root) else {}
        assert have == dict(list(files.items())[: len(have)])
        assert not winkfs.verify(root).problems
    assert done.returncode == 0, done.stderr[-3000:]
    assert stored.files(root) == files
    assert [batch for _, batch in batches(root)] == list(range(len(batches(root))))
    vacuum(root, older_than=0)
    live = {f"{root}/{record.path}.data" for record in Log(str(root)).latest().shards}
    assert {str(data) for data in root.glob("**/*.data")} == live
    assert set(written(root).values()) == {1} and no_leftovers(root)
    assert sorted(file.name for file in root.iterdir() if file.name[0] != "_") == sorted(
        {Path(name).parent.name for name in live}
    )
    assert not winkfs.verify(root).problems
