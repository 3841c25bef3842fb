"""Append-only containers: order of mtimes, the time index, what they refuse and why."""

import errno
import io
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from container_checks import PUTS, assert_sound, contents, contents_of, files_of, path_of, refused
from flips import flip
from oracle_read import check
from original_marks import original_marks, read_superblock_of
from seam import Call, disk_calls
from stored import make, read

import winkfs
from winkfs import Container, Row

pytestmark = pytest.mark.in_memory


@pytest.fixture(params=[False, True], ids=["new", "classic"])
def c(request: pytest.FixtureRequest, base: Path) -> Iterator[Container]:
    """Two synced files, "a" at 10 and "last" at 20."""
    with winkfs.create(base, ao=True, timemp=10, classic=request.param) as container:
        container.put("a", b"1", 10)
        container.put("last", b"2", 20)
        container.sync()
        yield container


def holds(c: Container, base: Path, more: Mapping[bytes, bytes]) -> None:
    """With its two first files it has just these: now, and when it is closed."""
    model = {b"a": b"1", b"last": b"2", **more}
    assert contents(c) == model
    c.close()
    assert_sound(base, model)


REFUSED: dict[str, Callable[[Container], object]] = {
    "utime": lambda c: c.utime("last", 30),
    "utime now": lambda c: c.utime("last"),
    "truncate": lambda c: c.truncate("last", 0),
    "grow": lambda c: c.truncate("last", 100),
    "write": lambda c: c.write("last", 0, b"x"),
    "write at the end": lambda c: c.write("last", 1, b"x"),
    "append to an older file": lambda c: c.append("a", b"x"),
    "append to what was synced": lambda c: c.append("last", b"x"),
    "chmod": lambda c: c.chmod("last", 0o600),
    "chown": lambda c: c.chown("last", 1, 1),
    "setxattrs": lambda c: c.setxattrs("last", {b"x": b"y"}),
    "rename of an older file": lambda c: c.rename("a", "b"),
    "rename of what was synced": lambda c: c.rename("last", "tsal"),
    "put of an older mtime": lambda c: c.put("new", b"x", 19),
    "replacement of an older mtime": lambda c: c.put("a", b"x", 10),
    "many of an older mtime": lambda c: c.put_many([("a", b"x", 19.999)]),
    "rows of an older mtime": lambda c: c.put_rows([Row("a", b"x", 0)]),
    "stream of an older mtime": lambda c: c.put_file("a", io.BytesIO(b"x"), mtime_ns=0),
}


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("verb", REFUSED)
def test_append_only_names_the_reason_of_a_refusal(verb: str, c: Container, base: Path) -> None:
    data = path_of(base, ".data").read_bytes()
    with refused(PermissionError, "append-only", code=errno.EPERM):
        REFUSED[verb](c)
    assert contents(c) == {b"a": b"1", b"last": b"2"}
    c.sync()
    assert path_of(base, ".data").read_bytes() == data
    assert c.stat("last").mtime == 20
    holds(c, base, {})


def test_what_append_only_allows(c: Container, base: Path) -> None:
    with c:
        c.put("new", b"3", 20)
        c.append("new", b"+")
        c.append("new", b"+")
        assert c.read("new") == b"3++"
        c.rename("new", "wen")
        c.rename("wen", "w/n")
        c.append("w/n", b"+")
        c.delete("a")
        c.put("last", b"again", 21)
        c.mkdir("d")
        c.symlink("w/n", "s")
        model = {b"w/n": b"3+++", b"last": b"again", b"d": b"", b"s": b"w/n"}
        assert contents(c) == model
    assert_sound(base, model)


def test_appending_keeps_mode_and_owner(base: Path) -> None:
    with winkfs.create(base, ao=True) as c:
        c.put("new", b"3", 20, mode=0o640, uid=5, gid=6)
        c.append("new", b"+")
        assert (c.stat("new").mode, c.stat("new").uid) == (0o640, 5)
        c.rename("new", "wen")
        c.append("wen", b"+")
        assert (c.stat("wen").mode, c.stat("wen").gid) == (0o640, 6)
    with winkfs.open(base) as reader:
        found = reader.stat("wen")
    assert (found.mode, found.uid, found.gid, found.size) == (0o640, 5, 6, 3)


def test_append_to_the_last_of_put_many(c: Container, base: Path) -> None:
    c.put_many([("b", b"3", 30), ("c", b"4", 30)])
    c.append("c", b"+")
    with pytest.raises(PermissionError):
        c.append("b", b"+")
    holds(c, base, {b"b": b"3", b"c": b"4+"})


