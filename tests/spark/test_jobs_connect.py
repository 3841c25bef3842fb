"""The jobs over Spark Connect, whose sessions have no context: the answers of a plain loop."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import mmh3
import pytest
from sparkfiles import expected as content
from sparking import SparkSession
from warcs import response

pytest.importorskip("pyarrow")
import winkfs.digests
from winkfs.cli.pipeline import pipeline
from winkfs.dataset.dataset import create
from winkfs.dataset.manifest import Log
from winkfs.errors import Refusal
from winkfs.results import orders
from winkfs.spark.jobs import compact, dedup, digest, group, ingest, sort, stats
from winkfs.spark.jobs.session import Bad, cause, missing, session
from winkfs.spark.jobs.tasks import cores, guarded, on_units

pytestmark = pytest.mark.spark
SERVICE = "org.apache.spark.sql.connect.service.SparkConnectService"
PORT = "spark.connect.grpc.binding.port"
WORDS = " ".join(f"word{i}" for i in range(120))


@pytest.fixture(scope="module")
def remote(spark: SparkSession) -> Iterator[Any]:
    """A session of Spark Connect, whose server is in the JVM of all tests."""
    from pyspark.sql.connect.session import SparkSession as Remote

    java, scala = attrgetter("_jvm", "_jsc")(spark.sparkContext)
    context = scala.sc()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context.conf().set(PORT, str(port))
    service = getattr(java, SERVICE)
    service.start(context)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # functions of PySpark look for it
        made = Remote.builder.remote(f"sc://127.0.0.1:{port}").create()
        yield made
        made.stop()
    none = java.scala.Option.empty()
    service.stop(none, none)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards in which files are replaced and deleted, with equal and similar ones."""
    target = tmp_path_factory.mktemp("connect") / "data set, [x]"
    with create(target) as out:
        out.put_many((f"site{i % 3}/{i}.html", f"{i} {WORDS}x{i}".encode() * 2, 1e9 + i)
                     for i in range(20))  # fmt: skip
        out.put("gone", b"-")
    with create(target) as out:
        out.put("twin", f"7 {WORDS}x7".encode() * 2, mtime=2e9)
        out.put("site0/3.html", b"replaced", mtime=2e9)
        out.delete("gone")
        out.put(b"raw \xff", b"", mtime=5)
    return target


def test_units_are_tasks_whose_first_error_counts(remote: Any) -> None:
    assert cores(remote) == 2
    pids = on_units(remote, [3, 1, 2], lambda number: (number, os.getpid()))
    assert [number for number, _ in pids] == [3, 1, 2]
    assert os.getpid() not in dict(pids).values()

    def fails(number: int) -> int:
        raise Refusal(f"number {number}")

    with pytest.raises(Refusal, match="number 5"):
        on_units(remote, [5, 6], fails)


