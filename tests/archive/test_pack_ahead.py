"""Trees whose plain files the compiled path reads ahead: as one by one, whatever is in the way."""

from __future__ import annotations

import mmap
import os
import random
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from folders import write_files
from openfiles import opened

from winkformats import native
from winkfs.archive import ahead, pack
from winkfs.archive.ahead import NAMES_AT_ONCE, OPEN_DIRS
from winkfs.archive.items import SPARSE_BYTES, STREAM_BYTES, Item, Large, Note
from winkfs.archive.tree import OwnFiles, Tree
from winkfs.container.bulk import Row

pytestmark = [
    pytest.mark.skipif(native.built() is None, reason="nothing was compiled"),
    pytest.mark.on_disk,
]


def taken(item: Item) -> object:
    if isinstance(item, Row):
        return item
    assert isinstance(item, Large)
    with closing(item.file):
        return item.name, item.size, item.meta, item.sparse


def read(monkeypatch: pytest.MonkeyPatch, root: Path, *, compiled: bool, **options: Any) -> object:
    """All items and notes."""
    monkeypatch.setattr(native, "code", native.built() if compiled else None)
    notes: list[Note] = []
    items = Tree(root, notes.append, str(root.parent), **options).items(by_mtime=False)
    return [taken(item) for item in items], sorted(notes)


@pytest.fixture
def varied(tmp_path: Path) -> Path:
    """Files of all kinds, in more directories than are kept open."""
    root, chance = tmp_path / "tree", random.Random(7)
    for number in range(OPEN_DIRS + 30):
        folder = root / f"d{number % 7}" / f"{number}"
        folder.mkdir(parents=True)
        for i in range(number % 9):
            (folder / f"f{i}").write_bytes(chance.randbytes(chance.randrange(5000)))
            os.utime(folder / f"f{i}", ns=(0, chance.randrange(-(10**18), 2 * 10**18)))
    (root / "large").write_bytes(bytes(STREAM_BYTES))
    (root / "nearly").write_bytes(b"n" * (STREAM_BYTES - 1))
    with (root / "sparse").open("wb") as file:
        file.truncate(2 * SPARSE_BYTES)
        file.write(b"1")
    (root / "empty").touch()
    (root / "script").write_bytes(b"#!")
    (root / "script").chmod(0o4755)
    os.link(root / "script", root / "twice")
    os.symlink("script", root / "link")
    os.mkfifo(root / "fifo")
    (root / "\udcff\n").write_bytes(b"strange")
    return root


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 4000, ahead.BUFFER_BYTES])
@pytest.mark.parametrize("everything", [False, True])
def test_the_same_as_one_by_one(
    varied: Path, monkeypatch: pytest.MonkeyPatch, room: int, everything: bool
) -> None:
    monkeypatch.setattr(ahead, "BUFFER_BYTES", room)
    try:
        os.setxattr(varied / "script", "user.one", b"1")
        os.setxattr(varied / "d3", "user.two", b"2")
    except OSError:
        pytest.skip("no extended attributes here")
    if os.geteuid() == 0:
        os.setxattr(varied / "nearly", "trusted.three", b"3")
    found = [
        read(monkeypatch, varied, compiled=compiled, xattrs=everything, exclude=lambda n: n == "d2")
        for compiled in (True, False)
    ]
    assert found[0] == found[1]


def test_names_that_are_given_and_the_container_itself(
    varied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (varied / "c.data").write_bytes(b"its own")
    os.link(varied / "c.data", varied / "other")  # the same file by another name
    names = [b"script", b"other", b"d3", b"gone", b"d3/3/f0", b"./empty", b"link", b"c.data"]
    own = OwnFiles(str(varied / "c"))
    found = [
        read(monkeypatch, varied, compiled=compiled, own=own, names=list(names))
        for compiled in (True, False)
    ]
    assert found[0] == found[1]


def swap_for_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def swap_for_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def swap_for_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "swap, note",
    [
        (Path.unlink, "vanished before it was read"),
        (swap_for_link, "Too many levels of symbolic links"),
        (swap_for_fifo, None),
        (swap_for_directory, None),
    ],
)
def test_what_is_in_the_place_of_a_listed_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    swap: Callable[[Path], None],
    note: str | None,
    notes: list[Note],
    root: Path,
) -> None:
    write_files(root, dict.fromkeys("abc", b"1"))
    plain = ahead.Ahead._plain

    def swapped(self: ahead.Ahead, some: list[ahead.Found], buffer: mmap.mmap) -> ahead.PlainFiles:
        if (root / "b").is_file():
            swap(root / "b")
        return plain(self, some, buffer)

    monkeypatch.setattr(ahead.Ahead, "_plain", swapped)
    items = list(Tree(root, notes.append, str(tmp_path)).items(by_mtime=False))
    assert [item.name for item in items if item.name != b"b"] == [b"a", b"c"]
    assert not any(isinstance(item, Row) and item.name == b"b" and item.data for item in items)
    if note:
        assert notes == [Note(b"b", note, True)]