def test_append_until_the_inode_is_full(c: Container, base: Path) -> None:
    """Each flush to disk is another extent; an inode of an ao container never moves."""
    c.put("log", b"", 30)
    size = 0
    with pytest.raises(PermissionError, match="no room"):
        for _ in range(100):
            c.append("log", b"x" * 1_000_000)
            size += 1_000_000
            assert c.stat("log").size == size
    assert size >= 2_000_000
    holds(c, base, {b"log": b"x" * size})


def test_appends_with_looks_between_them(c: Container, base: Path) -> None:
    whole = b"".join(b"%02d" % i for i in range(20))
    c.put("log", b"", 30)
    for i in range(20):
        c.append("log", b"%02d" % i)
        assert c.read("log") == whole[: 2 * i + 2]
        assert c.stat("log").size == 2 * i + 2
    holds(c, base, {b"log": whole})


def test_nothing_can_be_appended_after_reopening(c: Container, base: Path) -> None:
    c.put("new", b"3", 30)
    c.close()
    with winkfs.open(base, "a") as container:
        with pytest.raises(PermissionError, match="append-only"):
            container.append("new", b"+")
        with pytest.raises(PermissionError, match="append-only"):
            container.put("older", b"4", 29)
        container.put("newer", b"4", 30)
    assert_sound(base, {b"a": b"1", b"last": b"2", b"new": b"3", b"newer": b"4"})


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("new", ["n" * 3, "n" * 2, "n", "n" * 4, "n" * 11, "n" * 60, "a", "last"])
def test_rename_of_the_last_file_before_a_sync(new: str, c: Container, base: Path) -> None:
    c.put("xyz", b"3" * 100, 30)
    c.rename("xyz", new)
    assert "xyz" not in c
    assert c.stat(new).mtime == 30
    holds(c, base, {new.encode(): b"3" * 100})


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("new", ["b/c", "a much longer name than before"])
@pytest.mark.parametrize("way", ["put", "put_many"])
def test_rename_of_a_file_put_twice(way: str, new: str, c: Container, base: Path) -> None:
    """What it replaced must not come back under the old name: not after a kill either."""
    for data in (b"first", b"second"):
        PUTS[way](c, "xyz", data)
    c.rename("xyz", new)
    holds(c, base, {new.encode(): b"second"})
    with winkfs.open(base, "a") as again:
        again.put("other", b"1")
        model = contents(again)
    raw = bytearray(path_of(base, ".data").read_bytes())
    for entry in check(base).entries:
        if entry.delflag and entry.value:
            raw[entry.pos] = 0  # as if the flags had not reached the disk
    path_of(base, ".data").write_bytes(raw)
    path_of(base, ".idx").unlink()
    assert contents_of(base) == model


def test_rename_onto_a_name_put_behind_it_is_refused(c: Container, base: Path) -> None:
    """In place it would lie in front of the file whose name it takes, which decides."""
    c.put("aa", b"first")
    c.put("bb", b"behind")
    c.put("cc", b"")
    with pytest.raises(PermissionError):
        c.rename("aa", "bb")
    holds(c, base, {b"aa": b"first", b"bb": b"behind", b"cc": b""})


def test_rename_onto_a_name_deleted_just_now(c: Container, base: Path) -> None:
    with c:
        c.put("xyz", b"3", 30)
        c.delete("last")
        try:
            c.rename("xyz", "last")
            model = {b"a": b"1", b"last": b"3"}
        except PermissionError:  # behind the inode stands a tombstone of that name
            model = {b"a": b"1", b"xyz": b"3"}
        assert contents(c) == model
    assert_sound(base, model)
    winkfs.reindex(base)
    assert_sound(base, model)


def test_rename_onto_a_later_file_that_would_win_after_a_reindex(c: Container, base: Path) -> None:
    c.put("xyz", b"3", 30)
    c.put("abc", b"4" * 100, 40)
    with pytest.raises(PermissionError):
        c.rename("xyz", "abc")
    holds(c, base, {b"xyz": b"3", b"abc": b"4" * 100})


def test_deleting_the_last_file_gives_no_right_to_the_one_before(c: Container, base: Path) -> None:
    c.put("b", b"3", 30)
    c.put("c", b"4", 40)
    c.delete("c")
    with pytest.raises(PermissionError):
        c.append("b", b"+")
    with pytest.raises(PermissionError):
        c.put("d", b"5", 39)
    c.put("d", b"5", 40)
    holds(c, base, {b"b": b"3", b"d": b"5"})