def test_ingest_reads_once_and_keeps_captures(remote: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a", "b"):
        (tmp_path / "in" / name).write_text(name)
    (tmp_path / "c.warc").write_bytes(response(b"https://x.org/", b"one"))
    (tmp_path / "d.warc").write_bytes(response(b"https://x.org/", b"two"))
    (tmp_path / "e.tar").write_bytes(b"no tar file")
    bad: list[Bad] = []
    names = [str(tmp_path / name) for name in ("in", "c.warc", "d.warc", "e.tar")]
    done = ingest.run(remote, names, str(tmp_path / "d"), bad=bad.append)
    assert (done["files"], done["units"], len(bad)) == (4, 4, 1)
    found = content(tmp_path / "d")
    assert {b"a", b"b"} < found.keys()
    assert sorted(file.content for file in found.values()) == [b"a", b"b", b"one", b"two"]
    assert ingest.run(remote, names, str(tmp_path / "d"))["skipped"] == 4
    assert os.listdir(tmp_path / "d" / "_pending") == []


@pytest.mark.long
def test_compaction_keeps_the_files(remote: Any, tmp_path: Path) -> None:
    for number in range(4):
        with create(tmp_path / "d") as out:
            out.put_many((f"{i % 7}", b"x" * 300 * number) for i in range(number, number + 5))
    before = content(tmp_path / "d")
    done = compact.run(remote, str(tmp_path / "d"), shard_size=3000, everything=True)
    assert content(tmp_path / "d") == before
    assert done["removed"] >= 3
    assert done["shards"] == len(Log(str(tmp_path / "d")).latest().shards) >= done["added"] > 1


@pytest.mark.long
def test_digests_orders_and_counts(remote: Any, source: Path, tmp_path: Path) -> None:
    there = content(source)
    done = digest.run(remote, str(source), str(tmp_path / "digests"), shards=2)
    assert (done["files"], done["bad"]) == (len(there), 0)
    with winkfs.digests.open(tmp_path / "digests") as found:
        assert found.get(b"twin").mmh3 == mmh3.hash_bytes(there[b"twin"].content, 0, True)
    sort.run(remote, str(source), str(tmp_path / "order"), "size", parts=2)
    order = remote.read.format("winkfs").option("orderBy", f"perm:{tmp_path / 'order'}")
    rows = order.option("columns", "path,size").load(f'["{source}"]').collect()
    assert [row["size"] for row in rows] == sorted(file.size for file in there.values())
    with pytest.raises(ValueError, match="is no expression"):
        sort.run(remote, str(source), str(tmp_path / "o"), "explode(split(path, '/'))")
    group.run(remote, str(source), str(tmp_path / "groups"), "split(path, '/')[0]", parts=2)
    assert orders.open(tmp_path / "groups").groups == 5
    summary = stats.run(remote, str(source))
    assert (summary["files"], summary["bytes"]) == (len(there), sum(f.size for f in there.values()))


@pytest.mark.long
def test_duplicates_are_listed_copied_deleted(remote: Any, source: Path, tmp_path: Path) -> None:
    table, into = tmp_path / "table", tmp_path / "into"
    done = dedup.run(remote, str(source), table=str(table), into=str(into))
    assert done["doubles"] == 1
    rows = remote.read.parquet(str(table)).select("path", "same_as").collect()
    assert [tuple(row) for row in rows] == [("twin", "site1/7.html")]
    assert content(into).keys() == content(source).keys() - {b"twin"}
    near = dedup.run(remote, str(into), threshold=0.7, delete=True)
    assert near["doubles"] > 5
    assert len(content(into)) == len(content(source)) - 1 - near["doubles"]


def test_an_interrupted_job_is_cancelled(remote: Any, spark: SparkSession, tmp_path: Path) -> None:
    def wait(number: int) -> None:
        (tmp_path / str(number)).touch()
        time.sleep(600)

    def interrupt(*_: object) -> None:
        if os.listdir(tmp_path):
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
        with pytest.raises(KeyboardInterrupt), guarded(remote, "waiting"):
            on_units(remote, [1, 2], wait)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    tracker, end = spark.sparkContext.statusTracker(), time.monotonic() + 60
    while tracker.getActiveStageIds() and time.monotonic() < end:
        time.sleep(0.05)
    assert not tracker.getActiveStageIds()
    assert remote.getTags() == set()


@pytest.mark.parametrize(("remote", "message"), [
    ("http://x", "is no server of Spark Connect: sc://HOST:PORT"),
    ("sc://127.0.0.1:9", "no server of Spark Connect answers at sc://127.0.0.1:9"),
    ("sc://127.0.0.1:x", "no server of Spark Connect answers"),
])  # fmt: skip
def test_a_wrong_server_is_one_line(remote: str, message: str) -> None:
    assert message in (missing(remote) or "")


def test_one_of_master_and_remote() -> None:
    with pytest.raises(Refusal, match="exclude each other"), session("x", "local", remote="sc://x"):
        pass
    assert all("remote" in {p.name for p in c.params} for n, c in pipeline.commands.items()
               if n != "lookup")  # fmt: skip


def test_without_its_packages_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winkfs.spark.jobs.session.CONNECT", ("grpc", "google.rpc.not_there"))
    assert missing("local[2]") == (
        "Spark Connect needs winkfs[connect]: pip install 'winkfs[connect]'"
    )


@pytest.mark.long  # in the suite: with a session that is not remote
def test_an_error_of_a_task_is_one_line(remote: Any) -> None:
    def fails(number: int) -> None:
        raise OSError(28, "No space left on device", "/data/x")

    with pytest.raises(Exception) as caught:
        on_units(remote, [1], fails)
    assert cause(caught.value) == "[Errno 28] No space left on device: '/data/x'"
