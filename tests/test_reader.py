"""What the read API gives of every kind of store: names as paths, Path names, c[name]."""

from __future__ import annotations

import errno
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import data_sets
import pytest

import winkfs
import winkfs.dataset

FILES = {"a": b"1", "docs/b": b"22", "docs/old/c": b"333", "docs/old/d": b"", "éü": b"4"}


@pytest.fixture(params=["container", "writer", "data set"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[winkfs.Container]:
    if request.param == "data set":
        data_sets.put(tmp_path / "c", FILES)
    else:
        with winkfs.create(tmp_path / "c") as made:
            made.put_many(FILES.items())
            made.mkdir("empty")
    with winkfs.open(tmp_path / "c", "a" if request.param == "writer" else "r") as opened:
        yield opened


def test_a_name_may_be_a_path(store: winkfs.Container) -> None:
    name = Path("docs") / "b"
    assert store.read(name) == b"22"
    assert store.stat(name).size == 2
    assert name in store
    assert store.open_file(name).read() == b"22"
    assert list(store.get_many([name, "a", b"a"])) == [b"22", b"1", b"1"]


def test_a_path_writes_too(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as made:
        made.put(Path("x/y"), b"1")
        made.put_many([(Path("x/z"), b"2")])
        made.append(Path("x/y"), b"3")
        made.rename(Path("x/y"), Path("x/w"))
        assert sorted(made) == ["x/w", "x/z"]
        assert made["x/w"] == b"13"


def test_brackets_read_and_a_missing_file_is_a_key_error(store: winkfs.Container) -> None:
    assert store["docs/old/c"] == b"333"
    with pytest.raises(winkfs.WinkError, match="docs/x"):
        store["docs/x"]
    with pytest.raises(KeyError, match="docs/x"):
        store["docs/x"]


def test_exists_knows_files_and_directories(store: winkfs.Container) -> None:
    for path in ("a", "docs/b", "docs", "docs/", b"docs/old", Path("docs/old"), "", "éü"):
        assert store.exists(path), path
    for path in ("b", "doc", "docs/o", "docs/b/x"):
        assert not store.exists(path), path


def test_listdir_lists_a_directory(store: winkfs.Container) -> None:
    empty = [name for name in store.listdir() if name == "empty"]
    assert store.listdir() == sorted(["a", "docs", "éü", *empty])
    assert store.listdir("docs") == store.listdir("docs/") == ["b", "old"]
    assert store.listdir(Path("docs/old")) == ["c", "d"]
    assert [store.listdir(name) for name in empty] == [[]] * len(empty)
    with pytest.raises(FileNotFoundError):
        store.listdir("none")
    with pytest.raises(NotADirectoryError, match="a: not a directory") as caught:
        store.listdir("a")
    assert isinstance(caught.value, winkfs.Refusal)


def test_walk_goes_through_all(store: winkfs.Container) -> None:
    found = {
        f"{directory}/{name}" if directory else name
        for directory, _, files in store.walk()
        for name in files
    }
    assert found == set(FILES)
    assert list(store.walk("docs")) == [("docs", ["old"], ["b"]), ("docs/old", [], ["c", "d"])]


def test_every_error_is_a_wink_error(tmp_path: Path) -> None:
    with pytest.raises(winkfs.WinkError) as refused:
        winkfs.open(tmp_path / "none")
    assert isinstance(refused.value, FileNotFoundError)
    assert refused.value.errno == errno.ENOENT
    again = pickle.loads(pickle.dumps(refused.value))
    assert (again.errno, str(again)) == (refused.value.errno, str(refused.value))
    for kind in (winkfs.CorruptError, winkfs.FormatError):
        assert issubclass(kind, winkfs.WinkError) and issubclass(kind, ValueError)
        assert not issubclass(kind, OSError)  # whoever catches those means the disk


def test_dir_of_a_package_shows_its_public_names() -> None:
    code = "import winkfs, winkfs.dataset; print(*dir(winkfs), '|', *dir(winkfs.dataset))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, of_dataset = done.stdout.split("|")
    shown = {name for name in names.split() if not name.startswith("__")}
    assert {"open", "create", "pack", "Container", "WinkError", "backup"} <= shown
    assert shown == set(winkfs.__all__)
    assert {"Dataset", "create", "open"} <= set(of_dataset.split())
