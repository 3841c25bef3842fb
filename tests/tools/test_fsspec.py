"""WinkFileSystem: a container, a data set or another store as an fsspec filesystem."""

from __future__ import annotations

import errno
import gzip
import io
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import stored
from flips import flip

import winkfs
import winkfs.dataset
from winkfs.container import select
from winkfs.container.ondisk.run import Run
from winkfs.stores.messagestore import MessageStore

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402

from winkfs.fsspec import WinkFileSystem  # noqa: E402

pytestmark = [pytest.mark.in_memory, pytest.mark.slow]
FILES = {"a.txt": b"one\ntwo\n", "t/b.csv": b"x,y\n1,2\n", "t/u/c": b"0123456789"}
COLUMNS = {"lang": "string", "score": "int64"}


@pytest.fixture
def base(tmp_path: Path) -> str:
    return str(stored.make(tmp_path / "c", FILES))


@pytest.fixture
def fs(base: str) -> Iterator[WinkFileSystem]:
    with winkfs.fs(base) as fs:
        yield fs


@pytest.fixture
def writer(base: str) -> Iterator[WinkFileSystem]:
    with winkfs.fs(base, "a") as fs:
        yield fs


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A data set of two generations."""
    for files in (FILES, {"t/b.csv": b"new"}):
        with winkfs.dataset.create(tmp_path / "set") as made:
            made.put_many(files.items())
    return str(tmp_path / "set")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many blocks each read of a catalog has."""
    found: list[int] = []
    before = Run.read

    def read(self: Run, numbers: Any) -> Any:
        found.append(len(numbers))
        return before(self, numbers)

    monkeypatch.setattr(Run, "read", read)
    return found


# --- how it is opened ---


