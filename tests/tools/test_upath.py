"""UPath of universal_pathlib: paths in a store."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path
from typing import Any

import pytest
import stored
from tables import ROWS, tables_in

import winkfs

pytest.importorskip("upath")
pytest.importorskip("fsspec")
from upath import UPath

pytestmark = [pytest.mark.in_memory, pytest.mark.slow]


@pytest.fixture(params=["container", "data set"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    pytest.importorskip("pyarrow")
    return tables_in(tmp_path / "tables", request.param)


@pytest.fixture
def root(base: Path) -> Any:
    return UPath("wink://", fo=str(base))


def test_it_is_known_by_its_entry_point(root: Any) -> None:
    from winkfs.fsspec.upath import WinkUPath

    assert type(root) is WinkUPath and isinstance(root.fs, winkfs.fsspec.WinkFileSystem)


@pytest.mark.parametrize("form", ["{}", "file://{}", "local://{}"])
def test_a_url_leads_into_a_store(base: Path, form: str) -> None:
    path = UPath(f"wink://csv/a.csv::{form.format(base)}")
    assert path.read_text().startswith("x,y\n0,a\n")
    assert sorted(each.name for each in path.parent.iterdir()) == ["a.csv", "b.csv"]
    assert path.with_name("b.csv").read_bytes() == (path.parent / "b.csv").read_bytes()


def test_paths_are_read(root: Any) -> None:
    path = root / "csv" / "a.csv"
    assert path.exists() and path.is_file() and path.parent.is_dir() and root.is_dir()
    assert (path.name, path.stem, path.suffix, path.parent.name) == ("a.csv", "a", ".csv", "csv")
    assert path.stat().st_size == len(path.read_bytes())
    with path.open("rt") as file:
        assert file.readline() == "x,y\n"
    assert str(path) == "wink://csv/a.csv" and path.relative_to(root / "csv").as_posix() == "a.csv"


def test_directories_are_listed(root: Any) -> None:
    assert sorted(each.name for each in root.iterdir()) == ["csv", "json", "pq", "text"]
    assert sorted(str(each) for each in root.glob("*/a.*")) == [
        f"wink://{name}" for name in ("csv/a.csv", "json/a.json", "pq/a.parquet", "text/a.txt")
    ]
    assert sorted(each.name for each in root.glob("**/*.csv")) == ["a.csv", "b.csv"]
    assert sorted(each.name for each in root.rglob("*.parquet")) == ["a.parquet", "b.parquet"]
    found = {str(directory): files for directory, _, files in root.walk()}
    assert found["wink://text"] == ["a.txt", "b.txt"]


def test_what_is_missing_is_refused_as_by_pathlib(root: Any) -> None:
    missing = root / "none"
    assert not missing.exists() and not (root / "csv/a.csv/x").exists()
    with pytest.raises(FileNotFoundError):
        missing.read_bytes()
    with pytest.raises(FileNotFoundError):
        missing.stat()
    with pytest.raises(IsADirectoryError):
        (root / "csv").read_bytes()
    with pytest.raises(NotADirectoryError):
        list((root / "csv/a.csv").iterdir())
    with pytest.raises(OSError, match="opened for reading"):
        missing.write_text("x")
    with pytest.raises(FileNotFoundError):
        list(UPath("wink://", fo="none").iterdir())
    with pytest.raises(ValueError, match="needs the path of a store"):
        UPath("wink://a").read_text()


def test_paths_are_written(base: Path) -> None:
    root = UPath("wink://", fo=str(base), mode="a")
    path = root / "new" / "a.txt"
    path.write_text("one")
    with (root / "new/b.bin").open("wb") as file:
        file.write(b"\0")
    (root / "empty").mkdir()
    with pytest.raises(FileExistsError):
        (root / "empty").mkdir()
    assert path.rename(path.with_name("c.txt")).read_text() == "one"
    (root / "text/a.txt").unlink()
    with pytest.raises(FileNotFoundError):
        (root / "text/a.txt").unlink()
    assert sorted(each.name for each in (root / "new").iterdir()) == ["b.bin", "c.txt"]
    root.fs.close()
    found = stored.names(base)
    assert {"new/b.bin", "new/c.txt", "empty"} < {*found} and "text/a.txt" not in found
    assert stored.read(base, "new/c.txt") == b"one"


def test_paths_of_one_writer_share_it(base: Path) -> None:
    """Each with a filesystem of its own, a container would refuse the second one."""
    root = UPath("wink://", fo=str(base), mode="a")
    children = [root / "a", root.joinpath("b"), (root / "x" / "y").with_name("c")]
    for child in children:
        child.write_bytes(b"1")
    assert {id(child.fs) for child in children} == {id(root.fs)} == {id(children[2].parent.fs)}
    assert root.is_dir()
    root.fs.close()
    if base.is_dir():
        return  # a data set has any number of writers
    other = UPath("wink://", fo=str(base), mode="a")
    other.fs.close()


@pytest.mark.slow
def test_a_writer_that_is_no_longer_used_is_closed(base: Path) -> None:
    UPath("wink://one", fo=str(base), mode="a").write_bytes(b"1")
    gc.collect()
    UPath("wink://two", fo=str(base), mode="a").write_bytes(b"2")
    assert (UPath("wink://", fo=str(base)) / "one").read_bytes() == b"1"


def test_copies_to_and_from_files(base: Path, tmp_path: Path) -> None:
    root = UPath("wink://", fo=str(base), mode="a")
    local = UPath(tmp_path / "a.csv")
    (root / "csv/a.csv").copy(local)
    assert len(local.read_text().splitlines()) == 1 + len(ROWS[:5])
    local.copy(root / "copy.csv")
    root.fs.close()
    assert stored.read(base, "copy.csv") == local.read_bytes()


def test_paths_are_values(root: Any, base: Path) -> None:
    path = root / "csv/a.csv"
    same = UPath("wink://csv/a.csv", fo=str(base))
    assert path == same and hash(path) == hash(same) and path != root
    loaded = pickle.loads(pickle.dumps(path))
    assert loaded == path and loaded.read_bytes() == path.read_bytes()


def test_a_state_and_a_condition(tmp_path: Path) -> None:
    with winkfs.dataset.create(tmp_path / "set") as made:
        made.put("a", b"old")
    stored.change(tmp_path / "set", {"a": b"newer", "b": b""})
    options = {"fo": str(tmp_path / "set")}
    assert UPath("wink://a", **options).read_bytes() == b"newer"
    assert UPath("wink://a", as_of=1, **options).read_bytes() == b"old"
    root = UPath("wink://", where="size > 0", **options)
    assert [each.name for each in root.iterdir()] == ["a"]
