"""The same answers on one machine and on several as from a plain loop in Python."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import cluster_jobs
import data_sets
import pytest
import xxhash
from cluster_jobs import document, expected, stored
from clusters import LOCAL_CLUSTER
from drivers import Driver, Here, Spark, driver
from folders import write_files
from stored import make

import winkfs
import winkfs.digests
from winkfs.dataset.manifest import PENDING
from winkfs.names import MANIFESTS

pytestmark = pytest.mark.spark


@pytest.fixture(
    scope="module",
    params=["local", pytest.param("local-cluster", marks=pytest.mark.soak), "standalone"],
)
def spark_on(request: pytest.FixtureRequest, soak: bool) -> Iterator[Spark]:
    """A driver, with its tasks in one process, in two on this machine, on two hosts."""
    if request.param == "local":
        yield Here(request.getfixturevalue("spark"))
        return
    if request.param == "standalone":
        yield request.getfixturevalue("cluster_driver")
        return
    if not soak:
        pytest.skip("several processes, as standalone: make soak")
    with driver(LOCAL_CLUSTER) as it:
        yield it


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("corpus") / "corpus"
    return make(base, map(document, range(1500)), ao=True)  # a stream can read it


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set in which files of one shard are replaced and deleted by others."""
    root = tmp_path_factory.mktemp("rewritten") / "set"
    data_sets.add(root, dict(map(document, range(600))), dict(map(document, range(600, 900))))
    data_sets.add(root, {document(n)[0]: b"new %d" % n for n in range(0, 900, 5)})
    data_sets.delete(root, *(document(n)[0] for n in range(0, 900, 7)))
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a data set is to be."""
    return tmp_path / "set"


def clean(root: Path, jobs: int) -> None:
    """Nothing is in the folder of a data set but its manifests and what they name."""
    assert not list((root / PENDING).iterdir())
    folders = [path for path in root.iterdir() if path.name not in (MANIFESTS, PENDING)]
    assert len(folders) == jobs, folders
    assert winkfs.verify(root).problems == []


@pytest.mark.few(2)
@pytest.mark.parametrize("options", [{}, {"splitBytes": "500k"}, {"prefix": "d3/"}])
def test_a_container_is_read_as_python_reads_it(
    spark_on: Spark, corpus: Path, options: dict[str, str]
) -> None:
    found = spark_on.call("read", corpus, options)
    assert found == [row for row in stored(corpus) if row[0].startswith(options.get("prefix", ""))]
    assert len(found) > 200


@pytest.mark.few(1)
def test_a_data_set_is_read_without_what_was_replaced_or_deleted(
    spark_on: Spark, rewritten: Path
) -> None:
    assert spark_on.call("read", rewritten, {"splitBytes": "64k"}) == stored(rewritten)


@pytest.mark.few(1)
def test_what_is_written_is_there_once(spark_on: Spark, root: Path) -> None:
    spark_on.call("write", root, (0, 700))
    spark_on.call("write", root, (500, 900))
    assert stored(root) == expected(range(900))
    clean(root, 2)
    spark_on.call("write", root, (300, 400), "overwrite")
    assert stored(root) == expected(range(300, 400))


def test_failed_and_repeated_tasks_change_nothing(cluster_driver: Driver, root: Path) -> None:
    cluster_driver.call("write_with_failures", root)
    assert stored(root) == expected(range(4000))
    attempts = {path.name[:7] for path in root.glob("*/*.data")}
    assert attempts == {"00000-1", "00001-0", "00002-1", "00003-0"}
    clean(root, 1)


@pytest.mark.long
@pytest.mark.few(1)
def test_a_relative_path_is_that_of_the_driver(spark_on: Spark) -> None:
    """Executors have folders of their own to run in."""
    if spark_on.name == "local":
        pytest.skip("in test_spark_workers: the example of the README")
    spark_on.call("write", "set", (0, 100))
    assert stored(spark_on.place / "set") == expected(range(100))
    assert spark_on.call("read", "set", {}) == expected(range(100))


@pytest.mark.long
def test_a_stream_hands_on_each_file_once(spark_on: Spark, corpus: Path, tmp_path: Path) -> None:
    arguments = (corpus, tmp_path / "set", tmp_path / "checkpoint", None, 600)
    assert spark_on.call("stream", *arguments) == 3
    assert spark_on.call("stream", *arguments) == 0
    assert stored(tmp_path / "set") == stored(corpus)
    clean(tmp_path / "set", 3)


# --- the jobs of the pipeline. On one machine: test_jobs_*.py ---

PAGES = {f"d{n % 4}/{n}.html": b"<title>%d</title>" % (n % 90) * (n % 90) for n in range(240)}


@pytest.fixture(scope="module")
def pages(spark_on: Spark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set made by `ingest`; those below are named as the driver sees them."""
    if spark_on.name == "local":
        pytest.skip("in test_jobs_answers")
    tree = write_files(tmp_path_factory.mktemp("tree"), PAGES)
    summary = spark_on.call("job", "ingest", [str(tree)], "pages")
    assert (summary["files"], summary["bad"]) == (240 + 4, 0)  # directories, too
    root = spark_on.place / "pages"
    assert contents(root) == PAGES
    return root


