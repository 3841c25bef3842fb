"""Spark on object storage without a common disk: two workers in namespaces of their own."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator

import pytest
from buckets import s3, trust
from cluster_jobs import expected, stored
from clusters import Cluster, executor_of, kill, standalone
from drivers import Driver, Failed, driver

import winkfs
from winkfs.dataset.manifest import Log

pytestmark = [pytest.mark.spark, pytest.mark.long]
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture(scope="module")
def apart() -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    with standalone(private=True) as cluster:
        if not cluster.separate:
            pytest.skip("no network namespaces here")
        yield cluster


@pytest.fixture(scope="module")
def bucket(apart: Cluster) -> Iterator[str]:
    with s3(apart.master.host.address) as url:
        yield url


@pytest.fixture(scope="module")
def keys() -> dict[str, str]:
    """Settings that give executors keys of their own: they write."""
    from winkfs.remote import control

    given = control._settings()
    words = {"AWS_ENDPOINT_URL": given["endpoint"], "AWS_REGION": "us-east-1"}
    words |= dict.fromkeys(KEYS, "testing")
    return {f"spark.executorEnv.{name}": value for name, value in words.items()}


@pytest.fixture(scope="module")
def writes(apart: Cluster, bucket: str, keys: dict[str, str]) -> Iterator[Driver]:
    with driver(apart.url, apart.settings | keys | {"spark.cores.max": "2"}, script=False) as it:
        yield it


def test_executors_need_no_keys_to_read(apart: Cluster, bucket: str, writes: Driver) -> None:
    root = trust(f"{bucket}/read")
    writes.call("write", root, (0, 300))
    writes.call("write", root, (100, 500))
    assert stored(root) == expected(range(500))
    with driver(apart.url, apart.settings | {"spark.cores.max": "2"}, script=False) as reads:
        assert reads.call("read", root, {"splitBytes": "64k"}) == expected(range(500))
        with pytest.raises(Failed, match="winkfs"):
            reads.call("write", root, (0, 5))
    assert stored(root) == expected(range(500))


def test_each_batch_is_there_once_whatever_is_killed(
    apart: Cluster, bucket: str, writes: Driver, amount: Callable[[str], int], seed: int
) -> None:
    root, chance, kept = trust(f"{bucket}/killed"), random.Random(seed), list[range]()
    winkfs.dataset.create(root).close()
    for number in range(amount("batches")):
        apart.complete()
        numbers = range(100 * number, 100 * number + 100)
        before = Log(root).newest()
        writes.begin("write", root, (numbers.start, numbers.stop), "append", None, 6)
        time.sleep(chance.uniform(0.1, 2.5))
        worker = chance.choice(apart.workers)
        pythons, executors = worker.pythons(), worker.executors()
        match chance.choice(["python", "executor", "worker"]):
            case "python" if pythons:
                kill(chance.choice(pythons))
            case "executor" if pythons:
                kill(executor_of(pythons[0]))
            case "worker":
                apart.lose(worker)
            case _:
                list(map(kill, executors))
        try:
            writes.end()
            done = True
        except Failed:
            done = False
        made = Log(root).newest() - before
        assert made in (0, 1) and (made or not done)
        kept += [numbers] * made
        assert stored(root) == expected(n for part in kept for n in part)
    assert winkfs.verify(root).problems == []
    assert len(kept) * 2 > amount("batches")
