"""A data file or a segment that is gone: opening a store reports it, and so does verify."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from refusals import all_raise

import winkfs
from winkformats.errors import CorruptError
from winkformats.logstore import datafiles
from winkfs.errors import Refusal
from winkfs.stores import ledgerq, ringpage
from winkfs.stores.ledgerq import Queue, Rotation
from winkfs.stores.logstore import LogStore
from winkfs.stores.logstore.log import Log
from winkfs.stores.ringpage import Ring

pytestmark = pytest.mark.in_memory
WHICH = {
    "first": slice(0, 1), "middle": slice(2, 3), "last": slice(-1, None),
    "last two": slice(-2, None), "all": slice(None),
}  # fmt: skip


# --- the log store ---


@pytest.fixture
def log(tmp_path: Path) -> str:
    """A log store of 40 records in more than 4 data files."""
    path = str(tmp_path / "s")
    with LogStore.create(path, file_size=4096, cutoff=500, save_every=3) as store:
        for number in range(40):
            store.put(b"%04d" % number * 100)
            store.commit(sync=number % 3 == 0)
    return path


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("which", WHICH)
def test_a_data_file_that_is_gone_is_reported(which: str, index: bool, log: str) -> None:
    files = sorted(Path(log, "data").iterdir())
    assert len(files) > 4
    for file in files[WHICH[which]]:
        file.unlink()
    if not index:
        Path(log, "index").unlink()
    with LogStore(log) as store:
        problems = "\n".join(store.problems)
        assert len(store) < 40
    for file in files[WHICH[which]]:
        assert f"{file}: the data file is missing" in problems
    assert winkfs.verify(log).problems
    with pytest.raises(Refusal, match="missing"):
        LogStore(log, "a")


def test_data_files_that_a_compaction_removes_are_not_missed(log: str) -> None:
    path, rng = log, random.Random(1)
    reader = LogStore(path)
    for round in range(6):
        with LogStore(path, "a") as store:
            for recid in list(store.recids()):
                if rng.random() < 0.5:
                    store.update(recid, rng.randbytes(300))
            store.commit()
            assert store.compact(least=0.1)["files"] > 0
            with LogStore(path) as other:
                assert not other.problems
            if round % 2:
                store.abort()  # as after a kill
        with LogStore(path) as other:
            assert not other.problems and len(other) == 40
        reader.refresh()
        assert not reader.problems
        assert not winkfs.verify(path).problems
    reader.close()


def test_a_store_of_before_gets_its_list_from_the_next_writer(log: str) -> None:
    listed = Path(log, datafiles.NAME)
    for damaged in (None, b"", listed.read_bytes()[:30], bytes(4096), b"x" * 100):
        if damaged is None:
            listed.unlink()
        else:
            listed.write_bytes(damaged)
        with LogStore(log) as store:
            assert not store.problems
        LogStore(log, "a").close()
        opened = Log(log)
        found = opened.files.listed()
        assert found is not None and found[0] == set(opened.numbers)
        opened.close()


def test_a_list_with_a_row_that_is_not_whole_is_of_no_use() -> None:
    data = datafiles.encode(7, [1, 2])
    row = datafiles.row(7, datafiles.REMOVED, 1)
    end = datafiles.HEAD.size + 2 * datafiles.ROW.size
    assert datafiles.decode(data, 7) == ({1, 2}, end)
    assert datafiles.decode(data[:end] + row + bytes(9), 7) == ({2}, end + len(row))
    assert datafiles.decode(data, 8) is None
    for at in range(end + len(row)):
        for bit in (1, 128):
            wrong = bytearray(data[:end] + row)
            wrong[at] ^= bit
            assert datafiles.decode(bytes(wrong), 7) is None
    rng = random.Random(2)
    for _ in range(200):
        assert datafiles.decode(data[: datafiles.HEAD.size] + rng.randbytes(40), 7) is None
    for size in range(end):
        found = datafiles.decode(data[:size], 7)
        assert found is None or found[0] <= {1, 2}


# --- the queue ---


@pytest.fixture(params=[0, 15])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, int]:
    """A path, and how many messages are consumed."""
    path = str(tmp_path / "q")
    ledgerq.create(path)
    with Queue(path, "a", rotation=Rotation(messages=10)) as made:
        made.push_many([b"x" * 20] * 45)
        made.pop_many(request.param)
    return path, request.param


@pytest.mark.parametrize("which", WHICH)
def test_a_segment_that_is_gone_is_reported(which: str, queue: tuple[str, int]) -> None:
    path, consumed = queue
    segments = sorted(Path(path).glob("*.log"))
    assert len(segments) == 5
    gone = range(1, 46)[{"middle": slice(20, 30), "last": slice(40, 45), "last two": slice(30, 45),
                         "first": slice(0, 10), "all": slice(0, 45)}[which]]  # fmt: skip
    for segment in segments[WHICH[which]]:
        segment.unlink()
    unread = [id for id in gone if id > consumed]
    lines = [f"messages {unread[0]} to {unread[-1]} are missing"] if unread else []
    for mode in ("r", "a"):
        there = shutil.copytree(path, f"{path}.{mode}")
        report = winkfs.verify(path).problems
        with Queue(there, mode) as found:
            assert len(found.problems) == len(lines)
            assert bool(report) == bool(lines)
            for line in lines:
                assert line in found.problems[0] and any(line in other for other in report)
            assert found.next_id == 46
            left = [message.id for message in found.messages()]
            assert left == [id for id in range(consumed + 1, 46) if id not in gone]


def test_segments_that_a_compaction_removes_are_not_missed(queue: tuple[str, int]) -> None:
    path, _ = queue
    with Queue(path, "a") as made, Queue(path) as reader:
        made.pop_many(25)
        assert made.compact().segments == (25 + queue[1]) // 10
        made.add_consumer("late")
        made.seek(1)
        made.sync()
        with Queue(path) as other:
            assert not other.problems
        made.compact(unread=True)
        reader.refresh()
        assert not reader.problems
    for mode in ("r", "a", "r"):
        with Queue(path, mode) as other:
            other.stats()
            assert not other.problems
    assert not winkfs.verify(path).problems


def test_what_another_consumer_has_not_read_is_missed(queue: tuple[str, int]) -> None:
    path, _ = queue
    with Queue(path, "a") as made:
        made.add_consumer("slow")
        made.pop_many(40)
    sorted(Path(path).glob("*.log"))[0].unlink()
    with Queue(path) as found:
        assert "messages 1 to 10 are missing" in found.problems[0]


@pytest.mark.parametrize("by_priority", [False, True])
def test_messages_that_a_segment_was_cut_by_are_reported(
    by_priority: bool, queue: tuple[str, int]
) -> None:
    """Its header still has the last id."""
    path, consumed = queue
    segment = sorted(Path(path).glob("*.log"))[2]
    with Queue(path) as found:
        start = next(message.offset for message in found.messages() if message.id == 28)
    os.truncate(segment, start)
    with Queue(path, by_priority=by_priority) as found:
        left = [message.id for message in found.messages()]
        assert left == [id for id in range(consumed + 1, 46) if not 28 <= id <= 30]
        assert "messages 28 to 30 are missing" in found.problems[0]
    assert winkfs.verify(path).problems


# --- the ring buffer ---


@pytest.mark.parametrize("looped", [False, True])
@pytest.mark.parametrize("edge", [True, False])
def test_pages_that_are_cut_off_are_reported(looped: bool, edge: bool, tmp_path: Path) -> None:
    path = tmp_path / "ring"
    ringpage.create(path, pages=8)
    with Ring(path, "a") as ring:
        ring.push_many([b"x" * 900] * (90 if looped else 20))
    size = path.stat().st_size
    with Ring(path) as ring:
        assert not ring.problems
    os.truncate(path, size - 4096 if edge else size - 5000)
    with Ring(path) as ring:
        list(ring.records())
        assert "cut short" in str(ring.problems) or "are gone" in str(ring.problems)
    assert winkfs.verify(path).problems


def test_a_blob_that_is_gone_is_damage(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with LogStore.create(path, cutoff=500) as store:
        recids = store.put_many([b"1" * 600, b"2" * 600, b"3"])
    blobs = sorted(Path(path, "blob").iterdir())
    blobs[0].unlink()
    with LogStore(path) as store:
        all_raise(
            CorruptError,
            (lambda: store.get(recids[0]), lambda: store.get_many([recids[0]])),
            "missing",
        )
        assert store.get_many(recids[1:]) == [b"2" * 600, b"3"]
    assert winkfs.verify(path).problems
