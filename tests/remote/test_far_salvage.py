"""Salvage of a data file on object storage, and the progress of commands on URLs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import invoke, on_a_terminal
from simulated.objectstore import ObjectStore, web_server

import winkfs
import winkfs.dataset
from winkfs.container.salvage import salvage

pytestmark = pytest.mark.in_memory
FILES = {f"d{i % 7}/{i:04}": b"%d" % i * (i % 300) for i in range(400)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    with winkfs.create(tmp_path / "c") as c:
        c.put_many(FILES.items())
    with ObjectStore() as store:
        store.put_container(tmp_path / "c", "c")
        yield store


def change(store: ObjectStore, at: int, new: bytes) -> None:
    data = store.objects["c.data"][0]
    store.put("c.data", data[:at] + new + data[at + len(new) :])


@pytest.mark.parametrize("name", ["c", "c.data"])
def test_it_copies_what_is_there_and_reads_it_once(
    store: ObjectStore, tmp_path: Path, name: str
) -> None:
    done_bytes = list[int]()
    with store.counted() as asked:
        done = salvage(f"{store.url}/{name}", tmp_path / "out", progress=done_bytes.append)
    with winkfs.open(tmp_path / "out") as out:
        assert dict(out.items()) == FILES and done.problems == []
    size = store.objects["c.data"][1].size
    assert sum(request.size for request in asked) <= size + (64 << 10)
    assert sum(done_bytes) == size + sum(map(len, FILES.values()))
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.cat", "out.data", "out.idx"]


def test_damage_is_named_by_the_url(store: ObjectStore, tmp_path: Path) -> None:
    change(store, 30_000, b"\xff" * 2000)
    done = salvage(f"{store.url}/c", tmp_path / "out")
    assert done.problems and all(f"{store.url}/c.data" in line for line in done.problems)
    with winkfs.open(tmp_path / "out") as out:
        found = {name: data for name, data in out.items() if not name.startswith("lost+found")}
    assert found.items() <= FILES.items() and 0 < len(FILES) - len(found) < 20


def test_a_lost_superblock_is_that_of_the_index_beside_it(
    store: ObjectStore, tmp_path: Path
) -> None:
    change(store, 0, bytes(8192))
    done = salvage(f"{store.url}/c", tmp_path / "out")
    assert done.guessed == f"{store.url}/c.idx" and done.files == len(FILES)
    for suffix in (".idx", ".cat"):
        store.objects.pop(f"c{suffix}")
    with pytest.raises(winkfs.FormatError, match=rf"^{store.url}/c.data: its superblock is lost"):
        salvage(f"{store.url}/c", tmp_path / "out2")
    assert not list(tmp_path.glob("out2*"))


def test_it_refuses_before_it_copies(store: ObjectStore, tmp_path: Path) -> None:
    wrong = {
        f"{store.url}/out": (winkfs.ReadOnly, "can only be read"),
        tmp_path / "c": (FileExistsError, "exists already"),
        tmp_path / "none/out": (FileNotFoundError, "no such directory"),
    }
    for out, (kind, line) in wrong.items():
        with store.counted() as asked, pytest.raises(kind, match=line):
            salvage(f"{store.url}/c", out)
        assert sum(request.what == "get" for request in asked) <= 1
    with pytest.raises(FileNotFoundError, match=f"{store.url}/none: no such file"):
        salvage(f"{store.url}/none", tmp_path / "out")


def test_a_replaced_object_leaves_nothing(store: ObjectStore, tmp_path: Path) -> None:
    def replace(key: str) -> None:
        if sum(request.what == "get" for request in store.requests) == 1:
            store.put("c.data", b"another")

    store.failing = replace
    with pytest.raises(winkfs.StalePlan, match="was replaced"):
        salvage(f"{store.url}/c", tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


# --- progress ---

CODE = """
import sys, winkfs.cli._common
winkfs.cli._common.PATIENCE = 0
from winkfs.__main__ import main
sys.exit(main())
"""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "words",
    [["backup", "URL", "out"], ["salvage", "URL", "out"], ["cache", "prefetch", "URL", "d1/*"]],
    ids=lambda words: words[0],
)  # fmt: skip
def test_progress_on_a_terminal(store: ObjectStore, tmp_path: Path, words: list[str]) -> None:
    pytest.importorskip("urllib3")
    with web_server(store) as url:
        words = [word.replace("URL", f"{url}/c") for word in words]
        shown = on_a_terminal("stderr", sys.executable, "-c", CODE, *words, cwd=tmp_path).decode()
    assert re.search(r"[\d.]+/[\d.]+ (kB|bytes|MB)", shown), shown


def test_the_progress_of_a_data_set_has_its_bytes(tmp_path: Path) -> None:
    with winkfs.dataset.create(tmp_path / "set") as made:
        made.put_many(FILES.items())
    command = [sys.executable, "-c", CODE, "verify", "set"]
    shown = on_a_terminal("stderr", *command, cwd=tmp_path).decode()
    assert re.search(r"[\d.]+/[\d.]+ (kB|bytes|MB)", shown), shown


def test_there_is_none_without_a_terminal(store: ObjectStore) -> None:
    done = invoke("verify", f"{store.url}/c")
    assert done.exit_code == 0 and done.stderr == ""