@pytest.mark.slow
def test_the_protocol_is_known_without_an_import(base: str) -> None:
    code = f"""import fsspec, sys
assert "wink" in fsspec.available_protocols() and "winkfs" not in sys.modules
print(fsspec.open("wink://a.txt::{base}", "rt").open().readline(), end="")"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("one\n", "")


@pytest.mark.parametrize("target", ["file://{}", "{}", "local://{}", "{}.data"])
def test_a_url_leads_into_a_store_of_this_machine(base: str, target: str) -> None:
    with fsspec.open(f"wink://t/b.csv::{target.format(base)}") as file:
        assert file.read() == FILES["t/b.csv"]


def test_a_url_writes_with_an_option(base: str) -> None:
    with fsspec.open(f"wink://new/x::{base}", "wb", wink={"mode": "a"}) as file:
        file.write(b"1")
    assert stored.read(base, "new/x") == b"1"


def test_many_urls_are_opened_by_a_pattern(base: str) -> None:
    files = fsspec.open_files(f"wink://**::{base}")
    assert [file.path for file in files] == sorted(FILES)


def test_options_name_the_store(base: str) -> None:
    assert fsspec.filesystem("wink", fo=base).cat("a.txt") == FILES["a.txt"]
    fs, path = fsspec.url_to_fs(f"wink://t::file://{base}")
    assert (fs.ls(path, detail=False), fs.protocol) == (["t/b.csv", "t/u"], "wink")


def test_without_a_store_one_line_names_it() -> None:
    with pytest.raises(ValueError, match="needs the path of a store"):
        fsspec.filesystem("wink")


def test_a_missing_store_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        winkfs.fs(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"there is no store"):
        fsspec.filesystem("wink", fo="none", target_protocol="memory")


@pytest.mark.parametrize("mode", ["w", "rb", ""])
def test_another_mode_is_refused(base: str, mode: str) -> None:
    with pytest.raises(ValueError, match="mode must be 'r' or 'a'"):
        winkfs.fs(base, mode)


@pytest.mark.parametrize("which", ["base", "root"])
def test_a_store_in_memory_is_read(request: pytest.FixtureRequest, which: str) -> None:
    memory = MemoryFileSystem()
    path, suffixes = Path(request.getfixturevalue(which)), (".data", ".idx", ".cat")
    try:
        if which == "root":
            memory.put(f"{path}/", "/kept/", recursive=True)
        for suffix in suffixes if which == "base" else ():
            memory.put(f"{path}{suffix}", f"/kept{suffix}")
        with fsspec.open("wink://a.txt::memory://kept") as file:
            fs = file.fs
            assert file.read() == FILES["a.txt"]
        copy = fs.reader.base
        again = pickle.loads(pickle.dumps(fs))
        assert again.find("t") == ["t/b.csv", "t/u/c"]
        fs.close()
        assert not os.path.exists(os.path.dirname(copy))
        again.close()
        with pytest.raises(winkfs.ReadOnly, match="can only be read"):
            fsspec.filesystem("wink", fo="kept", target_protocol="memory", mode="a")
    finally:
        memory.rm("/", recursive=True)


def test_a_store_of_records_is_read(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with MessageStore(tmp_path / "m", "a", make=True) as store:
        store.write_many([(b"%016d" % n, b"%d" % n) for n in range(3)])
    with winkfs.fs(tmp_path / "m") as fs:
        assert len(fs.find("")) == 3 and fs.ls("") and fs.glob("*") == fs.find("")
        assert sorted(fs.cat(fs.find("")).values()) == [b"0", b"1", b"2"]
        assert fs.du("") == 3
    with pytest.raises(winkfs.ReadOnly):
        winkfs.fs(tmp_path / "m", "a")
    with pytest.raises(winkfs.NotAllowed, match="where"):
        winkfs.fs(tmp_path / "m", where="size > 1")


# --- metadata and listings ---


def test_info_has_what_a_store_knows(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c", columns=COLUMNS) as made:
        made.put("d/x", b"123", mtime=5.5, mode=0o640, columns={"lang": "de"})
    with winkfs.fs(tmp_path / "c") as fs:
        info = fs.info("d/x")
        assert (
            info
            == fs.ls("d")[0]
            == fs.find("", detail=True)["d/x"]
            == fs.glob("*/*", detail=True)["d/x"]
        )
        assert (info["name"], info["size"], info["type"], info["mtime"]) == ("d/x", 3, "file", 5.5)
        assert info["mode"] == 0o100640
        assert info["columns"] == {"lang": "de", "score": None}
        assert fs.modified("d/x").timestamp() == 5.5 and fs.created("d/x").tzinfo is not None
        assert fs.info("d")["type"] == fs.info("/")["type"] == "directory"


def test_a_missing_path_is_not_found(fs: WinkFileSystem) -> None:
    for call in (fs.info, fs.ls, fs.cat, fs.open, fs.size, fs.created):
        with pytest.raises(FileNotFoundError, match="none/x"):
            call("none/x")
    assert not fs.exists("none/x") and fs.find("none") == fs.glob("none/*") == []
    assert list(fs.walk("none")) == []
    with pytest.raises(FileNotFoundError):
        list(fs.walk("none", on_error="raise"))


def test_walk_is_that_of_the_base_class(tmp_path: Path) -> None:
    names = ["a", "b/c", "b/d/e/f", "b/d/g", "h/i"]
    base = stored.make(tmp_path / "c", dict.fromkeys(names, b""))
    with winkfs.fs(base) as fs:
        for path, depth, down in [
            ("", None, True),
            ("", 2, True),
            ("b", None, False),
            ("b", 1, True),
        ]:
            mine = list(fs.walk(path, maxdepth=depth, topdown=down))
            assert mine == list(super(WinkFileSystem, fs).walk(path, maxdepth=depth, topdown=down))
        pruned = []
        for path, directories, _ in fs.walk(""):
            pruned.append(path)
            directories[:] = [name for name in directories if name != "b"]
        assert pruned == ["", "h"]
        with pytest.raises(ValueError, match="maxdepth"):
            list(fs.walk("", maxdepth=0))


@pytest.mark.parametrize("withdirs", [False, True])
def test_find_is_that_of_the_base_class(tmp_path: Path, withdirs: bool) -> None:
    with winkfs.create(tmp_path / "c") as made:
        made.put_many((name, name.encode()) for name in ["a", "b/c", "b/d/e/f", "b/d/g", "bb/i"])
        made.mkdir("empty")
        made.mkdir("b/d")
    with winkfs.fs(tmp_path / "c") as fs:
        base = super(WinkFileSystem, fs)
        for path in ("", "b", "b/d", "a", "empty", "none"):
            for depth in (None, 1, 2, 3):
                found = fs.find(path, maxdepth=depth, withdirs=withdirs, detail=True)
                if path != "a":  # of a file, the base class has no metadata
                    assert found == base.find(path, maxdepth=depth, withdirs=withdirs, detail=True)
                assert list(found) == fs.find(path, maxdepth=depth, withdirs=withdirs)
                sizes = fs.du(path, total=False, maxdepth=depth, withdirs=withdirs)
                assert sizes == {name: info["size"] for name, info in found.items()}
        assert fs.find("a", detail=True) == {"a": fs.info("a")}


@pytest.mark.parametrize(
    "pattern", ["*", "**", "b/*", "b/**", "*/", "b/**/", "[ah]*", "b/d/e/f", "b/?", "b/*/*", "x*"]
)
def test_glob_is_that_of_the_base_class(tmp_path: Path, pattern: str) -> None:
    names = ["a", "b/c", "b/d/e/f", "b/d/g", "h/i", "hh"]
    base = stored.make(tmp_path / "c", dict.fromkeys(names, b""))
    with winkfs.fs(base) as fs:
        for depth in (None, 1, 2):
            assert fs.glob(pattern, maxdepth=depth) == super(WinkFileSystem, fs).glob(
                pattern, maxdepth=depth
            )


def test_odd_names_are_reached(tmp_path: Path) -> None:
    names: list[bytes] = [
        b"http://a.org/",
        b"..",
        b"/x",
        b"a",
        b"a/b",
        b"\xff\xfe",
        b"q?[1]",
        b"s::t",
    ]
    base = stored.make(tmp_path / "c", {name: name for name in names})
    with winkfs.fs(base) as fs:
        found = fs.find("")
        assert found == sorted(
            ["a/@file", *(winkfs.path_of(name) for name in names if name != b"a")]
        )
        assert {fs.cat_file(path) for path in found} == set(names)
        assert fs.ls("a", detail=False) == ["a/@file", "a/b"]
        assert fs.info("a/@file")["size"] == 1
        walked = [f"{top}/{name}".lstrip("/") for top, _, some in fs.walk("") for name in some]
        assert sorted(walked) == found


def test_paths_are_taken_in_many_forms(fs: WinkFileSystem) -> None:
    for path in (
        "t/b.csv",
        "/t/b.csv",
        "wink://t/b.csv",
        "t//b.csv",
        "./t/u/../b.csv",
        Path("t/b.csv"),
    ):
        assert fs.info(path)["name"] == "t/b.csv"


def test_wrong_paths_are_refused_in_one_line(writer: WinkFileSystem) -> None:
    assert writer.info(b"a.txt")["name"] == "a.txt"
    with pytest.raises(FileNotFoundError, match=r"^none: no such file$"):
        writer.rm("none", recursive=True)
    with pytest.raises(FileNotFoundError, match=r"^x\*: no such file$"):
        writer.cat("x*")
    with pytest.raises(IsADirectoryError, match=r"^/: is a directory$"):
        writer.pipe_file("", b"")
    for path in ("a\0b", "t/@file/@file"):
        with pytest.raises(ValueError, match="no file can have the path"):
            writer.pipe_file(path, b"")
    with pytest.raises(TypeError, match="content is bytes, not str"):
        writer.pipe_file("x", "text")
    with pytest.raises(OSError, match="may have 65000 bytes"):
        writer.pipe_file("x" * 70_000, b"")


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as made:
        made.put("d/x", b"123")
        made.symlink("d/x", "l")
        made.symlink("../d", "e/dir")
        made.symlink("gone", "broken")
        made.symlink("loop", "loop")
    with winkfs.fs(tmp_path / "c", "a") as fs:
        assert fs.cat("l") == fs.cat("e/dir/x") == fs.open("l").read() == b"123"
        assert (fs.info("l")["type"], fs.size("l"), fs.info("l")["destination"]) == (
            "file",
            3,
            "d/x",
        )
        assert fs.isdir("e/dir") and fs.ls("e/dir", detail=False) == ["e/dir/x"]
        assert fs.info("broken")["type"] == fs.info("loop")["type"] == "link"
        assert fs.find("") == ["broken", "d/x", "e/dir", "l", "loop"]
        with pytest.raises(FileNotFoundError):
            fs.cat("broken")
        with pytest.raises(OSError, match="too many symbolic links"):
            fs.cat("loop")
        fs.pipe("l", b"4567")
        assert fs.cat("d/x") == b"4567" and fs.info("l")["islink"]
        fs.rm("l")
        assert fs.exists("d/x") and not fs.exists("l")


# --- many files in few reads ---


@pytest.fixture
def sites(tmp_path: Path) -> str:
    """A container whose catalog has 30 blocks."""
    names = [f"site{n:02}/{m:04}.html" for n in range(20) for m in range(1500)]
    return str(stored.make(tmp_path / "sites", ((name, name.encode()) for name in names)))


def test_a_glob_reads_only_the_blocks_of_its_prefix(sites: str, reads: list[int]) -> None:
    with winkfs.fs(sites) as fs:
        assert len(fs.glob("site0*/**")) == 15_010
        assert 15 <= sum(reads) <= 16 and len(reads) <= 2
        del reads[:]
        assert len(fs.glob("site13/*.html")) == 1500
        assert sum(reads) <= 4 and len(reads) <= 2


@pytest.mark.slow
def test_whole_directories_take_one_pass(sites: str, reads: list[int]) -> None:
    calls: list[Callable[[WinkFileSystem], Any]] = [
        lambda fs: fs.find(""),
        lambda fs: fs.find("", detail=True, withdirs=True),
        lambda fs: list(fs.walk("")),
        lambda fs: fs.du(""),
        lambda fs: fs.glob("**/0000.html"),
        lambda fs: fs.ls(""),
    ]
    with winkfs.fs(sites) as fs:
        for call in calls:
            del reads[:]
            assert len(str(call(fs))) > 5
            assert sum(reads) <= 31 and len(reads) <= 4


def test_metadata_of_a_file_reads_no_catalog(sites: str, reads: list[int]) -> None:
    with winkfs.fs(sites) as fs:
        assert fs.info("site03/0007.html")["size"] == fs.size("site03/0007.html") == 16
        assert reads == []
        assert fs.isdir("site03") and sum(reads) == 1


def test_without_a_catalog_directories_are_read_once(
    sites: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(f"{sites}.cat").unlink()
    built = []
    before = select.build
    monkeypatch.setattr(select, "build", lambda *a, **k: built.append(1) or before(*a, **k))
    with winkfs.fs(sites) as fs:
        for _ in range(3):
            assert fs.isdir("site03") and not fs.exists("site99") and not fs.isdir("site")
        assert len(built) == 1
        stored.change(sites, {"new/x": b""})
        Path(f"{sites}.cat").unlink(missing_ok=True)
        assert fs.isdir("new")


def test_cat_reads_many_files_in_bulk(sites: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with winkfs.fs(sites) as fs:
        calls = []
        before = fs.reader.get_many

        def get_many(names: Any) -> Any:
            calls.append(len(names))
            return before(names)

        monkeypatch.setattr(fs.reader, "get_many", get_many)
        monkeypatch.setattr(fs.reader, "read", None)
        found = fs.cat("site00", recursive=True)
        assert len(found) == 1500 and found["site00/0001.html"] == b"site00/0001.html"
        assert calls == [1024, 476]


def test_one_missing_file_of_many(base: str) -> None:
    with winkfs.fs(base) as fs:
        with pytest.raises(FileNotFoundError):
            fs.cat(["a.txt", "none"])
        assert list(fs.cat(["a.txt", "none"], on_error="omit")) == ["a.txt"]
        found = fs.cat(["a.txt", "none"], on_error="return")
        assert isinstance(found["none"], FileNotFoundError)
        assert found["a.txt"] == FILES["a.txt"]


def test_ranges_of_a_file_are_one_read(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with winkfs.fs(base) as fs:
        calls = []
        before = fs.reader.read

        def read(*how: Any) -> bytes:
            calls.append(how)
            return before(*how)

        monkeypatch.setattr(fs.reader, "read", read)
        starts, ends = [0, -2, 4, 9, 3], [3, None, 6, 99, 2]
        found = fs.cat_ranges(["t/u/c"] * 5, starts, ends)
        assert found == [b"012", b"89", b"45", b"9", b""] and len(calls) == 1
    with winkfs.fs(base) as fs:
        whole = fs.cat_ranges(["a.txt", "t/u/c", "none"], None, None)
        assert whole[:2] == [FILES["a.txt"], FILES["t/u/c"]]
        assert isinstance(whole[2], FileNotFoundError)
        assert fs.cat_ranges(["a.txt", "t/u/c"], 1, 3) == [b"ne", b"12"]
        with pytest.raises(FileNotFoundError):
            fs.cat_ranges(["none"], 0, 1, on_error="raise")
        with pytest.raises(ValueError, match="1 paths, 2 starts"):
            fs.cat_ranges(["a.txt"], [0, 1], 2)
        with pytest.raises(TypeError):
            fs.cat_ranges("a.txt", 0, 1)


def test_parts_are_those_of_a_slice(fs: WinkFileSystem) -> None:
    content = FILES["t/u/c"]
    for start in (None, 0, 3, -3, 99, -99):
        for end in (None, 0, 5, -1, 99, -99):
            assert fs.cat_file("t/u/c", start, end) == content[start:end]


# --- open files ---


def test_an_open_file_is_a_file(fs: WinkFileSystem) -> None:
    with fs.open("t/u/c") as file:
        assert (file.size, file.read(3), file.tell()) == (10, b"012", 3)
        again = pickle.loads(pickle.dumps(file))
        assert again.read() == b"3456789"
        assert file.seek(-1, os.SEEK_END) == 9 and file.read() == b"9"
        assert file.info()["name"] == "t/u/c" and file.full_name == "wink://t/u/c"
    with fs.open("a.txt", "rt", newline="\n") as text:
        assert list(text) == ["one\n", "two\n"]
    assert fs.read_text("a.txt") == "one\ntwo\n"
    assert fs.read_block("a.txt", 1, 3, b"\n") == b"two\n"
    assert (fs.head("a.txt", 2), fs.tail("a.txt", 2)) == (b"on", b"o\n")


@pytest.mark.parametrize("cache", ["none", "readahead", "bytes", "block", "first", "all"])
def test_each_cache_of_fsspec_reads(fs: WinkFileSystem, cache: str) -> None:
    name = {"block": "blockcache"}.get(cache, cache)
    with fs.open("t/u/c", cache_type=name, block_size=4) as file:
        assert file.read(2) + file.read() == FILES["t/u/c"]


def test_a_directory_is_no_file(writer: WinkFileSystem) -> None:
    for call in (
        writer.cat, writer.open, lambda path: writer.open(path, "wb"),
        lambda path: writer.pipe_file(path, b""), lambda path: writer.open(path, "ab"),
    ):  # fmt: skip
        with pytest.raises(IsADirectoryError, match="t: is a directory"):
            call("t")
    with pytest.raises(NotADirectoryError, match=r"a\.txt: not a directory"):
        writer.pipe_file("a.txt/x", b"")
    with pytest.raises(ValueError, match="mode must be"):
        writer.open("a.txt", "r+b")


def test_a_file_is_appended_to(request: pytest.FixtureRequest, base: str, root: str) -> None:
    for path in (base, root):
        with winkfs.fs(path, "a") as fs:
            with fs.open("a.txt", "ab") as file:
                assert file.tell() == 8
                file.write(b"three")
            with fs.open("new", "ab") as file:
                file.write(b"1")
            with fs.open("a.txt", "at") as text:
                text.write("\n")
        assert stored.read(path, "a.txt") == b"one\ntwo\nthree\n"
        assert stored.read(path, "new") == b"1"


def test_a_file_that_is_written_is_seekable(writer: WinkFileSystem) -> None:
    with writer.open("x", "wb") as file:
        file.write(b"12345")
        file.seek(1)
        file.write(b"ab")
        assert (file.tell(), file.size, file.truncate(4)) == (3, 5, 4)
        assert (file.truncate(6), file.tell()) == (6, 3)
        assert not writer.exists("x")
    assert writer.cat("x") == b"1ab4\0\0"
    with pytest.raises(ValueError, match="closed"):
        file.write(b"")


@pytest.mark.parametrize(
    "mode, data", [("wb", b"half"), ("w", "half"), ("xb", b"half"), ("ab", b"+")]
)
@pytest.mark.parametrize("path", ["a.txt", "new"])
def test_a_block_that_fails_stores_nothing(
    writer: WinkFileSystem, path: str, mode: str, data: Any
) -> None:
    path = "new" if mode == "xb" else path
    before = writer.find(""), writer.cat("a.txt")
    with pytest.raises(RuntimeError, match="mine"), writer.open(path, mode) as file:
        file.write(data)
        raise RuntimeError("mine")
    assert (writer.find(""), writer.cat("a.txt")) == before


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("wrong", [{"encoding": "nope"}, {"newline": "x"}, {"errors": 5}])
def test_a_wrong_option_of_a_text_leaves_the_file(
    writer: WinkFileSystem, wrong: dict[str, Any], compression: str | None
) -> None:
    """Before, the file that was dropped with the error was stored, empty."""
    with pytest.raises((LookupError, ValueError, TypeError)):
        writer.open("a.txt", "w", compression=compression, **wrong)
    assert writer.cat("a.txt") == FILES["a.txt"]


def test_a_file_whose_write_failed_is_not_stored(
    writer: WinkFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a caller that goes on after the error, and closes the file."""
    full = Mock(side_effect=OSError(errno.ENOSPC, "full"))
    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "write", full)
    file = writer.open("new", "wb")
    with pytest.raises(OSError, match="full"):
        file.write(b"1")
    with pytest.raises(OSError, match="a write to it has failed"):
        file.close()
    assert not writer.exists("new")


