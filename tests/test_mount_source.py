"""A container as a Source, without a kernel: what goes wrong below it."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import winkfs
from winkfs import Container
from winkfs.container.write import Changes
from winkfs.mounting import sourceview
from winkfs.mounting.appendonly import AppendOnlySource
from winkfs.mounting.container import ContainerSource


@pytest.fixture
def source(tmp_path: os.PathLike[str]) -> Iterator[ContainerSource]:
    container = winkfs.create(os.path.join(tmp_path, "c"))
    made = ContainerSource(container)
    yield made
    made.close()
    assert winkfs.verify(container.base).problems == []


@pytest.fixture
def ao(tmp_path: os.PathLike[str]) -> Iterator[AppendOnlySource]:
    container = winkfs.create(os.path.join(tmp_path, "log"), ao=True)
    made = AppendOnlySource(container)
    yield made
    made.close()
    assert winkfs.verify(container.base).problems == []


NOW = 1_700_000_000 * 10**9


def listed(source: ContainerSource, directory: int) -> list[bytes]:
    handle = source.opendir(directory)
    try:
        return [entry.name for entry in source.readdir(handle, 0)]
    finally:
        source.releasedir(handle)


def put(source: ContainerSource, name: bytes, data: bytes) -> int:
    id = source.create(source.root, name, 0o644, os.getuid(), os.getgid()).id
    source.open(id, write=True, truncate=False)
    source.write(id, [(0, data)], NOW)
    source.release(id)
    return id


def fill_disk(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    found = os.statvfs("/")
    fields = {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}
    disk = SimpleNamespace(**fields | {"f_bavail": free, "f_frsize": 1})
    monkeypatch.setattr(sourceview.os, "statvfs", lambda _: disk)
    monkeypatch.setattr(sourceview, "LOOK", 0)
    monkeypatch.setattr(Changes, "spare", 0)
    time.sleep(0.06)


def refused(code: int) -> pytest.RaisesExc[OSError]:
    return pytest.raises(OSError, check=lambda error: error.errno == code)


def test_full_disk_refuses_writes_but_not_removal(
    source: ContainerSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = put(source, b"f", b"kept")
    fill_disk(monkeypatch, sourceview.RESERVE + 100)
    source.write(id, [(4, b"x" * 50)], NOW)
    with refused(errno.ENOSPC):
        source.write(id, [(54, bytes(1000))], NOW)
    fill_disk(monkeypatch, 100)
    for attempt in (
        lambda: source.create(source.root, b"g", 0o644, 0, 0),
        lambda: source.mkdir(source.root, b"d", 0o755, 0, 0),
        lambda: source.symlink(source.root, b"l", b"f", 0, 0),
    ):
        with refused(errno.ENOSPC):
            attempt()
    assert source.read(id, 0, 100) == b"kept" + b"x" * 50
    source.unlink(source.root, b"f")
    source.sync()
    assert listed(source, source.root) == []


def test_full_disk_is_told_to_the_writer_of_an_append_only_file(
    ao: AppendOnlySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = ao.create(ao.root, b"f", 0o644, 0, 0).id
    ao.open(id, write=True, truncate=False)
    ao.write(id, [(0, bytes(10_000))], NOW)
    fill_disk(monkeypatch, sourceview.RESERVE + 5_000)
    with refused(errno.ENOSPC):
        ao.write(id, [(10_000, bytes(10_000))], NOW)
    ao.release(id)  # for what was taken there is room
    assert ao._container.read("f") == bytes(10_000)


def test_append_only_file_that_the_disk_refuses_is_stored_by_a_later_sync(
    ao: AppendOnlySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = ao.create(ao.root, b"f", 0o644, 0, 0).id
    ao.open(id, write=True, truncate=False)
    ao.write(id, [(0, bytes(10_000))], NOW)
    held = ao._changes.held[id]

    def put_file(*args: object, **kwargs: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ao._container, "put_file", put_file)
    with refused(errno.ENOSPC):
        ao.release(id)
    assert ao.read(id, 0, 20_000) == bytes(10_000)
    with refused(errno.ENOSPC):
        ao.sync()
    assert ao._changes.held == {id: held}
    monkeypatch.undo()
    ao.sync()  # there is room again
    assert ao._container.read("f") == bytes(10_000)
    assert not ao._spools and not ao._changes.held


def test_directory_rename_that_fails_in_the_middle_is_undone(
    source: ContainerSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = source.mkdir(source.root, b"d", 0o755, 0, 0).id
    for i in range(10):
        source.create(directory, b"%d" % i, 0o644, 0, 0)
    rename, calls = source._container.rename, []

    def failing(old: bytes, new: bytes, *, ctime_ns: int | None = None) -> None:
        calls.append(old)
        if len(calls) == 6:
            raise OSError(errno.ENOSPC, "full")
        rename(old, new)

    monkeypatch.setattr(source._container, "rename", failing)
    with refused(errno.ENOSPC):
        source.rename(source.root, b"d", source.root, b"e")
    assert set(source._container.names()) == {"d", *(f"d/{i}" for i in range(10))}
    assert listed(source, source.root) == [b"d"]
    assert len(listed(source, directory)) == 10
    monkeypatch.undo()
    source.rename(source.root, b"d", source.root, b"e")
    assert "e/9" in source._container and "d/9" not in source._container


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


def test_attributes_of_the_top_directory_last_as_long_as_the_mount(
    source: ContainerSource,
) -> None:
    """cp -a and rsync set them; the container has nowhere to keep them."""
    source.chmod(source.root, 0o700)
    source.utime(source.root, 12_345, NOW)
    found = source.stat(source.root)
    assert (stat.S_IMODE(found.mode), found.mtime_ns) == (0o700, 12_345)
    source.set_xattrs(source.root, {b"user.x": b"y"})
    assert source.xattrs(source.root) == {b"user.x": b"y"}


def test_unchanged_attributes_write_nothing(source: ContainerSource) -> None:
    id = put(source, b"f", b"x")
    source.sync()
    before = source._container.superblock["FILESIZE"]
    attr = source.stat(id)
    source.chmod(id, stat.S_IMODE(attr.mode))
    source.chown(id, attr.uid, -1)
    source.sync()
    assert source._container.superblock["FILESIZE"] == before


def test_a_directory_that_is_open_is_listed_under_its_new_name(source: ContainerSource) -> None:
    above = source.mkdir(source.root, b"a", 0o755, 0, 0).id
    directory = source.mkdir(above, b"d", 0o755, 0, 0).id
    for i in range(3):
        source.create(directory, b"%d" % i, 0o644, 0, 0)
    handle = source.opendir(directory)
    half = source.readdir(handle, 0)
    next(half)
    source.rename(source.root, b"a", source.root, b"b")
    assert {entry.name for entry in half} >= {b"1", b"2"}
    assert sorted(entry.name for entry in source.readdir(handle, 0)) == [b"0", b"1", b"2"]
    source.releasedir(handle)


@pytest.mark.parametrize("settled", [False, True])
def test_copy_of_a_removed_file_takes_no_room_for_its_holes(
    source: ContainerSource, monkeypatch: pytest.MonkeyPatch, settled: bool
) -> None:
    id = put(source, b"f", b"begin")
    source.open(id, write=True, truncate=False)
    source.truncate(id, 64 << 20)
    source.write(id, [((64 << 20) - 3, b"end")], NOW)
    if settled:
        source.sync()
    source.unlink(source.root, b"f")
    source.sync()
    fill_disk(monkeypatch, sourceview.RESERVE + (3 << 20))
    source.write(id, [(1 << 20, b"middle")], NOW)
    assert source.read(id, 0, 6) == b"begin\0"
    assert source.read(id, (1 << 20) - 1, 8) == b"\0middle\0"
    assert source.read(id, (64 << 20) - 4, 9) == b"\0end"
    assert source.stat(id).size == 64 << 20
    source.release(id)


def test_removed_file_whose_entries_may_be_lost_is_not_read(source: ContainerSource) -> None:
    id = put(source, b"f", b"x" * 100)
    source.open(id, write=True, truncate=False)
    source.unlink(source.root, b"f")
    source._container.troubles += 1
    with refused(errno.EIO):
        source.read(id, 0, 10)
    source.truncate(id, 0)
    source.write(id, [(0, b"new")], NOW)
    assert source.read(id, 0, 10) == b"new"
    source.release(id)


def test_room_for_an_unlink_is_held_until_the_file_is_closed(source: ContainerSource) -> None:
    id = put(source, b"f", b"x")
    before = source._changes.spare
    source.open(id, write=True, truncate=False)
    source.promise_unlink(id)
    assert source._changes.spare < before
    source.release(id)
    assert source._changes.spare == before


FAR = 7955 * 10**15  # nanoseconds: the year 2222
TOO_FAR = 15_032_385_535 * 10**9  # the year 2446, the last of ext4


def test_time_that_no_file_can_have_becomes_the_nearest(source: ContainerSource) -> None:
    id = put(source, b"f", b"x")
    for asked, kept in ((TOO_FAR, 2**63 - 1), (-TOO_FAR, -(2**63)), (FAR, FAR)):
        source.utime(id, asked, NOW)
        source.sync()
        assert source.stat(id).mtime_ns == kept


def test_time_that_no_file_can_have_does_not_lose_an_append_only_file(
    ao: AppendOnlySource,
) -> None:
    id = ao.create(ao.root, b"f", 0o644, 0, 0).id
    ao.open(id, write=True, truncate=False)
    ao.write(id, [(0, b"data")], NOW)
    ao.utime(id, TOO_FAR, NOW)
    ao.release(id)
    assert ao._container.read("f") == b"data"
    put(ao, b"g", b"later")
    assert ao._container.read("g") == b"later"


def test_file_that_cannot_be_stored_takes_no_other_along(
    tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = os.path.join(tmp_path, "log")
    source = AppendOnlySource(winkfs.create(base, ao=True))
    for name in (b"f", b"g"):
        id = source.create(source.root, name, 0o644, 0, 0).id
        source.open(id, write=True, truncate=False)
        source.write(id, [(0, name)], NOW)
    settle = source._put_in_time

    def refuse(name: bytes, *rest: object) -> None:
        if name == b"f":
            raise ValueError("a fault")
        settle(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(source, "_put_in_time", refuse)
    source.close()
    with winkfs.open(base) as container:
        assert [entry.name for entry in container.scan()] == ["g"]


def test_space_that_is_kept_free_is_not_shown_as_free(
    source: ContainerSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    for free, shown in ((sourceview.RESERVE + 5000, 5000), (100, 0)):
        fill_disk(monkeypatch, free)
        assert source.statfs()["f_bavail"] == shown


def test_a_mount_writes_the_index_though_it_maps_nothing(tmp_path: os.PathLike[str]) -> None:
    base = os.path.join(tmp_path, "c")
    winkfs.create(base).close()
    source = ContainerSource(Container(base, "a", mapped=False))
    put(source, b"new", b"1")
    source.close()
    assert source._container.notes == []
    with winkfs.open(base) as reader:
        store = reader.parts()[0]
        assert store.index.base is not None
        assert store.index.base.covered == store.kv.end
    assert winkfs.verify(base).problems == []
