"""Changing files: parts, mtimes, attributes, names; what is refused changes nothing."""

import errno
import io
import math
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from container_checks import PUTS, VERBS, assert_sound, contents, path_of, refused
from oracle_read import check
from oracle_recipes import RECIPES
from seam import disk_calls, refusing

import winkfs
from winkfs import Container, FileType, Row

pytestmark = pytest.mark.in_memory

# --- parts of files -----------------------------------------------------------------------------


def test_many_small_appends_are_few_entries(base: Path) -> None:
    with winkfs.create(base) as container:
        container.put("a", b"")
        for i in range(5000):
            container.append("a", b"%04d" % i)
    data = b"".join(b"%04d" % i for i in range(5000))
    tree = assert_sound(base, {b"a": data})
    assert len(tree.files[b"a"].pairs) < 5


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("classic", [False, True])
@pytest.mark.parametrize(
    "offset, data",
    [(0, b"X"), (0, b"X" * 30), (9, b"X"), (10, b"X"), (11, b"X"), (15, b""), (8, b"XXXX"),
     (3, b"XXX"), (100_000, b"X"), (3_000_000, b"X")],
)  # fmt: skip
def test_write_anywhere(offset: int, data: bytes, classic: bool, base: Path) -> None:
    for synced in (False, True):
        where = base.with_name(f"c{synced}")
        old = b"0123456789"
        with winkfs.create(where, classic=classic) as container:
            container.put("a", old)
            if synced:
                container.sync()
            container.write("a", offset, data)
            new = old
            if data:
                new = old.ljust(offset, b"\0")[:offset] + data + old[offset + len(data) :]
            assert container.read("a") == new
        assert_sound(where, {b"a": new})


@pytest.mark.parametrize("classic", [False, True])
def test_truncate_and_grow_never_shows_old_bytes(classic: bool, base: Path) -> None:
    with winkfs.create(base, classic=classic) as container:
        container.put("a", b"secret" * 1000)
        container.sync()
        container.truncate("a", 3)
        container.truncate("a", 20)
        assert container.read("a") == b"sec".ljust(20, b"\0")
        container.sync()
        container.truncate("a", 2)
        container.write("a", 9, b"end")
        container.truncate("a", 12)
        assert container.read("a") == b"se\0\0\0\0\0\0\0end"
    assert_sound(base, {b"a": b"se\0\0\0\0\0\0\0end"})


def test_a_hole_takes_no_room(base: Path) -> None:
    with winkfs.create(base) as container:
        container.put("a", b"start")
        container.truncate("a", 1 << 40)
        assert container.stat("a").size == 1 << 40
        container.write("a", (1 << 40) - 3, b"end")
        assert container.read("a", (1 << 40) - 5) == b"\0\0end"
        assert container.read("a", 0, 7) == b"start\0\0"
    assert path_of(base, ".data").stat().st_size < 10_000
    assert winkfs.verify(base).problems == []


@pytest.mark.parametrize("size", [(1 << 63) - 1, 1 << 63, 1 << 70])
def test_a_size_that_no_file_can_have(size: int, kept: Container) -> None:
    for verb in (lambda: kept.truncate("a", size + 1), lambda: kept.write("a", size, b"x")):
        with refused((ValueError, OSError)):
            verb()
    kept.put("a", b"kept")


def test_a_synced_extent_is_never_written_again(base: Path) -> None:
    with winkfs.create(base) as container:
        container.put("a", b"0123456789" * 100)
        container.sync()
        end = container.superblock["FILESIZE"]
        before = path_of(base, ".data").read_bytes()[8192:end]
        container.write("a", 5, b"X")
        container.truncate("a", 500)
        container.append("a", b"more")
        container.rename("a", "b")
        container.utime("b", 5)
        container.sync()
        after = path_of(base, ".data").read_bytes()[8192:end]
    entries = check(base).entries
    flags = {entry.pos - 8192 for entry in entries}
    assert all(i in flags for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)


# --- mtimes -------------------------------------------------------------------------------------

