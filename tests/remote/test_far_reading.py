"""Containers on object storage, read in place: the answers are those of the same files here, and
the requests are few."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stored
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated.objectstore import ObjectStore

import winkfs
import winkfs.dataset
from winkformats import native
from winkformats.disk.objects import GAP_BYTES
from winkfs.container import catalogindex, read
from winkfs.container.ondisk import catalog as catalogs
from winkfs.mounting.dataset import DatasetSource

pytestmark = pytest.mark.in_memory
Make = Callable[[Path], None]


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store


# --- the same answers ---


def plain(base: Path) -> None:
    with winkfs.create(base) as c:
        c.put_many((f"d{i % 7}/{i:05}", b"%d" % i * (i % 50), i) for i in range(3000))
        for i in range(30):
            c.put(f"one by one/{i}", b"x" * 1000 * i, mtime=i)
        c.put("empty", b"")
        c.mkdir("a directory")
        c.symlink("a directory", "link")


def changed(base: Path) -> None:
    plain(base)
    winkfs.reindex(base)
    with winkfs.open(base, "a") as c:
        for i in range(0, 3000, 101):
            c.delete(f"d{i % 7}/{i:05}")
        c.put("d1/00001", b"a new content")
        c.rename("empty", "renamed")
        c.append("one by one/3", b"appended" * 9)


def tail(base: Path) -> None:
    plain(base)
    with winkfs.open(base, "a") as c:  # behind the catalog
        c.put("d1/00001", b"a new content")
        c.delete("d2/00002")


def large(base: Path) -> None:
    with winkfs.create(base) as c:
        c.put("large", random.Random(1).randbytes(5 << 20))
        c.put("holes", b"")
        c.write("holes", 3 << 20, b"end")
        c.put("chained", b"")
        for i in range(40):
            c.append("chained", b"%d" % i * 1000)
            c.sync()


def compressed(base: Path) -> None:
    pytest.importorskip("zstandard")
    with winkfs.create(base, compress="zstd") as c:
        c.put_many(
            (f"d/{i:04}", b"the same words again and again %d " % i * 40) for i in range(900)
        )


def typed(base: Path) -> None:
    with winkfs.create(base, columns={"lang": "string", "score": "float64"}) as c:
        c.put_many(
            (f"d/{i:04}", b"text %d" % i, i, {"lang": ["de", "en", None][i % 3], "score": i / 7})
            for i in range(2500)
        )


def append_only(base: Path) -> None:
    with winkfs.create(base, ao=True, timemp=10) as c:
        for i in range(200):
            c.put(f"f{i}", b"%d" % i * i, mtime=1000 + i)


def classic(base: Path) -> None:
    with winkfs.create(base, classic=True) as c:
        for i in range(50):
            c.put(f"f{i}", b"%d" % i * i)


def nothing(base: Path) -> None:
    winkfs.create(base).close()


KINDS = [plain, changed, tail, large, compressed, typed, append_only, classic, nothing]


def answers(c: winkfs.Container) -> dict[str, Any]:
    """Return what all questions to a container are answered with."""
    names = sorted(c.names())
    some = [*names[:40], *names[-40:], *names[:: max(len(names) // 40, 1)]]
    return {
        "names": names,
        "scan": sorted((e.name, e.size, e.mtime_ns, e.mode, e.read()) for e in c.scan()),
        "below": sorted(e.name for e in c.scan(prefix="d1/")),
        "later": sorted(e.name for e in c.scan(since=20, until=900)),
        "sizes": sorted(c.sizes()),
        "many": list(c.get_many(some)),
        "read": [c.read(name) for name in some],
        "part": [c.read(name, 7, 5) for name in some],
        "stat": [replace(c.stat(name), uid=0, gid=0) for name in some],
        "attributes": [c.getxattrs(name) for name in some],
        "values": [c.getcolumns(name) for name in some],
        "none": ["no such name" in c, "d1" in c, c.get("zzz")],
        "columns": c.columns,
        "length": len(c),
        "problems": c.problems,
    }


@pytest.mark.few(3)
@pytest.mark.parametrize("make", KINDS)
def test_the_answers_are_those_of_the_files_here(
    store: ObjectStore, tmp_path: Path, make: Make
) -> None:
    base = tmp_path / "c"
    make(base)
    url = store.put_container(base)
    with winkfs.open(base) as here, winkfs.open(url) as there:
        wanted = answers(here)  # type: ignore[arg-type]
        assert answers(there) == wanted  # type: ignore[arg-type]
        for name in wanted["names"][:3]:
            with there.open_file(name) as file:
                assert file.read() == here.read(name)


@pytest.mark.parametrize("make", [plain, typed])
def test_batches_and_conditions(store: ObjectStore, tmp_path: Path, make: Make) -> None:
    pytest.importorskip("pyarrow")
    make(tmp_path / "c")
    url = store.put_container(tmp_path / "c")
    for options in ({}, {"where": "size > 20"}, {"prefix": "d"}, {"order": "name"}):
        with winkfs.open(tmp_path / "c") as here, winkfs.open(url) as there:
            assert there.to_arrow(**options).equals(here.to_arrow(**options))  # type: ignore[arg-type]


def test_a_data_set_is_read(store: ObjectStore, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    with winkfs.dataset.create(folder) as made:
        made.put_many((f"d1/{i:04}", b"%d" % i) for i in range(900))
    stored.change(folder, {"d1/0003": b"new", "d1/0007": None, "z": b"more"})
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(f"set/{path.relative_to(folder)}", path.read_bytes())
    with winkfs.open(folder) as here, winkfs.open(f"{store.url}/set") as there:
        assert dict(there.items()) == dict(here.items())
        assert there.read("d1/0003") == b"new" and "d1/0007" not in there
        assert there.problems == []
    report = winkfs.verify(f"{store.url}/set")
    assert report.problems == [] and report.files == 900


@pytest.mark.few(2)
@pytest.mark.parametrize("lost", [".cat", ".idx", ".time"])
@pytest.mark.parametrize("make", [changed, append_only])
def test_derived_objects_need_not_be_there(
    store: ObjectStore, tmp_path: Path, make: Make, lost: str
) -> None:
    make(tmp_path / "c")
    url = store.put_container(tmp_path / "c")
    store.objects.pop(f"dir/c{lost}", None)
    with winkfs.open(tmp_path / "c") as here, winkfs.open(url) as there:
        assert answers(there) == answers(here)  # type: ignore[arg-type]
        assert any("no valid catalog" in line for line in there.notes) == (lost == ".cat")  # type: ignore[attr-defined]


def test_a_flipped_byte_of_a_catalog_is_no_wrong_answer(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: Any
) -> None:
    monkeypatch.setattr(catalogs, "BRIEF_FROM", 1)
    monkeypatch.setattr(catalogs, "LAST_BYTES", 8 << 10)
    changed(tmp_path / "c")
    winkfs.reindex(tmp_path / "c")
    url = store.put_container(tmp_path / "c")
    data = store.objects["dir/c.cat"][0]
    with winkfs.open(tmp_path / "c") as here:
        names = sorted(here.names())
        wanted = names, [here.read(name) for name in names[::400]]
    places = [*range(0, len(data) - 2000, 997), *range(len(data) - 2000, len(data), 37)]
    for at in places[every("catalog places")]:
        broken = bytearray(data)
        broken[at] ^= 1 << at % 8
        store.put("dir/c.cat", bytes(broken))
        with winkfs.open(url) as there:
            found = sorted(there.names()), [there.read(name) for name in names[::400]]
            assert found == wanted, at


QUESTIONS: dict[str, Callable[[Any, list[str]], object]] = {
    "read": lambda c, names: [c.read(name) for name in names],
    "many": lambda c, names: list(c.get_many(names)),
    "stat": lambda c, names: [c.stat(name).size for name in names],
    "in": lambda c, names: [name in c for name in [*names, "none"]],
    "file": lambda c, names: [c.open_file(name).read() for name in names],
    "length": lambda c, names: len(c),
    "names": lambda c, names: sorted(c.names()),
    "scan": lambda c, names: sorted(entry.read() for entry in c.scan(prefix="d1/")),
}


@pytest.mark.few
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("make", [plain, changed, tail])
def test_a_damaged_block_costs_no_answer(
    store: ObjectStore, tmp_path: Path, make: Make, question: str
) -> None:
    """Whatever is asked first of a handle."""
    make(tmp_path / "c")
    url = store.put_container(tmp_path / "c")
    data = bytearray(store.objects["dir/c.cat"][0])
    data[9000] ^= 1
    store.put("dir/c.cat", bytes(data))
    with winkfs.open(tmp_path / "c") as here, winkfs.open(url) as there:
        names = sorted(here.names())[::60]
        ask = QUESTIONS[question]
        assert ask(there, names) == ask(here, names)


def test_a_truncated_object_is_reported(store: ObjectStore, tmp_path: Path) -> None:
    plain(tmp_path / "c")
    url = store.put_container(tmp_path / "c")
    store.put("dir/c.data", store.objects["dir/c.data"][0][:50_000])
    with pytest.warns(winkfs.DamageWarning, match="cut short"), winkfs.open(url) as there:
        assert 0 < len(list(there.names())) < 3000


# --- many files ---


def long_names(base: Path) -> None:
    with winkfs.create(base) as c:
        c.put_many((f"{i:03}" + "n" * (i % 3 * 700), b"%d" % i * 20) for i in range(200))
        c.put_many((f"{i:03} plain", b"%d" % i, i) for i in range(200))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("make", "compiled"),
    [(plain, False), *((make, True) for make in (changed, typed, compressed, large, long_names))],
)
def test_many_files_are_those_of_the_files_here(
    store: ObjectStore, tmp_path: Path, make: Make, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any order, some twice, in small batches, up to one that is missing."""
    make(tmp_path / "c")
    if not compiled:
        monkeypatch.setattr(native, "code", None)
    monkeypatch.setattr(catalogindex, "BATCH_BYTES", 10_000)
    monkeypatch.setattr(read, "FAR_ROWS", 2048)
    url = store.put_container(tmp_path / "c")
    with winkfs.open(tmp_path / "c") as here, winkfs.open(url) as there:
        names = sorted(here.names())
        random.Random(7).shuffle(names)
        names += names[:50]
        assert list(there.get_many(names)) == list(here.get_many(names))
        assert dict(there.items()) == dict(here.items())
        found = there.get_many([*names[:30], "none", *names[:30]])
        first = list(here.get_many(names[:30]))
        assert [next(found) for _ in first] == first
        with pytest.raises(winkfs.NoSuchFile, match="none"):
            next(found)


