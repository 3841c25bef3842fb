"""Listings that go on in pieces, as libfuse asks for them."""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
from pathlib import Path

import pytest
from memory_source import MemorySource

import winkfs
import winkmount.operations as operations_module
from winkfs import FileType
from winkfs.mounting.container import ContainerSource
from winkfs.mounting.listing import Listing
from winkmount.fuse3 import StatForm
from winkmount.handles import DOTS
from winkmount.operations import Operations
from winkmount.source import Attr, DirEntry


class Time(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class Stat(ctypes.Structure):
    """A struct stat, in an order of its own."""

    _fields_ = (
        ("st_mode", ctypes.c_uint32), ("st_ctimespec", Time), ("st_mtimespec", Time),
        ("st_atimespec", Time), ("st_dev", ctypes.c_uint32), ("st_uid", ctypes.c_uint32),
        ("st_gid", ctypes.c_uint32), ("st_size", ctypes.c_int64), ("st_ino", ctypes.c_uint64),
        ("st_blocks", ctypes.c_int64), ("st_nlink", ctypes.c_uint64),
        ("st_blksize", ctypes.c_int32), ("st_unused", ctypes.c_uint32 * 3),
    )  # fmt: skip


def pieces(operations: Operations, handle: int, room: int, offset: int = 0) -> list[DirEntry]:
    """The entries from `offset` on for which there is room, with the offsets of libfuse."""
    taken: list[DirEntry] = []

    def take(entries: list[DirEntry], plus: bool) -> int:
        fit = entries[: room - len(taken)]
        taken.extend(entry._replace(offset=entry.offset + DOTS) for entry in fit)
        return len(fit)

    operations.fill(handle, offset, take)
    return taken


def filled(count: int) -> tuple[MemorySource, Operations]:
    source = MemorySource()
    for i in range(count):
        source.create(1, b"%03d" % i, 0o644, 0, 0)
    return source, Operations(source, "memory")


def test_pieces_make_the_whole_each_name_once() -> None:
    for room in (1, 2, 3, 7, 100):
        _, operations = filled(20)
        handle, offset, names = operations.opendir("/"), 0, []
        while found := pieces(operations, handle, room, offset):
            names += [entry.name for entry in found]
            offset = found[-1].offset
        assert names == [b".", b"..", *(b"%03d" % i for i in range(20))]
        operations.releasedir(None, handle)


def test_an_entry_without_room_that_goes_does_not_come() -> None:
    _, operations = filled(5)
    handle = operations.opendir("/")
    first = pieces(operations, handle, 3)
    operations.unlink("/001")  # there was no room for it
    rest = pieces(operations, handle, 100, first[-1].offset)
    assert [entry.name for entry in first + rest] == [b".", b"..", b"000", b"002", b"003", b"004"]


def test_an_entry_without_room_comes_as_it_is_then() -> None:
    _, operations = filled(2)
    handle = operations.opendir("/")
    first = pieces(operations, handle, 3)
    operations.chmod("/001", 0o600)
    (last,) = pieces(operations, handle, 100, first[-1].offset)
    assert last.attr.mode & 0o777 == 0o600


def test_a_listing_starts_anew_where_it_is_told() -> None:
    _, operations = filled(5)
    handle = operations.opendir("/")
    whole = pieces(operations, handle, 100)
    assert pieces(operations, handle, 100, whole[3].offset) == whole[4:]
    operations.mkdir("/new", 0o755)
    assert [entry.name for entry in pieces(operations, handle, 100)][-1] == b"new"


def test_many_attributes_are_packed_as_one() -> None:
    form = StatForm(Stat)
    attrs = [
        Attr(1, 0o100644, 0, 0, 0, 0),
        Attr((1 << 63) - 1, 0o040755, (1 << 40) + 1, -1, 1000, (1 << 32) - 2),
        Attr(7, 0o120777, 512, 1_700_000_000_123_456_789, 5, 6),
    ]
    one = bytearray(form.size)
    for attr, row in zip(attrs, form.pack(attrs), strict=True):
        form.pack_into(memoryview(one), attr, 1)
        assert row.tobytes() == bytes(one)


def test_a_server_with_much_memory_gives_no_attributes_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """libfuse keeps each name that comes with attributes."""
    for memory, expected in ((10 << 20, {True}), (1 << 30, {False})):
        pages = f"0 {memory // os.sysconf('SC_PAGE_SIZE')} 0".encode()
        monkeypatch.setattr(Path, "read_bytes", lambda _, pages=pages: pages)
        _, operations = filled(5)
        seen = set()

        def take(entries: list[DirEntry], plus: bool, seen: set[bool] = seen) -> int:
            seen.add(plus)
            return len(entries)

        operations.fill(operations.opendir("/"), 0, take)
        assert seen == expected


def test_own_memory_counts_what_is_allocated() -> None:
    before = operations_module.own_memory()
    with mmap.mmap(-1, 64 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as new:  # not of a heap
        new.write(bytes(64 << 20))
        assert 48 << 20 < operations_module.own_memory() - before < 80 << 20


# --- directories of a container ---


def directories(base: Path, wide: int) -> None:
    """Directories with entries: beside names that sort between them and theirs, empty ones, one
    without a mode; one of them has `wide` of them."""
    rows = [
        winkfs.Row("plain", b"", 10**18 + 5, FileType.DIR),
        winkfs.Row("plain-", b"1", 10**18), winkfs.Row("plain/f", b"1", 10**18),
        winkfs.Row("empty", b"", 10**18, FileType.DIR, 0o2711, 5, 6, {b"user.x": b"1"}),
        winkfs.Row("implied/f", b"1", 10**18),
        winkfs.Row("wide", b"", 7, FileType.DIR, 0o500, 1, 2),
    ]  # fmt: skip
    for i in range(wide):
        mode, mtime = 0o700 + i % 8, 10**18 - i
        rows.append(winkfs.Row(f"wide/d{i:04d}", b"", mtime, FileType.DIR, mode, i, 2 * i))
        rows += [winkfs.Row(f"wide/d{i:04d}/{k}", b"x", 1) for k in range(i % 3)]
    with winkfs.create(base) as container:
        container.put_rows(rows)


def listed_and_looked_up(source: ContainerSource) -> dict[bytes, Attr]:
    """Path -> what a listing says, which a lookup says, too."""
    found: dict[bytes, Attr] = {}
    waiting = [(b"", source.view.root)]
    while waiting:
        above, id = waiting.pop()
        handle = source.opendir(id)
        entries = list(source.readdir(handle, 0))
        source.releasedir(handle)
        assert len({entry.name for entry in entries}) == len(entries)
        for name, attr, _ in entries:
            assert source.lookup(id, name) == attr, above + b"/" + name
            assert source.stat(attr.id) == attr
            found[above + b"/" + name] = attr
            if attr.is_dir:
                waiting.append((above + b"/" + name, attr.id))
    return found


@pytest.mark.parametrize("wide", [3, 40, 3000])
@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_listing_says_of_directories_what_a_lookup_does(
    wide: int, mode: str, tmp_path: Path
) -> None:
    directories(tmp_path / "c", wide)
    source = ContainerSource(winkfs.open(tmp_path / "c", mode))
    found = listed_and_looked_up(source)
    assert len(found) == 7 + wide + sum(i % 3 for i in range(wide))
    assert found[b"/empty"][1:] == (stat.S_IFDIR | 0o2711, 0, 10**18, 5, 6, 0)
    assert found[b"/wide/d0002"][1:] == (stat.S_IFDIR | 0o702, 0, 10**18 - 2, 2, 4, 0)
    assert found[b"/plain"].mtime_ns == 10**18 + 5
    assert len({attr.id for attr in found.values()}) == len(found)
    source.close()


def test_a_listing_says_of_directories_what_changed(tmp_path: Path) -> None:
    directories(tmp_path / "c", 100)
    source = ContainerSource(winkfs.open(tmp_path / "c", "a"))
    root, before = source.view.root, listed_and_looked_up(source)
    wide = before[b"/wide"].id

    def id_of(name: bytes) -> int:
        return source.lookup(wide, name).id

    source.create(id_of(b"d0001"), b"new", 0o644, 0, 0)  # which changes its mtime
    source.unlink(id_of(b"d0002"), b"1")
    source.chmod(id_of(b"d0003"), 0o711)
    source.utime(id_of(b"d0004"), 77, 10**18 + 10**9)
    source.rmdir(wide, b"d0006")
    source.mkdir(wide, b"d0006", 0o750, 8, 9)
    source.rename(wide, b"d0007", root, b"moved")
    for synced in (False, True):
        if synced:
            source.sync()
        after = listed_and_looked_up(source)
        changed = {path: attr for path, attr in after.items() if before.get(path, attr) != attr}
        assert set(changed) == {
            b"/wide", b"/wide/d0001", b"/wide/d0002", b"/wide/d0003", b"/wide/d0004",
            b"/wide/d0006",
        }  # fmt: skip
        assert changed[b"/wide/d0001"].mtime_ns > before[b"/wide/d0001"].mtime_ns
        assert changed[b"/wide/d0001"].mode == before[b"/wide/d0001"].mode
        assert changed[b"/wide/d0003"].mode == stat.S_IFDIR | 0o711
        assert changed[b"/wide/d0004"].mtime_ns == 77
        gone = {b"/wide/d0002/1", b"/wide/d0007", b"/wide/d0007/0"}
        assert before.keys() - after.keys() == gone
        assert after[b"/moved"].id == before[b"/wide/d0007"].id
    source.close()
    source = ContainerSource(winkfs.open(tmp_path / "c"))
    again = listed_and_looked_up(source)
    for known in (again, after):
        del known[b"/implied"]  # its time is that of the data file
    assert {p: a[1:6] for p, a in again.items()} == {p: a[1:6] for p, a in after.items()}
    source.close()


def test_a_mount_that_follows_lists_directories_as_they_are_now(tmp_path: Path) -> None:
    directories(tmp_path / "c", 30)
    source = ContainerSource(winkfs.open(tmp_path / "c"))
    listed_and_looked_up(source)
    with winkfs.open(tmp_path / "c", "a") as container:
        container.chmod("wide/d0005", 0o711)
        container.mkdir("wide/late")
        container.delete("wide/d0003")
        container.sync()
        assert source.refresh()
        found = listed_and_looked_up(source)
        assert found[b"/wide/d0005"].mode == stat.S_IFDIR | 0o711
        assert b"/wide/late" in found
        assert b"/wide/d0003" not in found
    source.close()


def test_a_listing_does_not_say_where_a_file_was_before(tmp_path: Path) -> None:
    """Ids that were forgotten are learned again from listings, of names that are still there."""
    base = tmp_path / "c"
    with winkfs.create(base) as container:
        container.put_many((name, b"1") for name in ("d/a", "d/b", "d/below/c", "d/z", "far/x"))
    winkfs.reindex(base)  # with the order of names
    source = ContainerSource(winkfs.open(base, "a"))
    top, names = source.root, {}
    for folder in (b"d", b"far"):
        names[folder] = source.lookup(top, folder).id
    moved = {name: source.lookup(names[b"d"], name).id for name in (b"a", b"b")}
    for name in moved:
        source.rename(names[b"d"], name, top, b"new " + name)
    below = source.lookup(names[b"d"], b"below").id
    deep = source.lookup(below, b"c").id
    source.rename(below, b"c", top, b"new c")
    source.rename(top, b"far", top, b"farther")  # a directory: the ids of other files are forgotten
    for folder in (b"d/below", b"d"):
        list(Listing(source.view, folder).entries(0))
    for name, id in (*moved.items(), (b"c", deep)):
        assert source.places._known(id) in (None, b"new " + name)
    source.close()
