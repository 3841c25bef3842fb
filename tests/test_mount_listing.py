"""Listings that go on in pieces, as libfuse asks for them."""

from __future__ import annotations

from memory_source import MemorySource

from winkmount.listing import Entry
from winkmount.operations import Operations


def pieces(operations: Operations, handle: int, room: int, offset: int = 0) -> list[Entry]:
    """The entries from `offset` on for which there is room."""
    taken: list[Entry] = []

    def take(entry: Entry, plus: bool) -> bool:
        if len(taken) == room:
            return False
        taken.append(entry)
        return True

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
