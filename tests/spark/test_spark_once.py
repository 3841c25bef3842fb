"""Streams take each file once, whatever happens between a batch that failed and its repetition: of
each kind of source."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from buckets import s3, trust
from sparking import application
from test_spark_stream import DIES, PATIENCE, limits
from test_spark_tail import grow

import winkfs
from winkfs.dataset.compaction import compact
from winkfs.dataset.maintain import vacuum
from winkfs.stores.ledgerq import Queue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
pytest.importorskip("pyspark")
KINDS = ("data set", "container", "queue", "data set on s3")
WEEK = 7 * 86400
_numbers = itertools.count()


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3() as url:
        yield url


@pytest.fixture
def source(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    if kind == "data set on s3":
        return trust(f"{request.getfixturevalue('bucket')}/once{next(_numbers)}")
    return str(tmp_path / "source")


def more(kind: str, source: str, low: int, high: int) -> None:
    """Add files, or messages, with the contents b"<low>" .."""
    if kind == "data set on s3":
        with winkfs.dataset.create(source) as files:
            files.put_many((f"{i}", b"%d" % i) for i in range(low, high))
    else:
        grow(kind, Path(source), low, high)


def disturb(kind: str, source: str) -> None:
    """Do what others may do to a source: nothing of it adds a file, or takes one that is needed."""
    if kind.startswith("data set"):
        compact(source)
        vacuum(source, keep=100, older_than=WEEK)
    elif kind == "queue":
        with Queue(source, "a") as queue:
            queue.pop_many(3)
    else:
        winkfs.reindex(source)


def run(spark: SparkSession, source: str, check: Path, each: Callable[[DataFrame, int], None],
        **options: str) -> None:  # fmt: skip
    """Run a stream over what is there."""
    frame = spark.readStream.format("winkfs").options(**options).load(source)
    writer = frame.writeStream.foreachBatch(each).option("checkpointLocation", str(check))
    assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE)


def fails(frame: DataFrame, batch: int) -> None:
    raise RuntimeError("a mistake of the user")


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_a_first_batch_that_failed_comes_once(
    spark: SparkSession, kind: str, source: str, tmp_path: Path
) -> None:
    got: list[int] = []

    def collect(frame: DataFrame, batch: int) -> None:
        got.extend(int(bytes(row.content)) for row in frame.select("content").collect())

    check = tmp_path / "check"
    more(kind, source, 0, 5)
    with pytest.raises(Exception, match="a mistake of the user"):
        run(spark, source, check, fails)
    more(kind, source, 5, 10)
    disturb(kind, source)
    more(kind, source, 10, 15)
    run(spark, source, check, collect)
    assert sorted(got) == list(range(15))
    disturb(kind, source)
    more(kind, source, 15, 17)
    run(spark, source, check, collect)
    assert sorted(got) == list(range(17))


@limits
@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_killed_in_its_first_batches(
    kind: str, source: str, tmp_path: Path, soak: bool, seed: int
) -> None:
    """The JVM is killed before and after commits, and at moments; others work on the source."""
    if not soak:
        pytest.skip("minutes long: make soak")
    root, check, random = tmp_path / "set", tmp_path / "check", Random(seed)
    code = DIES.replace("frame.writeStream", "named(frame).writeStream").replace(
        "frame = ", "named = lambda f: f.selectExpr('cast(content as string) path', 'content')\n"
        "frame = "
    )  # fmt: skip
    total = 0
    for when in ("before 0", "after 0", "any", "before 1", "any", "any"):
        count = random.randrange(1, 25)
        more(kind, source, total, total + count)
        total += count
        moment = f"any {random.randrange(1, 12)}" if when == "any" else when
        application(code, source, root, check, moment)
        disturb(kind, source)
    done = application(code, source, root, check, "never")
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[str] = []
    for data in root.glob("*/*.data"):
        with winkfs.open(str(data).removesuffix(".data")) as shard:
            found += [entry.name for entry in shard.scan()]
    assert sorted(map(int, found)) == list(range(total))
