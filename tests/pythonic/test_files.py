"""open_file: modes as those of `open`; what is written is stored at once, or not at all."""

from __future__ import annotations

import csv
import gc
import io
import json
import pickle
import tempfile
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import winkfs
import winkfs.dataset
from winkfs.pythonic import files
from winkfs.stores.ledgerq import Queue

TEXT = "größe\r\nzwei\nthree\r"


@pytest.fixture(params=["container", "append-only", "data set"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    base = tmp_path / "c"
    if request.param == "data set":
        made: Any = winkfs.dataset.create(base)
    else:
        made = winkfs.create(base, ao=request.param == "append-only", columns={"lang": "string"})
    with made:
        if request.param == "data set":
            made.add_columns({"lang": "string"})
        yield made


@pytest.fixture(params=["in memory", "in a file"])
def spool(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written goes to a temporary file at once, or not at all."""
    if request.param == "in a file":
        monkeypatch.setattr(files, "IN_MEMORY_BYTES", 3)
        monkeypatch.setattr("winkfs.pythonic.writer.IN_MEMORY_BYTES", 3)


def test_what_is_written_is_there_after_close(store: Any, spool: None) -> None:
    with store.open_file("a", "wb") as file:
        assert file.write(b"first ") == 6
        assert file.writable() and file.seekable() and not file.readable()
        file.write(bytearray(b"second"))
        assert "a" not in store and file.tell() == 12
        file.seek(0)
        file.write(b"FIRST")
        with pytest.raises(io.UnsupportedOperation):
            file.read()
        with pytest.raises(TypeError):
            file.write("text")
    assert store["a"] == b"FIRST second"
    with pytest.raises(ValueError, match="closed"):
        file.write(b"x")
    file.close()
    assert list(store) == ["a"]


def test_an_exception_stores_nothing(store: Any, spool: None) -> None:
    store["a"] = b"old"
    for mode, data in (("wb", b"new content"), ("w", "new content"), ("x", "new content")):
        with (
            pytest.raises(ZeroDivisionError),
            store.open_file("b" if mode == "x" else "a", mode) as f,
        ):
            f.write(data)
            raise ZeroDivisionError
        assert f.closed
    assert dict(store) == {"a": b"old"}


@pytest.mark.parametrize("newline", [None, "", "\n", "\r\n"])
def test_text_is_as_that_of_open(newline: str | None, store: Any, tmp_path: Path) -> None:
    path = tmp_path / "f"
    with path.open("w", encoding="utf-8", newline=newline) as ours:
        ours.write(TEXT)
    with store.open_file("f", "w", newline=newline) as theirs:
        theirs.write(TEXT)
    assert store["f"] == path.read_bytes()
    theirs = store.open_file("f", "r", newline=newline)
    with path.open(encoding="utf-8", newline=newline) as ours, theirs:
        assert list(theirs) == list(ours)
    with store.open_file("g", "w", encoding="latin-1", errors="replace") as theirs:
        theirs.write("ö€")
    assert store["g"] == b"\xf6?"
    with store.open_file("g", "rt", encoding="latin-1") as theirs:
        assert theirs.read() == "ö?"


def test_exclusive_is_refused_at_open_and_at_close(store: Any, spool: None) -> None:
    store["a"] = b"old"
    with pytest.raises(FileExistsError, match="a: exists already"):
        store.open_file("a", "xb")
    file = store.open_file("b", "xb")
    file.write(b"mine")
    store["b"] = b"of another"
    with pytest.raises(FileExistsError, match="b: exists already"):
        file.close()
    assert file.closed and store["b"] == b"of another"
    with store.open_file("c", "x") as text:
        text.write("é")
    assert store["c"] == "é".encode()


def test_options_are_those_of_put(store: Any, spool: None) -> None:
    options = {"mtime": 1_700_000_000.5, "permissions": 0o640, "columns": {"lang": "de"}}
    with store.open_file("a", "wb", **options) as file:
        file.write(b"content")
    stat = store.stat("a")
    assert (stat.mtime, stat.mode, store.getcolumns("a")) == (
        1_700_000_000.5,
        0o640,
        {"lang": "de"},
    )
    for wrong, error in ({"mtime": "x"}, TypeError), ({"columns": {"no": 1}}, ValueError):
        with pytest.raises(error, match=r"seconds since the epoch|no column 'no'"):
            store.open_file("b", "w", **wrong)
    for mode, wrong in (("wb", {"colour": 1}), ("rb", {"mtime": 1})):
        with pytest.raises(
            TypeError, match=r"open_file has no option|is of a file that is written"
        ):
            store.open_file("a", mode, **wrong)


def test_appended_is_what_is_written(tmp_path: Path, spool: None) -> None:
    with winkfs.create(tmp_path / "c") as c:
        for part in ("one\n", "", "two and more\n"):
            with c.open_file("a", "a") as file:
                file.write(part)
        assert c["a"] == b"one\ntwo and more\n"
        c.chmod("a", 0o600)
        with c.open_file("a", "ab") as binary:
            binary.write(b"!")
        assert c["a"].endswith(b"!") and c.stat("a").mode == 0o600
        with pytest.raises(ValueError, match="mtime is of a whole file"):
            c.open_file("a", "ab", mtime=1)
    with winkfs.dataset.create(tmp_path / "d") as d:
        with d.open_file("a", "a") as file:
            file.write("new")
        with pytest.raises(PermissionError, match="whole files only"):
            d.open_file("a", "a")


def test_a_failed_append_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winkfs.pythonic.writer.PIECE_BYTES", 2)
    with winkfs.create(tmp_path / "c") as c:
        c["a"] = b"old"
        append, left = c.append, [True, True, False]

        def failing(name: str, data: bytes) -> None:
            if not left.pop(0):
                raise OSError("the disk is full")
            append(name, data)

        monkeypatch.setattr(c, "append", failing)
        with pytest.raises(OSError, match="full"), c.open_file("a", "ab") as file:
            file.write(b"123456")
        assert c["a"] == b"old"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "what"),
    [("rw", "such as 'rb'"), ("", "such as 'rb'"), ("rbt", "such as 'rb'"), ("rU", "such as 'rb'"),
     ("r+b", "not both at once"), ("w+", "not both at once"), ("bb", "such as 'rb'")],
)  # fmt: skip
def test_a_wrong_mode_is_refused_in_one_line(mode: str, what: str, store: Any) -> None:
    with pytest.raises(ValueError, match=what) as raised:
        store.open_file("a", mode)
    assert "\n" not in str(raised.value)


def test_wrong_options_are_refused_in_one_line(store: Any) -> None:
    store["a"] = b"1"
    for mode, options in (("rb", {"encoding": "utf-8"}), ("wb", {"newline": ""}),
                          ("r", {"buffering": 0})):  # fmt: skip
        with pytest.raises(ValueError, match=r"are for text|a text file is buffered"):
            store.open_file("a", mode, **options)
    for wrong in ({"encoding": "nope"}, {"newline": "x"}):
        with pytest.raises((LookupError, ValueError)):  # and no file is dropped unclosed
            store.open_file("a", "w", **wrong)
    assert store["a"] == b"1"
    with pytest.raises(TypeError, match="a mode is a text"):
        store.open_file("a", 5)
    with pytest.raises(FileNotFoundError):
        store.open_file("missing", "r")
    for name in ("", "a\0b"):
        with pytest.raises(ValueError, match="must not be empty or have NUL"):
            store.open_file(name, "w")


def test_a_reader_opens_no_file_to_write(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c["a"] = b"1"
    with winkfs.open(tmp_path / "c") as reader, pytest.raises(winkfs.ReadOnly):
        reader.open_file("a", "w")
    with Queue(tmp_path / "q", "a", make=True) as queue:
        queue.push(b"1")
    with winkfs.open(tmp_path / "q") as records:
        assert records.open_file("1", "r").read() == "1"
        with pytest.raises(ValueError, match="mode must be 'rb' or 'r'"):
            records.open_file("1", "w")


@pytest.mark.slow
def test_a_file_that_is_not_closed_is_not_stored(store: Any) -> None:
    for mode in ("wb", "w"):
        file = store.open_file("a", mode)
        file.write(b"half" if mode == "wb" else "half")
        with pytest.warns(ResourceWarning, match="unclosed file 'a': what was written"):
            del file
            gc.collect()
    assert list(store) == []


def test_a_store_that_was_closed_before_is_refused(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        file = c.open_file("a", "w")
        file.write("x")
    with pytest.raises(winkfs.Closed):
        file.close()
    assert file.closed
    with winkfs.open(tmp_path / "c") as reader:
        assert list(reader) == []


def test_after_a_failed_write_nothing_is_stored(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(tempfile.SpooledTemporaryFile[Any]):
        def write(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", Full)
    with pytest.raises(OSError, match="No space") as raised, store.open_file("a", "wb") as file:
        file.write(b"x")
    file = store.open_file("a", "wb")
    with pytest.raises(OSError, match="No space"):
        file.write(b"x")
    with pytest.raises(OSError, match="a write to it has failed: nothing of it is stored"):
        file.close()
    with pytest.raises(OSError) as raised, store.open_file("a", "w") as text:
        text.write("it is in the buffer of the text until close")
    assert "failed" in str(raised.value) or "No space" in str(raised.value)
    assert list(store) == []


def test_truncate_cuts_and_fills_with_zeros(store: Any, spool: None) -> None:
    with store.open_file("a", "wb") as file:
        file.write(b"12345678")
        assert file.truncate(2) == 2 and file.tell() == 8
        assert file.truncate(5) == 5
    assert store["a"] == b"12\0\0\0"


def test_libraries_write_to_it(store: Any, spool: None) -> None:
    with store.open_file("a.zip", "wb") as file, zipfile.ZipFile(file, "w") as made:
        made.writestr("x", "content")
    with store.open_file("a.zip") as file, zipfile.ZipFile(file) as made:
        assert made.read("x") == b"content"
    with store.open_file("a.json", "w") as file:
        json.dump({"a": [1, 2]}, file)
    assert json.load(store.open_file("a.json")) == {"a": [1, 2]}
    with store.open_file("a.csv", "w", newline="") as file:
        csv.writer(file).writerows([["a", "b"], ["1", "2\n"]])
    with store.open_file("a.csv", "r", newline="") as file:
        assert list(csv.reader(file)) == [["a", "b"], ["1", "2\n"]]
    with store.open_file("a.pickle", "wb") as file:
        pickle.dump([1, 2], file)
    assert pickle.load(store.open_file("a.pickle")) == [1, 2]


def test_large_content_takes_little_memory(tmp_path: Path) -> None:
    piece = b"0123456789abcdef" * 4096
    with winkfs.create(tmp_path / "c") as c:
        c["warm"] = b"1"
        tracemalloc.start()
        with c.open_file("a", "wb") as file:
            for _ in range(400):
                file.write(piece)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert c.stat("a").size == 400 * len(piece)
        assert peak < 8 << 20
        assert c.read("a", 399 * len(piece)) == piece
    assert sorted(path.name for path in tmp_path.iterdir() if "tmp" in path.name) == []