def contents(root: Path) -> dict[str, bytes]:
    with winkfs.open(root) as found:
        kinds = (winkfs.FileType.FILE, winkfs.FileType.EXEC)
        return {e.name: e.read() for e in found.scan() if e.ftype in kinds}


@pytest.mark.few(1)
def test_digests_made_by_several_workers_are_those_of_a_loop(spark_on: Spark, pages: Path) -> None:
    assert spark_on.call("job", "digest", "pages", "digests", shards=3)["files"] == 240
    with winkfs.digests.open(spark_on.place / "digests") as found:
        wanted = {name: xxhash.xxh3_64_intdigest(data) for name, data in PAGES.items()}
        assert {name: digest.xxh3 for name, digest in found.items()} == wanted


@pytest.mark.few(1)
def test_an_order_made_by_several_workers_is_that_of_sorted(spark_on: Spark, pages: Path) -> None:
    spark_on.call("job", "sort", "pages", "by-name", "path", parts=3, descending=True)
    parts = spark_on.call("ordered", "pages", "by-name")
    assert [name for part in parts for name in part] == sorted(PAGES, reverse=True)
    assert len(parts) > 1


@pytest.mark.few(1)
def test_groups_made_by_several_workers_are_whole(spark_on: Spark, pages: Path) -> None:
    assert spark_on.call("job", "group", "pages", "groups", "size % 7", parts=3)["groups"] == 7
    names = [name for part in spark_on.call("ordered", "pages", "groups") for name in part]
    assert sorted(names) == sorted(PAGES)
    keys = [len(PAGES[name]) % 7 for name in names]
    assert 1 + sum(a != b for a, b in pairwise(keys)) == 7


@pytest.mark.long
def test_duplicates_are_deleted_and_the_rest_compacted(spark_on: Spark, pages: Path) -> None:
    doubles = 240 - len(set(PAGES.values()))
    # an empty document is no double, and every 90th is empty
    wanted = doubles - (sum(not data for data in PAGES.values()) - 1)
    assert spark_on.call("job", "dedup", "pages", delete=True)["doubles"] == wanted
    left = contents(pages)
    assert len(left) == 240 - wanted
    assert set(left.values()) == set(PAGES.values())
    spark_on.call("job", "compact", "pages", everything=True)
    assert contents(pages) == left
    summary = spark_on.call("job", "stats", "pages")
    assert (summary["files"], summary["bytes"]) == (len(left), sum(map(len, left.values())))
    assert winkfs.verify(pages).problems == []


def test_the_plain_loop_distinguishes_documents() -> None:
    rows: list[list[Any]] = expected(range(1500))
    assert len({row[0] for row in rows}) == len(rows)
    assert len({row[2] for row in rows}) > 1400
    assert cluster_jobs.digest(b"") == "d41d8cd98f00b204e9800998ecf8427e"