ANY = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-3, 1 << 20))


@given(rows=st.lists(st.tuples(ANY, ANY, ANY), max_size=30), content=st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_ranges_cover_what_can_be_there(rows: list[tuple[int, int, int]], content: bool) -> None:
    """Whatever a hostile catalog has."""
    table = np.array(rows, np.int64).reshape(-1, 3)
    found = catalogindex.ranges_of(table, np.full(len(rows), 100), content=content)
    assert all(0 < low < high for low, high in found)
    assert all(a[1] < b[0] for a, b in pairwise(found))
    for row, chosen in zip(rows, catalogindex.with_content(table).tolist(), strict=True):
        pos, size, pointer = row
        covered = [low <= pos and pos + 100 <= high for low, high in found]
        assert any(covered) or not 0 < pos < catalogindex.FARTHEST
        covered = [low <= pointer and pointer + size <= high for low, high in found]
        assert any(covered) or not (content and chosen)


def test_large_files_are_looked_up_a_few_times(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogindex, "BATCH_BYTES", 10_000)
    with winkfs.create(tmp_path / "c") as c:
        c.put_many((f"{i:04}", bytes(2000)) for i in range(2000))
    asked = list[int]()
    with winkfs.open(store.put_container(tmp_path / "c")) as there:
        some = there.some  # type: ignore[attr-defined]
        monkeypatch.setattr(there, "some", lambda names: asked.append(len(names)) or some(names))
        assert sum(map(len, there.get_many(sorted(there.names())))) == 4_000_000
    assert sum(asked) < 4 * 2000


def test_a_flipped_byte_of_a_content_is_no_wrong_answer(store: ObjectStore, tmp_path: Path) -> None:
    plain(tmp_path / "c")
    url = store.put_container(tmp_path / "c")
    data = bytearray(store.objects["dir/c.data"][0])
    with winkfs.open(tmp_path / "c") as here:
        names = sorted(here.names())[:900]
        at = here.extents(names[500])[0].pointer + 15  # type: ignore[attr-defined]
        wanted = list(here.get_many(names[:500]))
    data[at] ^= 1
    store.put("dir/c.data", bytes(data))
    with winkfs.open(url) as there:
        assert list(there.get_many(names[:500])) == wanted
        with pytest.raises(winkfs.CorruptError):
            list(there.get_many(names))


# --- one object, as it was opened ---


def test_a_replaced_object_is_not_read_on(store: ObjectStore, tmp_path: Path) -> None:
    plain(tmp_path / "c")
    url = store.put_container(tmp_path / "c")
    with winkfs.open(url) as there:
        assert there.read("d1/00001") == b"1"
        store.put("dir/c.data", store.objects["dir/c.data"][0][:-1] + b"\0")
        with pytest.raises(winkfs.StalePlan, match="replaced"):
            list(there.get_many(there.names()))


def test_what_is_not_there_is_one_line(store: ObjectStore) -> None:
    with pytest.raises(winkfs.NoSuchFile, match=r"^sim\d+://bucket/dir/c: no such container"):
        winkfs.open(f"{store.url}/dir/c")


@pytest.mark.parametrize("act", [
    lambda url, here: winkfs.open(url, "a"),
    lambda url, here: winkfs.create(url),
    lambda url, here: winkfs.create(url + "2"),
    lambda url, here: winkfs.reindex(url),
    lambda url, here: winkfs.pack(here.parent, url),
    lambda url, here: winkfs.backup(url, url + "2"),
])  # fmt: skip
def test_what_writes_is_refused(store: ObjectStore, tmp_path: Path, act: Any) -> None:
    plain(tmp_path / "c")
    url, before = store.put_container(tmp_path / "c"), dict(store.objects)
    with pytest.raises(OSError, match="can only be read"):
        act(url, tmp_path / "c")
    assert store.objects == before


def test_failures_of_requests_are_raised_and_pass(store: ObjectStore, tmp_path: Path) -> None:
    plain(tmp_path / "c")
    url = store.put_container(tmp_path / "c")
    with winkfs.open(url) as there:
        names = sorted(there.names())

        def fail(key: str) -> None:
            raise OSError(5, "the network is down", key)

        store.failing = fail
        with pytest.raises(OSError, match="network is down"):
            list(there.get_many(names))
        store.failing = lambda key: None
        assert len(list(there.get_many(names))) == len(names)


# --- few requests ---

FILES = 20_000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("many") / "c"
    with pytest.MonkeyPatch.context() as patch, winkfs.create(base) as c:
        patch.setattr(catalogs, "BRIEF_FROM", 16)
        c.put_many((f"site{i // 100:03}/page {i:05}", b"%05d" % i * 80, i) for i in range(FILES))
        c.close()
    return base


def test_a_cold_document_takes_four_requests(store: ObjectStore, many: Path) -> None:
    url = store.put_container(many)
    with store.counted() as cold, winkfs.open(url) as there:
        assert there.read("site057/page 05700") == b"05700" * 80
    assert len(cold) <= 4 and sum(request.size for request in cold) < 128 << 10
    with winkfs.open(url) as there:
        there.read("site057/page 05700")
        with store.counted() as warm:
            assert there.read("site157/page 15700") == b"15700" * 80
        assert len(warm) <= 2 and sum(request.size for request in warm) < 32 << 10
        with store.counted() as same:
            assert there.read("site157/page 15701") == b"15701" * 80
        assert len(same) == 1
        with store.counted() as none:
            assert "site100/page" not in there and there.read("site157/page 15701")
        assert len(none) <= 1


def test_a_directory_takes_three_requests(store: ObjectStore, many: Path) -> None:
    url = store.put_container(many)
    with store.counted() as asked, winkfs.open(url) as there:
        assert len(list(there.names(glob="site057/*"))) == 100
    assert len(asked) <= 3


@pytest.mark.parametrize("order", ["random", "ascending"])
def test_many_documents_take_their_bytes(store: ObjectStore, many: Path, order: str) -> None:
    url = store.put_container(many)
    chosen = random.Random(5).sample(range(FILES), 500)
    if order == "ascending":
        chosen = list(range(7000, 7500))
    with winkfs.open(url) as there:
        list(there.names())
        with store.counted() as asked:
            names = [f"site{i // 100:03}/page {i:05}" for i in chosen]
            assert list(there.get_many(names)) == [b"%05d" % i * 80 for i in chosen]
    assert len(asked) <= (510 if order == "random" else 2)
    entries = 500 * 250  # of the inodes, with their keys, and the heads of the data entries
    gaps = GAP_BYTES * (500 - len(asked))
    assert sum(request.size for request in asked) <= 1.05 * 500 * 400 + entries + gaps


def test_a_scan_of_a_prefix_reads_its_blocks_alone(store: ObjectStore, many: Path) -> None:
    url = store.put_container(many)
    with store.counted() as asked, winkfs.open(url) as there:
        assert sum(len(entry.read()) for entry in there.scan(prefix="site057/")) == 100 * 400
    size = store.objects["dir/c.cat"][1].size
    assert sum(r.size for r in asked if r.key == "dir/c.cat") < size / 2


def test_a_scan_reads_each_byte_once(store: ObjectStore, many: Path) -> None:
    url = store.put_container(many)
    with winkfs.open(url) as there, store.counted() as asked:
        assert sum(len(entry.read()) for entry in there.scan()) == FILES * 400
    size = store.objects["dir/c.data"][1].size
    assert sum(r.size for r in asked if r.key == "dir/c.data") <= 1.05 * size
    assert len(asked) <= 30


# --- data sets of many shards ---


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of 12 shards."""
    folder = tmp_path_factory.mktemp("shards") / "set"
    winkfs.dataset.create(folder).close()
    for shard in range(12):
        with winkfs.open(folder, "a") as made:
            made.put_many((f"{i:03}/{shard:02}", b"%d" % i * shard) for i in range(60))
    return folder


@pytest.fixture
def far_set(store: ObjectStore, shards: Path) -> str:
    for path in shards.rglob("*"):
        if path.is_file():
            store.put(f"set/{path.relative_to(shards)}", path.read_bytes())
    return f"{store.url}/set"


def mounted(there: Any) -> list[str]:
    """Return the names that a mount of it shows."""
    source = DatasetSource(there.base)
    try:
        return sorted(
            f"{entry.name.decode()}/{below.name.decode()}"
            for entry in source.readdir(source.opendir(source.root), 0)
            for below in source.readdir(source.opendir(entry.attr.id), 0)
        )
    finally:
        source.close()


QUESTIONS_OF_MANY: dict[str, Callable[[Any], object]] = {
    "mount": mounted,
    "many": lambda c: list(c.get_many(f"{i % 60:03}/{i % 12:02}" for i in range(300))),
    "names": lambda c: list(c.names()),
    "items": lambda c: dict(c.items()),
    "scan": lambda c: sorted((e.name, e.read()) for e in c.scan()),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("question", QUESTIONS_OF_MANY)
def test_shards_are_asked_at_once(
    store: ObjectStore, far_set: str, shards: Path, question: str
) -> None:
    ask = QUESTIONS_OF_MANY[question]
    with winkfs.open(shards) as here:
        wanted = ask(here)
    with winkfs.open(far_set) as there:
        assert len(there.shards) == 12  # type: ignore[attr-defined]
        running, most, changed = 0, 0, threading.Condition()

        def slow(key: str) -> None:
            """Answer when all shards have been asked, or after a while."""
            nonlocal running, most
            with changed:
                running += 1
                most = max(most, running)
                changed.notify_all()
                changed.wait_for(lambda: most >= 12, 0.5)
                running -= 1

        store.failing = slow
        with store.counted() as asked:
            assert ask(there) == wanted
    assert most >= 12 and len(asked) <= 5 * 12


def test_a_shard_that_is_gone_is_one_line(store: ObjectStore, far_set: str) -> None:
    gone = next(key for key in sorted(store.objects) if key.endswith(".data"))
    del store.objects[gone]
    with (
        winkfs.open(far_set) as there,
        pytest.raises(winkfs.StalePlan, match="a shard with 60 files is gone"),
    ):
        list(there.get_many(there.names()))


def test_a_mount_needs_its_store_to_begin(store: ObjectStore, far_set: str) -> None:
    gone = next(key for key in sorted(store.objects) if key.endswith(".data"))

    def fail(key: str) -> None:
        if key == gone:
            raise OSError(5, "the store does not answer", key)

    store.failing = fail
    with pytest.raises(OSError, match="does not answer"):
        DatasetSource(far_set)
    store.failing = lambda key: None
    del store.objects[gone]
    DatasetSource(far_set).close()


def test_names_are_looked_up_in_their_shards_alone(store: ObjectStore, tmp_path: Path) -> None:
    with winkfs.dataset.create(tmp_path / "set") as made:
        for shard in range(20):
            made.put_many((f"{shard:02}/{i}", b"%d" % i) for i in range(9))
            made.sync()
    for path in (tmp_path / "set").rglob("*"):
        if path.is_file():
            store.put(str(path.relative_to(tmp_path)), path.read_bytes())
    names = [f"{shard:02}/{i}" for shard in (1, 18) for i in (5, 0, 7, 3)]
    with winkfs.open(f"{store.url}/set") as there:
        with store.counted() as asked:
            assert list(there.get_many(names)) == [name[3:].encode() for name in names]
        assert len({r.key for r in asked if r.key.endswith(".data")}) == 2
        every = [f"{shard:02}/{i}" for i in range(9) for shard in range(20)]
        assert list(there.get_many(every)) == [name[3:].encode() for name in every]
        with pytest.raises(FileNotFoundError, match="07/none"):
            list(there.get_many([*every[:40], "07/none"]))


# --- other processes ---


def test_batches_of_arrow_ask_ahead(store: ObjectStore, tmp_path: Path) -> None:
    """Requests of some windows are under way at a time, as in any other pass."""
    pytest.importorskip("pyarrow")
    content = random.Random(1).randbytes(60_000)
    base = stored.make(tmp_path / "c", [(f"{i:04}", content) for i in range(400)])
    url, running, most, turn = store.put_container(base), 0, 0, threading.Condition()

    def slow(key: str) -> None:
        """Wait until three are under way, on a busy machine for some time."""
        nonlocal running, most
        with turn:
            running += 1
            most = max(most, running)
            turn.notify_all()
            turn.wait_for(lambda: most >= 3, timeout=2)
            running -= 1

    with winkfs.open(url) as there:
        there.to_arrow(["size"])  # the catalog is read
        store.failing = slow
        with store.counted() as asked:
            assert sum(batch.num_rows for batch in there.to_batches(["content"])) == 400
    assert most >= 3
    assert sum(request.size for request in asked) < 1.05 * store.objects["dir/c.data"][1].size


def _reads(url: str, there: winkfs.Reader, name: str, answer: Any) -> None:
    answer.put(there.read(name))


def test_a_forked_child_reads(store: ObjectStore, many: Path) -> None:
    url, context = store.put_container(many), multiprocessing.get_context("fork")
    with winkfs.open(url) as there:
        assert there.read("site000/page 00000") == b"00000" * 80
        answer = context.SimpleQueue()
        child = context.Process(target=_reads, args=(url, there, "site157/page 15700", answer))
        child.start()
        child.join(20)
        assert child.exitcode == 0 and answer.get() == b"15700" * 80


def test_a_copy_reads_on(store: ObjectStore, many: Path) -> None:
    url = store.put_container(many)
    with winkfs.open(url) as there, pickle.loads(pickle.dumps(there)) as copied:
        assert copied.read("site157/page 15700") == there.read("site157/page 15700")
