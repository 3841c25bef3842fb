"""Making, opening and filling a container: every way in, every error with its errno and line."""

import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from constants import shrink
from container_checks import PUTS, VARIANTS, VERBS, assert_sound, contents, path_of, raw, refused
from openfiles import opened
from oracle_recipes import RECIPES
from stored import make

import winkfs
from winkformats.errors import FormatError
from winkfs import Container, FileType, Row
from winkfs.errors import Closed, Locked, ReadOnly

NAMES: list[str | bytes] = [
    "a",
    "Äpfel/größe.txt",
    "日本語",
    " two  spaces ",
    "new\nline",
    "tab\tand\\backslash",
    "deep/er/and/deeper",
    "/leading",
    "trailing/",
    "..",
    "a//b",
    "ends in/I0",
    "I0",
    "5/D0",
    "1/A0",
    "1/I0",
    "invalid \udcff\udcfe utf-8",
    b"bytes \xff\x80",
    "*",
    "[x]?",
    "\x01\x7f",
    "n" * 65_000,
    b"\xff" * 65_000,
    "ä" * 32_500,
]


# That only some containers, other stores, or commands need.
LATE = {"mmh3", "google_crc32c", "zstandard", "concurrent.futures", "asyncio", "logging", "click",
        "rich", "fuse", "fastwarc", "pandas", "pyarrow", "pyspark"}  # fmt: skip


# --- importing ----------------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "late"),
    [
        ("", LATE | {"numpy", "xxhash"}),
        ("with winkfs.open(base) as c: c.read('a')", LATE),
        ("with winkfs.open(base, 'a') as c: c.put('b', b'x'), c.put_many([('c', b'y')])", LATE),
        ("winkfs.verify(base), winkfs.reindex(base)", LATE),
    ],
)
def test_what_few_need_is_not_imported(base: Path, code: str, late: set[str]) -> None:
    make(base, {"a": b"x"})
    code = f"import sys, winkfs\nbase = {str(base)!r}\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert late.isdisjoint(done.stdout.split())


# --- opening ------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_new_container_is_empty_and_sound(variant: str, base: Path) -> None:
    with winkfs.create(base, **VARIANTS[variant]) as container:  # type: ignore[arg-type]
        assert container.writable
        assert container.base == str(base)
        assert container.ao == ("ao" in variant)
        assert container.classic == ("classic" in variant)
        assert contents(container) == {}
    assert_sound(base, {})


def test_create_with_exist_ok_opens_what_is_alike(base: Path) -> None:
    for content in (b"1", b"2"):
        with winkfs.create(base, columns={"lang": "string"}, exist_ok=True) as c:
            c.put("a", content, columns={"lang": "de"})
    others: list[dict[str, Any]] = [{"ao": True}, {"classic": True}, {"columns": {"n": "int64"}}]
    for other in others:
        with pytest.raises(FileExistsError, match="exists already, without"):
            winkfs.create(base, exist_ok=True, **other)
    with winkfs.open(base) as reader:
        assert (reader.read("a"), reader.getcolumns("a")) == (b"2", {"lang": "de"})


def test_create_on_an_existing_container_is_refused(base: Path) -> None:
    make(base, {"a": b"1"})
    with refused(FileExistsError, str(base), code=errno.EEXIST):
        winkfs.create(base)
    assert_sound(base, {b"a": b"1"})


def test_create_while_another_writes_is_locked_or_exists(c: Container, base: Path) -> None:
    with pytest.raises((Locked, FileExistsError)):
        winkfs.create(base)


def test_create_after_only_derived_files_were_left_ignores_them(base: Path) -> None:
    make(base, {"old": b"old"}, ao=True)
    path_of(base, ".data").unlink()
    with winkfs.create(base, ao=True) as container:
        assert "old" not in container
        container.put("new", b"new")
    assert_sound(base, {b"new": b"new"})


def test_create_where_there_is_no_directory(tmp_path: Path) -> None:
    with refused(FileNotFoundError, "missing"):
        winkfs.create(tmp_path / "missing" / "c")


@pytest.mark.parametrize("mode", ["r", "a"])
def test_open_of_no_container(mode: str, base: Path) -> None:
    with refused(FileNotFoundError, str(base), code=errno.ENOENT):
        winkfs.open(base, mode)
    assert list(base.parent.iterdir()) == []


