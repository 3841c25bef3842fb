"""Fsync that fails anywhere in a commit: what it covered is made anew before it is believed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import data_sets
import pytest
import stored
from data_sets import root as root
from mounting import sync
from seam import disk_calls, refusing

import winkfs
from winkfs.dataset.maintain import adopt
from winkfs.dataset.manifest import Log, create, is_dataset

SYNCS = 70  # more than two commits have, one of them tried again


class Disk:
    """What is on the disk for sure, by file and directory.

    A file is safe once it was synced, and never again when a sync of it failed: the system may have
    dropped what was written. A name is safe once its directory was synced after it came to stand
    for this file; after a failed sync only when it is made again.
    """

    def __init__(self, patch: pytest.MonkeyPatch, root: Path, fail: int) -> None:
        self._root, self.fail, self.count = root, fail, 0
        self.failed: Path | None = None
        self._files: dict[int, bool] = {}
        self._names: dict[tuple[int, str], tuple[int, bool]] = {}  # in a directory -> (inode, safe)
        self._lost: set[tuple[int, str, int]] = set()
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self.syncing(getattr(os, name)))
        for name in ("replace", "link", "mkdir", "open"):
            patch.setattr(os, name, self._named(name, getattr(os, name)))

    def _named(self, what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call that makes a name: it is written to the directory, in this block or another."""

        def named(*names: Any, **how: Any) -> Any:
            done = call(*names, **how)
            fd = how.get("dst_dir_fd", how.get("dir_fd"))
            base = os.readlink(f"/proc/self/fd/{fd}") if fd is not None else "."
            path = Path(base, names[what in ("replace", "link")])
            if what != "open" or names[1] & os.O_CREAT:
                inode = path.lstat().st_ino
                self._lost.discard((path.parent.stat().st_ino, path.name, inode))
                if what in ("mkdir", "open"):
                    self._files.pop(inode, None)  # that of a file that is no more
            return done

        return named

    def syncing(self, call: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            status, path = os.fstat(fd), Path(os.readlink(f"/proc/self/fd/{fd}"))
            if not path.is_relative_to(self._root) and path != self._root.parent:
                call(fd)
                return
            self.count += 1
            fails = self.count == self.fail
            if fails:
                self.failed = path
            if stat.S_ISDIR(status.st_mode):
                for name in os.listdir(fd):
                    inode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_ino
                    key = status.st_ino, name
                    if fails and self._names.get(key) != (inode, True):
                        self._lost.add((*key, inode))
                    elif (*key, inode) not in self._lost:
                        self._names[key] = inode, True
            else:
                self._files[status.st_ino] = not fails and self._files.get(status.st_ino, True)
            if fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            call(fd)

        return sync

    def unsafe(self) -> list[str]:
        """What would be gone or damaged after a power cut, of all that manifests name."""
        paths = [self._root, self._root / "_winkfs"]
        paths += self._root.glob("_winkfs/*.json")
        for record in Log(str(self._root)).latest().shards:
            paths += [(self._root / record.path).parent, self._root / f"{record.path}.data"]
        found = []
        for path in dict.fromkeys(paths):
            inode = path.stat().st_ino
            if self._names.get((path.parent.stat().st_ino, path.name)) != (inode, True):
                found.append(f"name of {path}")
            if path.is_file() and not self._files.get(inode, False):
                found.append(f"content of {path}")
        return found


def until_done(action: Callable[[], Any], between: Callable[[], Any] = lambda: None) -> None:
    """Try again after an error of the disk; a second one is raised."""
    try:
        action()
    except OSError as error:
        assert error.errno == errno.EIO, error
        between()
        action()


@pytest.mark.few(8)
@pytest.mark.slow
@pytest.mark.parametrize("fail", range(1, SYNCS))
def test_sync_that_is_tried_again_makes_all_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: int
) -> None:
    root = tmp_path / "ds"
    disk = Disk(monkeypatch, root, fail)

    def first() -> None:
        opened.put("a", b"1" * 5000)
        opened.put("b", b"2")

    def second() -> None:
        opened.delete("b")
        opened.put("c", b"3")

    until_done(lambda: create(root))
    opened = winkfs.open(root, "a")
    for change in (first, second):
        until_done(change, opened.abort)
        try:
            until_done(opened.sync)
        except OSError as error:  # what was put is lost, and so it stays
            assert "abort, and put the files again" in str(error)
            with pytest.raises(OSError, match="put the files again"):
                opened.sync()
            opened.abort()
            change()
            opened.sync()
        assert disk.unsafe() == []
    opened.close()
    assert stored.files(root) == {"a": b"1" * 5000, "c": b"3"}
    assert winkfs.verify(root).problems == []
    assert disk.failed is not None or fail > disk.count
    assert disk.count < SYNCS


