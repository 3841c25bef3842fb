"""Listings that go on in pieces, as libfuse asks for them."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest
from memory_source import MemorySource

import winkmount.operations as operations_module
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