@pytest.mark.parametrize("mode, data", [("wb", b"1"), ("w", "1")])
def test_a_file_that_was_not_closed_is_stored(writer: WinkFileSystem, mode: str, data: Any) -> None:
    """As a file of a disk is: fsspec's compressed files rely on it."""
    writer.open("new", mode).write(data)
    with writer.open("new.gz", mode, compression="gzip") as file:
        file.write(data)
    del file
    assert writer.cat("new") == gzip.decompress(writer.cat("new.gz")) == b"1"


def test_columns_are_written(tmp_path: Path) -> None:
    winkfs.create(tmp_path / "c", columns=COLUMNS).close()
    with winkfs.fs(tmp_path / "c", "a") as fs:
        fs.pipe_file("x", b"1", columns={"lang": "de"}, mtime=7)
        with fs.open("y", "wb", columns={"score": 3}) as file:
            file.write(b"2")
        fs.cp("x", "z")
        assert fs.info("x")["mtime"] == 7
        with pytest.raises(ValueError, match="no column 'none'"):
            fs.pipe_file("x", b"1", columns={"none": 1})
    with winkfs.fs(tmp_path / "c", where="lang = 'de'") as fs:
        assert fs.find("") == ["x", "z"]
        assert fs.info("z")["columns"] == {"lang": "de", "score": None}