MTIMES: list[tuple[float, int]] = [
    (0, 0),
    (1_700_000_000, 1_700_000_000 * 10**9),
    (-1, -(10**9)),
    (2.5, 2_500_000_000),
    (-0.25, -250_000_000),
    (0.1, 100_000_000),
    (1_700_000_000.123456, 1_700_000_000_123_456_001),  # what this float is
    (9_000_000_000, 9 * 10**18),
    (-9_000_000_000, -9 * 10**18),
]


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("classic", [False, True])
@pytest.mark.parametrize("mtime, ns", MTIMES)
def test_mtimes_are_exact(mtime: float, ns: int, classic: bool, base: Path) -> None:
    kept = ns // 10**9 * 10**9 if classic else ns
    with winkfs.create(base, classic=classic) as container:
        container.put("put", b"1", mtime)
        container.put_many([("many", b"1", mtime)])
        container.put_rows([Row("row", b"1", ns)])
        container.put_file("stream", io.BytesIO(b"1"), mtime_ns=ns)
        container.put("set", b"1")
        container.utime("set", mtime)
        container.put("set ns", b"1")
        container.utime("set ns", mtime_ns=ns)
        container.put("put ns", b"1", mtime_ns=ns)
        assert [container.stat(name).mtime_ns for name in container.names()] == [kept] * 7
    with winkfs.open(base) as container:
        found = [(entry.mtime_ns, entry.mtime) for entry in container.scan()]
    assert found == [(kept, mtime if not classic else kept // 10**9)] * 7
    assert [file.mtime_ns for file in check(base).files.values()] == [kept] * 7


@pytest.mark.parametrize("way", ["put", "put_rows", "put_file"])
@pytest.mark.parametrize("ns", [1, -1, 999_999_999, 1_700_000_000_000_000_001, -(2**63), 2**63 - 1])
def test_nanoseconds_are_kept_to_the_last(ns: int, way: str, base: Path) -> None:
    with winkfs.create(base) as container:
        PUTS[way](container, "a", b"1", mtime_ns=ns)
        assert container.stat("a").mtime_ns == ns
    assert check(base).files[b"a"].mtime_ns == ns


@pytest.mark.parametrize("mtime", [math.nan, math.inf, -math.inf])
def test_an_mtime_that_is_none_is_refused(mtime: float, kept: Container) -> None:
    for verb in (
        lambda: kept.put("a", b"x", mtime),
        lambda: kept.put("new", b"x", mtime),
        lambda: kept.put_many([("a", b"x", mtime)]),
        lambda: kept.utime("a", mtime),
    ):
        with refused((ValueError, OverflowError)):
            verb()


def test_no_mtime_is_now(c: Container) -> None:
    before = time.time_ns()
    c.put("put", b"1")
    c.put_many([("many", b"1")])
    for name in ("set", "appended", "written", "cut"):
        c.put(name, b"1", 5)
    c.utime("set")
    c.append("appended", b"1")
    c.write("written", 0, b"2")
    c.truncate("cut", 0)
    after = time.time_ns()
    for name in c.names():
        assert before <= c.stat(name).mtime_ns <= after, name


def test_chmod_and_rename_leave_the_mtime(c: Container) -> None:
    c.put("a", b"1", 5)
    c.chmod("a", 0o600)
    c.chown("a", 5, 5)
    c.setxattrs("a", {b"x": b"y"})
    c.rename("a", "b")
    assert c.stat("b").mtime == 5


# --- attributes ---------------------------------------------------------------------------------


def test_attributes_are_kept_and_taken_away(base: Path) -> None:
    me = os.getuid(), os.getgid()
    xattrs = {b"user.a": b"\0\1", b"user.empty": b"", b"user.long": bytes(60_000)}
    with winkfs.create(base) as container:
        container.put("a", b"data")
        container.chmod("a", 0o4750)
        container.chown("a", 12345, -1)
        container.chown("a", -1, 54321)
        container.setxattrs("a", xattrs)
        container.sync()
        container.append("a", b"+")
        container.rename("a", "b")
        found = container.stat("b")
        assert (found.mode, found.uid, found.gid) == (0o4750, 12345, 54321)
        assert container.getxattrs("b") == xattrs
    file = assert_sound(base, {b"b": b"data+"}).files[b"b"]
    assert (file.mode, file.uid, file.gid, file.xattrs) == (0o4750, 12345, 54321, xattrs)
    with winkfs.open(base, "a") as container:
        container.chmod("b", 0o644)
        container.setxattrs("b", {})
        container.chown("b", *me)
    file = assert_sound(base, {b"b": b"data+"}).files[b"b"]
    assert file.mode is None
    assert not any(pair.is_attributes for pair in file.pairs)


def test_defaults_store_nothing(base: Path) -> None:
    with winkfs.create(base) as container:
        container.put("a", b"1", mode=0o644, uid=os.getuid(), gid=os.getgid())
        container.chmod("a", 0o755)
        container.chmod("a", 0o644)
        container.chmod("a", 0o755)
        container.chown("a", os.getuid(), os.getgid())
        container.chown("a", -1, -1)
        container.setxattrs("a", {})
        assert container.stat("a").ftype == FileType.EXEC
    tree = assert_sound(base, {b"a": b"1"})
    assert not [entry for entry in tree.entries if entry.key.endswith(b"/A0")]
    assert tree.files[b"a"].ftype == FileType.EXEC


@pytest.mark.parametrize(
    "xattrs", [{b"n" * 65_536: b""}, {"text": b""}, {b"name": "text"}, {b"name": None}]
)
def test_xattrs_that_no_container_holds(xattrs: Any, kept: Container) -> None:
    with refused((ValueError, TypeError, OSError)):
        kept.setxattrs("a", xattrs)
    assert kept.getxattrs("a") == {}


@pytest.mark.parametrize("ao", [False, True])
def test_classic_refuses_what_it_cannot_hold(ao: bool, base: Path) -> None:
    verbs: dict[str, Callable[[Container], object]] = {
        "put": lambda c: c.put("a", b"new", mode=0o600),
        "put owner": lambda c: c.put("a", b"new", uid=12345),
        "rows": lambda c: c.put_rows([Row("a", b"new", mode=0o600)]),
        "stream": lambda c: c.put_file("a", io.BytesIO(b"new"), gid=12345),
        "new": lambda c: c.put("new", b"new", mode=0o600),
    }
    if not ao:
        verbs |= {name: VERBS[name] for name in ("chmod", "chown", "setxattrs")}
    with winkfs.create(base, classic=True, ao=ao) as container:
        container.put("a", b"kept", 5)
        before = container.stat("a")
        for name, verb in verbs.items():
            with refused(OSError, code=errno.EOPNOTSUPP):
                verb(container)
            assert contents(container) == {b"a": b"kept"}, name
        assert container.stat("a") == before
        if not ao:
            container.chmod("a", 0o755)
            assert container.stat("a").ftype == FileType.EXEC
    assert_sound(base, {b"a": b"kept"})


def test_short_values_refuse_a_file_of_too_many_pieces(base: Path) -> None:
    """VALREPR 514: an inode of 255 bytes has room for few extents."""
    model = {name: file.content for name, file in RECIPES["limited_values"](base).items()}
    with winkfs.open(base, "a") as container:
        container.put("fits", b"x" * 2000)
        model[b"fits"] = b"x" * 2000
        for way in PUTS.values():
            with refused((OSError, ValueError)):
                way(container, "a", b"x" * 10_000)
                container.sync()
            assert container.read("a") == model[b"a"]
        container.put("later", b"1")
        model[b"later"] = b"1"
    assert_sound(base, model)


# --- names: delete, rename, links ---------------------------------------------------------------


def test_delete_and_put_again(base: Path) -> None:
    with winkfs.create(base) as container:
        container.put("a", b"1")
        first = container.stat("a").fileid
        container.delete("a")
        assert "a" not in container
        assert len(container) == 0
        container.put("a", b"2")
        assert container.stat("a").fileid > first
        container.sync()
        container.delete("a")
        container.sync()
        with pytest.raises(FileNotFoundError):
            container.delete("a")
        container.put_many([("a", b"3")])
    assert_sound(base, {b"a": b"3"})


def test_rename_keeps_the_file_and_replaces_what_was_there(base: Path) -> None:
    with winkfs.create(base) as container:
        container.put("a", b"1" * 500_000, 5, mode=0o600)
        container.put("b", b"2")
        container.sync()
        before = container.stat("a")
        container.rename("a", "b")
        after = container.stat("b")
        assert (after.fileid, after.mtime, after.mode) == (before.fileid, 5, 0o600)
        assert "a" not in container
        with pytest.raises(FileNotFoundError):
            container.rename("a", "c")
        container.rename("b", "b")
        container.rename("b", "a")
        container.rename("a", "b")
    assert_sound(base, {b"b": b"1" * 500_000})


def test_renames_in_a_ring(base: Path) -> None:
    with winkfs.create(base) as container:
        container.put_many([("a", b"1"), ("b", b"2"), ("c", b"3")])
        container.sync()
        for _ in range(4):
            for old, new in [("a", "t"), ("b", "a"), ("c", "b"), ("t", "c")]:
                container.rename(old, new)
            container.append("a", b"+")
        found = contents(container)
        assert sorted(found) == [b"a", b"b", b"c"]
    assert_sound(base, found)


def test_mkdir_symlink_readlink(base: Path) -> None:
    with winkfs.create(base) as container:
        container.mkdir("d")
        container.symlink("../größe \udcff", "d/link")
        container.symlink(b"\xff", "bytes")
        container.put("a", b"1")
        assert container.stat("d").ftype == FileType.DIR
        assert container.readlink("d/link") == "../größe \udcff"
        assert container.readlink("bytes") == "\udcff"
        for name in ("a", "d"):
            with refused(OSError, name, code=errno.EINVAL):
                container.readlink(name)

    target = "../größe ".encode() + b"\xff"
    assert_sound(base, {b"d": b"", b"d/link": target, b"bytes": b"\xff", b"a": b"1"})


def test_a_container_without_delflags_only_grows(base: Path) -> None:
    """KVDELFL missing: a deletion would not outlive a reindex."""
    model = {name: file.content for name, file in RECIPES["never_deletes"](base).items()}
    with winkfs.open(base, "a") as container:
        container.put("new", b"1")
        container.put_many([("many", b"2"), ("many 2", b"")])
        container.put_rows([Row("row", b"3")])
        for name, verb in VERBS.items():
            if name in ("mkdir", "symlink"):
                verb(container)
                continue
            with refused(PermissionError, "KVDELFL", code=errno.EPERM):
                verb(container)
            assert container.read("a") == model[b"a"]
        with pytest.raises(PermissionError):
            container.rename("new", "a")
        with pytest.raises(PermissionError):
            container.put_many([("twice", b"1"), ("twice", b"2")])
    model |= {b"new": b"1", b"many": b"2", b"many 2": b"", b"row": b"3", b"d": b"", b"s": b"a"}
    model[b"twice"] = b"1"
    assert_sound(base, model)


def test_a_rename_that_the_disk_refuses_changes_nothing(c: Container, base: Path) -> None:
    model = {b"a": b"x" * 100, b"ballast": bytes((4 << 20) - 10_000)}  # FILEINCR is 4 MiB
    c.put_many(model.items())
    c.sync()
    full = refusing("preallocate", ".data", errno.ENOSPC)
    old, count = b"a", 0
    with disk_calls(full), pytest.raises(OSError, match="No space left"):
        while True:
            new = b"%d" % count * 1000
            c.rename(old, new)
            model[new] = model.pop(old)
            old, count = new, count + 1
    c.close()
    assert_sound(base, model)


def some_pieces(chance: random.Random, size: int) -> list[tuple[int, bytes]]:
    """Small and large ones, over each other, and beyond the end."""
    sizes = [0, 1, 10, 4096, 4096, 70_000]
    return [
        (chance.randrange(size + 5000), chance.randbytes(chance.choice(sizes)))
        for _ in range(chance.randrange(40))
    ]


def test_small_overwrites_in_a_row_share_an_entry(c: Container) -> None:
    c.put("f", bytes(100_000))
    c.sync()
    before = c.superblock["FILESIZE"], c.superblock["ENTRIES"]
    c.write_many("f", [(at, b"x" * 100) for at in range(0, 100_000, 2000)])
    c.sync()
    assert c.superblock["ENTRIES"] - before[1] == 2  # one of data, and the inode
    assert c.superblock["FILESIZE"] - before[0] < 50 * 100 + 101 * 24 + 300


@pytest.mark.slow
def test_a_file_of_very_many_extents(base: Path) -> None:
    """Overwrites that wait, truncations and growth between them, as a bytearray has it."""
    chance = random.Random(5)
    model = bytearray(chance.randbytes(300_000))
    with winkfs.create(base) as container:
        container.put("f", bytes(model))
        container.setxattrs("f", {b"user.x": b"y"})
        for step in range(1500):
            at, data = chance.randrange(len(model)), chance.randbytes(chance.randrange(1, 300))
            container.write("f", at, data)
            model[at : at + len(data)] = data
            match chance.randrange(100):
                case 0:
                    container.sync()
                case 1:
                    size = chance.randrange(200_000, 320_000)
                    container.truncate("f", size)
                    model = model[:size].ljust(size, b"\0")
                case 2:
                    container.append("f", data)
                    model += data
                case 3:
                    assert container.read("f", at, 5000) == model[at : at + 5000], step
                case 4 | 5 | 6:
                    pieces = some_pieces(chance, len(model))
                    container.write_many("f", pieces, mtime_ns=step)
                    assert container.stat("f").mtime_ns == step
                    for at, data in pieces:
                        model = model.ljust(at, b"\0")
                        model[at : at + len(data)] = data
        assert container.read("f") == model
    with winkfs.open(base, "a") as container:
        assert container.read("f") == model
        assert container.getxattrs("f") == {b"user.x": b"y"}
        container.rename("f", "g")
    assert winkfs.verify(base).problems == []
    assert list(check(base).files) == [b"g"]


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[100], [1, 3000]])
def test_synced_appends_to_a_classic_file_cost_what_they_append(
    base: Path, sizes: list[int]
) -> None:
    """Not the square of their number, for inodes that name each piece."""
    content = b""
    with winkfs.create(base, classic=True) as c:
        c.put("file", b"")
        for number in range(300):
            piece = (b"%d;" % number * 3000)[: sizes[number % len(sizes)]]
            c.append("file", piece)
            c.sync()
            content += piece
        assert c.read("file") == content
        assert len(c.extents("file")) <= 40
    assert os.path.getsize(f"{base}.data") < 12 * len(content) + 300 * 450
    assert_sound(base, {b"file": content})