@pytest.mark.parametrize("mode", ["w", "rb", "", "x"])
def test_open_with_a_mode_there_is_not(mode: str, base: Path) -> None:
    winkfs.create(base).close()
    with pytest.raises(ValueError, match="mode"):
        winkfs.open(base, mode)


@pytest.mark.parametrize("mode", ["r", "a"])
@pytest.mark.parametrize("content", [b"", b"#!WINKME", b"#!/bin/sh\n" * 999, bytes(9999), None])
def test_open_of_something_else(content: bytes | None, mode: str, base: Path) -> None:
    """None: an index, under the name of the data file."""
    winkfs.create(base).close()
    index = path_of(base, ".idx").read_bytes()
    path_of(base, ".data").write_bytes(index if content is None else content)
    with refused(FormatError, "c.data"):
        winkfs.open(base, mode)
    path_of(base, ".data").unlink()
    winkfs.create(base).close()  # the lock is free again


def test_base_and_base_data_are_the_same(base: Path) -> None:
    data = path_of(base, ".data")
    with winkfs.create(data) as container:
        assert container.base == str(base)
        container.put("a", b"1")
    assert not path_of(data, ".data").exists()
    for path in (base, str(base), data, str(data)):
        with winkfs.open(path) as container:
            assert container.base == str(base)
            assert container.read("a") == b"1"
        assert winkfs.reindex(path) == 1
        assert winkfs.verify(path).problems == []


@pytest.mark.parametrize("options", [{"timemp": 0, "ao": True}, {"htalgo": 4}, {"htalgo": 0}])
def test_create_with_an_option_that_makes_no_sense(options: dict[str, Any], base: Path) -> None:
    with refused(ValueError, next(iter(options))):
        winkfs.create(base, **options)
    assert list(base.parent.iterdir()) == []


LOOKS: dict[str, Callable[[Container], object]] = {
    "read": lambda c: c.read("a"),
    "part": lambda c: c.read("a", 1, 1),
    "get_many": lambda c: list(c.get_many(["a"])),
    "open_file": lambda c: c.open_file("a"),
    "stat": lambda c: c.stat("a"),
    "in": lambda c: "a" in c,
    "len": len,
    "names": lambda c: list(c.names()),
    "scan": lambda c: list(c.scan()),
    "iter": list,
    "getxattrs": lambda c: c.getxattrs("a"),
    "sync": lambda c: c.sync(),
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_reader_changes_nothing(verb: str, base: Path) -> None:
    make(base, {"a": b"1"})
    with winkfs.open(base) as container:
        assert not container.writable
        with refused(ReadOnly, "'a'", code=errno.EROFS):
            VERBS[verb](container)
    assert_sound(base, {b"a": b"1"})


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["r", "a"])
@pytest.mark.parametrize("verb", VERBS | LOOKS)
def test_a_closed_handle_reports_it(verb: str, mode: str, base: Path) -> None:
    make(base, {"a": b"1"})
    container = winkfs.open(base, mode)
    assert container.read("a") == b"1"
    container.close()
    container.close()
    with refused(Closed, "closed", code=errno.EBADF):
        (VERBS | LOOKS)[verb](container)
    assert "closed" in repr(container)


# --- names --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("way", PUTS)
def test_names_of_every_kind(way: str, base: Path) -> None:
    model = {}
    with winkfs.create(base) as container:
        for i, name in enumerate(NAMES):
            PUTS[way](container, name, b"%d" % i)
            model[raw(name)] = b"%d" % i
        assert contents(container) == model
    assert_sound(base, model)
    with winkfs.open(base) as container:
        for name in NAMES:
            data = model[raw(name)]
            assert container.read(name) == container.read(raw(name)) == data
            assert container.stat(name).name == raw(name).decode("utf-8", "surrogateescape")
        assert list(container.get_many(NAMES)) == [model[raw(name)] for name in NAMES]


def test_str_and_bytes_name_the_same_file(c: Container) -> None:
    c.put("größe", b"1")
    c.put("größe".encode(), b"2")
    c.put_many([("größe", b"3"), ("größe".encode(), b"4")])
    assert contents(c) == {"größe".encode(): b"4"}


