"""Job compact: the same files in fewer shards, as a plain loop over the data set sees them."""

from __future__ import annotations

from pathlib import Path

import data_sets
import pytest
from compressed_files import document
from flips import flip
from sparkfiles import expected as content
from sparking import SparkSession

import winkfs
from winkfs.dataset.dataset import create
from winkfs.dataset.manifest import Log
from winkfs.errors import Refusal
from winkfs.spark.jobs import compact

pytestmark = pytest.mark.spark


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Ten small shards, in each of which much replaces or deletes what is older."""
    for number in range(10):
        with create(tmp_path / "d") as out:
            out.put_many((b"%d/\xff %d" % (i % 4, i), b"x%d" % (number * i), 1e9 + number)
                         for i in range(number, number + 40))  # fmt: skip
            out.put(b"empty %d" % number, b"")
            if number:
                out.delete(b"empty %d" % (number - 1))
    return tmp_path / "d"


def test_the_same_files_in_one_shard(spark: SparkSession, root: Path) -> None:
    before = content(root)
    summary = compact.run(spark, str(root), everything=True)
    assert (summary["removed"], summary["shards"]) == (10, 1)
    assert summary["files"] == len(before)
    assert content(root) == before
    again = compact.run(spark, str(root), everything=True)
    assert (again["removed"], again["generation"]) == (0, summary["generation"])


def test_several_groups_are_one_commit(spark: SparkSession, root: Path) -> None:
    before = content(root)
    summary = compact.run(spark, str(root), shard_size=15_000, everything=True)
    assert 1 < summary["shards"] < 10
    assert summary["generation"] == 11
    assert content(root) == before
    assert list((root / "_pending").iterdir()) == []


def test_contents_become_compressed_and_plain_again(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "d"
    data_sets.put(root, {f"{i}": document(i) for i in range(60)})
    before = content(root)
    for word, level in (("zstd:3", 3), (None, 3), ("none", 0)):
        with winkfs.open(root, "a") as out:
            out.put("1", document(1), mtime=1)  # something to join
        before[b"1"] = before[b"1"]._replace(mtime_ns=10**9)
        summary = compact.run(spark, str(root), everything=True, compress=word)
        assert (summary["removed"], summary["shards"]) == (2, 1)
        assert [record.level for record in Log(str(root)).latest().shards] == [level]
        assert content(root) == before
    assert winkfs.verify(root).problems == []
    with pytest.raises(ValueError, match="zstd"):
        compact.run(spark, str(root), compress="gzip")


def test_damage_ends_it_and_changes_nothing(spark: SparkSession, root: Path) -> None:
    shard = root / f"{Log(str(root)).latest().shards[-1].path}.data"
    flip(shard, shard.read_bytes().index(b"x405"))  # of file 45, in the last shard
    files = sorted(root.rglob("*"))
    with pytest.raises(Refusal):
        compact.run(spark, str(root), everything=True)
    assert sorted(root.rglob("*")) == files


def test_a_single_container_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    winkfs.create(tmp_path / "c").close()
    with pytest.raises(Refusal, match="only data sets are compacted"):
        compact.run(spark, str(tmp_path / "c"))