def test_a_reader_that_stops_early_leaves_nothing_open(varied: Path) -> None:
    threads = threading.active_count()
    for stop in (0, 1, 60, NAMES_AT_ONCE // 2):
        items = Tree(varied, lambda note: None, str(varied.parent)).items(by_mtime=False)
        for _ in range(stop):
            next(items)
        items.close()
        assert opened(varied) == []
        assert threading.active_count() <= threads


def test_no_file_of_a_large_directory_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    for i in range(3000):
        (root / f"{'long' * 10}{i % 13} {i}").touch()
    with closing(os.scandir(root)) as entries:
        assert len(list(entries)) == 3000
    fd = os.open(root, os.O_RDONLY)
    assert native.built().names_in(fd) is None  # more than it lists at once
    os.close(fd)
    one = read(monkeypatch, root, compiled=False)
    assert read(monkeypatch, root, compiled=True) == one
    assert isinstance(one, tuple) and len(one[0]) == 3000


@pytest.mark.slow
@pytest.mark.parametrize("classic", [False, True])
def test_what_is_put_as_columns_is_the_same_to_the_byte(
    monkeypatch: pytest.MonkeyPatch, varied: Path, classic: bool
) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda bits: 5)
    monkeypatch.setattr(time, "time", lambda: 1_790_000_000.0)
    monkeypatch.setattr(time, "time_ns", lambda: 1_790_000_000 * 10**9)
    # many batches, whose ends are inside blocks
    monkeypatch.setattr("winkfs.archive.packer.WAITING_BYTES", 100_000)
    for i, mode in enumerate((0o755, 0o600, 0o744, 0o4755)):
        (varied / "d1" / f"mode{i}").write_bytes(b"content")
        (varied / "d1" / f"mode{i}").chmod(mode)
        os.symlink("mode0", varied / "d1" / f"link{i}")
    found = []
    for path in (native.built(), None):
        monkeypatch.setattr(native, "code", path)
        base, notes, steps = varied.parent / f"c{path is None}", list[Note](), list[int]()
        report = pack.pack(varied, base, classic=classic, note=notes.append, progress=steps.append)
        data = base.with_name(base.name + ".data").read_bytes()
        found.append((report, sorted(notes), sum(steps), data))
    assert found[0] == found[1]


def test_wrong_arguments() -> None:
    code = native.built()
    one = (5).to_bytes(8, "little")
    for directories, names, kinds in (
        (b"", [b"a"], b"f"), (one, [b"a"], b""), (one, ["a"], b"f"), (one, (b"a",), b"f"),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError)):
            code.read_files(
                directories,
                names,
                kinds,
                False,
                0,
                0,
                STREAM_BYTES,
                SPARSE_BYTES,
                bytearray(STREAM_BYTES),
            )
    for small in (bytearray(STREAM_BYTES - 1), bytes(STREAM_BYTES)):
        with pytest.raises((ValueError, TypeError)):
            code.read_files(b"", [], b"", False, 0, 0, STREAM_BYTES, SPARSE_BYTES, small)
    assert code.read_files(
        b"", [], b"", False, 0, 0, STREAM_BYTES, SPARSE_BYTES, bytearray(STREAM_BYTES)
    ) == (0, b"")


def test_a_buffer_is_taken_again_when_no_view_of_it_is_left() -> None:
    buffers = ahead.Buffers(8192)
    first = buffers.take()[:100][10:20]
    second = buffers.take()
    assert first.obj is not second.obj
    first[:] = bytes(10)
    second[:4096] = b"2" * 4096
    assert bytes(first) == bytes(10)
    del first
    third = buffers.take()
    assert third.obj is not second.obj
    assert len(buffers._all) == 2
