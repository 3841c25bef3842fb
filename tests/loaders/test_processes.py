"""Loaders with processes: forked, spawned, killed; here and on object storage."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from buckets import s3
from miniloader import DataLoader
from samples import SMALL, data_set, numbered, paths

import winkfs
from winkfs.loaders import Rows, Sampler, Stream, places


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3() as url:
        yield url


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WINKFS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def whole(rows: Rows) -> list[list[str]]:
    return paths(map(rows.__getitems__, Sampler(rows, **SMALL)))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("context", "workers"), [("fork", 1), ("fork", 5), ("spawn", 2), ("forkserver", 2)]
)
def test_workers_have_the_order_of_none(tmp_path: Path, context: str, workers: int) -> None:
    """The parent has read before; a state is good for any number of workers."""
    rows = Rows([numbered(tmp_path / "c", 60), data_set(tmp_path / "set", 40)])
    expected = whole(rows)
    sampler = Sampler(rows, **SMALL)
    found = []
    for batch in sampler.over(DataLoader(rows, sampler, workers, context)):
        found.append([row["path"] for row in batch])
        if len(found) == 4:
            state = json.loads(json.dumps(sampler.state_dict()))
    assert found == expected
    assert (state["seen"], sampler.epoch) == (28, 1)
    stream = Stream(rows, Sampler(rows, **SMALL), yields="batches")
    assert paths(DataLoader(stream, None, workers, context)) == expected
    again = Sampler(rows, **SMALL)
    again.load_state_dict(state)
    assert paths(again.over(DataLoader(rows, again, 2))) == expected[4:]


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_on_object_storage(bucket: str, tmp_path: Path, cache: Path, context: str) -> None:
    winkfs.push(numbered(tmp_path / "c", 40), f"{bucket}/{context}")
    rows = Rows(f"{bucket}/{context}")
    expected = whole(rows)
    found = paths(DataLoader(rows, Sampler(rows, **SMALL), 2, context))
    assert found == expected
    stream = Stream(rows, Sampler(rows, **SMALL), yields="batches")
    assert paths(DataLoader(stream, None, 2, context)) == expected
    assert paths(stream) == expected


@pytest.mark.long
def test_two_runs_share_a_cache(bucket: str, tmp_path: Path, cache: Path) -> None:
    winkfs.push(numbered(tmp_path / "c", 40, 5000), f"{bucket}/shared")
    code = (
        "import sys, winkfs\n"
        "rows = winkfs.Rows(sys.argv[1])\n"
        "print(sum(len(r['content']) for r in winkfs.Stream(rows, winkfs.Sampler(rows, 7))))"
    )
    command = [sys.executable, "-c", code, f"{bucket}/shared"]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [run.communicate(timeout=60)[0].strip() for run in runs] == ["200000"] * 2
    assert any(cache.rglob("*.pieces"))


def test_a_store_that_was_replaced_is_noticed(bucket: str, tmp_path: Path, cache: Path) -> None:
    winkfs.push(numbered(tmp_path / "c", 40, 5000), f"{bucket}/replaced")
    rows = Rows(f"{bucket}/replaced")
    winkfs.push(numbered(tmp_path / "d", 41), f"{bucket}/replaced", force=True)
    with pytest.raises(OSError, match=r"replaced|planned"):
        rows[:]


def test_many_places_are_in_a_file_that_processes_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "SHARED_BYTES", 64)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    rows = Rows(numbered(tmp_path / "c", 100))
    assert list(folder.iterdir()) == []
    pickled = pickle.dumps(rows)
    assert len(pickled) < 2000
    again = pickle.loads(pickled)
    assert again[:] == rows[:]
    assert paths(DataLoader(rows, Sampler(rows, **SMALL), 1, "spawn")) == whole(rows)
    del rows, again
    late = pickle.loads(pickled)  # the file is gone: the catalog is read
    assert len(late[:]) == 100
    with winkfs.open(tmp_path / "c", "a") as c:
        c.put("new", b"")
        c.delete("00001")
    del late
    with pytest.raises(winkfs.StalePlan, match="make Rows anew"):
        pickle.loads(pickled)


def test_a_kill_leaves_nothing(tmp_path: Path) -> None:
    """Neither of a worker nor of a run: the next one begins as ever."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    base = numbered(tmp_path / "c", 100)
    code = (
        "import sys, winkfs\nfrom miniloader import DataLoader\n"
        "from winkfs.loaders import places\nplaces.SHARED_BYTES = 64\n"
        "rows = winkfs.Rows(sys.argv[1])\n"
        "loader = DataLoader(rows, winkfs.Sampler(rows, 7), 2)\n"
        "batches = iter(loader)\nnext(batches)\nprint(*loader.pids, flush=True)\ninput()"
    )
    place = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.Popen(
        [sys.executable, "-c", code, base], env=place, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert run.stdout is not None
    for pid in map(int, run.stdout.readline().split()):
        os.kill(pid, signal.SIGKILL)
    run.kill()
    run.communicate()
    assert list(folder.iterdir()) == []
    assert len(whole(Rows(base))) == 15