@pytest.mark.parametrize("way", ["put", "put_many", "put_rows", "put_file"])
def test_a_clock_that_stepped_back_repeats_the_last_mtime(way: str, base: Path) -> None:
    ns = 4_000_000_000_123_456_789
    with winkfs.create(base, ao=True) as container:
        container.put("a", b"1", mtime_ns=ns)
        PUTS[way](container, "b", b"2")
        assert container.stat("b").mtime_ns == ns
    assert_sound(base, {b"a": b"1", b"b": b"2"})
    with winkfs.open(base, "a") as container:
        container.put("c", b"3")
        assert container.stat("c").mtime_ns == ns
    assert_sound(base, {b"a": b"1", b"b": b"2", b"c": b"3"})


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 1, 500])
@pytest.mark.parametrize("way", ["put_many", "put_rows"])
def test_put_many_keeps_what_came_before_an_older_mtime(
    way: str, at: int, c: Container, base: Path
) -> None:
    files = [(f"n{i}", b"%d" % i, 30 + i) for i in range(700)]
    files[at] = ("late", b"x", 5)
    with pytest.raises(PermissionError, match="append-only"):
        if way == "put_many":
            c.put_many(files)
        else:
            c.put_rows(Row(name, data, mtime * 10**9) for name, data, mtime in files)
    c.put("later", b"y", 9000)
    holds(c, base, {b"later": b"y"} | {b"n%d" % i: b"%d" % i for i in range(at)})


def test_replaced_files_move_to_the_end(c: Container, base: Path) -> None:
    c.put_many([("b", b"3", 30), ("a", b"4", 31), ("b", b"5", 32)])
    assert [(e.name, e.mtime) for e in c.scan()] == [("last", 20), ("a", 31), ("b", 32)]
    assert [e.name for e in c.scan(since=31)] == ["a", "b"]
    assert [e.name for e in c.scan(until=31)] == ["last"]
    holds(c, base, {b"a": b"4", b"b": b"5"})


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("timemp", [7, 3600])
@pytest.mark.parametrize("dropped", [[], [".time"], [".idx", ".time"], [".idx"]])
def test_time_ranges_of_many_files(timemp: int, dropped: list[str], base: Path) -> None:
    mtimes = sorted((i * 7919) % 5000 - 2500 for i in range(400))
    with winkfs.create(base, ao=True, timemp=timemp) as container:
        container.put_many((f"{i}", b"x" * (i % 50), m) for i, m in enumerate(mtimes[:280]))
        for i in range(0, 280, 3):
            container.delete(f"{i}")
        container.sync()
        for i, mtime in enumerate(mtimes[280:], 280):
            container.put(f"{i}", b"x" * (i % 50), mtime)
    model = {
        b"%d" % i: b"x" * (i % 50) for i in range(400) if i >= 280 or i % 3
    }  # fmt: skip
    assert_sound(base, model)
    for suffix in dropped:
        path_of(base, suffix).unlink()
    for mode in ("r", "a", "r"):
        with winkfs.open(base, mode) as container:
            for since in range(-2600, 2600, 1290):
                for until in (since, since + 1, since + 100, since + 1999):
                    found = [int(entry.name) for entry in container.scan(since, until)]
                    wanted = [
                        i
                        for i, mtime in enumerate(mtimes)
                        if since <= mtime < until and b"%d" % i in model
                    ]
                    assert found == wanted, (since, until)
    assert_sound(base, model)


@pytest.mark.slow
def test_a_range_is_not_read_from_the_beginning(base: Path) -> None:
    """The marks narrow the scan: damage before the range is not met."""
    make(base, ((f"{i}", bytes(100), i) for i in range(2000)), ao=True, timemp=10)
    entry = next(e for e in check(base).entries if e.key == b"5/I0")
    flip(path_of(base, ".data"), entry.pos + 20)
    with winkfs.open(base) as container:
        assert len(list(container.scan(since=1000))) == 1000
        assert len(list(container.scan(since=1500, until=1600))) == 100


def test_an_empty_container_then_negative_times(base: Path) -> None:
    with winkfs.create(base, ao=True, timemp=60) as container:
        assert list(container.scan(since=0)) == []
    with winkfs.open(base, "a") as container:
        container.put("a", b"1", -100.5)
        container.put("b", b"2", -60)
        assert [e.mtime for e in container.scan(until=-60)] == [-100.5]
    tree = assert_sound(base, {b"a": b"1", b"b": b"2"})
    assert list(tree.time_marks) == [-120, -60]