# --- changes ---


def test_a_reader_refuses_to_write_in_one_line(fs: WinkFileSystem) -> None:
    for call in (
        lambda: fs.pipe("x", b""), lambda: fs.open("x", "wb"), lambda: fs.rm("a.txt"),
        lambda: fs.mkdir("d"), lambda: fs.mv("a.txt", "b"), lambda: fs.transaction.start(),
    ):  # fmt: skip
        with pytest.raises(winkfs.ReadOnly, match="open it with mode='a'") as caught:
            call()
        assert "\n" not in str(caught.value)


def test_each_call_is_seen_by_others(writer: WinkFileSystem, base: str) -> None:
    with winkfs.fs(base) as reader:
        writer.pipe("x", b"1")
        assert reader.cat("x") == b"1"
        with writer.open("y", "wb") as file:
            file.write(b"2")
        writer.mv("x", "d/x")
        assert reader.find("") == ["a.txt", "d/x", "t/b.csv", "t/u/c", "y"]
        writer.rm("t", recursive=True)
        assert reader.find("") == ["a.txt", "d/x", "y"]


def test_a_call_is_one_generation(root: str, tmp_path: Path) -> None:
    (tmp_path / "from" / "sub").mkdir(parents=True)
    for n in range(5):
        (tmp_path / "from" / "sub" / f"{n}").write_bytes(b"%d" % n)
    with winkfs.fs(root, "a") as fs:
        before = fs.reader.generation
        fs.put(str(tmp_path / "from"), "to", recursive=True)
        fs.pipe({f"p/{n}": b"" for n in range(5)})
        fs.cp("to", "copy", recursive=True)
        fs.mv("copy", "moved", recursive=True)
        fs.rm("p", recursive=True)
        assert fs.reader.generation == before + 5
        assert fs.find("moved") == [f"moved/sub/{n}" for n in range(5)]
        assert fs.cat("moved/sub/3") == b"3" and not fs.exists("copy") and not fs.exists("p")


