"""Files of a writable mount that are only listed: numbers, columns, and what changes meanwhile."""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mounting import forget, mounted, need_fuse, not_by_libfuse, serving
from mounting import there as there
from sources import kept
from sources import sources_end as sources_end  # a fixture

import winkfs
from winkfs.mounting.container import ContainerSource
from winkmount.kernel import protocol as p
from winkmount.kernel.nodes import BY_ID, NodeTable
from winkmount.source import Amendment, Attr, DirEntry

FILES = 5000
COUNTING = """
import collections, json, sys
from winkmount.kernel import giving
from winkmount.kernel.listings import Listing
from winkmount.kernel.server import Server
giving.LISTED_NUMBERS, giving.KNOWN_NUMBERS = int(sys.argv[2]), 1 << 18
asked, answer, following = collections.Counter(), Server.answer, Listing.take

def counted(self, opcode, node, body):
    asked[opcode] += 1
    asked["most"] = max(asked["most"], len(self.table.listed))
    return answer(self, opcode, node, body)

def singly(self, *words):
    asked["singly"] += 1
    return following(self, *words)

Server.answer, Listing.take = counted, singly
from winkfs.cli import main
code = main(["mount", "-f", "--binding", "kernel", *sys.argv[3:]])
with open(sys.argv[1], "w") as file:
    json.dump(asked, file)
sys.exit(code)
"""


def name(number: int) -> str:
    return f"n{number:06d}"


def make(tmp_path: Path, count: int) -> str:
    base = str(tmp_path / "many")
    with winkfs.create(base) as container:
        container.put_many((f"d/{name(i)}", b"%d" % i) for i in range(count))
    return base


@contextmanager
def counting(base: str, there: Path, log: Path, most: int) -> Iterator[None]:
    need_fuse("kernel")
    command = [sys.executable, "-c", COUNTING, str(log), str(most), base, str(there)]
    with serving(command, there):
        yield


def looked_at(directory: Path) -> dict[str, tuple[int, int]]:
    """Name -> inode number and size, of entries that come once each."""
    found = dict[str, tuple[int, int]]()
    with os.scandir(directory) as entries:
        for entry in entries:
            assert entry.name not in found
            seen = entry.stat(follow_symlinks=False)
            assert seen.st_ino == entry.inode()
            found[entry.name] = seen.st_ino, seen.st_size
    return found


@pytest.mark.mount
@not_by_libfuse("the engine's own numbers")
@pytest.mark.in_memory
def test_files_that_are_listed_need_no_look_up(tmp_path: Path, there: Path) -> None:
    count, log = 20_000, tmp_path / "asked"
    with counting(make(tmp_path, count), there, log, 1 << 20):
        first = looked_at(there / "d")
        assert {size for _, size in first.values()} == {1, 2, 3, 4, 5}
        assert len({ino for ino, _ in first.values()}) == count
        for i in random.Random(1).sample(range(count), 50):  # the Source has forgotten their ids
            assert (there / "d" / name(i)).read_bytes() == b"%d" % i
    asked = Counter(json.loads(log.read_text()))
    assert asked[str(p.LOOKUP)] < 10
    assert asked[str(p.READDIRPLUS)] > 50 > 5 * asked["singly"]  # all but the first are columns


@pytest.mark.mount
@not_by_libfuse("the engine's own numbers")
@pytest.mark.in_memory
def test_the_server_remembers_no_more_listed_files_than_it_may(tmp_path: Path, there: Path) -> None:
    log = tmp_path / "asked"
    with counting(make(tmp_path, FILES), there, log, 1000):
        for _ in range(2):
            assert len(looked_at(there / "d")) == FILES
    assert json.loads(log.read_text())["most"] < 2500


@pytest.mark.in_memory
@pytest.mark.mount
def test_names_come_once_whatever_changes_meanwhile(tmp_path: Path) -> None:
    with mounted(make(tmp_path, FILES)) as root:
        there, draw = root / "d", random.Random(2)
        before = looked_at(there)
        steady = {name(i) for i in range(FILES)}
        listed = Counter[str]()
        with os.scandir(there) as entries:
            for number, entry in enumerate(entries):
                listed[entry.name] += 1
                if number % 50 or number >= FILES:  # behind that come the new names
                    continue
                one = draw.choice(sorted(steady))
                steady.discard(one)
                if number % 100:
                    (there / one).unlink()
                else:
                    (there / one).rename(there / f"moved{number}")
                (there / f"new{number}").write_bytes(b"new")
        assert all(listed[one] == 1 for one in steady)
        assert max(listed.values()) == 1
        after = looked_at(there)
        assert all(after[one] == before[one] for one in steady)
        assert after.keys() == set(os.listdir(there)) and len(after) == FILES + 50


@pytest.mark.mount
def test_a_listing_reports_changes_among_many_files(tmp_path: Path) -> None:
    with mounted(make(tmp_path, FILES)) as root:
        there = root / "d"
        before = looked_at(there)
        with (there / name(7)).open("ab") as file, (there / name(4000)).open("rb") as held:
            file.write(bytes(100))  # held back
            file.flush()
            (there / name(9)).write_bytes(b"another one")
            os.utime(there / name(4999), ns=(5, 5))
            (there / name(4000)).unlink()
            (there / name(3000)).rename(there / name(3001))
            assert os.fstat(held.fileno()).st_nlink == 0
            assert held.read() == b"4000"
            forget(root)
            after = looked_at(there)
        assert after[name(7)] == (before[name(7)][0], 101)
        assert after[name(9)] == (before[name(9)][0], 11)
        assert (there / name(4999)).stat().st_mtime_ns == 5
        assert after.keys() == before.keys() - {name(4000), name(3000)}
        assert after[name(3001)] == before[name(3000)]
        assert (there / name(3001)).read_bytes() == b"3000"
        changed = {name(i) for i in (7, 9, 3000, 3001, 4000)}
        assert all(after[one] == before[one] for one in before.keys() - changed)


