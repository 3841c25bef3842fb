"""Processes are killed in the middle of what they do: nothing is doubled, lost, or left."""

from __future__ import annotations

import time
from pathlib import Path

import data_sets
import pytest
from cluster_jobs import document, expected, stored
from clusters import Cluster, executor_of, kill, wait_for
from drivers import HALF, PATIENCE, Driver, driver, go
from test_spark_cluster import clean
from test_spark_cluster import corpus as corpus  # a fixture

import winkfs
from winkfs.cli import main
from winkfs.dataset.manifest import PENDING

pytestmark = pytest.mark.spark

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
}


@pytest.fixture
def spark_on(cluster: Cluster, cluster_driver: Driver) -> Driver:
    """With all workers, whatever the test before has done."""
    cluster.complete()
    return cluster_driver


@pytest.fixture(autouse=True)
def _long_ones_only_in_a_soak(request: pytest.FixtureRequest, soak: bool) -> None:
    if request.node.get_closest_marker("soak") and not soak:
        pytest.skip("long: see `make soak`")


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    (tmp_path / "gate").mkdir()
    return tmp_path / "gate"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a data set is to be."""
    return tmp_path / "set"


def lose_power(cluster: Cluster, task: int) -> None:
    """kill -9 of the worker of a task with all that runs there."""
    cluster.lose(cluster.worker_of(task))


def finish(spark_on: Driver, gate: Path, root: Path) -> None:
    """Let the task go on that was held: 1,000 documents are written once, by one job."""
    go(gate)
    spark_on.end()
    assert stored(root) == expected(range(1000))
    clean(root, 1)


# --- the machine of a task is lost ---


@pytest.mark.long
def test_a_worker_lost_in_the_middle_of_a_read_and_a_write(
    spark_on: Driver, cluster: Cluster, corpus: Path, root: Path, gate: Path
) -> None:
    spark_on.call("write", root, (0, 300))
    options = {"splitBytes": "1m", "batchBytes": "64k"}
    spark_on.begin("copy", corpus, root, options, gate)
    task = spark_on.held(gate)
    assert list((root / PENDING).iterdir())  # it has begun
    assert stored(root) == expected(range(300))
    lose_power(cluster, task)
    go(gate)
    spark_on.end()
    assert stored(root) == expected(range(1500)) == stored(corpus)
    with winkfs.open(root) as files:
        assert next(iter(files.history())).metrics["files"] == 1500  # each was read once
    clean(root, 2)


@pytest.mark.long
def test_a_worker_lost_in_the_middle_of_a_stream(
    spark_on: Driver, cluster: Cluster, corpus: Path, root: Path, tmp_path: Path, gate: Path
) -> None:
    spark_on.begin("stream", corpus, root, tmp_path / "checkpoint", gate, 600)
    lose_power(cluster, spark_on.held(gate))
    go(gate)
    assert spark_on.end() == 3
    assert stored(root) == stored(corpus)
    clean(root, 3)


# --- soak: smaller parts are lost, and at other moments ---


@pytest.mark.soak
@pytest.mark.parametrize("part", ["executor", "python of the task", "all pythons of the worker"])
def test_a_part_lost_in_the_middle_of_a_write(
    spark_on: Driver, cluster: Cluster, root: Path, gate: Path, part: str
) -> None:
    spark_on.begin("write", root, (0, 1000), "append", gate)
    task = spark_on.held(gate)
    victims = {
        "executor": [executor_of(task)],
        "python of the task": [task],
        "all pythons of the worker": cluster.worker_of(task).pythons(),
    }[part]
    for pid in victims:
        kill(pid)
    finish(spark_on, gate, root)


@pytest.mark.soak
def test_executors_lost_before_the_commit_lose_nothing(
    spark_on: Driver, cluster: Cluster, root: Path, gate: Path
) -> None:
    spark_on.begin("write", root, (0, 1000), "append", gate, 4)
    mine = executor_of(spark_on.held(gate))
    wait_for(lambda: len(list(root.glob(f"{PENDING}/*/*.cat"))) == 3, "three tasks did not end")
    time.sleep(1)  # the driver has heard of it
    for worker in cluster.workers:
        for pid in worker.executors():
            if pid != mine:
                kill(pid)
    finish(spark_on, gate, root)


@pytest.mark.soak
def test_of_two_speculative_attempts_one_counts(cluster: Cluster, root: Path, gate: Path) -> None:
    if not cluster.separate:
        pytest.skip("Spark starts no second attempt on the same host: it needs root, and ip")
    cluster.complete()
    with driver(cluster.url, cluster.settings | HALF | SPECULATION) as it:
        it.begin("write", root, (0, 1000), "append", gate, 4)
        it.held(gate)
        it.end()  # the other attempt has done it all
        assert stored(root) == expected(range(1000))
        go(gate)
        time.sleep(2)
        clean(root, 1)
    assert stored(root) == expected(range(1000))


@pytest.mark.soak
def test_a_machine_back_on_the_network_writes_nothing_more(
    spark_on: Driver, cluster: Cluster, root: Path, gate: Path
) -> None:
    """Its task goes on all the time: it has been done elsewhere, and its folder is gone."""
    if not cluster.separate:
        pytest.skip("all workers are on one host: it needs root, and ip")
    spark_on.begin("write", root, (0, 1000), "append", gate)
    task = spark_on.held(gate)
    host = cluster.worker_of(task).host
    host.unplug()
    try:
        spark_on.end()
        assert stored(root) == expected(range(1000))
        go(gate)
        time.sleep(3)
        clean(root, 1)
    finally:
        host.plug()
        lose_power(cluster, cluster.worker_at(host).process.pid)  # it believes to have executors
    assert stored(root) == expected(range(1000))
    clean(root, 1)


@pytest.mark.soak
@pytest.mark.parametrize("turn", range(6))
def test_a_worker_lost_at_any_moment_of_a_write(
    spark_on: Driver, cluster: Cluster, root: Path, turn: int
) -> None:
    spark_on.begin("write", root, (0, 6000), "append", None, 8)
    wait_for(
        lambda: root.exists() and list((root / PENDING).glob("*/*")), "it did not begin", PATIENCE
    )
    time.sleep(0.3 * turn)
    lose_power(cluster, cluster.workers[turn % 2].process.pid)
    spark_on.end()
    assert stored(root) == expected(range(6000))
    clean(root, 1)


@pytest.mark.soak
@pytest.mark.parametrize("turn", range(6))
def test_a_driver_lost_at_any_moment_of_a_stream(
    corpus: Path, root: Path, tmp_path: Path, turn: int
) -> None:
    """A new one goes on from the checkpoint: between the commit of ours and that of Spark, too."""
    arguments = ("stream", corpus, root, tmp_path / "checkpoint", None, 100)
    with driver("local[2]") as it:
        it.begin(*arguments)
        wait_for(
            lambda: len(list(root.glob("_winkfs/*.json"))) > turn, "it did not begin", PATIENCE
        )
        time.sleep(0.07 * turn)
        it.kill()
    with driver("local[2]") as it:
        it.call(*arguments)
    assert stored(root) == stored(corpus)


# --- the driver is lost ---


def test_a_driver_lost_during_a_write_changes_nothing(
    cluster_driver: Driver, cluster: Cluster, root: Path, gate: Path
) -> None:
    """The last test: no other finds this driver alive."""
    data_sets.add(root, dict(map(document, range(300))))
    cluster_driver.begin("write", root, (200, 1200), "overwrite", gate)
    cluster_driver.held(gate)
    cluster_driver.kill()
    for worker in cluster.workers:
        wait_for(lambda w=worker: not w.executors() and not w.pythons(), "executors live on")
    assert stored(root) == expected(range(300))
    assert list((root / PENDING).iterdir())  # nobody was left to sweep it
    assert main(["dataset", "vacuum", str(root), "--older-than", "0"]) == 0
    assert stored(root) == expected(range(300))
    clean(root, 1)