@pytest.mark.parametrize("which", ["base", "root"])
def test_a_transaction_is_kept_or_dropped(request: pytest.FixtureRequest, which: str) -> None:
    path = request.getfixturevalue(which)
    with winkfs.fs(path, "a") as fs:
        with pytest.raises(ZeroDivisionError), fs.transaction:
            fs.pipe("dropped/x", b"1")
            fs.rm("a.txt")
            assert fs.exists("dropped") and not fs.exists("a.txt")
            1 / 0  # noqa: B018
        assert fs.cat("a.txt") == FILES["a.txt"] and not fs.exists("dropped")
        before = getattr(fs.reader, "generation", 0)
        with fs.transaction:
            fs.pipe("kept/x", b"1")
            file = fs.open("kept/y", "wb")  # closed by the end of the transaction
            file.write(b"2")
            fs.mkdir("empty")
            assert fs.ls("kept", detail=False) == ["kept/x"]
            assert stored.names(path) == sorted(FILES)
        assert file.closed and fs.find("kept") == ["kept/x", "kept/y"] and fs.isdir("empty")
        assert getattr(fs.reader, "generation", 0) == before + (which == "root")
        fs.pipe("after", b"")
    assert stored.names(path) == sorted([*FILES, "kept/x", "kept/y", "empty", "after"])


