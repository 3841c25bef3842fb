"""Small writes held back: what the Source sees, and that no reader can tell."""

from __future__ import annotations

import errno

import pytest
from memory_source import MemorySource
from mounting import refused

from winkmount.openfiles import ALL_WAITING, GATHER, RUNS, OpenFile, OpenFiles
from winkmount.source import Amendment


@pytest.fixture
def source() -> MemorySource:
    return MemorySource()


@pytest.fixture
def file(source: MemorySource) -> OpenFile:
    return OpenFiles(source).add(source.create(1, b"f", 0o644, 0, 0).id)


def test_small_writes_in_a_row_reach_the_source_as_one(
    source: MemorySource, file: OpenFile
) -> None:
    for at in range(0, 5000, 10):
        file.write(at, b"0123456789")
    assert source.writes == []
    file.pass_on()
    assert source.writes == [(file.id, 0, 5000)]


def test_writes_elsewhere_wait_too_and_the_later_one_wins(
    source: MemorySource, file: OpenFile
) -> None:
    file.write(0, b"aaaa")
    file.write(100, b"bbbb")
    file.write(2, b"cccc")
    assert (source.writes, file.waiting) == ([], 12)
    file.pass_on()
    assert source.writes == [(file.id, 0, 4), (file.id, 100, 4), (file.id, 2, 4)]
    assert source.read(file.id, 0, 6) == b"aacccc"


def test_very_many_runs_do_not_wait(source: MemorySource, file: OpenFile) -> None:
    for at in range(RUNS + 2):
        file.write(10 * at, b"x")
    assert len(source.writes) > RUNS
    assert file.waiting == 1


def test_a_write_into_the_run_changes_it_in_place(source: MemorySource, file: OpenFile) -> None:
    file.write(10, b"aaaaaa")
    file.write(12, b"BB")
    file.write(15, b"CCC")
    file.pass_on()
    assert source.writes == [(file.id, 10, 8)]
    assert source.read(file.id, 0, 100) == bytes(10) + b"aaBBaCCC"


def test_a_full_run_does_not_wait(source: MemorySource, file: OpenFile) -> None:
    file.write(0, bytes(GATHER - 1))
    file.write(GATHER - 1, b"x")
    assert file.waiting == 0
    file.write(GATHER, bytes(2 * GATHER))
    assert [length for _, _, length in source.writes] == [GATHER, 2 * GATHER]


@pytest.mark.parametrize(
    ("offset", "size", "expected"),
    [
        (0, 4, b"old "),
        (2, 6, b"d \0new"),
        (6, 100, b"ew!"),
        (9, 5, b""),
        (0, 100, b"old \0new!"),
    ],
)
def test_a_read_sees_bytes_in_waiting(
    source: MemorySource, file: OpenFile, offset: int, size: int, expected: bytes
) -> None:
    source.write(file.id, [(0, b"old ")], 0)
    file.write(5, b"new!")
    assert file.read(offset, size) == expected


def test_a_read_of_the_gap_before_the_run_gives_zeros(file: OpenFile) -> None:
    file.write(100, b"x")
    assert file.read(0, 50) == bytes(50)


def test_a_read_elsewhere_leaves_the_run_waiting(source: MemorySource, file: OpenFile) -> None:
    source.write(file.id, [(0, bytes(1000))], 0)
    file.write(500, b"x" * 10)
    assert file.read(0, 500) == bytes(500)
    assert file.read(510, 100) == bytes(100)
    assert file.waiting == 10


def test_a_source_that_may_refuse_gets_writes_at_once(source: MemorySource, file: OpenFile) -> None:
    source.gather = False
    file.write(0, b"a")
    assert source.writes == [(file.id, 0, 1)]


def test_an_error_behind_the_writers_back_is_reported_once(
    source: MemorySource, file: OpenFile
) -> None:
    file.write(0, b"lost")
    source.full = True
    file.pass_on()
    source.full = False
    with refused(errno.ENOSPC):
        file.write(4, b"more")
    file.write(4, b"more")
    file.raise_error()


def test_a_write_without_room_is_refused_when_it_comes(
    source: MemorySource, file: OpenFile
) -> None:
    source.room = 100
    file.write(0, bytes(100))
    file.write(50, bytes(50))
    with refused(errno.ENOSPC):
        file.write(100, b"x")
    file.pass_on()
    assert source.stat(file.id).size == 100


def test_bytes_that_wait_in_other_files_need_room_too(source: MemorySource) -> None:
    source.room = 100
    files = OpenFiles(source)
    one, two = (files.add(source.create(1, name, 0o644, 0, 0).id) for name in (b"a", b"b"))
    one.write(0, bytes(60))
    with pytest.raises(OSError):
        two.write(0, bytes(60))
    one.pass_on()
    two.write(0, bytes(60))
    assert files.waiting == 60


def test_many_files_hold_back_no_more_than_a_ceiling(source: MemorySource) -> None:
    files = OpenFiles(source)
    for i in range(ALL_WAITING // GATHER * 2 + 3):
        files.add(source.create(1, b"%d" % i, 0o644, 0, 0).id).write(0, bytes(GATHER // 2))
    assert 0 < files.waiting <= ALL_WAITING


def test_bytes_in_waiting_show_in_size_and_time(source: MemorySource, file: OpenFile) -> None:
    source.amend(file.id, Amendment(mtime_ns=5), 6)
    assert file.shown(source.stat(file.id)) == source.stat(file.id)
    file.write(10, b"abc")
    shown = file.shown(source.stat(file.id))
    assert shown.size == 13
    assert source.stat(file.id).size == 0
    file.pass_on()
    assert source.stat(file.id) == shown