def test_attributes_of_a_new_file_are_kept(base: Path) -> None:
    with winkfs.create(base, ao=True) as container:
        container.put("a", b"1", 5, mode=0o600, uid=1, gid=2)
        container.put_rows([Row("b", b"2", 6 * 10**9, mode=0o755)])
        container.append("b", b"+")
        assert container.stat("a").mode == 0o600
        assert container.stat("b").mode == 0o755
    tree = assert_sound(base, {b"a": b"1", b"b": b"2+"})
    assert tree.files[b"a"].uid == 1


@pytest.mark.few(1)
@pytest.mark.slow
def test_large_files_in_append_only(c: Container, base: Path) -> None:
    c.put("large", b"x" * 20_000_000, 30)
    c.put_file("stream", io.BytesIO(b"y" * 5_000_001), mtime_ns=31 * 10**9)
    c.put_many([("small", b"s", 32), ("many", b"z" * 3_000_000, 32)])
    large = {b"large": b"x" * 20_000_000, b"stream": b"y" * 5_000_001, b"many": b"z" * 3_000_000}
    holds(c, base, large | {b"small": b"s"})


def test_a_half_failed_rename_keeps_the_old_inode(base: Path) -> None:
    c = winkfs.create(base, ao=True)
    c.put("aa", b"content", mtime=1)
    c.put("bb", b"b", mtime=2)
    c.store.kv.flush()
    c.store.kv.drain()
    torn: list[Call] = []

    def tear(call: Call) -> None:
        if call.verb == "write" and not torn:
            torn.append(call)
            assert call.file is not None
            os.pwrite(call.file.fd, call.data[: call.length // 2], call.offset)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with disk_calls(tear), pytest.raises(OSError, match="Input/output error"):
        c.rename("aa", "zz")
    assert c.read("aa") == b"content"
    c.close()
    assert files_of(base) == {"aa": b"content", "bb": b"b"}
    assert winkfs.verify(base).problems == []


@pytest.mark.parametrize("classic", [False, True])
def test_a_file_has_room_for_the_appends_that_isz_announces(base: Path, classic: bool) -> None:
    """56 bytes and 16 a piece: ISZ 1024 has room for 60, ISZ 128 for 4."""
    with winkfs.create(base, ao=True, classic=classic, isz=1024) as c:
        for number in range(60):
            c.append("file", b"%d " % number) if number else c.put("file", b"0 ")
            c.changes.settle()  # each append is a piece
        with pytest.raises(PermissionError, match="no room"):
            c.append("file", b"one too many")
    assert read(base, "file") == b"".join(b"%d " % number for number in range(60))


def places_of(base: Path, mtimes: Sequence[int]) -> list[tuple[int, int]]:
    """A container with a file of each of these times -> them, each with where its content is."""
    make(base, ((f"f{t}", b"x", t) for t in mtimes), ao=True, timemp=60, classic=True)
    with winkfs.open(base) as c:
        return [(mtime, c.extents(f"f{mtime}")[0].pointer) for mtime in mtimes]


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("mtimes", [(61, 65, 120, 121, 190), (61, 62), (0, 30, 180)])
def test_marks_of_the_original_format_are_sound_and_go_on(
    base: Path, mtimes: tuple[int, ...]
) -> None:
    original_marks(base, places_of(base, mtimes), 60)
    written = path_of(base, ".time").read_bytes()
    later = [mtimes[-1], mtimes[-1] + 4, mtimes[-1] + 200]
    with winkfs.open(base, "a") as c:
        assert path_of(base, ".time").read_bytes() == written  # they are used
        with pytest.raises(PermissionError):
            c.put("older", b"x", mtimes[-1] - 1)
        for number, mtime in enumerate(later):
            c.put(f"later{number}", b"x", mtime)
    assert winkfs.verify(base).problems == []
    every = [*mtimes, *later]
    with winkfs.open(base) as c:
        for since in range(0, every[-1] + 61, 10):
            for until in (since + 10, since + 70, every[-1] + 1):
                found = [entry.mtime for entry in c.scan(since=since, until=until)]
                assert found == [mtime for mtime in every if since <= mtime < until]


def test_a_mark_that_lies_is_damage(base: Path) -> None:
    places = dict(places_of(base, (61, 65, 120)))
    for lie in [(60, places[65]), (120, places[65]), (180, places[120]), (61, places[61])]:
        path = path_of(base, ".time")
        block = read_superblock_of(path)
        block |= {"ENTRIES": 1, "AENTRIES": 1, "TIMEMARK": lie[0]}
        block["FILESIZE"] = block["SYNCSIZE"] = block["SBSIZE"] + 16
        path.write_bytes(block.encode() + struct.pack(">qq", *lie))
        assert [line for line in winkfs.verify(base).problems if "time marks" in line], lie