def test_what_a_transaction_left_open_is_dropped(base: str) -> None:
    fs = winkfs.fs(base, "a")
    with pytest.raises(ZeroDivisionError), fs.transaction:
        file = fs.open("x", "wb")
        file.write(b"1")
        1 / 0  # noqa: B018
    assert file.closed and not fs.exists("x")
    fs.close()


def test_directories_are_made_and_removed(writer: WinkFileSystem) -> None:
    writer.mkdir("d/e")
    assert writer.isdir("d") and writer.ls("d", detail=False) == ["d/e"]
    with pytest.raises(FileExistsError):
        writer.mkdir("d/e")
    with pytest.raises(FileExistsError):
        writer.makedirs("d/e")
    writer.makedirs("d/e", exist_ok=True)
    with pytest.raises(FileNotFoundError):
        writer.mkdir("n/o", create_parents=False)
    with pytest.raises(OSError, match="not empty"):
        writer.rmdir("d")
    with pytest.raises(OSError, match="not empty"):
        writer.rm("t")
    writer.rmdir("d/e")
    writer.rmdir("d")
    with pytest.raises(FileNotFoundError):
        writer.rmdir("d")
    with pytest.raises(NotADirectoryError):
        writer.rmdir("a.txt")
    with pytest.raises(PermissionError):
        writer.rmdir("")
    assert writer.ls("", detail=False) == ["a.txt", "t"]


