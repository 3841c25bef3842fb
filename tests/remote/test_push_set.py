"""Data sets are pushed to object storage, and pulled from it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import data_sets
import pytest
import stored
from commands import Run, one_line
from commands import run as run  # a fixture
from data_sets import root as root  # a fixture
from simulated.objectstore import ObjectStore

import winkfs
from winkfs.dataset.compaction import compact
from winkfs.dataset.manifest import Log
from winkfs.errors import Refusal
from winkfs.remote.pull import pull
from winkfs.remote.push import push

pytestmark = pytest.mark.in_memory


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as made:
        made.trusted("dir/set")
        yield made


@pytest.fixture
def url(store: ObjectStore) -> str:
    return f"{store.url}/dir/set"


def fill(root: str, first: int = 0) -> None:
    """Add, replace and delete files, in three commits."""
    data_sets.add(root, {f"a{i:03}": b"%d" % i for i in range(first, first + 50)})
    data_sets.add(root, {f"a{i:03}": b"new" for i in range(first, first + 50, 7)}, {"z": b"z"})
    data_sets.delete(root, f"a{first + 1:03}")


def same(url: str, root: str) -> None:
    assert stored.files(url) == stored.files(root)
    assert winkfs.verify(url).problems == []
    assert Log(url).newest() == Log(root).newest()


def test_what_is_new_is_sent(root: str, url: str, store: ObjectStore) -> None:
    fill(root)
    done = push(root, url)
    assert (done.replaces, done.same) == (False, False)
    same(url, root)
    again = push(root, url)
    assert again.same and not again.sent
    fill(root, 100)
    planned = push(root, url, dry_run=True)
    with store.counted() as asked:
        more = push(root, url)
    assert 0 < planned.sent <= more.sent < done.size + more.size
    assert sum(r.what == "put" and r.key.endswith(".data") for r in asked) == 4
    same(url, root)
    compact(root, everything=True)
    push(root, url)
    same(url, root)


def test_a_push_after_each_commit_has_its_changes(root: str, url: str) -> None:
    data_sets.add(root, {"a": b"1"})
    push(root, url)
    data_sets.add(root, {"b": b"2"})
    push(root, url)
    assert [len(m.added) for m in Log(url).manifests(2, 2)] == [1]
    assert stored.files(url) == {"a": b"1", "b": b"2"}


def test_a_pulled_data_set_is_the_same(root: str, url: str, tmp_path: Path) -> None:
    fill(root)
    push(root, url)
    with winkfs.open(url, "a") as there:
        there.put("there", b"x")
    copy = str(tmp_path / "copy")
    done = pull(url, copy)
    assert done.fetched and not done.problems
    same(url, copy)
    assert pull(url, copy).same
    with winkfs.open(copy, "a") as here:
        here.put("here", b"y")
    assert winkfs.verify(copy).problems == []
    with pytest.raises(FileExistsError, match=r"changed there since|another data set"):
        push(root, url)
    push(copy, url)
    same(url, copy)


def test_a_push_that_is_stopped_changes_nothing_and_goes_on(
    root: str, url: str, store: ObjectStore
) -> None:
    fill(root)
    push(root, url)
    before = stored.files(url)
    fill(root, 100)
    now = stored.files(root)
    seen = set[bool]()
    for calls in itertools.count():
        left = itertools.count(calls, -1)

        def stop(key: str, left: Iterator[int] = left) -> None:
            if next(left) <= 0:
                raise Refusal("HTTP 503")

        store.failing = stop
        try:
            push(root, url)
            break
        except OSError:
            pass
        finally:
            store.failing = lambda key: None
        found = stored.files(url)
        assert found in (before, now)
        seen.add(found == now)
    same(url, root)
    assert calls > 20 and False in seen


def test_commands(root: str, url: str, run: Run, tmp_path: Path) -> None:
    data_sets.add(root, {"a": b"1"})
    assert run("push", root, url, "--dry-run").status == 0
    assert b"sent" in run("push", root, url).out
    assert run("pull", url, tmp_path / "out").status == 0
    assert stored.files(tmp_path / "out") == {"a": b"1"}
    assert "remote check" in one_line(run("push", root, url + "2"))
    with winkfs.create(tmp_path / "c") as c:
        c.put("a", b"1")
    assert "a data set is there" in one_line(run("push", tmp_path / "c", url))
