"""Power cuts at any moment of random lives of a LogStore: see logstore_lives.py."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

import pytest
from drawn import examples
from logstore_lives import SMALL, Life, State, content
from simulated.disk import Event, SimulatedDisk

import winkfs
from winkformats.disk.paths import directory_of
from winkformats.logstore import index
from winkfs.errors import Refusal
from winkfs.stores.logstore import LogStore

pytestmark = pytest.mark.slow
IMAGES = {"power cuts": (600, 35_000), "with failing calls": (160, 15_000)}


@pytest.mark.soak
@pytest.mark.parametrize("kind", IMAGES)
def test_every_image_shows_what_was_acknowledged(kind: str, seed: int, soak: bool) -> None:
    """The longest prefix of whole commits; nothing deleted comes back; every image opens."""
    wanted, many = IMAGES[kind]
    done = Life.lives(kind, seed, many if soak else examples(wanted))
    assert done["full"] <= 1 + done["images"] / 500  # a snapshot that is open keeps its generation


def make(disk: SimulatedDisk, **options: int) -> LogStore:
    return LogStore.create(f"{disk.path}/s", **(SMALL | options))


def again(disk: SimulatedDisk, mode: str = "a") -> LogStore:
    return LogStore(f"{disk.path}/s", mode)


def shows(disk: SimulatedDisk, wanted: State, mode: str = "a") -> None:
    """Fail unless a new handle finds these records, and no damage."""
    with again(disk, mode) as store:
        assert content(store) == wanted
        assert store.problems == []


def numbers(disk: SimulatedDisk, folder: str = "data") -> set[int]:
    """Of the data files, or the generations, that programs see."""
    prefix = f"s/{folder}/"
    return {int(path.removeprefix(prefix), 16) for path in disk.paths() if path.startswith(prefix)}


def test_a_delete_stays_as_long_as_an_older_file_has_the_record() -> None:
    """A file between is compacted, then all is read without the saved table."""
    disk = SimulatedDisk(1)
    store = make(disk, save_every=1000)
    cold = store.put_many([b"c" * 60] * 6)
    victim = store.put(b"v" * 60)
    store.commit()
    store.delete(victim)
    hot = store.put(b"h" * 80)
    for _ in range(30):
        store.update(hot, b"h" * 80)
        store.commit()
    # Only files that are mostly dead go: the oldest, with `cold`, stays.
    done = store.compact(least=0.6)
    assert done["files"] > 0 and 0 in numbers(disk)
    for _ in range(30):
        store.update(hot, b"i" * 80)
        store.commit()
    store.compact(least=0.6)
    image = disk.clone()
    store.close()
    with again(image, "r") as reader:
        assert victim not in reader
        assert set(content(reader)) == {*cold, hot}


def test_a_delete_goes_when_no_older_file_is_left() -> None:
    disk = SimulatedDisk(1)
    with make(disk) as store:
        recids = store.put_many([b"x" * 60] * 40)
        store.commit()
        for recid in recids[1:]:
            store.delete(recid)
        store.commit()
        for _ in range(3):
            store.compact(least=0.01)
        sizes = [len(disk.durable(f"s/data/{number:016x}")) for number in numbers(disk)]
        assert sum(sizes) < 300
        assert content(store) == {recids[0]: b"x" * 60}


def test_a_torn_commit_is_cut_off_and_reported() -> None:
    disk = SimulatedDisk(1)
    store = make(disk)
    first = store.put(b"first")
    store.commit()
    store.put(b"second")
    store.commit(sync=False)
    image = disk.clone()
    store.close()
    with directory_of(f"{image.path}/s/data").open("0000000000000000", "w") as storage:
        storage.truncate(storage.size() - 3)
    shows(image, {first: b"first"}, "r")
    with again(image) as store:
        assert content(store) == {first: b"first"}
        assert "not synced" in store.notes[0]
        third = store.put(b"third")
        store.commit()
    with again(image, "r") as reader:
        assert content(reader) == {first: b"first", third: b"third"}
        assert reader.notes == []


def test_what_a_failed_sync_lost_is_not_built_upon() -> None:
    """It is still seen when the store is opened again, and commits behind it are acknowledged."""
    for seed in range(20):
        disk = SimulatedDisk(seed, torn=1)
        store = make(disk)
        first = store.put(b"first")
        store.commit()
        second = store.put(b"second")
        disk.arm("sync", 1)
        with pytest.raises(OSError, match="Input/output error"):
            store.commit()
        store.close()
        with again(disk) as store:
            seen = content(store)
            third = store.put(b"third")
            store.commit()
            for _ in range(10):
                shows(disk.crash(), seen | {third: b"third"}, "r")
        assert first in seen and second < third + 2


@pytest.mark.parametrize("room", range(0, 1620, 90))
def test_a_full_disk_leaves_nothing_half(room: int) -> None:
    disk = SimulatedDisk(1)
    store = make(disk)
    kept = store.put_many([b"kept" * 10] * 5)
    store.commit()
    before = content(store)
    used = sum(len(disk.durable(path)) for path in disk.paths())
    disk.capacity = used + room
    try:
        new = store.put_many([b"new" * 20] * 20)  # in several files
        store.commit()
        before |= dict.fromkeys(new, b"new" * 20)
    except OSError as error:
        assert error.errno == errno.ENOSPC
    assert content(store) == before
    disk.capacity = None
    with suppress(Refusal):  # of a write that has failed, until it is opened again
        store.rollback()
        store.update(kept[0], b"later")
        store.commit()
        before[kept[0]] = b"later"
    store.close()
    for image in (disk, disk.crash()):
        directory_of(f"{image.path}/s").unlink(index.NAME)  # all is read
        shows(image, before)


def test_numbers_and_generations_wrap_around_many_times() -> None:
    disk = SimulatedDisk(1)
    store = make(disk, save_every=3)
    fixed = store.put(b"fixed")
    hot = store.put(b"")
    for number in range(1500):
        store.update(hot, b"%080d" % number)
        store.commit(sync=False)
        if number % 100 == 50:
            store.commit()
            marks = numbers(disk, "generations")
            generations = {
                one >> SMALL["file_bits"] - SMALL["generation_bits"] for one in numbers(disk)
            }
            assert generations <= marks and 0 < len(marks) < 1 << SMALL["generation_bits"]
            image = disk.crash()
            shows(image, {fixed: b"fixed", hot: b"%080d" % number})
            seen = disk.clone()
            shows(seen, content(store), "r")
            assert numbers(seen) == numbers(disk)
    assert disk.log.count(Event("create", f"s/data/{0:016x}")) > 3
    store.close()


def test_a_lost_old_or_damaged_saved_table_changes_nothing() -> None:
    disk = SimulatedDisk(1)
    store = make(disk)
    hot = store.put_many([b""] * 5)
    older: list[bytes] = []
    for number in range(200):
        store.update(hot[number % 5], b"%050d" % number)
        store.commit()
        if "s/index" in disk.paths() and number % 10 == 0:
            older.append(disk.durable("s/index"))
    wanted = content(store)
    store.close()
    newest = disk.durable("s/index")
    flipped = bytearray(newest)
    flipped[len(flipped) // 2] ^= 4
    for table in (None, b"", newest[:-1], bytes(flipped), *older[-2:], newest):
        image = disk.clone()
        root = directory_of(f"{image.path}/s")
        root.unlink(index.NAME)
        if table is not None:
            with root.create_new(index.NAME) as storage:
                storage.write(0, [table])
        shows(image, wanted)


@pytest.mark.few
@pytest.mark.parametrize(
    "call", ["create", "directory sync", "rename", "sync", "truncate", "write"]
)
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_call_that_fails_while_a_file_begins_costs_nothing(call: str, nth: int) -> None:
    disk = SimulatedDisk(2)
    store = make(disk)
    recid = store.put(b"0")
    store.commit()
    last = acknowledged = b"0"
    failed = 0
    for number in range(60):
        try:
            if number == 3:
                disk.arm(call, nth)
            last = b"%070d" % number
            store.update(recid, last)
            store.commit()
            acknowledged = last
        except OSError:
            failed += 1
            disk.arm(call, 0)
            store.close()
            store = again(disk)
            assert store.get(recid) in (last, acknowledged)
            acknowledged = store.get(recid) or b""
        with again(disk.crash(), "r") as reader:
            assert reader.get(recid) == acknowledged
    store.close()
    assert failed <= 1


def test_a_close_behind_a_new_file_keeps_the_count_of_commits(tmp_path: Path) -> None:
    """The saved table then ends at the start of a file."""
    path = str(tmp_path / "s")
    with LogStore.create(path, file_size=4096, cutoff=500) as store:
        recid = store.put(b"1")
        store.commit()
        with store._log.write_lock:
            store._log.next_file()
    with LogStore(path, "a") as store:
        assert store._log.sequence == 1
        store.update(recid, b"2")
        store.commit()
    assert not winkfs.verify(path).problems
    Path(path, "index").unlink()
    with LogStore(path, "a") as store:
        assert store.get(recid) == b"2"