def test_files_are_moved_and_touched(writer: WinkFileSystem) -> None:
    writer.mv("a.txt", "t/")
    assert writer.find("") == ["t/a.txt", "t/b.csv", "t/u/c"]
    with pytest.raises(IsADirectoryError, match="recursive=True"):
        writer.mv("t", "v")
    writer.mv("t", "v", recursive=True)
    assert writer.find("") == ["v/a.txt", "v/b.csv", "v/u/c"] and not writer.exists("t")
    with pytest.raises(OSError, match="into itself"):
        writer.mv("v", "v/w", recursive=True)
    with pytest.raises(FileNotFoundError):
        writer.mv("none", "x")
    writer.touch("v/a.txt", truncate=False)
    assert writer.cat("v/a.txt") == FILES["a.txt"]
    writer.touch("v/a.txt")
    assert writer.size("v/a.txt") == 0
    with pytest.raises(FileNotFoundError):
        writer.rm("none")
    with pytest.raises(NotImplementedError, match="no signed URL"):
        writer.sign("v/a.txt")


# --- handles, processes, threads ---


def test_a_reader_stays_at_its_generation(root: str) -> None:
    fs = fsspec.filesystem("wink", fo=root)
    assert fs.cat("t/b.csv") == b"new"
    assert fsspec.filesystem("wink", fo=root) is fs
    stored.change(root, {"t/b.csv": b"newer"})
    again = fsspec.filesystem("wink", fo=root)
    assert again is not fs and again.cat("t/b.csv") == b"newer"
    assert fs.cat("t/b.csv") == pickle.loads(pickle.dumps(fs)).cat("t/b.csv") == b"new"
    assert fsspec.filesystem("wink", fo=root, as_of=1).cat("t/b.csv") == FILES["t/b.csv"]
    with fsspec.open(f"wink://t/b.csv::{root}", as_of=1) as file:
        assert file.read() == FILES["t/b.csv"]
    assert fsspec.AbstractFileSystem.from_json(fs.to_json()).cat("t/b.csv") == b"new"
    WinkFileSystem.clear_instance_cache()


def test_as_of_is_refused_in_one_line(base: str, root: str) -> None:
    with pytest.raises(ValueError, match="as_of is for data sets"):
        winkfs.fs(base, as_of=1)
    with pytest.raises(ValueError, match="as_of is for reading"):
        winkfs.fs(root, "a", as_of=1)
    with pytest.raises(ValueError, match="where is for reading"):
        winkfs.fs(root, "a", where="size > 1")
    with pytest.raises(ValueError, match="none"):
        winkfs.fs(base, where="none = 1")


@pytest.mark.parametrize("which", ["base", "root"])
def test_a_condition_hides_all_other_files(request: pytest.FixtureRequest, which: str) -> None:
    with winkfs.fs(request.getfixturevalue(which), where="size >= 8") as fs:
        expected = [name for name in FILES if name != "t/b.csv" or which == "base"]
        assert fs.find("") == expected
        assert fs.exists("a.txt") and fs.cat("a.txt") == FILES["a.txt"]
        assert fs.exists("t/b.csv") == (which == "base")
        if which == "root":
            with pytest.raises(FileNotFoundError, match="condition"):
                fs.cat("t/b.csv")


def test_a_closed_filesystem_is_refused(base: str) -> None:
    fs = fsspec.filesystem("wink", fo=base)
    fs.close()
    fs.close()
    for call in (fs.info, fs.find, fs.cat, fs.open):
        with pytest.raises(winkfs.Closed, match="the filesystem is closed"):
            call("a.txt")
    again = fsspec.filesystem("wink", fo=base)
    assert again is not fs and again.cat("a.txt") == FILES["a.txt"]
    again.close()


def test_writers_are_not_shared(base: str) -> None:
    first = winkfs.fs(base, "a")
    with pytest.raises(winkfs.Locked):
        winkfs.fs(base, "a")
    with pytest.raises(winkfs.WinkError):
        pickle.loads(pickle.dumps(first)).cat("a.txt")
    first.pipe("x", b"1")
    del first  # closes it
    with winkfs.fs(base, "a") as second:
        assert second.cat("x") == b"1"


@pytest.mark.parametrize("which", ["base", "root"])
def test_a_forked_child_reads(request: pytest.FixtureRequest, which: str) -> None:
    path = request.getfixturevalue(which)
    with winkfs.fs(path) as fs, winkfs.fs(path, "a") as writer:
        assert fs.cat("a.txt") == FILES["a.txt"]
        inside, outside = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                found = fs.cat("a.txt") + fs.cat_file("t/u/c")
                assert fsspec.filesystem("wink", fo=path).find("") == sorted(FILES)
                try:
                    writer.pipe("x", b"")
                except winkfs.Closed as error:
                    assert "fork" in str(error)
                    os.write(outside, found)
            finally:
                os._exit(0)
        os.close(outside)
        with os.fdopen(inside, "rb") as result:
            assert result.read() == FILES["a.txt"] + FILES["t/u/c"]
        os.waitpid(child, 0)
        writer.pipe("x", b"1")
        assert writer.cat("x") == b"1"


