"""Objects as files: what is asked for, what is held, and passes that ask ahead."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated.objectstore import ObjectStore

from winkformats.disk import objects
from winkformats.disk.objects import Held, ObjectStorage, joined
from winkformats.disk.storage import Storage

RANGES = st.lists(
    st.tuples(st.integers(0, 1 << 20), st.integers(1, 1 << 16)).map(lambda r: (r[0], r[0] + r[1])),
    max_size=40,
)


@given(ranges=RANGES)
@settings(max_examples=examples(100), deadline=None)
def test_requests_cover_the_ranges_and_little_more(ranges: list[tuple[int, int]]) -> None:
    requests = joined(ranges)
    wanted = {byte // 64 for start, stop in ranges for byte in range(start, stop, 64)}
    asked = [byte // 64 for start, stop in requests for byte in range(start, stop, 64)]
    assert wanted <= set(asked) | {stop // 64 for _, stop in requests}
    assert all(a[1] <= b[0] for a, b in pairwise(requests))
    total = sum(stop - start for start, stop in requests)
    needed = len({byte for start, stop in ranges for byte in range(start, stop)})
    gaps = objects.GAP_BYTES * max(len(ranges) - len(requests), 0)
    assert total <= needed * (1 + 1 / objects.WASTED) + gaps + len(requests)


@given(
    steps=st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 900)), max_size=60),
    asked=st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 300)), max_size=10),
)
@settings(max_examples=examples(100), deadline=None)
def test_what_is_held_is_what_was_added(
    steps: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    data, held, there = bytes(i * 7 % 251 for i in range(6000)), Held(), set[int]()
    for start, length in steps:
        held.add(start, data[start : start + length])
        there |= set(range(start, start + length))
    for start, length in asked:
        missing = {b for low, high in held.missing(start, start + length) for b in range(low, high)}
        assert missing == set(range(start, start + length)) - there
        found, _ = held.find(start)
        assert bytes(found) == data[start : start + len(found)]


def test_old_pieces_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "HELD_BYTES", 1000)
    held = Held()
    for start in range(0, 5000, 300):
        held.add(start, bytes(300))
    assert not held.find(0)[0] and held.find(4800)[0]


# --- an object as a file ---


@pytest.fixture
def data() -> bytes:
    return bytes(i * i % 251 for i in range(200_000))


@pytest.fixture
def store(data: bytes) -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        store.put("o", data)
        yield store


@pytest.fixture
def storage(store: ObjectStore) -> Iterator[Storage]:
    with ObjectStorage(store.transport, "o") as storage:
        yield storage


def test_reads_are_those_of_a_file(storage: Storage, data: bytes) -> None:
    for at, length in [
        (0, 10),
        (150_000, 3000),
        (10, 199_000),
        (199_990, 50),
        (200_000, 5),
        (5, 0),
    ]:
        assert storage.read(at, length) == data[at : at + length]
    places, lengths = [7, 90_000, 90_100, 199_999], [3, 100, 5, 9]
    pairs = zip(places, lengths, strict=True)
    assert storage.read_each(places, lengths) == [data[at : at + n] for at, n in pairs]
    assert storage.size() == len(data) == storage.info().size


def test_an_empty_object(store: ObjectStore) -> None:
    store.put("empty", b"")
    with ObjectStorage(store.transport, "empty") as storage:
        assert storage.read(0, 10) == b"" and storage.size() == 0


def test_nothing_is_asked_for_twice(store: ObjectStore, storage: Storage) -> None:
    storage.fetch([(50_000, 60_000), (100_000, 100_100)])
    with store.counted() as asked:
        storage.fetch([(50_000, 60_000), (55_000, 56_000), (100_000, 100_100)])
        storage.read(50_000, 10_000)
        storage.duplicate().read(100_010, 20)
    assert not asked
    with store.counted() as asked:
        storage.fetch([(48_000, 60_500)])
    assert sum(request.size for request in asked) <= 12_500


def test_a_short_answer_is_an_error(store: ObjectStore, storage: Storage, data: bytes) -> None:
    storage.read(0, 1)
    info = store.objects["o"][1]
    store.objects["o"] = data[:100_000], info
    with pytest.raises(OSError, match="shorter answer"):
        storage.read(99_000, 5000)


def test_requests_are_made_at_once(store: ObjectStore, storage: Storage) -> None:
    storage.read(0, 1)
    running, most, lock = 0, 0, threading.Lock()

    def slow(key: str) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1

    store.failing = slow
    storage.fetch([(at, at + 100) for at in range(20_000, 200_000, 3 * objects.GAP_BYTES)])
    assert 4 < most <= objects.IN_FLIGHT


@pytest.mark.parametrize("step", [1000, 30_000, 150_000])
def test_a_pass_reads_all_and_asks_ahead(
    store: ObjectStore, storage: Storage, data: bytes, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "AHEAD_BYTES", 20_000)
    reader = storage.bulk(100, len(data))
    with store.counted() as asked:
        found = b"".join(bytes(reader.read(at, step)) for at in range(100, len(data), step))
    assert found == data[100:]
    assert sum(request.size for request in asked) == len(data) - 100
    assert reader.read(len(data), 10) == b""
    reader.close()


def test_a_pass_leaves_out_what_is_not_wanted(
    store: ObjectStore, storage: Storage, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "AHEAD_BYTES", 1000)
    reader = storage.bulk(0, len(data))
    with store.counted() as asked:
        assert reader.read(150_000, 500) == data[150_000:150_500]
        assert reader.read(150_100, 900) == data[150_100:151_000]
        assert reader.read(190_000, 50) == data[190_000:190_050]
    assert sum(request.size for request in asked) < 20_000


def test_a_directory_lists_and_opens(store: ObjectStore, data: bytes) -> None:
    from winkformats.disk.paths import directory_of, is_directory

    for key in ("a/b/one", "a/b/two", "a/b/c/three", "a/other"):
        store.put(key, data)
    folder = directory_of(f"{store.url}/a/b")
    assert sorted(folder.list()) == ["c", "one", "two"]
    assert is_directory(f"{store.url}/a/b/c") and not is_directory(f"{store.url}/a/x")
    assert folder.info("one").size == len(data) and folder.info("none") is None  # type: ignore[union-attr]
    with store.counted() as asked, folder.open("one") as file:  # after `info`
        assert file.read(0, 100) == data[:100]
    assert not asked
    with pytest.raises(OSError, match="can only be read"):
        folder.open("one", "w")


def test_calls_that_wait_for_each_other_all_run() -> None:
    """As many calls run at a time as were submitted, whatever threads are about to begin."""
    for _ in range(50):
        pool, together = objects.Pool(), threading.Barrier(8)
        calls = [pool.submit(together.wait, 5) for _ in range(8)]
        assert sorted(call.result(6) for call in calls) == list(range(8))
