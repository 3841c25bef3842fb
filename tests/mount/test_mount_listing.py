"""Listings that go on in pieces, as the kernel asks for them."""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from memory_source import MemorySource
from mount_requests import Asker, parsed
from sources import at, kept, tree_of
from sources import sources_end as sources_end  # a fixture
from stored import make

import winkfs
from winkfs import FileType
from winkfs.container.table import ASK, KIND, FileTable
from winkfs.mounting.container import ContainerSource
from winkfs.mounting.listing import FEW_ROWS, Listing, listed
from winkmount.kernel import protocol as p
from winkmount.source import UNREADABLE, Amendment, Attr, DirEntry, refuse, run_steps

ROOM = p.ENTRY_OUT.size + p.DIRENT.size + 8  # bytes of an entry with attributes and a short name


def filled(count: int) -> Asker:
    source = MemorySource()
    for i in range(count):
        source.create(1, b"%03d" % i, 0o644, 0, 0)
    return Asker(source)


def test_pieces_make_the_whole_each_name_once() -> None:
    for room in (1, 2, 3, 7, 100):
        asker = filled(20)
        handle, offset, names = asker.opendir("/"), 0, []
        while found := asker.entries(handle, offset, room * ROOM, plus=True):
            assert len(found) <= room
            names += [entry.name for entry in found]
            offset = found[-1].offset
        assert names == [b".", b"..", *(b"%03d" % i for i in range(20))]
        asker.releasedir(None, handle)


def test_an_entry_without_room_that_goes_does_not_come() -> None:
    asker = filled(5)
    handle = asker.opendir("/")
    first = asker.entries(handle, 0, 3 * ROOM, plus=True)
    asker.unlink("/001")  # there was no room for it
    rest = asker.entries(handle, first[-1].offset, plus=True)
    assert [entry.name for entry in first + rest] == [b".", b"..", b"000", b"002", b"003", b"004"]


def test_an_entry_without_room_comes_as_it_is_then() -> None:
    asker = filled(2)
    handle = asker.opendir("/")
    first = asker.entries(handle, 0, 3 * ROOM, plus=True)
    asker.chmod("/001", 0o600)
    (last,) = asker.entries(handle, first[-1].offset, plus=True)
    assert last.mode & 0o777 == 0o600


class Broken(MemorySource):
    """A Source that cannot list the files from number 300 on."""

    def readdir(self, handle: int, offset: int) -> Iterator[DirEntry]:
        for entry in super().readdir(handle, offset):
            if entry.name == b"300":
                raise refuse(errno.EIO)
            yield entry


def test_a_listing_that_cannot_be_read_on_does_not_seem_complete() -> None:
    """Each time that it is asked for."""
    source = Broken()
    for i in range(400):
        source.create(1, b"%03d" % i, 0o644, 0, 0)
    asker = Asker(source)
    handle, offset = asker.opendir("/"), 0
    for _ in range(2):
        with pytest.raises(OSError, match=re.escape(os.strerror(errno.EIO))):
            while found := asker.entries(handle, offset):
                offset = found[-1].offset
        assert offset > 0


def test_a_listing_restarts_on_request() -> None:
    asker = filled(5)
    handle = asker.opendir("/")
    whole = asker.entries(handle)
    assert asker.entries(handle, whole[3].offset) == whole[4:]
    asker.mkdir("/new", 0o755)
    assert [entry.name for entry in asker.entries(handle)][-1] == b"new"


class Odd(MemorySource):
    """Files with attributes of many kinds."""

    def stat(self, id: int) -> Attr:
        attr, n = super().stat(id), id % 4
        if id == 1 or not n:
            return attr
        return (
            Attr(id, 0o040755, (1 << 40) + 1, -1, 1000, (1 << 32) - 2),
            Attr(id, 0o120777, 512, 1_700_000_000_123_456_789, 5, 6),
            Attr(id, 0o104711, UNREADABLE, 5, 5, 6, 1_700_000_000_000_000_001),
        )[n - 1]


@pytest.mark.parametrize("plus", [False, True])
def test_many_entries_are_packed_as_one_is(plus: bool) -> None:
    source = Odd()
    for i in range(100):
        source.create(1, b"%d" % i, 0o644, 0, 0)
    opcode = p.READDIRPLUS if plus else p.READDIR
    asker = Asker(source)
    handle = asker.opendir("/")

    def packed(offset: int, room: int) -> bytes:
        return asker.ask(opcode, p.TOP, p.READ_IN.pack(handle, offset, room))

    whole, one, offset = packed(0, 1 << 20), b"", 0
    while part := packed(offset, ROOM):
        *_, last = parsed(part, plus=plus)
        one, offset = one + part, last.offset
    assert whole == one


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


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("wide", [3, 40, 3000])
@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_listing_agrees_with_lookup_on_directories(wide: int, mode: str, tmp_path: Path) -> None:
    directories(tmp_path / "c", wide)
    source = kept(ContainerSource(winkfs.open(tmp_path / "c", mode)))
    found = tree_of(source)
    assert len(found) == 7 + wide + sum(i % 3 for i in range(wide))
    assert found[b"empty"][1:] == (stat.S_IFDIR | 0o2711, 0, 10**18, 5, 6, 0)
    assert found[b"wide/d0002"][1:] == (stat.S_IFDIR | 0o702, 0, 10**18 - 2, 2, 4, 0)
    assert found[b"plain"].mtime_ns == 10**18 + 5
    assert len({attr.id for attr in found.values()}) == len(found)