def test_threads_share_a_filesystem(writer: WinkFileSystem) -> None:
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for n in range(30):
                writer.pipe(f"d{number}/{n}", b"%d" % n)
                assert writer.cat(f"d{number}/{n}") == b"%d" % n
                assert f"d{number}/{n}" in writer.find(f"d{number}")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [] and len(writer.find("")) == 63


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("which", ["base", "root"])
def test_the_end_of_a_process_needs_no_close(request: pytest.FixtureRequest, which: str) -> None:
    base = request.getfixturevalue(which)
    code = f"""import winkfs
fs = winkfs.fs({base!r}, "a")
fs.pipe("x", b"1")
assert len(fs.find("")) == 4
file = winkfs.fs({base!r}).open("x")
print(file.read().decode())"""
    done = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert stored.read(base, "x") == b"1"


def test_damage_is_reported_where_it_is(tmp_path: Path) -> None:
    base = stored.make(tmp_path / "c", {"a": b"A" * 1000, "b": b"B" * 1000})
    with winkfs.open(base) as opened:
        at = opened.extents("a")[0][0] + 500
    flip(Path(f"{base}.data"), at)
    with winkfs.fs(base) as fs:
        for call in (fs.cat, lambda name: fs.open(name).read(), lambda name: fs.cat([name, "b"])):
            with pytest.raises(winkfs.CorruptError):
                call("a")
        found = fs.cat(["a", "b"], on_error="return")
        assert isinstance(found["a"], winkfs.CorruptError) and found["b"] == b"B" * 1000
        assert fs.cat(["a", "b"], on_error="omit") == {"b": b"B" * 1000}


@pytest.mark.parametrize(
    ("lacking", "call"),
    [("fsspec", "winkfs.fs(base)"), ("fsspec.implementations.chained", "winkfs.fs(base)"),
     ("fsspec.implementations.chained", "__import__('fsspec').filesystem('wink', fo=base)")],
)  # fmt: skip
def test_without_a_new_fsspec_one_line_names_the_extra(base: str, lacking: str, call: str) -> None:
    code = f"""import sys
sys.modules[{lacking!r}] = None
import winkfs
try:
    base = {base!r}
    {call}
except winkfs.Refusal as error:
    print(error)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "winkfs.fs needs winkfs[fsspec]: pip install 'winkfs[fsspec]'\n"


# --- what tools do with it ---


def test_a_mapper_reads_and_writes(writer: WinkFileSystem) -> None:
    store = writer.get_mapper("z")
    store["a/0"] = b"1"
    store["b"] = b"2"
    assert dict(store) == {"a/0": b"1", "b": b"2"} and "c" not in store and len(store) == 2
    del store["b"]
    assert store.getitems(["a/0", "b"], on_error="omit") == {"a/0": b"1"}


def test_pandas_reads_and_writes(base: str) -> None:
    pandas = pytest.importorskip("pandas")
    assert pandas.read_csv(f"wink://t/b.csv::{base}").to_dict("list") == {"x": [1], "y": [2]}
    frame = pandas.DataFrame({"x": [1, 2]})
    for suffix, write, read in (
        ("csv", frame.to_csv, pandas.read_csv), ("parquet", frame.to_parquet, pandas.read_parquet)
    ):  # fmt: skip
        url = f"wink://out/f.{suffix}::{base}"
        how: dict[str, Any] = {"index": False, "storage_options": {"wink": {"mode": "a"}}}
        write(url, **how)
        assert read(url).x.tolist() == [1, 2]


def test_arrow_reads_and_writes_a_data_set(writer: WinkFileSystem) -> None:
    pa, ds = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.dataset")
    table = pa.table({"k": ["a", "b"], "v": [1, 2]})
    ds.write_dataset(table, "pq", filesystem=writer, format="parquet", partitioning=["k"])
    found = ds.dataset("pq", filesystem=writer, partitioning=["k"]).to_table().sort_by("v")
    assert found["v"].to_pylist() == [1, 2] and found["k"].to_pylist() == ["a", "b"]


def test_files_are_copied_out(fs: WinkFileSystem, tmp_path: Path) -> None:
    fs.get("t", str(tmp_path / "out"), recursive=True)
    assert (tmp_path / "out/u/c").read_bytes() == FILES["t/u/c"]
    fs.get("a.txt", f"{tmp_path}/out/")
    assert (tmp_path / "out/a.txt").read_bytes() == FILES["a.txt"]
    fs.get("*.txt", f"{tmp_path}/out/u")
    assert (tmp_path / "out/u/a.txt").read_bytes() == FILES["a.txt"]
    into = io.BytesIO()
    fs.get_file("a.txt", into)
    assert into.getvalue() == FILES["a.txt"]
