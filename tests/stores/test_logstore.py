"""A LogStore: what its calls do, its files, readers beside a writer, damage, hostile bytes."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from flips import flip, flipping
from logstore_lives import content
from refusals import all_raise, each_raises, refuses

import winkfs
from winkformats.errors import CorruptError, FormatError
from winkformats.logstore import entry
from winkformats.logstore.entry import HEAD, IS_BLOB, MARK, PART, RECORD, Entries
from winkformats.logstore.layout import Layout
from winkfs.errors import Closed, FileExists, Locked, NoSuchFile, ReadOnly, Refusal
from winkfs.registry import kind_of
from winkfs.stores.logstore import Conflict, LogStore
from winkfs.stores.logstore.table import Table

SMALL = {"file_size": 4 << 10, "cutoff": 500, "save_every": 3}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s")


@pytest.fixture
def store(path: str) -> Iterator[LogStore]:
    with LogStore.create(path) as made:
        yield made


@pytest.fixture
def recid(store: LogStore) -> int:
    """A record with the body b"1", which is committed."""
    made = store.put(b"1")
    store.commit()
    return made


def filled(path: str, count: int = 200, **options: int) -> dict[int, bytes | None]:
    """A store of several files with updates, deletions, null records and blobs."""
    rng = random.Random(1)
    with LogStore.create(path, **(SMALL | options)) as store:
        model: dict[int, bytes | None] = {}
        for number in range(count):
            body = None if number % 20 == 0 else rng.randbytes(rng.choice((0, 30, 200, 501)))
            model[store.put(body)] = body
            if number % 3 == 0:
                recid = rng.choice(list(model))
                model[recid] = rng.randbytes(50)
                store.update(recid, model[recid])
            if number % 7 == 0:
                store.delete(recid := rng.choice(list(model)))
                del model[recid]
            if number % 5 == 0:
                store.commit(sync=False)
        store.commit()
    return model


# --- calls ---


def test_bodies_come_back_after_reopening(path: str) -> None:
    with LogStore.create(path) as store:
        recids = store.put_many([b"a", b"", None, b"x" * 100_000, bytearray(b"ba")])
        assert recids == [1, 2, 3, 4, 5]
        store.update(1, memoryview(b"second"))
        store.commit()
        wanted = {1: b"second", 2: b"", 3: None, 4: b"x" * 100_000, 5: b"ba"}
        assert content(store) == wanted
        assert len(store) == 5 and 3 in store and 6 not in store and "1" not in store
    with LogStore(path) as reader:
        assert content(reader) == wanted
        assert reader.get_many([5, 4, 3, 5]) == [b"ba", b"x" * 100_000, None, b"ba"]
        assert reader.get_many([]) == []
        refuses(reader.get, (0, -1, 6, 1 << 40, 1 << 70), NoSuchFile)
        each_raises(
            (NoSuchFile, None, lambda: reader.get_many([1, 6])),
            (ReadOnly, None, lambda: reader.put(b"")),
        )


def test_changes_are_seen_by_others_when_they_are_committed(store: LogStore, recid: int) -> None:
    with store.begin() as transaction:
        transaction.update(recid, b"2")
        other = transaction.put(b"3")
        assert transaction.get(recid) == b"2" and transaction.get(other) == b"3"
        assert store.get(recid) == b"1" and other not in store
    assert store.get(recid) == b"2" and store.get(other) == b"3"
    with pytest.raises(Closed, match="committed"):
        transaction.put(b"")


def test_a_transaction_that_is_rolled_back_leaves_nothing(
    path: str, store: LogStore, recid: int
) -> None:
    large = bytes(100_000)  # a blob
    with pytest.raises(ZeroDivisionError), store.begin() as transaction:
        transaction.update(recid, large)
        transaction.put(large)
        transaction.delete(recid)
        raise ZeroDivisionError
    assert content(store) == {recid: b"1"}
    assert os.listdir(f"{path}/blob") == []
    store.update(recid, b"other")  # nobody else has it any more
    store.rollback()
    store.commit()
    assert content(store) == {recid: b"1"}


def test_two_transactions_do_not_change_one_record(store: LogStore, recid: int) -> None:
    one, two = store.begin(), store.begin()
    one.update(recid, b"2")
    all_raise(
        Conflict,
        (
            lambda: two.delete(recid),
            lambda: two.update(recid, b"3"),
            lambda: two.compare_and_swap(recid, b"1", b"3"),
        ),
    )
    one.commit()
    assert not two.compare_and_swap(recid, b"1", b"3")
    assert two.compare_and_swap(recid, b"2", b"3")
    two.commit()
    assert store.get(recid) == b"3"


def test_a_transaction_that_is_dropped_lets_go_of_its_records(store: LogStore, recid: int) -> None:
    store.begin().update(recid, b"2")
    store.update(recid, b"3")
    store.commit()
    assert store.get(recid) == b"3"


def test_what_is_deleted_cannot_be_changed(store: LogStore) -> None:
    recid = store.put(b"1")
    store.delete(recid)
    all_raise(NoSuchFile, (lambda: store.delete(recid), lambda: store.update(recid, b"")))
    store.commit()
    all_raise(
        NoSuchFile,
        (lambda: store.delete(recid), lambda: store.compare_and_swap(recid, None, b"")),
    )
    assert len(store) == 0


def test_preallocated_records_are_null_until_they_are_updated(store: LogStore) -> None:
    recids = store.preallocate(3)
    store.commit()
    assert store.get_many(recids) == [None] * 3
    assert not store.compare_and_swap(recids[0], b"", b"1")
    assert store.compare_and_swap(recids[0], None, b"1")
    store.commit()
    assert store.get(recids[0]) == b"1"


@pytest.mark.usefixtures("recid")
def test_empty_commits_write_nothing(store: LogStore, path: str) -> None:
    before = os.stat(f"{path}/data/{0:016x}").st_size
    for _ in range(5):
        store.commit()
        store.begin().commit()
        store.rollback()
    assert os.stat(f"{path}/data/{0:016x}").st_size == before


def test_a_recid_is_reused_once_no_open_transaction_may_know_it(path: str) -> None:
    with LogStore.create(path) as store:
        first, second = store.put_many([b"1", b"2"])
        store.commit()
        reader = store.begin()
        assert reader.get(first) == b"1"
        store.delete(first)
        store.commit()
        assert store.put(b"3") == second + 1
        store.commit()
        reader.rollback()
        assert store.put(b"4") == first
        store.commit()
        store.delete(first)
        store.commit()
    with LogStore(path, "a") as store:
        assert store.put_many([b"5", b"6"]) == [first, second + 2]


def test_recids_of_a_transaction_that_is_rolled_back_are_free(store: LogStore) -> None:
    recids = store.put_many([b"1"] * 10)
    store.rollback()
    assert sorted(store.put_many([b"2"] * 10)) == recids


def test_many_are_updated_or_none(store: LogStore) -> None:
    recids = store.put_many([b"1"] * 4)
    store.commit()
    store.update_many(recids, [b"2", None, b"4", b"5"])
    store.commit()
    assert store.get_many(recids) == [b"2", None, b"4", b"5"]
    for wrong, bodies in ((recids, [b""]), ([1, 99], [b"", b""])):
        with pytest.raises((ValueError, NoSuchFile)):
            store.update_many(wrong, bodies)
    store.commit()
    assert store.get_many(recids) == [b"2", None, b"4", b"5"]


# --- snapshots ---


def test_a_snapshot_stays_as_it_is(path: str) -> None:
    model = filled(path)
    with LogStore(path, "a") as store:
        first = store.snapshot()
        for number, recid in enumerate(list(model)):
            (store.delete if number % 2 else lambda id: store.update(id, b"new"))(recid)
        recids = store.put_many([b"more"] * 5000)  # the table grows
        store.commit()
        second, now = store.snapshot(), content(store)
        assert content(first) == model and first.get_many(list(model)) == list(model.values())
        store.update_many(recids, [b"other"] * 5000)
        store.commit()
        while store.compact(least=0.05)["files"]:
            pass
        assert content(first) == model and len(first) == len(model)
        assert content(second) == now
        files = len(os.listdir(f"{path}/data"))
        first.close()
        with pytest.raises(Closed):
            first.get(1)
        del second
        store.compact()
        assert len(os.listdir(f"{path}/data")) < files
        assert set(store.get_many(recids)) == {b"other"}


def test_a_snapshot_made_during_a_change_shows_nothing_of_it() -> None:
    table = Table()
    recids = np.arange(1, 10_000)
    lengths = np.full(len(recids), 20)
    table.apply(Entries(recids, recids.astype(np.uint64) * 100, lengths))
    views = []
    assign = table._assign

    def between(entries: Entries) -> None:
        views.append(table.view())
        assign(entries.take(slice(0, 4000)))
        views.append(table.view())
        assign(entries.take(slice(4000, None)))
        views.append(table.view())

    table._assign = between  # type: ignore[method-assign]
    table.apply(Entries(recids, recids.astype(np.uint64) * 200, lengths))
    table._assign = assign  # type: ignore[method-assign]
    views.append(table.view())
    table.apply(Entries(recids, recids.astype(np.uint64) * 300, lengths))
    for view, factor in zip(views, (100, 100, 100, 200), strict=True):
        assert view.get_many(recids).positions.tolist() == [n * factor for n in recids.tolist()]
        assert all(view.get(recid)[0] == recid * factor for recid in range(1, 10_000, 97))
        assert sum(len(part.recids) for part in view.parts()) == len(recids)


@pytest.mark.slow
def test_a_large_snapshot_takes_less_than_a_millisecond() -> None:
    table = Table()
    recids = np.arange(1, 3_000_001)
    table.apply(Entries(recids, recids.astype(np.uint64), np.full(len(recids), 20)))
    times = []
    for _ in range(5):
        began = time.thread_time()
        view = table.view()
        times.append(time.thread_time() - began)
        table.apply(Entries(recids[:100], recids[:100].astype(np.uint64) + np.uint64(7),
                            np.full(100, 20)))  # fmt: skip
        assert view.get(50)[0] in (50, 57)
    assert sorted(times)[2] < 0.001


# --- files ---


def test_large_bodies_are_files_that_go_with_their_records(path: str) -> None:
    with LogStore.create(path, cutoff=100) as store:
        one, two = store.put_many([b"1" * 101, b"2" * 101])
        store.put(b"3" * 100)
        store.commit()
        assert sorted(os.listdir(f"{path}/blob")) == [f"{1:016x}", f"{2:016x}"]
        assert Path(f"{path}/blob/{1:016x}").read_bytes() == b"1" * 101
        snapshot = store.snapshot()
        store.update(one, b"1" * 102)
        store.update(one, b"1" * 103)
        store.delete(two)
        store.commit()
        assert len(os.listdir(f"{path}/blob")) == 3
        assert snapshot.get(one) == b"1" * 101 and snapshot.get(two) == b"2" * 101
        snapshot.close()
        store.compact()
        assert os.listdir(f"{path}/blob") == [f"{4:016x}"]
        assert store.get(one) == b"1" * 103


def test_orphans_among_blobs_are_removed_at_the_next_opening(path: str) -> None:
    with LogStore.create(path, cutoff=100) as store:
        recid = store.put(b"1" * 101)
        store.commit()
    Path(f"{path}/blob/{9:016x}").write_bytes(b"of a writer that was killed")
    with LogStore(path) as reader:
        assert reader.get(recid)
    with LogStore(path, "a") as store:
        assert os.listdir(f"{path}/blob") == [f"{1:016x}"]
        store.put(b"2" * 101)
        store.commit()
        assert sorted(os.listdir(f"{path}/blob")) == [f"{1:016x}", f"{10:016x}"]


def test_a_second_writer_gets_the_lock_holder(path: str) -> None:
    with LogStore.create(path):
        each_raises(
            (Locked, str(os.getpid()), lambda: LogStore(path, "a")),
            (FileExists, None, lambda: LogStore.create(path)),
            (NoSuchFile, None, lambda: LogStore(f"{path}/other", "a")),
            (ValueError, "mode", lambda: LogStore(path, "w")),
        )
    LogStore(path, "a").close()


@pytest.mark.slow
def test_a_reader_follows_a_writer_across_rolls_and_compaction(path: str) -> None:
    rng = random.Random(2)
    with LogStore.create(path, **SMALL, file_bits=6, generation_bits=3) as store:
        reader = LogStore(path)
        assert not reader.refresh() and len(reader) == 0
        model: dict[int, bytes | None] = {}
        for number in range(300):
            for _ in range(rng.randint(1, 6)):
                body = rng.randbytes(rng.choice((10, 200, 600)))
                if rng.random() < 0.5 and len(model) < 30:
                    model[store.put(body)] = body
                elif model:
                    recid = rng.choice(list(model))
                    store.update(recid, body)
                    model[recid] = body
            store.commit(sync=False)
            if number % 10 == 0:
                store.compact(least=0.2)
            if number % 3 == 0:
                assert reader.refresh()
                assert content(reader) == model
                assert not reader.refresh()
            elif model:  # it looks again where something is gone
                recid = rng.choice(list(model))
                if recid in reader:
                    assert reader.get(recid) is not None
        assert reader.problems == []
        reader.close()


def test_compaction_in_the_background_reclaims_space(path: str) -> None:
    with LogStore.create(path, file_size=64 << 10, cutoff=1000) as store:
        store.start_compaction(0.02)
        recids = store.put_many([b"x" * 500] * 50)
        store.commit()
        for number in range(100):
            store.update_many(recids, [b"%0500d" % number] * 50)
            store.commit(sync=False)
        deadline = time.monotonic() + 20
        while len(os.listdir(f"{path}/data")) > 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(os.listdir(f"{path}/data")) <= 4
        assert set(store.get_many(recids)) == {b"%0500d" % 99}
    with LogStore(path) as reader:
        assert set(reader.get_many(recids)) == {b"%0500d" % 99}


def test_a_dry_run_of_compaction_changes_nothing(path: str) -> None:
    filled(path)
    with LogStore(path, "a") as store:
        before = sorted(os.listdir(f"{path}/data"))
        plan = store.compact(least=0.1, dry_run=True)
        assert plan["files"] > 0 and plan["freed"] > 0
        assert sorted(os.listdir(f"{path}/data")) == before
        seen: list[int] = []
        done = store.compact(seen.append, least=0.1)
        assert done["files"] >= plan["files"] and sum(seen) >= plan["bytes"]


@pytest.mark.parametrize("options", [
    {"file_size": 100}, {"file_size": 1 << 32}, {"cutoff": 1 << 30}, {"cutoff": -1},
    {"generation_bits": 1}, {"generation_bits": 17}, {"file_bits": 3}, {"file_bits": 60},
    {"save_every": 0}, {"file_size": 0},
])  # fmt: skip
def test_numbers_that_do_not_go_together_make_no_store(path: str, options: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        LogStore.create(path, **options)
    assert not os.path.exists(path)


# --- numbers of files ---


@pytest.mark.parametrize("used, files, oldest", [
    ([], [], 0),
    ([0], [0], 0),
    ([0, 1], [0, 1], 0),
    ([0, 1, 15], [0, 1, 15], 15),
    ([14, 15, 0], [14, 15], 14),
    ([3, 5], [5], 5),  # 3 is what a power cut brought back
    ([5, 3], [3, 5], None),
    ([1], [0], None),
    (list(range(16)), [0], None),
])  # fmt: skip
def test_the_oldest_generation_is_the_one_behind_the_hole(
    used: list[int], files: list[int], oldest: int | None
) -> None:
    made = Layout.new(1 << 20, file_bits=8, generation_bits=4)
    numbers = [16 * generation + 3 for generation in files]
    if oldest is None:
        with pytest.raises(ValueError):
            made.oldest(used, numbers)
    else:
        assert made.oldest(used, numbers) == oldest


def test_positions_and_ages_are_cyclic() -> None:
    made = Layout.new(1 << 20, file_bits=8, generation_bits=4)
    assert made.split(made.position(200, 12345)) == (200, 12345)
    assert made.following(255) == 0
    assert [made.age(number, 15) for number in (240, 255, 0, 3)] == [0, 15, 16, 19]
    assert [made.generation(number) for number in (0, 15, 16, 255)] == [0, 0, 1, 15]


@pytest.mark.parametrize("bit", range(0, 8 * 48, 5))
def test_a_flipped_bit_of_the_settings_is_reported(bit: int) -> None:
    data = bytearray(Layout.new().encode())
    data[bit >> 3] ^= 1 << (bit & 7)
    with pytest.raises(FormatError):
        Layout.decode(bytes(data), file="logstore")


# --- as any store ---


def test_a_log_store_is_a_kind_of_store(path: str) -> None:
    model = {str(recid): body or b"" for recid, body in filled(path).items()}
    kind, found = kind_of(path)
    assert (kind.name, found) == ("log store", path)
    with winkfs.open(path) as records:
        assert dict(zip(records.names(), records.get_many(records.names()), strict=True)) == model
        rows = list(records.rows())
        assert {row.id: body for row, body in zip(rows, records.bodies(rows), strict=True)} == model
        places = [(row.file, row.offset) for row in rows]
        assert places == sorted(places)
        apart = [row for part in records.data_files() for row in records.rows(part)]
        assert apart == rows
        assert all(records.row(row.id) == row and row.size == len(model[row.id]) for row in rows)
        assert records.stats()["records"] == len(records) == len(model)
        assert all(abs(entry.mtime_ns / 1e9 - time.time()) < 100 for entry in records.scan())
        with pytest.raises(NoSuchFile):
            records.row("999999")
        refuses(records.row, ("", "0", "01", "a", "-1", "1" * 11, "²"), ValueError)
    info = kind.function("info", path)(path)
    assert info["records"] == len(model) and info["problems"] == []
    with winkfs.open(path, "a") as records:
        new = records.put(None, b"new")
        assert records.put("1" if "1" in model else new, b"second")
        records.sync()
        assert records.read(new) == b"new"
        records.remove(new)
        records.sync()
        assert new not in records
        assert records.compact(dry_run=True)["files"] >= 0
    other = f"{path}-2"
    kind.function("create", other)(other, cutoff=10)
    assert len(winkfs.open(other)) == 0


# --- damage ---


@pytest.mark.in_memory
@pytest.mark.slow
def test_a_flip_of_the_first_entries_is_reported_keeps_the_file(
    path: str, every: Callable[[str], slice]
) -> None:
    """No file was removed before the first one; no flip makes of a kind that of a removed file."""
    model = filled(path, 120)
    name, first = f"{path}/data/{0:016x}", entry.START
    for number in range(8 * 2 * entry.MARK.size)[every("first bits")]:
        at, bit = first + number // 8, number % 8
        with flipping(name, at, bits=1 << bit):
            assert winkfs.verify(path).problems, (at, bit)
    with flipping(name, first, bits=4), contextlib.suppress(FormatError, Refusal):  # RECORD is EOF
        LogStore(path, "a").close()
    with LogStore(path) as store:
        assert all(store.get(recid) == body for recid, body in model.items())


@pytest.mark.in_memory
@pytest.mark.slow
@pytest.mark.soak
def test_a_flipped_bit_is_found_and_gives_no_wrong_body(path: str, soak: bool) -> None:
    model = filled(path, 120)
    files = [f"{path}/{folder}/{name}" for folder in ("data", "blob")
             for name in sorted(os.listdir(f"{path}/{folder}"))]  # fmt: skip
    rng = random.Random(3)
    missed = wrong = lost = 0
    for _ in range(20_000 if soak else 200):
        name = rng.choice(files)
        at, bit = rng.randrange(os.path.getsize(name)), rng.randrange(8)
        with flipping(name, at, bits=1 << bit), LogStore(path) as store:
            missed += not winkfs.verify(path).problems
            for recid in model:
                try:
                    wrong += store.get(recid) != model[recid]
                except (CorruptError, FileNotFoundError):
                    lost += 1
    assert (missed, wrong) == (0, 0)
    assert lost > 0
    assert winkfs.verify(path).problems == []


@pytest.mark.parametrize("derived", [True, False])
def test_damage_of_synced_entries_is_reported_and_not_cut_off(path: str, derived: bool) -> None:
    """Also in the last file, where the next commit says what was synced."""
    with LogStore.create(path) as store:
        recids = [store.put(b"%0100d" % number) for number in range(5)]
        store.commit()
        for recid in recids:
            store.update(recid, b"x%d" % recid)
            store.commit()
    if not derived:
        os.remove(f"{path}/index")
    name = f"{path}/data/{0:016x}"
    flip(name, 60)
    assert winkfs.verify(path).problems
    with LogStore(path) as store:
        assert store.get_many(recids) == [b"x%d" % recid for recid in recids]
        assert bool(store.problems) == (not derived)
    if not derived:
        with pytest.raises(Refusal, match="salvage"):
            LogStore(path, "a")
        assert os.path.getsize(name) > 700


def test_salvage_copies_what_is_whole(path: str) -> None:
    model = filled(path, 100)
    kind, _ = kind_of(path)
    names = sorted(os.listdir(f"{path}/data"))
    middle = f"{path}/data/{names[len(names) // 2]}"
    rng = random.Random(4)
    for _ in range(5):
        flip(middle, rng.randrange(16, os.path.getsize(middle)), bits=8)
    os.remove(f"{path}/index")
    last = Path(f"{path}/data/{names[-1]}")
    os.truncate(last, last.stat().st_size - 5)
    target = f"{path}-new"
    report = kind.function("salvage", path)(path, target)
    assert report["problems"]
    with LogStore(target, "a") as store:
        found = content(store)
        assert len(found) == report["records"]
        same = sum(found.get(recid, 0) == body for recid, body in model.items())
        assert same > 0.8 * len(model)
        store.put(b"more")
        store.commit()
    assert winkfs.verify(target).problems == []
    with pytest.raises(FileExists):
        kind.function("salvage", path)(path, target)


def test_a_record_that_is_damaged_keeps_its_file_from_compaction(path: str) -> None:
    with LogStore.create(path, **SMALL) as store:
        kept = store.put(b"kept" * 20)
        hot = store.put(b"")
        for number in range(100):
            store.update(hot, b"%0200d" % number)
            store.commit()
    flip(f"{path}/data/{0:016x}", 40)
    with LogStore(path, "a") as store:
        store.compact(least=0.1)
        assert "not compacted" in store.problems[0]
        assert os.path.exists(f"{path}/data/{0:016x}")
        with pytest.raises(CorruptError):
            store.get(kept)
        assert store.get(hot) == b"%0200d" % 99


# --- hostile bytes ---


def forged(path: str, change: Callable[[bytes], bytes]) -> None:
    """A store of one file whose first transaction is what `change` makes of it."""
    with LogStore.create(path, file_size=64 << 10, cutoff=500) as store:
        store.put(b"body")
        store.commit()
    layout = Layout.decode(Path(path, "logstore").read_bytes(), file="logstore")
    os.remove(f"{path}/index")
    name = f"{path}/data/{0:016x}"
    data = Path(name).read_bytes()
    head, entries = data[: entry.START], data[entry.START : -MARK.size]
    made = change(entries)
    checksum = zlib.crc32(made, entry.seed(layout))
    Path(name).write_bytes(head + made + entry.commit(1, 16, len(made), checksum))


def raw(size: int, recid: int, body: bytes = b"") -> bytes:
    part = PART.pack(RECORD, size, recid)
    return HEAD.pack(RECORD, size, recid, zlib.crc32(body, zlib.crc32(part))) + body


HOSTILE = {
    "size -3": lambda _: raw(-3, 1),
    "size least": lambda _: raw(-(1 << 31), 1),
    "size most": lambda _: raw((1 << 31) - 1, 1),
    "recid 0": lambda _: raw(0, 0),
    "recid -1": lambda _: raw(0, -1),
    "recid 2^31": lambda _: raw(0, 1 << 31),
    "recid 2^63 - 1": lambda _: raw(0, (1 << 63) - 1),
    "kind 0": lambda data: b"\0" + data,
    "kind 255": lambda data: b"\xff" + data,
    "padding": lambda data: b"\2" * 5000 + data,
    "end": lambda data: b"\1" + data,
    "blob of no file": lambda _: entry.Blob(7, 1 << 40, 0).encode(1),
    "blob of negative size": lambda _: entry.Blob(7, -5, 0).encode(1),
    "blob with a large number": lambda _: entry.Blob((1 << 63) - 1, 5, 0).encode(1),
    "nothing": lambda _: b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_numbers_are_reported(path: str, name: str) -> None:
    forged(path, HOSTILE[name])
    for call in (lambda: LogStore(path), lambda: LogStore(path, "a")):
        try:
            with call() as store:
                for recid in store.recids():
                    if name == "padding":
                        assert store.get(recid) == b"body"
                    else:
                        with pytest.raises((CorruptError, FileNotFoundError)):
                            store.get(recid)
        except (FormatError, Refusal):
            continue
    winkfs.verify(path)
    shutil.rmtree(f"{path}-new", ignore_errors=True)
    with contextlib.suppress(FormatError):
        kind_of(path)[0].function("salvage", path)(path, f"{path}-new")


@pytest.mark.long
@pytest.mark.slow
def test_a_recid_just_within_its_limit_is_no_burden(path: str) -> None:
    forged(path, lambda _: raw(4, (1 << 28), b"far!"))
    with LogStore(path) as store:
        assert store.get(1 << 28) == b"far!"
        assert list(store.recids()) == [1 << 28]


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("what", ["logstore", "index", "data"])
def test_random_bytes_and_cuts_raise_format_errors_alone(path: str, what: str) -> None:
    filled(path, 60)
    name = f"{path}/{what}" if what != "data" else f"{path}/data/{0:016x}"
    whole = Path(name).read_bytes()
    rng = random.Random(5)
    for number in range(60):
        data = bytearray(whole[: rng.randrange(len(whole) + 1)])
        for _ in range(number % 4):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        Path(name).write_bytes(data)
        try:
            with LogStore(path) as store:
                for recid in store.recids():
                    with contextlib.suppress(CorruptError, FileNotFoundError):
                        store.get(recid)
        except (FormatError, FileNotFoundError):
            pass
        winkfs.verify(path)


def test_blobs_are_distinguished_from_records(path: str) -> None:
    layout = Layout.new(4096, 100)
    assert entry.Blob(1, 200, 5).encode(1)[0] == entry.BLOB
    assert layout.largest < IS_BLOB


def test_a_commit_that_is_interrupted_gives_nothing_back(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be in the log already: its recids are not free, and nothing is written behind it."""
    with LogStore.create(path) as store:
        first = store.put(b"1")
        store.commit()

        def interrupted(entries: Entries) -> Entries:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt), store.begin() as transaction:
            second = transaction.put(b"2")
            monkeypatch.setattr(store._log.table, "apply", interrupted)
        monkeypatch.undo()
        with pytest.raises(Refusal, match="interrupted"):
            store.put(b"3")
        assert content(store) == {first: b"1"}
    with LogStore(path, "a") as store:
        assert content(store) == {first: b"1", second: b"2"}
        assert store.put(b"3") > second