def test_columns_agree_with_single_entries(tmp_path: Path) -> None:
    source = kept(ContainerSource(winkfs.open(make(tmp_path, FILES), "a")))
    directory = source.lookup(source.root, b"d").id
    for version, change in enumerate((0, 3, 500, 2500, 4998)):
        if change:
            id = source.lookup(directory, name(change).encode()).id
            source.amend(id, Amendment(mode=0o600), time.time_ns())
            # this one changes nothing but the time of the change
            source.amend(id, Amendment(mode=0o600), time.time_ns())
            source.unlink(directory, name(change + 1).encode())
            source.create(directory, b"new%d" % change, 0o644, 0, 0)
        handle = source.opendir(directory)
        single = list(source.readdir(handle, 0))
        assert columns(source, handle, version) == single
        source.releasedir(handle)


def columns(source: ContainerSource, handle: int, version: int) -> list[DirEntry]:
    """All entries, by columns where there are such."""
    found, by_columns = list(itertools.islice(source.readdir(handle, 0), 1)), 0
    while True:
        offset = found[-1].offset
        page = source.page(handle, offset, version)
        if page is None:
            more = list(itertools.islice(source.readdir(handle, offset), 1))
            if not more:
                assert by_columns > FILES // 2
                return found
            found += more
            continue
        assert page.nodes.tolist() == page.attrs[:, 0].tolist()
        attrs = (Attr(*row) for row in page.attrs.tolist())
        entries = map(DirEntry, page.names, attrs, page.offsets)
        new = [entry for entry in entries if entry.offset > offset]
        assert new
        by_columns += len(new)
        found += new


class Listed:
    """A directory of 100 files that the kernel was given by a listing.

    numbers  that it knows the files of `entries` by; `above`: the directory
    """

    def __init__(self, source: ContainerSource) -> None:
        self.source, self.nodes = source, NodeTable(source)
        folder = source.lookup(source.root, b"d")
        self.folder, self.above = folder.id, self.nodes.give(1, b"d", folder)
        self.entries = list(source.readdir(source.opendir(folder.id), 0))
        self.numbers = self.nodes.give_many(self.above, self.entries, len(self.entries))

    def rename(self, old: bytes, new: bytes) -> None:
        self.source.rename(self.folder, old, self.folder, new)
        self.nodes.moved(self.above, old, self.above, new)


@pytest.fixture
def listed(tmp_path: Path) -> Listed:
    return Listed(kept(ContainerSource(winkfs.open(make(tmp_path, 100), "a"))))


def test_what_the_kernel_was_given_is_forgotten_as_often(listed: Listed) -> None:
    nodes, entries, numbers = listed.nodes, listed.entries, listed.numbers
    assert numbers == [BY_ID | entry.attr.id for entry in entries]
    nodes.give_many(listed.above, entries, len(entries))
    nodes.give_many(listed.above, entries[:30], 30)
    given = Counter(dict.fromkeys(numbers, 2)) + Counter(numbers[:30])
    for entry, number in zip(entries[20:40], numbers[20:40], strict=True):
        assert nodes.give(listed.above, entry.name, entry.attr) == number
        given[number] += 1
    draw = random.Random(3)
    while given:
        number, count = draw.choice(list(given.items()))
        part = draw.randint(1, count)
        if draw.random() < 0.2:
            assert nodes.id(number) == number ^ BY_ID
        nodes.forget(number, part)
        given = given - Counter({number: part})
        assert (number in nodes.known or number in nodes.listed) == (number in given)
    assert not nodes.listed
    assert len(nodes.known) == 2  # the top directory and this


def test_a_file_that_was_only_listed_is_found_after_a_rename(listed: Listed) -> None:
    source, nodes, entries = listed.source, listed.nodes, listed.entries
    listed.rename(entries[5].name, b"new")
    for id in (entries[5].attr.id, entries[6].attr.id):
        source.places.forget_recent(id)
    for i, known in ((5, b"new"), (6, entries[6].name)):
        with pytest.raises(OSError, match="Stale"):
            nodes.attr(listed.numbers[i])
        nodes.look_again()
        assert nodes.attr(listed.numbers[i]) == source.lookup(listed.folder, known)


def test_a_file_is_stale_once_the_kernel_forgot_its_directory(listed: Listed) -> None:
    nodes, number = listed.nodes, listed.numbers[0]
    assert nodes.attr(number) == listed.entries[0].attr
    nodes.forget(listed.above, 1)
    listed.source.places.forget_recent(listed.entries[0].attr.id)
    for _ in range(2):
        with pytest.raises(OSError, match="Stale"):
            nodes.attr(number)
        nodes.look_again()
    with pytest.raises(OSError, match="Stale"):
        nodes.ids(number)


def test_a_replaced_listed_file_leaves_the_name_to_its_successor(
    listed: Listed,
) -> None:
    """Who has it open by O_PATH may still ask for it by its number."""
    nodes, (name, other_name), (old, other) = (
        listed.nodes, [entry.name for entry in listed.entries[:2]], listed.numbers[:2],
    )  # fmt: skip
    listed.rename(other_name, name)
    with pytest.raises(OSError, match=r"Stale|No such file"):
        nodes.attr(old)
    listed.rename(name, b"new")
    assert nodes.known[other].name == b"new"
    assert nodes.known[old].above == 0
    assert nodes.attr(other) == listed.source.lookup(listed.folder, b"new")
