"""A `with` block that raises, and what put_many is given that changes its own container."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import Run
from constants import shrink
from container_checks import VARIANTS, VERBS, assert_sound, contents, contents_of, names_of, path_of
from seam import disk_calls, once
from stored import make

import winkfs
from winkformats.disk.posix import FileStorage
from winkformats.kv.sequence import KVSeq
from winkfs import Container, FileType
from winkfs.dataset.dataset import Dataset
from winkfs.dataset.dataset import create as create_dataset
from winkfs.errors import Busy

pytestmark = pytest.mark.in_memory


def some(c: Container) -> None:
    c.put("b", b"new", mtime=20)
    c.put("c", bytes(3_000_000), mtime=21)


def many(c: Container) -> None:
    c.put_many((f"m{i}", b"%d" % i * 800, 30) for i in range(4_000))


def names(c: Container) -> None:
    c.put("b", b"other", mtime=20)
    c.delete("a")
    c.rename("b", "d")


def parts(c: Container) -> None:
    c.put("b", b"", mtime=20)
    c.append("b", b"more")


CHANGES: dict[str, Callable[[Container], None]] = {
    change.__name__: change for change in (some, many, names, parts)
}


def holds(base: Path, model: dict[bytes, bytes]) -> None:
    """As after a kill: sound, though index and time index may be behind."""
    assert winkfs.verify(base).problems == []
    with winkfs.open(base) as c:
        assert (contents(c), c.problems) == (model, [])


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("variant", ["plain", "classic", "ao"])
def test_an_exception_in_with_restores_the_last_sync(variant: str, change: str, base: Path) -> None:
    make(base, [("a", b"1", 10)], **VARIANTS[variant])
    before = path_of(base, ".data").stat().st_size
    for synced in (False, True):
        error = KeyboardInterrupt if synced else RuntimeError
        with pytest.raises(error), winkfs.open(base, "a") as c:
            assert isinstance(c, Container)
            if synced:
                c.put("synced", b"2", mtime=11)
                c.sync()
                before = c.superblock["FILESIZE"]
            CHANGES[change](c)
            raise error
        with pytest.raises(ValueError):
            c.read("a")
        assert path_of(base, ".data").stat().st_size == before
        holds(base, {b"a": b"1"} | ({b"synced": b"2"} if synced else {}))
    with winkfs.open(base, "a") as c:  # and goes on
        c.put("after", b"3", mtime=50)
    assert_sound(base, {b"a": b"1", b"synced": b"2", b"after": b"3"})


def test_a_block_that_ends_well_or_was_closed_before_keeps_all(base: Path) -> None:
    make(base, {"a": b"1"})
    with pytest.raises(RuntimeError), winkfs.open(base, "a") as c:
        c.put("b", b"2")
        c.close()
        raise RuntimeError
    assert_sound(base, {b"a": b"1", b"b": b"2"})


def test_a_row_that_is_refused_drops_what_put_many_had_put(base: Path) -> None:
    with pytest.raises(ValueError), winkfs.create(base) as c:
        c.put_many([("a", b"1"), ("", b"no name")])
    assert_sound(base, {})
    with winkfs.open(base, "a") as c, pytest.raises(ValueError):
        c.put_many([("a", b"1"), ("", b"no name")])
    assert_sound(base, {b"a": b"1"})


def test_a_data_set_does_the_same(tmp_path: Path) -> None:
    with create_dataset(tmp_path / "d") as d:
        d.put("a", b"1")
    with pytest.raises(RuntimeError), winkfs.open(tmp_path / "d", "a") as d:
        d.put("b", b"2")
        d.delete("a")
        raise RuntimeError
    assert names_of(tmp_path / "d") == ["a"]
    assert list((tmp_path / "d" / "_pending").iterdir()) == []


# --- commands -----------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [["mv", "c", "d", "e"], ["rm", "-r", "c", "*"]])
def test_a_command_that_is_interrupted_changes_nothing(run: Run, args: list[str]) -> None:
    names = [f"d/{i:03}{'x' * 200}" for i in range(60)]
    make(Path("c"), dict.fromkeys(names, b"1"))
    with KVSeq.open(FileStorage("c.data", "w"), writable=True) as kv:
        kv.sync({"FILEINCR": 0})  # so that each name asks for room

    def interrupt() -> None:
        raise KeyboardInterrupt

    with disk_calls(once("preallocate", ".data", interrupt, nth=5)):
        assert run(*args).status == 130
    assert contents_of("c") == {name.encode(): b"1" for name in names}


@pytest.mark.slow
def test_an_update_that_is_interrupted_keeps_what_it_synced(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from winkfs.archive.pack import pack
    from winkfs.archive.packer import PER_ROW

    shrink(monkeypatch, "pack", batch=300 * PER_ROW, synced=1_000)
    count = 1_500
    (tmp_path / "tree").mkdir()
    for i in range(count):
        (tmp_path / "tree" / f"f{i}").write_bytes(b"%d" % i)
    winkfs.create(base).close()
    looked_at = 0

    def interrupt(done: int) -> None:
        nonlocal looked_at
        looked_at += done
        if looked_at > 1_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(tmp_path / "tree", base, update=True, progress=interrupt)
    with winkfs.open(base) as c:
        assert 500 < len(c) < count
    pack(tmp_path / "tree", base, update=True)
    with winkfs.open(base) as c:
        assert len(c) == count
    assert winkfs.verify(base).problems == []


# --- calls from within put_many -----------------------------------------------------------------

NESTED = VERBS | {
    "sync": lambda c: c.sync(),
    "close": lambda c: c.close(),
    "save_catalog": lambda c: c.save_catalog(),
    "begin": lambda c: c.change(c.changes.begin, b"new/I0", None, FileType.FILE, None),
    "write_many": lambda c: c.write_many("a", [(0, b"x")]),
    "punch": lambda c: c.punch("a", 0, 1),
    "append_tombstones": lambda c: c.append_tombstones(["none"]),
}


def bulk(c: Container, verb: Callable[[Container], object], name: str, caught: list[Busy]) -> None:
    """put_many of 2,400 files that calls `verb` behind the first batch, and goes on where it is
    refused."""

    def files() -> Iterator[tuple[str, bytes]]:
        for i in range(2400):
            if i == 2200:
                try:
                    verb(c)
                except Busy as error:
                    caught.append(error)
                yield name, b"last"
            yield f"m{i}", b"%d" % i

    assert c.put_many(files()) == 2401


LOOKS: dict[str, Callable[[Container], object]] = {
    "read": lambda c: c.read("m9"),
    "scan": lambda c: sum(len(e.read()) for e in c.scan()),
    "get_many": lambda c: list(c.get_many(["a", "m1"])),
    "len": len,
    "stat": lambda c: c.stat("m1"),
    "names": list,
}


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("verb", NESTED | LOOKS)
def test_what_put_many_is_given_may_read_but_change_nothing(verb: str, base: Path) -> None:
    """Of an append to a name that then came in bulk, index and data told different things."""
    model = {b"m%d" % i: b"%d" % i for i in range(2400)} | {b"a": b"last"}
    caught: list[Busy] = []
    with winkfs.create(base) as c:
        c.put("a", b"old")
        c.sync()
        c.append("a", b"+")
        bulk(c, (NESTED | LOOKS)[verb], "a", caught)
        assert ["put_many is running" in str(error) for error in caught] == [True] * (
            verb in NESTED
        )
        assert contents(c) == model
    assert_sound(base, model)


def test_what_put_file_reads_from_cannot_change_the_container(base: Path) -> None:
    class Source:
        def __init__(self, c: Container) -> None:
            self.c, self.left = c, 3

        def read(self, size: int) -> bytes:
            self.left -= 1
            with pytest.raises(Busy, match="put_file is running"):
                self.c.put("other", b"1")
            return self.c.read("a") if self.left else b""

    with winkfs.create(base) as c:
        c.put("a", b"1")
        assert c.put_file("b", Source(c)) == 2
        c.put("c", b"2")
    assert_sound(base, {b"a": b"1", b"b": b"11", b"c": b"2"})


def test_the_handle_goes_on_after_an_uncaught_refusal(base: Path) -> None:
    def files(c: Container) -> Iterator[tuple[str, bytes]]:
        yield "a", b"1"
        c.delete("a")

    with winkfs.create(base) as c:
        with pytest.raises(RuntimeError, match="put_many"):
            c.put_many(files(c))
        c.put("b", b"2")
    assert_sound(base, {b"a": b"1", b"b": b"2"})


@pytest.mark.few(3)
@pytest.mark.slow
@pytest.mark.parametrize("verb", ["put", "delete", "rename", "sync", "abort", "close"])
def test_what_put_many_of_a_data_set_is_given_cannot_change_it(verb: str, tmp_path: Path) -> None:
    verbs: dict[str, Callable[[Dataset], object]] = {
        "put": lambda d: d.put("x", b""),
        "delete": lambda d: d.delete("old"),
        "rename": lambda d: d.rename("old", "new"),
        "sync": lambda d: d.sync(),
        "abort": lambda d: d.abort(),
        "close": lambda d: d.close(),
    }
    with create_dataset(tmp_path / "d") as d:
        d.put("old", b"0")
    for first in (True, False):
        with winkfs.open(tmp_path / "d", "a") as d:
            assert isinstance(d, Dataset)

            def files(d: Dataset = d, first: bool = first) -> Iterator[tuple[str, bytes]]:
                if not first:
                    yield "a", b"1"
                with pytest.raises(Busy):
                    verbs[verb](d)
                yield "b", b"2"

            d.put_many(files())
        with winkfs.open(tmp_path / "d") as d:
            assert sorted(d) == ["b", "old"] if first else ["a", "b", "old"]
            assert d.read("b") == b"2"
    assert winkfs.verify(tmp_path / "d").problems == []