@pytest.mark.parametrize("count", [3, FEW_ROWS + 1])  # one by one, and as columns
@pytest.mark.parametrize("ftype", [FileType.DIR, FileType.FILE])
def test_a_row_without_its_attributes_is_incomplete(count: int, ftype: int) -> None:
    rows = FileTable.of([b"%03d" % i for i in range(count)], np.arange(count) + 1, fileid=7)
    rows.numbers[:, KIND] = ftype
    rows.numbers[1, KIND] |= ASK
    _, directories, odd = listed(rows, (0, 0))
    assert list(odd) == [1]
    assert len(list(directories)) == (count if ftype == FileType.DIR else 0)


def test_a_listing_reports_changed_directories(tmp_path: Path) -> None:
    directories(tmp_path / "c", 100)
    source = kept(ContainerSource(winkfs.open(tmp_path / "c", "a")))
    root, before = source.root, tree_of(source)
    wide = before[b"wide"].id

    def id_of(name: bytes) -> int:
        return source.lookup(wide, name).id

    source.create(id_of(b"d0001"), b"new", 0o644, 0, 0)  # which changes its mtime
    source.unlink(id_of(b"d0002"), b"1")
    source.amend(id_of(b"d0003"), Amendment(mode=0o711), time.time_ns())
    source.amend(id_of(b"d0004"), Amendment(mtime_ns=77), 10**18 + 10**9)
    source.rmdir(wide, b"d0006")
    source.mkdir(wide, b"d0006", 0o750, 8, 9)
    source.rename(wide, b"d0007", root, b"moved")
    for synced in (False, True):
        if synced:
            run_steps(source.syncing(None))
        after = tree_of(source)
        changed = {path: attr for path, attr in after.items() if before.get(path, attr) != attr}
        assert set(changed) == {
            b"wide", b"wide/d0001", b"wide/d0002", b"wide/d0003", b"wide/d0004",
            b"wide/d0006",
        }  # fmt: skip
        assert changed[b"wide/d0001"].mtime_ns > before[b"wide/d0001"].mtime_ns
        assert changed[b"wide/d0001"].mode == before[b"wide/d0001"].mode
        assert changed[b"wide/d0003"].mode == stat.S_IFDIR | 0o711
        assert changed[b"wide/d0004"].mtime_ns == 77
        gone = {b"wide/d0002/1", b"wide/d0007", b"wide/d0007/0"}
        assert before.keys() - after.keys() == gone
        assert after[b"moved"].id == before[b"wide/d0007"].id
    source.close()
    source = kept(ContainerSource(winkfs.open(tmp_path / "c")))
    again = tree_of(source)
    for known in (again, after):
        del known[b"implied"]  # its time is that of the data file
    assert {p: a[1:6] for p, a in again.items()} == {p: a[1:6] for p, a in after.items()}


def test_a_mount_that_follows_lists_directories_as_they_are_now(tmp_path: Path) -> None:
    directories(tmp_path / "c", 30)
    source = kept(ContainerSource(winkfs.open(tmp_path / "c")))
    tree_of(source)
    with winkfs.open(tmp_path / "c", "a") as container:
        container.chmod("wide/d0005", 0o711)
        container.mkdir("wide/late")
        container.delete("wide/d0003")
        container.sync()
        assert source.refresh()
        found = tree_of(source)
        assert found[b"wide/d0005"].mode == stat.S_IFDIR | 0o711
        assert b"wide/late" in found
        assert b"wide/d0003" not in found


def test_a_listing_does_not_restore_the_old_place_of_a_file(tmp_path: Path) -> None:
    """Ids that were forgotten are learned again from listings, of names that are still there."""
    base = tmp_path / "c"
    make(base, ((name, b"1") for name in ("d/a", "d/b", "d/below/c", "d/z", "far/x")))
    winkfs.reindex(base)  # with the order of names
    source = kept(ContainerSource(winkfs.open(base, "a")))
    top, folder = source.root, at(source, "d")
    at(source, "far")
    moved = {name: source.lookup(folder, name).id for name in (b"a", b"b")}
    for name in moved:
        source.rename(folder, name, top, b"new " + name)
    below = source.lookup(folder, b"below").id
    deep = source.lookup(below, b"c").id
    source.rename(below, b"c", top, b"new c")
    source.rename(top, b"far", top, b"farther")  # a directory: the ids of other files are forgotten
    for path in (b"d/below", b"d"):
        list(Listing(source, path).entries(0))
    for name, id in (*moved.items(), (b"c", deep)):
        assert source.places._known(id) in (None, b"new " + name)