def test_names_that_share_a_beginning_or_an_end_are_different(c: Container) -> None:
    names = ["a", "a/I0", "a/I0/I0", "I0", "/I0", "a/", "aa", "a/I"]
    c.put_many((name, name.encode()) for name in names)
    assert contents(c) == {name.encode(): name.encode() for name in names}


NAMING = PUTS | {
    "rename": lambda c, name, _: c.rename("a", name),
    "mkdir": lambda c, name, _: c.mkdir(name),
    "symlink": lambda c, name, _: c.symlink("a", name),
}


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("name", ["", b"", "nul\0inside", b"\0", "\ud800"])
@pytest.mark.parametrize("way", NAMING)
def test_impossible_names_are_refused(way: str, name: str | bytes, kept: Container) -> None:
    with refused(ValueError):
        NAMING[way](kept, name, b"x")
    assert name not in kept


@pytest.mark.slow
@pytest.mark.parametrize("name", ["n" * 65_001, "ä" * 32_501], ids=["ASCII", "UTF-8"])
@pytest.mark.parametrize("way", NAMING)
def test_a_name_too_long_is_refused(way: str, name: str, kept: Container) -> None:
    with refused(OSError, "65000", code=errno.ENAMETOOLONG, match=r"(?s)^.{,299}$"):
        NAMING[way](kept, name, b"x")
    assert name not in kept


@pytest.mark.parametrize("recipe, most", [("limited_keys", 197), ("classic_seqdb", 252)])
def test_a_container_of_short_keys_refuses_longer_names(recipe: str, most: int, base: Path) -> None:
    model = {name: file.content for name, file in RECIPES[recipe](base).items()}
    with winkfs.open(base, "a") as container:
        container.put("n" * most, b"longest")
        for way in PUTS.values():
            with refused(OSError, str(most), code=errno.ENAMETOOLONG):
                way(container, "n" * (most + 1), b"x")
    assert_sound(base, model | {b"n" * most: b"longest"})


@pytest.mark.parametrize("name", [5, None, 1.5, ["a"], ("a",)])
@pytest.mark.parametrize("way", PUTS)
def test_a_name_is_str_bytes_or_a_path(way: str, name: object, c: Container) -> None:
    with refused(TypeError, type(name).__name__):
        PUTS[way](c, name, b"x")
    assert name not in c
    assert contents(c) == {}


@pytest.mark.parametrize("name", ["", "missing", "x\0y", "a/I0", "n" * 70_000, b"\xff"])
def test_a_missing_name(name: str | bytes, kept: Container) -> None:
    def many(name: str | bytes) -> list[bytes]:
        return list(kept.get_many(["a", name]))

    kept.sync()
    for _ in range(2):
        for look in (kept.read, kept.stat, kept.open_file, kept.delete, many):
            with refused((FileNotFoundError, ValueError, OSError)):
                look(name)
        assert name not in kept
        kept.put_many([("a", b"kept")])  # the second time the index is another


