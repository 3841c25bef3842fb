"""WinkPath beside pathlib on the same files, unpacked."""

from __future__ import annotations

import importlib.resources
import os
import pickle
import stat
from collections.abc import Callable, Iterator
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from drawn import examples
from folders import in_memory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import winkfs
import winkfs.dataset
from winkfs import WinkPath
from winkfs.archive.unpack import unpack
from winkfs.stores.ledgerq import Queue

FILES = {
    "a.txt": b"gr\xc3\xb6\xc3\x9fe\r\n", "docs/b.txt": b"22", "docs/old/c.tar.gz": b"333",
    "docs/old/.hidden": b"", "docs-x/[1].txt": b"4", "img/a.png": b"5", "img/deep/er/a.txt": b"6",
    "docs.txt": b"7",
}  # fmt: skip


def fill(store: Any) -> None:
    store.put_many((name, data, 1_700_000_000.25) for name, data in FILES.items())
    store.mkdir("empty")
    store.symlink("docs/b.txt", "link")
    store.symlink("../docs", "img/up")
    store.symlink("nothing", "broken")
    store.symlink("loop", "loop")
    store.symlink("../../outside", "img/out")


STORES = ["container", "container as written", "data set", "data set as written"]


@pytest.fixture(scope="module", params=STORES)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    base, kind = tmp_path_factory.mktemp("store") / "c", request.param
    with winkfs.create(base) if kind[0] == "c" else winkfs.dataset.create(base) as made:
        fill(made)
        if "written" in kind:
            yield made
            return
    with winkfs.open(base) as opened:
        yield opened


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same files on the disk."""
    folder = tmp_path_factory.mktemp("twin")
    with winkfs.create(folder / "twin") as twin:
        fill(twin)
    unpack(str(folder / "twin"), str(folder / "disk"))
    return folder / "disk"


PATHS = ["", "a.txt", "docs", "docs/b.txt", "docs/old", "docs/old/c.tar.gz", "empty", "link",
         "img/up", "img/up/b.txt", "img/up/old/.hidden", "broken", "loop", "nothing", "do",
         "docs/nothing", "a.txt/x", "img/deep/er", "docs/./b.txt", "docs//old/"]  # fmt: skip


@pytest.mark.parametrize("name", PATHS)
def test_the_path_itself_is_as_that_of_pathlib(name: str, store: Any) -> None:
    ours, theirs = store / name, PurePosixPath(name)
    for what in ("name", "stem", "suffix", "suffixes", "parts"):
        assert getattr(ours, what) == getattr(theirs, what), what
    assert str(ours) == str(theirs) == ours.as_posix()
    assert [str(parent) for parent in ours.parents] == [str(each) for each in theirs.parents]
    assert str(ours.parent) == str(theirs.parent)
    assert str(ours / "x" / "y") == str(theirs / "x" / "y") == str(ours.joinpath("x", "y"))
    assert ours.match("*.txt") == theirs.match("*.txt")
    if ours.name:
        assert str(ours.with_name("n.x")) == str(theirs.with_name("n.x"))
        assert str(ours.with_stem("n")) == str(theirs.with_stem("n"))
        assert str(ours.with_suffix(".y")) == str(theirs.with_suffix(".y"))
        assert ours.relative_to(ours.parent) == theirs.relative_to(theirs.parent)
    assert ours == store / name and hash(ours) == hash(store / name)
    assert ours != theirs and ours != name


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("name", PATHS)
def test_what_is_there_is_as_on_the_disk(name: str, store: Any, disk: Path) -> None:
    ours, theirs = store / name, disk / name
    for what in ("exists", "is_file", "is_dir", "is_symlink"):
        try:
            expected = getattr(theirs, what)()
        except OSError:  # Python 3.11 raises for a loop
            expected = False
        assert getattr(ours, what)() is expected, what
    for what in ("read_bytes", "iterdir", "stat", "lstat", "readlink"):
        assert outcome(ours, what) == outcome(theirs, what), what


def outcome(path: Any, what: str) -> Any:
    try:
        found = getattr(path, what)()
        if what == "iterdir":
            return sorted(each.name for each in found)
        if what in ("stat", "lstat"):
            kind = stat.S_IFMT(found.st_mode)
            if kind == stat.S_IFDIR:
                return kind
            return kind, found.st_size, kind == stat.S_IFREG and (found.st_mtime, found.st_mtime_ns)
        return str(found) if what == "readlink" else found
    except OSError as error:
        return error.errno


PATTERNS = [
    "*", "*.txt", "**/*.txt", "docs/*", "docs/**/*", "**/a.*", "*/a.*", "do*", "docs/old/c.*",
    "**/[ac].t*", "docs-x/[[]1*", "[!a]*", "?.txt", "docs-x/[[]1[]].txt", "img/*/*/a.txt",
    "docs/b.txt", "nothing/*", "empty/*", "**/old/*", "**/.h*", "a.txt/*", "img/**/er/*",
]  # fmt: skip


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
def test_glob_finds_what_pathlib_finds(pattern: str, store: Any, disk: Path) -> None:
    def names(found: Any, top: Any) -> list[str]:
        paths = {str(path.relative_to(top)) for path in found}
        return sorted(paths - {"loop", "img/out"})  # not unpacked, or not listed by Python 3.11

    assert names((store / "").glob(pattern), store / "") == names(disk.glob(pattern), disk)
    assert names((store / "").rglob(pattern), store / "") == names(disk.rglob(pattern), disk)
    assert names((store / "img").glob(pattern), store / "") == names(
        (disk / "img").glob(pattern), disk
    )


def test_two_stars_at_the_end_are_all_that_is_below(store: Any) -> None:
    assert [str(path) for path in (store / "docs").glob("**")] == [
        "docs", "docs/b.txt", "docs/old", "docs/old/.hidden", "docs/old/c.tar.gz",
    ]  # fmt: skip
    assert [str(path) for path in (store / "docs").glob("**/")] == ["docs", "docs/old"]
    assert [str(path) for path in (store / "").glob("*/")] == ["docs", "docs-x", "empty", "img"]


TREE = st.lists(
    st.lists(st.sampled_from(["a", "ab", "a-", "b.x", ".c", "[d]"]), min_size=1, max_size=4),
    max_size=8,
)
PATTERN = st.lists(
    st.sampled_from(["*", "**", "a*", "?", "[!a]*", "*.x", "ab", "[[]d]", ".*"]),
    min_size=1, max_size=4,
)  # fmt: skip


@settings(max_examples=examples(60), deadline=None, derandomize=True, database=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(tree=TREE, pattern=PATTERN)
def test_random_trees_and_patterns_agree(tree: list[list[str]], pattern: list[str]) -> None:
    if pattern[-1] == "**":  # before Python 3.13 those were directories only
        pattern.append("*")
    with in_memory() as folder:
        disk = folder / "tree"
        disk.mkdir()
        with winkfs.create(folder / "c") as c:
            for parts in tree:
                path = disk.joinpath(*parts)
                if path.exists() or any(parent.is_file() for parent in path.parents):
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"x")
                c["/".join(parts)] = b"x"
        text = "/".join(pattern)
        theirs = {str(path.relative_to(disk)) for path in disk.glob(text)}
        with winkfs.open(folder / "c") as c:
            ours = [str(path) for path in (c / "").glob(text)]
            assert set(ours) == theirs and len(ours) == len(theirs), text
            for path in disk.rglob("*"):
                same = c / str(path.relative_to(disk))
                assert (same.is_file(), same.is_dir()) == (path.is_file(), path.is_dir())


@pytest.mark.parametrize("pattern, error", [("", ValueError), (5, TypeError), ("../x", ValueError),
                                            ("/a", NotImplementedError)])  # fmt: skip
def test_a_wrong_pattern_is_refused_in_one_line(
    pattern: str, error: type[Exception], store: Any
) -> None:
    for find in ((store / "").glob, (store / "").rglob):
        if pattern or find == (store / "").glob:
            with pytest.raises(error):
                find(pattern)


def test_walk_is_as_that_of_the_store(store: Any) -> None:
    found = {str(path): (dirs, files) for path, dirs, files in (store / "docs").walk()}
    assert found == {"docs": (["old"], ["b.txt"]), "docs/old": ([], [".hidden", "c.tar.gz"])}


def test_paths_are_sorted_as_those_of_pathlib(store: Any) -> None:
    names = ["docs-x", "docs/b", "docs", "a", "docs.txt"]
    ours = sorted(store / name for name in names)
    assert [str(path) for path in ours] == [str(each) for each in sorted(map(PurePosixPath, names))]
    assert store / "a" < store / "b" and store / "a" <= store / "a" and store / "b" >= store / "a"
    with pytest.raises(TypeError):
        _ = (store / "a") < "b"


def test_it_is_no_path_of_the_system(store: Any) -> None:
    for use in (os.fspath, open, os.path.join, store.read):
        with pytest.raises(TypeError, match="no path of the operating system: use its open"):
            use(store / "a.txt")  # type: ignore[operator]


def test_a_path_with_two_dots_or_nul_is_refused(store: Any) -> None:
    for part in ("..", "docs/../a.txt", "a\0b"):
        with pytest.raises(ValueError):
            store / part
    with pytest.raises(TypeError):
        store / 5
    with pytest.raises(TypeError, match="a path is in a store"):
        WinkPath("docs")
    assert str(store / "docs" / "/a.txt") == "a.txt"
    assert str(store / "docs" / PurePosixPath("x")) == "docs/x"


def test_it_is_a_traversable(store: Any) -> None:
    path = store / "docs"
    assert isinstance(path, Traversable)
    with importlib.resources.as_file(path / "b.txt") as real:
        assert real.read_bytes() == b"22"


def test_a_path_is_read_as_text_and_bytes(store: Any) -> None:
    path = store / "a.txt"
    assert path.read_text() == "größe\n" and path.read_text(newline="") == "größe\r\n"
    with path.open() as text, path.open("rb") as binary:
        assert text.read() == "größe\n" and binary.read() == FILES["a.txt"]
    with (store / "link").open("rb") as file:
        assert file.read() == b"22"
    wrong = {"docs": IsADirectoryError, "empty": IsADirectoryError, "nothing": FileNotFoundError,
             "img/out": FileNotFoundError}  # fmt: skip
    for name, error in wrong.items():
        for read in ((store / name).read_bytes, (store / name).open):
            with pytest.raises(error):
                read()
    with pytest.raises(OSError, match="too many symbolic links"):
        (store / "loop").read_bytes()


# --- changes ---


@pytest.fixture(params=["container", "data set"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    base = tmp_path / "c"
    with winkfs.create(base) if request.param == "container" else winkfs.dataset.create(base) as w:
        yield w


def both(writer: Any, disk: Path, change: Callable[[Any], Any]) -> tuple[Any, Any]:
    found: list[Any] = []
    for top in (writer / "", disk):
        try:
            found.append(change(top))
        except OSError as error:
            found.append({PermissionError: IsADirectoryError}.get(type(error)) or error.errno)
        if isinstance(found[-1], type | Path | WinkPath):
            found[-1] = "done"
    return found[0], found[1]


CHANGES: list[Callable[[Any], Any]] = [
    lambda top: (top / "a").write_bytes(b"123"),
    lambda top: (top / "d").mkdir(),
    lambda top: (top / "d" / "b").write_text("größe\n"),
    lambda top: (top / "d" / "b").write_text("x\n", encoding="latin-1", newline="\r\n"),
    lambda top: (top / "d").mkdir(),
    lambda top: (top / "d").mkdir(exist_ok=True),
    lambda top: (top / "a").mkdir(exist_ok=True),
    lambda top: (top / "e" / "f").mkdir(parents=True),
    lambda top: (top / "d").write_bytes(b"1"),
    lambda top: (top / "a" / "x").write_bytes(b"1"),
    lambda top: (top / "t").touch(),
    lambda top: (top / "t").touch(exist_ok=False),
    lambda top: (top / "t").unlink(),
    lambda top: (top / "t").unlink(),
    lambda top: (top / "t").unlink(missing_ok=True),
    lambda top: (top / "d").rmdir(),
    lambda top: (top / "a").rmdir(),
    lambda top: (top / "e" / "f").rmdir(),
    lambda top: (top / "a").rename(top / "a2"),
    lambda top: (top / "a").rename(top / "a3"),
    lambda top: (top / "a2").rename(top / "d" / "b"),
    lambda top: (top / "d").rename(top / "g"),
    lambda top: (top / "g").rename(top / "g" / "h"),
    lambda top: (top / "x").open("xb").close(),
    lambda top: (top / "x").open("x"),
    lambda top: (top / "x").rename(top / "g"),
]


@pytest.mark.slow
def test_changes_are_as_those_of_pathlib(writer: Any, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    for number, change in enumerate(CHANGES):
        ours, theirs = both(writer, disk, change)
        assert ours == theirs, number
        found = {
            str(path): path.read_bytes() for path in (writer / "").rglob("*") if path.is_file()
        }
        on_disk = {path.relative_to(disk).as_posix(): path.read_bytes()
                   for path in disk.rglob("*") if path.is_file()}  # fmt: skip
        assert found == on_disk, number


def test_a_touched_file_has_the_time_of_now(writer: Any) -> None:
    writer.put("a", b"1", mtime=5)
    if isinstance(writer, winkfs.Container):
        (writer / "a").touch()
        assert (writer / "a").stat().st_mtime > 1e9
    else:
        with pytest.raises(PermissionError, match="whole files only"):
            (writer / "a").touch()


def test_a_reader_refuses_changes(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c["a"] = b"1"
    with winkfs.open(tmp_path / "c") as reader:
        path = reader / "a"
        for change in (
            lambda: path.write_bytes(b"2"), lambda: path.write_text("2"), path.unlink, path.touch,
            lambda: path.rename("b"), (reader / "d").mkdir, lambda: path.open("wb"),
        ):  # fmt: skip
            with pytest.raises(winkfs.ReadOnly):
                change()
    with Queue(tmp_path / "q", "a", make=True) as queue:
        queue.push(b"1")
    with winkfs.open(tmp_path / "q") as records:
        assert [path.read_bytes() for path in (records / "").iterdir()] == [b"1"]
        with pytest.raises(OSError, match="cannot be changed by name"):
            (records / "1").unlink()


def test_the_top_stays_and_content_is_bytes(writer: Any) -> None:
    writer["a"] = b"1"
    top = writer / ""
    for change in (lambda: top.rename("x"), top.unlink, top.rmdir, lambda: top.write_bytes(b"")):
        with pytest.raises(OSError):
            change()
    for wrong in (5, "text", None):
        with pytest.raises(TypeError, match="content is bytes, not"):
            (top / "b").write_bytes(wrong)
    assert (top / "a").write_bytes(memoryview(b"1234")[::2]) == 2
    assert dict(writer) == {"a": b"13"}


def test_a_directory_of_many_is_moved_as_one(writer: Any) -> None:
    writer.update({f"d/{i}/x": b"%d" % i for i in range(20)} | {"d-": b"", "other": b""})
    assert (writer / "d").rename("new/place") == writer / "new/place"
    assert dict(writer) == {f"new/place/{i}/x": b"%d" % i for i in range(20)} | {
        "d-": b"", "other": b""}  # fmt: skip
    with pytest.raises(FileExistsError, match="not empty"):
        writer["e/a"] = b""
        (writer / "new").rename("e")


# --- names that are no paths ---


def test_odd_names_have_the_path_of_a_mount(writer: Any) -> None:
    odd = {"http://a.org/": b"1", "x/../y": b"2", "docs": b"3", "docs/a": b"4"}
    writer.update(odd)
    assert {path.stored_name: path.read_bytes() for path in (writer / "").rglob("*")
            if path.is_file()} == odd  # fmt: skip
    for name, data in odd.items():
        path = writer / winkfs.path_of(name)
        assert path.read_bytes() == data
        assert path.stored_name == name
    docs = writer / "docs"
    assert docs.is_dir() and not docs.is_file() and (docs / "@file").is_file()
    assert sorted(path.name for path in docs.iterdir()) == ["@file", "a"]
    (writer / "http:/@/b.org/@").write_bytes(b"5")
    assert writer["http://b.org/"] == b"5"


def test_a_path_is_pickled_with_its_reader(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c["a"] = b"1"
    with winkfs.open(tmp_path / "c") as reader:
        again = pickle.loads(pickle.dumps(reader / "a"))
        assert again.read_bytes() == b"1" and str(again) == "a"
        again.reader.close()


def test_a_closed_store_is_refused_in_one_line(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c["a"] = b"1"
        path = c / "a"
    assert "WinkPath(<winkfs container" in repr(path) and repr(path).endswith("'a')")
    top = path.parent
    for look in (path.read_bytes, path.exists, path.is_file, path.stat, path.unlink,
                 lambda: list(top.iterdir()), lambda: list(top.glob("*"))):  # fmt: skip
        with pytest.raises(winkfs.Closed):
            look()