@pytest.mark.few(4)
@pytest.mark.slow
@pytest.mark.parametrize("fail", range(1, 11))
def test_a_commit_does_not_build_on_an_abandoned_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: int
) -> None:
    root = tmp_path / "ds"
    create(root)
    data_sets.add(root, {"a": b"1"})
    stored.make(tmp_path / "c", {"b": b"2"})
    disk = Disk(monkeypatch, root, 0)
    folders = (root.parent, root, root / "_winkfs", *root.glob("2*"))
    for path in (*folders, *root.glob("*/*.data"), *root.glob("_winkfs/*.json")):
        sync(path)
    assert disk.unsafe() == []
    disk.fail = disk.count + fail
    with contextlib.suppress(OSError):
        adopt(root, [tmp_path / "c"])
    again, record = data_sets.begun(root, {"d": b"3"})
    until_done(lambda: again.commit([record]))
    assert disk.unsafe() == []
    assert stored.files(root).items() >= {"a": b"1", "d": b"3"}.items()


@pytest.mark.parametrize("fail", range(1, 8))
def test_creation_that_failed_leaves_no_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: int
) -> None:
    root = tmp_path / "deep" / "ds"
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, tmp_path, fail)
        try:
            create(root)
            assert fail > disk.count
        except OSError:
            assert not is_dataset(root)
    create(root)
    assert stored.files(root) == {}


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_put_after_a_failed_sync_is_refused_with_what_to_do(root: str, number: int) -> None:
    opened = winkfs.open(root, "a")
    opened.put("a", b"1")
    with (
        disk_calls(refusing("link", error=number)),
        pytest.raises(OSError, match=os.strerror(number)),
    ):
        opened.sync()
    with pytest.raises(OSError, match="sync again, or abort"):
        opened.put("b", b"2")
    assert opened.sync() == 1
    opened.put("b", b"2")
    opened.close()
    assert stored.files(root) == {"a": b"1", "b": b"2"}


@pytest.mark.few(4)
@pytest.mark.slow
@pytest.mark.parametrize("fail", range(1, 10))
def test_a_later_sync_does_not_acknowledge_a_failed_write(root: str, fail: int) -> None:
    data_sets.add(root, {"a": b"1", "b": b"1"})
    opened = winkfs.open(root, "a")
    opened.put("a", b"2")
    opened.delete("a")
    opened.delete("b")
    opened.put("c", b"3" * 100)
    with pytest.MonkeyPatch.context() as patch:
        data_sets.crash_after(patch, fail - 1, lambda: OSError(errno.EIO, "broken"), ["pwritev"])
        try:
            opened.sync()
        except OSError:
            assert stored.files(root) == {"a": b"1", "b": b"1"}
    for _ in range(2):
        try:
            opened.sync()
        except OSError as error:
            assert "abort, and put the files again" in str(error)
            opened.abort()
            assert stored.files(root) == {"a": b"1", "b": b"1"}
        else:
            assert stored.files(root) in ({"c": b"3" * 100}, {"a": b"1", "b": b"1"})
    opened.close()
    assert winkfs.verify(root).problems == []


def test_a_data_set_that_failed_to_become_durable_is_made_again(tmp_path: Path) -> None:
    root = tmp_path / "ds"
    for fail in range(1, 9):
        with pytest.MonkeyPatch.context() as patch:
            data_sets.crash_after(patch, fail - 1, lambda: OSError(errno.EIO, "no"), ["fsync"])
            with contextlib.suppress(OSError):
                create(root)
    assert create(root).newest() == 0
