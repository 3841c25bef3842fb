"""Scans: plain files come as columns, odd ones one by one, and nobody can tell which."""

import queue
import random
import threading
from dataclasses import astuple
from pathlib import Path
from typing import Any

import container_checks
import pytest
from container_checks import VARIANTS, path_of
from oracle_damage import Damage
from oracle_read import check
from stored import make

import winkfs
from winkformats.errors import CorruptError
from winkfs import Container, FileType
from winkfs.entry import Entry, Stat, entries
from winkfs.names import to_bytes

pytestmark = [pytest.mark.slow, pytest.mark.in_memory]

base = container_checks.base  # fixture

FIELDS = ("name", "fileid", "size", "mtime_ns", "ftype", "mode", "uid", "gid", "ctime_ns")


def mixed(c: Container, variant: str, count: int = 800) -> dict[str, bytes]:
    """Plain files and odd ones among each other."""
    rng = random.Random(variant)
    model: dict[str, bytes] = {}
    for i in range(count):
        name, data = f"folder/file {i}", rng.randbytes(rng.choice([0, 1, 100, 1000]))
        name = rng.choice([name, name, f"ä{i}", f"{i}\udcff", f"{i}\nx"])
        if i % 97 == 0:
            name = f"{i}" + "x" * rng.choice([230, 248, 249, 250, 260, 500, 60_000])
        kind = rng.randrange(12)
        ns = (i - 300) * 1_000_000_007
        if kind == 0:
            data = b""
            c.put(name, data, mtime_ns=ns, ftype=FileType.DIR)
        elif kind == 1:
            data = b"target"
            c.put(name, data, mtime_ns=ns, ftype=FileType.LINK)
        elif kind == 2 and i % 16 == 0:
            data = bytes([i % 256]) * 1_500_000
            c.put(name, data, mtime_ns=ns)
        elif kind == 3:
            c.put(name, data, mtime_ns=ns, ftype=FileType.EXEC)
        else:
            c.put(name, data, mtime_ns=ns)
        if kind == 4 and not c.superblock.get("HAVEAO"):
            c.append(name, b" and more")
            data += b" and more"
            if c.superblock.get("PAIROFF"):
                c.truncate(name, len(data) + 5000)
                c.write(name, 0, b"x")
                data = b"x" + data[1:] + bytes(5000)
        if kind == 5 and c.superblock.get("ATTRS") and not c.superblock.get("HAVEAO"):
            c.setxattrs(name, {b"user.x": b"y" * 100})
            c.chmod(name, 0o600)
        if kind == 6 and not c.superblock.get("HAVEAO"):
            c.truncate(name, len(data) // 2)
            data = data[: len(data) // 2]
        model[name] = data
    return model


def same(entry: Entry, stat: Stat) -> None:
    assert isinstance(entry, Entry) and isinstance(entry, Stat)
    for field in FIELDS:
        assert getattr(entry, field) == getattr(stat, field), field
    assert entry.mtime == stat.mtime


@pytest.mark.few(2)
@pytest.mark.parametrize("variant", VARIANTS)
def test_scan_agrees_with_stat_and_read(variant: str, base: Path) -> None:
    with winkfs.create(base, **VARIANTS[variant]) as container:  # type: ignore[arg-type]
        model = mixed(container, variant)
    order = sorted((file.inode_pos, name) for name, file in check(base).files.items())
    with winkfs.open(base) as container:
        found = list(container.scan())
        assert [to_bytes(entry.name) for entry in found] == [name for _, name in order]
        assert list(container.names()) == sorted((entry.name for entry in found), key=to_bytes)
        assert {entry.name for entry in found} == model.keys()
        for entry, listed in zip(container.scan(), found, strict=True):
            stat = container.stat(entry.name)
            same(entry, stat)
            assert entry == listed and hash(entry) == hash(listed) and entry != stat
            # Within the window, with contents in it, and after the scan, from the file.
            assert entry.read() == listed.read() == model[entry.name]
        for since, until, prefix in [(0, None, ""), (None, 700, "f"), (-5, 9.5, ""), (0, 900, "ä")]:
            chosen = [
                e for e in found if (since is None or e.mtime >= since)
                and (until is None or e.mtime < until) and e.name.startswith(prefix)
            ]  # fmt: skip
            assert list(container.scan(since, until, prefix)) == chosen


def test_an_entry_cannot_be_changed(base: Path) -> None:
    with winkfs.create(base) as container:
        container.put_many((f"{i}", b"data", 5) for i in range(100))
        entry = next(container.scan())
        for field in (*FIELDS, "_read", "new"):
            with pytest.raises((AttributeError, TypeError)):
                setattr(entry, field, 1)
        with pytest.raises((AttributeError, TypeError)):
            del entry.size  # type: ignore[misc]
        assert repr(entry).startswith("Entry(name='0', fileid=1, size=4, mtime_ns=5000000000")
        assert "_read" not in repr(entry)
        assert (entry.mtime, entry.read()) == (5, b"data")


def test_entries_made_as_columns_are_those_of_the_constructor() -> None:
    rows: list[tuple[Any, ...]] = [(f"{i}", i, 2, 3, 4, 5, 6, 7, 8, bytes) for i in range(3)]
    made = list(entries(*zip(*rows, strict=True)))
    assert made == [Entry(*row) for row in rows]
    assert [astuple(entry) for entry in made] == rows
    assert all(type(entry) is Entry and entry.read() == b"" for entry in made)


@pytest.mark.few
@pytest.mark.parametrize("variant", ["plain", "ao"])
@pytest.mark.parametrize("part", ["inode", "data"])
def test_each_damaged_byte_is_reported_or_harmless(part: str, variant: str, base: Path) -> None:
    """The damaged file is left out or not read; those beside it are as they were."""
    with winkfs.create(base, **VARIANTS[variant]) as container:  # type: ignore[arg-type]
        container.put_many((f"file {i}", b"%d" % i * 20) for i in range(20))
        whole = list(container.scan())
    tree = check(base)
    file = tree.files[b"file 7"]
    pos = file.inode_pos if part == "inode" else file.pairs[0].pointer
    end = next(entry.end for entry in tree.entries if entry.pos == pos)
    with path_of(base, ".data").open("r+b", buffering=0) as data, winkfs.open(base) as container:
        for place in range(pos, end):
            data.seek(place)
            byte = data.read(1)[0]
            for bit in (0x01, 0x80):
                data.seek(place)
                data.write(bytes([byte ^ bit]))
                reported: list[CorruptError] = []
                read = {}
                for entry in container.scan(problem=reported.append):
                    assert entry == whole[entry.fileid - 1]
                    try:
                        read[entry.name] = entry.read()
                    except CorruptError as error:
                        reported.append(error)
                harmless = place == pos and bit == 1  # a delflag: it is live as of the index
                assert [error.offset for error in reported] == ([] if harmless else [pos])
                assert len(read) == 20 - len(reported)
                assert all(value == b"%d" % int(name[5:]) * 20 for name, value in read.items())
            data.seek(place)
            data.write(bytes([byte]))


def test_an_entry_is_read_in_a_thread_while_the_scan_moves_on(base: Path) -> None:
    wrong: list[str] = []
    waiting: queue.Queue[Entry | None] = queue.Queue(3000)

    def work() -> None:
        while entry := waiting.get():
            try:
                if entry.read() != entry.name.encode() * 100:
                    wrong.append(entry.name)
            except CorruptError as error:
                wrong.append(str(error))

    with winkfs.create(base) as container:
        container.put_many((f"{i}", b"%d" % i * 100) for i in range(20_000))
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for entry in container.scan():
            waiting.put(entry)
        for _ in threads:
            waiting.put(None)
        for thread in threads:
            thread.join()
    assert wrong == []


def test_one_extent_that_skips_the_head_of_its_entry(base: Path) -> None:
    """As another writer may leave a file cut off at its front."""
    make(base, [("a", b"head and tail"), ("b", b"whole"), ("c", b"")])
    damage = Damage(base)
    damage.inode(b"a", "PAIRS", 9, offset=8)
    damage.inode(b"a", "PAIRS", 4, offset=16)
    damage.inode(b"a", "LSIZE", 4)
    with winkfs.open(base) as container:
        found = [(entry.name, entry.size, entry.read()) for entry in container.scan()]
    assert found == [("a", 4, b"tail"), ("b", 5, b"whole"), ("c", 0, b"")]


def test_a_file_is_found_by_the_time_it_was_put_with(base: Path) -> None:
    moment = 1_700_000_000.123456
    with winkfs.create(base) as container:
        container.put("a", b"", mtime=moment)
        assert [entry.name for entry in container.scan(since=moment)] == ["a"]
        assert not list(container.scan(until=moment))


@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_scan_goes_on_when_the_handle_is_closed(mode: str, base: Path) -> None:
    """Also where an inode stands apart from its content, which is then looked at."""
    with winkfs.create(base) as c:
        c.put_many((f"{i:04}", b"%d" % i) for i in range(3000))
        c.sync()
        for i in range(0, 3000, 7):
            c.utime(f"{i:04}", 5)
    container = winkfs.open(base, mode)  # type: ignore[call-overload]
    found = container.scan()
    first = next(found)
    container.close()
    rest = {entry.name: entry.read() for entry in [first, *found]}
    assert rest == {f"{i:04}": b"%d" % i for i in range(3000)}