CHANGES_OF_MISSING: dict[str, Callable[[Container], object]] = {
    "append": lambda c: c.append("missing", b"x"),
    "append nothing": lambda c: c.append("missing", b""),
    "write": lambda c: c.write("missing", 0, b"x"),
    "truncate": lambda c: c.truncate("missing", 0),
    "utime": lambda c: c.utime("missing", 1),
    "chmod": lambda c: c.chmod("missing", 0o600),
    "chown": lambda c: c.chown("missing", 1, 1),
    "setxattrs": lambda c: c.setxattrs("missing", {}),
    "delete": lambda c: c.delete("missing"),
    "rename": lambda c: c.rename("missing", "b"),
    "read": lambda c: c.read("missing"),
    "stat": lambda c: c.stat("missing"),
    "getxattrs": lambda c: c.getxattrs("missing"),
    "readlink": lambda c: c.readlink("missing"),
    "open_file": lambda c: c.open_file("missing"),
    "get_many": lambda c: list(c.get_many(["missing"])),
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", CHANGES_OF_MISSING)
def test_a_verb_on_a_missing_file_names_it(verb: str, kept: Container) -> None:
    with refused(FileNotFoundError, "missing", code=errno.ENOENT):
        CHANGES_OF_MISSING[verb](kept)


@pytest.mark.parametrize("name", ["new\nline", "\x1b[31mred", "\r"])
def test_an_error_is_one_line_whatever_the_name(name: str, c: Container) -> None:
    for verb in (c.read, c.delete, c.stat):
        with pytest.raises((FileNotFoundError, ValueError)) as caught:
            verb(name)
        assert str(caught.value).isprintable()


# --- put ----------------------------------------------------------------------------------------


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("way", PUTS)
@pytest.mark.parametrize("data", [b"", b"x", bytes(1 << 20), b"ab" * 1_700_000])
def test_contents_of_every_size(way: str, data: bytes, base: Path) -> None:
    with winkfs.create(base) as container:
        PUTS[way](container, "a", data)
        assert container.read("a") == data
    assert_sound(base, {b"a": data})


@pytest.mark.parametrize("way", ["put", "put_many", "put_rows", "put_file"])
def test_a_put_replaces_all_of_a_file(way: str, base: Path) -> None:
    with winkfs.create(base) as container:
        container.put("a", b"old" * 999, mtime=5, ftype=FileType.EXEC, mode=0o700)
        container.setxattrs("a", {b"x": b"y"})
        before = container.stat("a")
        PUTS[way](container, "a", b"new")
        after = container.stat("a")
        assert container.getxattrs("a") == {}
        assert (after.size, after.ftype, after.mode) == (3, FileType.FILE, 0o644)
        assert after.fileid != before.fileid
        assert after.mtime > 1_700_000_000
    assert_sound(base, {b"a": b"new"})


@pytest.mark.parametrize(
    "data", [bytearray(b"data"), memoryview(b"data"), memoryview(b"d-a-t-a")[::2]]
)
@pytest.mark.parametrize("way", ["put", "put_many", "put_rows", "append"])
def test_any_bytes_like_content(way: str, data: Any, c: Container) -> None:
    PUTS[way](c, "a", data)
    assert c.read("a") == b"data"
    assert type(c.read("a")) is bytes


def test_content_changed_after_put_many_is_not_seen(base: Path) -> None:
    buffer = bytearray(b"x" * 5000)
    with winkfs.create(base) as container:
        for way in ("put", "put_many", "put_rows", "append"):
            PUTS[way](container, way, buffer)
        buffer[:] = b"y" * 5000
    names = (b"put", b"put_many", b"put_rows", b"append")
    assert_sound(base, dict.fromkeys(names, b"x" * 5000))


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("data", ["text", 5, None, [1, 2], 1.5])
@pytest.mark.parametrize("way", ["put", "put_many", "put_rows", "append", "write"])
def test_content_that_is_no_bytes_is_refused(way: str, data: Any, kept: Container) -> None:
    ways = PUTS | {"write": lambda c, name, data: c.write(name, 0, data)}
    with refused(TypeError):
        ways[way](kept, "a", data)


def test_exclusive_put_keeps_what_is_there(kept: Container) -> None:
    for verb in (
        lambda: kept.put("a", b"2", exclusive=True),
        lambda: kept.mkdir("a"),
        lambda: kept.symlink("b", "a"),
    ):
        with refused(FileExistsError, "a", code=errno.EEXIST):
            verb()
    kept.delete("a")
    kept.put("a", b"kept", exclusive=True)


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("way", ["put", "put_rows", "put_file"])
@pytest.mark.parametrize(
    "ftype, mode, shown, kept",
    [
        (FileType.FILE, None, FileType.FILE, 0o644),
        (FileType.FILE, 0o644, FileType.FILE, 0o644),
        (FileType.FILE, 0o755, FileType.EXEC, 0o755),
        (FileType.EXEC, None, FileType.EXEC, 0o755),
        (FileType.EXEC, 0o644, FileType.FILE, 0o644),
        (FileType.FILE, 0o4711, FileType.FILE, 0o4711),
        (FileType.FILE, 0, FileType.FILE, 0),
        (FileType.EXEC, 0o700, FileType.EXEC, 0o700),
        (FileType.DIR, None, FileType.DIR, 0o755),
        (FileType.DIR, 0o700, FileType.DIR, 0o700),
        (FileType.LINK, None, FileType.LINK, 0o777),
        (FileType.GZIP, None, FileType.GZIP, 0o644),
        (FileType.GZIP, 0o600, FileType.GZIP, 0o600),
        (FileType.ZSTD, 0o755, FileType.ZSTD, 0o755),
        (FileType.ARCHIVE, None, FileType.ARCHIVE, 0o644),
        (FileType.UNKNOWN, None, FileType.UNKNOWN, 0o644),
        (1, None, 1, 0o644),
        (255, None, 255, 0o644),
    ],
)
def test_type_and_mode(
    way: str, ftype: int, mode: int | None, shown: int, kept: int, base: Path
) -> None:
    data = b"" if ftype == FileType.DIR else b"data"
    with winkfs.create(base) as container:
        PUTS[way](container, "a", data, ftype=ftype, mode=mode)
        assert (container.stat("a").ftype, container.stat("a").mode) == (shown, kept)
    file = assert_sound(base, {b"a": data}).files[b"a"]
    if mode in (None, 0o644, 0o755) and shown in (FileType.FILE, FileType.EXEC):
        assert file.mode is None  # defaults take no room
    with winkfs.open(base) as container:
        assert [(entry.ftype, entry.mode) for entry in container.scan()] == [(shown, kept)]


@pytest.mark.parametrize(
    ("what", "given"),
    [
        ("ftype", {"ftype": -1}),
        ("ftype", {"ftype": 256}),
        ("ftype", {"ftype": 1 << 70}),
        ("", {"uid": -5, "gid": 0}),
        ("", {"uid": 0, "gid": 1 << 70}),
    ],
)
@pytest.mark.parametrize("way", ["put", "put_rows", "put_file"])
def test_a_type_or_an_owner_beyond_its_field_is_refused(
    way: str, what: str, given: dict[str, int], kept: Container
) -> None:
    with refused(ValueError, what):
        PUTS[way](kept, "a", b"x", **given)


@pytest.mark.parametrize("uid, gid", [(-5, 0), (0, 1 << 70)])
def test_an_owner_that_cannot_be_is_not_set(uid: int, gid: int, kept: Container) -> None:
    with refused(ValueError):
        kept.chown("a", uid, gid)


def test_a_stream_that_breaks_leaves_the_old_file(kept: Container) -> None:
    class Breaks(io.RawIOBase):
        left = 3

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("the source is gone")
            return bytes(1 << 20)

    for name in ("a", "new"):
        with pytest.raises(RuntimeError, match="gone"):
            kept.put_file(name, Breaks())
    assert contents(kept) == {b"a": b"kept"}


# --- put_many -----------------------------------------------------------------------------------


def test_put_many_takes_pairs_and_triples_and_returns_the_count(c: Container) -> None:
    assert c.put_many([]) == 0
    assert c.put_many(iter([("a", b"1"), (b"b", b"2", 5), ("c", b"", 2.5)])) == 3
    assert contents(c) == {b"a": b"1", b"b": b"2", b"c": b""}
    assert [c.stat(n).mtime for n in "bc"] == [5, 2.5]


@pytest.mark.parametrize(
    "item", [("b",), ("b", b"x", 1, 2), ("b", b"x", 1, {"no": 2}), (), "b", None, 5]
)
def test_put_many_refuses_what_is_no_file(item: Any, kept: Container) -> None:
    with refused((ValueError, TypeError)):
        kept.put_many([("new", b"x"), item])
    assert contents(kept) == {b"a": b"kept", b"new": b"x"}
    kept.delete("new")


@pytest.mark.few(3)
@pytest.mark.slow
@pytest.mark.parametrize("before", [0, 1, 1023, 1024, 3000])
def test_put_many_keeps_what_came_before_the_generator_raised(before: int, base: Path) -> None:
    def files() -> Iterator[tuple[str, bytes]]:
        for i in range(before):
            yield f"n{i}", b"%d" % i
        raise RuntimeError("the source is gone")

    with winkfs.create(base) as container:
        container.put("old", b"old")
        with pytest.raises(RuntimeError, match="gone"):
            container.put_many(files())
        container.put("later", b"later")
    model = {f"n{i}".encode(): b"%d" % i for i in range(before)}
    assert_sound(base, model | {b"old": b"old", b"later": b"later"})


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("bad", [("", b"x"), ("n", "text"), ("n" * 70_000, b"x"), ("n",), None])
@pytest.mark.parametrize("before", [1, 500])
def test_put_many_keeps_what_came_before_a_bad_file(before: int, bad: Any, base: Path) -> None:
    files = [(f"n{i}", b"%d" % i) for i in range(before)]
    with winkfs.create(base) as container, pytest.raises((ValueError, TypeError, OSError)):
        container.put_many([*files, bad, ("later", b"x")])
    assert_sound(base, {name.encode(): data for name, data in files})


@pytest.mark.parametrize("mtime", [0.0, -0.25, -1.5, 1_600_000_000.125, -1_600_000_000.125])
def test_a_time_in_float_seconds_loses_no_nanosecond(mtime: float, c: Container) -> None:
    c.put("a", b"", mtime=mtime)
    c.put_many([("b", b"", mtime)])
    assert [c.stat(name).mtime_ns for name in "ab"] == [int(mtime * 1000) * 10**6] * 2


@pytest.mark.slow
def test_the_last_of_equal_names_counts(base: Path) -> None:
    with winkfs.create(base) as container:
        container.put("a", b"old")
        container.put_many([("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", b"4" * 2_000_000)])
        container.put_many([("b", b"5"), ("c", b""), ("c", b"6"), ("d", b"7"), ("d", b"")])
        model = {b"a": b"3", b"b": b"5", b"c": b"6", b"d": b""}
        assert contents(container) == model
        container.put_many(("same", b"%d" % i) for i in range(1100))
        model[b"same"] = b"1099"
        assert contents(container) == model
    assert_sound(base, model)


@pytest.mark.slow
def test_put_many_across_widths_of_the_file_number(base: Path) -> None:
    model = {}
    with winkfs.create(base) as container:
        for count in (14, 1, 1, 238, 2, 3840, 1, 100):
            files = [(f"{len(model) + i}", b"%d" % i) for i in range(count)]
            container.put_many(files)
            model.update((name.encode(), data) for name, data in files)
    assert len(model) > 4096
    assert_sound(base, model)


@pytest.mark.slow
def test_a_put_after_put_many_leaves_one_file_of_its_name(base: Path) -> None:
    """The name is in the index on disk alone, among what is put in bulk, in both, or in neither."""
    make(base, {"index": b"1", "both": b"1"})
    with winkfs.open(base, "a") as container:
        for name in ("index", "bulk", "both", "new"):
            container.put_many([("bulk", b"2"), ("both", b"2")])
            container.put(name, name.encode())
        container.put("bulk", b"bulk")
        container.put("both", b"both")
        assert len(container) == 4
        container.put("new", b"again")
        container.delete("both")
        container.put("both", b"back")
        assert len(container) == 4
    files = {b"index": b"index", b"bulk": b"bulk", b"both": b"back", b"new": b"again"}
    assert_sound(base, files)
    winkfs.reindex(base)
    assert_sound(base, files)


@pytest.mark.slow
def test_put_many_from_the_container_itself(base: Path) -> None:
    model = {f"n{i}".encode(): b"%d" % i for i in range(1100)}
    with winkfs.create(base) as container:
        container.put_many((name.decode(), data) for name, data in model.items())
        container.put_many((f"copy of {n}", container.read(n)) for n in list(container.names()))
        model |= {b"copy of " + name: data for name, data in model.items()}
        container.put_many((f"again {e.name}", e.read()) for e in container.scan())
        model |= {b"again " + name: data for name, data in model.items()}
    assert_sound(base, model)


@pytest.mark.slow
def test_more_files_than_the_index_keeps_in_memory(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one call, with doubles: within the call, against memory, against the disk."""
    count = 4_000
    shrink(monkeypatch, "the index", fold=3_600)
    names = [b"name %d" % i for i in range(count)]
    with winkfs.create(base) as container:
        container.put("name 5", b"before")
        container.put_many((name, b"first") for name in names)
        container.put_many((name, b"second") for name in names[::7])
        assert len(container) == count
        container.delete(names[7])
        container.rename(names[14], names[15])
        container.put_many((name, b"third") for name in [*names[1:], *names[100:200]])
        container.append(names[3], b"+")
        assert len(container) == count
        wanted = [b"second", b"third", b"third", b"third+"] + [b"third"] * (count - 4)
        assert list(container.get_many(names)) == wanted
        container.sync()
        container.put_many((name, b"fourth") for name in reversed(names[::2]))
        wanted[::2] = [b"fourth"] * len(wanted[::2])
    with winkfs.open(base) as container:
        assert len(container) == count
        assert list(container.get_many(names)) == wanted
    assert winkfs.verify(base).problems == []
    assert winkfs.verify(base).bytes == sum(map(len, wanted))


def test_put_rows_with_all_their_metadata(base: Path) -> None:
    me = os.getuid(), os.getgid()
    rows = [
        Row("plain", b"1"),
        Row(b"bytes", b"2", -1_500_000_001),
        Row("owned", b"3", 7, FileType.FILE, 0o640, 1000, 100),
        Row("mine", b"4", 8, FileType.FILE, 0o644, *me),
        Row("program", b"5", 9, FileType.FILE, 0o755, *me),
        Row("folder", b"", 10, FileType.DIR, 0o755, *me),
        Row("link", b"plain", 11, FileType.LINK, 0o777, *me),
        Row("mine", b"6", 12),
        Row("large", b"7" * 2_000_000, 13, FileType.FILE, 0o600, 1, 2),
    ]
    with winkfs.create(base) as container:
        assert container.put_rows(iter(rows)) == len(rows)
        for name, wanted in {
            "bytes": (-1_500_000_001, FileType.FILE, 0o644, *me),
            "owned": (7, FileType.FILE, 0o640, 1000, 100),
            "program": (9, FileType.EXEC, 0o755, *me),
            "large": (13, FileType.FILE, 0o600, 1, 2),
        }.items():
            found = container.stat(name)
            assert (found.mtime_ns, found.ftype, found.mode, found.uid, found.gid) == wanted
        assert container.readlink("link") == "plain"
    tree = assert_sound(base, {raw(row.name): row.data for row in rows})
    stored = {name for name, file in tree.files.items() if file.mode is not None}
    assert stored == {b"owned", b"large"}


# --- what is left behind ------------------------------------------------------------------------


@pytest.mark.few(3)
@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_file_handle_is_left(variant: str, base: Path) -> None:
    with winkfs.create(base, **VARIANTS[variant]) as container:  # type: ignore[arg-type]
        container.put_many((f"n{i}", b"1") for i in range(300))
        container.sync()
        list(container.get_many(container.names()))
    with winkfs.open(base) as container:
        container.read("n5")
    winkfs.reindex(base)
    winkfs.verify(base)
    with pytest.raises(FileExistsError):
        winkfs.create(base)
    assert opened(base.parent) == []
    suffixes = {path.suffix for path in base.parent.iterdir()}
    derived = {".idx"} | ({".time"} if "ao" in variant else set())
    derived |= set() if "classic" in variant else {".cat"}
    assert suffixes == {".data", ".lock"} | derived


@pytest.mark.on_disk
def test_preallocated_room_is_given_back(base: Path) -> None:
    with winkfs.create(base) as container:
        container.put("a", b"1")
        container.sync()
        assert path_of(base, ".data").stat().st_size >= 4 << 20
        size = container.superblock["FILESIZE"]
    assert path_of(base, ".data").stat().st_size == size


def test_closing_without_changes_changes_nothing(base: Path) -> None:
    make(base, {"a": b"1"})
    before = {path.name: path.read_bytes() for path in base.parent.iterdir()}
    winkfs.open(base, "a").close()
    with winkfs.open(base, "a") as container:
        container.sync()
        container.read("a")
    assert {path.name: path.read_bytes() for path in base.parent.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("Busy", RuntimeError), ("Closed", ValueError), ("CorruptError", ValueError),
        ("DamageWarning", UserWarning), ("DatasetConflict", OSError),
        ("FileExists", FileExistsError), ("FormatError", ValueError), ("Locked", BlockingIOError),
        ("LostShard", OSError),
        ("NameTooLong", OSError), ("NoSuchFile", FileNotFoundError),
        ("NotAllowed", PermissionError), ("NotDirectory", NotADirectoryError),
        ("ReadOnly", OSError), ("StalePlan", OSError),
        ("Refusal", OSError),
    ],
)  # fmt: skip
def test_what_a_user_catches_is_in_the_package(name: str, builtin: type[BaseException]) -> None:
    assert name in winkfs.__all__
    assert issubclass(getattr(winkfs, name), builtin)
