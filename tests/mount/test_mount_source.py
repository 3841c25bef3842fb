"""A container as a Source, without a kernel: what goes wrong below it."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from mounting import all_refused, refused
from seam import disk_calls, once, refusing
from sources import listed, new_file

import winkfs
from winkformats.disk.posix import FileStorage
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import read_superblock
from winkfs import Container
from winkfs.mounting.appendonly import AppendOnlySource
from winkfs.mounting.container import RESERVE, ContainerSource
from winkmount.source import Amendment, run_steps


@pytest.fixture
def base(tmp_path: Path) -> Iterator[str]:
    """Yield the path for a container that the test makes; it is verified at the end."""
    yield str(tmp_path / "c")
    assert winkfs.verify(tmp_path / "c").problems == []


@pytest.fixture
def source(base: str) -> Iterator[ContainerSource]:
    made = ContainerSource(winkfs.create(base))
    yield made
    made.close()


@pytest.fixture
def ao(base: str) -> Iterator[AppendOnlySource]:
    made = AppendOnlySource(winkfs.create(base, ao=True))
    yield made
    made.close()


NOW = 1_700_000_000 * 10**9


def put(source: ContainerSource, name: bytes, data: bytes) -> int:
    id = new_file(source, name, data, NOW)
    source.release(id)
    return id


def set_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """Have the disk say that so many bytes are free."""
    found = os.statvfs("/")
    fields = {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}
    disk = SimpleNamespace(**fields | {"f_bavail": free, "f_frsize": 1})
    monkeypatch.setattr(os, "statvfs", lambda _: disk)


def held_ready(source: ContainerSource) -> int:
    """Bytes that the file of the container has, and that nobody was promised."""
    with pytest.MonkeyPatch.context() as patch:
        set_free(patch, RESERVE)
        return source.statfs()["f_bavail"]


def no_room() -> None:
    raise OSError(errno.ENOSPC, "full")


def fill_disk(monkeypatch: pytest.MonkeyPatch, source: ContainerSource, free: int) -> None:
    """So many bytes are left, with what the container has for itself."""
    set_free(monkeypatch, free - held_ready(source))
    time.sleep(0.06)  # it is not asked at each write


def test_full_disk_refuses_writes_but_not_removal(
    source: ContainerSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = put(source, b"f", b"kept")
    fill_disk(monkeypatch, source, RESERVE + 100)
    source.write(id, [(4, b"x" * 50)], NOW)
    with refused(errno.ENOSPC):
        source.write(id, [(54, bytes(1000))], NOW)
    fill_disk(monkeypatch, source, 100)
    all_refused(
        errno.ENOSPC,
        lambda: source.create(source.root, b"g", 0o644, 0, 0),
        lambda: source.mkdir(source.root, b"d", 0o755, 0, 0),
        lambda: source.symlink(source.root, b"l", b"f", 0, 0),
    )
    assert source.read(id, 0, 100) == b"kept" + b"x" * 50
    source.unlink(source.root, b"f")
    run_steps(source.syncing(None))
    assert listed(source, source.root) == []


def test_the_writer_of_an_append_only_file_gets_enospc(
    ao: AppendOnlySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = new_file(ao, b"f", bytes(10_000))
    fill_disk(monkeypatch, ao, RESERVE + 5_000)
    with refused(errno.ENOSPC):
        ao.write(id, [(10_000, bytes(10_000))], NOW)
    ao.release(id)  # for what was taken there is room
    assert ao.names.container.read("f") == bytes(10_000)


def test_a_refused_append_only_file_is_stored_by_a_later_sync(
    ao: AppendOnlySource, tmp_path: Path
) -> None:
    data = bytes(20 << 20)
    id = new_file(ao, b"f", data)
    with disk_calls(refusing("write", ".data", errno.ENOSPC)):
        with refused(errno.ENOSPC):
            ao.release(id)
        assert ao.read(id, 0, len(data) + 1) == data
        with refused(errno.ENOSPC):
            run_steps(ao.syncing(None))
    assert held_ready(ao) < len(data)  # its room is kept
    assert nameless(tmp_path)
    run_steps(ao.syncing(None))  # there is room again
    assert ao.names.container.read("f") == data
    assert 0 < held_ready(ao) < len(data)  # now it needs none
    assert not nameless(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("nth", [1, 2, 10])
def test_directory_rename_that_fails_in_the_middle_is_undone(nth: int, base: str) -> None:
    winkfs.create(base).close()
    with KVSeq.open(FileStorage(f"{base}.data", "w"), writable=True) as kv:
        kv.sync({"FILEINCR": 0})  # so that each name asks for room
    container = winkfs.open(base, "a")
    source = ContainerSource(container)
    directory = source.mkdir(source.root, b"d", 0o755, 0, 0).id
    names = [b"%03d" % i * 60 for i in range(60)]
    for name in names:
        source.create(directory, name, 0o644, 0, 0)
    run_steps(source.syncing(None))
    full = once("preallocate", "", no_room, nth=nth)
    with disk_calls(full), refused(errno.ENOSPC):
        source.rename(source.root, b"d", source.root, b"e")
    assert {*container.names()} == {"d", *(f"d/{name.decode()}" for name in names)}
    assert listed(source, source.root) == [b"d"]
    assert sorted(listed(source, directory)) == names
    source.rename(source.root, b"d", source.root, b"e")
    assert {*container.names()} == {"e", *(f"e/{name.decode()}" for name in names)}
    source.close()


def test_rename_to_a_name_too_long_for_a_path_changes_nothing(source: ContainerSource) -> None:
    parent = source.root
    for _ in range(15):
        parent = source.mkdir(parent, b"d" * 255, 0o755, 0, 0).id
    top = source.lookup(source.root, b"d" * 255).id
    source.create(parent, b"f" * 200, 0o644, 0, 0)
    other = source.mkdir(source.root, b"o" * 200, 0o755, 0, 0).id
    with refused(errno.ENAMETOOLONG):
        source.rename(source.root, b"d" * 255, other, b"d" * 255)
    with refused(errno.ENAMETOOLONG):
        source.create(parent, b"g" * 255 + b"g", 0o644, 0, 0)
    assert source.lookup(source.root, b"d" * 255).id == top


def test_attributes_of_the_top_directory_last_while_mounted(
    source: ContainerSource,
) -> None:
    """cp -a and rsync set them; the container has nowhere to keep them."""
    source.amend(source.root, Amendment(mode=0o700), time.time_ns())
    source.amend(source.root, Amendment(mtime_ns=12_345), NOW)
    found = source.stat(source.root)
    assert (stat.S_IMODE(found.mode), found.mtime_ns) == (0o700, 12_345)
    source.set_xattrs(source.root, {b"user.x": b"y"})
    assert source.xattrs(source.root) == {b"user.x": b"y"}


def test_unchanged_attributes_write_nothing(source: ContainerSource) -> None:
    id = put(source, b"f", b"x")
    run_steps(source.syncing(None))
    container = source.names.container
    before = container.superblock["FILESIZE"]
    attr = source.stat(id)
    source.amend(id, Amendment(mode=stat.S_IMODE(attr.mode)), time.time_ns())
    source.amend(id, Amendment(uid=attr.uid, gid=-1), time.time_ns())
    run_steps(source.syncing(None))
    assert container.superblock["FILESIZE"] == before


@pytest.mark.slow
@pytest.mark.parametrize("settled", [False, True])
def test_copy_of_a_removed_file_takes_no_room_for_its_holes(
    source: ContainerSource, monkeypatch: pytest.MonkeyPatch, settled: bool
) -> None:
    id = new_file(source, b"f", b"begin")
    source.truncate(id, 64 << 20)
    source.write(id, [((64 << 20) - 3, b"end")], NOW)
    if settled:
        run_steps(source.syncing(None))
    source.unlink(source.root, b"f")
    run_steps(source.syncing(None))
    fill_disk(monkeypatch, source, RESERVE + (3 << 20))
    source.write(id, [(1 << 20, b"middle")], NOW)
    assert source.read(id, 0, 6) == b"begin\0"
    assert source.read(id, (1 << 20) - 1, 8) == b"\0middle\0"
    assert source.read(id, (64 << 20) - 4, 9) == b"\0end"
    assert source.stat(id).size == 64 << 20
    source.release(id)


def test_a_removed_file_with_freed_entries_is_not_read(source: ContainerSource) -> None:
    id = new_file(source, b"f", b"x" * 100)
    source.unlink(source.root, b"f")
    put(source, b"g", b"y")
    with disk_calls(refusing("write", ".data", errno.ENOSPC)), refused(errno.ENOSPC):
        run_steps(source.syncing(None))
    with refused(errno.EIO):
        source.read(id, 0, 10)
    source.truncate(id, 0)
    source.write(id, [(0, b"new")], NOW)
    assert source.read(id, 0, 10) == b"new"
    source.release(id)


FAR = 7955 * 10**15  # nanoseconds: the year 2222
TOO_FAR = 15_032_385_535 * 10**9  # the year 2446, the last of ext4


def test_time_that_no_file_can_have_becomes_the_nearest(source: ContainerSource) -> None:
    id = put(source, b"f", b"x")
    for asked, kept in ((TOO_FAR, 2**63 - 1), (-TOO_FAR, -(2**63)), (FAR, FAR)):
        source.amend(id, Amendment(mtime_ns=asked), NOW)
        run_steps(source.syncing(None))
        assert source.stat(id).mtime_ns == kept


def test_an_impossible_time_does_not_lose_an_append_only_file(ao: AppendOnlySource) -> None:
    id = new_file(ao, b"f", b"data")
    ao.amend(id, Amendment(mtime_ns=TOO_FAR), NOW)
    ao.release(id)
    assert ao.names.container.read("f") == b"data"
    put(ao, b"g", b"later")
    assert ao.names.container.read("g") == b"later"


def test_file_that_cannot_be_stored_takes_no_other_along(base: str, tmp_path: Path) -> None:
    source = AppendOnlySource(winkfs.create(base, ao=True))
    for name in (b"f", b"g"):
        new_file(source, name, name * (2 << 20))
        if name == b"f":
            (spool,) = nameless(tmp_path)
            with Path(os.devnull).open("wb") as unreadable:
                os.dup2(unreadable.fileno(), spool)
    source.close()
    with winkfs.open(base) as container:
        assert [entry.name for entry in container.scan()] == ["g"]


def nameless(folder: Path) -> list[int]:
    """Descriptors of this process for files made without a name in a folder."""
    opened = [
        (fd.name, os.readlink(fd)) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()
    ]
    return [int(fd) for fd, to in opened if to.startswith(f"{folder}/#")]


def test_space_that_is_kept_free_is_not_shown_as_free(
    source: ContainerSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    for free, shown in ((RESERVE + 5000, 5000), (100, 0)):
        fill_disk(monkeypatch, source, free)
        assert source.statfs()["f_bavail"] == shown


def test_a_mount_writes_the_index_though_it_maps_nothing(base: str) -> None:
    winkfs.create(base).close()
    container = Container(base, "a", mapped=False)
    source = ContainerSource(container)
    put(source, b"new", b"1")
    with disk_calls() as calls:
        source.close()
    assert container.notes == []
    assert not [call for call in calls if call.verb == "map" and call.path == f"{base}.data"]
    with winkfs.open(base) as reader, FileStorage(f"{base}.idx") as index:
        assert read_superblock(index)["DATAEND"] == reader.superblock["FILESIZE"]


def test_create_sees_what_came_since_the_name_was_not_found(source: ContainerSource) -> None:
    """The kernel looks a name up before it creates it; what is remembered of that must not last."""

    def missed() -> None:
        with refused(errno.ENOENT):
            source.lookup(source.root, b"n")

    missed()
    source.create(source.root, b"other", 0o644, 0, 0)
    source.rename(source.root, b"other", source.root, b"n")
    with refused(errno.EEXIST):
        source.create(source.root, b"n", 0o644, 0, 0)
    source.unlink(source.root, b"n")
    parent = source.mkdir(source.root, b"d", 0o755, 0, 0).id
    source.create(parent, b"f", 0o644, 0, 0)
    source.names.container.delete("d")  # the directory is implied from now on
    source.names.recheck()
    source.unlink(source.lookup(source.root, b"d").id, b"f")  # and stays
    missed()
    source.rename(source.root, b"d", source.root, b"n")
    with refused(errno.EEXIST):
        source.create(source.root, b"n", 0o644, 0, 0)
    assert source.lookup(source.root, b"n").is_dir
